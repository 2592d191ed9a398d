"""Chunks in the configuration: what the keys mean."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError

STORE: dict[str, Any] = {"large.message.payload.store.class": "memory"}


def settings_of(transforms: list[str], in_flight_bytes: int = 268_435_456, **keys: Any) -> PipelineSettings:
    """A pipeline with these transforms; keys have `_` for dots."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **dotted}
    worker = {"bootstrap.servers": "localhost:1", "in.flight.bytes": in_flight_bytes, "pipeline": {"p": table}}
    return parse(worker, {}).pipelines[0]


@pytest.mark.parametrize(
    ("transforms", "strategy", "expected"),
    [
        (["chunk"], "offload", (True, False, False, False)),
        (["assemble"], "offload", (False, True, False, False)),
        (["assemble", "chunk"], "offload", (True, True, False, False)),
        (["offload"], "offload", (False, False, True, True)),
        (["offload"], "chunk", (True, False, False, False)),
        (["offload"], "auto", (True, False, True, True)),
        (["inflate"], "offload", (False, True, False, True)),
        (["inflate"], "chunk", (False, True, False, True)),
        (["inflate"], "auto", (False, True, False, True)),
        (["assemble", "offload"], "auto", (True, True, True, True)),
        (["assemble", "inflate"], "offload", (False, True, False, True)),
        (["inflate", "chunk"], "offload", (True, True, False, True)),
    ],
)
def test_transforms_and_strategy_decide(transforms: list[str], strategy: str, expected: tuple[bool, ...]) -> None:
    """Who splits, who assembles, who offloads, and who needs a store; one that is not needed is not asked for."""
    pipeline = settings_of(transforms, large_message_strategy=strategy, **STORE)
    chunks = pipeline.chunks
    assert (chunks.splits, chunks.assembles, pipeline.offloads, bool(pipeline.store)) == expected
    assert chunks.expects_chunks == ("assemble" in transforms or ("inflate" in transforms and strategy != "offload"))
    if not pipeline.store:
        assert settings_of(transforms, large_message_strategy=strategy) == pipeline
        return
    with pytest.raises(ConfigurationError, match="need a store"):
        settings_of(transforms, large_message_strategy=strategy)


@pytest.mark.parametrize(
    ("in_flight", "pending", "message"),
    [(268_435_456, 134_217_728, 67_108_864), (1_000_000_000, 500_000_000, 67_108_864), (1_000, 500, 250), (1, 1, 1)],
)
def test_limits_follow_the_budget(in_flight: int, pending: int, message: int) -> None:
    """Half of the budget may be pending beside it, and a message is a quarter of it, 64 MiB at most."""
    limits = settings_of(["assemble"], in_flight).chunks.limits
    assert (limits.pending_bytes, limits.message_bytes) == (pending, message)


def test_keys_are_taken() -> None:
    """Each key of the file has its place."""
    chunks = settings_of(
        ["assemble", "chunk"],
        chunk_max_bytes=9_000,
        chunk_max_message_bytes=8_000,
        max_pending_chunked_message=7,
        max_pending_chunked_bytes=9_000,
        expire_time_of_incomplete_chunked_message_ms=0,
        auto_ack_oldest_chunked_message_on_queue_full=True,
    ).chunks
    limits = chunks.limits
    assert (limits.messages, limits.pending_bytes, limits.message_bytes, limits.expire_ms) == (7, 9_000, 8_000, 0)
    assert (chunks.max_bytes, chunks.drops_oldest) == (9_000, True)


@pytest.mark.parametrize(("own", "expected"), [(None, 20_000), (19_999, 19_999), (20_001, 20_000)])
def test_limit_is_the_lower_one(own: int | None, expected: int) -> None:
    """A chunk is no larger than the sink takes, and no larger than it may be."""
    keys = {} if own is None else {"chunk_max_bytes": own}
    assert settings_of(["chunk"], **keys).chunks.limit_bytes(20_000) == expected
