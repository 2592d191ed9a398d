"""How far into the store the references of a topic may lead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from app.config.parsing import parse
from app.config.reference_scope import ReferenceScopeSettings, reference_scope
from app.config.settings import PipelineSettings
from app.pipeline.chain import build
from app.pipeline.stats import PipelineStats
from stores.memory import MemoryStore
from stores.registry import open_store
from stores.root import Root
from tests.app.pipeline.chains import apply, sink
from tests.app.pipeline.plain_store import PlainStore
from tests.app.pipeline.test_termination import Read
from transforms.errors import ConfigurationError, ReferenceRefusedError
from transforms.record import Header


@dataclass(frozen=True)
class Referring(Read):
    """A record of topic `orders`."""

    topic: str = "orders"
    headers: tuple[Header, ...] = (("large-message", b"true"),)


class Watched(MemoryStore):
    """A store that counts what it is asked."""

    asked = 0

    def get(self, full_path: str, limit: int) -> bytes:
        """See `Store.get`."""
        Watched.asked += 1
        return super().get(full_path, limit)


def pipeline(**keys: Any) -> PipelineSettings:
    """One that inflates."""
    table = {"topics": ["orders"], "output.topic": "inflated", "transforms": ["inflate"]}
    table |= {"large.message.payload.store.class": f"{__name__}:Watched", "memory.name": "reference_scope", **keys}
    (found,) = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table}}, {}).pipelines
    return found


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({}, {"orders", "salaries", "mirrored"}),
        ({"large.message.root": "store"}, {"orders", "salaries", "mirrored"}),
        ({"large.message.root": "topic"}, {"orders"}),
        ({"large.message.root": "topic", "large.message.root.topics": ["mirrored"]}, {"orders", "mirrored"}),
    ],
)
def test_scope_of_references(keys: dict[str, Any], allowed: set[str]) -> None:
    """Only payloads of the record's own topic, and of those that are listed, are read; for others nobody is asked."""
    settings = pipeline(**keys)
    store = MemoryStore()
    store.configure({"memory.name": "reference_scope"})
    chain = build(settings, store, sink(1_000_000), PipelineStats())
    for topic in ("orders", "salaries", "mirrored"):
        record = Referring(value=store.publish(topic, b"payload").encode())
        if topic in allowed:
            (found,), _ = apply(chain, record)
            assert found.value == b"payload"
            continue
        with pytest.raises(ReferenceRefusedError) as caught:
            apply(chain, record)
        assert (caught.value.root, caught.value.retriable) == (f"{store.root.uri}orders/", False)


def test_scope_refuses_before_the_store_is_asked() -> None:
    """Not even whether the payload is there can be found out."""
    store = Watched()
    store.configure({"memory.name": "watched"})
    chain = build(pipeline(**{"large.message.root": "topic"}), store, sink(1_000_000), PipelineStats())
    Watched.asked = 0
    with pytest.raises(ReferenceRefusedError):
        apply(chain, Referring(value=store.root.path("salaries", "id").encode()))
    assert Watched.asked == 0


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"transforms": ["offload"], "large.message.root": "topic"},
            r"large\.message\.root: found 'topic', which needs inflate",
        ),
        (
            {"large.message.root.topics": ["x"]},
            r"large\.message\.root\.topics: is given, and large\.message\.root is not",
        ),
        ({"large.message.root": "bucket"}, r"large\.message\.root: found 'bucket', allowed is one of: store, topic"),
    ],
)
def test_scope_keys_that_cannot_be(keys: dict[str, Any], told: str) -> None:
    """Keys without effect, or of another value, are refused."""
    with pytest.raises(ConfigurationError, match=told):
        pipeline(**keys)


def test_scope_needs_a_root() -> None:
    """A user's class that does not say where its payloads are cannot be held to topics."""
    store = open_store({"large.message.payload.store.class": f"{PlainStore.__module__}:PlainStore"})
    with pytest.raises(ConfigurationError, match="a class of your own does not say"):
        reference_scope(ReferenceScopeSettings(root="topic", topics=()), store)


def test_topic_of_a_path() -> None:
    """The topic is the first part below the root, in other writers' folders too; a path that is refused has none."""
    root = Root("s3://b/p/")
    assert [root.topic(f"s3://b/p/{tail}") for tail in ("orders/id", "orders/values/id")] == ["orders"] * 2
    for path in ("s3://b/p/orders", "s3://b/orders/id", "s3://b/p/../id", "s3://b/p/orders/other/id"):
        with pytest.raises(ReferenceRefusedError):
            root.topic(path)
