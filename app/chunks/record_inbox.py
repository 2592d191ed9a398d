"""The inbox of aiokafka's consumers, and what a whole message is there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from app.chunks.inbox import Inbox
from transforms.chunked_message import Assembled, ChunkMessageId, Limits


@dataclass
class AssembledRecord(ConsumerRecord):  # type: ignore[misc]  # aiokafka has no types
    """A whole message, with the offset of its last chunk; everything else is as in the record that was split.

    Attributes:
        chunk_message_id: the offsets of its first and its last chunk.
    """

    chunk_message_id: ChunkMessageId


class RecordInbox(Inbox[ConsumerRecord]):
    """Provides the offsets to commit to aiokafka; see `app.kafka.subscriptions.Undelivered`."""

    def __init__(self, limits: Limits, lookback: int) -> None:
        super().__init__(limits, lookback)
        self._assigned: Collection[TopicPartition] = ()
        self._counted_s: dict[TopicPartition, float] = {}  # until when the time of a partition has been counted

    def whole(self, last: ConsumerRecord, message: Assembled) -> AssembledRecord:
        record = message.record
        return AssembledRecord(
            topic=last.topic,
            partition=last.partition,
            offset=last.offset,
            timestamp=record.timestamp,
            timestamp_type=last.timestamp_type,
            key=record.key,
            value=record.value,
            checksum=None,
            serialized_key_size=len(record.key) if record.key is not None else -1,
            serialized_value_size=len(record.value or b""),
            headers=tuple(record.headers),
            chunk_message_id=message.id,
        )

    def safe(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, stated: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(*self.commit(tp, *given, stated=stated)) for tp, given in offsets.items()}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.move(place, offset)
        self.begin(place, offset)

    def assigned(self, places: Collection[TopicPartition]) -> None:
        for place in self._assigned:
            self.clear(place)
        self._assigned = places

    def count(self, places: Iterable[TopicPartition], since_s: float) -> None:
        """Counts the time in which a call has read these partitions, once however many calls did."""
        now_s = time.monotonic()
        for place in places:
            since = max(since_s, self._counted_s.get(place, since_s))
            self._counted_s[place] = now_s
            self.tick(now_s - since, [place])
