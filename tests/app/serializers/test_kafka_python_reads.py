"""kafka-python's consumer of whole records, over polls that a test gives, without a broker."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

kafka = pytest.importorskip("kafka")
from kafka import KafkaConsumer, TopicPartition  # noqa: E402
from kafka.consumer.fetcher import ConsumerRecord  # noqa: E402

from app.chunks.keys import CONSUMER_KEYS  # noqa: E402
from app.serializers.composable import ComposableDeserializer  # noqa: E402
from app.serializers.config import ClientConfig  # noqa: E402
from app.serializers.kafka_python_reads import ReadingConsumer  # noqa: E402
from stores.keys import read  # noqa: E402

P0 = TopicPartition("t", 0)


def polled(offsets: Iterable[int]) -> list[ConsumerRecord]:
    """Records as kafka-python gives them."""
    return [ConsumerRecord(*P0, -1, offset, 1, 0, b"k", b"v", [], None, 1, 1, 0) for offset in offsets]


def called(call: Coroutine[Any, Any, None]) -> None:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration):
        call.send(None)


@pytest.fixture
def position(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    """The positions of the client, which says that it owns these partitions."""
    positions: dict[TopicPartition, int] = {}
    config = {**KafkaConsumer.DEFAULT_CONFIG, "group_id": None}
    monkeypatch.setattr(KafkaConsumer, "__init__", lambda consumer, **_: setattr(consumer, "config", config))
    monkeypatch.setattr(KafkaConsumer, "subscribe", lambda *_: None)
    monkeypatch.setattr(KafkaConsumer, "assignment", lambda _: {*positions})
    monkeypatch.setattr(KafkaConsumer, "paused", lambda _: set())
    monkeypatch.setattr(KafkaConsumer, "position", lambda _, tp, timeout_ms=None: positions[tp])
    return positions


@pytest.mark.parametrize(("at", "given"), [(2, []), (5, [2, 3, 4]), (6, [2, 3, 4])])
def test_rebalance_within_a_poll(
    at: int, given: list[int], position: dict[TopicPartition, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a former assignment are not given in the next one, which reads them again from its commit."""
    position[P0] = 2

    def poll(consumer: ReadingConsumer, *_: object) -> dict[TopicPartition, list[ConsumerRecord]]:
        listener: Any = consumer._listener
        called(listener.on_partitions_revoked([P0]))
        del position[P0]
        called(listener.on_partitions_assigned([]))
        position[P0] = at  # it has come back, and begins at its commit; or was polled since, up to a mark at 5
        return {P0: polled([2, 3, 4])}

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    values = read(CONSUMER_KEYS, {})
    deserializers = ClientConfig[ComposableDeserializer]({}, values, {})
    consumer = ReadingConsumer(deserializers, lambda _: None, "t")
    assert [each.offset for each in consumer.poll(0).get(P0, [])] == given
