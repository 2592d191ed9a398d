"""The byte budget: bounded, given back whole, and nobody sleeps through what comes free."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.budget import Budget, Share

LONG_S = 30.0  # no test waits so long; a wake-up that is missed makes it fail by the deadline of `soon`


async def soon(waiter: asyncio.Task[bool]) -> bool:
    """The result of a waiter that must not have to wait."""
    return await asyncio.wait_for(waiter, 2.0)


def test_budget_admits_up_to_its_limit() -> None:
    """The limit itself may be reached, one byte more may not."""
    budget = Budget(10)
    budget.take(4)
    assert (budget.admits(6), budget.admits(7)) == (True, False)


def test_budget_admits_one_record_over_the_limit() -> None:
    """A record larger than the whole budget passes when it is alone, and nothing passes beside it."""
    budget = Budget(10)
    assert budget.admits(1_000)
    budget.take(1_000)
    assert not budget.admits(0)
    budget.give(1_000)
    assert budget.admits(1_000)


def test_budget_remembers_its_peak() -> None:
    """The peak is the most that was held at once."""
    budget = Budget(10)
    for size in (3, 5):
        budget.take(size)
    budget.give(5)
    budget.take(1)
    assert (budget.used, budget.peak) == (4, 8)


actions = st.lists(
    st.tuples(
        st.sampled_from(["take", "take work", "give", "pass on", "close"]), st.integers(0, 1), st.integers(0, 12)
    ),
    max_size=60,
)


@given(actions, st.integers(1, 20))
def test_shares_never_exceed_the_limit_by_more_than_one_record(  # noqa: C901  # a case for each action
    actions: list[tuple[str, int, int]], limit: int
) -> None:
    """Two pipelines that ask first stay within the limit and one record of each; in the end nothing is held."""
    budget = Budget(limit)
    shares = [Share(budget), Share(budget)]
    passing: list[list[int]] = [[], []]
    work: list[list[int]] = [[], []]
    closed = [False, False]
    for action, which, size in actions:
        share = shares[which]
        if action == "take":
            if share.admits(size):
                share.take(size)
                passing[which] += [] if closed[which] else [size]
        elif action == "take work":
            share.work_waits = not share.admits_work(size)
            if not share.work_waits:
                share.take_work(size)
                work[which] += [] if closed[which] else [size]
        elif action == "give":
            if passing[which]:
                share.give(passing[which].pop(0))
            elif work[which]:
                share.give_work(work[which].pop(0))
        elif action == "pass on" and work[which]:
            passing[which].append(work[which].pop(0))
            share.pass_on(passing[which][-1])
        elif action == "close":
            share.close()
            closed[which], passing[which], work[which] = True, [], []
        held = [[*passing[each], *work[each]] for each in (0, 1)]
        assert budget.used == sum(map(sum, held)) == sum(share.used for share in shares)
        assert budget.work == sum(map(sum, work)) == sum(share.work for share in shares)
        assert budget.used <= limit + sum(max(sizes) for sizes in held if sizes)
    for share in shares:
        share.close()
    assert (budget.used, budget.work, [share.used for share in shares]) == (0, 0, [0, 0])


def test_work_leaves_room_for_what_passes() -> None:
    """However much work waits, an eighth is there for records that pass, in whatever pipeline; one fits in any case."""
    budget = Budget(80)
    stuck, other = Share(budget), Share(budget)
    assert stuck.admits_work(70)
    stuck.take_work(70)
    assert not stuck.admits_work(1)
    assert stuck.admits(10)
    stuck.take(10)
    assert not stuck.admits(1)
    stuck.give(10)
    assert stuck.admits(30), "one that is larger than what is kept passes alone"
    other.take(5)
    assert (other.admits(5), other.admits(6)) == (True, False)


def test_what_passes_leaves_room_for_work() -> None:
    """Records that pass may have the whole budget until one with work finds no room; then they make it some."""
    budget = Budget(80)
    share = Share(budget)
    share.take_work(10)
    for _ in range(7):
        assert share.admits(10)
        share.take(10)
    assert not share.admits_work(60)
    share.work_waits = True
    for _ in range(6):
        share.give(10)
        assert not share.admits(10) or share.used == 20
    assert share.admits_work(60)
    assert not share.admits(1)


def test_work_that_is_stuck_leaves_room_for_that_of_others() -> None:
    """A pipeline that holds what it has for hours stops at four fifths, and another one has several records at work."""
    budget = Budget(80)
    stuck, other = Share(budget), Share(budget)
    for share, records in ((stuck, 11), (other, 2)):
        for _ in range(records):
            assert share.admits_work(5)
            share.take_work(5)
        assert not share.admits_work(5)
    stuck.close()
    assert other.admits_work(50), "alone it may have all"


def test_work_larger_than_its_part_passes_alone() -> None:
    """A record with work that would never fit passes when no other of its pipeline has work, beside what passes."""
    budget = Budget(80)
    share = Share(budget)
    share.take(10)
    assert share.admits_work(1_000)
    share.take_work(1_000)
    assert not share.admits_work(0)
    share.pass_on(1_000)
    assert (budget.used, budget.work) == (1_010, 0)
    assert not share.admits_work(0)
    share.give(1_000)
    assert share.admits_work(60)


def test_share_that_holds_nothing_is_always_admitted() -> None:
    """A pipeline that keeps the budget full cannot starve another one: that may have one record, whatever its size."""
    budget = Budget(10)
    busy, other = Share(budget), Share(budget)
    busy.take(10)
    assert other.admits(1_000)
    other.take(1_000)
    assert not other.admits(1)
    assert not busy.admits(1)


def test_share_that_is_closed_gives_nothing_back_twice() -> None:
    """A result that comes in late, from a thread that could not be stopped, changes no count."""
    budget = Budget(100)
    ended, other = Share(budget), Share(budget)
    ended.take(30)
    other.take(20)
    ended.close()
    assert budget.used == 20
    ended.give(30)
    ended.take(5)
    ended.close()
    assert (budget.used, ended.used, other.used) == (20, 0, 20)


def test_share_is_corrected_by_a_negative_gift() -> None:
    """A result larger than what was reserved takes the difference."""
    budget = Budget(100)
    share = Share(budget)
    share.take(10)
    share.give(10 - 25)
    assert (budget.used, share.used) == (25, 25)


async def test_waiter_wakes_when_bytes_come_free() -> None:
    """A gift wakes who waits, at once."""
    budget = Budget(10)
    budget.take(10)
    waiter = asyncio.create_task(budget.freed(LONG_S))
    await asyncio.sleep(0)
    assert not waiter.done()
    budget.give(1)
    assert await soon(waiter)


async def test_waiter_gives_up_in_time() -> None:
    """Where nothing comes free, the wait ends with False."""
    assert not await Budget(10).freed(0.01)
    assert not await Share(Budget(10)).freed(0.01)


async def test_every_waiter_wakes() -> None:
    """Two pipelines that wait are both woken by one gift; who begins to wait in between misses nothing of its own."""
    budget = Budget(10)
    budget.take(10)
    first = asyncio.create_task(budget.freed(LONG_S))
    await asyncio.sleep(0)
    budget.give(1)
    second = asyncio.create_task(budget.freed(LONG_S))
    assert await soon(first)
    assert not second.done()
    budget.give(1)
    assert await soon(second)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_share_misses_no_byte_between_refusal_and_wait(turns: int) -> None:
    """Bytes that come free after a refusal, but before the wait begins, end the wait."""
    budget = Budget(11)
    share, other = Share(budget), Share(budget)
    share.take(1)
    other.take(10)
    assert not share.admits(5)
    for _ in range(turns):
        await asyncio.sleep(0)
    other.give(5)
    assert not other.admits(6), "the other pipeline is refused in between, which must not take the news away"
    assert await asyncio.wait_for(share.freed(LONG_S), 2.0)
    assert share.admits(5)


async def test_share_is_not_woken_by_bytes_that_were_refused() -> None:
    """What came free before a refusal was not enough, so it does not end the wait: a pipeline must not spin."""
    budget = Budget(11)
    share, other = Share(budget), Share(budget)
    share.take(1)
    other.take(10)
    other.give(1)
    assert not share.admits(5)
    assert not await share.freed(0.01)


async def test_share_that_closes_wakes_the_others() -> None:
    """What a pipeline held when it ended is there for the others at once."""
    budget = Budget(11)
    ended, other = Share(budget), Share(budget)
    other.take(1)
    ended.take(10)
    assert not other.admits(1)
    waiter = asyncio.create_task(other.freed(LONG_S))
    await asyncio.sleep(0)
    ended.close()
    assert await soon(waiter)
    assert other.admits(10)


async def test_fetch_waits_for_room() -> None:
    """What is fetched counts beside what is held: while they are the budget, the next fetch waits for what passes."""
    budget = Budget(100)
    share, other = Share(budget), Share(budget)
    await share.may_fetch()
    share.take(30)
    share.fetched(30)
    await share.may_fetch()
    other.fetched(40)
    assert (budget.ahead, budget.used) == (70, 30)
    await asyncio.wait_for(Share(budget).may_fetch(), 2.0)  # an empty share
    waiting = asyncio.create_task(share.may_fetch())
    await asyncio.sleep(0)
    share.take(30)
    share.fetched(-30)  # admitted: as many bytes as before
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    other.fetched(-1)
    await asyncio.wait_for(waiting, 2.0)


async def test_fetch_does_not_wait_for_work() -> None:
    """Work may be stuck for hours. Records of other partitions are fetched all the same."""
    budget = Budget(100)
    share = Share(budget)
    share.take_work(80)
    share.fetched(40)
    assert budget.used + budget.ahead > budget.limit
    await asyncio.wait_for(share.may_fetch(), 2.0)


@pytest.mark.parametrize("let", ["give", "poll", "close", "close the other"])
async def test_whatever_makes_room_lets_the_fetch_go(let: str) -> None:
    """Bytes that become durable, are admitted and gone, or belonged to a flow that has ended."""
    budget = Budget(100)
    share, other = Share(budget), Share(budget)
    share.take(10)
    share.fetched(40)
    other.take(30)
    other.fetched(20)
    waiting = asyncio.create_task(share.may_fetch())
    await asyncio.sleep(0)
    assert not waiting.done()
    {
        "give": lambda: share.give(10),
        "poll": lambda: share.fetched(-40),
        "close": share.close,
        "close the other": other.close,
    }[let]()
    await asyncio.wait_for(waiting, 2.0)


def test_bytes_ahead_are_given_back_by_the_end() -> None:
    """A share that is closed counts nothing that comes later, and nothing twice."""
    budget = Budget(100)
    share = Share(budget)
    share.fetched(70)
    share.close()
    assert budget.ahead == 0
    share.fetched(-70)
    share.fetched(5)
    assert budget.ahead == 0
