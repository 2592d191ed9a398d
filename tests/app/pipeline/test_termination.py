"""The termination of a flow: the first failure counts, and the waiting flow is woken."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest
from aiokafka.errors import KafkaTimeoutError

from app.pipeline.background import TaskEndedError
from app.pipeline.termination import DefectError, RecordError, Termination
from transforms.errors import WideloadError
from transforms.record import Header


@dataclass(frozen=True)
class Read:
    """A record that was read."""

    offset: int = 7
    topic: str = "raw"
    partition: int = 3
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = ()
    timestamp: int = 0


def test_termination_keeps_the_first_error() -> None:
    """Later failures, which mostly follow from the first, do not hide it."""
    woken: list[None] = []
    termination = Termination("p", lambda: woken.append(None))
    termination.raise_error()
    first = ValueError("first")
    termination.fail(first)
    termination.fail(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        termination.raise_error()
    assert (termination.error, len(woken)) == (first, 1)


def test_termination_that_is_asked_for_is_no_error() -> None:
    """A flow that is asked to stop is woken for it, and has not failed."""
    woken: list[None] = []
    termination = Termination("p", lambda: woken.append(None))
    termination.ask()
    termination.raise_error()
    assert (termination.asked, termination.error, len(woken)) == (True, None, 1)


@pytest.mark.parametrize(
    "error", [OSError("gone"), TimeoutError("late"), KafkaTimeoutError(), RecordError(Read(), ValueError("no"), "")]
)
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "returns"])
async def test_task_that_ends_the_flow_is_no_defect(
    caplog: pytest.LogCaptureFixture, error: Exception, *, raises: bool
) -> None:
    """An error of a broker is no defect, and writes no traceback; neither does a task that returns after it failed."""
    termination = Termination("orders", lambda: None)

    async def work() -> None:
        if raises:
            raise error
        termination.fail(error)

    await asyncio.wait([termination.begin(work(), lasting=True)])
    assert termination.error is error
    assert caplog.records == []


async def test_task_with_a_defect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody foresaw ends the flow, and the log has its traceback."""
    termination = Termination("orders", lambda: None)

    async def work() -> None:
        raise KeyError("defect")

    await asyncio.wait([termination.begin(work())])
    assert termination.error is not None
    assert "pipeline orders: unexpected error" in caplog.text
    assert "KeyError: 'defect'" in caplog.text


def test_termination_by_a_defect_says_where(caplog: pytest.LogCaptureFixture) -> None:
    """A defect ends the flow with the place of the record, and the log has the traceback."""
    termination = Termination("orders", lambda: None)
    with caplog.at_level(logging.ERROR):
        try:
            dict[str, int]()["defect"]
        except KeyError as exc:
            termination.fail_by_defect(exc, Read())
    with pytest.raises(RecordError, match="topic raw, partition 3, offset 7: 'defect'") as caught:
        termination.raise_error()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("raw", 3, 7)
    assert "pipeline orders: unexpected error" in caplog.text
    assert "Traceback" in caplog.text


def test_termination_by_a_defect_without_a_record() -> None:
    """Where no record was in hand, the flow ends with an error of ours: the pipeline logs no second traceback."""
    with pytest.raises(DefectError, match=r"^unexpected KeyError: 'defect'$"):
        _failed(KeyError("defect")).raise_error()
    with pytest.raises(WideloadError, match=r"^has ended$"):
        _failed(TaskEndedError("has ended")).raise_error()


def _failed(error: BaseException) -> Termination:
    termination = Termination("p", lambda: None)
    termination.fail_by_defect(error)
    return termination
