"""A partition's log, read anywhere, by a consumer of kafka-python's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from app.chunks.polled import Place
from app.kafka.source_batch import ReadRecord

__all__ = ["Log", "place_of", "record_of"]

_STEP_MS = 200
_REQUEST_MS = 30_000


class Log:
    """A consumer that is no member of the group, and reads a partition anywhere; see `app.chunks.polled.Seeking`.

    Args:
        arguments: of kafka-python's own class.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._consumer = KafkaConsumer(**arguments)

    def first(self, place: Place) -> int:
        tp = TopicPartition(*place)
        found: int = self._consumer.beginning_offsets([tp], timeout_ms=_REQUEST_MS)[tp]
        return found

    def records(self, place: Place, start: int, end: int) -> Iterator[ReadRecord | None]:
        tp = TopicPartition(*place)
        self._consumer.assign([tp])
        self._consumer.seek(tp, start)
        # What was read has been in the log. If it ends before `end` now, that was taken out of it.
        end = min(end, self._consumer.end_offsets([tp], timeout_ms=_REQUEST_MS)[tp])
        while (self._consumer.position(tp, timeout_ms=_REQUEST_MS) or 0) < end:
            found = self._consumer.poll(_STEP_MS).get(tp, [])
            if not found:
                yield None
            for record in found:
                if record.offset >= end:
                    return
                yield record_of(record)

    def close(self) -> None:
        self._consumer.close()


def place_of(tp: TopicPartition) -> Place:
    """A partition, as the assembler of chunks names it."""
    return tp.topic, tp.partition


def record_of(record: ConsumerRecord) -> ReadRecord:
    """A record, as the assembler of chunks takes it."""
    headers = tuple(record.headers)
    return ReadRecord(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, headers
    )
