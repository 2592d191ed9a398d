"""The chain: the stages of a pipeline, in order, and the limit of the sink topic behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from app.config.reference_scope import reference_scope
from app.config.settings import PipelineSettings
from app.kafka.batches.batch import sent_bytes
from app.pipeline.refusals import ClaimStage, UnfitStage
from app.pipeline.stages import (
    ChunkStage,
    InflateStage,
    OffloadStage,
    Stage,
    WrapperStage,
    unwrap_stage,
    wrap_stage,
)
from app.pipeline.stats import PipelineStats
from stores.encryption import open_keyring
from stores.store import PayloadStore
from transforms.batch_size import BATCH_OVERHEAD_BYTES, HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes
from transforms.chunk import Chunking
from transforms.errors import KeyMissingError, RecordTooLargeError, ReferenceClaimedError
from transforms.formats import FORMATS
from transforms.inflate import Inflate, MeasuredRecord
from transforms.offload import Offload
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch
from transforms.record_format import check_names

__all__ = ["Chain", "Result", "Work", "build"]

Result = tuple[Sequence[RecordLike], tuple[str, ...]]
"""The records to write, in order, and the names of the stages that are counted for them."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a chain on one record: how far it has come, and what the rest of it needs.

    Attributes:
        source: the record as it was read.
        records: what the stages before `position` have made of it.
        position: the next stage, as an index into the stages of the chain.
        applied: the names of the stages that are counted so far.
        reserve_bytes: the most that a stage needs beside the record itself.
        blocks: True if the rest takes time, so that it belongs on a thread.
        asks_store: True if the next stage calls a store.
        codec: the number of the codec with which the record leaves, which may bring it within a limit; 0 for none.
        sent: the one of `records` that was compressed to find out, and its size, as it is sent; None if none was.
        lacks_size: True if the store should be asked first how long a payload is, see `Chain.measured`: nobody knows,
            and `reserve_bytes` is the most that is allowed.
        least_bytes: what stages before that one need.
    """

    source: RecordLike
    records: Sequence[RecordLike]
    position: int = 0
    applied: tuple[str, ...] = ()
    reserve_bytes: int = 0
    blocks: bool = False
    asks_store: bool = False
    codec: int = 0
    sent: tuple[RecordLike, int] | None = None
    lacks_size: bool = False
    least_bytes: int = 0

    @property
    def is_measured(self) -> bool:
        """True if the store was asked how long a payload is: no more of it is read."""
        return isinstance(self.records[0], MeasuredRecord)


class Chain:
    """Applies its stages to one record after the other. Has no state: several threads may call it at once.

    Args:
        stages: in the order of `transforms`.
        topic: the sink topic.
        limit_bytes: its `max.message.bytes`.
        falls_back: whether a record may go on without the `offload` stage.
        compacted: whether the sink topic is compacted, and takes no record without a key.
        recompressed: whether the brokers of the sink topic compress anew, so that nobody here knows what they compare
            with the limit: records are then judged by their uncompressed size.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        topic: str,
        limit_bytes: int,
        *,
        falls_back: bool = False,
        compacted: bool = False,
        recompressed: bool = False,
    ) -> None:
        self.stages = tuple(stages)
        self.falls_back = falls_back
        self._topic = topic
        self._limit_bytes = limit_bytes
        self._compacted = compacted
        self._recompressed = recompressed
        self._inflate = next((n for n, stage in enumerate(self.stages) if stage.name == "inflate"), 0)
        # No header-less record with so short a key and value can be over the limit.
        self._surely_fits = limit_bytes - HEADERLESS_OVERHEAD_BYTES

    def passes_whole(self, batch: RecordBatch, *, whole: bool = False) -> bool:
        """True if each record of the batch goes to the sink as it is; False if that cannot be told cheaply.

        Brokers check the keys of a compacted topic, but refuse the whole batch for one record.

        Args:
            batch: to look at.
            whole: whether the batch is sent as it is. Then it is the batch that must be within the limit of the sink.
        """
        if self._compacted:
            return False
        if not self._wanted(batch, whole=False) and batch.fits(self._limit_bytes - BATCH_OVERHEAD_BYTES):
            return True  # nearly each one that passes: its records are short
        within = whole and not self._recompressed and len(batch.data) <= self._limit_bytes
        return within and batch.modest and not self._wanted(batch, whole=True)

    def _wanted(self, batch: RecordBatch, *, whole: bool) -> bool:
        return any(stage.wants_any(batch, whole=whole) for stage in self.stages)

    def passes(self, record: RecordLike) -> bool:
        """True if the record goes to the sink as it is, even if it is not compressed."""
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
            return False  # the name of a header; `finish` raises the error

    def begin(self, record: RecordLike, codec: int = 0) -> Work | None:
        """Begins the work on a record: applies the stages that take no time, up to the first that does.

        Args:
            record: as it was read.
            codec: the number of the codec with which it leaves.

        Returns:
            The rest of the work, which is `finish`'s; None if the record passes.
        """
        if self.passes(record):
            return None
        if self._recompressed:
            codec = 0
        records: Sequence[RecordLike] = (record,)
        applied: tuple[str, ...] = ()
        position = reserve_bytes = 0
        try:
            self._check(record)
            for position, stage in enumerate(self.stages):
                (made,) = records
                if not stage.wants(made):
                    continue
                blocks = stage.blocks(made)
                if blocks and isinstance(stage, InflateStage | OffloadStage):
                    stage.check(made, record)  # what is refused waits neither for the store nor for room
                before_bytes, reserve_bytes = reserve_bytes, max(reserve_bytes, stage.reserve_bytes(made))
                # A wrapper comes off here even if it is long: else nobody knows what `inflate` behind it needs.
                if (blocks and position >= self._inflate) or position == len(self.stages) - 1:
                    reserve_bytes = max(reserve_bytes, self._reserve_behind(position, made))
                    asks_store = stage.asks_store(made)
                    # What is sure to go to the store is not compressed to see whether it must.
                    sure = asks_store and stage.limit_for(made) is None and not self.falls_back
                    if codec and not sure and batch_of_one_bytes(made) > self._limit_bytes:
                        # It may be compressed, and is so before the store is asked for anything.
                        blocks, reserve_bytes = True, reserve_bytes + _copies_bytes(made)
                        asks_store = asks_store and stage.limit_for(made) is None
                    work = Work(record, records, position, applied, reserve_bytes, blocks, asks_store, codec)
                    if isinstance(stage, InflateStage) and asks_store and stage.lacks_size(made):
                        return dataclasses.replace(work, lacks_size=True, least_bytes=before_bytes)
                    return work
                applied += (stage.name,) if stage.moves(made) else ()
                records = stage.apply(made, record)
        except Exception:  # noqa: BLE001  # `finish` fails in the same way, and its caller knows with which record
            return Work(record, records, position, applied, reserve_bytes)
        blocks = codec != 0 and batch_of_one_bytes(records[0]) > self._limit_bytes
        reserve_bytes += _copies_bytes(records[0]) if blocks else 0
        return Work(record, records, len(self.stages), applied, reserve_bytes, blocks, codec=codec)

    def measured(self, work: Work) -> Work:
        """Work that lacks a size, after the store was asked for it: it reserves no more than is there. Takes time.

        Raises:
            TransformError: this record can never succeed; `PayloadTooLargeError` if there is more than is allowed.
            PayloadStoreError: the store failed; `retriable` says whether to try again.
        """
        stage = self.stages[work.position]
        assert isinstance(stage, InflateStage)
        (record,) = work.records
        measured = stage.measured(record, work.source)
        reserve_bytes = max(work.least_bytes, stage.reserve_bytes(measured))
        return dataclasses.replace(work, records=(measured,), reserve_bytes=reserve_bytes, lacks_size=False)

    def _reserve_behind(self, position: int, record: RecordLike) -> int:
        """What the stages behind a stage need for a record, which may come to them as it is."""
        if self.stages[position].name == "inflate":
            return 0  # they see another record, and `Inflate.copied` counts its copies
        behind = self.stages[position + 1 :]
        return max((stage.reserve_bytes(record) for stage in behind if stage.wants(record)), default=0)

    def advance(self, work: Work) -> Work:
        """Applies the stages up to the first that calls a store; takes time.

        Raises:
            TransformError: this record can never succeed.
        """
        return self._apply(work, to_store=True)

    def finish(self, work: Work, *, offloading: bool = True) -> Result:
        """Applies the rest of the stages. May be called again with the same work if the store has failed.

        Args:
            work: of a record that does not pass.
            offloading: whether the `offload` stage is applied; if not, the stages behind it see what it leaves.

        Raises:
            TransformError: this record can never succeed: `RecordTooLargeError` and `KeyMissingError` if the sink
                would refuse it, `HeaderNameError` if no client could write it; or, without `offloading`, it must not go
                on so.
            PayloadStoreError: the store failed; `retriable` says whether to try again.
        """
        self._check(work.source)
        work = self._apply(work, offloading=offloading)
        for record in work.records:
            size = batch_of_one_bytes(record)
            if size > self._limit_bytes and work.codec:
                size = self._sent_bytes(len(self.stages), record, work, work.sent)
            if size > self._limit_bytes:
                raise RecordTooLargeError(self._topic, size, self._limit_bytes)
        return work.records, work.applied

    def _check(self, record: RecordLike) -> None:
        if self._compacted and record.key is None:
            raise KeyMissingError(self._topic)
        check_names(record)

    def _apply(self, work: Work, *, to_store: bool = False, offloading: bool = True) -> Work:
        records, applied, sent = work.records, work.applied, work.sent
        for position in range(work.position, len(self.stages)):
            stage = self.stages[position]
            if len(records) > 1 or not stage.wants(records[0]):
                continue
            (record,) = records
            if not offloading and isinstance(stage, OffloadStage):
                if claimed := stage.must_store(record):
                    raise ReferenceClaimedError(claimed)
                continue
            if work.codec and stage.moves(record) and (limit := stage.limit_for(record)) is not None:
                size = self._sent_bytes(position, record, work, sent)
                if size <= limit:
                    kept = stage.keep(record)
                    records, sent = (kept,), (kept, size)
                    continue
                sent = (record, size)
            if to_store and stage.asks_store(record):
                return dataclasses.replace(
                    work, records=records, position=position, applied=applied, asks_store=True, sent=sent
                )
            if stage.moves(record):
                applied = (*applied, stage.name)
            records = stage.apply(record, work.source)
            if sent is not None and sent[0] is record and isinstance(stage, WrapperStage):
                sent = (records[0], sent[1])
        return dataclasses.replace(
            work, records=records, position=len(self.stages), applied=applied, asks_store=False, sent=sent
        )

    def _sent_bytes(self, position: int, record: RecordLike, work: Work, sent: tuple[RecordLike, int] | None) -> int:
        """Bytes of a batch with the record alone, if the stage at `position` keeps it, behind the stages that follow.

        `sent` is what is known already.

        Raises:
            TransformError: a stage that follows cannot take the record.
        """
        if sent is not None and sent[0] is record:
            return sent[1]
        if position < len(self.stages):
            record = self.stages[position].keep(record)
        for stage in self.stages[position + 1 :]:
            if isinstance(stage, WrapperStage) and stage.wants(record):
                (record,) = stage.apply(record, work.source)
        return sent_bytes(record, work.codec)


def _copies_bytes(record: RecordLike) -> int:
    """Bytes that it takes to compress a record: it is put into a batch, copied from there, and compressed."""
    return 3 * len(record.value or b"")


def build(
    settings: PipelineSettings,
    store: PayloadStore | None,
    limit_bytes: int,
    stats: PipelineStats,
    *,
    compacted: bool = False,
    recompressed: bool = False,
    unfit: UnfitStage | None = None,
) -> Chain:
    """The chain of a pipeline, without the assembler, which goes before it.

    Args:
        settings: of the pipeline.
        store: opened with `settings.store`; None if that is empty.
        limit_bytes: `max.message.bytes` of the sink topic.
        stats: counts the times of store calls.
        compacted: whether the sink topic is compacted.
        recompressed: whether the brokers of the sink topic compress anew.
        unfit: knows the records that the sink refuses; None if it has refused none.
    """
    form = FORMATS[settings.reference_format]
    chunks = settings.chunks
    by_digest = settings.store.get("large.message.id.generator", "sha256") == "sha256"
    keyring = open_keyring(settings.encryption, settings.store_timeout_ms)
    wrapper = settings.wrapper
    stages: list[Stage] = [] if unfit is None else [unfit]
    if wrapper.unwraps:
        stages.append(unwrap_stage(wrapper.unwrap))
    if "inflate" in settings.transforms:
        assert store is not None
        inflate = Inflate(settings.max_bytes, form, copied=wrapper.wraps, signing=settings.signing)
        stages.append(InflateStage(inflate, store, stats, reference_scope(settings.reference_scope, store), keyring))
    if settings.offloads:
        assert store is not None
        measure = wrapper.wrap.batch_of_one_bytes if wrapper.wraps else None
        offload = Offload(
            settings.threshold_bytes,
            limit_bytes,
            settings.codec,
            form,
            measure,
            settings.signing,
            settings.max_bytes,
            settings.on_reference,
        )
        topic = settings.output_topic
        stages.append(OffloadStage(offload, store, topic, stats, by_digest=by_digest, keyring=keyring))
    chunking = Chunking(chunks.limit_bytes(limit_bytes))
    if chunks.splits and not settings.offloads and settings.on_reference != "pass":
        # What is wrapped has no headers, and readers may look for a chunk's behind `unwrap`.
        stages.append(ClaimStage((lambda _: False) if wrapper.wraps else chunking.wants))
    if wrapper.wraps:
        stages.append(wrap_stage(wrapper.wrap))
    if chunks.splits:
        stages.append(ChunkStage(chunking, chunks.limits.message_bytes, settings.group_id, settings.on_reference))
    falls_back = settings.offloads and chunks.strategy == "auto"
    return Chain(
        stages,
        settings.output_topic,
        limit_bytes,
        falls_back=falls_back,
        compacted=compacted,
        recompressed=recompressed,
    )
