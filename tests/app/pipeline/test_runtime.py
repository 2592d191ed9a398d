"""The threads of a pipeline: what waits for what."""

from __future__ import annotations

import asyncio
import threading

from app.pipeline.runtime import STORE_THREADS
from tests.app.pipeline.runtimes import running_on


async def test_only_calls_of_the_store_wait_for_a_store_that_hangs() -> None:
    """What asks no store goes on, and so does what is called apart: to close a store that hangs."""
    over = threading.Event()
    with running_on(1) as runtime:
        threads = runtime.threads
        try:
            async with asyncio.timeout(20):
                hanging, waiting = threads.call(over.wait), threads.call(int)
                assert await threads.compute(sum, (1, 2)) == 3
                await threads.call_apart(int, "close-p")
                assert not hanging.done()
                assert not waiting.done()
        finally:
            over.set()


async def test_what_hangs_is_given_up() -> None:
    """After `renew` no call waits for those before it, and what had not begun is cancelled."""
    over, names = threading.Event(), list[str]()
    with running_on(1) as runtime:
        threads = runtime.threads
        try:
            async with asyncio.timeout(20):
                hanging, waiting = threads.call(over.wait), threads.call(int)
                threads.renew()
                await threads.call(lambda: names.append(threading.current_thread().name))
                assert names[0].startswith(STORE_THREADS)
                await asyncio.wait([waiting])
                assert waiting.cancelled()
                assert not hanging.done()
        finally:
            over.set()


async def test_a_call_apart_is_over_however_it_ends() -> None:
    """Who waits for it need not know how: a defect of a store comes to the log of threads, and holds up no end."""
    seen: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, seen.append

    def fail() -> None:
        raise ValueError("a defect")

    try:
        with running_on(1) as runtime:
            await asyncio.wait_for(runtime.threads.call_apart(fail, "close-p"), 20)
            given_up = runtime.threads.call_apart(int, "close-p")
            given_up.cancel()
            for thread in threading.enumerate():  # the hook is called after the call is over
                if thread.name == "close-p":
                    thread.join(20)
    finally:
        threading.excepthook = before
    assert [type(each.exc_value) for each in seen] == [ValueError]
