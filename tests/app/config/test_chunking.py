"""Chunks in the configuration: what the keys mean, and one clear sentence for what cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError

STORE: dict[str, Any] = {"large.message.payload.store.class": "memory"}


def settings_of(transforms: list[str], in_flight_bytes: int | None = None, **keys: Any) -> PipelineSettings:
    """A pipeline with these transforms; keys have `_` for dots."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **dotted}
    worker: dict[str, Any] = {"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}
    if in_flight_bytes is not None:
        worker["in.flight.bytes"] = in_flight_bytes
    return parse(worker, {}).pipelines[0]


def refusal_of(transforms: list[str], in_flight_bytes: int | None = None, **keys: Any) -> str:
    """The sentence with which it is refused."""
    with pytest.raises(ConfigurationError) as caught:
        settings_of(transforms, in_flight_bytes, **keys)
    return str(caught.value).removeprefix("[pipeline.p] ")


MEANINGS: list[tuple[list[str], str, tuple[bool, bool, bool, bool]]] = [
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
]


@pytest.mark.parametrize(("transforms", "strategy", "expected"), MEANINGS)
def test_transforms_and_strategy_decide(
    transforms: list[str], strategy: str, expected: tuple[bool, bool, bool, bool]
) -> None:
    """Who splits, who assembles, who offloads, and who needs a store; one that is not needed is not asked for."""
    pipeline = settings_of(transforms, large_message_strategy=strategy, **STORE)
    chunks = pipeline.chunks
    assert (chunks.splits, chunks.assembles, pipeline.offloads, bool(pipeline.store)) == expected
    assert chunks.expects_chunks == ("assemble" in transforms or ("inflate" in transforms and strategy != "offload"))
    if not pipeline.store:
        assert settings_of(transforms, large_message_strategy=strategy) == pipeline
    else:
        assert "need a store" in refusal_of(transforms, large_message_strategy=strategy)


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


REFUSED: list[tuple[list[str], dict[str, Any], str]] = [
    (
        ["inflate", "assemble"],
        STORE,
        ("transforms: found ['inflate', 'assemble']; assemble goes first: it assembles the chunks of the source topic"),
    ),
    (
        ["chunk", "offload"],
        STORE,
        ("transforms: found ['chunk', 'offload']; chunk goes last: a transform after it would get pieces of values"),
    ),
    (
        ["chunk", "assemble"],
        {},
        "transforms: found ['chunk', 'assemble']; assemble goes first: it assembles the chunks",
    ),
    (
        ["chunk"],
        {"large_message_strategy": "chunk"},
        "large.message.strategy: found 'chunk', which needs offload or inflate; transforms are ['chunk']",
    ),
    (
        ["offload", "chunk"],
        {"large_message_strategy": "auto", **STORE},
        "large.message.strategy: found 'auto', which cannot be used with 'chunk' in transforms",
    ),
    (
        ["offload"],
        {"large_message_strategy": "auto", "reference_format": "bakdata-flag", **STORE},
        "large.message.strategy: found 'auto'; readers of reference.format 'bakdata-flag' know no chunks",
    ),
    (
        ["chunk"],
        {"large_message_threshold_bytes": 10},
        "large.message.threshold.bytes: is given, but nothing is offloaded; chunk.max.bytes, or else the limit of the",
    ),
    (
        ["offload"],
        {"large_message_threshold_bytes": 10, "large_message_strategy": "chunk"},
        "large.message.threshold.bytes: is given, but nothing is offloaded",
    ),
    (
        ["assemble"],
        {"max_pending_chunked_bytes": 268_435_457},
        ("max.pending.chunked.bytes: found 268,435,457, allowed is no more than in.flight.bytes, which is 268,435,456"),
    ),
    (
        ["assemble"],
        {"chunk_max_message_bytes": 134_217_729},
        (
            "chunk.max.message.bytes: found 134,217,729, allowed is no more than max.pending.chunked.bytes, "
            "which is 134,217,728"
        ),
    ),
    (["assemble"], {"max_pending_chunked_message": 0}, "max.pending.chunked.message: found 0, allowed is 1 or more"),
    (
        ["chunk"],
        {"large_message_max_bytes": 10},
        "large.message.max.bytes: is a key of a store, but transforms ['chunk'] need none",
    ),
    (["chunk"], {"chunk_max_byte": 10}, "chunk.max.byte: is not a key that is known here; did you mean chunk.max.b"),
]


@pytest.mark.parametrize(("transforms", "keys", "told"), REFUSED)
def test_what_cannot_work_is_refused(transforms: list[str], keys: dict[str, Any], told: str) -> None:
    """The message has the key, what was found and what is allowed."""
    assert refusal_of(transforms, **keys).startswith(told)


def test_limits_of_what_is_not_expected_refuse_nothing() -> None:
    """`inflate` assembles what comes; a limit that is meant for `chunk` behind it need not fit what may be pending."""
    keys = {"chunk_max_message_bytes": 200_000_000, **STORE}
    assert settings_of(["inflate", "chunk"], **keys).chunks.limits.message_bytes == 200_000_000
    assert "allowed is no more than max.pending.chunked.bytes" in refusal_of(["assemble", "chunk"], **keys)
