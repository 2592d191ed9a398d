"""Offload: a large value leaves the record, a reference takes its place. Decisions and formats; the store is elsewhere.

Source: seed 000, "Serializer"; design, "Reference".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.compression import Codec
from transforms.formats import WIDELOAD, Format
from transforms.record import Record, RecordLike
from transforms.reference import Reference
from transforms.signing import Signing

__all__ = ["DEFAULT_THRESHOLD_BYTES", "Offload", "Payload"]

DEFAULT_THRESHOLD_BYTES = 1_048_576  # seed 000: "1MB (Default of max.message.bytes)"


@dataclass(frozen=True, slots=True)
class Payload:
    """A value on its way to the store.

    Attributes:
        data: the bytes to store: the value, or the value compressed.
        size: bytes of the value.
        checksum: SHA-256 of the value, hex.
        codec: how `data` is compressed; None where it is the value.
    """

    data: bytes
    size: int
    checksum: str
    codec: Codec | None

    def reference(self, path: str) -> Reference:
        """The reference, once the store has said where the payload is."""
        return Reference(path, self.size, self.checksum, self.codec)


@dataclass(frozen=True, slots=True)
class Offload:
    """Which records are large, and what becomes of them.

    Attributes:
        threshold_bytes: a value longer than this is large.
        sink_limit_bytes: `max.message.bytes` of the topic that the record goes to; a record over it as a batch of one
            is large whatever the threshold says. None where there is no such limit.
        codec: how payloads are compressed; None for not at all.
        format: how records are written.
        measure: bytes of what becomes of a record behind this, as a batch of one; None where that is the record.
        signing: signs references; None where they are not.
    """

    threshold_bytes: int = DEFAULT_THRESHOLD_BYTES
    sink_limit_bytes: int | None = None
    codec: Codec | None = None
    format: Format = WIDELOAD
    measure: Callable[[RecordLike], int] | None = None
    signing: Signing | None = None

    def changes(self, record: RecordLike) -> bool:
        """True where the record is not written as it is: its value is to be offloaded, or marked as one that is not."""
        return record.value is not None if self.format.marks else self.wants(record)

    def wants(self, record: RecordLike) -> bool:
        """True where the value is to be offloaded. A tombstone and an empty value never are."""
        value = record.value
        if not value:
            return False
        if len(value) > self.threshold_bytes:
            return True
        limit = self.sink_limit_bytes
        if limit is None:
            return False
        if self.measure is not None or self.format.marks:
            return (self.measure or batch_of_one_bytes)(self.keep(record)) > limit
        if not record.headers and len(value) + len(record.key or b"") + HEADERLESS_OVERHEAD_BYTES <= limit:
            return False  # nearly every record ends here, for a tenth of what the exact size costs
        return batch_of_one_bytes(record) > limit

    def payload(self, value: bytes) -> Payload:
        """What to store for `value`. Compressed bytes that are no fewer than the value are not used."""
        checksum = hashlib.sha256(value).hexdigest()
        if self.codec is not None:
            compressed = self.format.compress(self.codec, value)
            if len(compressed) < len(value):
                return Payload(compressed, len(value), checksum, self.codec)
        return Payload(value, len(value), checksum, None)

    def refer(self, record: RecordLike, reference: Reference) -> Record:
        """The record with the reference in place of its value: key, timestamp and own headers as they were.

        Raises:
            MalformedReferenceError: the store gave a path that no reader would take.
        """
        signed = reference if self.signing is None else self.signing.signed(reference)
        return self.format.write_reference(record, signed)

    def keep(self, record: RecordLike) -> RecordLike:
        """The record with its value in it, as the format has those."""
        return self.format.write_inline(record) if self.format.marks else record
