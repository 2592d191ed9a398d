"""The pace of transactions: who ends when, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from app.pipeline.pace import Pace
from tests.app.pipeline.hurried import hurried


async def ended(pace: Pace, count: int, wait_s: float) -> list[tuple[int, float]]:
    """Who of so many that ask at once has ended by then, and when."""
    clock, found = asyncio.get_running_loop().time, list[tuple[int, float]]()

    def ask(number: int) -> None:
        def end() -> bool:
            found.append((number, clock()))
            return True

        pace.ask(end)

    for number in range(count):
        ask(number)
    await asyncio.sleep(wait_s)
    return found


@hurried
async def test_one_after_the_other() -> None:
    """After a rest some end at once, the others in the order in which they asked, with a time between."""
    pace = Pace(per_second=100, at_once=2, under_way=1)
    await asyncio.sleep(1)
    found = await ended(pace, 6, 0.035)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    assert [at_s for _, at_s in found] == pytest.approx([1, 1, 1.01, 1.02, 1.03])


@hurried
async def test_who_does_not_end_takes_no_time() -> None:
    """A lane that has more at hand by now lets the next one end in its place."""
    pace, asked = Pace(per_second=0.001, at_once=1, under_way=1), list[int]()

    def ask(number: int) -> None:
        def end() -> bool:
            asked.append(number)
            return number == 3

        pace.ask(end)

    for number in range(5):
        ask(number)
    assert asked == [0, 1, 2, 3]


@hurried
async def test_where_ends_take_long_there_are_fewer() -> None:
    """As many as are under way at a time on average, and no more."""
    pace = Pace(per_second=1_000_000, at_once=1, under_way=2)
    for _ in range(100):
        pace.took(0.2)
    (_, (_, second_s)) = await ended(pace, 2, 1)
    assert second_s == pytest.approx(0.1, rel=0.05)
