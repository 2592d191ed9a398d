"""Chains as a pipeline has them, on a store of the test's own, and their work on one record."""

from __future__ import annotations

import itertools
from typing import Any

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.pipeline.chain import Chain, Result, Work, build
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from stores.store import PayloadStore
from transforms.record import RecordLike

__all__ = ["ROOMY", "apply", "begun", "chain_of", "memory", "settings_of"]

ROOMY = 10_000_000  # a sink's limit that is in nobody's way

_names = itertools.count()


def begun(chain: Chain, record: RecordLike, codec: int = 0) -> Work:
    """The work that a chain has begun on a record that does not pass."""
    work = chain.begin(record, codec)
    assert work is not None
    return work


def apply(chain: Chain, record: RecordLike, codec: int = 0, *, offloading: bool = True) -> Result:
    """All the work of a chain on a record, step by step; a record that passes stays as it is."""
    work = chain.begin(record, codec)
    if work is None:
        return (record,), ()
    if work.blocks and not work.asks_store:
        work = chain.advance(work)
    return chain.finish(work, offloading=offloading)


def memory(**keys: object) -> PayloadStore:
    """A store of its own."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    name = f"test-{next(_names)}"
    return open_store({"large.message.payload.store.class": "memory", "memory.name": name, **dotted})


def settings_of(transforms: list[str], **keys: object) -> PipelineSettings:
    """A pipeline with these transforms and a threshold of 100 bytes."""
    table: dict[str, object] = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms}
    table |= {"large.message.payload.store.class": "memory", "large.message.threshold.bytes": 100}
    table |= {name.replace("_", "."): value for name, value in keys.items()}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]


def chain_of(transforms: list[str], store: PayloadStore, limit: int = ROOMY, **keys: Any) -> Chain:
    """The chain that the worker builds for `settings_of`."""
    return build(settings_of(transforms, **keys), store, limit, PipelineStats())
