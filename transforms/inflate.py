"""Inflate: puts the value back into the record, verified. The reverse of offload; the caller reads from the store.

Source: seed 000, "Deserializer"; design, "Reference".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from transforms.compression import CompressionError
from transforms.encryption import stored_bytes
from transforms.errors import PayloadCorruptError, PayloadTooLargeError, TransformError
from transforms.formats import WIDELOAD, Format
from transforms.frames import OversizeError
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, VALUE, Field, Reference, is_reference
from transforms.signing import Signing

__all__ = ["DEFAULT_MAX_BYTES", "Inflate", "Inflation", "has_large_key"]

DEFAULT_MAX_BYTES = 268_435_456  # 256 MiB, the worker's default for all bytes in flight


def has_large_key(record: RecordLike) -> bool:
    """Whether the key is a reference: that of our own writers, whatever the format of values."""
    return bool(record.headers) and record.key is not None and is_reference(record.headers, KEY)


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
        """The memory that restoring the value may take: the size in the reference, or else the limit.

        It is twice that if the payload is compressed or encrypted, or the value copied, because both are held. Never
        raises; a malformed reference takes no memory, as nothing is read for it.
        """
        if self.format.marks and not self.format.refers(record):
            return len(record.value or b"")  # the mark's removal makes a copy
        try:
            inflation = self.begin(record)
        except TransformError:
            return 0
        reference = inflation.reference
        copies = 2 if self.copied or reference.codec is not None or reference.encryption is not None else 1
        return copies * inflation.stored_limit_bytes

    def reserve_key_bytes(self, record: RecordLike) -> int:
        """As `reserve_bytes`, for the key; 0 for a key that is no reference."""
        if not has_large_key(record):
            return 0
        try:
            reference, _ = self.begin_key(record)
        except TransformError:
            return 0
        return self.max_bytes if reference.size is None else reference.size

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
        return Inflation(reference, headers, self.stored_limit_bytes(reference))

    def verify(self, reference: Reference, part: Field = VALUE) -> None:
        """Checks the signature of the reference, if there is a key.

        Raises:
            SignatureError: it is not signed with a known key.
        """
        if self.signing is not None:
            self.signing.verify(reference, part)

    def stored_limit_bytes(self, reference: Reference) -> int:
        """The largest allowed payload of a reference, as stored.

        Raises:
            PayloadTooLargeError: the size in the reference is over `max_bytes`.
        """
        if reference.size is None:
            return self.max_bytes
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
