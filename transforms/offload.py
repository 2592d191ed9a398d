"""Offload: replaces a large value by a reference. Decisions and formats only; the caller writes to the store.

Source: KIP-1159, "Serializer".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.claims import Claim, OnReference, claim, may_hold_claims
from transforms.compression import Codec
from transforms.errors import ReferenceClaimedError, ValueTooLargeError
from transforms.formats import WIDELOAD, Format
from transforms.outgoing import OFFLOAD, plan
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import Reference
from transforms.signing import Signing

DEFAULT_THRESHOLD_BYTES = 1_048_576  # KIP-1159: "1MB (Default of max.message.bytes)"


@dataclass(frozen=True, slots=True)
class Payload:
    """A value to be stored.

    Attributes:
        data: the bytes to store: the value, or the compressed value.
        size: bytes of the value.
        checksum: SHA-256 of the value, hex; empty if it was not requested.
        codec: of `data`; None if this is the value itself.
    """

    data: bytes
    size: int
    checksum: str
    codec: Codec | None

    def reference(self, path: str) -> Reference:
        """The reference to the payload at this path in the store."""
        return Reference(path, self.size, self.checksum, self.codec)


@dataclass(frozen=True, slots=True)
class Offload:
    """Finds large records and creates their references.

    Attributes:
        threshold_bytes: a value longer than this is large.
        sink_limit_bytes: `max.message.bytes` of the output topic; a record that exceeds it, alone in a batch, is large
            as well. None if there is no such limit.
        codec: the compression of payloads; None for none.
        format: of the records.
        measure: returns the size of a record, alone in a batch, after the later transforms; None if they keep it.
        signing: signs references; None if they are not signed.
        max_bytes: the longest value that readers accept; None if it is not known.
        on_reference: how to handle a record that already has the headers of a reference or a chunk. With `offload` a
            reference counts as large, so that readers get it as it was, and do not follow it.
    """

    threshold_bytes: int = DEFAULT_THRESHOLD_BYTES
    sink_limit_bytes: int | None = None
    codec: Codec | None = None
    format: Format = WIDELOAD
    measure: Callable[[RecordLike], int] | None = None
    signing: Signing | None = None
    max_bytes: int | None = None
    on_reference: OnReference = "pass"

    def changes(self, record: RecordLike) -> bool:
        """Whether the record changes: its value is offloaded, or marked as a plain value, or the record is refused."""
        return (self.format.marks and record.value is not None) or self.wants(record)

    def wants_any(self, batch: RecordBatch, *, whole: bool = False) -> bool:
        """Whether `changes` may be true for a record of the batch, by lengths and claims.

        Args:
            batch: the batch.
            whole: whether the batch is forwarded, so that its length counts instead of that of its records.
        """
        if self.format.marks or self.measure is not None:
            return True
        limit = self.threshold_bytes
        if self.sink_limit_bytes is not None and not (whole and len(batch.data) <= self.sink_limit_bytes):
            limit = min(limit, self.sink_limit_bytes - BATCH_OVERHEAD_BYTES)
        return not batch.fits(limit) or (self.on_reference != "pass" and may_hold_claims(batch))

    def wants(self, record: RecordLike) -> bool:
        """Whether to offload or refuse the record. A tombstone or an empty value passes, unless it has a claim."""
        if record.headers and self.claims(record):
            return True
        measure = self.sent_bytes if self.format.marks or self.measure is not None else None
        return plan(record, self.sink_limit_bytes, self.threshold_bytes, measure=measure) is OFFLOAD

    def sent_bytes(self, record: RecordLike) -> int:
        """The size of a record that keeps its value, as it is sent, alone in a batch."""
        return (self.measure or batch_of_one_bytes)(self.keep(record))

    def claims(self, record: RecordLike) -> Claim | None:
        """What the record claims to be, a reference or a chunk, if it must not pass with this claim; otherwise None."""
        return None if self.on_reference == "pass" else claim(record, marked=self.format.marks)

    def check(self, record: RecordLike) -> None:
        """Refuses a record with a forbidden claim; some claims that `claims` reports may be offloaded.

        Raises:
            ReferenceClaimedError: by `on_reference`; or the headers of the claim would appear next to those of the
                reference to the payload, or both in a wrapper, which cannot hold a header twice.
        """
        claimed = self.claims(record)
        if claimed and (self.on_reference == "fail" or claimed != "value" or self.measure is not None):
            raise ReferenceClaimedError(claimed)

    def payload(self, value: bytes, *, hashed: bool = True) -> Payload:
        """The payload of `value`, compressed if that makes it shorter.

        Args:
            value: to be stored.
            hashed: whether to compute its checksum. The reference to an encrypted payload has another one.

        Raises:
            ValueTooLargeError: the value has more than `max_bytes`.
        """
        if self.max_bytes is not None and len(value) > self.max_bytes:
            raise ValueTooLargeError(len(value), self.max_bytes)
        checksum = hashlib.sha256(value).hexdigest() if hashed else ""
        if self.codec is not None:
            compressed = self.format.compress(self.codec, value)
            if len(compressed) < len(value):
                return Payload(compressed, len(value), checksum, self.codec)
        return Payload(value, len(value), checksum, None)

    def refer(self, record: RecordLike, reference: Reference) -> Record:
        """The record with the reference in place of its value; key, timestamp and its own headers are kept.

        Raises:
            MalformedReferenceError: the store returned a path that no reader accepts.
        """
        signed = reference if self.signing is None else self.signing.signed(reference)
        return self.format.write_reference(record, signed)

    def keep(self, record: RecordLike) -> RecordLike:
        """The record with its value, and the mark if the format has one."""
        return self.format.write_inline(record) if self.format.marks and record.value is not None else record
