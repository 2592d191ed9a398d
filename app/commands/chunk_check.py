"""The chunked messages of a topic: which are whole, broken, or waiting for their last chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from aiokafka import TopicPartition

from app.commands.wrapper_check import WrapperCheck
from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.errors import MalformedChunkError
from transforms.reassembly import Reassembly
from transforms.record import SourceRecord

State = Literal["whole", "pending", "broken", "unchecked"]

_AT_THE_END_MS = 1


@dataclass(frozen=True, slots=True)
class ChunkCheck:
    """The result for one chunked message.

    Attributes:
        state: `whole`: all chunks are there, with the right size and checksum. `pending`: its last chunks were not
            read. `broken`: its chunks do not form a message. `unchecked`: more messages are incomplete than are held.
        record: its last chunk; the first one if it is not whole.
        chunk: the headers of that record; None if they break the format.
        have: bytes of its chunks.
        detail: the problem, or that the message is a wrapper; for people.
    """

    state: State
    record: SourceRecord
    chunk: Chunk | None
    have: int
    detail: str | None = None

    @property
    def bad(self) -> bool:
        """Whether no consumer can read the message."""
        return self.state == "broken"


class ChunkChecks:
    """Assembles the chunks of a topic without keeping their bytes, and reports the result.

    Args:
        limits: of incomplete messages.
    """

    def __init__(self, limits: Limits) -> None:
        # The clock stands still until the end, when all that is left expires and is reported.
        self._reassembly = Reassembly(dataclasses.replace(limits, expire_ms=_AT_THE_END_MS))

    def take(self, record: SourceRecord) -> Iterator[ChunkCheck]:
        """The messages that end with a chunk; those of a partition come in their order."""
        for event in self._reassembly.receive(TopicPartition(record.topic, record.partition), record):
            if isinstance(event, Assembled):
                wrapper = WrapperCheck.of(event.record)
                detail = None if wrapper is None else f"they form {wrapper}"
                yield ChunkCheck("whole", record, _chunk(record), len(event.record.value or b""), detail)
            elif isinstance(event, Discarded) and not event.late:  # its message was reported
                yield _check("unchecked" if event.reason == "evicted" else "broken", event)

    def finish(self) -> Iterator[ChunkCheck]:
        """The messages whose last chunks were not read."""
        for event in self._reassembly.tick(_AT_THE_END_MS):
            if isinstance(event, Discarded):
                yield _check("pending", event)


def _check(state: State, event: Discarded) -> ChunkCheck:
    records = cast("Sequence[SourceRecord]", event.records)
    chunk = _chunk(records[0])
    if state == "pending" and chunk is not None:
        detail = f"{len(records):,} of {chunk.count:,} chunks were read"
    else:
        detail = f"{event.reason}: {event.detail}"
    return ChunkCheck(state, records[0], chunk, sum(len(each.value or b"") for each in records), detail)


def _chunk(record: SourceRecord) -> Chunk | None:
    try:
        return Chunk.parse(record)[0]
    except MalformedChunkError:
        return None
