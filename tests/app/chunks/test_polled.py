"""The incomplete messages of a consumer that polls one record after the other, without a broker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from app.chunks.discarded import warn
from app.chunks.polled import Place, Polled, Rereads
from app.kafka.source_batch import ReadRecord
from transforms.assembly import Assembled, Discarded, Limits
from transforms.chunk import Chunk

PLACE: Place = ("t", 3)


class Log:
    """What is in a partition, as the consumer sees it that reads again."""

    def __init__(self, *records: ReadRecord) -> None:
        self._records = records

    def first(self, _: Place) -> int:
        return min((each.offset for each in self._records), default=0)

    def records(self, _: Place, start: int, end: int) -> Iterator[ReadRecord | None]:
        return iter([each for each in self._records if start <= each.offset < end])

    def close(self) -> None: ...


def letter(offset: int, uuid: str, text: str, number: int) -> ReadRecord:
    """One chunk of a message of one byte a chunk."""
    return ReadRecord(
        *PLACE, offset, 7, b"k", text[number].encode(), Chunk(uuid, number, len(text), len(text)).headers()
    )


def read_again(polled: Polled, log: Log) -> Assembled | Discarded | None:
    """Reads the next message again that waits for it; what becomes of it."""
    reread = polled.again or polled.discarded.head[1]
    assert not isinstance(reread, Discarded)
    found = Rereads(polled, lambda: log).read(reread, time.monotonic() + 60)
    assert found is not None
    polled.resolve(reread, *found)
    return found[0]


@pytest.mark.parametrize("ends", ["whole", "expired"])
def test_message_that_has_left_the_log(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message that was set aside, and of which nothing is left to read again, is told of like any discarded one."""
    polled = Polled(Limits(messages=1, expire_ms=1_000), lookback=10)
    polled.begin(PLACE, 3)
    for record in (letter(3, "u", "ab", 0), letter(4, "v", "ab", 0)):
        polled.take(record)
    if ends == "whole":
        polled.take(letter(5, "v", "ab", 1))
    else:
        polled.count([PLACE], 1.0)
    read_again(polled, Log())
    place, event = polled.discarded.head
    assert isinstance(event, Discarded)
    last = 5 if ends == "whole" else 4
    reason = "missing-first" if ends == "whole" else "expired"
    assert (place, event.reason, event.uuid, event.records, event.first, event.last) == (
        PLACE,
        reason,
        "v",
        (),
        4,
        last,
    )
    assert polled.safe(PLACE, 6)[0] == 3
    warn(event)
    (line,) = caplog.messages
    assert line.startswith(f"topic t partition 3: a message of chunks was discarded: {reason} (")
    assert line.endswith(f"; its chunks, from offset 4 to {last}, have left the log; its uuid is v")


@pytest.mark.parametrize("target", [100, 101])
def test_seek_keeps_what_goes_on_behind_it(target: int) -> None:
    """No commit passes a message that began before a retry or a skip, and it comes whole, however far back it began."""
    log = [letter(3, "u", "abc", 0), letter(4, "v", "ab", 0), letter(5, "v", "ab", 1), letter(100, "u", "abc", 1)]
    log.append(letter(120, "u", "abc", 2))
    polled = Polled(Limits(), lookback=10)
    polled.begin(PLACE, 3)
    for record in log[:4]:
        polled.take(record)
    assert polled.safe(PLACE, 101)[0] == 3
    polled.move(PLACE, target)
    polled.begin(PLACE, target)
    assert (polled.pending, polled.counts.set_aside) == (1, 1)
    assert polled.safe(PLACE, target)[0] == polled.position(PLACE, target) == 3
    for record in log[-2 if target == 100 else -1 :]:
        polled.take(record)
    whole = read_again(polled, Log(*log))
    assert isinstance(whole, Assembled)
    assert (whole.record.value, whole.id.first, whole.id.last) == (b"abc", 3, 120)
    assert polled.safe(PLACE, 121) == (121, "")


@pytest.mark.parametrize("waits", ["delivered", "to be read again"])
def test_seek_to_the_last_chunk_gives_the_message_again(waits: str) -> None:
    """A message that could not be restored is read again from its first chunk, however far back it began."""
    log = [letter(3, "u", "ab", 0), letter(4, "v", "ab", 0), letter(100, "v", "ab", 1)]
    polled = Polled(Limits(messages=2 if waits == "delivered" else 1), lookback=10)
    polled.begin(PLACE, 3)
    given = [polled.take(record) for record in log]
    assert [each is not None for each in given] == [False, False, waits == "delivered"]
    for _ in range(2):
        polled.move(PLACE, 100)
        polled.begin(PLACE, 100)
        assert polled.safe(PLACE, 100)[0] == 3
        polled.take(log[-1])
        whole = read_again(polled, Log(*log))
        assert isinstance(whole, Assembled)
        assert (whole.id.first, whole.id.last) == (4, 100)
    polled.move(PLACE, 101)
    assert polled.pending == 1  # `u`


def test_message_that_a_seek_has_passed_expires() -> None:
    """What holds the commit back after a seek does so for the rest of its time, also after a second seek."""
    log = [letter(3, "u", "ab", 0)]
    polled = Polled(Limits(expire_ms=1_000), lookback=10)
    polled.begin(PLACE, 3)
    polled.take(log[0])
    for target in (100, 200):
        polled.count([PLACE], 0.4)
        polled.move(PLACE, target)
        assert polled.safe(PLACE, target)[0] == 3
    polled.count([PLACE], 0.2)
    event = read_again(polled, Log(*log))
    assert isinstance(event, Discarded)
    assert (event.reason, event.records) == ("expired", (log[0],))
    polled.discarded.drop_head()
    assert polled.safe(PLACE, 201)[0] == 201


def test_seek_before_a_message_forgets_it() -> None:
    """Its chunks come again; so it does not count as one that is written twice."""
    log = [letter(3, "u", "ab", 0), letter(4, "u", "ab", 1)]
    polled = Polled(Limits(), lookback=10)
    polled.begin(PLACE, 3)
    for target in (3, 2, 0):
        polled.take(log[0])
        polled.move(PLACE, target)
        assert (polled.pending, polled.pending_bytes) == (0, 0)
    assert [polled.take(record) is not None for record in log] == [False, True]
    assert polled.counts.duplicates == 0


@pytest.mark.parametrize("seed", range(100))
def test_seeks_lose_no_message(seed: int) -> None:
    """Whatever is tried again or skipped: each message that ends behind it comes, and no commit passes its start."""
    rng = random.Random(seed)
    queues = [[(f"u{n}", "abcd"[:size], i) for i in range(size)] for n, size in enumerate(rng.choices((2, 3, 4), k=6))]
    ends, firsts, log = dict[str, int](), dict[str, int](), list[ReadRecord]()
    while any(queues):
        uuid, text, number = rng.choice([queue for queue in queues if queue]).pop(0)
        ends[uuid] = len(log)
        firsts.setdefault(uuid, len(log))
        log.append(letter(len(log), uuid, text, number))
    polled = Polled(Limits(messages=rng.choice((1, 2, 100)), expire_ms=0), lookback=0)
    polled.begin(PLACE, 0)
    position = sought = 0
    seeks = False
    found: list[int] = []
    while position < len(log):
        if seeks:
            position = sought = rng.randint(sought, position)
            polled.move(PLACE, position)
            polled.begin(PLACE, position)
            found = []
        whole: Assembled | Discarded | None = polled.take(log[position])
        seeks = rng.random() < 0.2
        if polled.again is not None:
            if seeks:
                continue
            whole = read_again(polled, Log(*log))
        assert not isinstance(whole, Discarded)
        position += 1
        found += [whole.id.last] if whole is not None else []
        open_ = [first for uuid, first in firsts.items() if first < position <= ends[uuid]]
        assert polled.safe(PLACE, position)[0] <= min([position, *open_])
    assert found == sorted(end for end in ends.values() if end >= sought)
    assert polled.safe(PLACE, len(log))[0] == len(log)
    assert (polled.pending, polled.pending_bytes, list(polled.discarded)) == (0, 0, [])
