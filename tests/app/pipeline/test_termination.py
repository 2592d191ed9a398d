"""The termination of a flow: the first failure counts, and the waiting flow is woken."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka.errors import KafkaTimeoutError

from app.pipeline.background import TaskEndedError, begin, end
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
    if isinstance(caught.value, RecordError):
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("raw", 3, 7)
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


# --- tasks in the background -----------------------------------------------------------------------------------------

# Each place where a task is begun by other means: somebody awaits it, or it is given to the caller of a client.
AWAITED = {
    "app/application.py": "the end of the worker itself, by Faust's `crash`",
    "app/chunks/prefetch.py": "`getmany` and `getone` deliver the result of each download",
    "app/chunks/producer.py": "the caller of `send` awaits it",
    "app/chunks/range_reader.py": "`getmany` and `getone` read its result",
    "app/commands/packer.py": "each message is awaited in its turn",
    "app/deadletters/replay.py": "`_flush` awaits it",
    "app/kafka/batches/outbox.py": "`_send_all` gives each error to the records, and ends all sending",
    "app/kafka/configured_batches.py": "each `send` awaits it",
    "app/kafka/membership.py": "aiokafka awaits its commits, `_leave` reads each result, a join awaits its search",
    "app/kafka/gate.py": "the start of the client awaits it",
    "app/kafka/transactions.py": "the request that aiokafka sends later awaits it",
    "app/kafka/writer.py": "`commit` awaits it",
    "app/pipeline/background.py": "the way to begin all others",
    "app/pipeline/dispatch.py": "`measure`: the admission reads its result",
    "app/pipeline/delivery.py": "`assign` and `stop` await them",
    "app/pipeline/steering.py": "`_follow` goes on whatever happens, and says so; `_ask` awaits the writes",
    "app/pipeline/termination.py": "`unless_ended` awaits it",
    "app/serializers/faust.py": "the caller of `send` awaits it",
}


class UnforeseenError(Exception):
    """What nobody has thought of."""


async def returns() -> None:
    await asyncio.sleep(0)


async def raises() -> None:
    raise UnforeseenError("a defect")


async def is_cancelled() -> None:
    """By what it waits for, as by a library that cancels its futures."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(
    ("work", "lasting", "told"),
    [
        (returns, False, None),
        (returns, True, "TaskEndedError: returns has ended, although it was not stopped"),
        (raises, False, "UnforeseenError: a defect"),
        (raises, True, "UnforeseenError: a defect"),
        (is_cancelled, False, "TaskEndedError: is_cancelled has ended, although it was not stopped"),
    ],
)
async def test_an_end_that_nobody_asked_for_is_told(
    *, work: Callable[[], Coroutine[None, None, None]], lasting: bool, told: str | None
) -> None:
    """An error always; a return if the task goes on by what it is."""
    errors: list[BaseException] = []
    task = begin(work(), errors.append, lasting=lasting)
    await asyncio.wait([task])
    assert [f"{type(each).__name__}: {each}" for each in errors] == ([] if told is None else [told])


async def test_a_task_that_is_cancelled_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Nor if it raises something on its way out; a defect is logged, as nobody else sees it."""

    async def fails_to_end(error: Exception) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    errors: list[BaseException] = []
    works = fails_to_end(UnforeseenError()), fails_to_end(OSError()), returns(), asyncio.sleep(3_600)
    tasks = [begin(work, errors.append, lasting=True) for work in works]
    await asyncio.sleep(0)
    tasks[2].cancel()  # or it returns
    await asyncio.gather(*map(end, [*tasks, None]))
    assert (errors, [task.done() for task in tasks]) == ([], [True] * 4)
    (logged,) = caplog.records
    assert logged.getMessage().endswith("fails_to_end was to end: unexpected error")
    assert logged.exc_info is not None
    assert logged.exc_info[0] is UnforeseenError


def test_tasks_are_begun_so_or_awaited() -> None:
    """A task that is begun otherwise ends in silence, unless somebody awaits it: the table says who."""
    root = Path(__file__).parents[3]
    begins = {"create_task", "ensure_future"}
    found = {
        str(path.relative_to(root))
        for path in (root / "app").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in begins
    }
    assert found == AWAITED.keys()
