"""Random ids on compacted topics: the serializer asks the real cluster, beside the way of records, and warns once."""

from __future__ import annotations

import hashlib
import logging
import threading
import time

import pytest

from app.serializers import LargeMessageSerializer, MessageWrapper, WrapperSerializer
from stores.memory import MemoryStore
from tests.integration.way import MakeTopic
from tests.s3_server import free_port

LARGE = b"l" * 101
LOGGER = "wideload.serializers.compaction"


def send(bootstrap: str, topic: str, **more: object) -> None:
    """Serializes three large values, and waits until the cluster has been asked."""
    serializer = LargeMessageSerializer(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": "plaintext",
            "large.message.payload.store.class": "memory",
            "memory.name": topic,
            "large.message.threshold.bytes": 100,
            **more,
        }
    )
    for _ in range(3):
        serializer.serialize(topic, [], LARGE)
    serializer.close()
    MemoryStore.clear()
    asked(topic)


def asked(topic: str) -> None:
    """Waits until the cluster has been asked."""
    deadline = time.monotonic() + 30
    for thread in threading.enumerate():
        if thread.name == f"cleanup-policy-{topic}":
            thread.join(deadline - time.monotonic())
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("policy", "generator", "warned"),
    [
        ("compact", "uuid", True),
        ("compact,delete", "uuid", True),
        ("delete", "uuid", False),
        ("compact", "sha256", False),
    ],
)
def test_random_ids_on_a_compacted_topic_are_warned_of_once(
    broker: str,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    generator: str,
    warned: bool,  # noqa: FBT001
) -> None:
    """One warning a topic, however many records go there; none where ids come from content or nothing is compacted."""
    topic = make_topic(**{"cleanup.policy": policy})
    with caplog.at_level(logging.DEBUG, LOGGER):
        send(broker, topic, **{"large.message.id.generator": generator})
    told = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    if not warned:
        assert told == []
        return
    assert [record.levelname for record in caplog.records if record.name == LOGGER] == ["WARNING"]
    assert told[0].startswith(f"topic {topic} has cleanup.policy={policy}, and large.message.id.generator is uuid")
    assert told[0].endswith("set large.message.id.generator to sha256")


class PlainStore:
    """A class of the seed's interface; `large.message.id.generator` is for it to heed."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        return f"own://{topic}/{hashlib.sha256(data).hexdigest()}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        raise NotImplementedError


class OwnIdStore(PlainStore):
    """One that says itself how a payload is named."""

    def id(self, data: bytes) -> str:
        """See `PayloadStore.id`."""
        return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(("store", "warned"), [(PlainStore, True), (OwnIdStore, False)])
def test_a_class_with_its_own_ids_is_not_warned_of(
    broker: str,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    store: type,
    warned: bool,  # noqa: FBT001
) -> None:
    """Where the class has an `id`, the generator that the warning speaks of does not count."""
    topic = make_topic(**{"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING, LOGGER):
        send(broker, topic, **{"large.message.payload.store.class": store})
    assert [record.name for record in caplog.records if record.name == LOGGER] == [LOGGER] * warned


@pytest.mark.parametrize(
    ("policy", "marks", "warned"), [("compact", True, True), ("delete", True, False), ("compact", False, False)]
)
def test_wrapped_nulls_for_a_compacted_topic_are_warned_of_once(
    broker: str,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    marks: bool,  # noqa: FBT001
    warned: bool,  # noqa: FBT001
) -> None:
    """Where compaction would keep the marker for ever, it says what deletes the key; other wrappers are no matter."""
    topic = make_topic(**{"cleanup.policy": policy})
    serializer = WrapperSerializer({"bootstrap.servers": broker})
    with caplog.at_level(logging.DEBUG, LOGGER):
        for value in (b"v", None if marks else b"v", None if marks else b""):
            assert serializer.serialize(topic, [], MessageWrapper({1: b"h"}, value))
        asked(topic)
    told = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(told) == warned
    if warned:
        assert told[0].startswith(
            f"topic {topic} has cleanup.policy=compact, and a wrapper without a value deletes nothing"
        )


def test_a_cluster_that_does_not_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The records go their way; what could not be found out is a line for those who debug."""
    with caplog.at_level(logging.DEBUG, LOGGER):
        send(f"127.0.0.1:{free_port()}", "orders")
    told = [record for record in caplog.records if record.name == LOGGER]
    assert [record.levelname for record in told] == ["DEBUG"]
    assert (
        told[0]
        .getMessage()
        .startswith("cleanup.policy of topic orders is not known: ConfigurationError: bootstrap.servers: no broker")
    )
