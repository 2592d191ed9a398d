"""The assembler: any interleaving gives each message once, and any fault has its documented outcome."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vectors.chunks import ReadCase, read_cases, split_cases
from transforms.assembly import Assembled, Assembler, ChunkMessageId, Counts, Discarded, Limits
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, Chunking, is_chunk
from transforms.record import Header, Record

UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Logged:
    """A record at its offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int
    offset: int


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


def feed(assembler: Assembler, log: Iterable[Logged], now_ms: int = 0) -> list[Assembled | Discarded]:
    """All that a partition's chunks end."""
    return [event for record in log for event in assembler.add(0, record, now_ms)]


def reasons(events: Iterable[Assembled | Discarded]) -> list[str]:
    """What became of messages: the reason, with "late" before it where it is one more chunk; a whole one's value."""
    return [
        str((event.record.value or b"").decode())
        if isinstance(event, Assembled)
        else ("late " if event.late else "") + event.reason
        for event in events
    ]


def settled(assembler: Assembler) -> None:
    """Nothing is held any more."""
    assert (assembler.pending, assembler.pending_bytes) == (0, 0)
    assert assembler.expire(10**9) == []
    assert assembler.safe_offset(0, 10**9) == 10**9


# --- the document ---------------------------------------------------------------------------------------------------


def test_add_the_document() -> None:
    """The document's figure: "abc" and "de", interleaved, are given as each is whole, and the context goes."""
    abc, de = letters("uuid1", "abc"), letters("uuid2", "de")
    log = logged([abc[0], abc[1], de[0], abc[2], de[1]])
    assembler = Assembler(UNLIMITED)
    assert [reasons(assembler.add(0, record, 0)) for record in log] == [[], [], [], ["abc"], ["de"]]
    settled(assembler)
    assert assembler.counts == Counts(assembled=2)


def test_add_gives_the_record() -> None:
    """Key, value, timestamp, and the first chunk's own headers come back; the id has both offsets."""
    whole = Record(None, bytes(range(256)) * 20, (("trace", b"1"), ("trace", None), ("big", bytes(900))), 123)
    log = logged(Chunking(1900).split(whole, "u"), 40)
    assert len({len(record.headers) for record in log}) == 2
    (event,) = feed(Assembler(UNLIMITED), log)
    assert event == Assembled(whole, ChunkMessageId(40, 39 + len(log)))


def test_add_chunks_with_equal_bytes() -> None:
    """Chunks with the same bytes are no duplicates of one another."""
    assembler = Assembler(UNLIMITED)
    assert reasons(feed(assembler, logged(letters("u", "aaaa")))) == ["aaaa"]
    assert assembler.counts.duplicates == 0


def test_add_partitions_apart() -> None:
    """The same uuid in two partitions is two messages."""
    assembler = Assembler(UNLIMITED)
    first, second = logged(letters("u", "ab"))
    assert assembler.add(0, first, 0) == assembler.add(1, first, 0) == []
    assert reasons(assembler.add(1, second, 0)) == reasons(assembler.add(0, second, 0)) == ["ab"]


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
    assembler = Assembler(UNLIMITED)
    entries = logged(log)
    events = feed(assembler, entries)
    assert reasons(events) == (["contradictory", "late contradictory"] if outcome is None else outcome)
    settled(assembler)
    given = [record for event in events if isinstance(event, Discarded) for record in event.records]
    whole = sum(
        Chunk.parse(ABC[0])[0].count if len(e.record.value or b"") == 3 else 4
        for e in events
        if isinstance(e, Assembled)
    )
    assert len(given) + whole + assembler.counts.duplicates == len(entries)
    assert all(record in entries for record in given)
    counts = assembler.counts
    assert counts.late == sum(reason.startswith("late") for reason in reasons(events))
    assert counts.assembled + counts.late + sum(counts.discarded.values()) == len(events)


def test_discarded_says_what() -> None:
    """A message that is given up has its uuid, all its chunks as they came, and what was found."""
    log = logged([ABC[0], ABC[2]], 5)
    (event,) = feed(Assembler(UNLIMITED), log)
    assert event == Discarded("out-of-order", "u", tuple(log), "chunk 2 came, chunk 1 was next")


def test_fault_loses_only_its_own_message() -> None:
    """What is interleaved with a message that is given up comes whole."""
    other = letters("v", "xyz")
    log = logged(
        [ABC[0], other[0], ABC[2], other[1], Record(b"k", b"x", (("large-message.chunk.uuid", b""),)), other[2]]
    )
    assert reasons(feed(Assembler(UNLIMITED), log)) == ["out-of-order", "malformed", "xyz"]


def event_of(offset: int, event: Assembled | Discarded) -> list[object]:
    """An event as the vectors write it."""
    if isinstance(event, Discarded):
        return [offset, event.reason + (", late" if event.late else "")]
    return [offset, "whole", (event.record.value or b"").decode(), [event.id.first, event.id.last]]


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: str(case.name))
def test_read_vector(case: ReadCase) -> None:
    """What is said of a partition's chunks is what the vector says, at the same offsets."""
    assembler = Assembler(UNLIMITED)
    events = [event_of(r.offset, event) for r in logged(case.log) for event in assembler.add(0, r, 0)]
    assert events == case.events


def test_vectors_of_writers_are_read() -> None:
    """The chunks of each vector for writers are its record again."""
    for case in split_cases():
        if case.chunks is not None:
            (event,) = feed(Assembler(UNLIMITED), logged(case.chunks))
            assert isinstance(event, Assembled)
            assert event.record == case.record


# --- limits ---------------------------------------------------------------------------------------------------------


def test_oversized_by_what_is_said() -> None:
    """The largest numbers that a chunk can say are refused at once, and nothing is kept or allocated for them."""
    most = 2**31 - 1
    assembler = Assembler(Limits(message_bytes=most, pending_bytes=1_000_000))
    tracemalloc.start()
    try:
        events = feed(assembler, logged([Record(b"k", b"x", Chunk("u", i, most, most).headers()) for i in range(3)]))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reasons(events) == ["oversized", "late oversized", "late oversized"]
    settled(assembler)


@pytest.mark.parametrize(("size", "outcome"), [(9, []), (10, []), (11, ["oversized"])])
def test_oversized_at_the_limit(size: int, outcome: list[str]) -> None:
    """A message of just `message_bytes` is taken."""
    first = Record(b"k", b"x", Chunk("u", 0, 2, size).headers())
    assert reasons(feed(Assembler(Limits(message_bytes=10)), logged([first]))) == outcome


def test_oversized_by_its_headers() -> None:
    """A message whose keys and headers alone are more than may be pending is given up, and no other one's fault."""
    large = tuple(("h", bytes(900)) for _ in range(10))
    log = logged(Record(b"k", b"x", (*large, *Chunk("u", i, 50, 50).headers())) for i in range(50))
    assembler = Assembler(Limits(pending_bytes=100_000))
    peak, events = 0, []
    for record in log:
        events += assembler.add(0, record, 0)
        peak = max(peak, assembler.pending_bytes)
        assert assembler.pending_bytes <= 100_000
    assert peak > 80_000
    assert reasons(events) == ["oversized"] + ["late oversized"] * (len(events) - 1)
    assert sum(len(e.records) for e in events if isinstance(e, Discarded)) == 50
    settled(assembler)


def test_pending_bytes_are_what_python_holds() -> None:
    """Ten thousand empty headers count for what they take, not for their bytes."""
    assembler = Assembler(UNLIMITED)
    tracemalloc.start()
    try:
        own = tuple((str(i), b"%d" % i) for i in range(10_000))
        (record,) = logged([Record(b"k", b"x", (*own, *Chunk("u", 0, 2, 2).headers()))])
        assembler.add(0, record, 0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 * held < assembler.pending_bytes < 2 * held


def test_evicted_by_number() -> None:
    """The message that began first goes where there are too many, of whatever partition."""
    assembler = Assembler(Limits(messages=2))
    (one,), (two,), (three,) = (logged([letters(uuid, "ab")[0]], i) for i, uuid in enumerate("xyz"))
    assert assembler.add("a", one, 0) == assembler.add("b", two, 0) == []
    (event,) = assembler.add("c", three, 0)
    assert isinstance(event, Discarded)
    assert (event.reason, event.uuid, event.records) == ("evicted", "x", (one,))
    assert assembler.pending == 2
    assert reasons(assembler.add("a", logged([letters("x", "ab")[1]], 9)[0], 0)) == ["late evicted"]


def test_evicted_by_bytes() -> None:
    """As many go as there must, the oldest first, and never the one whose chunk it is."""
    assembler = Assembler(Limits(pending_bytes=12_000))
    values = {"x": 3_000, "y": 1_000, "z": 6_000}
    log = logged(pieces(uuid, [bytes(size), b"."])[0] for uuid, size in values.items())
    assert reasons(feed(assembler, log)) == ["evicted"]
    again = logged([pieces("y", [bytes(1_000), b"."])[1], pieces("z", [bytes(6_000), b"."])[1]], 3)
    assert [e.id for e in feed(assembler, again) if isinstance(e, Assembled)] == [
        ChunkMessageId(1, 3),
        ChunkMessageId(2, 4),
    ]
    settled(assembler)


def test_evicted_is_not_the_one_that_comes() -> None:
    """The oldest message stays where it is its own chunk that makes too much; the next one goes."""
    assembler = Assembler(Limits(pending_bytes=10_000))
    old, new = pieces("old", [bytes(3_000), bytes(3_000)]), pieces("new", [b"x", b"y"])
    events = feed(assembler, logged([old[0], new[0], old[1]]))
    assert [getattr(event, "uuid", "whole") for event in events] == ["whole"]
    assembler = Assembler(Limits(pending_bytes=9_000))
    events = feed(assembler, logged([old[0], new[0], old[1]]))
    assert [getattr(event, "uuid", "whole") for event in events] == ["new", "whole"]


def test_expire() -> None:
    """Each message that is too old goes, in all partitions, though others are not; at the limit, not before."""
    assembler = Assembler(Limits(expire_ms=100))
    for i, now in enumerate((0, 0, 1, 50)):
        assembler.add(i % 2, logged([letters(f"u{i}", "ab")[0]], i)[0], now)
    assembler.add(1, logged([letters("u1", "ab")[1]], 4)[0], 0)
    assert assembler.expire(99) == []
    assert [event.uuid for event in assembler.expire(100)] == ["u0"]
    assert [event.uuid for event in assembler.expire(1000)] == ["u2", "u3"]
    assert assembler.expire(1000) == []
    assert assembler.counts.discarded == {"expired": 3}
    settled(assembler)
    assert reasons(assembler.add(0, logged([letters("u0", "ab")[1]], 9)[0], 0)) == ["late expired"]


def test_expire_counts_from_the_first_chunk() -> None:
    """A message that trickles in expires none the later, and keeps none of the others from it."""
    assembler = Assembler(Limits(expire_ms=100))
    for now, record in ((0, ABC[0]), (10, letters("v", "ab")[0]), (50, ABC[1])):
        assembler.add(0, logged([record], now)[0], now)
    assert [event.uuid for event in assembler.expire(100)] == ["u"]
    assert [event.uuid for event in assembler.expire(110)] == ["v"]


def test_expire_counts_anew_when_the_writer_begins_again() -> None:
    """The first chunk once more: the message has its whole time again, and waits behind those that began before."""
    assembler = Assembler(Limits(expire_ms=100))
    again, other = letters("again", "abc"), letters("other", "de")
    log = logged([again[0], again[1], other[0], again[0], again[1]])
    for now_ms, record in zip((0, 10, 50, 90, 95), log, strict=True):
        assert assembler.add(0, record, now_ms) == []
    assert [event.uuid for event in assembler.expire(150)] == ["other"]
    assert reasons(feed(assembler, logged([again[2]], 5), 189)) == ["abc"]


def test_expire_whose_writer_begins_again_and_again() -> None:
    """After ten times the time what came is given back, and the attempt that begins is a message of its own."""
    assembler = Assembler(Limits(expire_ms=100))
    first = letters("u", "abc")[0]
    events: list[Assembled | Discarded] = []
    for offset, now_ms in enumerate(range(0, 1_001, 50)):
        assert events == []
        events = assembler.add(0, logged([first], offset)[0], now_ms)
        assert assembler.expire(now_ms) == []
    assert reasons(events) == ["expired"]
    assert assembler.safe_offset(0, 21) == 20
    assert reasons(feed(assembler, logged(letters("u", "abc")[1:], 21), 1_099)) == ["abc"]
    settled(assembler)


def test_expire_never() -> None:
    """0 is never."""
    assembler = Assembler(Limits(expire_ms=0))
    feed(assembler, logged(ABC[:1]))
    assert assembler.expire(10**15) == []


@pytest.mark.parametrize("name", ["messages", "pending_bytes", "message_bytes"])
def test_limits_refused(name: str) -> None:
    """Limits within which nothing could be pending are a mistake."""
    given: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        replace(UNLIMITED, **given)


def test_memory_does_not_grow() -> None:
    """After five thousand messages of every end, no more is held than after a thousand."""

    def churn(assembler: Assembler, start: int, many: int) -> None:
        offset = start
        for i in range(many):
            a, b, c = letters(f"{start + i}", "abc")
            log = ([a, b, c], [a, c], [b], [a], [a, b, b, c, c])[i % 5]
            for record in logged(log, offset):
                assembler.add(0, record, offset)
            offset += 5
            assembler.expire(offset)

    assembler = Assembler(Limits(messages=10, expire_ms=30))
    tracemalloc.start()
    try:
        churn(assembler, 0, 1_000)
        before = tracemalloc.get_traced_memory()[0]
        churn(assembler, 1_000_000, 4_000)
        assert tracemalloc.get_traced_memory()[0] < before * 1.3
    finally:
        tracemalloc.stop()
    assembler.expire(10**9)
    settled(assembler)


def test_add_is_linear() -> None:
    """Forty thousand chunks of one message take about four times as long as a quarter of them."""

    def seconds(count: int) -> float:
        log = logged(pieces("u", [bytes(200)] * count))
        assembler = Assembler(Limits(pending_bytes=10**9))
        began = time.process_time()
        (event,) = feed(assembler, log)
        assert isinstance(event, Assembled)
        return time.process_time() - began

    few = min(seconds(10_000) for _ in range(2))
    assert seconds(40_000) < 12 * few


# --- the safe offset ------------------------------------------------------------------------------------------------


def test_safe_offset() -> None:
    """A commit waits for the first chunk of what is not whole, and of what is whole and not delivered."""
    abc, de = letters("uuid1", "abc"), letters("uuid2", "de")
    log = logged([abc[0], de[0], abc[1], abc[2], de[1]], 10)
    assembler = Assembler(UNLIMITED)
    assert assembler.safe_offset(0, 10) == 10
    feed(assembler, log[:4])
    assert [assembler.safe_offset(0, position) for position in (9, 10, 13)] == [9, 10, 10]  # abc, at 13, is on its way
    assert assembler.safe_offset(0, 14) == 11
    feed(assembler, log[4:])
    assert [assembler.safe_offset(0, position) for position in (14, 15, 99)] == [11, 15, 99]
    assert assembler.safe_offset("another", 5) == 5


def test_safe_offset_is_not_asked_for() -> None:
    """Who never asks holds no list of what has ended, and who asks late gets no offset that is too high."""
    assembler = Assembler(UNLIMITED)
    for i in range(0, 2_000, 2):
        feed(assembler, logged(letters(str(i), "ab"), i))
    assert [assembler.safe_offset(0, position) for position in (0, 1)] == [0, 0]
    assert assembler.safe_offset(0, 1_999) <= 1_998
    assert assembler.safe_offset(0, 2_000) == 2_000


def test_safe_offset_goes_on_under_load() -> None:
    """However many messages are on their way all the time, a commit follows them: it never stays at the first one."""
    assembler = Assembler(UNLIMITED)
    for i in range(0, 6_000, 2):
        feed(assembler, logged(letters(str(i), "ab"), i))
        position = max(0, i - 1_000)  # five hundred messages are not delivered yet
        assert position - 2_000 < assembler.safe_offset(0, position) <= position


def test_safe_offset_is_cheap() -> None:
    """With a hundred contexts it takes less than a tenth of a millisecond."""
    assembler = Assembler(UNLIMITED)
    for i in range(100):
        feed(assembler, logged([letters(str(i), "ab")[0]], i))
    began = time.process_time()
    for _ in range(1_000):
        assert assembler.safe_offset(0, 100) == 0
    assert time.process_time() - began < 0.1


def test_add_again_from_the_start() -> None:
    """Who goes back to offsets that were read gets the message again: these are no duplicates in the log."""
    assembler = Assembler(UNLIMITED)
    log = logged(ABC, 5)
    assert reasons([*feed(assembler, log), *feed(assembler, log)]) == ["abc", "abc"]


def test_clear() -> None:
    """What is known of a revoked partition goes; what is known of the others stays."""
    assembler = Assembler(UNLIMITED)
    first, second = logged(letters("u", "ab"))
    for partition in (0, 1):
        assembler.resume(partition, 1)
        assembler.add(partition, first, 0)
    held = assembler.pending_bytes
    assembler.clear(0)
    assembler.clear("unknown")
    assert (assembler.pending, assembler.pending_bytes) == (1, held // 2)
    assert (assembler.delivered(0, 0), assembler.delivered(1, 0)) == (False, True)
    assert reasons(assembler.add(0, second, 0)) == ["missing-first"]
    assert reasons(assembler.add(1, second, 0)) == ["ab"]


def test_resume() -> None:
    """Below what was noted, nothing is given again, ordinary record, message or fault; above it, all is."""
    abc, de, gone = letters("uuid1", "abc"), letters("uuid2", "de"), letters("uuid3", "xy")
    log = logged([abc[0], de[0], gone[1], de[1], abc[1], abc[2]], 10)
    assembler = Assembler(UNLIMITED)
    assembler.resume(0, 14)
    assert [assembler.delivered(0, offset) for offset in (13, 14)] == [True, False]
    assert [assembler.delivered_below(0, offset) for offset in (11, 20)] == [14, 20]
    assert assembler.delivered_below(1, 11) == 11
    assert reasons(feed(assembler, log)) == ["abc"]
    assert assembler.counts.discarded == {}


def test_resume_says_what_is_evicted() -> None:
    """What has to go during a replay is given back: it may be what was not delivered before."""
    assembler = Assembler(Limits(messages=1))
    assembler.resume(0, 100)
    log = logged([ABC[0], letters("v", "xy")[0], ABC[1]])
    assert reasons(feed(assembler, log)) == ["evicted", "late evicted"]


# --- the id ---------------------------------------------------------------------------------------------------------


def test_id() -> None:
    """It is printed, read, and ordered by the last chunk, as messages are delivered."""
    identifier = ChunkMessageId(10, 13)
    assert str(identifier) == "10-13"
    assert ChunkMessageId.parse("10-13") == identifier
    ids = [ChunkMessageId(1, 9), ChunkMessageId(2, 5), ChunkMessageId(0, 9), ChunkMessageId(3, 3)]
    assert list(map(str, sorted(ids))) == ["3-3", "2-5", "0-9", "1-9"]
    assert ChunkMessageId(1, 9) >= ChunkMessageId(0, 9) > ChunkMessageId(2, 5)


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1-2", "2-1", " 1-2", "1-2\n", "1--2", "\u0661-2", "1" * 20 + "-" + "1" * 21]
)
def test_id_malformed(text: str) -> None:
    """What is not two offsets, the first one not above the last, is a ValueError."""
    with pytest.raises(ValueError, match="offset"):
        ChunkMessageId.parse(text)


def test_seek_to_the_last_chunk_finds_the_next_whole_message() -> None:
    """From the id's first chunk on the message comes; from its last chunk on, the next whole one."""
    log = logged([*letters("u", "abc"), *letters("v", "de")])
    assert reasons(feed(Assembler(UNLIMITED), log[0:])) == ["abc", "de"]
    assert reasons(feed(Assembler(UNLIMITED), log[2:])) == ["missing-first", "de"]


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
    assembler = Assembler(UNLIMITED)
    firsts: dict[str, int] = {}
    given_back: list[Record] = []
    lowest = 0
    for record in log:
        if is_chunk(record.headers):
            firsts.setdefault(Chunk.parse(record)[0].uuid, record.offset)
            for event in assembler.add(0, record, 0):
                assert isinstance(event, Assembled)
                assert event.id == ChunkMessageId(firsts[str(event.record.timestamp)], record.offset)
                assert assembler.safe_offset(0, record.offset) <= event.id.first
                given_back.append(event.record)
                del firsts[str(event.record.timestamp)]
        safe = assembler.safe_offset(0, record.offset + 1)
        assert safe == min([record.offset + 1, *firsts.values()])
        assert safe >= lowest
        lowest = safe
    assert sorted(given_back, key=lambda r: r.timestamp) == list(wholes.values())
    assert assembler.counts == Counts(assembled=len(wholes))
    settled(assembler)


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
    assembler = Assembler(UNLIMITED)
    events = feed(assembler, [replace(record, offset=i) for i, record in enumerate(changed)])
    said = {event.reason for event in events if isinstance(event, Discarded)}
    rest = assembler.expire(10**9)
    uuids = {event.uuid for event in (*events, *rest) if isinstance(event, Discarded)}
    assert uuids <= {victim.uuid, None}
    assert said <= outcome if "malformed" in outcome else said == outcome
    whole = {str(event.record.timestamp) for event in events if isinstance(event, Assembled)}
    assert whole >= set(wholes) - {victim.uuid}
    assert (victim.uuid in whole) == (fault == "double" or (victim.count == 1 and fault == "key"))
    settled(assembler)


@given(logs(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), max_size=4))
def test_restart_delivers_each_once(
    found: tuple[dict[str, Record], list[Logged]], stops: list[tuple[float, int]]
) -> None:
    """However often it is killed, with some still on their way: each record and message is delivered exactly once."""
    wholes, log = found
    committed, noted = 0, 0
    delivered: list[Record] = []
    for stop, on_their_way in [*stops, (1.0, 0)]:
        assembler = Assembler(UNLIMITED)
        assembler.resume(0, noted)
        end = committed + round(stop * (len(log) - committed))
        position = max(committed, end - on_their_way)  # what ended from here on is lost with the process
        for record in log[committed:end]:
            if is_chunk(record.headers):
                events = assembler.add(0, record, 0)
                given_back = [event.record for event in events if isinstance(event, Assembled)]
                assert len(given_back) == len(events)
            else:
                skip = assembler.delivered(0, record.offset)
                given_back = [] if skip else [Record(record.key, record.value, record.headers, record.timestamp)]
            if record.offset < position:
                delivered += given_back
        committed, noted = assembler.safe_offset(0, position), assembler.delivered_below(0, position)
    ordinary = [Record(r.key, r.value, r.headers, r.timestamp) for r in log if not is_chunk(r.headers)]
    assert sorted(map(repr, delivered)) == sorted(map(repr, [*wholes.values(), *ordinary]))
    settled(assembler)


def bytes_of(records: Sequence[Logged]) -> int:
    """What records take, as `Limits` says: their bytes, and what Python holds for each and for each header."""
    parts = [part for r in records for part in (r.key, r.value, *(each for _, each in r.headers))]
    names = [name for r in records for name, _ in r.headers]
    own = sum(len(part or b"") for part in parts) + sum(map(len, names))
    return own + 400 * len(records) + 160 * len(names)


@given(st.lists(logs(), min_size=1, max_size=3), st.integers(1, 6), st.integers(3_000, 40_000), st.integers(0, 2**32))
def test_limits_hold(found: list[tuple[dict[str, Record], list[Logged]]], messages: int, held: int, seed: int) -> None:
    """What is pending is what came and was not given, at each step and within the limits; each chunk is given once.

    Chunks are dropped, doubled and changed, partitions are taken away, and the clock goes on in jumps.
    """
    rng = random.Random(seed)
    assembler = Assembler(Limits(messages=messages, pending_bytes=held, message_bytes=58, expire_ms=8))
    logs_left = [[record for record in log if is_chunk(record.headers)] for _, log in found]
    pending: dict[tuple[int, str], list[Logged]] = {}
    now_ms = 0

    def take(events: Iterable[Assembled | Discarded], last: Logged | None) -> None:
        for event in events:
            if isinstance(event, Discarded):
                # That of a message is pending from its first chunk on; others were never kept.
                places = [place for place, kept in pending.items() if kept[0] is event.records[0]]
                kept = pending.pop(places[0]) if places else []
                rest = list(event.records[len(kept) :])
                assert list(event.records[: len(kept)]) == kept
                assert rest in ([], [last])
            else:
                (place,) = [place for place, kept in pending.items() if kept[-1] is last]
                assert b"".join(record.value or b"" for record in pending.pop(place)) == event.record.value

    while any(logs_left):
        partition = rng.choice([number for number, log in enumerate(logs_left) if log])
        record = logs_left[partition].pop(0)
        chance = rng.random()
        if chance < 0.05:
            continue
        if chance < 0.1:
            record = replace(record, value=bytes(byte ^ 1 for byte in record.value or b""))
        elif chance < 0.15:
            logs_left[partition].insert(0, record)
        elif chance < 0.18:
            assembler.clear(partition)
            pending = {place: kept for place, kept in pending.items() if place[0] != partition}
        now_ms += rng.choice((0, 0, 0, 1, 5))
        uuid = Chunk.parse(record)[0].uuid
        before = assembler.counts.duplicates, pending.get((partition, uuid), [])
        events = assembler.add(partition, record, now_ms)
        mine = [event for event in events if isinstance(event, Assembled) or event.records[-1] is record]
        if assembler.counts.duplicates == before[0] and not (mine and isinstance(mine[0], Discarded)):
            pending[partition, uuid] = [*before[1], record]
        take(events, record)
        take(assembler.expire(now_ms) if rng.random() < 0.3 else [], None)
        assert (assembler.pending, assembler.pending_bytes) == (len(pending), sum(map(bytes_of, pending.values())))
        assert assembler.pending <= messages
        assert assembler.pending_bytes <= held
    take(assembler.expire(10**9), None)
    assert pending == {}
    settled(assembler)


@given(
    st.integers(1, 6).flatmap(lambda count: st.tuples(st.just(count), st.lists(st.integers(0, count), max_size=4))),
    st.data(),
)
def test_writer_that_begins_again_gives_one_message(found: tuple[int, list[int]], data: st.DataObject) -> None:
    """However often attempts with one uuid are cut short, and while an old writer still writes: the message, once."""
    count, cuts = found
    whole = letters("u", "abcdef"[:count])
    late = data.draw(st.integers(0, count))  # what a writer that was cut off, and does not know it, writes meanwhile
    first, rest = [chunk for cut in cuts for chunk in whole[:cut]], list(whole)
    queues = [whole[:late], rest]
    order = data.draw(st.permutations([0] * late + [1] * count))
    mixed = [queues[number].pop(0) for number in order]
    assembler = Assembler(UNLIMITED)
    events = feed(assembler, logged([*first, *mixed]))
    assert reasons(events) == ["abcdef"[:count]]
    assert assembler.counts.duplicates == len(first) + late
    settled(assembler)


@given(
    st.lists(st.tuples(st.integers(2, 5), st.lists(st.integers(0, 5), max_size=4)), min_size=1, max_size=3),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), max_size=4),
    st.integers(0, 2**32),
)
def test_restart_while_writers_begin_again(
    found: list[tuple[int, list[int]]], stops: list[tuple[float, int]], seed: int
) -> None:
    """However often writers and the reader are killed: nothing is discarded, and each message comes, but not too often.

    A message comes at most as often as it stands in the log as a whole, so a restart alone repeats none.
    """
    rng = random.Random(seed)
    queues: list[list[Record]] = []
    times = dict[str, int]()
    for number, (count, cuts) in enumerate(found):
        whole = letters(str(number), "abcde"[:count])
        queue: list[Record] = []
        asleep: list[list[Record]] = []
        for cut in (*cuts, count):
            for chunk in whole[:cut]:
                # What a writer that was taken for dead had in its hands, and writes when it wakes.
                queue += [tail.pop(0) for tail in asleep if rng.random() < 0.2]
                asleep = [each for each in asleep if each]
                queue.append(chunk)
            if 0 < cut < count and rng.random() < 0.5:
                asleep.append(whole[cut:])
        while asleep:
            queue.append(rng.choice(asleep).pop(0))
            asleep = [each for each in asleep if each]
        queues.append(queue)
        times[str(number)] = sum(Chunk.parse(chunk)[0].id == count - 1 for chunk in queue)
    order = [number for number, queue in enumerate(queues) for _ in queue]
    rng.shuffle(order)
    log = logged(queues[number].pop(0) for number in order)
    committed, noted, lowest, torn = 0, 0, 0, tuple[str, ...]()
    delivered = dict.fromkeys(times, 0)
    for stop, on_their_way in [*stops, (1.0, 0)]:
        assembler = Assembler(UNLIMITED)
        assembler.resume(0, noted, torn)
        end = committed + round(stop * (len(log) - committed))
        position = max(committed, end - on_their_way)  # what ended from here on is lost with the process
        for record in log[committed:end]:
            for event in assembler.add(0, record, 0):
                assert isinstance(event, Assembled), event
                delivered[Chunk.parse(record)[0].uuid] += record.offset < position
        committed, noted = assembler.safe_offset(0, position), assembler.delivered_below(0, position)
        torn = assembler.torn(0, committed)
        assert committed >= lowest
        lowest = committed
    assert all(1 <= delivered[uuid] <= times[uuid] for uuid in times)
    settled(assembler)


def test_rest_of_a_message_from_a_writer_that_was_taken_for_dead() -> None:
    """It is a duplicate, also after a restart; then it is no longer waited for."""
    log = logged([*ABC[:1], *ABC, *letters("other", "d"), *ABC[1:]])
    before = Assembler(UNLIMITED)
    assert reasons(feed(before, log[:5])) == ["abc", "d"]
    assert before.safe_offset(0, 5) == 5
    assert before.torn(0, 0) == ()  # all would be read again
    torn = before.torn(0, 5)
    assert len(torn) == 1
    after = Assembler(UNLIMITED)
    after.resume(0, 5, torn)
    assert reasons(feed(after, log[5:6])) == []
    assert after.torn(0, 6) == torn
    assert reasons(feed(after, log[6:])) == []
    assert (after.torn(0, 6), after.torn(0, 7)) == (torn, ())  # a restart at 6 reads the last chunk again
    assert after.counts.duplicates == 2
    settled(after)


def test_rest_of_another_message_is_not_taken_for_one() -> None:
    """The same uuid with another size or checksum, or a message that nobody has begun twice: given back."""
    before = Assembler(UNLIMITED)
    feed(before, logged([*ABC[:1], *ABC, *letters("once", "xyz")]))
    after = Assembler(UNLIMITED)
    after.resume(0, 7, before.torn(0, 7))
    rest = [letters("u", "abcd")[1], letters("once", "xyz")[2], ABC[1]]
    assert ABC[0].headers == letters("u", "abc")[0].headers
    assert reasons(feed(after, logged(rest, 7))) == ["missing-first", "missing-first", "late missing-first"]


def test_torn_messages_are_the_newest() -> None:
    """A commit has room for 32 ids; what was written twice as a whole is none of them."""
    assembler = Assembler(UNLIMITED)
    log = [each for n in range(40) for each in (letters(f"{n}", "ab")[0], *letters(f"{n}", "ab"))]
    again = [each for n in range(40, 140) for each in letters(f"{n}", "ab") * 2]
    feed(assembler, logged([*log, *again]))
    end = len(log) + len(again)
    assert assembler.safe_offset(0, end) == end
    torn = assembler.torn(0, end)
    assert len(set(torn)) == 32
    rest = Assembler(UNLIMITED)
    rest.resume(0, end, torn)
    assert feed(rest, logged([letters(f"{n}", "ab")[1] for n in range(8, 40)], end)) == []


def test_repeat_that_ends_nowhere_expires() -> None:
    """Where a writer dies writing again what was delivered, the commit waits for it no longer than for a message."""
    assembler = Assembler(Limits(expire_ms=100))
    log = logged([*ABC, *ABC[:2], *ABC[:1]])
    for now_ms, record in enumerate(log):
        assembler.add(0, record, now_ms)
    assert assembler.safe_offset(0, 6) == 3
    assert assembler.expire(104) == []
    assert assembler.safe_offset(0, 6) == 3
    assert assembler.expire(105) == []
    assert assembler.safe_offset(0, 6) == 6
    assert reasons(feed(assembler, logged(ABC[1:], 6))) == []
    settled(assembler)


def test_repeat_that_begins_again_and_again() -> None:
    """A commit stays behind no longer than ten times the time, though the message is begun again all the time."""
    assembler = Assembler(Limits(expire_ms=100))
    feed(assembler, logged(ABC))
    for offset, now_ms in enumerate(range(0, 1_001, 50), 3):
        assert assembler.safe_offset(0, offset) == 3
        assert assembler.add(0, logged(ABC[:1], offset)[0], now_ms) == []
        assert assembler.expire(now_ms) == []
    assert assembler.safe_offset(0, 24) == 23
    assert reasons(feed(assembler, logged(ABC[1:], 24))) == []
    settled(assembler)


@pytest.mark.parametrize("other", [{"key": b"other"}, {"headers": (("own", b"2"),)}])
def test_repeat_is_the_same_in_all(other: dict[str, Any]) -> None:
    """Who writes the value of a message beforehand, under another key or with other headers, does not silence it."""
    record = Record(b"k", b"0123456789", (("own", b"1"),), 7)
    forged, real = (split(each, 3, "u") for each in (replace(record, **other), record))
    assembler = Assembler(UNLIMITED)
    events = feed(assembler, logged([*forged, *real, *real]))
    assert [event.record for event in events if isinstance(event, Assembled)] == [replace(record, **other), record]
    assert assembler.counts.duplicates == len(real)
    settled(assembler)
