"""Inflate: puts the value back into the record, verified. The reverse of offload; the caller reads from the store.

Source: seed 000, "Deserializer"; design, "Reference".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from transforms.compression import CompressionError
from transforms.encryption import stored_bytes
from transforms.errors import PayloadCorruptError, PayloadTooLargeError, TransformError
from transforms.formats import WIDELOAD, Format
from transforms.frames import OversizeError
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, VALUE, Field, Reference, is_reference
from transforms.signing import Signing

__all__ = ["DEFAULT_MAX_BYTES", "Inflate", "Inflation", "MeasuredRecord", "has_large_key"]

DEFAULT_MAX_BYTES = 268_435_456  # 256 MiB, the worker's default for all bytes in flight


def has_large_key(record: RecordLike) -> bool:
    """Whether the key is a reference: that of our own writers, whatever the format of values."""
    return bool(record.headers) and record.key is not None and is_reference(record.headers, KEY)


@dataclass(frozen=True, slots=True)
class MeasuredRecord(Record):
    """A record whose references say no size, after the store was asked how long their payloads are.

    Attributes:
        key_bytes: stored bytes of the payload of the key; None if nobody asked.
        value_bytes: the same of the value.
    """

    key_bytes: int | None = None
    value_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Inflation:
    """A reference that was read, before its payload is.

    Attributes:
        reference: of the record.
        headers: the record's own headers.
        stored_limit_bytes: the largest allowed payload in the store.
    """

    reference: Reference
    headers: tuple[Header, ...]
    stored_limit_bytes: int


@dataclass(frozen=True, slots=True)
class Inflate:
    """Finds references and restores their values.

    Attributes:
        max_bytes: the largest payload, stored or decompressed.
        format: of the records.
        copied: whether the next stage copies the value.
        signing: verifies references; None if all are accepted.
    """

    max_bytes: int = DEFAULT_MAX_BYTES
    format: Format = WIDELOAD
    copied: bool = False
    signing: Signing | None = None

    def wants(self, record: RecordLike) -> bool:
        """Whether the record is a reference, or has the mark of a plain value. False for a tombstone."""
        return self.format.wants(record)

    def reserve_bytes(self, record: RecordLike) -> int:
        """The memory that restoring the value may take: the size in the reference, else as measured, else the limit.

        It is twice that if the value is copied, or the payload encrypted, because both are held. So is a compressed
        payload beside its value, which may be as long as the limit allows if the reference does not say. Never raises;
        a malformed reference takes no memory, as nothing is read for it.
        """
        if self.format.marks and not self.format.refers(record):
            return len(record.value or b"")  # the mark's removal makes a copy
        try:
            inflation = self.begin(record)
        except TransformError:
            return 0
        stored, reference = inflation.stored_limit_bytes, inflation.reference
        if reference.codec is not None:
            return stored + (self.max_bytes if reference.size is None else reference.size)
        return 2 * stored if self.copied or reference.encryption is not None else stored

    def reserve_key_bytes(self, record: RecordLike) -> int:
        """As `reserve_bytes`, for the key; 0 for a key that is no reference."""
        if not has_large_key(record):
            return 0
        try:
            reference, _ = self.begin_key(record)
        except TransformError:
            return 0
        measured_bytes = record.key_bytes if isinstance(record, MeasuredRecord) else None
        return self.stored_limit_bytes(reference, measured_bytes)

    def lacks_size(self, record: RecordLike) -> bool:
        """Whether a reference of the record says no size, and nobody has asked the store for it.

        False for a malformed reference, which fails before the store is asked for anything.
        """
        if isinstance(record, MeasuredRecord):
            return False
        try:
            references = self._references(record)
        except TransformError:
            return False
        return any(reference is not None and reference.size is None for reference in references)

    def measured(self, record: RecordLike, measure: Callable[[str], int | None]) -> MeasuredRecord:
        """The record, with the length of each payload of which its reference says no size.

        Args:
            record: with references.
            measure: the stored bytes of the payload at a path; None if nobody knows.

        Raises:
            PayloadTooLargeError: a payload is over `max_bytes`.
            TransformError: see `begin` and `begin_key`.
        """
        found: list[int | None] = []
        for reference in self._references(record):
            size = None if reference is None or reference.size is not None else measure(reference.path)
            if reference is not None and size is not None and size > self.max_bytes:
                raise PayloadTooLargeError(reference.path, size, self.max_bytes)
            found.append(size)
        return MeasuredRecord(record.key, record.value, record.headers, record.timestamp, *found)

    def _references(self, record: RecordLike) -> tuple[Reference | None, Reference | None]:
        """The references of key and value; None for each that is none."""
        key = self.begin_key(record)[0] if has_large_key(record) else None
        return key, self.begin(record).reference if self.format.refers(record) else None

    def begin_key(self, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """Reads and verifies the reference of the key; gives it, and the headers without it.

        Raises:
            MalformedReferenceError: the key or a header breaks the format.
            SignatureError: see `verify`.
            PayloadTooLargeError: the size in the reference is over `max_bytes`.
        """
        assert record.key is not None
        reference, headers = Reference.read(record.key, record.headers, KEY)
        self.verify(reference, KEY)
        self.stored_limit_bytes(reference)
        return reference, tuple(headers)

    def begin(self, record: RecordLike) -> Inflation:
        """Reads and verifies the reference, before any request to the store.

        Raises:
            MalformedReferenceError: the value or a header breaks the format.
            SignatureError: see `verify`.
            PayloadTooLargeError: the size in the reference is over `max_bytes`.
        """
        reference, headers = self.format.read_reference(record)
        self.verify(reference)
        measured_bytes = record.value_bytes if isinstance(record, MeasuredRecord) else None
        return Inflation(reference, headers, self.stored_limit_bytes(reference, measured_bytes))

    def verify(self, reference: Reference, part: Field = VALUE) -> None:
        """Checks the signature of the reference, if there is a key.

        Raises:
            SignatureError: it is not signed with a known key.
        """
        if self.signing is not None:
            self.signing.verify(reference, part)

    def stored_limit_bytes(self, reference: Reference, measured_bytes: int | None = None) -> int:
        """The largest allowed payload of a reference, as stored.

        Args:
            reference: as it was read.
            measured_bytes: what the store says of its payload; None if nobody asked.

        Raises:
            PayloadTooLargeError: the size in the reference is over `max_bytes`.
        """
        if reference.size is None:
            return self.max_bytes if measured_bytes is None else min(measured_bytes, self.max_bytes)
        if reference.size > self.max_bytes:
            raise PayloadTooLargeError(reference.path, reference.size, self.max_bytes)
        # A writer compresses only if that makes it shorter, so no payload is longer than its value, but for a tag.
        return stored_bytes(reference, reference.size)

    def finish(self, record: RecordLike, inflation: Inflation, stored: bytes) -> Record:
        """The record as it was before offload; `stored` is as `restore` takes it.

        Raises:
            PayloadCorruptError: size or checksum differ from the reference, or the bytes do not decompress.
            PayloadTooLargeError: there are more bytes than allowed.
        """
        value = self.restore(inflation.reference, stored)
        return Record(record.key, value, inflation.headers, record.timestamp)

    def restore(self, reference: Reference, stored: bytes) -> bytes:
        """The original value, from the stored payload; raises the same errors as `finish`.

        Encrypted bytes must have been decrypted, and so compared with the checksum, which is theirs.
        """
        if len(stored) > self.max_bytes:
            raise PayloadTooLargeError(reference.path, len(stored), self.max_bytes)
        value = stored
        if reference.codec is not None:
            try:
                value = self.format.decompress(reference, stored, self.max_bytes)
            except OversizeError as exc:
                raise PayloadTooLargeError(reference.path, None, exc.limit) from exc
            except CompressionError as exc:
                size = "" if reference.size is None else f" of {reference.size:,} bytes"
                expected = f"{reference.codec}{size}"
                raise PayloadCorruptError(reference.path, "compression", expected=expected, found=str(exc)) from exc
        if reference.size is not None and len(value) != reference.size:
            raise PayloadCorruptError(
                reference.path, "size", expected=f"{reference.size:,} bytes", found=f"{len(value):,} bytes"
            )
        if reference.checksum is not None and reference.encryption is None:
            found = hashlib.sha256(value).hexdigest()
            if found != reference.checksum:
                raise PayloadCorruptError(reference.path, "checksum", expected=reference.checksum, found=found)
        return value
