"""The byte budget: bounded, given back whole, and nobody sleeps through what comes free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.budget import Budget, Share

LONG_S = 30.0  # no test waits so long


def nothing() -> int:
    """Of the work nothing is stuck."""
    return 0


def admits_work(share: Share, size: int, held: int = 0, stuck: int = 0) -> bool:
    """Whether a turn that begins now admits the work."""
    share.begin_turn()
    return share.admits_work(size, held, lambda: stuck)


async def woken(share: Share) -> bool:
    """Whether a wait for bytes that come free ends before its time."""
    began_s = time.monotonic()
    await share.freed(0.2)
    return time.monotonic() - began_s < 0.15


def test_share_admits_up_to_the_limit() -> None:
    """The limit itself may be reached, one byte more may not."""
    share = Share(Budget(10))
    share.take(4)
    assert (share.admits(6), share.admits(7)) == (True, False)


def test_share_admits_one_record_over_the_limit() -> None:
    """A record larger than the whole budget passes when it is alone, and nothing passes in addition."""
    share = Share(Budget(10))
    assert share.admits(1_000)
    share.take(1_000)
    assert not share.admits(0)
    share.give(1_000)
    assert share.admits(1_000)


def test_budget_remembers_its_peak() -> None:
    """The peak is the most that was held at once."""
    budget = Budget(10)
    share = Share(budget)
    for size in (3, 5):
        share.take(size)
    share.give(5)
    share.take(1)
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
            if admits_work(share, size):
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
    assert admits_work(stuck, 70)
    stuck.take_work(70)
    assert not admits_work(stuck, 1)
    assert stuck.admits(10)
    stuck.take(10)
    assert not stuck.admits(1)
    stuck.give(10)
    assert stuck.admits(30), "one that is larger than what is kept passes alone"
    other.take(5)
    assert (other.admits(5), other.admits(6)) == (True, False)


def test_what_passes_leaves_room_for_work() -> None:
    """Records that pass may have the whole budget until one with work finds no room; then they make it some."""
    share = Share(Budget(80))
    share.take_work(10)
    for _ in range(7):
        assert share.admits(10)
        share.take(10)
    assert not admits_work(share, 60)
    for _ in range(6):
        share.give(10)
        assert not share.admits(10) or share.used == 20
    assert admits_work(share, 60)


def test_no_work_overtakes_work_that_will_find_room() -> None:
    """A large record waits first in line, or smaller ones would always be before it; unless only what is stuck goes."""
    share = Share(Budget(80))
    share.take_work(40)
    assert not admits_work(share, 60)
    assert not share.admits_work(10, 0, nothing)
    assert not admits_work(share, 60, stuck=5)
    assert not share.admits_work(10, 0, nothing), "it fits once the other 35 bytes are done"
    assert not admits_work(share, 60, stuck=40)
    assert share.admits_work(10, 0, nothing), "it does not, and nobody knows until when"


def test_a_partition_leaves_room_for_others() -> None:
    """All that a partition holds may be stuck: it stops at half of the bytes for work, and waits alone."""
    share = Share(Budget(80))
    share.take_work(30)
    assert admits_work(share, 5, held=30)
    assert not share.admits_work(10, 30, nothing)
    assert share.admits_work(10, 0, nothing)


def test_work_that_is_stuck_leaves_room_for_that_of_others() -> None:
    """A pipeline that holds what it has for hours stops at four fifths, and another one has several records at work."""
    budget = Budget(80)
    stuck, other = Share(budget), Share(budget)
    for share, records in ((stuck, 11), (other, 2)):
        for _ in range(records):
            assert admits_work(share, 5)
            share.take_work(5)
        assert not admits_work(share, 5)
    stuck.close()
    assert admits_work(other, 50), "alone it may have all"


def test_work_larger_than_its_part_passes_alone() -> None:
    """A record with work that would never fit passes when no other of its pipeline has work, beside what passes."""
    budget = Budget(80)
    share = Share(budget)
    share.take(10)
    assert admits_work(share, 1_000)
    share.take_work(1_000)
    assert not admits_work(share, 0)
    share.pass_on(1_000)
    assert (budget.used, budget.work) == (1_010, 0)
    assert not admits_work(share, 0)
    share.give(1_000)
    assert admits_work(share, 60)


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
    ended.fetched(70)
    other.take(20)
    ended.close()
    assert (budget.used, budget.ahead) == (20, 0)
    ended.give(30)
    ended.take(5)
    ended.fetched(-70)
    ended.fetched(5)
    ended.close()
    assert (budget.used, ended.used, other.used, budget.ahead) == (20, 0, 20, 0)


def test_share_is_corrected_by_a_negative_gift() -> None:
    """A result larger than what was reserved takes the difference."""
    budget = Budget(100)
    share = Share(budget)
    share.take(10)
    share.give(10 - 25)
    assert (budget.used, share.used) == (25, 25)


async def test_every_waiter_wakes() -> None:
    """Two pipelines that wait are both woken by one gift, and by a pipeline that ends."""
    budget = Budget(10)
    shares = [Share(budget) for _ in range(3)]
    shares[0].take(10)
    ends: list[Callable[[], None]] = [lambda: shares[0].give(1), shares[0].close]
    for end in ends:
        waiters = [asyncio.create_task(share.freed(LONG_S)) for share in shares[1:]]
        for share in shares[1:]:
            share.begin_turn()
        await asyncio.sleep(0)
        end()
        await asyncio.wait_for(asyncio.gather(*waiters), 2.0)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_share_misses_no_byte_between_its_turn_and_its_wait(turns: int) -> None:
    """Bytes that come free after a refusal, but before the wait begins, end the wait."""
    budget = Budget(11)
    share, other = Share(budget), Share(budget)
    share.take(1)
    other.take(10)
    share.begin_turn()
    assert not share.admits(5)
    for _ in range(turns):
        await asyncio.sleep(0)
    other.give(5)
    other.begin_turn()
    assert not other.admits(6), "the other pipeline is refused in between, which must not take the news away"
    assert await woken(share)
    assert share.admits(5)


async def test_share_is_not_woken_by_bytes_that_were_refused() -> None:
    """What came free before a turn was not enough, so it does not end the wait: a pipeline must not spin."""
    budget = Budget(11)
    share, other = Share(budget), Share(budget)
    share.take(1)
    other.take(10)
    other.give(1)
    share.begin_turn()
    assert not share.admits(5)
    assert not await woken(share)


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
