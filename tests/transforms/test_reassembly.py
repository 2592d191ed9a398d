"""Reassembly: any interleaving gives each message once, and any fault has its documented outcome."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.logged import Logged
from tests.vectors.chunks import ReadCase, read_cases, split_cases
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, Chunking, is_chunk
from transforms.chunked_message import Assembled, ChunkMessageId, Counts, Discarded, Limits
from transforms.commit_metadata import note
from transforms.message import ASIDE_BYTES, LEAST_CHUNK_BYTES, Message
from transforms.read_range import Beginnings, ReadRange
from transforms.reassembly import Event, Reassembly
from transforms.record import Record

UNLIMITED = Limits()


def logged(records: Iterable[Record], start: int = 0) -> list[Logged]:
    """Records as they stand in a partition."""
    return [Logged(r.key, r.value, r.headers, r.timestamp, offset) for offset, r in enumerate(records, start)]


def pieces(uuid: str, values: Sequence[bytes], *, key: bytes | None = b"k") -> list[Record]:
    """The chunks of a message, one for each of `values`, put together by hand."""
    whole = b"".join(values)
    return [Record(key, value, Chunk(uuid, i, len(values), len(whole)).headers(), 7) for i, value in enumerate(values)]


def letters(uuid: str, text: str) -> list[Record]:
    """A message at one byte a chunk."""
    return pieces(uuid, [letter.encode() for letter in text])


def split(record: Record, count: int, uuid: str) -> list[Record]:
    """The chunks of a record, checksum and all: `count` of them, or fewer where its headers are large."""
    size = len(record.value or b"")
    widest = (*record.headers, *Chunk(uuid, 9, 9, size, "0" * 64).headers())
    limit = batch_of_one_bytes(Record(record.key, bytes(-(-size // count)), widest))
    return list(Chunking(limit).split(record, uuid))


class Reader:
    """Reads a log as a client does: what did not fit into memory is read again, as soon as it has ended."""

    def __init__(
        self, limits: Limits, log: Sequence[Logged], start: int = 0, *, rereads: bool = True, lookback: int = 10_000
    ) -> None:
        self.log, self.position = log, start
        self.machine = Reassembly(limits, rereads=rereads, lookback=lookback)
        self.machine.begin(0, start)
        self.ranges: list[tuple[int, int]] = []

    def read(self, end: int | None = None) -> list[Assembled | Discarded]:
        """Reads up to an offset, or to the end."""
        found: list[Assembled | Discarded] = []
        for record in self.log[self.position : end]:
            self.position = record.offset + 1
            if is_chunk(record.headers):
                found += self.ended(self.machine.receive(0, record))
        return found

    def ended(self, events: Iterable[Event]) -> list[Assembled | Discarded]:
        """What has ended, once all ranges were read."""
        found: list[Assembled | Discarded] = []
        for event in events:
            if not isinstance(event, ReadRange):
                found.append(event)
                continue
            over = False
            while not over:
                self.ranges.append((event.start, event.end))
                for record in self.log[event.start : event.end]:
                    event.take(record)
                over = event.finish(0)
            outcome = self.machine.resolve(event)
            found += [] if outcome is None else [outcome]
        return found


def feed(machine: Reassembly, log: Iterable[Logged], partition: int = 0) -> list[Assembled | Discarded]:
    """All that a partition's chunks end, where nothing can be read again."""
    events = [event for record in log for event in machine.receive(partition, record)]
    return [event for event in events if not isinstance(event, ReadRange)]


def values(events: Iterable[Event]) -> list[bytes | None]:
    """The values of whole messages, in order."""
    return [event.record.value for event in events if isinstance(event, Assembled)]


def reasons(events: Iterable[Event]) -> list[str]:
    """What became of messages: the reason, with "late" before it if it is one more chunk; the value of a whole one."""
    return [
        (each.record.value or b"").decode()
        if isinstance(each, Assembled)
        else ("late " if isinstance(each, Discarded) and each.late else "") + str(each.reason)
        for each in events
    ]


def settled(machine: Reassembly) -> None:
    """Nothing is held any more."""
    assert (machine.pending, machine.pending_bytes) == (0, 0)
    assert machine.tick(10**9) == []
    assert machine.safe_offset(0, 10**9) == 10**9


# --- the document ---------------------------------------------------------------------------------------------------


def test_add_the_document() -> None:
    """The document's figure: "abc" and "de", interleaved, are given as each is whole, and the context goes."""
    abc, de = letters("uuid1", "abc"), letters("uuid2", "de")
    log = logged([abc[0], abc[1], de[0], abc[2], de[1]])
    machine = Reassembly(UNLIMITED)
    assert [reasons(machine.receive(0, record)) for record in log] == [[], [], [], ["abc"], ["de"]]
    settled(machine)
    assert machine.counts == Counts(assembled=2)


def test_add_gives_the_record() -> None:
    """Key, value, timestamp, and the first chunk's own headers come back; the id has both offsets."""
    whole = Record(None, bytes(range(256)) * 20, (("trace", b"1"), ("trace", None), ("big", bytes(900))), 123)
    log = logged(Chunking(1900).split(whole, "u"), 40)
    assert len({len(record.headers) for record in log}) == 2
    (event,) = feed(Reassembly(UNLIMITED), log)
    assert event == Assembled(whole, ChunkMessageId(40, 39 + len(log)))


def test_add_partitions_apart() -> None:
    """The same uuid in two partitions is two messages."""
    machine = Reassembly(UNLIMITED)
    first, second = logged(letters("u", "ab"))
    assert machine.receive(0, first) == machine.receive(1, first) == []
    assert reasons(machine.receive(1, second)) == reasons(machine.receive(0, second)) == ["ab"]


# --- one fault each -------------------------------------------------------------------------------------------------

ABC = letters("u", "abc")
OTHER = Chunk("u", 1, 3, 3)


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        ([ABC[1], ABC[2]], ["missing-first", "late missing-first"]),
        ([ABC[2]], ["missing-first"]),
        ([ABC[0], ABC[2]], ["out-of-order"]),
        ([ABC[0], ABC[2], ABC[1], ABC[2]], ["out-of-order", "late out-of-order", "late out-of-order"]),
        ([ABC[0], ABC[2], *ABC], ["out-of-order", "abc"]),
        ([ABC[1], *ABC], ["missing-first", "abc"]),
        ([ABC[0], ABC[0], ABC[1], ABC[0], ABC[1], ABC[2]], ["abc"]),
        ([*ABC, ABC[2]], ["abc"]),
        ([*ABC, *ABC], ["abc"]),
        ([*ABC, ABC[0]], ["abc"]),
        ([*ABC, *letters("u", "abcd")], ["abc", "abcd"]),
        ([*ABC, letters("u", "abcd")[1]], ["abc", "missing-first"]),
        ([ABC[0], replace(ABC[1], headers=Chunk("u", 1, 2, 3).headers())], ["contradictory"]),
        ([ABC[0], replace(ABC[1], headers=Chunk("u", 1, 3, 4).headers())], ["contradictory"]),
        ([ABC[0], replace(ABC[1], headers=Chunk("u", 1, 3, 3, "0" * 64).headers())], ["contradictory"]),
        ([ABC[0], replace(ABC[1], key=None), ABC[2]], ["contradictory", "late contradictory"]),
        ([ABC[0], ABC[1], replace(ABC[1], value=b"x")], ["contradictory"]),
        ([ABC[0], replace(ABC[0], value=b"x")], ["contradictory"]),
        ([replace(r, headers=Chunk("u", i, 3, 3, "0" * 64).headers()) for i, r in enumerate(ABC)], ["corrupt"]),
        ([replace(r, headers=Chunk("u", i, 3, 4).headers()) for i, r in enumerate(ABC)], ["corrupt"]),
        ([replace(r, value=b"xy", headers=Chunk("u", i, 3, 4).headers()) for i, r in enumerate(ABC)], None),
        ([ABC[0], replace(ABC[1], value=None), ABC[2]], ["malformed", "out-of-order"]),
    ],
)
def test_add_fault(log: list[Record], outcome: list[str] | None) -> None:
    """Each fault has its outcome, each chunk is given back once or belongs to a message, and nothing stays."""
    machine = Reassembly(UNLIMITED)
    entries = logged(log)
    events = feed(machine, entries)
    assert reasons(events) == (["contradictory", "late contradictory"] if outcome is None else outcome)
    settled(machine)
    given = [record for event in events if isinstance(event, Discarded) for record in event.records]
    whole = sum(
        Chunk.parse(ABC[0])[0].count if len(e.record.value or b"") == 3 else 4
        for e in events
        if isinstance(e, Assembled)
    )
    assert len(given) + whole + machine.counts.duplicates == len(entries)
    assert all(record in entries for record in given)
    counts = machine.counts
    assert counts.late == sum(reason.startswith("late") for reason in reasons(events))
    assert counts.assembled + counts.late + sum(counts.discarded.values()) == len(events)


def test_discarded_says_what() -> None:
    """A message that is given up has its uuid, all its chunks as they came, and what was found."""
    log = logged([ABC[0], ABC[2]], 5)
    (event,) = feed(Reassembly(UNLIMITED), log)
    assert event == Discarded("out-of-order", "u", tuple(log), "chunk 2 arrived, expected 1")


def event_of(offset: int, event: Assembled | Discarded) -> list[object]:
    """An event as the vectors write it."""
    if isinstance(event, Discarded):
        return [offset, event.reason + (", late" if event.late else "")]
    return [offset, "whole", (event.record.value or b"").decode(), [event.id.first, event.id.last]]


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: str(case.name))
def test_read_vector(case: ReadCase) -> None:
    """What is said of a partition's chunks is what the vector says, at the same offsets."""
    machine = Reassembly(UNLIMITED)
    events = [event_of(r.offset, event) for r in logged(case.log) for event in feed(machine, [r])]
    assert events == case.events


def test_vectors_of_writers_are_read() -> None:
    """The chunks of each vector for writers are its record again."""
    for case in split_cases():
        if case.chunks is not None:
            (event,) = feed(Reassembly(UNLIMITED), logged(case.chunks))
            assert isinstance(event, Assembled)
            assert event.record == case.record


# --- limits ---------------------------------------------------------------------------------------------------------


def test_oversized_by_what_is_said() -> None:
    """The largest numbers that a chunk can say are refused at once, and nothing is kept or allocated for them."""
    most = 2**31 - 1
    machine = Reassembly(Limits(message_bytes=most, pending_bytes=1_000_000))
    tracemalloc.start()
    try:
        events = feed(machine, logged([Record(b"k", b"x", Chunk("u", i, most, most).headers()) for i in range(3)]))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reasons(events) == ["oversized", "late oversized", "late oversized"]
    settled(machine)


@pytest.mark.parametrize(("size", "outcome"), [(9, []), (10, []), (11, ["oversized"])])
def test_oversized_at_the_limit(size: int, outcome: list[str]) -> None:
    """A message of just `message_bytes` is taken."""
    first = Record(b"k", b"x", Chunk("u", 0, 2, size).headers())
    assert reasons(feed(Reassembly(Limits(message_bytes=10)), logged([first]))) == outcome


def test_oversized_by_its_headers() -> None:
    """A message whose keys and headers alone are more than may be pending is given up, and no other one's fault."""
    large = tuple(("h", bytes(900)) for _ in range(10))
    log = logged(Record(b"k", b"x", (*large, *Chunk("u", i, 50, 50).headers())) for i in range(50))
    machine = Reassembly(Limits(pending_bytes=100_000))
    peak, events = 0, []
    for record in log:
        events += machine.receive(0, record)
        peak = max(peak, machine.pending_bytes)
        assert machine.pending_bytes <= 100_000
    assert peak > 80_000
    assert reasons(events) == ["oversized"] + ["late oversized"] * (len(events) - 1)
    assert sum(len(e.records) for e in events if isinstance(e, Discarded)) == 50
    settled(machine)


def test_pending_bytes_are_what_python_holds() -> None:
    """Ten thousand empty headers count for what they take, not for their bytes."""
    machine = Reassembly(UNLIMITED)
    tracemalloc.start()
    try:
        own = tuple((str(i), b"%d" % i) for i in range(10_000))
        (record,) = logged([Record(b"k", b"x", (*own, *Chunk("u", 0, 2, 2).headers()))])
        machine.receive(0, record)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 * held < machine.pending_bytes < 2 * held


def test_evicted_by_number() -> None:
    """The message that began first goes where there are too many, of whatever partition."""
    machine = Reassembly(Limits(messages=2))
    (one,), (two,), (three,) = (logged([letters(uuid, "ab")[0]], i) for i, uuid in enumerate("xyz"))
    assert machine.receive("a", one) == machine.receive("b", two) == []
    (event,) = machine.receive("c", three)
    assert isinstance(event, Discarded)
    assert (event.reason, event.uuid, event.records) == ("evicted", "x", (one,))
    assert machine.pending == 2
    assert reasons(machine.receive("a", logged([letters("x", "ab")[1]], 9)[0])) == ["late evicted"]


def test_evicted_by_bytes() -> None:
    """As many go as there must, the oldest first, and never the one whose chunk it is."""
    machine = Reassembly(Limits(pending_bytes=12_000))
    values = {"x": 3_000, "y": 1_000, "z": 6_000}
    log = logged(pieces(uuid, [bytes(size), b"."])[0] for uuid, size in values.items())
    assert reasons(feed(machine, log)) == ["evicted"]
    again = logged([pieces("y", [bytes(1_000), b"."])[1], pieces("z", [bytes(6_000), b"."])[1]], 3)
    assert [e.id for e in feed(machine, again) if isinstance(e, Assembled)] == [
        ChunkMessageId(1, 3),
        ChunkMessageId(2, 4),
    ]
    settled(machine)


def test_evicted_is_not_the_one_that_comes() -> None:
    """The oldest message stays where it is its own chunk that makes too much; the next one goes."""
    machine = Reassembly(Limits(pending_bytes=10_000))
    old, new = pieces("old", [bytes(3_000), bytes(3_000)]), pieces("new", [b"x", b"y"])
    events = feed(machine, logged([old[0], new[0], old[1]]))
    assert [getattr(event, "uuid", "whole") for event in events] == ["whole"]
    machine = Reassembly(Limits(pending_bytes=9_000))
    events = feed(machine, logged([old[0], new[0], old[1]]))
    assert [getattr(event, "uuid", "whole") for event in events] == ["new", "whole"]


@pytest.mark.parametrize(
    ("timed", "ends"),
    [
        # each message by itself, at the limit and not before; one that trickles in expires none the later
        ([(0, "u0"), (1, "v0"), (50, "u1"), (99, "")], []),
        ([(0, "u0"), (1, "v0"), (50, "u1"), (100, "")], ["u"]),
        ([(0, "u0"), (1, "v0"), (50, "u1"), (101, "")], ["u", "v"]),
        # the first chunk once more: the message has its whole time again, and is behind those that began before
        ([(0, "u0"), (10, "u1"), (50, "v0"), (90, "u0"), (150, "")], ["v"]),
        ([(0, "u0"), (50, "v0"), (90, "u0"), (190, "")], ["v", "u"]),
        # after ten times the time, the attempt that begins is a message of its own
        ([(now, "u0") for now in range(0, 1_000, 50)], []),
        ([(now, "u0") for now in range(0, 1_001, 50)], ["u"]),
        ([*((now, "u0") for now in range(0, 1_001, 50)), (1_099, "")], ["u"]),
        ([*((now, "u0") for now in range(0, 1_001, 50)), (1_100, "")], ["u", "u"]),
        ([(0, "u0"), (100, "u1")], ["u", "late u"]),
    ],
)
def test_expire(timed: list[tuple[int, str]], ends: list[str]) -> None:
    """Messages of three chunks that wait for their last ones, for 100 ms."""
    machine = Reassembly(Limits(expire_ms=100))
    found: list[Event] = []
    now = 0
    for offset, (at, what) in enumerate(timed):
        found += machine.tick(at - now)
        now = at
        if what:
            found += machine.receive(0, logged([letters(what[0], "abc")[int(what[1])]], offset)[0])
    assert {each.reason for each in found if not isinstance(each, Assembled)} <= {"expired"}
    assert [("late " if "late" in each else "") for each in reasons(found)] == [
        "late " if "late" in each else "" for each in ends
    ]
    assert [each.uuid for each in found if not isinstance(each, Assembled)] == [each[-1] for each in ends]


def test_time_is_counted_by_partition() -> None:
    """What is not read does not expire; 0 is never; and the time since the last tick counts for a chunk that comes."""
    machine = Reassembly(Limits(expire_ms=100))
    for partition, ahead_ms in ((0, 0), (1, 0), (2, 60)):
        machine.receive(partition, logged(ABC[:1])[0], ahead_ms)
    expired = [each for each in machine.tick(100, [0, 2, 3]) if isinstance(each, Discarded)]
    assert [(each.reason, each.detail) for each in expired] == [("expired", "1 of 3 chunks arrived in 100 ms")]
    assert (machine.pending, machine.waits) == (2, True)
    assert len(machine.tick(60, [2])) == 1
    assert len(machine.tick(100)) == 1
    assert machine.waits is False
    never = Reassembly(Limits(expire_ms=0))
    feed(never, logged(ABC[:1]))
    assert (never.tick(10**15), never.pending, never.waits) == ([], 1, False)


@pytest.mark.parametrize("name", ["messages", "pending_bytes", "message_bytes"])
def test_limits_refused(name: str) -> None:
    """Limits within which nothing could be pending are a mistake."""
    given: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        replace(UNLIMITED, **given)


def test_memory_does_not_grow() -> None:
    """After five thousand messages of every end, no more is held than after a thousand."""

    def churn(machine: Reassembly, start: int, many: int) -> None:
        offset = start
        for i in range(many):
            a, b, c = letters(f"{start + i}", "abc")
            log = ([a, b, c], [a, c], [b], [a], [a, b, b, c, c])[i % 5]
            for record in logged(log, offset):
                machine.receive(0, record)
            offset += 5
            machine.tick(5)
            machine.safe_offset(0, offset)

    machine = Reassembly(Limits(messages=10, expire_ms=30))
    tracemalloc.start()
    try:
        churn(machine, 0, 1_000)
        before = tracemalloc.get_traced_memory()[0]
        churn(machine, 1_000_000, 4_000)
        assert tracemalloc.get_traced_memory()[0] < before * 1.3
    finally:
        tracemalloc.stop()
    machine.tick(10**9)
    settled(machine)


def test_add_is_linear() -> None:
    """Forty thousand chunks of one message take about four times as long as a quarter of them."""

    def seconds(count: int) -> float:
        log = logged(pieces("u", [bytes(200)] * count))
        machine = Reassembly(Limits(pending_bytes=10**9))
        began = time.process_time()
        (event,) = feed(machine, log)
        assert isinstance(event, Assembled)
        return time.process_time() - began

    few = min(seconds(10_000) for _ in range(2))
    assert seconds(40_000) < 12 * few


# --- the safe offset ------------------------------------------------------------------------------------------------


def test_safe_offset() -> None:
    """A commit waits for the first chunk of what is not whole, and of what is whole and not delivered."""
    abc, de = letters("uuid1", "abc"), letters("uuid2", "de")
    log = logged([abc[0], de[0], abc[1], abc[2], de[1]], 10)
    machine = Reassembly(UNLIMITED)
    assert machine.safe_offset(0, 10) == 10
    feed(machine, log[:4])
    assert [machine.safe_offset(0, position) for position in (9, 10, 13)] == [9, 10, 10]  # abc, at 13, is on its way
    assert machine.safe_offset(0, 14) == 11
    feed(machine, log[4:])
    assert [machine.safe_offset(0, position) for position in (14, 15, 99)] == [11, 15, 99]
    assert machine.safe_offset("another", 5) == 5


def test_clear() -> None:
    """What is known of a revoked partition goes; what is known of the others stays."""
    machine = Reassembly(UNLIMITED)
    first, second = logged(letters("u", "ab"))
    for partition in (0, 1):
        machine.resume(partition, note(0, 1, ()))
        machine.receive(partition, first)
    held = machine.pending_bytes
    machine.clear(0)
    machine.clear("unknown")
    assert (machine.pending, machine.pending_bytes) == (1, held // 2)
    assert [machine.commit(partition, 0)[1] for partition in (0, 1)] == [note(0, 0, ()), note(0, 1, ())]
    assert reasons(machine.receive(0, second)) == ["missing-first"]
    assert reasons(machine.receive(1, second)) == ["ab"]


def test_resume() -> None:
    """Below what was noted, nothing is given again, ordinary record, message or fault; above it, all is."""
    abc, de, gone = letters("uuid1", "abc"), letters("uuid2", "de"), letters("uuid3", "xy")
    log = logged([abc[0], de[0], gone[1], de[1], abc[1], abc[2]], 10)
    machine = Reassembly(UNLIMITED)
    assert machine.resume(0, "of another application") == 0
    assert machine.resume(0, note(10, 14, ())) == 14
    assert [machine.commit(0, offset, [10])[1] for offset in (11, 20)] == [note(10, 14, ()), note(10, 20, ())]
    assert reasons(feed(machine, log)) == ["abc"]
    assert machine.counts.discarded == {}


def test_resume_says_what_is_evicted() -> None:
    """What has to go during a replay is given back: it may be what was not delivered before."""
    machine = Reassembly(Limits(messages=1))
    machine.resume(0, note(0, 100, ()))
    log = logged([ABC[0], letters("v", "xy")[0], ABC[1]])
    assert reasons(feed(machine, log)) == ["evicted", "late evicted"]


# --- the id ---------------------------------------------------------------------------------------------------------


def test_id() -> None:
    """It is printed, read, and ordered by the last chunk, as messages are delivered."""
    identifier = ChunkMessageId(10, 13)
    assert str(identifier) == "10-13"
    assert ChunkMessageId.parse("10-13") == identifier
    ids = [ChunkMessageId(1, 9), ChunkMessageId(2, 5), ChunkMessageId(0, 9), ChunkMessageId(3, 3)]
    assert list(map(str, sorted(ids))) == ["3-3", "2-5", "0-9", "1-9"]
    assert ChunkMessageId(1, 9) >= ChunkMessageId(0, 9) > ChunkMessageId(2, 5)
    assert not identifier < ChunkMessageId(10, 13)


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1-2", "2-1", " 1-2", "1-2\n", "1--2", "\u0661-2", "1" * 20 + "-" + "1" * 21]
)
def test_id_malformed(text: str) -> None:
    """What is not two offsets, the first one not above the last, is a ValueError."""
    with pytest.raises(ValueError, match="offset"):
        ChunkMessageId.parse(text)


# --- properties -----------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[str, Record], list[Logged]]:
    """Several messages, and ordinary records, interleaved in one partition."""
    wholes: dict[str, Record] = {}
    queues: list[list[Record]] = []
    for i in range(draw(st.integers(1, 6))):
        key = draw(st.none() | st.binary(max_size=3))
        own = draw(st.sampled_from(((), (("h", b"1"), ("h", None)), (("large", bytes(150)),))))
        wholes[str(i)] = Record(key, bytes([i]) * draw(st.integers(1, 60)), own, i)
        queues.append(split(wholes[str(i)], draw(st.integers(1, 8)), str(i)))
    queues.append([Record(b"o", b"%d" % i) for i in range(draw(st.integers(0, 6)))])
    order = random.Random(draw(st.integers(0, 2**32)))
    turns = [i for i, queue in enumerate(queues) for _ in queue]
    order.shuffle(turns)
    return wholes, logged(queues[turn].pop(0) for turn in turns)


@given(logs())
def test_assemble_is_the_inverse_of_split(found: tuple[dict[str, Record], list[Logged]]) -> None:
    """Any interleaving that keeps each message's order gives each message, once; the safe offset holds throughout."""
    wholes, log = found
    machine = Reassembly(UNLIMITED)
    firsts: dict[str, int] = {}
    given_back: list[Record] = []
    lowest = 0
    for record in log:
        if is_chunk(record.headers):
            firsts.setdefault(Chunk.parse(record)[0].uuid, record.offset)
            for event in machine.receive(0, record):
                assert isinstance(event, Assembled)
                assert event.id == ChunkMessageId(firsts[str(event.record.timestamp)], record.offset)
                assert machine.safe_offset(0, record.offset) <= event.id.first
                given_back.append(event.record)
                del firsts[str(event.record.timestamp)]
        safe = machine.safe_offset(0, record.offset + 1)
        assert safe == min([record.offset + 1, *firsts.values()])
        assert safe >= lowest
        lowest = safe
    assert sorted(given_back, key=lambda r: r.timestamp) == list(wholes.values())
    assert machine.counts == Counts(assembled=len(wholes))
    settled(machine)


@given(logs(), st.data())
def test_one_fault_loses_one_message(found: tuple[dict[str, Record], list[Logged]], data: st.DataObject) -> None:
    """A chunk dropped, doubled, swapped or changed has its outcome, and all other messages are whole."""
    wholes, log = found
    log = [record for record in log if is_chunk(record.headers)]
    at = data.draw(st.integers(0, len(log) - 1))
    victim, _ = Chunk.parse(log[at])
    mine = [i for i, record in enumerate(log) if Chunk.parse(record)[0].uuid == victim.uuid]
    fault = data.draw(st.sampled_from(("drop", "double", "swap", "count", "size", "bytes", "key")))
    last = victim.id == victim.count - 1
    changed, outcome = [*log], set[str]()
    if fault == "drop":
        del changed[at]
        if victim.count > 1:
            outcome = {"missing-first"} if victim.id == 0 else set() if last else {"out-of-order"}
    elif fault == "double":
        changed.insert(data.draw(st.integers(at + 1, len(log))), log[at])
    elif fault == "swap":
        if last:
            return
        other = mine[victim.id + 1]
        changed[at], changed[other] = log[other], log[at]
        # A later one comes first; with the first one behind it, a message begins that goes on with a gap.
        outcome = {"missing-first", "out-of-order"} if victim.id == 0 and victim.count > 2 else {"out-of-order"}
        if victim.id == 0 and victim.count == 2:
            outcome = {"missing-first"}
    elif fault == "bytes":
        value = bytes(byte ^ 1 for byte in log[at].value or b"")
        changed[at] = replace(log[at], value=value)
        outcome = {"corrupt"}
    elif fault == "key":
        changed[at] = replace(log[at], key=b"another")
        outcome = {"contradictory"} if victim.count > 1 else set()
    else:
        lie = replace(victim, **{fault: getattr(victim, fault) + 1})
        own = Chunk.parse(log[at])[1]
        changed[at] = replace(log[at], headers=(*own, *lie.headers()))
        outcome = {"contradictory"} if victim.count > 1 else {"corrupt"} if fault == "size" else set()
        if fault == "count" and victim.size <= victim.count + len(log[at].value or b"") - 1:
            outcome = {"malformed", "missing-first", "out-of-order"}
    machine = Reassembly(UNLIMITED)
    events = feed(machine, [replace(record, offset=i) for i, record in enumerate(changed)])
    said = {event.reason for event in events if isinstance(event, Discarded)}
    rest = machine.tick(10**9)
    uuids = {event.uuid for event in (*events, *rest) if isinstance(event, Discarded)}
    assert uuids <= {victim.uuid, None}
    assert said <= outcome if "malformed" in outcome else said == outcome
    whole = {str(event.record.timestamp) for event in events if isinstance(event, Assembled)}
    assert whole >= set(wholes) - {victim.uuid}
    assert (victim.uuid in whole) == (fault == "double" or (victim.count == 1 and fault == "key"))
    settled(machine)


class Reading(RuleBasedStateMachine):
    """Writers that die, begin again, sleep and wake, and a reader that is restarted and sent back.

    No commit passes the first chunk of a message that is not delivered; each message comes whole, and only so often as
    it stands in the log as a whole, if the reader is not sent back.
    """

    @initialize(limits=st.sampled_from((UNLIMITED, Limits(messages=1), Limits(messages=2))), rereads=st.booleans())
    def start(self, limits: Limits, rereads: bool) -> None:  # noqa: FBT001
        self.limits = limits if rereads else UNLIMITED
        self.rereads = rereads
        self.log: list[Logged] = []
        self.writers: list[list[Record]] = []
        self.texts: dict[str, str] = {}
        self.written: dict[str, int] = {}
        self.committed, self.metadata, self.saved = 0, "", list[tuple[str, int]]()
        self.sent_back, self.done = False, 0
        self.got: list[tuple[str, int]] = []
        self.restart()

    @rule(size=st.integers(1, 5), count=st.integers(0, 5))
    def begin(self, size: int, count: int) -> None:
        if len(self.texts) < 20:
            uuid = f"u{len(self.texts)}"
            self.texts[uuid] = chr(97 + len(self.texts)) * size
            self.writers.append(letters(uuid, self.texts[uuid]))
            self._write(self.writers[-1], count)

    @precondition(lambda self: self.writers)
    @rule(turns=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def write(self, turns: list[int]) -> None:
        for turn in turns:
            self._write(self.writers[turn % len(self.writers)], 1) if self.writers else None

    def _write(self, chunks: list[Record], count: int) -> None:
        for record in [chunks.pop(0) for _ in range(min(count, len(chunks)))]:
            self.log += logged([record], len(self.log))
            chunk, _ = Chunk.parse(record)
            self.written[chunk.uuid] = self.written.get(chunk.uuid, 0) + (chunk.id == chunk.count - 1)
        self.writers = [each for each in self.writers if each]

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 3), sleeps=st.booleans(), count=st.integers(1, 5))
    def begin_again(self, which: int, sleeps: bool, count: int) -> None:  # noqa: FBT001
        """A writer is taken for dead, and is, or goes on later."""
        asleep = self.writers[which % len(self.writers)]
        uuid = Chunk.parse(asleep[0])[0].uuid
        if not sleeps:
            self.writers.remove(asleep)
        self.writers.insert(0, letters(uuid, self.texts[uuid]))
        self._write(self.writers[0], count)

    @rule(count=st.integers(1, 6))
    def read(self, count: int) -> None:
        for event in self.reader.read(self.reader.position + count):
            assert isinstance(event, Assembled), event
            uuid = next(uuid for uuid, text in self.texts.items() if text.encode() == event.record.value)
            self.got.append((uuid, event.id.last))

    @rule(behind=st.integers(0, 2))
    def commit(self, behind: int) -> None:
        """All was delivered but for the last records that were read."""
        self.read(len(self.log))
        position = self.done = max(self.done, self.reader.position - behind)
        offset, self.metadata = self.reader.machine.commit(0, position)
        assert offset >= self.committed or self.sent_back
        self.committed = offset
        self.saved = [each for each in self.got if each in self.saved or each[1] < position]
        done = {uuid for uuid, _ in self.saved}
        chunks = [record for record in self.log[:position] if is_chunk(record.headers)]
        late = [record.offset for record in chunks if Chunk.parse(record)[0].uuid not in done]
        assert offset <= min([*late, offset])

    @rule(commits=st.booleans(), behind=st.integers(0, 1))
    def restart(self, commits: bool = False, behind: int = 0) -> None:  # noqa: FBT001, FBT002
        if commits:
            self.commit(behind)
        self.reader = Reader(self.limits, self.log, self.committed, rereads=self.rereads)
        self.reader.machine.resume(0, self.metadata)
        self.done = self.committed
        self.got = [*self.saved]

    @precondition(lambda self: self.rereads)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        target = self.done = data.draw(st.integers(0, self.done))
        self.reader.machine.move(0, target)
        self.reader.machine.begin(0, target)
        self.reader.position = target
        self.sent_back = True

    @invariant()
    def nothing_comes_too_often(self) -> None:
        if not self.sent_back:
            assert all(count <= self.written[uuid] for uuid, count in Counter(uuid for uuid, _ in self.got).items())
        assert self.reader.machine.pending_bytes <= self.limits.pending_bytes

    def teardown(self) -> None:
        if not hasattr(self, "reader"):
            return
        for chunks in self.writers:
            for record in chunks:
                self.log += logged([record], len(self.log))
                self.written[Chunk.parse(record)[0].uuid] = 9
        self.writers = []
        self.read(len(self.log) + 1)
        assert {uuid for uuid, count in self.written.items() if count} <= {uuid for uuid, _ in self.got}
        self.nothing_comes_too_often()
        settled(self.reader.machine)


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def note_at(machine: Reassembly, offset: int) -> str:
    """The note beside a commit of an offset up to which all was delivered."""
    safe, metadata = machine.commit(0, offset)
    assert safe == offset
    return metadata


def resumed(metadata: str, limits: Limits = UNLIMITED) -> Reassembly:
    """What goes on at a commit with this note."""
    machine = Reassembly(limits)
    machine.resume(0, metadata)
    return machine


def test_rest_of_a_message_from_a_writer_that_was_taken_for_dead() -> None:
    """It is a duplicate, also after a restart; then it is no longer waited for."""
    log = logged([*ABC[:1], *ABC, *letters("other", "d"), *ABC[1:]])
    before = Reassembly(UNLIMITED)
    assert reasons(feed(before, log[:5])) == ["abc", "d"]
    metadata = note_at(before, 5)
    assert metadata.count(";torn=") == 1
    after = resumed(metadata)
    assert feed(after, log[5:6]) == []
    assert note_at(after, 6).count(";torn=") == 1
    assert feed(after, log[6:]) == []
    # a restart at 6 reads the last chunk again
    assert (note_at(after, 6).count(";torn="), note_at(after, 7)) == (1, "")
    assert after.counts.duplicates == 2
    settled(after)


def test_rest_of_another_message_is_not_taken_for_one() -> None:
    """The same uuid with another size or checksum, or a message that nobody has begun twice: given back."""
    before = Reassembly(UNLIMITED)
    feed(before, logged([*ABC[:1], *ABC, *letters("once", "xyz")]))
    rest = [letters("u", "abcd")[1], letters("once", "xyz")[2], ABC[1]]
    after = resumed(note_at(before, 7))
    assert reasons(feed(after, logged(rest, 7))) == ["missing-first", "missing-first", "late missing-first"]


def test_torn_messages_are_the_newest() -> None:
    """A commit has room for 32 ids; what was written twice as a whole is none of them."""
    machine = Reassembly(UNLIMITED)
    log = [each for n in range(40) for each in (letters(f"{n}", "ab")[0], *letters(f"{n}", "ab"))]
    again = [each for n in range(40, 140) for each in letters(f"{n}", "ab") * 2]
    feed(machine, logged([*log, *again]))
    end = len(log) + len(again)
    metadata = note_at(machine, end)
    assert len(set(metadata.partition(";torn=")[2].split(","))) == 32
    rest = resumed(metadata)
    assert feed(rest, logged([letters(f"{n}", "ab")[1] for n in range(8, 40)], end)) == []


def test_repetition_after_a_restart_in_its_middle() -> None:
    """A delivered message that is being written once more holds no commit back: the note recognises its rest."""
    log = logged([*ABC, *ABC])
    for cut in range(4, 6):
        before = Reassembly(UNLIMITED)
        assert reasons(feed(before, log[:cut])) == ["abc"]
        assert feed(resumed(note_at(before, cut)), log[cut:]) == []


@pytest.mark.parametrize("other", [{"key": b"other"}, {"headers": (("own", b"2"),)}])
def test_repeat_is_the_same_in_all(other: dict[str, Any]) -> None:
    """Who writes the value of a message beforehand, under another key or with other headers, does not silence it."""
    record = Record(b"k", b"0123456789", (("own", b"1"),), 7)
    forged, real = (split(each, 3, "u") for each in (replace(record, **other), record))
    machine = Reassembly(UNLIMITED)
    events = feed(machine, logged([*forged, *real, *real]))
    assert [event.record for event in events if isinstance(event, Assembled)] == [replace(record, **other), record]
    assert machine.counts.duplicates == len(real)
    settled(machine)


# --- what is read again ----------------------------------------------------------------------------------------------


def interleaved(rng: random.Random, messages: Sequence[Sequence[Record]]) -> list[Logged]:
    """The chunks of several messages, each in order, in a random order among them."""
    queues = [list(message) for message in messages]
    found = []
    while any(queues):
        found.append(rng.choice([queue for queue in queues if queue]).pop(0))
    return logged(found)


def given_back(events: Sequence[Assembled | Discarded]) -> dict[str | None, set[int]]:
    """The offsets of the chunks that were given back, by message."""
    found: dict[str | None, set[int]] = {}
    for event in events:
        if isinstance(event, Discarded):
            found.setdefault(event.uuid, set()).update(record.offset for record in event.records)
    return found


def test_three_large_messages_of_which_two_fit() -> None:
    """The seed's case: values that fit alone and not together are delivered all, none is evicted."""
    messages = [pieces(f"u{n}", [bytes([n]) * 2_000] * 5) for n in range(3)]
    log = logged([record for turn in zip(*messages, strict=True) for record in turn])
    reader = Reader(Limits(pending_bytes=35_000, message_bytes=10_000), log)
    assert sorted(map(str, values(reader.read()))) == sorted(str(bytes([n]) * 10_000) for n in range(3))
    assert (reader.machine.counts.set_aside, reader.machine.counts.discarded) == (1, {})
    settled(reader.machine)


@pytest.mark.parametrize("seed", range(100))
def test_limits_change_nothing(seed: int) -> None:
    """Whatever is set aside: the same messages as without limits, in their order, and the same chunks given back."""
    rng = random.Random(seed)
    messages = [
        split(Record(b"k%d" % n, rng.randbytes(60), [("h", b"%d" % n)]), rng.randint(2, 6), f"u{n}") for n in range(12)
    ]
    for chunks in rng.sample(messages, 4):
        where = rng.randrange(1, len(chunks))
        other = replace(chunks[where], value=b"?" * len(chunks[where].value or b""))
        match rng.choice(("gap", "twice", "other", "bytes")):
            case "gap":
                del chunks[where - 1]
            case "twice":
                chunks.insert(where, chunks[where - 1])
            case "other":
                chunks.insert(where + 1, other)
            case _:
                chunks[where] = other
    log = interleaved(rng, messages)
    free, tight = Reader(Limits(), log), Reader(Limits(messages=2), log)
    expected, found = free.read(), tight.read()
    assert tight.machine.counts.set_aside > 0
    whole = [event for event in found if isinstance(event, Assembled)]
    assert whole == [event for event in expected if isinstance(event, Assembled)]
    assert given_back(found) == given_back(expected)
    assert tight.machine.counts.discarded == free.machine.counts.discarded
    assert tight.machine.safe_offset(0, len(log)) == free.machine.safe_offset(0, len(log))


def test_look_back_counts_from_where_reading_began() -> None:
    """In steps backwards, once, and no further than allowed; ordinary records before the first chunk do not count."""
    log = logged([*letters("a", "xyz")[:2], *[Record(b"k", b"-")] * 1_300, letters("a", "xyz")[2]])
    reader = Reader(Limits(), log, 1_200, lookback=1_199)
    assert reasons(reader.read()) == ["missing-first"]
    assert reader.ranges == [(700, 1_200), (200, 700), (1, 200), (1_302, 1_303)]
    reader = Reader(Limits(), log, 1_200, lookback=1_200)
    assert values(reader.read()) == [b"xyz"]


def test_log_is_searched_once() -> None:
    """For all messages that began before the reading; of one that begins twice, where it begins last."""
    log = logged([*letters("a", "xy")[:1], *letters("b", "xy")[:1] * 2, letters("b", "xy")[1], letters("a", "xy")[1]])
    reader = Reader(Limits(), log, 3)
    assert values(reader.read()) == [b"xy", b"xy"]
    assert reader.ranges == [(0, 3), (2, 4), (0, 5)]


def test_a_message_that_was_looked_for_is_remembered() -> None:
    """Written once more behind where reading began, it is a duplicate, as if it had been read from its beginning."""
    reader = Reader(Limits(), logged([*letters("u", "abc"), *letters("u", "abc")]), 1)
    assert values(reader.read()) == [b"abc"]
    assert (reader.machine.counts.assembled, reader.machine.counts.duplicates) == (1, 3)


def test_message_without_a_beginning_is_missing_first() -> None:
    """What has left the log is not there for a second reading either: the chunks that are left are given back."""
    log = logged([Record(b"k", b"x"), *letters("u", "abcd")[1:], letters("u", "abcd")[3]])
    first, second = Reader(Limits(), log, 1).read()
    assert isinstance(first, Discarded)
    assert (first.reason, [record.offset for record in first.records]) == ("missing-first", [1, 2, 3])
    assert isinstance(second, Discarded)
    assert (second.reason, second.late) == ("missing-first", True)


def test_rest_of_a_message_that_was_whole_before_is_a_repetition() -> None:
    """The rest of a slow writer, behind the offset where reading begins, makes no message a second time."""
    reader = Reader(Limits(), logged([*letters("u", "abc"), letters("u", "abc")[2]]), 3)
    assert (reader.read(), reader.machine.counts.assembled) == ([], 0)


@pytest.mark.parametrize(("name", "ends"), [("expired", {"a": 1, "b": 2}), ("evicted", None)])
def test_chunks_that_are_given_up_are_read_again(name: str, ends: dict[str, int] | None) -> None:
    """A message whose chunks were set aside gives them back, be it too old, or its offsets alone too much."""
    limits = Limits(messages=1, expire_ms=100, pending_bytes=10 * ASIDE_BYTES)
    log = logged([letters("a", "ab")[0], *letters("b", "abc")[:2]])
    if ends is None:
        log = logged([letters(f"u{n}", "ab")[0] for n in range(20)])
    reader = Reader(limits, log)
    found = [*reader.read(), *(reader.ended(reader.machine.tick(100)) if ends else [])]
    assert {event.reason for event in found if isinstance(event, Discarded)} == {name}
    assert (
        given_back(found)
        == ({"a": {0}, "b": {1, 2}} if ends else {f"u{n}": {n} for n in range(20 - reader.machine.pending)})
        or len(found) == 20 - reader.machine.pending
    )
    assert reader.machine.pending_bytes <= limits.pending_bytes


def test_bytes_of_offsets_are_what_python_holds() -> None:
    """What is set aside counts for the memory that it takes, however long its key and its chunks were."""
    machine = Reassembly(Limits(messages=1), rereads=True)
    tracemalloc.start()
    try:
        for number in range(2_000):
            headers = Chunk(f"{number:036}", 0, 2, 200, "0" * 64).headers()
            machine.receive(0, logged([Record(b"%d" % number * 500, bytes(100), headers)], number)[0])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.9 * held < machine.pending_bytes < 1.5 * held


def test_restart_does_not_give_again_what_was_set_aside_and_delivered() -> None:
    """Below the noted offset nothing is delivered again, and nothing is read again for it."""
    log = logged([letters("a", "ab")[0], *letters("b", "ab"), letters("a", "ab")[1]])
    reader = Reader(Limits(messages=1), log)
    reader.machine.resume(0, note(0, 3, ()))
    assert [event.id for event in reader.read() if isinstance(event, Assembled)] == [ChunkMessageId(0, 3)]
    assert reader.ranges == []


@pytest.mark.parametrize("seed", range(50))
def test_move(seed: int) -> None:
    """Wherever the position is set: each message that ends behind it comes whole, and no commit passes it before."""
    rng = random.Random(seed)
    log = interleaved(rng, [letters(f"u{n}", "abcdef"[: rng.randint(1, 6)]) for n in range(6)])
    whole = [each for each in Reader(UNLIMITED, log).read() if isinstance(each, Assembled)]
    reader = Reader(Limits(messages=rng.choice((1, 3, 100))), log, lookback=0)
    reader.read(rng.randint(0, len(log)))
    target = reader.position - rng.randint(0, reader.position)
    firsts = [each.id.first for each in whole if each.id.first < target <= each.id.last]
    reader.machine.move(0, target)
    reader.machine.begin(0, target)
    reader.position = target
    assert reader.machine.safe_offset(0, target) == min([target, *firsts])
    assert reader.read() == [each for each in whole if each.id.last >= target]
    settled(reader.machine)


def test_move_of_what_is_open() -> None:
    """Each message is set aside once, however often the position is set, and its time goes on."""
    a, b, c = letters("a", "ab"), letters("b", "ab"), letters("c", "ab")
    log = logged([a[0], b[0], c[0], c[1], a[1], b[1]])
    reader = Reader(Limits(expire_ms=100), log)
    reader.read(2)
    assert reader.machine.tick(60) == []
    for _ in range(2):
        reader.machine.move(0, 3)
        assert (reader.machine.counts.set_aside, reader.machine.pending) == (2, 2)
    reader.position = 3
    assert reader.machine.tick(39) == []
    assert reader.machine.safe_offset(0, 3) == 0
    found = reader.read()
    assert reasons(found) == ["ab", "ab", "ab"], "c was not read before its last chunk, and is looked for"
    assert [each.id.first for each in found if isinstance(each, Assembled)] == [2, 0, 1]
    assert reader.machine.counts.assembled == 3
    settled(reader.machine)


def test_move_behind_what_has_ended() -> None:
    """A message that was delivered comes again, and has all its time again; one that was discarded does not."""
    delivered, discarded = letters("a", "ab"), letters("b", "abc")
    log = logged([discarded[0], delivered[0], discarded[2], delivered[1], *letters("c", "x")])
    reader = Reader(Limits(expire_ms=100), log)
    assert reasons(reader.read(4)) == ["out-of-order", "ab"]
    reader.machine.tick(1_000)
    reader.machine.move(0, 3)
    assert (reader.machine.pending, reader.machine.safe_offset(0, 3)) == (1, 1)
    reader.position = 3
    assert reader.machine.tick(99) == []
    assert reasons(reader.read()) == ["ab", "x"]
    assert reader.machine.commit(0, 5) == (5, "")
    other = Reader(UNLIMITED, log)
    other.read(4)
    other.machine.move(0, 1)
    assert other.machine.pending == 0


def test_move_counts_the_time_before_it() -> None:
    """The message expires when its whole time is over."""
    reader = Reader(Limits(expire_ms=100), logged([*letters("a", "ab")]))
    reader.read(1)
    assert reader.machine.tick(60) == []
    reader.machine.move(0, 1)
    assert [len(reader.machine.tick(ms)) for ms in (39, 1)] == [0, 1]


def test_rest_of_a_slow_writer_settles_its_message() -> None:
    """Begun twice and delivered once: noted in commits until the other writer has written its last chunk, too."""
    first, last = letters("a", "ab")
    middle = letters("b", "abc")
    machine = Reassembly(UNLIMITED)
    notes = []
    for record in logged([first, first, last, last, middle[0], middle[0], *middle[1:], middle[1]]):
        machine.receive(0, record)
        notes.append(";torn=" in machine.commit(0, record.offset + 1)[1])
    assert notes == [False, False, True, False, False, False, False, True, True]


def test_beginnings_are_searched_as_far_as_there_is_a_log() -> None:
    """Backwards, a range at a time; a range that begins where the log does is the last one."""
    for log_start, rest in ((0, (9_000, 9_500)), (9_500, None), (9_700, None)):
        beginnings = Beginnings(10_000, 1_000)
        assert beginnings.next_range("a") == (9_500, 10_000)
        for offset in (9_600, 9_700):
            beginnings.take(Chunk("b", 0, 2, 10), offset)
        beginnings.take(Chunk("a", 1, 2, 10), 9_800)
        beginnings.finish(9_500, log_start)
        assert (beginnings.of("b"), beginnings.next_range("b")) == (9_700, None)
        assert (beginnings.of("a"), beginnings.next_range("a")) == (None, rest)
    beginnings = Beginnings(400, 1_000)
    assert beginnings.next_range("a") == (0, 400)
    beginnings.finish(0, 0)
    assert beginnings.next_range("a") is None


def test_chunks_of_a_message_that_is_given_up_take_little_memory() -> None:
    """Each once, and together no more than two times what may be pending: the dead letter has those."""
    size = 1 + LEAST_CHUNK_BYTES
    whole = letters("u", "abcdefghij")
    for limit, kept in ((2 * size, 4), (2 * size - 1, 3)):
        message = Message(0, Chunk("u", 0, 10, 10), 0)
        range_ = ReadRange(message, 9, "expired", "", Limits(pending_bytes=limit), None, lambda: lambda _: [])
        for record in logged([*whole[:2], *whole[:2], Record(None, b"v"), *letters("w", "ab"), *whole[2:]]):
            range_.take(record)
        assert range_.finish(0)
        outcome = range_.outcome()
        assert isinstance(outcome, Discarded)
        assert [record.value for record in outcome.records] == [b"a", b"b", b"c", b"d"][:kept]
