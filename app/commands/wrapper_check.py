"""The message wrappers of a topic: the version, the headers and the value of each."""

from __future__ import annotations

from dataclasses import dataclass

from transforms.record import Record, RecordLike
from transforms.text import bytes_text
from transforms.wrapper import MessageWrapper, Unwrap


@dataclass(frozen=True, slots=True)
class WrapperCheck:
    """A value that is a wrapper, to the last byte.

    Attributes:
        version: its MagicByte.
        headers: how many it has.
        content: the record without it; headers that are not ours have numbers for names.
    """

    version: int
    headers: int
    content: Record

    @classmethod
    def of(cls, record: RecordLike) -> WrapperCheck | None:
        """The wrapper in a record; None if its value is not a wrapper."""
        value = record.value
        if value is None or not MessageWrapper.check(value):
            return None
        content = Unwrap().unwrap(record)
        return cls(value[0], len(content.headers) - len(record.headers), content)

    @property
    def size(self) -> int | None:
        """Bytes of its value; None for the tombstone marker."""
        return None if self.content.value is None else len(self.content.value)

    def __str__(self) -> str:
        headers = "1 header" if self.headers == 1 else f"{self.headers:,} headers"
        value = "a null value: a tombstone" if self.size is None else f"a value of {bytes_text(self.size)}"
        return f"a wrapper, version {self.version}, with {headers} and {value}"
