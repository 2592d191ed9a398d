"""The formats of reference records: the project's own, and the two of bakdata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from transforms.bakdata import BakdataFlag, BakdataHeaders
from transforms.compression import Codec, compress, decompress
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import VALUE, Reference, is_reference

FormatName = Literal["wideload", "bakdata-headers", "bakdata-flag"]


class Format(Protocol):
    """A format of records whose values may be in a store.

    `read_…` and `write_…` are inverse to each other; key, timestamp and the record's own headers are kept.
    """

    @property
    def marks(self) -> bool:
        """Whether the format also marks values that stay in the record, so that the mark must be removed again."""

    def wants(self, record: RecordLike) -> bool:
        """Whether the record must be restored, because it was written in this format; called for every record."""

    def wants_any(self, batch: RecordBatch) -> bool:
        """False if `wants` is false for each record of the batch; True if checking that would be expensive."""

    def refers(self, record: RecordLike) -> bool:
        """Whether the value is in a store, or the reference is malformed. False for a tombstone."""

    def read_inline(self, record: RecordLike) -> Record:
        """The original record, if `wants` is true and `refers` is false."""

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """The reference in the record, and the record's own headers.

        Raises:
            MalformedReferenceError: there is none, or the value or a header breaks the format.
        """

    def write_inline(self, record: RecordLike) -> Record:
        """The record with its value and the mark, in a format that `marks`; never a tombstone."""

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        """The record with the reference in place of its value.

        Raises:
            MalformedReferenceError: the store returned a path that no reader accepts.
        """

    def compress(self, codec: Codec, value: bytes) -> bytes:
        """The compressed bytes to store for `value`."""

    def decompress(self, reference: Reference, stored: bytes, limit_bytes: int) -> bytes:
        """The value of a reference that has a codec.

        Raises:
            OversizeError: the value is over `limit_bytes`, in a format without sizes.
            CompressionError: the payload is damaged.
        """


class Wideload:
    """The project's own format, of `transforms/reference.py`; the methods are those of `Format`."""

    marks = False

    def wants(self, record: RecordLike) -> bool:
        return bool(record.headers) and record.value is not None and is_reference(record.headers)

    def wants_any(self, batch: RecordBatch) -> bool:
        return batch.may_hold(VALUE.flag.encode())

    refers = wants

    def read_inline(self, record: RecordLike) -> Record:
        return Record(record.key, record.value, record.headers, record.timestamp)

    def read_reference(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        return Reference.parse(record)

    write_inline = read_inline

    def write_reference(self, record: RecordLike, reference: Reference) -> Record:
        headers = (*record.headers, *reference.headers())
        return Record(record.key, reference.value(), headers, record.timestamp)

    def compress(self, codec: Codec, value: bytes) -> bytes:
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
