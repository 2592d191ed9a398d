"""The dispatcher: what is written of a message that will not be whole, and that others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
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
    """Writes nothing, and remembers it."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.held: list[bool] = []
        self.sent = 0
        self.begun = asyncio.Event()

    def write(self, lane: Lane, item: Item) -> None:
        """Takes an item."""
        assert isinstance(item, Working)
        assert item.result is not None
        self.begun.set()
        self.values += [record.value for record in item.result]
        if isinstance(item, Letter):
            item.written = item.source.offset
        self.held.append(any(letter.written is None for letter in lane.blocking))

    def output_of(self, lane: Lane) -> Output:
        """That of all lanes."""
        return self

    def flush(self) -> None:
        """Sends what was written."""
        self.sent = len(self.values)


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


def event(count: int) -> Discarded:
    """A message of so many chunks that will not be whole."""
    return Discarded("expired", "u", tuple(Read(offset, value=b"%d" % offset) for offset in range(count)), "late")


async def test_letters_of_very_many_chunks_leave_others_their_turn() -> None:
    """The loop goes on between parts of them; all are written in order, and the commit waits for the last."""
    few, count = Bench(), 30_000
    few.dispatcher.give_up(event(3))
    assert (few.output.values, [*few.lane.items]) == ([b"0", b"1", b"2"], []), "what takes no time takes no turn"
    bench = Bench()
    bench.dispatcher.give_up(event(count))
    assert bench.output.values == [], "it has only begun"
    turns = 0
    while bench.lane.items:
        await asyncio.sleep(0)
        turns += 1
    assert bench.termination.error is None
    assert bench.output.values == [b"%d" % offset for offset in range(count)]
    parts = len(bench.output.held)
    assert turns >= parts - 1 >= 100
    assert bench.output.held == [True] * (parts - 1) + [False], "held back until the last is durable"
    assert bench.stats.dead_letters == count


async def test_letters_that_cannot_be_sent_end_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written in a task of their own, whose error nobody else would see."""
    bench = Bench()

    def refuse() -> None:
        raise IndexError("a defect")

    monkeypatch.setattr(bench.output, "flush", refuse)
    bench.dispatcher.give_up(event(30_000))
    async with asyncio.timeout(20):
        while bench.termination.error is None:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
    assert isinstance(bench.termination.error, DefectError)


async def test_letters_of_chunks_that_do_not_fit_are_chunks() -> None:
    """Each goes in as many records as it needs, and counts as one."""
    bench = Bench(500)
    bench.dispatcher.give_up(event(3))
    await asyncio.gather(*bench.lane._tasks)
    assert bench.termination.error is None
    assert len(bench.output.values) > 3
    assert bench.stats.dead_letters == 3


async def test_letters_that_are_given_up_with_their_lane() -> None:
    """A partition that is lost in the middle takes its letters with it: its next owner reads the chunks again."""
    bench = Bench()
    lane = bench.lane
    bench.dispatcher.give_up(event(5_000))
    await bench.output.begun.wait()
    bench.parts.lanes.discard([PARTITION])
    await asyncio.gather(*lane._tasks, return_exceptions=True)
    written = len(bench.output.values)
    bench.dispatcher.release(lane)
    assert len(bench.output.values) == written < 5_000


@pytest.mark.parametrize("written", [0, 1])
async def test_what_is_not_written_is_not_committed(written: int) -> None:
    """If a write raises, nothing from its record on is safe, though a part of it or a record behind it is durable."""
    bench = Bench()
    lane, output = bench.lane, bench.output
    tracker = lane.tracked(41)
    spans = []

    def write(lane: Lane, item: Item) -> None:
        if written:
            spans.append(tracker.span(item.source.offset))
            tracker.released = item.source.offset + 1
        raise MemoryError

    output.write = write  # type: ignore[method-assign]
    lane.items += [Working(Read(offset), result=(Record(b"k", b"v", (), 0),)) for offset in (41, 42)]
    bench.dispatcher.release(lane)
    assert isinstance(bench.termination.error, RecordError)
    # Nothing of the lane passes it, in the same turn neither: what is left waits behind it.
    assert [item.source.offset for item in lane.items] == [41, 42]
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
    lane = bench.lane
    lane.items.append(Working(Read(40)))  # the store takes its time for it
    for offset in (41, 42):
        bench.dispatcher.fail(lane, Read(offset), error, 0)
    assert (bench.termination.error, bench.stats.failed) == (None, {})
    lane.items[0] = Working(Read(40), result=(Record(b"k", b"v", (), 0),))
    bench.dispatcher.release(lane)
    assert bench.output.values == [b"v"]
    assert isinstance(bench.termination.error, RecordError)
    assert bench.termination.error.offset == 41
    assert sum(bench.stats.failed.values()) == (not isinstance(error, KeyError))
    assert caplog.text.count("KeyError") == isinstance(error, KeyError)


async def test_a_message_that_ends_the_flow_is_not_noted_as_delivered() -> None:
    """The next start would take its chunks for those of a message that has its letters, and pass it in silence."""
    assembler = assembling()
    bench = Bench(None, assembler)

    def write(lane: Lane, item: Item) -> None:
        lane.tracked(item.source.offset).released = item.source.offset + 1

    bench.output.write = write  # type: ignore[method-assign]
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
    bench = Bench()
    for offset in (41, 42, 43):
        stored_s = SHARED.monotonic() - LONGEST_HOLD_S - 1 if offset == 42 else None
        bench.lane.items.append(Working(Read(offset), result=(Record(b"k", b"%d" % offset, (), 0),), stored_s=stored_s))
    bench.dispatcher.release(bench.lane)
    assert bench.output.values == [b"41"]
    assert isinstance(bench.termination.error, PayloadAgedError)
    assert [item.source.offset for item in bench.lane.items] == [42, 43]


async def test_the_hold_of_letters_that_are_not_written_stays() -> None:
    """The chunks of a discarded message are read again if their letters cannot be written."""
    bench = Bench()
    lane, output = bench.lane, bench.output
    lane.tracked(0).released = 10

    def write(lane: Lane, item: Item) -> None:
        assert isinstance(item, Letter)
        item.written = 9
        raise MemoryError

    output.write = write  # type: ignore[method-assign]
    bench.dispatcher.give_up(event(3))
    assert bench.termination.error is not None
    assert lane.tracked(0).safe() <= 9, "the hold has not ended"


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
            written = [*bench.output.values]
        finally:
            release.set()
    assert (written, bench.stats.failed) == ([b"file:///etc/passwd"], {"reference-refused": 1})


class Short(MemoryStore):
    """A store whose `stat` says less than there is, whenever it is asked."""

    def stat(self, full_path: str) -> PayloadInfo:
        """See `Stat`."""
        return replace(super().stat(full_path), size=600)


def measured(store: MemoryStore) -> tuple[Chain, Read, Work]:
    """A reference without a size, to a payload that the store has measured with 600 bytes, and which has 700 now."""
    store.configure({"memory.name": type(store).__name__})
    chain = chain_of(["inflate"], store)
    record = Read(value=store.put("orders", "1", bytes(600)).encode(), headers=(("large-message", b"true"),))
    work = chain.go_on(begun(chain, record))
    store.put("orders", "1", bytes(700))
    return chain, record, work


async def test_a_payload_that_has_become_longer_is_measured_again() -> None:
    """It is delivered, and holds what it is large by then."""
    bench, (chain, record, work) = Bench(), measured(MemoryStore())
    held = held_bytes(record) + work.reserve_bytes
    with running_on(1) as runtime:
        bench.begin(chain, runtime)
        bench.dispatcher.enter(bench.lane, record, work, held)
        await asyncio.gather(*bench.lane._tasks)
    assert (bench.output.values, bench.stats.failed, bench.termination.error) == ([bytes(700)], {}, None)
    assert (bench.share.budget.peak, bench.share.work) == (held + 100, 0)


async def test_a_payload_that_a_store_measures_wrongly_is_not_asked_for_without_end() -> None:
    """It fails, as any that is longer than it may be."""
    bench, (chain, record, work) = Bench(), measured(Short())
    with running_on(1) as runtime:
        bench.begin(chain, runtime)
        bench.dispatcher.enter(bench.lane, record, work, held_bytes(record) + work.reserve_bytes)
        await asyncio.wait_for(asyncio.gather(*bench.lane._tasks), 10)
    assert bench.stats.failed == {"payload-too-large": 1}


async def test_a_size_that_nobody_waits_for_any_more() -> None:
    """If the partition is given up while the store is asked, its error is no surprise to the event loop."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

    async def measure(*_: object) -> None:
        raise ValueError("refused")

    bench = Bench()
    bench.dispatcher._retries = cast(Any, SimpleNamespace(apply=measure))
    assert bench.dispatcher.measured(bench.lane, Read(0), cast(Any, None)) is None
    while bench.lane._tasks:  # noqa: ASYNC110  # nothing tells
        await asyncio.sleep(0)
    bench.lane.measuring = None
    gc.collect()
    assert not unseen
