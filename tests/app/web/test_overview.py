"""What the page at `/` shows."""

from __future__ import annotations

import json

from aiokafka import TopicPartition

from app.pipeline.report import FlowReport
from app.web.history import History
from app.web.overview import MOST_PARTITIONS, Overview
from tests.app.reports import Pipeline, pipeline_settings


def overview(*pipelines: Pipeline) -> Overview:
    """The overview of some pipelines, with a budget of 1,000 bytes."""
    return Overview(pipelines, 1_000, History(pipelines, lambda: 0.0))


def test_document_has_all_that_is_shown() -> None:
    """A row has state and reason, lag and dead letters; a card budget, chunks, topics, store. And it is JSON."""
    partitions = {TopicPartition("raw", 10): (7, 5, 12), TopicPartition("raw", 9): (None, None, None)}
    flow = FlowReport(7, 6, 2, 90, paused=frozenset({TopicPartition("raw", 10)}), positions=partitions)
    settings = pipeline_settings(
        "p", **{"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead", "topics": ["raw", "more"]}
    )
    pipeline = Pipeline(
        own_settings=settings, flow_report=flow, degraded="the store is down", last_error="x", last_error_at=0.5
    )
    pipeline.stats.dead_letters = 3
    document = json.loads(json.dumps(overview(pipeline, Pipeline("q", flow_report=FlowReport(5))).document(0, {0, 7})))
    assert (document["status"], document["in_flight_bytes"], document["limit_bytes"]) == ("degraded", 12, 1_000)
    row, other = document["pipelines"]
    assert (row["name"], row["state"], row["reason"]) == ("p", "degraded", "the store is down")
    assert (row["lag"], row["dead_letters"], row["recent"]["records_in"]) == (7, 3, None)
    shown = row["card"]
    assert (shown["rates"]["records_in"], list(shown["store_calls"])) == ([], ["publish", "download"])
    assert (shown["last_error"], shown["last_error_at"]) == ("x", "1970-01-01T00:00:00+00:00")
    assert (shown["topics"], shown["output_topic"], shown["dead_letter_topic"]) == (["raw", "more"], "orders", "dead")
    assert (shown["store"], shown["transforms"], shown["group_id"]) == ("memory", ["offload"], "wideload-p")
    assert (shown["in_flight_bytes"], shown["read_ahead_bytes"]) == (7, 6)
    assert (shown["pending_chunked_messages"], shown["pending_chunked_bytes"]) == (2, 90)
    assert (shown["partitions_assigned"], shown["partitions_paused"]) == (2, 1)
    assert shown["partitions"] == [
        {"topic": "raw", "partition": 9, "committed": None, "end": None, "lag": None, "paused": False},
        {"topic": "raw", "partition": 10, "committed": 5, "end": 12, "lag": 7, "paused": True},
    ]
    assert (other["state"], other["reason"], other["lag"]) == ("running", None, None)
    assert "card" not in other


def test_pipeline_that_is_not_well_says_why() -> None:
    """A pipeline that has failed has its last error, one that begins its state; one stopped on request nothing."""
    found = overview(
        Pipeline("a", status="FAILED", last_error="a record"),
        Pipeline("b", status="STARTING"),
        Pipeline("c", status="STOPPED", target="STOPPED"),
    ).document()["pipelines"]
    assert [(each["state"], each["reason"]) for each in found] == [
        ("failed", "a record"),
        ("starting", "starting"),
        ("stopped", None),
    ]


def test_document_of_many_partitions_is_bounded() -> None:
    """Those with the greatest lag are told, in their order; the sum is that of all."""
    flow = FlowReport(
        positions={TopicPartition("raw", number): (0, 0, number) for number in range(MOST_PARTITIONS + 50)}
    )
    (found,) = overview(Pipeline(flow_report=flow)).document(0, {0})["pipelines"]
    assert [each["partition"] for each in found["card"]["partitions"]] == list(range(50, MOST_PARTITIONS + 50))
    assert found["card"]["partitions_assigned"] == MOST_PARTITIONS + 50
    assert found["lag"] == sum(range(MOST_PARTITIONS + 50))


def test_document_has_the_details_of_what_is_opened_alone() -> None:
    """A row takes less than a kilobyte, however many partitions the pipeline has and however long it runs."""
    flow = FlowReport(positions={TopicPartition("raw", number): (0, 0, number) for number in range(MOST_PARTITIONS)})
    document = overview(*(Pipeline(f"p-{number}", flow_report=flow) for number in range(50))).document()
    assert len(json.dumps(document)) < 50 * 1_000
