"""The forms of a record's value, and the counts of a backfill."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from jobs.reading.messages import TopicRecord
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.bakdata import MARKS as BAKDATA_MARKS
from transforms.chunk import Chunk, is_chunk
from transforms.errors import MalformedChunkError, MalformedReferenceError
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.record import RecordLike
from transforms.reference import Reference, is_reference

Form = Literal["plain", "reference", "bakdata", "chunk", "tombstone"]
FORMS: tuple[Form, ...] = ("plain", "reference", "bakdata", "chunk", "tombstone")
"""Where the value of a record is: in the record; in the store, with this project's headers; in either place, as bakdata
marks it; in several chunks; or nowhere."""

Mark = tuple[int, int]
"""A record of the source that was read: its offset, and a CRC-32 of its timestamp, key and value."""


@dataclass(slots=True)
class Tally:
    """Counts of records that were read and written.

    Attributes:
        forms: by form, the number of records, and the bytes of their keys and values in the log.
        records: records that were written.
        bytes: the bytes of their keys and values.
        payloads: values that were published; in a dry run, that would be.
        payload_bytes: the bytes of these values, as far as they are known.
        unsized: in a dry run, how many of these values have a size that only the store knows.
        kept: records that were written as they are, since they cannot be restored.
        left_out: chunks that do not form a message.
    """

    forms: dict[Form, list[int]] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    unsized: int = 0
    kept: int = 0
    left_out: int = 0

    def read(self, form: Form, size: int) -> None:
        """Counts a record of the source."""
        counts = self.forms.setdefault(form, [0, 0])
        counts[0] += 1
        counts[1] += size

    def add(self, other: Tally) -> None:
        """Adds the counts of another tally."""
        for form, (records, size) in other.forms.items():
            counts = self.forms.setdefault(form, [0, 0])
            counts[0] += records
            counts[1] += size
        for name in ("records", "bytes", "payloads", "payload_bytes", "unsized", "kept", "left_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def read_records(self) -> int:
        """How many records of the source were read."""
        return sum(records for records, _ in self.forms.values())

    @property
    def read_bytes(self) -> int:
        """The bytes of their keys and values."""
        return sum(size for _, size in self.forms.values())


def mark_of(record: TopicRecord) -> Mark:
    """The mark of a record, by which it can be recognized later."""
    crc = zlib.crc32(b"%d" % record.timestamp)
    for part in (record.key, record.value):
        crc = zlib.crc32(b"null" if part is None else b"%d:" % len(part), crc)
        crc = zlib.crc32(part or b"", crc)
    return record.offset, crc


def form_of(record: RecordLike, reference_format: FormatName) -> Form:
    """The form of a record, in a topic of this format.

    In a topic of bakdata's, the mark of a value says what it is, whatever headers of ours the record's writer gave it.
    """
    if is_chunk(record.headers):
        return "chunk"
    if record.value is None:
        return "tombstone"
    marked = any(name == BAKDATA_FLAG for name, _ in record.headers)
    flagged = reference_format == "bakdata-flag" and record.value[:1] in BAKDATA_MARKS
    if is_reference(record.headers) and not flagged and not (marked and reference_format != "wideload"):
        return "reference"
    return "bakdata" if marked or reference_format == "bakdata-flag" else "plain"


def foresee(
    record: RecordLike, tally: Tally, reference_format: FormatName, offload: Offload | None, *, keep_references: bool
) -> None:
    """Counts what a backfill would do with a record."""
    form, size = form_of(record, reference_format), len(record.value or b"")
    if form == "chunk":
        with suppress(MalformedChunkError):
            chunk = Chunk.parse(record)[0]
            if chunk.id == 0:
                _would_publish(offload, tally, chunk.size)
        return
    tally.records += 1
    if form == "reference":
        with suppress(MalformedReferenceError):
            known = Reference.parse(record)[0].size
            if not keep_references:
                _would_publish(offload, tally, known)
    elif form == "bakdata":
        found = FORMATS["bakdata-flag" if reference_format == "bakdata-flag" else "bakdata-headers"]
        _would_publish(offload, tally, None if found.refers(record) else size)
    elif form == "plain" and offload is not None and offload.wants(record):
        tally.payloads += 1
        tally.payload_bytes += size


def _would_publish(offload: Offload | None, tally: Tally, size: int | None) -> None:
    if offload is None:
        return
    if size is None:
        tally.payloads += 1
        tally.unsized += 1
    elif size > offload.threshold_bytes:
        tally.payloads += 1
        tally.payload_bytes += size
