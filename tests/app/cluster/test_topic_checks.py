"""What the preflight refuses of topics: those that would lose, or not take, what a pipeline writes."""

from __future__ import annotations

from typing import Any

import pytest

from app.cluster.topic_checks import check_chunks, check_dead_letters, check_limits, check_wrappers
from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError
from transforms.letter import LEAST_BYTES


def settings_of(*transforms: str, **keys: Any) -> PipelineSettings:
    """A pipeline with these transforms."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": list(transforms), **keys}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]


@pytest.mark.parametrize(
    ("policy", "null", "refused"),
    [
        ("compact", "wrap", True),
        ("compact,delete", "wrap", True),
        ("delete", "wrap", False),
        ("compact", "pass", False),
    ],
)
def test_wrapped_tombstones_are_refused_where_they_should_delete(
    policy: str,
    null: str,
    refused: bool,  # noqa: FBT001
) -> None:
    """On a compacted sink a wrapped tombstone would keep its key for ever; the message says which key to change."""
    pipeline, sink = settings_of("wrap", **{"wrap.on.null.value": null}), Topic("orders", 1, 10_000_000, policy)
    if not refused:
        check_wrappers(pipeline, sink)
        check_wrappers(settings_of("unwrap"), sink)
        return
    reason = f'wrap.on.null.value: found .wrap., and topic orders has cleanup.policy {policy};.* set .* = "pass"'
    with pytest.raises(ConfigurationError, match=reason):
        check_wrappers(pipeline, sink)


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        (Topic("dlq", 1, 1_000_000, "compact"), r"errors\.deadletterqueue\.topic\.name: topic dlq has cleanup.policy"),
        (Topic("dlq", 1, 1_000_000, "compact,delete"), r"refuse dead-letter records without a key"),
        (Topic("dlq", 1, LEAST_BYTES - 1, "delete"), r"max\.message\.bytes of topic dlq"),
    ],
)
def test_dead_letter_topic_is_refused(topic: Topic, told: str) -> None:
    """A topic that would lose or refuse letters is refused at start, with the key."""
    with pytest.raises(ConfigurationError, match=told):
        check_dead_letters(topic)
    check_dead_letters(Topic("dlq", 1, LEAST_BYTES, "delete"))


@pytest.mark.parametrize(
    ("transforms", "keys", "told"),
    [
        (
            ["offload"],
            {"large.message.threshold.bytes": 10_001, "producer.compression.type": "none"},
            r"large\.message\.threshold\.bytes: found 10,001, .*10,000",
        ),
        (["wrap"], {"producer.batch.size": 10_001}, r"producer\.batch\.size: found 10,001, .* topic orders is 10,000"),
        (["chunk"], {"chunk.max.bytes": 10_001}, r"chunk\.max\.bytes: found 10,001, .* topic orders is 10,000"),
    ],
)
def test_sizes_over_the_limit_of_the_sink_are_refused(transforms: list[str], keys: dict[str, Any], told: str) -> None:
    """One byte less is taken."""
    store = {"large.message.payload.store.class": "memory"} if "offload" in transforms else {}
    settings = {"producer.batch.size": 10_000, **store, **keys}
    sink = Topic("orders", 1, 10_000, "delete")
    with pytest.raises(ConfigurationError, match=told):
        check_limits(settings_of(*transforms, **settings), sink)
    check_limits(
        settings_of(*transforms, **{**settings, **{key: 10_000 for key, size in keys.items() if size == 10_001}}), sink
    )


def test_threshold_over_the_limit_is_taken_where_records_are_compressed() -> None:
    """Then a longer value may be within the limit; not so where the brokers compress anew."""
    keys = {"large.message.payload.store.class": "memory", "large.message.threshold.bytes": 10_001}
    pipeline = settings_of("offload", **keys, **{"producer.batch.size": 10_000})
    check_limits(pipeline, Topic("orders", 1, 10_000, "delete"))
    with pytest.raises(ConfigurationError, match="exceeds the limit of the output topic"):
        check_limits(pipeline, Topic("orders", 1, 10_000, "delete", recompressed=True))


def test_a_transform_that_gets_nothing_is_refused() -> None:
    """Chunks of what offload has left: none, if a chunk may take as much as a value that is offloaded."""
    keys: dict[str, Any] = {"large.message.payload.store.class": "memory", "large.message.threshold.bytes": 5_000}
    sink = Topic("orders", 1, 10_000, "delete")
    with pytest.raises(ConfigurationError, match=r"^transforms: found .* over 5,000 bytes.*; lower chunk\.max\.bytes"):
        check_chunks(settings_of("offload", "chunk", **keys), [sink], sink)
    check_chunks(settings_of("offload", "chunk", **keys, **{"chunk.max.bytes": 4_999}), [sink], sink)


@pytest.mark.parametrize(
    ("transforms", "source", "sink", "told"),
    [
        (
            ["assemble"],
            Topic("raw", 1, 10_000, "compact"),
            Topic("orders", 1, 10_000, "compact"),
            "topics: topic raw has",
        ),
        (
            ["chunk"],
            Topic("raw", 1, 10_000, "compact"),
            Topic("orders", 1, 10_000, "compact"),
            "output.topic: topic ord",
        ),
        (
            ["chunk"],
            Topic("raw", 1, 10_000, "delete"),
            Topic("orders", 1, 100, "delete"),
            "a chunk requires [0-9]+ bytes",
        ),
    ],
)
def test_topics_that_lose_or_refuse_chunks_are_refused(
    transforms: list[str], source: Topic, sink: Topic, told: str
) -> None:
    """A topic of chunks is not compacted, and takes the smallest chunk."""
    with pytest.raises(ConfigurationError, match=told):
        check_chunks(settings_of(*transforms), [source], sink)
    kept = Topic("kept", 1, 10_000, "delete")
    check_chunks(settings_of(*transforms), [kept], kept)
