"""Stages: a transform joined to its store. They run on threads, one record at a time."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Protocol, cast

from app.cluster.preflight import CLOCKS_APART_MS
from app.config.reference_scope import ReferenceScope, reference_scope
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from app.pipeline.stats import Latency, PipelineStats
from app.pipeline.wrapper_stages import UnwrapStage, WrapStage
from stores.payload import download, publish
from stores.store import PayloadStore
from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.chunk import Chunking, checksum
from transforms.errors import (
    ChunkError,
    KeyMissingError,
    PayloadStoreError,
    PayloadUnfitError,
    RecordTooLargeError,
    RecordUnfitError,
    TransformError,
)
from transforms.formats import FORMATS
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import RecordLike, SourceRecord
from transforms.record_format import check_names, is_writable

__all__ = [
    "Chain",
    "ChunkStage",
    "Fallback",
    "InflateStage",
    "OffloadStage",
    "Stage",
    "UnfitStage",
    "build",
]

_PROBE_S = 5.0  # how long records go without a store that has failed, before it is asked again


class Stage(Protocol):
    """One transform of a pipeline."""

    @property
    def name(self) -> str:
        """As in `transforms`."""
        ...

    def wants(self, record: RecordLike) -> bool:
        """True where the record needs this stage; costs next to nothing, as every record is asked."""
        ...

    def moves(self, record: RecordLike) -> bool:
        """True where `apply` is counted; some formats also change records whose values stay where they are."""
        ...

    def blocks(self, record: RecordLike) -> bool:
        """True where `apply` takes time; where not, it makes one record of one, the same whenever it is asked."""
        ...

    def reserve_bytes(self, record: RecordLike) -> int:
        """Bytes that `apply` may need beside the record itself."""
        ...

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        """What becomes of the record, in order; blocks, and is called from several threads at once.

        Args:
            record: what the stages before have made.
            source: as it was read.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store; `retriable` says whether to try again.
        """
        ...


@contextmanager
def _timed(latency: Latency) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        latency.observe(time.perf_counter() - start)


class OffloadStage:
    """Publishes large values under the sink topic's name, and lets references go on."""

    name = "offload"

    def __init__(
        self, offload: Offload, store: PayloadStore, topic: str, stats: PipelineStats, *, by_digest: bool
    ) -> None:
        # Not a method: every record is asked, and a call of a call would cost as much again.
        self.wants: Callable[[RecordLike], bool] = offload.changes if offload.format.marks else offload.wants
        self._offload = offload
        self._store = store
        self._topic = topic
        self._stats = stats
        self._by_digest = by_digest

    def moves(self, record: RecordLike) -> bool:
        """See `Stage.moves`."""
        return self._offload.wants(record)

    blocks = moves

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value where it is compressed or marked, none else."""
        offload = self._offload
        return len(record.value or b"") if offload.codec is not None or offload.format.marks else 0

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        """See `Stage.apply`."""
        assert record.value is not None
        if not self.moves(record):
            return (self._offload.keep(record),)
        payload = self._offload.payload(record.value)
        with _timed(self._stats.publish):
            reference = publish(self._store, self._topic, payload, by_digest=self._by_digest)
        return (self._offload.refer(record, reference),)


class UnfitStage:
    """Records that the sink has refused, for reasons that are theirs. Goes before all others.

    Where it has refused one, others will come that it would refuse: by their timestamps they are known beforehand, as
    each refusal lets the pipeline begin again.

    Args:
        refused: why, by topic, partition and offset.
        sink: the topic.
    """

    name = "sink"

    def __init__(self, refused: Mapping[tuple[str, int, int], RecordUnfitError], sink: Topic) -> None:
        self._refused = refused
        self._sink = sink

    def wants(self, record: RecordLike) -> bool:
        """See `Stage.wants`."""
        return _place(record) in self._refused or not self._sink.takes_timestamp(record.timestamp, -CLOCKS_APART_MS)

    def moves(self, record: RecordLike) -> bool:  # noqa: ARG002
        """See `Stage.moves`."""
        return False

    blocks = moves

    def reserve_bytes(self, record: RecordLike) -> int:  # noqa: ARG002
        """See `Stage.reserve_bytes`."""
        return 0

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:  # noqa: ARG002
        """See `Stage.apply`."""
        error = self._refused.get(_place(record))
        raise error or RecordUnfitError(self._sink.name, f"its timestamp is {record.timestamp}, as others it refused")


def _place(record: RecordLike) -> tuple[str, int, int]:
    source = cast(SourceRecord, record)  # no stage has changed it yet
    return source.topic, source.partition, source.offset


class InflateStage:
    """Downloads what references point to, verifies it, and restores the records.

    Args:
        inflate: which records are references.
        store: where their payloads are.
        stats: what is counted.
        reach: where they may lead, beside what the store refuses; None where it refuses all that is to be refused.
    """

    name = "inflate"

    def __init__(
        self, inflate: Inflate, store: PayloadStore, stats: PipelineStats, reference_scope: ReferenceScope | None = None
    ) -> None:
        self.wants: Callable[[RecordLike], bool] = inflate.format.wants
        self._inflate = inflate
        self._store = store
        self._stats = stats
        self._reach = reference_scope

    def moves(self, record: RecordLike) -> bool:
        """See `Stage.moves`."""
        return self._inflate.format.refers(record)

    blocks = moves

    def reserve_bytes(self, record: RecordLike) -> int:
        """See `Inflate.reserve_bytes`."""
        return self._inflate.reserve_bytes(record)

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        """See `Stage.apply`."""
        if not self.moves(record):
            return (self._inflate.format.read_inline(record),)
        inflation = self._inflate.begin(record)
        if self._reach is not None:
            self._reach.check(inflation.reference.path, source)
        with _timed(self._stats.download):
            stored = download(self._store, inflation.reference, self._inflate)
        return (self._inflate.finish(record, inflation, stored),)


class ChunkStage:
    """Splits records that are too large. It moves nothing, but the digest of a large value takes a thread as well.

    Args:
        chunking: which records are too large.
        message_limit_bytes: the largest value that is split.
        group_id: whose offsets tell what was done. Its source records have the same uuids each time, so that after a
            `kill -9` readers go on with the message that was cut short.
    """

    name = "chunk"

    def __init__(self, chunking: Chunking, message_limit_bytes: int, group_id: str) -> None:
        self.wants: Callable[[RecordLike], bool] = chunking.wants
        self.moves: Callable[[RecordLike], bool] = chunking.wants
        self.blocks: Callable[[RecordLike], bool] = chunking.wants
        self._chunking = chunking
        self._message_limit_bytes = message_limit_bytes
        self._group_id = group_id

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value: its pieces."""
        return len(record.value or b"")

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:
        """See `Stage.apply`."""
        size = len(record.value or b"")
        if size > self._message_limit_bytes:
            reason = f"chunk.max.message.bytes is {self._message_limit_bytes:,}, and readers would discard it"
            raise ChunkError(size, self._chunking.limit_bytes, reason)
        digest = checksum(record.value or b"")
        return tuple(self._chunking.split(record, self._uuid(record, source, digest), digest))

    def _uuid(self, record: RecordLike, source: RecordLike, digest: str) -> str:
        if not isinstance(source, SourceRecord):
            return str(uuid.uuid4())
        origin = (self._group_id, source.topic, source.partition, source.offset)
        return self._chunking.uuid(record, digest, origin)


class Chain:
    """The stages of a pipeline, in order, and the sink's limit behind them.

    Args:
        stages: in the order of `transforms`.
        topic: the sink topic.
        limit_bytes: its `max.message.bytes`.
        falls_back: whether `apply` may be asked to do without the store.
        compacted: whether the sink topic is, and takes no record without a key.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        topic: str,
        limit_bytes: int,
        *,
        falls_back: bool = False,
        compacted: bool = False,
    ) -> None:
        self.stages = tuple(stages)
        self.falls_back = falls_back
        self._topic = topic
        self._limit_bytes = limit_bytes
        self._compacted = compacted
        self._inflates = any(stage.name == "inflate" for stage in self.stages)
        # No header-less record with so short a key and value can be over the limit.
        self._surely_fits = limit_bytes - HEADERLESS_OVERHEAD_BYTES

    def passes(self, record: RecordLike) -> bool:
        """True where the record goes to the sink as it is."""
        if self._compacted and record.key is None:
            return False
        try:
            for stage in self.stages:
                if stage.wants(record):
                    return False
            if not record.headers and len(record.value or b"") + len(record.key or b"") <= self._surely_fits:
                return True
            return batch_of_one_bytes(record) <= self._limit_bytes
        except UnicodeEncodeError:
            return False  # the name of a header; `apply` says so

    def blocks(self, record: RecordLike) -> bool:
        """False where `apply` asks no store, and takes no time."""
        return is_writable(record) and any(stage.blocks(seen) for stage, seen in self._seen(record))

    def asks_store(self, record: RecordLike) -> bool:
        """True where a stage of a store wants the record."""
        return any(stage.name != ChunkStage.name and stage.wants(record) for stage in self.stages)

    def reserve_bytes(self, record: RecordLike) -> int:
        """The most that a stage needs beside the record itself."""
        if not is_writable(record):
            return 0
        if self._inflates:
            return max((stage.reserve_bytes(seen) for stage, seen in self._seen(record)), default=0)
        # The others make copies, and none of a value that is longer than the record's.
        return max((stage.reserve_bytes(record) for stage in self.stages if stage.wants(record)), default=0)

    def _seen(self, record: RecordLike) -> Iterator[tuple[Stage, RecordLike]]:
        """Each stage that wants the record, and the record as it comes there; none behind a store's, or one that fails.

        Behind a stage the record may be another: one that was wrapped may be a reference, or too large.
        """
        seen = record
        for stage in self.stages:
            if not stage.wants(seen):
                continue
            yield stage, seen
            if stage is self.stages[-1] or (stage.blocks(seen) and not isinstance(stage, UnwrapStage | WrapStage)):
                return
            try:
                seen = stage.apply(seen, record)[0]
            except TransformError:
                return  # `apply` is going to raise it

    def apply(self, record: RecordLike, *, offloading: bool = True) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        """What the stages that want the record make of it, in order, and the names of those that had work with it.

        Args:
            record: one that does not pass.
            offloading: whether the stage that offloads is asked; where not, what is behind it takes what it leaves.

        Raises:
            TransformError: this record can never succeed; `RecordTooLargeError` or `KeyMissingError` where the sink
                would refuse it; `HeaderNameError` where no client could write it.
            PayloadStoreError: the store; `retriable` says whether to try again.
        """
        if self._compacted and record.key is None:
            raise KeyMissingError(self._topic)
        check_names(record)
        applied = []
        records: Sequence[RecordLike] = (record,)
        for stage in self.stages:
            if len(records) == 1 and stage.wants(records[0]) and (offloading or stage.name != "offload"):
                if stage.moves(records[0]):
                    applied.append(stage.name)
                records = stage.apply(records[0], record)
        for result in records:
            size = batch_of_one_bytes(result)
            if size > self._limit_bytes:
                raise RecordTooLargeError(self._topic, size, self._limit_bytes)
        return records, tuple(applied)


class Fallback:
    """A chain that does without its store while that is down: `large.message.strategy` is `auto`.

    Args:
        chain: one that `falls_back`.
        failed: called with what the store failed with, where the record went without it; on a thread.
        may_pass: says of an error of the store whether it is down, or refuses for good; likewise.
        clock: seconds that do not go back.
    """

    # State that changes: `_down_until_s`, by several threads. It is one value, and what is read of it may be old.
    # `_asking` is held by the one record that asks a store that has failed.

    def __init__(
        self,
        chain: Chain,
        failed: Callable[[PayloadStoreError], None],
        *,
        may_pass: Callable[[PayloadStoreError], bool] = attrgetter("retriable"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chain = chain
        self._failed = failed
        self._may_pass = may_pass
        self._clock = clock
        self._down_until_s: float | None = None
        self._asking = threading.Lock()

    def apply(self, record: RecordLike) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        """As `Chain.apply`; raises a `PayloadStoreError` that may pass only where nothing but the store can help."""
        if not self._chain.asks_store(record):
            return self._chain.apply(record)
        until_s = self._down_until_s
        asking = until_s is not None and self._clock() >= until_s and self._asking.acquire(blocking=False)
        if until_s is not None and not asking and (done := self._without_store(record)) is not None:
            return done
        try:
            result = self._chain.apply(record)
        except PayloadUnfitError:
            # It is not down; but what it does not take, readers of chunks do.
            if (done := self._without_store(record)) is None:
                raise
            return done
        except PayloadStoreError as exc:
            if not self._may_pass(exc):
                raise
            self._down_until_s = self._clock() + _PROBE_S
            done = self._without_store(record)
            if done is None:
                raise
            self._failed(exc)
            return done
        finally:
            if asking:
                self._asking.release()
        self._down_until_s = None
        return result

    def _without_store(self, record: RecordLike) -> tuple[Sequence[RecordLike], tuple[str, ...]] | None:
        try:
            return self._chain.apply(record, offloading=False)
        except (PayloadStoreError, TransformError):
            return None


def build(
    settings: PipelineSettings,
    store: PayloadStore | None,
    limit_bytes: int,
    stats: PipelineStats,
    *,
    compacted: bool = False,
    unfit: UnfitStage | None = None,
) -> Chain:
    """The chain of a pipeline, without the assembler, which goes before it.

    Args:
        settings: of the pipeline.
        store: opened with `settings.store`; None where that is empty.
        limit_bytes: `max.message.bytes` of the sink topic.
        stats: where store latencies go.
        compacted: whether the sink topic is.
        unfit: knows the records that the sink refuses; None where it has refused none.
    """
    form = FORMATS[settings.reference_format]
    chunks = settings.chunks
    by_digest = settings.store.get("large.message.id.generator", "sha256") == "sha256"
    wrapper = settings.wrapper
    stages: list[Stage] = [] if unfit is None else [unfit]
    if wrapper.unwraps:
        stages.append(UnwrapStage(wrapper.unwrap))
    if "inflate" in settings.transforms:
        assert store is not None
        inflate = Inflate(settings.max_bytes, form, copied=wrapper.wraps, signing=settings.signing)
        stages.append(InflateStage(inflate, store, stats, reference_scope(settings.reference_scope, store)))
    if settings.offloads:
        assert store is not None
        measure = wrapper.wrap.batch_of_one_bytes if wrapper.wraps else None
        offload = Offload(settings.threshold_bytes, limit_bytes, settings.codec, form, measure, settings.signing)
        stages.append(OffloadStage(offload, store, settings.output_topic, stats, by_digest=by_digest))
    if wrapper.wraps:
        stages.append(WrapStage(wrapper.wrap))
    if chunks.splits:
        chunking = Chunking(settings.chunks.limit_bytes(limit_bytes))
        stages.append(ChunkStage(chunking, chunks.limits.message_bytes, settings.group_id))
    falls_back = settings.offloads and chunks.strategy == "auto"
    return Chain(stages, settings.output_topic, limit_bytes, falls_back=falls_back, compacted=compacted)
