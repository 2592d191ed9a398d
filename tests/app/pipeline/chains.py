"""Chains as a pipeline has them, on a store of the test's own, and their work on one record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from app.pipeline.chain import Chain, build
from app.pipeline.stages import OffloadStage, Stage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Step, Store, Work
from stores.registry import open_store
from stores.store import PayloadStore
from tests.app.pipeline.plain_store import PlainStore
from transforms.errors import PayloadStoreError
from transforms.formats import FormatName
from transforms.record import Record, RecordLike

ROOMY = 10_000_000  # a sink's limit that is in nobody's way

_names = itertools.count()


def begun(chain: Chain, record: RecordLike, codec: int = 0) -> Work:
    """The work that a chain has begun on a record that does not pass."""
    work = chain.begin(record, codec)
    assert work is not None
    return work


def sink(limit: int = ROOMY, **more: Any) -> Topic:
    """An output topic with this limit."""
    return Topic("orders", 1, limit, **{"cleanup_policy": "delete", **more})


def apply(
    chain: Chain, record: RecordLike, codec: int = 0, *, offloading: bool = True
) -> tuple[tuple[RecordLike, ...], tuple[str, ...]]:
    """All the work of a chain on a record, step by step, and what it counts; a record that passes stays as it is."""
    work = chain.begin(record, codec)
    if work is None:
        return (record,), ()
    while (step := work.step) is not None:
        if not offloading and isinstance(step, Store):
            work = without_store(work, step)
        work = chain.go_on(work)
    return tuple(map(plain, work.records)), work.applied


def offload_stage(
    store: Any, threshold: int = 100, limit: int = ROOMY, *, falls_back: bool = False, **fields: Any
) -> OffloadStage:
    """A stage that offloads what is longer than a threshold."""
    settings = replace(settings_of(["offload"]), **{"threshold_bytes": threshold, "on_reference": "pass", **fields})
    return OffloadStage(settings, store, sink(limit), PipelineStats(), falls_back=falls_back)


def finished(chain: Chain, work: Work) -> tuple[tuple[RecordLike, ...], tuple[str, ...]]:
    """All the steps of work that are left, and what it counts."""
    while work.step is not None:
        work = chain.go_on(work)
    return tuple(map(plain, work.records)), work.applied


def taken(stage: Stage, record: RecordLike) -> Sequence[RecordLike]:
    """What a stage makes of a record that does not pass it."""
    step: Sequence[RecordLike] | Step | None = stage.plan(record, record, 0)
    while isinstance(step, Step):
        step = step.do()
    assert step is not None
    return step


def without_store(work: Work, step: Store) -> Work:
    """Work that goes on without the store, as its step allows."""
    assert step.kept is not None
    kept = step.kept
    return replace(work, step=Store(lambda: (kept,), step.reserve_bytes))


def plain(record: RecordLike) -> RecordLike:
    """The record without what is known of its size as it is sent."""
    return Record(record.key, record.value, record.headers, record.timestamp)


class Refusing(PlainStore):
    """A store that is down while `down` is true; `tried` counts the calls in vain."""

    def __init__(self, *, down: bool = False) -> None:
        super().__init__()
        self.down, self.tried = down, 0

    def publish(self, topic: str, data: bytes) -> str:
        """See `PlainStore`."""
        if self.down:
            self.tried += 1
            raise PayloadStoreError("down", retriable=True)
        return super().publish(topic, data)


def memory(**keys: object) -> PayloadStore:
    """A store of its own."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    name = f"test-{next(_names)}"
    return open_store({"large.message.payload.store.class": "memory", "memory.name": name, **dotted})


def settings_of(transforms: list[str], **keys: object) -> PipelineSettings:
    """A pipeline with these transforms and a threshold of 100 bytes."""
    return _parsed(
        transforms, {"large_message_payload_store_class": "memory", "large_message_threshold_bytes": 100, **keys}
    )


def _parsed(transforms: list[str], keys: Mapping[str, object]) -> PipelineSettings:
    table: dict[str, object] = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms}
    table |= {name.replace("_", "."): value for name, value in keys.items()}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]


def chain_of(
    transforms: list[str],
    store: object,
    limit: int = ROOMY,
    *,
    stats: PipelineStats | None = None,
    form: FormatName = "wideload",
    **keys: Any,
) -> Chain:
    """The chain that the worker builds for `settings_of`.

    A `form` of others goes by the settings, which refuse to write one to a store that is not S3.
    """
    settings = settings_of(transforms, **keys)
    if form != "wideload":
        settings = replace(settings, reference_format=form)
    return build(settings, cast(PayloadStore, store), sink(limit), stats or PipelineStats())


def storeless(transforms: list[str], limit: int, **keys: Any) -> Chain:
    """A chain that has no store."""
    return build(_parsed(transforms, keys), None, sink(limit), PipelineStats())
