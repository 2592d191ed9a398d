"""Kafka records in the form that transforms use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

Header = tuple[str, bytes | None]


class RecordLike(Protocol):
    """The fields of a record that a transform reads. aiokafka's `ConsumerRecord` is one, so nothing is copied."""

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
    """A record with its topic, partition and offset. aiokafka's `ConsumerRecord` is one."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Record:
    """A Kafka record.

    Attributes:
        key: None is Kafka's null.
        value: None is a tombstone, b"" is not.
        headers: in order; a name may occur more than once, values may be None.
        timestamp: milliseconds since the epoch.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = field(default=())
    timestamp: int = -1
