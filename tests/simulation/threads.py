"""The threads of a worker: calls that take time, of which one runs at a time, as the seed wills.

A call that ends at once runs on the thread of the loop. One that may hang has a thread of its own, and goes on only
while the loop waits for it: so it can stand still in the middle, and one seed is still one history.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from app.pipeline.runtime import Threads
from tests.simulation.loop import SimulatedLoop


class _GivenUpError(BaseException):
    """The history is over, and the call with it."""


class SteppedCall:
    """One call on a thread of its own. It runs only within `step`, up to its end or its next `wait`."""

    def __init__(self, loop: SimulatedLoop, work: Callable[[], Any], ended: Callable[[Any, Any], None]) -> None:
        self._loop, self._work, self._ended = loop, work, ended
        self.context, self._inside = contextvars.copy_context(), contextvars.copy_context()
        self._here, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._waits: list[float] = []  # for how long it wants to stand still
        self._given_up = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Lets it go on, on its own thread; returns when it waits, or has ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._there.release()
        self._here.acquire()
        if not self._waits:
            self._thread.join()
            if not self._given_up:
                self._ended(self._result, self._error)
        elif (seconds := self._waits.pop()) < math.inf:
            self._loop.call_later(seconds, self.step)

    def wait(self, seconds: float) -> None:
        """Called by the work: stands still for a time, or until somebody calls `step`."""
        self._waits.append(seconds)
        self._here.release()
        self._there.acquire()
        if self._given_up:
            raise _GivenUpError

    def give_up(self) -> None:
        """Ends the thread of a call that waits."""
        if self._thread is not None and self._thread.is_alive():
            self._given_up = True
            self.step()

    def _run(self) -> None:
        asyncio._set_running_loop(self._loop)  # so that the clocks are those of the history
        try:
            self._result = self._inside.run(self._called)
        except _GivenUpError:
            pass
        except BaseException as exc:  # noqa: BLE001  # raised to whoever waits
            self._error = exc
        self._here.release()

    def _called(self) -> Any:
        CALL.set(self)
        return self._work()


CALL: contextvars.ContextVar[SteppedCall | None] = contextvars.ContextVar("call", default=None)
"""The call that runs, where it may `wait`."""


class SimulatedThreads(Threads):
    def __init__(self, loop: SimulatedLoop, chance: Random, count: int, hangs: Callable[[], bool]) -> None:
        self._loop, self._draw = loop, chance.random
        self._count, self._hangs = count, hangs
        self._free = count
        self._age = 0
        self._waiting: deque[tuple[Any, Callable[[], Any]]] = deque()
        self.calls: dict[SteppedCall, None] = {}
        """Those that have not ended."""

    def compute(self, work: Any, *args: Any) -> Any:  # type: ignore[override]
        return self._loop.run_in_executor(None, work, *args)

    def call(self, work: Any, *args: Any) -> Any:  # type: ignore[override]
        future = self._loop.create_future()
        self._waiting.append((future, lambda: work(*args)))
        self._begin()
        return future

    def call_apart(self, work: Any, name: str) -> Any:
        return self._loop.run_in_executor(None, work)

    def renew(self) -> None:
        self.close()

    def give_up(self) -> None:
        """Ends all calls: the history is over."""
        for call in [*self.calls]:
            call.give_up()

    def close(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            future.cancel()
        self._free = self._count
        self._age += 1

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._loop.call_later(self._draw() * 0.004, self._run, *self._waiting.popleft(), self._age)

    def _run(self, future: Any, work: Callable[[], Any], age: int) -> None:
        if future.cancelled():
            self._end(age)
        elif self._hangs():
            call = SteppedCall(self._loop, work, lambda result, error: self._ended(call, future, result, error, age))
            self.calls[call] = None
            call.step()
        else:
            try:
                result = work()
            except BaseException as exc:  # noqa: BLE001  # goes to whoever waits
                _set(future, None, exc)
            else:
                _set(future, result, None)
            self._end(age)

    def _ended(self, call: SteppedCall, future: Any, result: Any, error: BaseException | None, age: int) -> None:
        del self.calls[call]
        _set(future, result, error)
        self._end(age)

    def _end(self, age: int) -> None:
        if age == self._age:
            self._free += 1
            self._begin()


def _set(future: Any, result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
