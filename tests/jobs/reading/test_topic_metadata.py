"""Requests of the jobs' clients that name topics: none creates one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.conn import AIOKafkaConnection

from app.config.client import embedded_client_settings
from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError, idempotent_producer
from app.kafka.range_reader import RangeReader
from jobs.copying.writer import SinkTopic, SinkWriter, sink_topic
from jobs.driver.failures import JobFailedError
from jobs.reading.log import Topics, look
from tests.integration.topics import send
from transforms.errors import ConfigurationError
from transforms.record import Record

_METADATA = 3

Named = list[tuple[Any, bool]]


@pytest.fixture
def topic(broker: str, make_topic: Callable[..., str]) -> str:
    """A topic with one record."""
    name = make_topic(1, **{"message.timestamp.after.max.ms": 5_000})
    send(broker, name, [(0, b"k", b"v", [], 1)])
    return name


@pytest.fixture
def named(topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Named]:
    """The requests for metadata of topics by name: the topics, and whether brokers may create them.

    Without those of the tests' own clients, which make the topic before.
    """
    assert topic
    found: Named = []
    send_it = AIOKafkaConnection.send

    def sent(connection: Any, request: Any, *more: Any, **options: Any) -> Any:
        built = request.prepare(connection._versions)
        if built.API_KEY == _METADATA:
            fields = built.to_object()
            if fields["topics"]:
                found.append((fields["topics"], fields["allow_auto_topic_creation"]))
        return send_it(connection, request, *more, **options)

    monkeypatch.setattr(AIOKafkaConnection, "send", sent)
    yield found
    assert [topics for topics, creating in found if creating] == []


def client_of(broker: str) -> ClientSettings:
    return embedded_client_settings({"bootstrap.servers": broker})


def test_no_reader_creates_a_topic(broker: str, topic: str, named: Named) -> None:
    """Not where a topic never was, nor where one is deleted while a task reads it."""
    client = client_of(broker)
    with pytest.raises(ConfigurationError, match=r"subscribe: never-was is not on the broker at .*; create it"):
        look(client, Topics("subscribe", (topic, "never-was")))
    found = look(client, Topics("subscribe", (topic,)))
    assert len(found.ids[topic]) == 32
    with closing(RangeReader(client)) as log:
        assert [record.key for record in log.records(TopicPartition(topic, 0), 0, 1)] == [b"k"]
        before = len(named)
        with pytest.raises(ClusterError, match="topic deleted-since does not exist any more"):
            next(log.records(TopicPartition("deleted-since", 0), 0, 1))
    assert len(named) > before


def test_no_writer_creates_a_topic(broker: str, topic: str, named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a sink never was, nor where it is deleted while a backfill writes it."""
    client = client_of(broker)
    # It asks for the topic until then.
    monkeypatch.setattr(
        "jobs.copying.writer.idempotent_producer", partial(idempotent_producer, request_timeout_ms=1_000)
    )
    with pytest.raises(ConfigurationError, match="--sink: topic never-was does not exist; create it first"):
        sink_topic(client, "never-was")
    sink = sink_topic(client, topic)
    assert (sink.ends, sink.keeps_timestamps, sink.newest_ms) == ({0: 1}, True, 5_000)
    deleted = SinkTopic("deleted-since", {0: 0}, sink.max_message_bytes, keeps_timestamps=True)
    with closing(SinkWriter(client, deleted, f"id-{topic}", 60_000)) as writer:
        writer.write(0, Record(b"k", b"v", (), 1))
        before = len(named)
        with pytest.raises(JobFailedError, match=r"topic deleted-since .*UnknownTopicOrPartitionError"):
            writer.flush()
        assert len(named) > before
