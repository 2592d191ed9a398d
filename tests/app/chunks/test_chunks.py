"""What a consumer of chunks has read and not delivered, and its clock, rate and keys, without a broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata, RecordMetadata

from app.chunks.keys import CONSUMER_KEYS, PRODUCER_KEYS, apart, limits
from app.chunks.pending import AssembledRecord, Pending, ReadingClock
from app.chunks.producer import ChunkedRecordMetadata
from app.chunks.rereader import Again, ReadAgain
from app.kafka.arguments import Arguments
from stores.keys import read
from transforms.assembly import Assembled, ChunkMessageId, Discarded, Limits
from transforms.chunk import Chunk
from transforms.commit_metadata import Noted, note, noted
from transforms.errors import ConfigurationError
from transforms.record import Header, Record

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fetched(partition: TopicPartition, offset: int, value: bytes, headers: Sequence[Header] = ()) -> ConsumerRecord:
    """A record as aiokafka gives it."""
    return ConsumerRecord(*partition, offset, 7, 0, b"k", value, None, 1, len(value), tuple(headers))


def letter(partition: TopicPartition, offset: int, uuid: str, text: str, number: int) -> ConsumerRecord:
    """One chunk of a message of one byte a chunk."""
    return fetched(
        partition, offset, text[number].encode(), [("own", b"1"), *Chunk(uuid, number, len(text), len(text)).headers()]
    )


def committable(pending: Pending, offset: int, partition: TopicPartition = P0) -> tuple[int, int | None]:
    """The safe offset, and the note."""
    safe = pending.safe({partition: OffsetAndMetadata(offset, "")})[partition]
    found = noted(safe.metadata)
    return safe.offset, None if found is None else found.delivered


def deliver(pending: Pending, partition: TopicPartition = P0) -> list[bytes]:
    """Takes all that waits."""
    entries = list(pending.backlog.entries(partition))
    pending.backlog.forget(partition)
    return [cast("Any", entry.record).value for entry in entries if not entry.gone]


def waiting(pending: Pending, partition: TopicPartition = P0) -> list[Any]:
    """The records that are to be delivered."""
    return [entry.record for entry in pending.backlog.entries(partition)]


# --- pending ----------------------------------------------------------------------------------------------------------


def test_take_gives_whole_messages() -> None:
    """A message has the last chunk's offset, both offsets, and its own headers; ordinary records stay as they are."""
    pending = Pending(Limits())
    plain = fetched(P0, 1, b"plain", [("x", b"")])
    pending.take(P0, [letter(P0, 0, "u", "ab", 0), plain, letter(P0, 2, "u", "ab", 1)], 0)
    first, second = waiting(pending)
    assert first is plain
    assert isinstance(second, AssembledRecord)
    assert (second.value, second.offset, second.headers, second.timestamp) == (b"ab", 2, (("own", b"1"),), 7)
    assert (second.chunk_message_id, second.serialized_value_size) == (ChunkMessageId(0, 2), 2)


def test_safe_waits_for_what_is_not_delivered() -> None:
    """No commit passes an incomplete message, what waits for the next call, or a discarded one not dealt with."""
    pending = Pending(Limits())
    chunks = [letter(P0, 5, "u", "abc", 0), fetched(P0, 6, b"x"), letter(P0, 7, "u", "abc", 2), fetched(P0, 8, b"y")]
    pending.take(P0, chunks, 0)
    assert [each.reason for each in pending.discarded if isinstance(each, Discarded)] == ["out-of-order"]
    assert committable(pending, 9) == (5, 6)
    assert deliver(pending) == [b"x", b"y"]
    assert committable(pending, 9) == (5, 7)
    pending.discarded.drop_head()
    assert committable(pending, 9) == (9, None)
    pending.take(P0, [letter(P0, 9, "v", "ab", 0), letter(P0, 10, "v", "ab", 1)], 0)
    assert committable(pending, 11) == (9, 10)
    assert committable(pending, 11, P1) == (11, None)
    assert deliver(pending) == [b"ab"]
    assert committable(pending, 11) == (11, None)


def test_safe_keeps_the_metadata_of_the_application() -> None:
    """What the application notes stands in place of the note."""
    pending = Pending(Limits())
    pending.take(P0, [letter(P0, 0, "u", "ab", 0)], 0)
    assert pending.safe({P0: OffsetAndMetadata(1, "mine")}) == {P0: OffsetAndMetadata(0, "mine")}


def test_safe_believes_what_it_is_told() -> None:
    """An application that says so is done with ordinary records that it has not had; not so with a message."""
    pending = Pending(Limits())
    log = [fetched(P0, 3, b"x"), letter(P0, 4, "u", "ab", 0), letter(P0, 5, "u", "ab", 1), fetched(P0, 6, b"y")]
    pending.take(P0, log, 0)
    given = {P0: OffsetAndMetadata(7, "mine")}
    assert pending.safe(given) == {P0: OffsetAndMetadata(3, "mine")}
    assert pending.safe({P0: OffsetAndMetadata(4, "mine")}, told=True) == {P0: OffsetAndMetadata(4, "mine")}
    assert pending.safe(given, told=True) == {P0: OffsetAndMetadata(4, "mine")}
    pending.backlog.drop(P0, 2)
    assert pending.safe(given, told=True) == given


def test_moved_forgets_one_partition() -> None:
    """What was read of a partition that is read from elsewhere goes; that of others stays."""
    pending = Pending(Limits())
    for partition in (P0, P1):
        log = [letter(partition, 0, "u", "ab", 0), letter(partition, 1, "v", "ab", 1), fetched(partition, 2, b"x")]
        pending.take(partition, log, 0)
    pending.moved(P0)
    assert (list(pending.backlog.partitions), pending.assembler.pending, len(pending.discarded)) == ([P1], 1, 1)
    pending.assigned([P0])
    pending.assigned([P0, P1])
    assert (list(pending.backlog.partitions), pending.assembler.pending, len(pending.discarded)) == ([], 0, 0)


def test_seek_keeps_what_goes_on_behind_it() -> None:
    """What the client has fetched ahead is forgotten, and no commit passes a message that began before a seek."""
    pending = Pending(Limits())
    log = [letter(P0, 3, "u", "abc", 0), fetched(P0, 4, b"bad"), letter(P0, 5, "u", "abc", 1), fetched(P0, 6, b"x")]
    pending.take(P0, log, 0)
    pending.moved(P0, None, offset=5)
    assert waiting(pending) == []
    pending.take(P0, [*log[2:], letter(P0, 7, "u", "abc", 2)], 0)
    assert [committable(pending, 8), committable(pending, 5)] == [(3, 6), (3, 5)]
    record, again = waiting(pending)
    assert record.offset == 6
    assert isinstance(again, Again)
    assert (again.reread.first, again.reread.last, again.reread.below) == (3, 7, None)


def test_expire_and_evict() -> None:
    """Expired messages are discarded. The oldest one is dropped and counted only if the application says so."""
    for evicts in (False, True):
        pending = Pending(Limits(messages=1, expire_ms=10, drops_oldest=evicts))
        pending.take(P0, [letter(P0, 0, "u", "ab", 0)], 0)
        pending.take(P1, [letter(P1, 0, "v", "ab", 0)], 0)
        for partition in (P0, P1):
            pending.expire(partition, 9)
        assert not pending.discarded
        for partition in (P0, P1):
            pending.expire(partition, 10)
        assert len(pending.discarded) == (1 if evicts else 2)
        assert pending.assembler.counts.discarded == ({"evicted": 1, "expired": 1} if evicts else {"expired": 2})


def test_message_that_is_read_again() -> None:
    """Until it is read again, a message keeps its place among the records, and no commit passes it."""
    pending = Pending(Limits(messages=1))
    log = [letter(P0, 3, "u", "ab", 0), letter(P0, 4, "v", "ab", 0), letter(P0, 5, "v", "ab", 1), fetched(P0, 6, b"x")]
    pending.take(P0, log, 0)
    entry, _ = pending.backlog.entries(P0)
    again = entry.record
    assert isinstance(again, Again)
    assert entry.size == 2
    assert (again.reread.first, again.offset) == (4, 5)
    assert committable(pending, 7) == (3, 5)
    whole = Assembled(Record(b"k", b"ab", (), 7), ChunkMessageId(4, 5))
    pending.whole(entry, ReadAgain(whole, None, 1))
    assert not entry.gone
    assert entry.ready
    assert [(each.offset, each.timestamp_type) for each in waiting(pending)] == [(5, 1), (6, 0)]
    assert pending.assembler.counts.assembled == 1
    assert pending.position(P0, 7) == 5
    assert deliver(pending) == [b"ab", b"x"]
    assert committable(pending, 7) == (3, 7)


def test_reading_begins_with_the_first_record() -> None:
    """A message that began before it is looked for from there, wherever its own chunk is; a move begins anew."""
    for start in (60, 70):
        pending = Pending(Limits())
        pending.moved(P0)
        pending.take(P0, [fetched(P0, start, b"x"), letter(P0, 90, "u", "ab", 1)], 0)
        again = waiting(pending)[1]
        assert isinstance(again, Again)
        assert (again.reread.below, again.reread.first) == (start, 90)


@pytest.mark.parametrize("left", [True, False])
def test_message_that_cannot_be_read_again(*, left: bool) -> None:
    """It is discarded at its place, for the application to hear of it; also if nothing of it is left in the log."""
    pending = Pending(Limits(messages=1))
    chunks = [letter(P0, 4, "v", "ab", 0), letter(P0, 5, "v", "ab", 1)]
    pending.take(P0, [letter(P0, 3, "u", "ab", 0), *chunks], 0)
    (entry,) = pending.backlog.entries(P0)
    again = entry.record
    assert isinstance(again, Again)
    gone = None if left else again.reread
    outcome = Discarded("missing-first", "v", (chunks[1],) if left else (), "gone", gone=gone)
    pending.whole(entry, ReadAgain(outcome, None, 0))
    assert entry.gone
    assert deliver(pending) == []
    assert list(pending.discarded) == [outcome]
    assert committable(pending, 6) == (3, 5)
    assert committable(pending, 6, P1) == (6, None)


@pytest.mark.parametrize("seed", range(200))
def test_restart_anywhere_loses_and_repeats_nothing(seed: int) -> None:
    """Reading on at any commit, with its note, gives each record and message exactly once."""
    rng = random.Random(seed)
    queues = [[(f"u{n}", "abcd"[:size], i) for i in range(size)] for n, size in enumerate(rng.choices((2, 3, 4), k=5))]
    queues += [[("", f"plain{n}", 0)] for n in range(6)]
    log: list[ConsumerRecord] = []
    while any(queues):
        uuid, text, number = rng.choice([queue for queue in queues if queue]).pop(0)
        offset = len(log)
        log.append(letter(P0, offset, uuid, text, number) if uuid else fetched(P0, offset, text.encode()))
    got: list[tuple[int, bytes]] = []
    position, delivered = 0, None
    while True:
        pending = Pending(Limits())
        pending.moved(P0, None if delivered is None else note(0, delivered, ()))
        end = rng.randint(position, len(log))
        for record in log[position:end]:
            pending.take(P0, [record], 0)
            if rng.random() < 0.8:
                got += [(each.offset, each.value) for each in waiting(pending)]
                pending.backlog.forget(P0)
        left = waiting(pending)
        assert committable(pending, end)[0] <= (left[0].offset if left else end)
        if end == len(log) and not left and not pending.assembler.pending:
            break
        position, delivered = committable(pending, end)
    assert len(got) == len({offset for offset, _ in got}) == 11
    assert got == sorted(got)


def test_note_is_short_and_read_back() -> None:
    """The note of any offset is far below what the broker takes, and nothing else is taken for one."""
    torn = tuple(f"{number:022}" for number in range(32))
    assert note(5, 5, ()) == ""
    assert noted(note(5, 9, ())) == noted(note(5, 9, ())[:-1]) == Noted(9)
    assert noted(note(0, 2**63 - 1, torn)) == Noted(2**63 - 1, torn)
    assert len(note(0, 2**63 - 1, torn)) < 800
    others = [None, "", "mine", "wideload:delivered=", "wideload:delivered=-1", note(0, 1, torn)[:-1] + ",", "torn=x"]
    assert [noted(text) for text in others] == [None] * len(others)


# --- clock and rate ---------------------------------------------------------------------------------------------------


def test_reading_clock_stands_still() -> None:
    """The time of a partition counts while somebody waits for it, once however many wait."""
    clock = Clock()
    reading = ReadingClock(clock)
    clock.now += 5
    since = clock.now
    clock.now += 1
    reading.count([P0], since)
    clock.now += 1
    reading.count([P0, P1], since)
    assert (reading.now_ms(P0), reading.now_ms(P1)) == (2_000, 2_000)
    clock.now += 5
    assert reading.now_ms(P0) == 2_000
    reading.count([P1], clock.now)
    assert reading.now_ms(P1) == 2_000


# --- keys and results -------------------------------------------------------------------------------------------------


def test_keys_apart() -> None:
    """Our keys are read, strings as what they mean, the client's are left, and what nobody knows is refused."""
    client = Arguments({"client_id": "x"})
    given = {"client.id": "me", "max.pending.chunked.message": "7", "chunk.max.message.bytes": 9}
    values, rest = apart(CONSUMER_KEYS, client, given)
    assert (limits(values), rest) == (Limits(messages=7, message_bytes=9), {"client.id": "me"})
    with pytest.raises(ConfigurationError, match=r"did you mean max\.pending\.chunked\.bytes\?"):
        apart(CONSUMER_KEYS, client, {"max.pending.chunk.bytes": 1})
    with pytest.raises(ConfigurationError, match="allowed is 1 or more"):
        apart(PRODUCER_KEYS, client, {"chunk.max.bytes": 0})


def test_keys_defaults_are_the_limits() -> None:
    """Without keys, the limits are their defaults."""
    assert limits(apart(CONSUMER_KEYS, Arguments({}), {})[0]) == Limits()


def test_keys_limits_that_contradict() -> None:
    """A message that could never be pending is refused, with both numbers and both keys."""
    values = read(CONSUMER_KEYS, {"chunk.max.message.bytes": 134_217_728})
    assert limits(values).message_bytes == 134_217_728
    with pytest.raises(ConfigurationError) as caught:
        limits(read(CONSUMER_KEYS, {"chunk.max.message.bytes": 134_217_729}))
    assert str(caught.value) == (
        "chunk.max.message.bytes: found 134,217,729, allowed is no more than max.pending.chunked.bytes, which is "
        "134,217,728"
    )


def test_metadata_is_that_of_the_last_chunk() -> None:
    """The result is a `RecordMetadata`: the broker's time where it set one, else the producer's."""
    first = RecordMetadata("t", 0, P0, 3, -1, 0, 0)
    last = RecordMetadata("t", 0, P0, 9, -1, 0, 0)
    found = ChunkedRecordMetadata.of(first, last, 55)
    assert isinstance(found, RecordMetadata)
    assert (found.offset, found.timestamp, found.chunk_message_id) == (9, 55, ChunkMessageId(3, 9))
    stamped = last._replace(timestamp=77, timestamp_type=1)
    assert ChunkedRecordMetadata.of(first, stamped, 55).timestamp == 77
