"""The restorer of a command: full records, whether they were sent unchanged, as references, as chunks, or wrapped."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import cast

from aiokafka import TopicPartition

from app.kafka.topic_reader import Pending
from app.pipeline.stages import InflateStage
from app.pipeline.work import Store
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.errors import MalformedWrapperError, PayloadStoreError, TransformError
from transforms.reassembly import Reassembly
from transforms.record import RecordLike, SourceRecord
from transforms.reference import is_reference
from transforms.wrapper import MessageWrapper, Unwrap


@dataclass(frozen=True, slots=True)
class Restored:
    """A record, and how it was sent.

    Attributes:
        source: as it was read; the last one of several chunks.
        record: as it was before a writer offloaded, wrapped or split it; as it was read if that fails.
        inflated: whether its value was a reference.
        assembled: whether its value came as chunks.
        unwrapped: whether it came in a wrapper.
        error: why it cannot be restored; None if it was.
        reference: whether it is a reference that cannot be inflated.
    """

    source: SourceRecord
    record: RecordLike
    inflated: bool = False
    assembled: bool = False
    unwrapped: bool = False
    error: str | None = None
    reference: bool = False


class Restorer(Pending):
    """Inflates references and assembles chunks, or unwraps values, or all of it. Belongs to one event loop.

    The order is the worker's: chunks become a message, whose wrapper is taken off, and a reference in it inflated. What
    clients make comes as well: a reference whose payload is a wrapper is inflated before. Nothing is inflated twice.

    A message of chunks expires by the time of its partition's log: when a record is read there that is so much later
    than its first chunk. A message whose writer has died therefore does not hold back commits forever.

    Args:
        inflate: inflates references; None to leave references and chunks as they are.
        limits: of incomplete messages.
        unwrap: unwraps values; None to leave them.
    """

    def __init__(self, inflate: InflateStage | None, limits: Limits, unwrap: Unwrap | None = None) -> None:
        self._inflate = inflate
        self._unwrap = unwrap
        self._reassembly = Reassembly(limits)
        self._clocks: dict[TopicPartition, int] = {}  # the latest timestamp that was read, in milliseconds

    @property
    def pending(self) -> int:
        """How many chunked messages are incomplete."""
        return self._reassembly.pending

    def safe_offset(self, partition: TopicPartition, position: int) -> int:
        """The offset to commit at a position: at or before it, the first chunk of an incomplete message."""
        return self._reassembly.safe_offset(partition, position)

    def release(self, partition: TopicPartition) -> None:
        """Forgets the chunks of a partition that is another consumer's now."""
        self._reassembly.clear(partition)
        self._clocks.pop(partition, None)

    async def restore(self, source: SourceRecord) -> list[Restored]:
        """What ends with the next record of a partition: itself, a message of chunks, or none.

        Chunks that do not form a message are one `Restored` for each message, with an error.
        """
        if self._inflate is None:
            found = Restored(source, source)
            # Chunks and paths are not wrappers, but the values that they stand for may be.
            stands_for = is_chunk(source.headers) or (is_reference(source.headers) and not _is_wrapper(source))
            return [found if stands_for else await self._opened(found)]
        partition = TopicPartition(source.topic, source.partition)
        # A timestamp of the future must not let all messages expire.
        stamp_ms = min(source.timestamp, int(time.time() * 1000))
        passed_ms = max(0, stamp_ms - self._clocks.setdefault(partition, stamp_ms))
        self._clocks[partition] += passed_ms
        expired = self._reassembly.tick(passed_ms, [partition])
        restored = [_given_up(event) for event in expired if isinstance(event, Discarded)]
        if not is_chunk(source.headers):
            return [*restored, await self._opened(Restored(source, source))]
        for event in self._reassembly.receive(partition, source):
            if isinstance(event, Assembled):
                restored.append(await self._opened(Restored(source, event.record, assembled=True)))
            elif isinstance(event, Discarded) and not event.late:  # its message was reported
                restored.append(_given_up(event))
        return restored

    async def _opened(self, begun: Restored) -> Restored:
        """Without its wrapper, and with the payload of its reference."""
        unwrap, found = self._unwrap, begun
        try:
            if unwrap is not None:
                # Of a reference, it is the payload that may be a wrapper, unless headers in a wrapper are one, too.
                if not _is_wrapper(found.record):
                    found = await self._inflated(found, marked=False)
                if unwrap.wants(found.record):
                    found = dataclasses.replace(found, record=unwrap.unwrap(found.record), unwrapped=True)
            if not found.inflated:
                found = await self._inflated(found, marked=True)
        except MalformedWrapperError as exc:
            return dataclasses.replace(begun, error=str(exc))
        except (TransformError, PayloadStoreError) as exc:
            return dataclasses.replace(begun, error=str(exc), reference=True)
        return found

    async def _inflated(self, found: Restored, *, marked: bool) -> Restored:
        """With the payload of its reference, if it is one; `marked` says whether the mark of a plain value goes too."""
        step = None if self._inflate is None else self._inflate.plan(found.record, found.source, 0)
        if step is None or not (marked or isinstance(step, Store)):
            return found
        (record,) = await asyncio.to_thread(step.taken)
        return dataclasses.replace(found, record=record, inflated=isinstance(step, Store))


def _is_wrapper(record: RecordLike) -> bool:
    return record.value is not None and MessageWrapper.check(record.value)


def _given_up(event: Discarded) -> Restored:
    first = cast("SourceRecord", event.records[0])
    count = len(event.records)
    what = f"{count:,} chunks do not form a message" if count > 1 else "a chunk does not form a message"
    return Restored(first, first, error=f"{what}: {event.reason}: {event.detail}")
