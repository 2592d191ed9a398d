"""Offload: replaces a large value by a reference. Decisions and formats only; the caller writes to the store.

Source: seed 000, "Serializer"; design, "Reference".
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

DEFAULT_THRESHOLD_BYTES = 1_048_576  # seed 000: "1MB (Default of max.message.bytes)"


@dataclass(frozen=True, slots=True)
class Payload:
    """A value to be stored.

    Attributes:
        data: the bytes to store: the value, or the compressed value.
        size: bytes of the value.
        checksum: SHA-256 of the value, hex; empty if it was not asked for.
        codec: of `data`; None if it is the value itself.
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
    """Finds large records and makes their references.

    Attributes:
        threshold_bytes: a value longer than this is large.
        sink_limit_bytes: `max.message.bytes` of the sink topic; a record that is over it, alone in a batch, is large
            too. None if there is no such limit.
        codec: the compression of payloads; None for none.
        format: of the records.
        measure: the size of a record, alone in a batch, after the stages behind this one; None if they keep it.
        signing: signs references; None if they are not signed.
        max_bytes: the longest value that readers take; None if it is not known.
        on_reference: what becomes of a record that has the headers of a reference or a chunk already. With `offload` a
            reference counts as large, so that readers get it as it was, and follow it no further.
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
        """Whether the record changes: its value is offloaded, or gets the mark of a plain value; or it is refused."""
        return (self.format.marks and record.value is not None) or self.wants(record)

    def wants_any(self, batch: RecordBatch, *, whole: bool = False) -> bool:
        """Whether `changes` may be true for a record of the batch; it looks at lengths, and for claims.

        Args:
            batch: to look at.
            whole: whether the batch is sent as it is, so that its length counts and not that of its records.
        """
        if self.format.marks or self.measure is not None:
            return True
        limit = self.threshold_bytes
        if self.sink_limit_bytes is not None and not (whole and len(batch.data) <= self.sink_limit_bytes):
            limit = min(limit, self.sink_limit_bytes - BATCH_OVERHEAD_BYTES)
        return not batch.fits(limit) or (self.on_reference != "pass" and may_hold_claims(batch))

    def wants(self, record: RecordLike) -> bool:
        """Whether to offload the record, or to refuse it. A tombstone and an empty value stay, unless they claim."""
        if record.headers and self.claims(record):
            return True
        measure = self.sent_bytes if self.format.marks or self.measure is not None else None
        return plan(record, self.sink_limit_bytes, self.threshold_bytes, measure=measure) is OFFLOAD

    def sent_bytes(self, record: RecordLike) -> int:
        """The size of a record that keeps its value, alone in a batch, as it is sent."""
        return (self.measure or batch_of_one_bytes)(self.keep(record))

    def claims(self, record: RecordLike) -> Claim | None:
        """What the record claims to be, if it must not go on as it is: a reference or a chunk. None if it may."""
        return None if self.on_reference == "pass" else claim(record, marked=self.format.marks)

    def check(self, record: RecordLike) -> None:
        """Refuses a record that claims what it must not; `claims` finds some that `check` lets be offloaded.

        Raises:
            ReferenceClaimedError: by `on_reference`; or the claim would stand next to the reference to its payload, or
                both in a wrapper, which holds no header twice.
        """
        claimed = self.claims(record)
        if claimed and (self.on_reference == "fail" or claimed != "value" or self.measure is not None):
            raise ReferenceClaimedError(claimed)

    def payload(self, value: bytes, *, hashed: bool = True) -> Payload:
        """The payload of `value`, compressed if that makes it shorter.

        Args:
            value: to be stored.
            hashed: whether it has its checksum. The reference to an encrypted payload has another one.

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
        """The record with the reference in place of its value; key, timestamp and own headers stay.

        Raises:
            MalformedReferenceError: the store returned a path that no reader accepts.
        """
        signed = reference if self.signing is None else self.signing.signed(reference)
        return self.format.write_reference(record, signed)

    def keep(self, record: RecordLike) -> RecordLike:
        """The record with its value, and the mark if the format has one."""
        return self.format.write_inline(record) if self.format.marks and record.value is not None else record
