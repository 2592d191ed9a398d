"""The restorer of a command: whole records, whether they came as they are, as a reference, or as chunks."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import cast

from aiokafka import TopicPartition

from app.pipeline.stages import InflateStage
from transforms.assembly import Assembled, Assembler, Discarded, Limits
from transforms.chunk import is_chunk
from transforms.errors import PayloadStoreError, TransformError
from transforms.record import RecordLike, SourceRecord

__all__ = ["Restored", "Restorer"]

_END = 2**63 - 1  # behind each offset


@dataclass(frozen=True, slots=True)
class Restored:
    """A record, and what it came as.

    Attributes:
        source: as it was read; the last one of several chunks.
        record: as it was before a writer offloaded or split it; as it was read if that fails.
        inflated: whether its value was a reference.
        assembled: whether its value came as chunks.
        error: why it cannot be restored; None if it was.
    """

    source: SourceRecord
    record: RecordLike
    inflated: bool = False
    assembled: bool = False
    error: str | None = None


class Restorer:
    """Inflates references, and puts chunks together. Belongs to one event loop.

    A message of chunks expires by the time of its partition's log: when a record is read there that is so much later
    than its first chunk. So one whose writer has died does not hold back commits for ever, whoever reads, and when.

    Args:
        inflate: knows references and their store.
        limits: of the messages that are not whole.
    """

    def __init__(self, inflate: InflateStage, limits: Limits) -> None:
        self._inflate = inflate
        self._assembler = Assembler(limits)
        self._clocks: dict[TopicPartition, int] = {}  # the latest timestamp that was read, in milliseconds

    @property
    def pending(self) -> int:
        """How many messages of chunks are not whole."""
        return self._assembler.pending

    def safe_offset(self, partition: TopicPartition, position: int) -> int:
        """The offset to commit at a position: at or before it, the first chunk of a message that is not whole."""
        return self._assembler.safe_offset(partition, position)

    def release(self, partition: TopicPartition) -> None:
        """Forgets the chunks of a partition that is another consumer's now."""
        self._assembler.clear(partition)
        self._clocks.pop(partition, None)

    async def restore(self, source: SourceRecord) -> list[Restored]:
        """What ends with the next record of a partition: itself, a message of chunks, or none.

        Chunks that make no message are one `Restored` for each message, with an error.
        """
        partition = TopicPartition(source.topic, source.partition)
        # A timestamp of the future must not let all messages expire.
        now_ms = max(self._clocks.get(partition, 0), min(source.timestamp, int(time.time() * 1000)))
        self._clocks[partition] = now_ms
        restored = [_given_up(event) for event in self._expired() if not event.late]
        if not is_chunk(source.headers):
            return [*restored, await self._inflated(source, Restored(source, source))]
        for event in self._assembler.add(partition, source, now_ms):
            if isinstance(event, Assembled):
                restored.append(await self._inflated(source, Restored(source, event.record, assembled=True)))
            elif not event.late:  # its message was told
                restored.append(_given_up(event))
        return restored

    def _expired(self) -> list[Discarded]:
        """What has waited too long by the clock of each partition that has chunks: by the one that is furthest back."""
        if not self._assembler.pending:
            return []
        held = [now for place, now in self._clocks.items() if self._assembler.safe_offset(place, _END) < _END]
        return self._assembler.expire(min(held))

    async def _inflated(self, source: SourceRecord, found: Restored) -> Restored:
        if not self._inflate.wants(found.record):
            return found
        try:
            (record,) = await asyncio.to_thread(self._inflate.apply, found.record, source)
        except (TransformError, PayloadStoreError) as exc:
            return dataclasses.replace(found, error=str(exc))
        return dataclasses.replace(found, record=record, inflated=self._inflate.moves(found.record))


def _given_up(event: Discarded) -> Restored:
    first = cast("SourceRecord", event.records[0])
    what = f"{len(event.records):,} chunks make no message" if len(event.records) > 1 else "a chunk makes no message"
    return Restored(first, first, error=f"{what}: {event.reason}: {event.detail}")
