"""The chain: the transforms of a pipeline, in order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from app.pipeline.stages import (
    ChunkStage,
    ClaimStage,
    InflateStage,
    OffloadStage,
    SinkStage,
    Stage,
    UnfitStage,
    WrapperStage,
)
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Now, Step, Store, Thread, Work
from stores.store import PayloadStore
from transforms.chunk import Chunking
from transforms.errors import KeyMissingError, TransformError
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch
from transforms.record_format import check_names


class Chain:
    """Applies its transforms to one record after the other. Has no state: several threads may call it.

    Args:
        stages: in the order of the property `transforms`.
        sink: the output topic. If it is compacted, it accepts no record without a key. If its brokers compress
            again, what they compare with the limit is unknown here: records are judged by their uncompressed size.
    """

    def __init__(self, stages: Sequence[Stage], sink: Topic) -> None:
        self.stages: tuple[Stage, ...] = (*stages, SinkStage(sink.name, sink.max_message_bytes))
        self._small_bytes = min(stage.small_bytes for stage in self.stages)
        self._topic = sink.name
        self._compacted = "compact" in sink.cleanup_policy
        self._recompressed = sink.recompressed

    def passes_whole(self, batch: RecordBatch, *, whole: bool = False) -> bool:
        """True if each record of the batch is forwarded unchanged; False if that cannot be found out cheaply.

        Brokers check the keys of a compacted topic, but refuse the whole batch for one record.

        Args:
            batch: to examine.
            whole: whether the batch is forwarded whole, so that the batch must be within the limit of the output topic.
        """
        whole = whole and not self._recompressed
        return not self._compacted and not any(stage.wants_any(batch, whole=whole) for stage in self.stages)

    def passes(self, record: RecordLike) -> bool:
        """True if the record is forwarded unchanged, even if it is not compressed."""
        if self._compacted and record.key is None:
            return False
        if not record.headers and len(record.value or b"") + len(record.key or b"") <= self._small_bytes:
            return True
        try:
            for stage in self.stages:
                if stage.plan(record, record, 0) is not None:
                    return False
        except Exception:  # noqa: BLE001  # it is refused, and `begin` finds out why
            return False
        return True

    def begin(self, record: RecordLike, codec: int = 0) -> Work | None:
        """Begins the work on a record, on the event loop: takes the `Now` steps, up to the first other one.

        Args:
            record: as it was read.
            codec: the number of the codec with which it leaves.

        Returns:
            The work; None if the record passes.

        Raises:
            TransformError: this record can never succeed: `KeyMissingError` if the output topic would refuse
                it, `HeaderNameError` if no client could write it.
            PayloadStoreError: its reference is refused.
        """
        if self.passes(record):
            return None
        if self._compacted and record.key is None:
            raise KeyMissingError(self._topic)
        check_names(record)
        return self._advance(Work(record, 0 if self._recompressed else codec, (record,)), Now.level, math.inf)

    def go_on(self, work: Work) -> Work:
        """Takes the next step of the work, and the `Now` and `Thread` steps behind it. Takes time, so not on the loop.

        Another `Store` step, or one that needs more bytes, is left for the next call. May be called again with the same
        work if the store has failed.

        Raises:
            TransformError: this record can never succeed; `RecordTooLargeError` if the output topic would refuse it.
            PayloadStoreError: the store failed; `retriable`: whether to try again.
        """
        assert work.step is not None
        return self._advance(work, min(work.step.level, Thread.level), work.reserve_bytes)

    def _advance(self, work: Work, level: int, room_bytes: float) -> Work:
        """Takes the next step, and those behind it up to one that is above `level` or needs more than `room_bytes`."""
        records, position, step, applied = work.records, work.position, work.step, work.applied
        reserve_bytes = work.reserve_bytes
        while True:
            if step is not None:
                made = step.do()
                if isinstance(made, Step):
                    step = made
                else:
                    applied = (*applied, step.counts) if step.counts else applied
                    records, position, step = made, position + 1, None
            while step is None and len(records) == 1 and position < len(self.stages):
                step = self.stages[position].plan(records[0], work.source, work.codec)
                position += step is None
            needed = self._needed(step, position, records[0], work)
            reserve_bytes = max(reserve_bytes, needed or 0)
            if step is None or step.level > level or needed is None or needed > room_bytes:
                return Work(work.source, work.codec, records, position, step, reserve_bytes, applied)

    def _needed(self, step: Step | None, position: int, record: RecordLike, work: Work) -> int | None:
        """Bytes that a step needs, or transforms behind it if they get the record unchanged; None if unknown."""
        if step is None or step.level == Now.level or (isinstance(step, Store) and step.kept is None):
            return 0 if step is None else step.reserve_bytes
        needed = [step.reserve_bytes or 0]
        for stage in self.stages[position + 1 :]:
            with contextlib.suppress(TransformError):  # this transform may not get it unchanged
                behind = stage.plan(record, work.source, work.codec)
                needed.append(0 if behind is None else behind.reserve_bytes or 0)
        return max(needed)


def build(
    settings: PipelineSettings,
    store: PayloadStore | None,
    sink: Topic,
    stats: PipelineStats,
    unfit: UnfitStage | None = None,
) -> Chain:
    """The chain of a pipeline, without the assembler, which goes before it.

    `unfit` knows the records that the output topic refuses; None if it has refused none.
    """
    wrapper, chunks, on_reference = settings.wrapper, settings.chunks, settings.on_reference
    inflates = "inflate" in settings.transforms
    stages: list[Stage] = [] if unfit is None else [unfit]
    if wrapper.unwraps:
        # Even if it is long: otherwise what `inflate` behind it needs is unknown.
        stages.append(WrapperStage(wrapper.unwrap, at_once=inflates))
    if inflates:
        assert store is not None
        stages.append(InflateStage(settings, store, stats, copied=wrapper.wraps))
    wrap = wrapper.wrap if wrapper.wraps else None
    chunking = Chunking(chunks.limit_bytes(sink.max_message_bytes))
    if settings.offloads:
        assert store is not None
        stages.append(OffloadStage(settings, store, sink, stats, wrap, falls_back=chunks.strategy == "auto"))
    elif chunks.splits and on_reference != "pass":
        # What is wrapped has no headers, and readers may look for a chunk's behind `unwrap`.
        stages.append(ClaimStage(chunking.wants if wrap is None else lambda _: False))
    if wrap is not None:
        stages.append(WrapperStage(wrap))
    if chunks.splits:
        stages.append(ChunkStage(chunking, chunks.limits.message_bytes, settings.group_id, on_reference))
    return Chain(stages, sink)
