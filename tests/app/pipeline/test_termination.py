"""The termination of a flow: the first failure counts, and the waiting flow is woken."""

from __future__ import annotations

import asyncio
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
    """Later failures, which mostly follow from the first, do not hide it; to be asked to end is no failure."""
    woken: list[None] = []
    termination = Termination("p", lambda: woken.append(None))
    termination.ask()
    termination.raise_error()
    assert (termination.asked, termination.error, len(woken)) == (True, None, 1)
    first = ValueError("first")
    for error in (first, ValueError("second")):
        termination.fail(error)
    with pytest.raises(ValueError, match="first"):
        termination.raise_error()
    assert (termination.error, len(woken)) == (first, 2)


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


@pytest.mark.parametrize(
    ("error", "record", "kind", "told"),
    [
        (KeyError("defect"), Read(), RecordError, "topic raw, partition 3, offset 7: 'defect'"),
        (KeyError("defect"), None, DefectError, "unexpected KeyError: 'defect'"),
        (TaskEndedError("has ended"), None, TaskEndedError, "has ended"),
    ],
)
def test_termination_by_a_defect(
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    record: Read | None,
    kind: type[WideloadError],
    told: str,
) -> None:
    """It ends the flow with the place of the record, or an error of ours, and the log has its traceback."""
    termination = Termination("orders", lambda: None)
    termination.fail_by_defect(error, record)
    with pytest.raises(kind) as caught:
        termination.raise_error()
    assert str(caught.value) == told
    (logged,) = caplog.records
    assert (logged.getMessage(), (logged.exc_info or [None])[0]) == ("pipeline orders: unexpected error", type(error))


async def test_task_with_a_defect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody foresaw ends the flow, and the log has its traceback."""
    termination = Termination("orders", lambda: None)

    async def work() -> None:
        raise KeyError("defect")

    await asyncio.wait([termination.begin(work())])
    assert isinstance(termination.error, DefectError)
    assert "KeyError: 'defect'" in caplog.text
