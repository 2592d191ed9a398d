"""What the preflight refuses of topics: those that would lose, or not take, what a pipeline writes."""

from __future__ import annotations

from typing import Any

import pytest

from app.cluster.topic_checks import check_dead_letters, check_wrappers
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
        (Topic("dlq", 1, 1_000_000, "compact,delete"), r"refuse letters without a key"),
        (Topic("dlq", 1, LEAST_BYTES - 1, "delete"), r"max\.message\.bytes of topic dlq"),
    ],
)
def test_dead_letter_topic_is_refused(topic: Topic, told: str) -> None:
    """A topic that would lose or refuse letters is refused at start, with the key."""
    with pytest.raises(ConfigurationError, match=told):
        check_dead_letters(topic)
    check_dead_letters(Topic("dlq", 1, LEAST_BYTES, "delete"))
