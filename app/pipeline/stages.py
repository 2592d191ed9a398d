"""The parts of a chain: each combines a transform with the store that it needs, and plans what to do with a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from app.cluster.preflight import CLOCKS_APART_MS
from app.config.reference_scope import reference_scope
from app.config.settings import PipelineSettings
from app.kafka.batches.batch import sent_bytes
from app.kafka.topics import Topic
from app.pipeline.runtime import random_id
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Now, Step, Store, Thread
from stores.encryption import open_keyring
from stores.payload import download, measure, publish
from stores.store import PayloadStore, Stat
from stores.store import Store as BuiltInStore
from transforms.batch_size import BATCH_OVERHEAD_BYTES, HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes, is_within
from transforms.chunk import Chunking, checksum, is_chunk
from transforms.claims import OnReference, claim, may_hold_claims
from transforms.errors import (
    ChunkError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordTooLargeError,
    RecordUnfitError,
    ReferenceClaimedError,
)
from transforms.formats import FORMATS
from transforms.inflate import Inflate, Referring, has_large_key
from transforms.offload import Offload
from transforms.outgoing import OFFLOAD, WHOLE, plan
from transforms.record import Record, RecordLike, SourceRecord
from transforms.record_batch import RecordBatch
from transforms.reference import KEY, Reference
from transforms.wrapper import Unwrap, Wrap

_KEY_FLAG = KEY.flag.encode()
_COPIED_AT_ONCE_BYTES = 65_536  # this is copied in less time than handing it to a thread takes


class Stage(Protocol):
    """One transform of a pipeline. It has no state: several threads may call it.

    Attributes:
        small_bytes: a record without headers passes if its key and value have no more; below 0 if each is looked at.
    """

    small_bytes: float

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        """False if `plan` lets each record of the batch pass. Costs next to nothing; True if that is not known cheaply.

        `whole`: the batch is forwarded whole, so that its length is compared with the limit of the output topic.
        """

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:
        """What is to be done with a record; None if it passes, which costs next to nothing: every record is asked for.

        Args:
            record: the result of the transforms before.
            source: the record as it was read.
            codec: the number of the codec with which it leaves, which may bring it within a limit; 0 for none.

        Raises:
            TransformError: this record can never succeed.
        """


# --- the size of a record as it is sent ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizedRecord(Record):
    """A record that was compressed to find out how long it is as it is sent: `sent_bytes`, alone in a batch."""

    sent_bytes: int = 0


def _compressed(
    record: RecordLike,
    codec: int,
    limit_bytes: int,
    otherwise: Callable[[SizedRecord], Step],
    *,
    wrap: Wrap | None = None,
    copies: int = 0,
) -> Thread:
    """Compresses a record: it continues if it is within a limit as it is sent, else another step is taken.

    `wrap` is the wrapper that follows; `copies` are those of the value that the other step needs, or the wrapper.
    """

    def compress() -> Sequence[RecordLike] | Step:
        size = sent_bytes(record if wrap is None else wrap.wrap(record), codec)
        sized = SizedRecord(record.key, record.value, record.headers, record.timestamp, size)
        return (sized,) if size <= limit_bytes else otherwise(sized)

    # It is put into a batch, copied from there, and compressed.
    return Thread(compress, (copies + 3) * len(record.value or b""))


# --- the transforms --------------------------------------------------------------------------------------------------


class OffloadStage:
    """Publishes large values under the name of the output topic, and replaces them by references.

    `wrap` puts a wrapper around what this transform makes or keeps; None if there is none. `falls_back` says whether
    records may continue without the store.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        store: PayloadStore,
        sink: Topic,
        stats: PipelineStats,
        wrap: Wrap | None = None,
        *,
        falls_back: bool = False,
    ) -> None:
        self._offload = offload = Offload(
            settings.threshold_bytes,
            sink.max_message_bytes,
            settings.codec,
            FORMATS[settings.reference_format],
            None if wrap is None else wrap.batch_of_one_bytes,
            settings.signing,
            settings.max_bytes,
            settings.on_reference,
        )
        small = -1 if offload.format.marks or wrap is not None else settings.threshold_bytes
        self.small_bytes: float = min(small, sink.max_message_bytes - HEADERLESS_OVERHEAD_BYTES)
        self.wants_any = offload.wants_any
        self._threshold_bytes, self._limit_bytes = settings.threshold_bytes, sink.max_message_bytes
        self._marks = offload.format.marks
        self._measure = offload.sent_bytes if offload.format.marks or wrap is not None else None
        self._store = store
        self._topic = sink.name
        self._stats = stats
        self._by_digest = settings.store.get("large.message.id.generator", "sha256") == "sha256"
        self._keyring = open_keyring(settings.encryption, settings.store_timeout_ms)
        self._encrypts = self._keyring is not None and self._keyring.writes
        # Of a value: compressed, or with its mark; encrypted.
        self._copies = int(offload.codec is not None or offload.format.marks) + int(self._encrypts)
        self._wrap = wrap
        self._falls_back = falls_back

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        offload, limit = self._offload, self._limit_bytes
        claims = record.headers and offload.claims(record)
        planned = OFFLOAD if claims else plan(record, limit, self._threshold_bytes, None, codec > 0, self._measure)
        if planned is WHOLE or not (claims or record.value):
            if not self._marks or record.value is None:
                return None
            return Now(lambda: (offload.keep(record),), self._copies * len(record.value))
        offload.check(record)
        kept = record if self._falls_back and not claims else None
        storing = Store(partial(self._publish, record), self._copies * len(record.value or b""), "offload", kept)
        if planned is OFFLOAD:
            return storing
        # Before the store is asked for anything.
        return _compressed(
            offload.keep(record),
            codec,
            limit,
            lambda sized: storing if kept is None else replace(storing, kept=sized),
            wrap=self._wrap,
            copies=max(self._copies, int(self._wrap is not None)),
        )

    def _publish(self, record: RecordLike) -> Sequence[RecordLike]:
        assert record.value is not None
        payload = self._offload.payload(record.value, hashed=not self._encrypts)
        with self._stats.store_call("publish"):
            reference = publish(self._store, self._topic, payload, by_digest=self._by_digest, keyring=self._keyring)
        return (self._offload.refer(record, reference),)


class InflateStage:
    """Downloads the payloads of references, verifies them, and restores values and keys.

    `copied`: whether the next transform copies values; `measures`: whether the store is asked first how long a payload
    is, if its reference does not state it.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        store: PayloadStore,
        stats: PipelineStats,
        *,
        copied: bool = False,
        measures: bool = True,
    ) -> None:
        form = FORMATS[settings.reference_format]
        self.small_bytes: float = -1 if form.marks else math.inf
        self._inflate = Inflate(settings.max_bytes, form, copied=copied, signing=settings.signing)
        self._store = store
        self._stats = stats
        self._reference_scope = reference_scope(settings.reference_scope, store)
        self._keyring = open_keyring(settings.encryption, settings.store_timeout_ms)
        self._measures = measures and isinstance(store, Stat)

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        return self._inflate.format.wants_any(batch) or batch.may_hold(_KEY_FLAG)

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        inflate = self._inflate
        if not (inflate.format.wants(record) or has_large_key(record)):
            return None
        referring = inflate.read(record)
        if not referring.references:  # only a mark goes
            return Now(lambda: (inflate.restored(referring, self._downloaded),), inflate.reserve_bytes(referring))
        for reference in referring.references:  # what is refused waits neither for the store nor for room
            if self._reference_scope is not None:
                self._reference_scope.check(reference.path, source)
            elif isinstance(self._store, BuiltInStore):
                self._store.root.check_readable(reference.path)
        if self._measures and referring.lacks_size:
            return Store(lambda: self._restoring(inflate.measured(referring, self._stored_bytes)), None)
        return self._restoring(referring)

    def _restoring(self, referring: Referring) -> Store:
        return Store(partial(self._restore, referring), self._inflate.reserve_bytes(referring), "inflate")

    def _restore(self, referring: Referring) -> Sequence[RecordLike] | Step:
        try:
            return (self._inflate.restored(referring, self._downloaded),)
        except PayloadTooLargeError:
            if not referring.is_measured:
                raise
            # A measured payload may be replaced by a longer one before it is read: it is measured again.
            again = self._inflate.measured(referring, self._stored_bytes)
            if again == referring:
                raise  # it is as long as before
            return self._restoring(again)

    def _stored_bytes(self, path: str) -> int | None:
        """None if the store does not report it, and will not: a download may still succeed."""
        assert isinstance(self._store, Stat)
        try:
            return measure(self._store, path)
        except PayloadStoreError as exc:
            exc.operation = "download"  # of which it is the first half; its time is not that of a download
            if exc.retriable or type(exc) is not PayloadStoreError:
                raise
            return None

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

    def __init__(
        self, chunking: Chunking, message_limit_bytes: int, group_id: str, on_reference: OnReference = "pass"
    ) -> None:
        self.wants_any = chunking.wants_any
        self.small_bytes: float = chunking.limit_bytes - HEADERLESS_OVERHEAD_BYTES
        self._chunking = chunking
        self._message_limit_bytes = message_limit_bytes
        self._group_id = group_id
        self._on_reference = on_reference

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:
        if not self._chunking.wants(record):
            return None
        # The pieces are a copy.
        splitting = Thread(partial(self._split, record, source), len(record.value or b""), "chunk")
        if not codec or (self._on_reference != "pass" and record.headers and is_chunk(record.headers)):
            return splitting
        if isinstance(record, SizedRecord):
            return splitting if record.sent_bytes > self._chunking.limit_bytes else None
        return _compressed(record, codec, self._chunking.limit_bytes, lambda _: splitting, copies=1)

    def _split(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        value = record.value or b""
        if len(value) > self._message_limit_bytes:
            reason = f"chunk.max.message.bytes is {self._message_limit_bytes:,}, and readers would discard it"
            raise ChunkError(len(value), self._chunking.limit_bytes, reason)
        digest = checksum(value)
        uuid = random_id()
        if isinstance(source, SourceRecord):
            origin = (self._group_id, source.topic, source.partition, source.offset)
            uuid = self._chunking.uuid(record, digest, origin)
        return tuple(self._chunking.split(record, uuid, digest))


class WrapperStage:
    """Wraps or unwraps. It asks no store, but the copy of a long value takes time.

    `at_once`: it is not moved to a thread for that, since what a transform behind needs is unknown before it is done.
    """

    small_bytes = -1.0

    def __init__(self, transform: Wrap | Unwrap, *, at_once: bool = False) -> None:
        self._wants: Callable[[RecordLike], bool] = transform.wants
        self._transform = transform
        self._at_once = at_once

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        """True: nearly every record has a value to wrap, or a wrapper."""
        return True

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        if not self._wants(record):
            return None
        length, transform = len(record.value or b""), self._transform
        step = Now if self._at_once or length <= _COPIED_AT_ONCE_BYTES else Thread
        if isinstance(transform, Unwrap):
            return step(lambda: (transform.unwrap(record),), transform.reserve_bytes(record), "unwrap")
        return step(lambda: (self._wrapped(record, transform),), length, "wrap")

    def _wrapped(self, record: RecordLike, wrap: Wrap) -> RecordLike:
        made = wrap.wrap(record)
        if isinstance(record, SizedRecord):  # its size is that of what is made here
            return SizedRecord(made.key, made.value, made.headers, made.timestamp, record.sent_bytes)
        return made


# --- what is refused -------------------------------------------------------------------------------------------------


class ClaimStage:
    """Fails the records that claim to be references or chunks. Goes in the place of `offload` where nothing is stored.

    Then such a record cannot be stored as it is, so that readers would not follow it.

    `splits` decides whether a record is split into chunks.
    """

    small_bytes = math.inf

    def __init__(self, splits: Callable[[RecordLike], bool]) -> None:
        self._splits = splits

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        return may_hold_claims(batch)

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        claimed = claim(record) if record.headers else None
        if claimed == "chunk" and self._splits(record):
            claimed = claim(record, split=True)
        if claimed is not None:
            raise ReferenceClaimedError(claimed)
        return None


class UnfitStage:
    """Fails the records that the output topic has refused for what they are. Stands before all transforms.

    As each refusal restarts the pipeline, other records with a timestamp that the output topic would refuse are failed
    beforehand.

    `refused` has the reasons, by topic, partition and offset. `clock` are seconds since 1970.
    """

    small_bytes = -1.0

    def __init__(
        self, refused: Mapping[tuple[str, int, int], RecordUnfitError], sink: Topic, clock: Callable[[], float]
    ) -> None:
        self._refused = refused
        self._sink = sink
        self._clock = clock

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        # The header of a batch does not have the least timestamp.
        if self._refused or self._sink.oldest_ms is not None:
            return True
        return not self._sink.takes_timestamp(batch.latest_timestamp, self._clock(), -CLOCKS_APART_MS)

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        placed = cast("SourceRecord", source)
        error = self._refused.get((placed.topic, placed.partition, placed.offset))
        if error is not None:
            raise error
        if not self._sink.takes_timestamp(record.timestamp, self._clock(), -CLOCKS_APART_MS):
            raise RecordUnfitError(self._sink.name, f"its timestamp is {record.timestamp}, as others it refused")
        return None


class SinkStage:
    """Fails the records that the output topic would refuse for their size. Stands behind all transforms."""

    def __init__(self, topic: str, limit_bytes: int) -> None:
        self.small_bytes: float = limit_bytes - HEADERLESS_OVERHEAD_BYTES
        self._topic = topic
        self._limit_bytes = limit_bytes

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:
        if batch.fits(self._limit_bytes - BATCH_OVERHEAD_BYTES):
            return False  # nearly each one that passes: its records are short
        return not (whole and len(batch.data) <= self._limit_bytes and batch.modest)

    def plan(self, record: RecordLike, source: RecordLike, codec: int) -> Step | None:  # noqa: ARG002
        if is_within(record, self._limit_bytes):
            return None
        if codec and not isinstance(record, SizedRecord):
            return _compressed(record, codec, self._limit_bytes, self._checking)
        return self._checking(record)

    def _checking(self, record: RecordLike) -> Now:
        return Now(lambda: self._checked(record))

    def _checked(self, record: RecordLike) -> Sequence[RecordLike]:
        size = record.sent_bytes if isinstance(record, SizedRecord) else batch_of_one_bytes(record)
        if size > self._limit_bytes:
            raise RecordTooLargeError(self._topic, size, self._limit_bytes)
        return (record,)
