"""The pace of transactions: who ends when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.pipeline.pace import Pace


async def test_one_after_the_other() -> None:
    """After a rest some end at once, the others in the order in which they asked, with a time between."""
    loop = asyncio.get_running_loop()
    pace, done, ended = Pace(per_second=100, at_once=2, under_way=1), loop.create_future(), list[tuple[int, float]]()

    def turn(number: int) -> Callable[[], bool]:
        def end() -> bool:
            ended.append((number, loop.time()))
            if number == 5:
                done.set_result(None)
            return True

        return end

    began_s = loop.time()
    for number in range(6):
        pace.ask(turn(number))
    assert [number for number, _ in ended] == [0, 1]
    await asyncio.wait_for(done, 10)
    assert [number for number, _ in ended] == list(range(6))
    assert all(at_s >= began_s + 0.01 * (number - 1) - 0.001 for number, at_s in ended)


async def test_who_does_not_end_takes_no_time() -> None:
    """A lane that has more at hand by now lets the next one end in its place."""
    pace, asked = Pace(per_second=0.001, at_once=1, under_way=1), list[int]()

    def turn(number: int) -> Callable[[], bool]:
        def end() -> bool:
            asked.append(number)
            return number == 3

        return end

    for number in range(5):
        pace.ask(turn(number))
    assert asked == [0, 1, 2, 3]


async def test_where_ends_take_long_there_are_fewer() -> None:
    """As many as are under way at a time on average, and no more."""
    pace, ended = Pace(per_second=1_000_000, at_once=1, under_way=2), asyncio.Event()
    for _ in range(100):
        pace.took(0.2)
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    def end() -> bool:
        ended.set()
        return True

    pace.ask(lambda: True)
    pace.ask(end)
    await asyncio.wait_for(ended.wait(), 10)
    assert loop.time() - began_s > 0.09
