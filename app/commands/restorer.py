"""The restorer of a command: whole records, whether they came as they are, as a reference, or as chunks."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import cast

from aiokafka import TopicPartition

from app.pipeline.stages import InflateStage
from transforms.assembly import Assembled, Assembler, Discarded, Limits
from transforms.chunk import is_chunk
from transforms.errors import PayloadStoreError, TransformError
from transforms.record import RecordLike, SourceRecord

__all__ = ["Restored", "Restorer"]


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

    Args:
        inflate: knows references and their store.
        limits: of the messages that are not whole; they do not expire.
    """

    def __init__(self, inflate: InflateStage, limits: Limits) -> None:
        self._inflate = inflate
        self._assembler = Assembler(dataclasses.replace(limits, expire_ms=0))

    @property
    def pending(self) -> int:
        """How many messages of chunks are not whole."""
        return self._assembler.pending

    def safe_offset(self, partition: TopicPartition, position: int) -> int:
        """The offset to commit at a position: at or before it, the first chunk of a message that is not whole."""
        return self._assembler.safe_offset(partition, position)

    async def restore(self, source: SourceRecord) -> list[Restored]:
        """What ends with the next record of a partition: itself, a message of chunks, or none.

        Chunks that make no message are one `Restored` for each message, with an error.
        """
        if not is_chunk(source.headers):
            return [await self._inflated(source, Restored(source, source))]
        partition = TopicPartition(source.topic, source.partition)
        restored = []
        for event in self._assembler.add(partition, source, 0):
            if isinstance(event, Assembled):
                restored.append(await self._inflated(source, Restored(source, event.record, assembled=True)))
            elif not event.late:  # its message was told
                restored.append(_given_up(event))
        return restored

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
