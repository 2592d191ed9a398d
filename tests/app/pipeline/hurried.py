"""Time without waiting: an event loop whose clock stands, and goes on to the next timer where nothing else is to do."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from selectors import DefaultSelector, SelectorKey
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from app.pipeline.runtime import Runtime, Threads

P = ParamSpec("P")
T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Selector(DefaultSelector):
    """Does not wait for timers, and counts how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What is ready. Without a timer nothing could end the wait: then it is as long as it has to be."""
        found = super().select(timeout if timeout is None else 0.0)
        if not found and timeout is not None:
            self.skipped_s += max(0.0, timeout)
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def hurried(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test on such a loop. Not for one with threads, whose answers come by a clock of their own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class Timed(Threads):
    """Calls of the store that take so long by the clock of such a loop, `count` at a time, and are done then.

    Attributes:
        takes: the times of the next calls; all others take `takes_s`.
    """

    def __init__(self, count: int = 1, takes_s: float = 0.0) -> None:
        super().__init__(count)
        self._free = asyncio.Semaphore(count)
        self._takes_s = takes_s
        self.takes: list[float] = []

    def compute(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """See `Threads`."""
        return asyncio.ensure_future(self._done(0.0, work, *args))

    def call(self, work: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """See `Threads`."""
        return asyncio.ensure_future(self._called(work, *args))

    async def _called(self, work: Callable[[*Args], T], *args: *Args) -> T:
        async with self._free:
            return await self._done(self.takes.pop(0) if self.takes else self._takes_s, work, *args)

    async def _done(self, takes_s: float, work: Callable[[*Args], T], *args: *Args) -> T:
        await asyncio.sleep(takes_s)
        return work(*args)


def timed(threads: Threads) -> Runtime:
    """The runtime on such a loop."""
    return Runtime(threads, monotonic=asyncio.get_running_loop().time)
