"""An event loop with virtual time, on which the order of what is ready is drawn from a seed.

Nothing waits: when nothing is ready, the clock goes to the next timer. The same seed gives the same order, as long as
nothing goes by the address of an object: so tasks and futures of this loop are numbered, and hash by their number.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import heapq
import itertools
import weakref
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

_MOST_STEPS = 2_000_000  # after so many callbacks the history counts as stuck
_STEP_S = 0.000_02  # what a callback takes: time goes on for those who never wait


class Process:
    """What runs in a context with it as `PROCESS`: it can stop between any two callbacks, and go on later, or never."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.frozen = False
        self._kept: list[asyncio.Handle] = []

    def runs(self, handle: asyncio.Handle) -> bool:
        """Whether a callback of it may run now; one that may not is kept until the process goes on."""
        if self.dead or self.frozen:
            self._kept.append(handle)  # what it holds must not be collected, or coroutines would end
            return False
        return True

    def thaw(self, loop: SimulatedLoop) -> None:
        self.frozen = False
        kept, self._kept = self._kept, []
        loop.again(kept)


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The process that a callback belongs to."""


class StuckError(RuntimeError):
    """Nothing is ready, no timer runs, and still somebody waits; or too much has happened."""


class _Handle(asyncio.Handle):
    """Without what asyncio does for its debug mode, each time."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None


class _TimerHandle(asyncio.TimerHandle):
    """Without what asyncio does for its debug mode, each time."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self._when, self._scheduled = when, True


class _Task(asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, *args: Any, number: int, **options: Any) -> None:
        self._number = number
        self.context = options.setdefault("context", contextvars.copy_context())
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future):  # type: ignore[type-arg]
    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:  # few are ever in a set
            loop: Any = self._loop
            self._number = loop.number()
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self, chance: Random, *, shuffles: bool) -> None:
        super().__init__()
        self.now_s = 1_000.0  # the virtual time
        self.steps = 0  # callbacks so far
        self.troubles: list[dict[str, Any]] = []  # contexts that came to the exception handler
        self._draw = chance.random
        self._shuffles = shuffles
        self._numbers = itertools.count()
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._stopping = False
        self.tasks: weakref.WeakSet[_Task] = weakref.WeakSet()  # those that somebody still holds
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: self.troubles.append(context))

    def _make_task(self, loop: Any, work: Coroutine[Any, Any, Any], **options: Any) -> _Task:
        task = _Task(work, loop=loop, number=next(self._numbers), **options)
        self.tasks.add(task)
        return task

    def create_future(self) -> _Future:
        return _Future(loop=self)

    def number(self) -> int:
        return next(self._numbers)

    def time(self) -> float:
        return self.now_s

    # What asyncio's own loop does at each of these is a third of the time of a history: checks, and timers that
    # compare in Python.

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Calls it on this thread, as soon as chance wills; the calls of one moment end in any order."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as exc:  # noqa: BLE001  # goes to whoever waits
                if not future.cancelled():
                    future.set_exception(exc)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._draw() * 0.004, call)
        return future

    def _run_once(self) -> None:  # noqa: C901  # the time of a history is spent here: no calls
        """Runs callbacks until the loop is to stop; one of asyncio's runs those that are ready once."""
        ready, timers, draw, shuffles = self._ready, self._timers, self._draw, self._shuffles
        process_of = PROCESS
        while not self._stopping:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not ready:
                if not timers:
                    raise StuckError("nothing is ready and no timer runs")
                self.now_s = max(self.now_s, timers[0][0])
            while timers and timers[0][0] <= self.now_s:
                ready.append(heapq.heappop(timers)[2])
            if shuffles and len(ready) > 1:
                ready.rotate(-int(draw() * len(ready)))
            handle = ready.popleft()
            self.now_s += _STEP_S
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise StuckError(f"{self.steps:,} callbacks, and no end")
            if not handle._cancelled:
                process = handle._context.get(process_of)  # type: ignore[attr-defined]
                if process is None or process.runs(handle):
                    try:
                        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as exc:  # noqa: BLE001  # as asyncio's own
                        self.call_exception_handler({"message": f"Exception in callback {handle!r}", "exception": exc})

    def again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...
