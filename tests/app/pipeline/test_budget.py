"""The byte budget: bounded, given back whole, and nobody sleeps through what comes free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.budget import Budget, Share
from tests.app.pipeline.hurried import hurried

# What two shares of a budget do, and what they answer. `lets` and `stops` is work that asks in a turn of its own, and
# with `still` in the same turn; `held` by its partition, while so much is `stuck`.
PLAYS = """
10: the limit itself may be reached
a take 4; a admits 6; a refuses 7

10: a record larger than all passes alone
a admits 1000; a take 1000; a refuses 0; a give 1000; a admits 1000

10: the peak is the most that was held at once
a take 3; a take 5; a give 5; a take 1; all used 4; all peak 8

100: a result larger than what was reserved takes the difference
a take 10; a give -15; all used 25; a used 25

80: an eighth is kept from work, in whatever pipeline, and one record fits in any case
a lets 70; a take_work 70; a stops 1; a admits 10; a take 10; a refuses 1; a give 10; a admits 30
b take 5; b admits 5; b refuses 6

80: what passes may have all until work finds no room
a take_work 10; a admits 30; a take 30; a admits 40; a take 40; a refuses 1; a stops 60
a give 10; a refuses 10; a give 40; a refuses 10; a give 10; a lets 60

80: no work overtakes a large record, unless only what is stuck goes
a take_work 40; a stops 60; a stops 10 still; a stops 60 stuck 5; a stops 10 still; a stops 60 stuck 40; a lets 10 still

80: a partition stops at half of the bytes for work
a take_work 30; a lets 5 held 30; a stops 10 held 30 still; a lets 10 still

80: a pipeline that is stuck stops at four fifths; alone one may have all
a lets 5; a take_work 50; a lets 5; a take_work 5; a stops 5; b lets 5; b take_work 5; b lets 5; b take_work 5
b stops 5; a close; b lets 50

80: work larger than its part passes when no other has work, beside what passes
a take 10; a lets 1000; a take_work 1000; a stops 0; a finish_work 1000; all used 1010; all work 0; a stops 0
a give 1000; a lets 60

10: a pipeline that keeps the budget full starves no other
a take 10; b admits 1000; b take 1000; b refuses 1; a refuses 1

100: a result that comes after the end changes no count
a take 30; a fetched 70; b take 20; a close; all used 20; all ahead 0
a give 30; a take 5; a fetched -70; a fetched 5; a close; all used 20; a used 0; b used 20; all ahead 0
"""


@pytest.mark.parametrize("play", PLAYS.strip().split("\n\n"), ids=lambda play: play.splitlines()[0])
def test_shares(play: str) -> None:
    """Each step has the answer that stands beside it."""
    head, *lines = play.splitlines()
    budget, steps = Budget(int(head.partition(":")[0])), "; ".join(lines).split("; ")
    shares = {who: Share(budget) for who in "ab" if any(step.startswith(f"{who} ") for step in steps)}
    for step in steps:
        who, verb, *rest = step.split()
        numbers = [int(each) for each in rest if each.lstrip("-").isdigit()]
        if verb in ("used", "work", "ahead", "peak"):
            assert [getattr(shares.get(who, budget), verb)] == numbers, step
        elif verb in ("admits", "refuses"):
            assert shares[who].admits(*numbers) is (verb == "admits"), step
        elif verb in ("lets", "stops"):
            held, stuck = (numbers[-1] if name in rest else 0 for name in ("held", "stuck"))
            if "still" not in rest:
                shares[who].begin_turn()
            assert shares[who].admits_work(numbers[0], held, stuck.__int__) is (verb == "lets"), step
        else:
            getattr(shares[who], verb)(*numbers)


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
        share.begin_turn()
        if action == "take":
            if share.admits(size):
                share.take(size)
                passing[which] += [] if closed[which] else [size]
        elif action == "take work":
            if share.admits_work(size, 0, lambda: 0):
                share.take_work(size)
                work[which] += [] if closed[which] else [size]
        elif action == "give":
            if passing[which]:
                share.give(passing[which].pop(0))
            elif work[which]:
                share.give_work(work[which].pop(0))
        elif action == "pass on" and work[which]:
            passing[which].append(work[which].pop(0))
            share.finish_work(passing[which][-1])
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


# --- who waits -------------------------------------------------------------------------------------------------------


def crowded() -> tuple[Share, Share]:
    """Two shares that fill a budget, of which the first one has just been refused some bytes."""
    budget = Budget(11)
    share, other = Share(budget), Share(budget)
    share.take(1)
    other.take(10)
    return share, other


async def woken(share: Share) -> bool:
    """Whether a wait for bytes that come free ends before its time."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await share.freed(30.0)
    return clock() - began_s < 30.0


@pytest.mark.parametrize("end", ["give", "close"])
@hurried
async def test_every_waiter_wakes(end: str) -> None:
    """Two pipelines that wait are both woken by one gift, and by a pipeline that ends."""
    share, other = crowded()
    shares = [other, Share(other.budget)]
    waiters = [asyncio.create_task(woken(each)) for each in shares]
    for each in shares:
        each.begin_turn()
    await asyncio.sleep(0)
    share.give(1) if end == "give" else share.close()
    assert await asyncio.gather(*waiters) == [True, True]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@hurried
async def test_share_misses_no_byte_between_its_turn_and_its_wait(turns: int) -> None:
    """Bytes that come free after a refusal, but before the wait begins, end the wait."""
    share, other = crowded()
    share.begin_turn()
    assert not share.admits(5)
    for _ in range(turns):
        await asyncio.sleep(0)
    other.give(5)
    other.begin_turn()
    assert not other.admits(6), "the other pipeline is refused in between, which must not take the news away"
    assert await woken(share)
    assert share.admits(5)


@hurried
async def test_share_is_not_woken_by_bytes_that_were_refused() -> None:
    """What came free before a turn was not enough, so it does not end the wait: a pipeline must not spin."""
    share, other = crowded()
    other.give(1)
    share.begin_turn()
    assert not share.admits(5)
    assert not await woken(share)


@hurried
async def test_fetch_waits_for_room() -> None:
    """What is fetched counts beside what is held, but for work, which may be stuck for hours."""
    budget = Budget(100)
    share, other, stuck = Share(budget), Share(budget), Share(Budget(100))
    stuck.take_work(80)
    stuck.fetched(40)
    share.take(30)
    share.fetched(30)
    for each in (Share(budget), share, stuck):
        await asyncio.wait_for(each.may_fetch(), 2.0)
    other.fetched(40)
    assert (budget.ahead, budget.used) == (70, 30)
    await asyncio.wait_for(Share(budget).may_fetch(), 2.0)  # an empty share
    waiting = asyncio.create_task(share.may_fetch())
    await asyncio.sleep(0)
    share.take(30)
    share.fetched(-30)  # admitted: as many bytes as before
    await asyncio.sleep(1)
    assert not waiting.done()
    other.fetched(-1)
    await asyncio.wait_for(waiting, 2.0)


@pytest.mark.parametrize(
    "let",
    [
        lambda share, _: share.give(10),
        lambda share, _: share.fetched(-40),
        lambda share, _: share.close(),
        lambda _, other: other.close(),
    ],
    ids=["give", "poll", "close", "close the other"],
)
@hurried
async def test_whatever_makes_room_lets_the_fetch_go(let: Callable[[Share, Share], None]) -> None:
    """Bytes that become durable, are admitted and gone, or belonged to a flow that has ended."""
    budget = Budget(100)
    share, other = Share(budget), Share(budget)
    for each, held, ahead in ((share, 10, 40), (other, 30, 20)):
        each.take(held)
        each.fetched(ahead)
    waiting = asyncio.create_task(share.may_fetch())
    await asyncio.sleep(0)
    assert not waiting.done()
    let(share, other)
    await asyncio.wait_for(waiting, 2.0)
