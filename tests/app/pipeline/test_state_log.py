"""What the log says of a pipeline, without a cluster."""

from __future__ import annotations

import logging

import pytest
from aiokafka import TopicPartition

from app.kafka.troubles import SHORT, Troubles
from app.pipeline.state_log import StateLog, uncommitted_text
from tests.app.reports import Pipeline


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last look."""
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    caplog.clear()
    return lines


def test_changes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A pause, a trouble that lasts, and its end are a line each, however often one looks."""
    caplog.set_level(logging.INFO)
    pipeline, troubles = Pipeline(), Troubles("p")
    log = StateLog(pipeline, troubles)
    for status, short in (("PAUSED", False), ("RUNNING", True), ("RUNNING", False)):
        pipeline.status = status
        (troubles.note if short else troubles.end)(SHORT, "orders")
        for _ in range(3):
            log.look()
    lines = told(caplog)
    assert lines[:2] == [
        "INFO pipeline p is PAUSED now; it was RUNNING",
        "INFO pipeline p is RUNNING now; it was PAUSED",
    ]
    assert lines[2].startswith("WARNING pipeline p waits: orders (since 20")
    assert lines[3].startswith("INFO pipeline p: brokers and group answer again, after 0.")
    assert len(lines) == 4


def test_a_flow_that_restarts_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """One reason is told once in its time, and then how often; another reason at once."""
    now_s = 100.0
    log = StateLog(Pipeline(), Troubles("p", lambda: now_s))
    for delay_s in (0.5, 1, 2, 4):
        log.restarts(ValueError("away"), delay_s)
    assert told(caplog) == ["WARNING pipeline p restarts in 0.5 s: away"]
    now_s += 30
    log.restarts(ValueError("away"), 8)
    assert told(caplog) == ["WARNING pipeline p restarts in 8.0 s (and 3 times since the last line): away"]
    log.restarts(ValueError("refused"), 0.5)
    assert told(caplog) == ["WARNING pipeline p restarts in 0.5 s: refused"]


def test_what_is_not_committed() -> None:
    """Five partitions are named, in order, and the others counted."""
    assert uncommitted_text({}) == "all that was read is committed"
    left = {TopicPartition("raw", number): (number, 1_000) for number in range(7, -1, -1)}
    text = uncommitted_text(left)
    assert text.startswith("not committed, and read again: 1,000 from topic raw, partition 0, offset 0 on, 1,000 from")
    assert text.endswith("partition 4, offset 4 on, and of 3 more partitions")
