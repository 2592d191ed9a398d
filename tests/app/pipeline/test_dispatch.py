"""The dispatcher: what is written of a message that will not be whole, and that others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition

from app.kafka.troubles import Troubles
from app.pipeline.admission import Admission
from app.pipeline.chain import Chain
from app.pipeline.dispatch import Dispatcher, PayloadAgedError
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.lane import Item, Lane, Letter, Working, held_bytes
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.retries import Retries
from app.pipeline.runtime import Runtime
from app.pipeline.termination import DefectError, RecordError
from app.pipeline.work import Work
from stores.memory import MemoryStore
from stores.store import PayloadInfo
from tests.app.pipeline.chains import begun, chain_of, memory, settings_of
from tests.app.pipeline.outputs import LETTERS, parts_of
from tests.app.pipeline.runtimes import SHARED, running_on
from tests.app.pipeline.test_lane_assembler import assembling
from tests.app.pipeline.test_termination import Read
from transforms.chunk import Chunking
from transforms.chunked_message import Discarded
from transforms.errors import PayloadNotFoundError, ReferenceRefusedError
from transforms.record import Record
from transforms.retention import LONGEST_HOLD_S

PARTITION = TopicPartition("raw", 3)


class Output:
    """Writes nothing, and remembers it; `on_write` is called with each item."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.held: list[bool] = []
        self.begun = asyncio.Event()
        self.on_write: Callable[[Item], object] = lambda _: None
        self.flush: Callable[[], None] = lambda: None

    def write(self, lane: Lane, item: Item) -> None:
        """Takes an item."""
        self.on_write(item)
        if not isinstance(item, Working):
            lane.tracked(item.source.offset).released = item.source.offset + 1
            return
        assert item.result is not None
        self.begun.set()
        self.values += [record.value for record in item.result]
        if isinstance(item, Letter):
            item.written = item.source.offset
        self.held.append(any(letter.written is None for letter in lane.blocking))

    def output_of(self, lane: Lane) -> Output:
        """That of all lanes."""
        return self


class Bench:
    """A dispatcher with all that it needs, and one lane; `limit` is that of its dead letters, if it has a topic."""

    def __init__(self, limit: int | None = 1_000_000, assembler: LaneAssembler | None = None) -> None:
        letters = None if limit is None else replace(LETTERS, max_message_bytes=limit)
        self.parts = parts = parts_of(partitions=[3], letters=letters, assembler=assembler)
        (self.lane,) = parts.lanes
        self.stats, self.termination, self.share = parts.stats, parts.termination, parts.share
        self.output = Output()
        self.dispatcher = Dispatcher(
            parts,
            cast(Any, SimpleNamespace(watching=lambda *_: contextlib.nullcontext())),
            ErrorPolicy(parts, None, SHARED),
            cast(Any, self.output),
            clock=SHARED.monotonic,
        )

    def begin(self, chain: Chain, runtime: Runtime) -> None:
        """From now on the work of this chain is done, on its threads."""
        self.dispatcher._retries = Retries(
            chain, runtime, settings_of(["inflate"]), stats=self.stats, troubles=Troubles("p"), unstalled=lambda: None
        )

    def give_up(self, count: int) -> None:
        """Gives up a message of so many chunks that will not be whole."""
        chunks = tuple(Read(offset, value=b"%d" % offset) for offset in range(count))
        self.dispatcher.give_up(Discarded("expired", "u", chunks, "late"))

    @property
    def offsets(self) -> list[int]:
        """Of the items that are left in the lane."""
        return [item.source.offset for item in self.lane.items]


def done(offset: int, value: bytes = b"v", **more: Any) -> Working:
    """A record whose result may leave."""
    return Working(Read(offset), result=(Record(b"k", value, (), 0),), **more)


async def test_letters_of_very_many_chunks_leave_others_their_turn() -> None:
    """The loop goes on between parts of them; all are written in order, and the commit waits for the last."""
    few, bench, count = Bench(), Bench(), 30_000
    few.give_up(3)
    assert (few.output.values, few.offsets) == ([b"0", b"1", b"2"], []), "what takes no time takes no turn"
    bench.give_up(count)
    assert bench.output.values == [], "it has only begun"
    turns = 0
    while bench.lane.items:
        await asyncio.sleep(0)
        turns += 1
    assert bench.output.values == [b"%d" % offset for offset in range(count)]
    parts = len(bench.output.held)
    assert turns >= parts - 1 >= 100
    assert bench.output.held == [True] * (parts - 1) + [False], "held back until the last is durable"
    assert (bench.stats.dead_letters, bench.termination.error) == (count, None)


async def test_letters_that_cannot_be_sent_end_the_flow() -> None:
    """They are written in a task of their own, whose error nobody else would see."""
    bench = Bench()

    def refuse() -> None:
        raise IndexError("a defect")

    bench.output.flush = refuse
    bench.give_up(30_000)
    async with asyncio.timeout(20):
        while bench.termination.error is None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
    assert isinstance(bench.termination.error, DefectError)


async def test_letters_of_chunks_that_do_not_fit_are_chunks() -> None:
    """Each goes in as many records as it needs, and counts as one."""
    bench = Bench(500)
    bench.give_up(3)
    await asyncio.gather(*bench.lane._tasks)
    assert len(bench.output.values) > 3
    assert (bench.stats.dead_letters, bench.termination.error) == (3, None)


async def test_letters_that_are_given_up_with_their_lane() -> None:
    """A partition that is lost in the middle takes its letters with it: its next owner reads the chunks again."""
    bench = Bench()
    bench.give_up(5_000)
    await bench.output.begun.wait()
    bench.parts.lanes.discard([PARTITION])
    await asyncio.gather(*bench.lane._tasks, return_exceptions=True)
    written = len(bench.output.values)
    bench.dispatcher.release(bench.lane)
    assert len(bench.output.values) == written < 5_000


@pytest.mark.parametrize("written", [0, 1])
async def test_what_is_not_written_is_not_committed(written: int) -> None:
    """If a write raises, nothing from its record on is safe, though a part of it or a record behind it is durable."""
    bench, spans = Bench(), []
    tracker = bench.lane.tracked(41)

    def write(item: Item) -> None:
        if written:
            spans.append(tracker.span(item.source.offset))
            tracker.released = item.source.offset + 1
        raise MemoryError

    bench.output.on_write = write
    bench.lane.items += [done(41), done(42)]
    bench.dispatcher.release(bench.lane)
    assert isinstance(bench.termination.error, RecordError)
    assert bench.offsets == [41, 42], "nothing of the lane passes it, in the same turn neither"
    spans.append(tracker.span(43))
    tracker.released = 44
    for span in spans:
        span.durable = True
    assert tracker.safe() == 41


@pytest.mark.parametrize("error", [PayloadNotFoundError("memory://default/raw/x"), KeyError("a defect")])
async def test_a_record_that_ends_the_flow_waits_for_those_before_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """They are written first, and the failed one is counted then; those behind it are neither written nor counted.

    A defect of a stage, or of a store, waits as well, and has one traceback.
    """
    bench = Bench(None)
    bench.lane.items.append(Working(Read(40)))  # the store takes its time for it
    for offset in (41, 42):
        bench.dispatcher.fail(bench.lane, Read(offset), error, 0)
    assert (bench.termination.error, bench.stats.failed) == (None, {})
    bench.lane.items[0] = done(40)
    bench.dispatcher.release(bench.lane)
    assert bench.output.values == [b"v"]
    assert isinstance(bench.termination.error, RecordError)
    assert bench.termination.error.offset == 41
    assert sum(bench.stats.failed.values()) == (not isinstance(error, KeyError))
    assert caplog.text.count("KeyError") == isinstance(error, KeyError)


async def test_a_message_that_ends_the_flow_is_not_noted_as_delivered() -> None:
    """The next start would take its chunks for those of a message that has its letters, and pass it in silence."""
    assembler = assembling()
    bench = Bench(None, assembler)
    admission = Admission(bench.parts, cast(Any, None), assembler, cast(Any, bench.output), bench.dispatcher)
    first, *_, last = Chunking(1_000).split(Record(b"k", b"x" * 2_500, (), 5), "u")
    chunks = [
        Read(offset, key=each.key, value=each.value, headers=tuple(each.headers), timestamp=5)
        for offset, each in ((41, first), (42, last))
    ]
    for chunk in chunks:
        admission._assemble(bench.lane, chunk, 0)
    assert isinstance(bench.termination.error, RecordError)
    commit = bench.lane.to_commit()
    assert commit is not None
    offset, metadata = commit
    assert offset == 41
    restarted = assembling()
    restarted.resume(PARTITION, metadata, "p")
    assert [len(restarted.add(PARTITION, chunk)[1]) for chunk in chunks] == [0, 1]


async def test_what_precedes_a_payload_that_has_aged_is_written() -> None:
    """It may be why the payload has waited: it would be tried for as long again after each restart, for ever."""
    bench, now_s = Bench(), SHARED.monotonic()
    young, old = now_s - LONGEST_HOLD_S + 60, now_s - LONGEST_HOLD_S - 1
    bench.lane.items += [done(41, b"41", stored_s=young), done(42, stored_s=old), done(43)]
    sent: list[int] = []
    bench.output.flush = lambda: sent.append(len(bench.output.values))
    bench.dispatcher.release(bench.lane)
    assert (bench.output.values, sent, bench.offsets) == ([b"41"], [1], [42, 43])
    assert isinstance(bench.termination.error, PayloadAgedError)


async def test_the_hold_of_letters_that_are_not_written_stays() -> None:
    """The chunks of a discarded message are read again if their letters cannot be written."""
    bench = Bench()
    tracker = bench.lane.tracked(0)
    tracker.released = 10

    def write(item: Item) -> None:
        assert isinstance(item, Letter)
        item.written = 9
        raise MemoryError

    bench.output.on_write = write
    bench.give_up(3)
    assert bench.termination.error is not None
    assert tracker.safe() <= 9, "the hold has not ended"


async def test_a_reference_that_is_refused_waits_for_no_store() -> None:
    """Its letter is written at once, while every thread that may ask the store hangs."""
    bench, chain, release = Bench(), chain_of(["inflate"], memory()), threading.Event()
    record = Read(value=b"file:///etc/passwd", headers=(("large-message", b"true"),))
    with running_on(1) as runtime:
        hanging = runtime.threads.call(release.wait, 30)
        try:
            bench.begin(chain, runtime)
            with pytest.raises(ReferenceRefusedError) as refused:
                chain.begin(record)
            bench.dispatcher.fail(bench.lane, record, refused.value, held_bytes(record))
            assert not hanging.done()
            assert bench.output.values == [b"file:///etc/passwd"]
        finally:
            release.set()
    assert bench.stats.failed == {"reference-refused": 1}


class Short(MemoryStore):
    """A store whose `stat` says less than there is, whenever it is asked."""

    def stat(self, full_path: str) -> PayloadInfo:
        """See `Stat`."""
        return replace(super().stat(full_path), size=600)


async def restored(bench: Bench, store: MemoryStore) -> int:
    """Restores a payload of 700 bytes that the store has measured with 600; what was held for it before."""
    store.configure({"memory.name": type(store).__name__})
    chain = chain_of(["inflate"], store)
    record = Read(value=store.put("orders", "1", bytes(600)).encode(), headers=(("large-message", b"true"),))
    work: Work = chain.go_on(begun(chain, record))
    store.put("orders", "1", bytes(700))
    held = held_bytes(record) + work.reserve_bytes
    with running_on(1) as runtime:
        bench.begin(chain, runtime)
        bench.dispatcher.enter(bench.lane, record, work, held)
        await asyncio.wait_for(asyncio.gather(*bench.lane._tasks), 10)
    return held


async def test_a_payload_that_has_become_longer_is_measured_again() -> None:
    """It is delivered, and holds what it is large by then; a store that measures wrongly is not asked without end."""
    bench, wrong = Bench(), Bench()
    held = await restored(bench, MemoryStore())
    assert (bench.output.values, bench.stats.failed, bench.termination.error) == ([bytes(700)], {}, None)
    assert (bench.share.budget.peak, bench.share.work) == (held + 100, 0)
    await restored(wrong, Short())
    assert wrong.stats.failed == {"payload-too-large": 1}


async def test_a_size_that_nobody_waits_for_any_more() -> None:
    """If the partition is given up while the store is asked, its error is no surprise to the event loop."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

    async def measure(*_: object) -> None:
        raise ValueError("refused")

    bench = Bench()
    bench.dispatcher._retries = cast(Any, SimpleNamespace(apply=measure))
    freed = bench.share.budget.next_freed
    assert bench.dispatcher.measured(bench.lane, Read(0), cast(Any, None)) is None
    while bench.lane._tasks:  # noqa: ASYNC110  # nothing tells
        await asyncio.sleep(0)
    assert freed.is_set(), "who waits for room is woken, and asks again"
    bench.lane.measuring = None
    gc.collect()
    assert not unseen
