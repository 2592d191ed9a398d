"""The formats of a reference record: the project's own, and those of others that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from transforms.bakdata import BakdataFlag, BakdataHeaders
from transforms.compression import Codec, compress, decompress
from transforms.record import Header, Record, RecordLike
from transforms.reference import Reference, is_reference

__all__ = ["FORMATS", "WIDELOAD", "Format", "FormatName"]

FormatName = Literal["wideload", "bakdata-headers", "bakdata-flag"]


class Format(Protocol):
    """How a record says that its value is elsewhere, or here.

    `read_…` and `write_…` are the inverse of each other; key, timestamp and the record's own headers pass.
    """

    @property
    def marks(self) -> bool:
        """Whether a value that stays in the record is changed too, and has to be changed back."""
        ...

    def wants(self, record: RecordLike) -> bool:
        """True where the record is not as it was, for it was written in this format; every record is asked."""
        ...

    def refers(self, record: RecordLike) -> bool:
        """True where the value is elsewhere, or where what says so is malformed. A tombstone never is."""
        ...

    def read_inline(self, record: RecordLike) -> Record:
        """The record as it was, of one that `wants` is true of and `refers` is not."""
        ...

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """What the record refers to, and its own headers.

        Raises:
            MalformedReferenceError: it does not refer, or the value or a header is not as the format has it.
        """
        ...

    def write_inline(self, record: RecordLike) -> Record:
        """The record with its value in it, in a format that `marks`; never a tombstone."""
        ...

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        """The record with the reference in place of its value.

        Raises:
            MalformedReferenceError: the store gave a path that no reader would take.
        """
        ...

    def compress(self, codec: Codec, value: bytes) -> bytes:
        """What to store for `value`."""
        ...

    def decompress(self, reference: Reference, stored: bytes, limit_bytes: int) -> bytes:
        """The value of a reference that has a codec.

        Raises:
            OversizeError: there is more than `limit_bytes`, in a format that does not say how much there is.
            CompressionError: it is damaged.
        """
        ...


class Wideload:
    """The project's own: see `transforms/reference.py`."""

    marks = False

    def wants(self, record: RecordLike) -> bool:
        """See `Format.wants`."""
        return bool(record.headers) and record.value is not None and is_reference(record.headers)

    refers = wants

    def read_inline(self, record: RecordLike) -> Record:
        """See `Format.read_inline`."""
        return Record(record.key, record.value, record.headers, record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """See `Format.read_reference`."""
        return Reference.parse(record)

    def write_inline(self, record: RecordLike) -> Record:
        """See `Format.write_inline`."""
        return Record(record.key, record.value, record.headers, record.timestamp)

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        """See `Format.write_reference`."""
        headers = (*record.headers, *reference.headers())
        return Record(record.key, reference.value(), headers, record.timestamp)

    def compress(self, codec: Codec, value: bytes) -> bytes:
        """See `Format.compress`."""
        return compress(codec, value)

    def decompress(self, reference: Reference, stored: bytes, limit_bytes: int) -> bytes:  # noqa: ARG002
        """See `Format.decompress`; the reference's size is the limit."""
        assert reference.codec is not None
        assert reference.size is not None
        return decompress(reference.codec, stored, reference.size)


WIDELOAD = Wideload()
FORMATS: Mapping[FormatName, Format] = {
    "wideload": WIDELOAD,
    "bakdata-headers": BakdataHeaders(),
    "bakdata-flag": BakdataFlag(),
}
