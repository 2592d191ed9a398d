"""kafka-python's consumer with chunks, over polls that a test gives, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

kafka = pytest.importorskip("kafka")
from kafka import KafkaConsumer, TopicPartition  # noqa: E402
from kafka.consumer.fetcher import ConsumerRecord  # noqa: E402

from app.chunks.polled import Polled  # noqa: E402
from app.serializers.kafka_python_chunks import PollingConsumer  # noqa: E402
from transforms.assembly import Limits  # noqa: E402

P0 = TopicPartition("t", 0)


def polled(offsets: Iterable[int]) -> list[ConsumerRecord]:
    """Records as kafka-python gives them."""
    return [ConsumerRecord(*P0, -1, offset, 1, 0, b"k", b"v", [], None, 1, 1, 0) for offset in offsets]


class Plain(PollingConsumer):
    """Restores nothing."""

    def _allowance(self) -> Callable[[int], bool]:
        return lambda _: True

    def _restored_bytes(self, _: Any) -> None:
        return None

    def _restored(self, record: Any) -> Any:
        return record


@pytest.fixture
def position(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    """The positions of the client, which says that it owns these partitions."""
    positions: dict[TopicPartition, int] = {}
    config = {**KafkaConsumer.DEFAULT_CONFIG, "group_id": None}
    monkeypatch.setattr(KafkaConsumer, "__init__", lambda consumer, **_: setattr(consumer, "config", config))
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

    def poll(consumer: PollingConsumer, *_: object) -> dict[TopicPartition, list[ConsumerRecord]]:
        consumer._rebalances.revoked([P0])  # as the listener does on kafka-python's thread
        consumer._rebalances.assigned([])
        position[P0] = at  # it has come back, and begins at its commit; or was polled since, up to a mark at 5
        return {P0: polled([2, 3, 4])}

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    consumer = Plain(Polled(Limits(), 100), lambda _: None)
    assert [each.offset for each in consumer.poll(0).get(P0, [])] == given
