"""Messages whose chunks were set aside: no limit drops one, and reading again gives what reading once would have."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.transforms.test_assembly import Logged, letters, logged, pieces, split
from transforms.assembly import Assembled, Assembler, ChunkMessageId, Discarded, Limits, Reread
from transforms.chunk import Chunk, is_chunk
from transforms.pending_message import ASIDE_BYTES
from transforms.record import Record
from transforms.rereading import Beginnings, Rereading


class Reader:
    """Reads a log as a client does: what was set aside is read again, as soon as it has ended."""

    def __init__(self, limits: Limits, log: Sequence[Logged], start: int = 0) -> None:
        self.limits = limits
        self.log = log
        self.rereads: list[Reread] = []
        self.events: list[Assembled | Discarded] = []
        self.assembler = Assembler(limits, self.rereads.append)
        self.assembler.begin(0, start)
        self.position = start

    def read(self, end: int | None = None, now_ms: int = 0, *, at_once: int = 1) -> list[Assembled | Discarded]:
        """Reads up to an offset, or to the end; so many records are fetched before anything is read again."""
        for number, record in enumerate(self.log[self.position : end]):
            if is_chunk(record.headers):
                self.events += self.assembler.add(0, record, now_ms)
            if number % at_once == at_once - 1:
                self._again()
        self._again()
        self.position = len(self.log) if end is None else end
        return self.events

    def expire(self, now_ms: int) -> None:
        """Gives up what is too old."""
        self.events += self.assembler.expire(now_ms)
        self._again()

    def _again(self) -> None:
        while self.rereads:
            reread = self.rereads.pop(0)
            rereading = Rereading(self.limits, reread)
            start = reread.first
            if reread.below is not None and reread.reason is None:
                known = Beginnings(reread.below, 0)
                while (range_ := known.missing(reread.uuid)) is not None:
                    for record in self.log[slice(*range_)]:
                        known.take(record)
                    known.searched(range_[0])
                found = known.of(reread.uuid)
                start = start if found is None else found
            for record in self.log[start : reread.last + 1]:
                rereading.take(record)
            outcome = rereading.outcome()
            self.assembler.resolve(reread, outcome, rereading.beginning)
            if outcome is not None:
                self.events.append(outcome)


def values(events: Sequence[Assembled | Discarded]) -> list[bytes | None]:
    """The values of whole messages, in order."""
    return [event.record.value for event in events if isinstance(event, Assembled)]


def interleaved(rng: random.Random, messages: Sequence[Sequence[Record]]) -> list[Logged]:
    """The chunks of several messages, each in order, in a random order among them."""
    queues = [list(message) for message in messages]
    found = []
    while any(queues):
        found.append(rng.choice([queue for queue in queues if queue]).pop(0))
    return logged(found)


def test_three_large_messages_of_which_two_fit() -> None:
    """The seed's case: values that fit alone and not together are delivered all, none is evicted."""
    limits = Limits(pending_bytes=35_000, message_bytes=10_000)
    messages = [pieces(f"u{n}", [bytes([n]) * 2_000] * 5) for n in range(3)]
    reader = Reader(limits, logged([record for turn in zip(*messages, strict=True) for record in turn]))
    assert sorted(map(str, values(reader.read()))) == sorted(str(bytes([n]) * 10_000) for n in range(3))
    assert reader.assembler.counts.set_aside == 1
    assert reader.assembler.counts.discarded == {}
    assert (reader.assembler.pending, reader.assembler.pending_bytes) == (0, 0)


def given_back(events: Sequence[Assembled | Discarded]) -> dict[str | None, set[int]]:
    """The offsets of the chunks that were given back, by message."""
    found: dict[str | None, set[int]] = {}
    for event in events:
        if isinstance(event, Discarded):
            found.setdefault(event.uuid, set()).update(record.offset for record in event.records)
    return found


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("at_once", [1, 7])
def test_limits_change_nothing(seed: int, at_once: int) -> None:
    """Whatever is set aside: the same messages as without limits, in their order, and the same chunks given back."""
    rng = random.Random(seed)
    messages = [
        split(Record(b"k%d" % n, rng.randbytes(60), [("h", b"%d" % n)]), rng.randint(2, 6), f"u{n}") for n in range(12)
    ]
    for chunks in rng.sample(messages, 4):  # faults: left out, twice, twice with other bytes, with other bytes
        where = rng.randrange(1, len(chunks))
        fault = rng.choice(["gap", "twice", "other", "bytes"])
        other = replace(chunks[where], value=b"?" * len(chunks[where].value or b""))
        if fault == "gap" and len(chunks) > 2:
            del chunks[where - 1]
        elif fault == "twice":
            chunks.insert(where, chunks[where - 1])
        elif fault == "other":
            chunks.insert(where + 1, other)
        else:
            chunks[where] = other
    log = interleaved(rng, messages)
    free, tight = Reader(Limits(), log), Reader(Limits(messages=2), log)
    expected, found = free.read(), tight.read(at_once=at_once)
    assert tight.assembler.counts.set_aside > 0
    assert {event for event in found if isinstance(event, Assembled)} == {
        event for event in expected if isinstance(event, Assembled)
    }
    assert given_back(found) == given_back(expected)
    assert tight.assembler.counts.discarded == free.assembler.counts.discarded
    assert tight.assembler.safe_offset(0, len(log)) == free.assembler.safe_offset(0, len(log))


def test_a_copy_behind_one_that_is_read_again() -> None:
    """A writer that writes a damaged message once more, before the first copy is read again, loses nothing."""
    good = split(Record(b"k", bytes(60)), 3, "u")
    bad = [good[0], replace(good[1], value=b"?" * len(good[1].value or b"")), good[2]]
    (blocker,) = letters("blocker", "ab")[:1]
    for first, expected in ((bad, ["corrupt"]), (good, [])):
        reader = Reader(Limits(messages=1), logged([blocker, *first, *good]))
        events = reader.read(at_once=100)
        assert [event.reason for event in events if isinstance(event, Discarded)] == expected
        assert values(events) == [bytes(60)]
        assert reader.assembler.safe_offset(0, 7) == 0
        assert reader.assembler.pending == 1


def test_look_back_counts_from_where_reading_began() -> None:
    """Ordinary records before the first chunk that is read do not count."""
    first, second, third = letters("u", "abc")
    log = logged([first, second, *[Record(b"k", b"-")] * 100, third])
    reader = Reader(Limits(), log, 60)
    reader.read()
    assert values(reader.events) == [b"abc"]
    rereads: list[Reread] = []
    assembler = Assembler(Limits(), rereads.append)
    assembler.begin(0, 60)
    assembler.add(0, log[-1], 0)
    assert [(reread.below, reread.first) for reread in rereads] == [(60, 102)]


def test_a_message_that_was_looked_for_is_remembered() -> None:
    """Written once more behind where reading began, it is a duplicate, as if it had been read from its beginning."""
    reader = Reader(Limits(), logged([*letters("u", "abc"), *letters("u", "abc")]), 1)
    assert values(reader.read()) == [b"abc"]
    assert reader.assembler.counts.assembled == 1
    assert reader.assembler.counts.duplicates == 3


def test_safe_offset_waits_for_what_is_set_aside() -> None:
    """No commit passes the first chunk of a message that is an index of offsets only."""
    log = logged([letters("a", "ab")[0], letters("b", "ab")[0], letters("c", "ab")[0], letters("b", "ab")[1]])
    reader = Reader(Limits(messages=1), log)
    reader.read(3)
    assert (reader.assembler.pending, reader.assembler.counts.set_aside) == (3, 2)
    assert reader.assembler.safe_offset(0, 3) == 0
    assert reader.assembler.pending_bytes > 2 * ASIDE_BYTES
    assert values(reader.read()) == [b"ab"]
    assert reader.assembler.safe_offset(0, 4) == 0


def test_expired_gives_all_chunks_back() -> None:
    """A message whose chunks were set aside gives them back when it is given up, read again."""
    log = logged([letters("a", "ab")[0], *letters("b", "abc")[:2]])
    reader = Reader(Limits(messages=1, expire_ms=100), log)
    reader.read()
    reader.expire(100)
    reasons = {
        event.uuid: (event.reason, len(event.records)) for event in reader.events if isinstance(event, Discarded)
    }
    assert reasons == {"a": ("expired", 1), "b": ("expired", 2)}
    assert reader.assembler.counts.discarded == {"expired": 2}
    assert (reader.assembler.pending, reader.assembler.pending_bytes) == (0, 0)


def test_only_an_index_that_is_too_large_evicts() -> None:
    """When the offsets alone are over the limit, what was set aside first is given up, and gives its chunks back."""
    limits = Limits(messages=1, pending_bytes=10 * ASIDE_BYTES)
    reader = Reader(limits, logged([letters(f"u{n}", "ab")[0] for n in range(20)]))
    reader.read()
    evicted = [event for event in reader.events if isinstance(event, Discarded)]
    assert {(event.reason, len(event.records)) for event in evicted} == {("evicted", 1)}
    assert len({event.uuid for event in evicted}) == len(evicted) == 20 - reader.assembler.pending
    assert 8 <= reader.assembler.pending <= 10
    assert reader.assembler.pending_bytes <= limits.pending_bytes


def test_bytes_of_an_index_are_what_python_holds() -> None:
    """What is set aside counts for the memory that it takes, however long its key and its chunks were."""
    rereads: list[Reread] = []
    assembler = Assembler(Limits(messages=1), rereads.append)
    tracemalloc.start()
    try:
        for number in range(2_000):
            (record,) = logged(
                [Record(b"%d" % number * 500, bytes(100), Chunk(f"{number:036}", 0, 2, 200, "0" * 64).headers())]
            )
            assembler.add(0, replace(record, offset=number), 0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.9 * held < assembler.pending_bytes < 1.5 * held


@pytest.mark.parametrize("start", range(1, 6))
def test_message_that_begins_before_reading(start: int) -> None:
    """Reading that begins in the middle of a message finds its beginning before that, and gives it whole."""
    log = logged([Record(b"k", b"x"), *letters("u", "abcd"), Record(b"k", b"y")])
    reader = Reader(Limits(), log[:5], start)
    if start == 5:
        assert reader.read() == []
        return
    (event,) = reader.read()
    assert isinstance(event, Assembled)
    assert (event.record.value, event.id) == (b"abcd", ChunkMessageId(1, 4))
    assert reader.assembler.counts.assembled == 1


def test_message_without_a_beginning_is_missing_first() -> None:
    """What has left the log is not there for a second reading either: the chunks that are left are given back."""
    log = logged([Record(b"k", b"x"), *letters("u", "abcd")[1:], letters("u", "abcd")[3]])
    reader = Reader(Limits(), log, 1)
    first, second = reader.read()
    assert isinstance(first, Discarded)
    assert isinstance(second, Discarded)
    assert (first.reason, [record.offset for record in first.records]) == ("missing-first", [1, 2, 3])
    assert (second.reason, second.late) == ("missing-first", True)
    assert reader.assembler.counts.discarded == {"missing-first": 1}


def test_rest_of_a_message_that_was_whole_before_is_a_repetition() -> None:
    """A slow writer's rest, behind the offset where reading begins, makes no message a second time."""
    log = logged([*letters("u", "abc"), letters("u", "abc")[2]])
    reader = Reader(Limits(), log, 3)
    assert reader.read() == []
    assert reader.assembler.counts.assembled == 0


def test_restart_does_not_give_again_what_was_set_aside_and_delivered() -> None:
    """Below the noted offset nothing is delivered again, and nothing is read again for it."""
    log = logged([letters("a", "ab")[0], *letters("b", "ab"), letters("a", "ab")[1]])
    reader = Reader(Limits(messages=1), log)
    reader.assembler.resume(0, 3)
    assert [event.id for event in reader.read() if isinstance(event, Assembled)] == [ChunkMessageId(0, 3)]


def test_beginnings_are_searched_once_and_the_last_one_counts() -> None:
    """In steps backwards, no further than allowed; of a message that begins twice, where it begins last."""
    log = logged([*letters("a", "xy"), *letters("b", "xy"), *[Record(b"k", b"-")] * 600, letters("b", "xy")[0]])
    known = Beginnings(len(log), 1)
    ranges = []
    for uuid in ("b", "a", "b"):
        while (range_ := known.missing(uuid)) is not None:
            ranges.append(range_)
            for record in log[slice(*range_)]:
                known.take(record)
            known.searched(range_[0])
    assert ranges == [(105, 605), (1, 105)]
    assert (known.of("a"), known.of("b")) == (None, 604)
