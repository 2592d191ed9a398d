"""The circuit breaker: who calls the store while it is down, how often, and how all go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.pipeline.stats import PipelineStats
from app.pipeline.store_state import StoreState
from tests.app.pipeline.chains import settings_of
from tests.app.pipeline.hurried import hurried
from tests.app.pipeline.runtimes import SHARED


def state(delay_max_ms: int) -> StoreState:
    """With this longest delay."""
    settings = replace(settings_of(["offload"]), retry_delay_max_ms=delay_max_ms)
    return StoreState(settings, None, PipelineStats(), SHARED.threads)


def down(breaker: StoreState, failures: int = 5) -> None:
    """Lets so many calls fail."""
    for _ in range(failures):
        breaker.failed(probing=False)


async def test_breaker_opens_after_failures_in_a_row() -> None:
    """A store that fails now and then is asked by all; one that fails five times running is down."""
    breaker = state(60000)
    down(breaker, 4)
    breaker.answered()
    down(breaker, 4)
    assert not breaker.down
    down(breaker, 1)
    assert breaker.down


async def test_breaker_lets_one_ask_and_all_go_on_when_it_ends() -> None:
    """While it lasts one record at a time asks, each another one; with the first answer all others may ask at once."""
    breaker = state(1)
    down(breaker)
    asking, asked = 0, []
    answers = iter([False, False, True])

    async def ask(name: int) -> None:
        nonlocal asking
        tries = 0
        while True:
            async with breaker.turn(tries) as probing:
                asking += probing
                assert asking <= 1
                asked.append((name, probing))
                await asyncio.sleep(0)
                asking -= probing
                if not probing or next(answers):
                    breaker.answered()
                    return
                breaker.failed(probing=True)
                tries += 1

    await asyncio.wait_for(asyncio.gather(*map(ask, range(4))), 10)
    assert asked[:3] == [(0, True), (1, True), (2, True)]
    assert sorted(asked[3:]) == [(0, False), (1, False), (3, False)]
    assert not breaker.down


@hurried
async def test_breaker_asks_less_and_less_often() -> None:
    """The wait between two calls doubles, up to the longest that is allowed; a call that is late changes nothing."""
    breaker, clock = state(450), asyncio.get_running_loop().time
    down(breaker)
    waits = []
    for _ in range(3):
        before = clock()
        async with breaker.turn(0) as probing:
            assert probing
            waits.append(clock() - before)
            breaker.failed(probing=False)
            breaker.failed(probing=True)
    assert waits == pytest.approx([0.2, 0.4, 0.45])


@hurried
async def test_breaker_of_one_payload_holds_up_no_other_for_long() -> None:
    """Where one payload alone cannot be had, a record that comes then asks soon, not after the waits of that one."""
    breaker = state(60000)
    down(breaker)
    for _ in range(8):
        breaker.failed(probing=True)  # it waits for most of a minute by now

    async def bad() -> None:
        tries = 9
        while True:
            async with breaker.turn(tries) as probing:
                breaker.failed(probing=probing)
                tries += 1

    waiting = asyncio.create_task(bad())
    await asyncio.sleep(0)
    async with asyncio.timeout(10), breaker.turn(0) as probing:
        assert probing
        breaker.answered()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


async def test_breaker_turn_that_is_cancelled_is_the_next_ones() -> None:
    """A partition that is lost while its record was to ask leaves the turn to another."""
    breaker = state(1)
    down(breaker)
    entered = asyncio.Event()

    async def hold() -> None:
        async with breaker.turn(0):
            entered.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await asyncio.wait_for(entered.wait(), 10)
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    async with asyncio.timeout(10), breaker.turn(0) as probing:
        assert probing


@hurried
async def test_pause_is_none_before_the_first_try() -> None:
    """Only what has failed waits, and no longer than is allowed."""
    clock = asyncio.get_running_loop().time
    await state(60_000).pause(0)
    assert clock() == 0
    await state(60_000).pause(50)
    assert clock() == pytest.approx(60)
