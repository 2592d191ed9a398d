"""Pipelines as Connect's documents have them, in states that are rare."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition

from app.pipeline.report import FlowReport
from app.web import connectors
from tests.app.configurations import HEAD, OWN_CLASS, only_pipeline
from tests.app.reports import Pipeline, pipeline_settings


@pytest.mark.parametrize(
    ("pipeline", "state"),
    [
        (Pipeline(status="STARTING"), {"state": "UNASSIGNED"}),
        (Pipeline(last_error="of yesterday"), {"state": "RUNNING"}),
        (Pipeline(degraded="HTTP 503", last_error="of yesterday"), {"state": "RUNNING", "trace": "HTTP 503"}),
        (Pipeline(status="PAUSED", last_error="of yesterday"), {"state": "PAUSED"}),
        (Pipeline(status="PAUSED", degraded="HTTP 503"), {"state": "PAUSED", "trace": "HTTP 503"}),
        (Pipeline(status="STARTING", awaited="the group"), {"state": "UNASSIGNED", "trace": "the group"}),
        (
            Pipeline(status="RESTARTING", last_error="no broker", failing_since=0.5),
            {"state": "RESTARTING", "trace": "no broker"},
        ),
        (Pipeline(status="RESTARTING", last_error="no broker"), {"state": "RESTARTING"}),
        (Pipeline(status="FAILED", last_error="a record"), {"state": "FAILED", "trace": "a record"}),
    ],
)
def test_states_are_connects(pipeline: Pipeline, state: dict[str, str]) -> None:
    """Each state is one that Connect knows; its trace is the last error while it counts, or why records wait."""
    expected = {**state, "worker_id": "w:1"}
    assert connectors.status(pipeline, "w:1") == {
        "name": "p",
        "connector": expected,
        "tasks": [{"id": 0, **expected}],
        "type": "sink",
    }
    assert connectors.task_status(pipeline, "w:1") == {"id": 0, **expected}


def test_offsets_that_are_not_known_are_left_out() -> None:
    """Partitions stand in their order; before the first commit they do not stand there."""
    partitions = {TopicPartition("raw", 10): (7, 5, 12), TopicPartition("raw", 2): (1, 0, 1)}
    flow = FlowReport(positions={**partitions, TopicPartition("raw", 3): (None, None, None)})
    found = connectors.offsets(Pipeline(flow_report=flow))["offsets"]
    assert [(each["partition"]["kafka_partition"], each["offset"]["kafka_offset"]) for each in found] == [
        (2, 0),
        (10, 5),
    ]
    assert connectors.offsets(Pipeline()) == {"offsets": []}


def test_a_stopped_pipeline_has_no_offsets() -> None:
    """What it knew last is not told: others may have committed since."""
    flow = FlowReport(positions={TopicPartition("raw", 0): (7, 5, 12)})
    assert connectors.offsets(Pipeline(flow_report=flow, status="STOPPED")) == {"offsets": []}


def test_topics_without_dead_letters() -> None:
    """A pipeline without a dead-letter topic has its sources and its sink."""
    assert connectors.topics(Pipeline()) == {"p": {"topics": ["raw", "orders"]}}


def test_config_of_a_class_of_ones_own() -> None:
    """It is not known which of its texts are secret, so none is shown."""
    settings = only_pipeline(HEAD + OWN_CLASS + 'shop.account = "acme"\nshop.size = 3\n')
    config = connectors.config(Pipeline(own_settings=settings))
    assert (config["shop.account"], config["shop.size"]) == ("***", "3")


def test_config_shows_no_password_in_a_url() -> None:
    """A password that stands where nobody has looked for one is not shown either."""
    settings = pipeline_settings("p", **{"group.id": "https://user:hunter2hunter2@host/x"})
    assert "hunter2" not in str(connectors.config(Pipeline(own_settings=settings)))
