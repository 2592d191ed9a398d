"""The poll loop: what is read next, and what becomes of a poll that a rebalance has overtaken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.paused_partitions import PausedPartitions
from app.pipeline.poll_loop import Mode, PollLoop
from app.pipeline.runtime import monotonic
from app.pipeline.termination import Termination
from tests.app.pipeline.test_termination import Read

PARTITION = TopicPartition("raw", 0)


class Bench:
    """A loop with one lane; the flags are those of the parts that it asks."""

    def __init__(
        self,
        *,
        fresh: bool = False,
        may_read: bool = True,
        waits: bool = False,
        may_admit: bool = True,
        in_turn: bool = False,
        look_s: float = 1_000,
    ) -> None:
        self.offsets = SimpleNamespace(may_read=may_read, may_admit=may_admit)
        self.added: list[Any] = []
        self.unread: list[Any] = []
        self.read: list[bool] = []
        self.consumer = SimpleNamespace(
            poll=self._poll, unread=self.unread.append, position=lambda _: self.position, rebalancing=False
        )
        self.position: int | None = 9
        self.waiting: list[Lane] = []
        share = Share(Budget(100))
        lanes = Lanes(share, None)
        lanes.open(PARTITION, 0)
        self.loop = PollLoop(
            cast(Any, self.consumer),
            lanes,
            share,
            admission=cast(
                Any,
                SimpleNamespace(
                    waits=waits,
                    in_turn=in_turn,
                    add=self.added.append,
                    admit=lambda: None,
                    expire=self._expire,
                    holds=lambda lane: lane in self.waiting,
                ),
            ),
            delivery=cast(Any, SimpleNamespace(offsets=self.offsets, flush=lambda: None)),
            offset_reset=cast(Any, SimpleNamespace(fresh=fresh, find=self._find)),
            termination=Termination("p", lambda: None),
            changed=asyncio.Event(),
            look_s=look_s,
            clock=monotonic,
        )
        self.polled = asyncio.Event()
        self.error: Exception | None = None
        self.found: list[Exception] = []

    async def _find(self, error: Exception) -> None:
        self.found.append(error)

    async def _poll(self, *_: object) -> dict[TopicPartition, list[Read]]:
        await self.polled.wait()
        if self.error is not None:
            raise self.error
        return {PARTITION: [Read()]}

    def _expire(self, *, reading: bool) -> bool:
        self.read.append(reading)
        return False


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, Mode.READ),
        ({"may_admit": False}, Mode.READ),
        ({"waits": True}, Mode.READ_OTHERS),
        ({"waits": True, "in_turn": True}, Mode.GO_ON),
        ({"waits": True, "in_turn": True, "may_admit": False}, Mode.AWAIT_OFFSETS),
        ({"waits": True, "may_admit": False}, Mode.AWAIT_OFFSETS),
        ({"may_read": False, "may_admit": False}, Mode.AWAIT_OFFSETS),
        ({"fresh": True}, Mode.RENEW),
        ({"fresh": True, "may_read": False, "may_admit": False}, Mode.RENEW),
    ],
)
async def test_mode_of_a_turn(flags: dict[str, bool], mode: Mode) -> None:
    """Topics that are new come first, then what may be read; a flow that may not admit waits for its offsets."""
    assert Bench(**flags).loop.mode is mode


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, Mode.HOLD),
        ({"waits": True, "in_turn": True}, Mode.HOLD),
        ({"may_admit": False}, Mode.AWAIT_OFFSETS),
        ({"fresh": True}, Mode.RENEW),
    ],
)
async def test_mode_of_a_paused_turn(flags: dict[str, bool], mode: Mode) -> None:
    """A paused flow reads nothing, but finds out where it is."""
    loop = Bench(**flags).loop
    loop.held = True
    assert loop.mode is mode


async def test_nothing_is_read_again_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that waits for memory is not let to read when its turn comes, until the pause ends."""
    adjusted: list[bool] = []
    bench = Bench(may_admit=False)
    monkeypatch.setattr(PausedPartitions, "adjust", lambda _: adjusted.append(bench.loop.held))
    monkeypatch.setattr(bench.loop, "_await_offsets", lambda: asyncio.sleep(0))
    bench.offsets.may_read = False
    for held in (True, False):
        bench.loop.held = held
        await asyncio.wait_for(bench.loop.turn(), 10)
    assert adjusted == [False]


@pytest.mark.parametrize("overtaken", [False, True])
async def test_poll_that_a_rebalance_overtakes(overtaken: bool) -> None:  # noqa: FBT001
    """Records that were read before it is known from where on are read again; others are added at once."""
    bench = Bench()
    turn = asyncio.create_task(bench.loop.turn())
    await asyncio.sleep(0)
    bench.offsets.may_read = not overtaken
    bench.polled.set()
    await asyncio.wait_for(turn, 10)
    polled = [{PARTITION: [Read()]}]
    assert (bench.unread, bench.added) == ((polled, []) if overtaken else ([], polled))
    assert bench.read == [True]


@pytest.mark.parametrize("known", [False, True])
async def test_position_is_found_once_the_committed_offsets_are_known(known: bool) -> None:  # noqa: FBT001
    """They would bring back what was delivered of a log that is lost, if they came behind the new beginning."""
    bench = Bench(may_admit=known)
    bench.error = OffsetOutOfRangeError({PARTITION: 30})
    bench.polled.set()
    await asyncio.wait_for(bench.loop.turn(), 10)
    assert bench.found == ([bench.error] if known else [])


@pytest.mark.parametrize("paused", [0, 1])
async def test_time_of_messages_stands_still_while_a_partition_is_paused(
    paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were let go are to be read again before their message is given up."""
    monkeypatch.setattr(PausedPartitions, "__len__", lambda _: paused)
    bench = Bench()
    bench.polled.set()
    await asyncio.wait_for(bench.loop.turn(), 10)
    assert bench.read == [not paused]


async def test_nothing_is_admitted_after_the_flow_has_failed() -> None:
    """A record that passes would go by one that could not be written, and the commit with it."""
    bench = Bench()
    admitted: list[bool] = []
    bench.loop._admission.admit = lambda: admitted.append(True)  # type: ignore[method-assign]
    bench.polled.set()
    await bench.loop.turn()
    assert admitted == [True]
    error = ValueError("not written")
    bench.polled.clear()
    turn = asyncio.create_task(bench.loop.turn())
    await asyncio.sleep(0)
    bench.loop._termination.fail(error)
    bench.polled.set()
    with pytest.raises(ValueError, match="not written"):
        await turn
    assert admitted == [True]


@pytest.mark.parametrize(
    ("flags", "rebalancing", "position", "read_to"),
    [
        ({}, False, 9, 9),
        ({}, False, None, 0),
        ({}, True, 9, 5),
        ({"fresh": True}, False, 9, 5),
        ({"may_admit": False}, False, 9, 5),
        ({"may_read": False}, False, 9, 5),
    ],
)
def test_look_at_what_was_read_behind_the_last_record(
    flags: dict[str, bool],
    rebalancing: bool,  # noqa: FBT001
    position: int | None,
    read_to: int,
) -> None:
    """The position of the client counts, unless what was polled before it is forgotten, or it may be set back."""
    bench = Bench(**flags)
    (lane,) = bench.loop._lanes
    lane.read_to = 5
    bench.consumer.rebalancing, bench.position = rebalancing, position
    bench.loop.look()
    assert lane.read_to == read_to
    bench.position, bench.waiting = 20, [lane]
    bench.loop.look()
    assert lane.read_to == read_to  # a record of it waits


async def test_a_poll_tells_how_far_it_was_read() -> None:
    """The marks behind the records of a poll are committed with them; those alone when it is time to look."""
    bench = Bench(look_s=0)
    due: list[bool] = []
    bench.loop._delivery.due = lambda: due.append(True)  # type: ignore[method-assign]
    (lane,) = bench.loop._lanes
    bench.waiting = [lane]
    bench.polled.set()
    await asyncio.wait_for(bench.loop.turn(), 10)
    assert (lane.read_to, due) == (9, [True])
