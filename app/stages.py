"""Stages: a transform joined to its store. They run on threads, one record at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from app.payload import download, publish
from transforms.errors import RecordTooLargeError
from transforms.formats import FORMATS
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import RecordLike
from transforms.size import HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.settings import PipelineSettings
    from app.stats import Latency, PipelineStats
    from stores.store import PayloadStore

__all__ = ["Chain", "InflateStage", "OffloadStage", "Stage", "build"]


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
        """True where `apply` will ask the store; some formats also change records whose values stay where they are."""
        ...

    def reserve_bytes(self, record: RecordLike) -> int:
        """Bytes that `apply` may need beside the record itself."""
        ...

    def apply(self, record: RecordLike) -> RecordLike:
        """The record, transformed; blocks, and is called from several threads at once.

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

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value where it is compressed or marked, none else."""
        offload = self._offload
        return len(record.value or b"") if offload.codec is not None or offload.format.marks else 0

    def apply(self, record: RecordLike) -> RecordLike:
        """See `Stage.apply`."""
        assert record.value is not None
        if not self.moves(record):
            return self._offload.keep(record)
        payload = self._offload.payload(record.value)
        with _timed(self._stats.publish):
            reference = publish(self._store, self._topic, payload, by_digest=self._by_digest)
        return self._offload.refer(record, reference)


class InflateStage:
    """Downloads what references point to, verifies it, and restores the records."""

    name = "inflate"

    def __init__(self, inflate: Inflate, store: PayloadStore, stats: PipelineStats) -> None:
        self.wants: Callable[[RecordLike], bool] = inflate.format.wants
        self._inflate = inflate
        self._store = store
        self._stats = stats

    def moves(self, record: RecordLike) -> bool:
        """See `Stage.moves`."""
        return self._inflate.format.refers(record)

    def reserve_bytes(self, record: RecordLike) -> int:
        """See `Inflate.reserve_bytes`."""
        return self._inflate.reserve_bytes(record)

    def apply(self, record: RecordLike) -> RecordLike:
        """See `Stage.apply`."""
        if not self.moves(record):
            return self._inflate.format.read_inline(record)
        inflation = self._inflate.begin(record)
        with _timed(self._stats.download):
            stored = download(self._store, inflation.reference, self._inflate)
        return self._inflate.finish(record, inflation, stored)


class Chain:
    """The stages of a pipeline, in order, and the sink's limit behind them.

    Args:
        stages: in the order of `transforms`.
        topic: the sink topic.
        limit_bytes: its `max.message.bytes`.
    """

    def __init__(self, stages: Sequence[Stage], topic: str, limit_bytes: int) -> None:
        self.stages = tuple(stages)
        self._topic = topic
        self._limit_bytes = limit_bytes
        # No header-less record with so short a key and value can be over the limit.
        self._surely_fits = limit_bytes - HEADERLESS_OVERHEAD_BYTES

    def passes(self, record: RecordLike) -> bool:
        """True where the record goes to the sink as it is."""
        for stage in self.stages:
            if stage.wants(record):
                return False
        if not record.headers and len(record.value or b"") + len(record.key or b"") <= self._surely_fits:
            return True
        return batch_of_one_bytes(record) <= self._limit_bytes

    def blocks(self, record: RecordLike) -> bool:
        """False where `apply` asks no store. Behind a stage the record may be another, so of several each may ask."""
        return len(self.stages) > 1 or any(stage.moves(record) for stage in self.stages)

    def reserve_bytes(self, record: RecordLike) -> int:
        """The most that a stage needs beside the record itself."""
        return max((stage.reserve_bytes(record) for stage in self.stages if stage.wants(record)), default=0)

    def apply(self, record: RecordLike) -> tuple[RecordLike, tuple[str, ...]]:
        """The record behind all stages that want it, and the names of those that asked the store.

        Raises:
            TransformError: this record can never succeed; `RecordTooLargeError` where the sink would refuse it.
            PayloadStoreError: the store; `retriable` says whether to try again.
        """
        applied = []
        for stage in self.stages:
            if stage.wants(record):
                if stage.moves(record):
                    applied.append(stage.name)
                record = stage.apply(record)
        size = batch_of_one_bytes(record)
        if size > self._limit_bytes:
            raise RecordTooLargeError(self._topic, size, self._limit_bytes)
        return record, tuple(applied)


def build(settings: PipelineSettings, store: PayloadStore, limit_bytes: int, stats: PipelineStats) -> Chain:
    """The chain of a pipeline.

    Args:
        settings: of the pipeline.
        store: opened with `settings.store`.
        limit_bytes: `max.message.bytes` of the sink topic.
        stats: where store latencies go.
    """
    form = FORMATS[settings.reference_format]
    by_digest = settings.store.get("large.message.id.generator", "sha256") == "sha256"
    stages: list[Stage] = []
    for name in settings.transforms:
        if name == "offload":
            offload = Offload(settings.threshold_bytes, limit_bytes, settings.codec, form)
            stages.append(OffloadStage(offload, store, settings.output_topic, stats, by_digest=by_digest))
        else:
            stages.append(InflateStage(Inflate(settings.max_bytes, form), store, stats))
    return Chain(stages, settings.output_topic, limit_bytes)
