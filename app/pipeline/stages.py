"""Stages: each joins a transform to the store that it needs, and works on one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from app.config.reference_scope import ReferenceScope
from app.pipeline.runtime import random_id
from app.pipeline.stats import PipelineStats
from stores.payload import download, measure, publish
from stores.store import PayloadStore, Stat, Store
from transforms.chunk import Chunking, checksum, is_chunk
from transforms.claims import Claim, OnReference
from transforms.errors import ChunkError, PayloadStoreError
from transforms.inflate import Inflate, Inflation, MeasuredRecord, has_large_key
from transforms.keyring import Keyring
from transforms.offload import Offload
from transforms.record import Record, RecordLike, SourceRecord
from transforms.record_batch import RecordBatch
from transforms.reference import KEY, Reference
from transforms.wrapper import Unwrap, Wrap

__all__ = [
    "ChunkStage",
    "InflateStage",
    "NoLimit",
    "OffloadStage",
    "Stage",
    "WrapperStage",
    "unwrap_stage",
    "wrap_stage",
]

_KEY_FLAG = KEY.flag.encode()
_COPIED_AT_ONCE_BYTES = 65_536  # so much is copied in less time than it takes to hand it to a thread


class Stage(Protocol):
    """One transform of a pipeline."""

    @property
    def name(self) -> str:
        """As in `transforms`."""

    def wants(self, record: RecordLike) -> bool:
        """True if the record needs this stage. Costs next to nothing, as it is called for every record."""

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        """False if it wants no record of the batch. Costs next to nothing; True if that cannot be told cheaply.

        `whole` says that the batch is sent as it is, so that its length is compared with the limit of the sink.
        """

    def moves(self, record: RecordLike) -> bool:
        """True if `apply` is counted. Some formats also change records whose values stay where they are."""

    def limit_for(self, record: RecordLike) -> int | None:
        """The most bytes of a batch with this record alone, if `moves` is true for its uncompressed size only.

        None if there is another reason. The size is that behind the stages that follow; see `keep`.
        """

    def keep(self, record: RecordLike) -> RecordLike:
        """The record as it goes on if compression brings it within `limit_for`."""

    def blocks(self, record: RecordLike) -> bool:
        """True if `apply` takes time. If not, it makes one record of one, and the same one each time."""

    def asks_store(self, record: RecordLike) -> bool:
        """True if `apply` calls a store for the record."""

    def reserve_bytes(self, record: RecordLike) -> int:
        """Bytes that `apply` may need beside the record itself."""

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        """The records that take the place of the record, in order. Several threads call this at once.

        Args:
            record: the result of the stages before.
            source: the record as it was read.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store failed; `retriable` says whether to try again.
        """


class OffloadStage:
    """Publishes large values under the name of the sink topic, and puts references in their place."""

    name = "offload"

    def __init__(
        self,
        offload: Offload,
        store: PayloadStore,
        topic: str,
        stats: PipelineStats,
        *,
        by_digest: bool,
        keyring: Keyring | None = None,
    ) -> None:
        # Not a method: it is called for every record, and a call within a call would cost as much again.
        self.wants: Callable[[RecordLike], bool] = offload.changes if offload.format.marks else offload.wants
        self._offload = offload
        self._store = store
        self._topic = topic
        self._stats = stats
        self._by_digest = by_digest
        self._keyring = keyring
        self._encrypts = keyring is not None and keyring.writes

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        return self._offload.wants_any(batch, whole=whole)

    def moves(self, record: RecordLike) -> bool:
        return self._offload.wants(record)

    blocks = moves
    asks_store = moves

    def must_store(self, record: RecordLike) -> Claim | None:
        """What a record claims to be that must not go on without the store, however small it is; None for others."""
        return self._offload.claims(record)

    def check(self, record: RecordLike, _source: RecordLike) -> None:
        """Raises what `apply` raises for claims that are refused before the store is asked. Takes no time."""
        self._offload.check(record)

    def limit_for(self, record: RecordLike) -> int | None:
        return self._offload.limit_for(record)

    def keep(self, record: RecordLike) -> RecordLike:
        return self._offload.keep(record)

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value if it is compressed or marked, and another one if it is encrypted."""
        offload = self._offload
        copies = int(offload.codec is not None or offload.format.marks) + int(self._encrypts)
        return copies * len(record.value or b"")

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        if not self.moves(record):
            return (self._offload.keep(record),)
        self._offload.check(record)
        assert record.value is not None
        payload = self._offload.payload(record.value, hashed=not self._encrypts)
        with self._stats.store_call("publish"):
            reference = publish(self._store, self._topic, payload, by_digest=self._by_digest, keyring=self._keyring)
        return (self._offload.refer(record, reference),)


class NoLimit:
    """A stage that moves no record for its size alone."""

    def limit_for(self, record: RecordLike) -> int | None:  # noqa: ARG002
        return None

    def keep(self, record: RecordLike) -> RecordLike:
        return record


class InflateStage(NoLimit):
    """Downloads the payloads of references, verifies them, and restores values and keys.

    `reference_scope` refuses paths that the store itself would take; None if there is no need. `keyring` opens
    encrypted payloads; None if there is no key.
    """

    name = "inflate"

    def __init__(
        self,
        inflate: Inflate,
        store: PayloadStore,
        stats: PipelineStats,
        reference_scope: ReferenceScope | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self._inflate = inflate
        self._store = store
        self._stats = stats
        self._reference_scope = reference_scope
        self._keyring = keyring

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        return self._inflate.format.wants_any(batch) or batch.may_hold(_KEY_FLAG)

    def wants(self, record: RecordLike) -> bool:
        return self._inflate.format.wants(record) or has_large_key(record)

    def moves(self, record: RecordLike) -> bool:
        return self._inflate.format.refers(record) or has_large_key(record)

    blocks = moves
    asks_store = moves

    def reserve_bytes(self, record: RecordLike) -> int:
        return self._inflate.reserve_bytes(record) + self._inflate.reserve_key_bytes(record)

    def lacks_size(self, record: RecordLike) -> bool:
        """True if nobody knows how long a payload of the record is, and the store can tell without reading it."""
        return isinstance(self._store, Stat) and self._inflate.lacks_size(record)

    def measured(self, record: RecordLike, source: RecordLike) -> MeasuredRecord:
        """The record with the sizes of its payloads, for `reserve_bytes` and `apply`; raises what `apply` raises."""
        return self._inflate.measured(record, lambda path: self._stored_bytes(path, source))

    def check(self, record: RecordLike, source: RecordLike) -> None:
        """Raises what `apply` raises for references that are refused before the store is asked. Takes no time."""
        self._begun(record, source)

    def _begun(self, record: RecordLike, source: RecordLike) -> tuple[Reference | None, RecordLike, Inflation | None]:
        """The reference of the key; the record without its headers; and what is begun for the value.

        None for a key, or a value, that is no reference.
        """
        key: Reference | None = None
        if has_large_key(record):
            key, headers = self._inflate.begin_key(record)
            self._check_path(key.path, source)
            record = Record(record.key, record.value, headers, record.timestamp)
        if not self._inflate.format.refers(record):
            return key, record, None
        inflation = self._inflate.begin(record)
        self._check_path(inflation.reference.path, source)
        return key, record, inflation

    def _check_path(self, path: str, source: RecordLike) -> None:
        if self._reference_scope is not None:
            self._reference_scope.check(path, source)
        elif isinstance(self._store, Store):
            self._store.root.check_readable(path)

    def _stored_bytes(self, path: str, source: RecordLike) -> int | None:
        """None if the store does not tell, and will not: a download may still succeed."""
        self._check_path(path, source)
        assert isinstance(self._store, Stat)
        try:
            return measure(self._store, path)
        except PayloadStoreError as exc:
            exc.operation = "download"  # of which it is the first half; its time is not that of a download
            if exc.retriable or type(exc) is not PayloadStoreError:
                raise
            return None

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        inflate = self._inflate
        measured = record if isinstance(record, MeasuredRecord) else None
        reference, record, inflation = self._begun(record, source)
        if reference is not None:
            found = None if measured is None else measured.key_bytes
            key = inflate.restore(reference, self._downloaded(reference, found))
            record = Record(key, record.value, record.headers, record.timestamp)
        if inflation is not None:
            found = None if measured is None else measured.value_bytes
            return (inflate.finish(record, inflation, self._downloaded(inflation.reference, found)),)
        return (inflate.format.read_inline(record) if inflate.format.wants(record) else record,)

    def _downloaded(self, reference: Reference, measured_bytes: int | None) -> bytes:
        with self._stats.store_call("download"):
            return download(self._store, reference, self._inflate, self._keyring, measured_bytes=measured_bytes)


class ChunkStage:
    """Splits records that are too large. It asks no store, but the digest of a large value takes time.

    Args:
        chunking: decides which records are too large.
        message_limit_bytes: the largest value that is split.
        group_id: the consumer group. A source record that the group reads again gets the same uuid, so that readers
            can complete a message that a `kill -9` has cut short.
        on_reference: unless this is `pass`, a record that has the headers of a chunk is split however well it
            compresses: readers would take it for a chunk if it were whole.
    """

    name = "chunk"

    def __init__(
        self, chunking: Chunking, message_limit_bytes: int, group_id: str, on_reference: OnReference = "pass"
    ) -> None:
        self.wants: Callable[[RecordLike], bool] = chunking.wants
        self.moves: Callable[[RecordLike], bool] = chunking.wants
        self.blocks: Callable[[RecordLike], bool] = chunking.wants
        self._chunking = chunking
        self._message_limit_bytes = message_limit_bytes
        self._group_id = group_id
        self._on_reference = on_reference

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        return self._chunking.wants_any(batch, whole=whole)

    def limit_for(self, record: RecordLike) -> int | None:
        if self._on_reference != "pass" and record.headers and is_chunk(record.headers):
            return None
        return self._chunking.limit_bytes

    def keep(self, record: RecordLike) -> RecordLike:
        return record

    def asks_store(self, record: RecordLike) -> bool:  # noqa: ARG002
        return False

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value: its pieces."""
        return len(record.value or b"")

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        size = len(record.value or b"")
        if size > self._message_limit_bytes:
            reason = f"chunk.max.message.bytes is {self._message_limit_bytes:,}, and readers would discard it"
            raise ChunkError(size, self._chunking.limit_bytes, reason)
        digest = checksum(record.value or b"")
        return tuple(self._chunking.split(record, self._uuid(record, source, digest), digest))

    def _uuid(self, record: RecordLike, source: RecordLike, digest: str) -> str:
        if not isinstance(source, SourceRecord):
            return random_id()
        origin = (self._group_id, source.topic, source.partition, source.offset)
        return self._chunking.uuid(record, digest, origin)


class WrapperStage(NoLimit):
    """Wraps or unwraps. It asks no store, but the copy of a long value takes time."""

    def __init__(
        self,
        name: str,
        wants: Callable[[RecordLike], bool],
        reserve_bytes: Callable[[RecordLike], int],
        transform: Callable[[RecordLike], Record],
    ) -> None:
        self.name = name
        self.wants = wants
        self.moves = wants
        self.reserve_bytes = reserve_bytes
        self._transform = transform

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        """True: nearly every record has a value to wrap, or a wrapper."""
        return True

    def blocks(self, record: RecordLike) -> bool:
        return record.value is not None and len(record.value) > _COPIED_AT_ONCE_BYTES

    def asks_store(self, record: RecordLike) -> bool:  # noqa: ARG002
        return False

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        return (self._transform(record),)


def unwrap_stage(unwrap: Unwrap) -> WrapperStage:
    """The stage that takes headers and value out of a wrapper."""
    return WrapperStage("unwrap", unwrap.wants, unwrap.reserve_bytes, unwrap.unwrap)


def wrap_stage(wrap: Wrap) -> WrapperStage:
    """The stage that puts headers and value into a wrapper; the copies of headers are not counted anywhere."""
    return WrapperStage("wrap", wrap.wants, lambda record: len(record.value or b""), wrap.wrap)
