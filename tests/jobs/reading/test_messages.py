"""Messages of chunks in ranges of offsets: however the log is cut, each is there once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from jobs.reading.messages import Message, Messages, TopicRecord
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.record import Record

LIMITS = Limits(expire_ms=0)


@dataclass
class ListedLog:
    """A partition in memory; `oldest` is what Kafka has kept."""

    listed: list[Record]
    oldest: int = 0
    read: list[tuple[int, int]] = field(default_factory=list)

    def first(self) -> int:
        return self.oldest

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[TopicRecord]:
        self.read.append((start, end))
        for offset in range(max(start, self.oldest), min(end, len(self.listed))):
            r = self.listed[offset]
            yield TopicRecord(offset, 1_000 + offset, 0, r.key, r.value, r.headers)


def chunks(value: bytes, uuid: str, limit: int = 500) -> list[Record]:
    found = list(Chunking(limit).split(Record(b"k", value, [("x", b"1")]), uuid))
    assert len(found) > 2
    return [Record(r.key, r.value, r.headers) for r in found]


def messages(log: ListedLog, start: int, end: int, *, limits: Limits = LIMITS, lookback: int = 10_000) -> list[Message]:
    return list(Messages(log, start, end, limits, lookback))


def braided() -> list[Record]:
    """Three messages whose chunks stand between one another, with ordinary records between them."""
    a, b, c = (chunks(name.encode() * 1_200, name) for name in "abc")
    log: list[Record] = []
    while a or b or c:
        log += [Record(b"k", b"%d" % len(log))]
        log += [each.pop(0) for each in (a, b, c if len(log) > 6 else []) if each]
    return log


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1_000])
def test_messages_cut_anywhere(size: int) -> None:
    """Ranges that adjoin give what the whole gives, in its order, and each message in the range of its last chunk."""
    log = braided()
    whole = messages(ListedLog(log), 0, len(log))
    assert sorted((m.record.value or b"")[:1] for m in whole if len(m.record.value or b"") == 1_200) == [
        b"a",
        b"b",
        b"c",
    ]
    assert [m.offset for m in whole] == sorted(m.offset for m in whole)
    cuts = [*range(0, len(log), size), len(log)]
    pieces = []
    for start, end in pairwise(cuts):
        found = messages(ListedLog(log), start, end)
        assert all(start <= m.offset < end for m in found)
        pieces += found
    assert pieces == whole


def test_messages_beginning_was_deleted() -> None:
    """What is left of a message whose beginning Kafka has deleted is marked as lost, and nothing before it is read."""
    log = ListedLog([*chunks(b"v" * 1_200, "u"), Record(b"k", b"whole")], oldest=1)
    found = messages(log, 1, 100)
    assert found[-1].record.value == b"whole"
    assert all(m.lost and m.problem is not None and m.problem.state == "missing-first" for m in found[:-1])
    assert [m.offset for m in found] == list(range(1, len(log.listed)))


def test_messages_beginning_too_far_back() -> None:
    """A beginning that may be further back than is looked is not lost: the option is named."""
    pieces = chunks(b"v" * 1_200, "u")
    log = ListedLog([pieces[0], *[Record(b"k", b"x")] * 600, *pieces[1:]])
    (found, *_) = messages(log, 601, 700, lookback=100)
    assert found.problem is not None
    assert not found.lost
    assert "100 offsets (chunkLookback)" in found.problem.detail
    (whole,) = messages(log, 601, 700, lookback=601)
    assert whole.record.value == b"v" * 1_200
    assert whole.timestamp == 1_000


def test_messages_of_many_interleaved_reads_little_before_the_range() -> None:
    """However many messages are interleaved, each record before the range is read about twice, and each is whole."""
    several = [chunks(b"%03d" % number * 400, f"u{number:03}") for number in range(100)]
    log = ListedLog([piece for turn in zip(*several, strict=True) for piece in turn])
    start = len(log.listed) - len(several)
    found = messages(log, start, len(log.listed), limits=Limits(messages=200, expire_ms=0))
    assert [m.record.value for m in found] == [b"%03d" % number * 400 for number in range(100)]
    assert sum(min(end, start) - begin for begin, end in log.read if begin < start) <= 3 * start


def test_messages_looks_back_once() -> None:
    """Many chunks without a beginning do not make it read the log before them again and again."""
    strays = [chunks(b"v" * 1_200, f"u{n}")[1] for n in range(50)]
    log = ListedLog([*[Record(b"k", b"x")] * 1_000, *strays])
    found = messages(log, 1_000, 1_050)
    assert all(m.problem is not None for m in found)
    assert sum(end - start for start, end in log.read) == 1_000 + 50


def test_messages_late_duplicate_of_a_message_of_another_range() -> None:
    """A chunk that came again behind its message is ignored in the next range too."""
    pieces = chunks(b"v" * 1_200, "u")
    log = ListedLog([*pieces, Record(b"k", b"x"), pieces[1]])
    assert [m.record.value for m in messages(log, len(pieces), 100)] == [b"x"]


def test_messages_that_cannot_be() -> None:
    """A message that is spoilt is each of its chunks in the range, with the reason; others pass."""
    pieces = chunks(b"v" * 1_200, "u")
    spoilt = [Record(b"k", b"w" + (pieces[-1].value or b"")[1:], pieces[-1].headers)]
    log = ListedLog([*pieces[:-1], Record(b"k", b"x"), *spoilt])
    found = messages(log, 1, 100)
    assert (found[0].offset, found[0].problem) == (len(pieces) - 1, None)
    assert {m.problem.state for m in found if m.problem is not None} == {"corrupt"}
    assert [m.offset for m in found[1:]] == [*range(1, len(pieces) - 1), len(pieces)]
    (large, *_) = messages(ListedLog(pieces), 0, 100, limits=Limits(message_bytes=1_000, expire_ms=0))
    assert large.problem is not None
    assert large.problem.state == "oversized"
