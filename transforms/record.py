"""What a record is to a transform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = ["Header", "Record", "RecordLike", "SourceRecord"]

Header = tuple[str, bytes | None]


class RecordLike(Protocol):
    """What a transform reads of a record; aiokafka's `ConsumerRecord` has it as it is, so nothing is copied."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...
    @property
    def timestamp(self) -> int: ...


@runtime_checkable
class SourceRecord(RecordLike, Protocol):
    """A record with its place in the log. aiokafka's `ConsumerRecord` is one."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record, all of it.

    Attributes:
        key: the key; None is Kafka's null.
        value: the value; None is a tombstone, b"" is not.
        headers: in order; names may stand more than once, values may be None.
        timestamp: milliseconds since the epoch, as Kafka carries it.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = field(default=())
    timestamp: int = -1
