"""Inflate: restores the value of a reference record, verified. The inverse of offload; the caller reads from the store.

Source: KIP-1159, "Deserializer".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from transforms.compression import CompressionError
from transforms.encryption import stored_bytes
from transforms.errors import PayloadCorruptError, PayloadTooLargeError
from transforms.formats import WIDELOAD, Format
from transforms.frames import OversizeError
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, VALUE, Field, Reference, is_reference
from transforms.signing import Signing

DEFAULT_MAX_BYTES = 268_435_456  # 256 MiB, the worker's default for all bytes in flight


def has_large_key(record: RecordLike) -> bool:
    """Whether the key is a reference of our own writers, whatever the format of values."""
    return bool(record.headers) and record.key is not None and is_reference(record.headers, KEY)


@dataclass(frozen=True, slots=True)
class Inflation:
    """A reference that was read, and whose payload was not.

    Attributes:
        reference: of the record.
        headers: the record's own headers.
        stored_limit_bytes: the largest allowed payload in the store.
    """

    reference: Reference
    headers: tuple[Header, ...]
    stored_limit_bytes: int


@dataclass(frozen=True, slots=True)
class Referring:
    """A record with references that were read and verified.

    Attributes:
        record: the record, without the headers of the reference in its key.
        key: the reference in place of the key; None if the key is not a reference.
        value: the reference in place of the value; None if the value is not a reference.
        key_bytes: the stored size of the key's payload, as reported by the store; None if it was not requested.
        value_bytes: the stored size of the value's payload, likewise.
    """

    record: RecordLike
    key: Reference | None
    value: Inflation | None
    key_bytes: int | None = None
    value_bytes: int | None = None

    @property
    def references(self) -> Sequence[Reference]:
        """The references of key and value."""
        return [each for each in (self.key, None if self.value is None else self.value.reference) if each is not None]

    @property
    def lacks_size(self) -> bool:
        """Whether a reference has no size."""
        return any(each.size is None for each in self.references)

    @property
    def is_measured(self) -> bool:
        """Whether the store has reported a size."""
        return self.key_bytes is not None or self.value_bytes is not None


@dataclass(frozen=True, slots=True)
class Inflate:
    """Finds references and restores their values.

    Attributes:
        max_bytes: the maximum size of a payload, stored or decompressed.
        format: of the records.
        copied: whether the next transform copies the value.
        signing: verifies references; None if all are accepted.
    """

    max_bytes: int = DEFAULT_MAX_BYTES
    format: Format = WIDELOAD
    copied: bool = False
    signing: Signing | None = None

    def wants(self, record: RecordLike) -> bool:
        """Whether the record is a reference, or has the mark of a plain value. False for a tombstone."""
        return self.format.wants(record)

    def read(self, record: RecordLike) -> Referring:
        """Reads and verifies the references of key and value, before any request to the store.

        Raises:
            MalformedReferenceError: the key, the value or a header breaks the format.
            SignatureError: see `verify`.
            PayloadTooLargeError: the size in a reference is over `max_bytes`.
        """
        key = None
        if has_large_key(record):
            key, headers = Reference.read(record.key or b"", record.headers, KEY)
            self.verify(key, KEY)
            self.stored_limit_bytes(key)
            record = Record(record.key, record.value, tuple(headers), record.timestamp)
        return Referring(record, key, self.begin(record) if self.format.refers(record) else None)

    def measured(self, referring: Referring, measure: Callable[[str], int | None]) -> Referring:
        """The record, with the length of each payload whose reference has no size.

        Args:
            referring: to be measured.
            measure: returns the stored size of the payload at a path; None if it is not known.

        Raises:
            PayloadTooLargeError: a payload is over `max_bytes`.
        """

        def size_of(reference: Reference | None) -> int | None:
            size = None if reference is None or reference.size is not None else measure(reference.path)
            if reference is not None and size is not None and size > self.max_bytes:
                raise PayloadTooLargeError(reference.path, size, self.max_bytes)
            return size

        value = None if referring.value is None else referring.value.reference
        return replace(referring, key_bytes=size_of(referring.key), value_bytes=size_of(value))

    def reserve_bytes(self, referring: Referring) -> int:
        """The memory that restoring may need: the size in the reference, or as measured, or the limit.

        For the value, this counts twice if the value is copied, or the payload encrypted, because both are held in
        memory. A compressed payload is held in addition to its value, whose size is the limit if the reference has no
        size. Removing the mark of a plain value makes a copy as well.
        """
        key, value = referring.key, referring.value
        key_bytes = 0 if key is None else self.stored_limit_bytes(key, referring.key_bytes)
        if value is None:
            return key_bytes + (len(referring.record.value or b"") if self.format.marks else 0)
        reference = value.reference
        stored = self.stored_limit_bytes(reference, referring.value_bytes)
        if reference.codec is not None:
            return key_bytes + stored + (self.max_bytes if reference.size is None else reference.size)
        return key_bytes + (2 * stored if self.copied or reference.encryption is not None else stored)

    def restored(self, referring: Referring, download: Callable[[Reference, int | None], bytes]) -> RecordLike:
        """The record with its key and value.

        Args:
            referring: to be restored.
            download: returns the stored bytes of a reference, decrypted; called with the measured size, too.

        Raises:
            PayloadCorruptError: see `finish`.
            PayloadTooLargeError: there are more bytes than allowed.
        """
        record = referring.record
        if referring.key is not None:
            key = self.restore(referring.key, download(referring.key, referring.key_bytes))
            record = Record(key, record.value, record.headers, record.timestamp)
        if referring.value is not None:
            stored = download(referring.value.reference, referring.value_bytes)
            return self.finish(record, referring.value, stored)
        return self.format.read_inline(record) if self.format.wants(record) else record

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

    def stored_limit_bytes(self, reference: Reference, measured_bytes: int | None = None) -> int:
        """The largest allowed payload of a reference, as stored.

        Args:
            reference: as it was read.
            measured_bytes: the size that the store reports; None if it was not requested.

        Raises:
            PayloadTooLargeError: the size in the reference is over `max_bytes`.
        """
        if reference.size is None:
            return self.max_bytes if measured_bytes is None else min(measured_bytes, self.max_bytes)
        if reference.size > self.max_bytes:
            raise PayloadTooLargeError(reference.path, reference.size, self.max_bytes)
        # Writers compress only if this makes the value shorter, so a payload is never longer than its value and a tag.
        return stored_bytes(reference, reference.size)

    def finish(self, record: RecordLike, inflation: Inflation, stored: bytes) -> Record:
        """The record as it was before offload; `stored` as for `restore`.

        Raises:
            PayloadCorruptError: size or checksum differ from the reference, or the bytes do not decompress.
            PayloadTooLargeError: there are more bytes than allowed.
        """
        value = self.restore(inflation.reference, stored)
        return Record(record.key, value, inflation.headers, record.timestamp)

    def restore(self, reference: Reference, stored: bytes) -> bytes:
        """The original value, from the stored payload; raises the errors of `finish`.

        Encrypted bytes must have been decrypted, which has verified their checksum.
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
