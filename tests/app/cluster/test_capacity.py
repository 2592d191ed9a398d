"""What is warned of at start: topics that would not take what may have to be written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.cluster.capacity import warnings
from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic, shortage

MESSAGE = 1_000_000
LARGEST = MESSAGE + 80


def settings_of(transforms: list[str], **keys: Any) -> PipelineSettings:
    """A pipeline that assembles messages up to a size; keys have `_` for dots."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **dotted}
    table["chunk.max.message.bytes"] = MESSAGE
    table["large.message.payload.store.class"] = "memory"
    table["large.message.threshold.bytes"] = 1_000
    if "chunk" in transforms:
        del table["large.message.threshold.bytes"]
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]


def plan_of(sink_bytes: int, dead_bytes: int | None = None, source_bytes: int = 1_000) -> Plan:
    """Topics with these limits."""
    dead = None if dead_bytes is None else Topic("dead", 1, dead_bytes, "delete")
    return Plan("p", (Topic("raw", 1, source_bytes, "delete"),), Topic("orders", 1, sink_bytes, "delete"), dead)


def test_warnings_sink_at_the_boundary() -> None:
    """A sink with room for the largest message, its batch included, is enough; one byte less is told with both keys."""
    pipeline = settings_of(["assemble"])
    assert warnings(pipeline, plan_of(LARGEST)) == []
    assert warnings(pipeline, plan_of(LARGEST - 1)) == [
        (
            "chunk.max.message.bytes is 1,000,000, and max.message.bytes of output topic orders is 1,000,079: a "
            "larger assembled message stops the pipeline; raise the topic's limit to 1,000,080 plus key and headers, "
            "lower chunk.max.message.bytes, or add offload or chunk to transforms"
        )
    ]


def test_warnings_sink_say_what_happens() -> None:
    """Where there is a dead-letter topic the message goes there, however large."""
    (told,) = warnings(settings_of(["assemble"]), plan_of(1_000, 1_000))
    assert "a larger assembled message is written to dead-letter topic dead;" in told


@pytest.mark.parametrize(
    ("transforms", "strategy", "count"),
    [
        (["assemble", "offload"], "offload", 0),
        (["assemble", "chunk"], "offload", 0),
        (["offload"], "offload", 0),
        (["inflate", "offload"], "offload", 0),
        (["inflate", "chunk"], "offload", 0),
        (["inflate"], "auto", 1),
        (["assemble", "inflate"], "offload", 1),
    ],
)
def test_warnings_sink_only_where_nothing_makes_it_smaller(transforms: list[str], strategy: str, count: int) -> None:
    """Who does not assemble, or offloads or splits behind it, hears nothing."""
    pipeline = settings_of(transforms, large_message_strategy=strategy)
    assert len(warnings(pipeline, plan_of(1_000))) == count


def test_warnings_sink_that_takes_no_inflated_value() -> None:
    """A sink whose limit nobody has raised takes nothing that was offloaded, which is told; one byte more may do."""
    pipeline = settings_of(["inflate"])
    assert warnings(pipeline, plan_of(1_081)) == []
    assert warnings(pipeline, plan_of(1_080)) == [
        (
            "max.message.bytes of output topic orders is 1,080: no inflated value over "
            "large.message.threshold.bytes (1,000) fits, and a value that does not fit stops the pipeline; raise the "
            "topic's limit above the largest value, or set the threshold with which the values were offloaded"
        )
    ]
    assert "is written to dead-letter topic dead;" in warnings(pipeline, plan_of(1_080, 1_000))[0]


@pytest.mark.parametrize(
    ("dead_ms", "source_ms", "told"), [(1_000, 1_000, 0), (999, 1_000, 1), (-1, -1, 0), (-1, 1_000, 0), (1_000, -1, 1)]
)
def test_warnings_dead_letters_that_go_early(dead_ms: int, source_ms: int, told: int) -> None:
    """A dead-letter topic that keeps records for a shorter time than the source is told, with both numbers."""
    plan = plan_of(LARGEST, 1_000)
    assert plan.dead_letters is not None
    plan = replace(
        plan,
        sources=(replace(plan.sources[0], retention_ms=source_ms),),
        dead_letters=replace(plan.dead_letters, retention_ms=dead_ms),
    )
    found = warnings(settings_of(["offload"]), plan)
    assert len(found) == told
    assert all(f"{dead_ms:,}" in line and f"{source_ms:,}" in line for line in found)


def test_warnings_of_topics_that_accept_no_records() -> None:
    """Output and dead-letter topic are reported with what they lack; no more replicas are required than there are."""
    pipeline, plan = settings_of(["assemble"]), plan_of(LARGEST, LARGEST)
    lacks = shortage("orders", {0: (3, 3), 1: (1, 3), 2: (0, 3)}, 2)
    short = replace(plan, sink=replace(plan.sink, shortage=lacks))
    assert warnings(pipeline, short) == [lacks]
    assert lacks == (
        "topic orders, partition 1 (and 1 more) accepts no records: 1 replica in sync, and min.insync.replicas is 2; "
        "start the missing brokers, or lower min.insync.replicas of the topic"
    )
    assert plan.dead_letters is not None
    dead = replace(plan, dead_letters=replace(plan.dead_letters, shortage=lacks))
    assert warnings(pipeline, dead) == warnings(pipeline, short)
    assert shortage("orders", {0: (1, 1), 1: (2, 3)}, 2) is None
