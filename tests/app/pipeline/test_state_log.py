"""What the log says of a pipeline and of its store, without a cluster."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiokafka import TopicPartition

from app.pipeline import state_log, store_log
from app.pipeline.lane import PlacedRecord
from app.pipeline.runtime import monotonic
from app.pipeline.state_log import StateLog, uncommitted_text
from app.pipeline.store_log import StoreLog
from tests.app.reports import Pipeline


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last look."""
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    caplog.clear()
    return lines


def test_changes_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A pause, a trouble that lasts, and its end are a line each, however often one looks."""
    caplog.set_level(logging.INFO)
    pipeline = Pipeline()
    trouble: str | None = None
    log = StateLog(pipeline, lambda: trouble, monotonic)
    for status, now_trouble in (("PAUSED", None), ("RUNNING", "broker b does not answer"), ("RUNNING", None)):
        pipeline.status, trouble = status, now_trouble
        for _ in range(3):
            log.look()
    lines = told(caplog)
    assert lines[:3] == [
        "INFO pipeline p is PAUSED now; it was RUNNING",
        "INFO pipeline p is RUNNING now; it was PAUSED",
        "WARNING pipeline p waits: broker b does not answer",
    ]
    assert lines[3].startswith("INFO pipeline p: brokers and group answer again, after 0.")
    assert len(lines) == 4


def test_a_flow_that_begins_again_and_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reason is told once in its time, and then how often; another reason at once."""
    log = StateLog(Pipeline(), lambda: None, monotonic)
    for delay_s in (0.5, 1, 2, 4):
        log.begins_again(ValueError("away"), delay_s)
    assert told(caplog) == ["WARNING pipeline p restarts in 0.5 s: away"]
    monkeypatch.setattr(state_log, "_BEGINS_AGAIN_S", 0.0)
    log.begins_again(ValueError("away"), 8)
    assert told(caplog) == ["WARNING pipeline p restarts in 8.0 s (and 3 times since the last line): away"]
    log.begins_again(ValueError("refused"), 0.5)
    assert told(caplog) == ["WARNING pipeline p restarts in 0.5 s: refused"]


def test_what_is_not_committed() -> None:
    """Five partitions are named, in order, and the others counted."""
    assert uncommitted_text({}) == "all that was read is committed"
    left = {TopicPartition("raw", number): (number, 1_000) for number in range(7, -1, -1)}
    text = uncommitted_text(left)
    assert text.startswith("not committed, and read again: 1,000 from topic raw, partition 0, offset 0 on, 1,000 from")
    assert text.endswith("partition 4, offset 4 on, and of 3 more partitions")


async def test_a_store_that_fails_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets one line in its time, which counts the failures that had none; one that stays down is told again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(store_log, "_AGAIN_S", 0.3)
    record = PlacedRecord("raw", 3, 812, 0)
    log = StoreLog("p", lambda: (record, 5), monotonic)
    for _ in range(4):
        log.failed("down", record)
        log.answered()
    first, again = told(caplog)
    assert first == "WARNING pipeline p: topic raw, partition 3, offset 812 waits: down"
    assert again.startswith("INFO pipeline p: the store answers again, after 0.")
    log.failed("down", record)
    async with asyncio.timeout(10):
        while not caplog.records:  # noqa: ASYNC110  # it is no event
            await asyncio.sleep(0.01)
    (line,) = told(caplog)
    assert line.startswith("WARNING pipeline p: the store fails since 20")
    assert line.endswith(
        ", 4 times since the last line; 5 records wait for it, the first is topic raw, partition 3, offset 812: down"
    )
    log.end()
    await asyncio.sleep(0.35)  # that nothing is said has no condition to wait for
    assert told(caplog) == []
