"""The reader of the sink: an application that resolves references, puts chunks together and takes wrappers off."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from tests.simulation.kinds import WRAPPED_HEADER
from tests.simulation.partition_log import PartitionLog
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Limits
from transforms.reassembly import Reassembly
from transforms.record import Record, RecordLike
from transforms.reference import Reference, is_reference
from transforms.wrapper import HeaderTable, Unwrap

__all__ = ["Reader", "UnreadableError"]

_UNWRAP = Unwrap(HeaderTable({WRAPPED_HEADER: "n"}))


class UnreadableError(ValueError):
    """The application cannot read what it gets."""


class Reader:
    """Reads one partition, from its beginning.

    Args:
        log: of the partition.
        payloads: of the store.
        unwraps: whether what it reads are wrappers.
        torn: the keys of messages whose first chunks may be in a topic that is deleted.
    """

    def __init__(
        self, log: PartitionLog, payloads: Mapping[str, bytes], *, unwraps: bool, torn: Container[bytes | None] = ()
    ) -> None:
        self.log, self._payloads, self._unwraps, self._torn = log, payloads, unwraps, torn
        self._assembler = Reassembly(Limits(1_000, 1 << 30, 1 << 30, 0))
        self._next = 0
        self.read: list[RecordLike] = []
        """What it has got."""
        self.assembled: set[bytes | None] = set()
        """The keys of messages that came as chunks: if they come again, the application gets nothing."""

    @property
    def pending(self) -> int:
        """Messages of which chunks are missing."""
        return self._assembler.pending

    def go_on(self) -> Sequence[RecordLike]:
        """Reads to the end; all that it has got.

        Raises:
            UnreadableError: chunks do not make a message, or a reference leads nowhere.
        """
        stable = self.log.stable
        for offset, record in self.log.committed(self._next):
            if offset >= stable:
                break
            self._next = offset + 1
            self._take(record)
        return self.read

    def _take(self, record: Any) -> None:
        if not is_chunk(record.headers):
            self.read.append(self._opened(record))
            return
        for event in self._assembler.receive(0, record):
            if not isinstance(event, Assembled):
                if event.reason == "missing-first" and record.key in self._torn:
                    continue
                raise UnreadableError(f"offset {record.offset}: {event.reason}: {event.detail}")
            self.assembled.add(event.record.key)
            self.read.append(self._opened(event.record))

    def _opened(self, record: RecordLike) -> RecordLike:
        if self._unwraps:
            record = _UNWRAP.unwrap(record)
        if is_reference(record.headers):
            reference, own = Reference.parse(record)
            value = self._payloads.get(reference.path)
            if value is None or len(value) != reference.size:
                raise UnreadableError(f"{record.key!r}: there is no payload {reference.path}")
            record = Record(record.key, value, own, record.timestamp)
        return record
