"""Chunks in a batch DataFrame: the same messages as the assembler gives, and a report of what is not whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from jobs.chunks import INCOMPLETE, assemble, incomplete
from tests.jobs.rows import frame as rows_of
from tests.logged import Logged
from transforms.chunk import Chunk, Chunking, is_chunk
from transforms.chunked_message import Assembled, Limits
from transforms.reassembly import Reassembly
from transforms.record import Header, Record


def frame(spark: SparkSession, *partitions: Sequence[Record]) -> DataFrame:
    """Rows in no order."""
    return rows_of(spark, *partitions, shuffled=True)


def letters(uuid: str, text: str) -> list[Record]:
    """A message at one byte a chunk."""
    return [
        Record(b"k", letter.encode(), Chunk(uuid, i, len(text), len(text)).headers(), i)
        for i, letter in enumerate(text)
    ]


def ordered(rows: DataFrame) -> list[Row]:
    """By place."""
    return rows.orderBy("topic", "partition", "offset").collect()


def reports(rows: Iterable[Row]) -> list[tuple[str | None, str, list[int]]]:
    """What a report says."""
    found = [(row.uuid, row.reason, row.offsets) for row in rows]
    return sorted(found, key=lambda each: each[2])


def test_assemble_everything_of_a_record(spark: SparkSession) -> None:
    """Ordinary rows pass as they are; a message has its own value, headers, first timestamp and both offsets."""
    own: list[Header] = [("a", b"1"), ("a", None), ("large", bytes(1_000))]
    chunks = [
        replace(chunk, timestamp=10 + number)
        for number, chunk in enumerate(Chunking(1_800).split(Record(None, bytes(range(256)) * 20, own), "u"))
    ]
    plain = [Record(b"k", b"", [("x", b"")], 1), Record(b"k", None, (), 2), Record(None, b"v", (), 3)]
    log = [plain[0], *chunks[:2], plain[1], *chunks[2:], plain[2]]
    rows = ordered(assemble(frame(spark, log)))
    last = len(log) - 2
    assert [row.offset for row in rows] == [0, 3, last, last + 1]
    whole = rows[2]
    assert (whole.key, bytes(whole.value), whole.partition) == (None, bytes(range(256)) * 20, 0)
    assert [(h.key, None if h.value is None else bytes(h.value)) for h in whole.headers] == own
    assert whole.timestamp.replace(tzinfo=UTC).timestamp() == 10
    assert whole.chunk_message_id == Row(first=1, last=last)
    assert [row.chunk_message_id for row in rows if row is not whole] == [None] * 3
    assert [(row.value, row.headers) for row in rows if row is not whole] == [
        (b"", [Row(key="x", value=b"")]),
        (None, None),
        (b"v", None),
    ]
    assert incomplete(frame(spark, log)).collect() == []


ABC = letters("u", "abc")


@pytest.mark.usefixtures("compiled")
def test_assemble_faults(spark: SparkSession) -> None:
    """Each fault has its reason in the report, and costs its own message alone, of one uuid in many partitions."""
    logs: list[tuple[list[Record], list[bytes], list[tuple[str | None, str, list[int]]]]] = [
        (ABC, [b"abc"], []),
        (ABC[:2], [], [("u", "incomplete", [0, 1])]),
        ([ABC[1], ABC[2]], [], [("u", "missing-first", [0, 1])]),
        ([ABC[0], ABC[2], ABC[1]], [], [("u", "out-of-order", [0, 1, 2])]),
        ([ABC[0], ABC[0], ABC[1], ABC[0], ABC[1], ABC[2], ABC[2]], [b"abc"], []),
        ([*ABC, *ABC], [b"abc"], []),
        ([ABC[0], ABC[2], *ABC], [b"abc"], [("u", "out-of-order", [0, 1])]),
        ([ABC[0], replace(ABC[1], key=None)], [], [("u", "contradictory", [0, 1])]),
        (
            [replace(c, headers=Chunk("u", i, 3, 3, "0" * 64).headers()) for i, c in enumerate(ABC)],
            [],
            [("u", "corrupt", [0, 1, 2])],
        ),
        ([replace(ABC[0], value=None), ABC[0]], [], [(None, "malformed", [0]), ("u", "incomplete", [1])]),
        (
            [replace(ABC[0], headers=[("large-message.chunk.uuid", None)])] * 2,
            [],
            [(None, "malformed", [0]), (None, "malformed", [1])],
        ),
        (letters("long", "x" * 31), [], [("long", "oversized", list(range(31)))]),
        (letters("vast", "x" * 70), [], [("vast", "oversized", list(range(70)))]),
    ]
    other = letters("other", "xyz")
    rows = frame(spark, *(partition for log, _, _ in logs for partition in (log, other)))
    found: dict[int, list[bytes]] = {}
    for row in ordered(assemble(rows, 30)):
        found.setdefault(row.partition, []).append(bytes(row.value))
    told: dict[int, list[Row]] = {}
    for row in incomplete(rows, 30).collect():
        told.setdefault(row.partition, []).append(row)
    for number, (_, whole, report) in enumerate(logs):
        assert (number, found.get(2 * number, []), found[2 * number + 1]) == (number, whole, [b"xyz"])
        assert (number, reports(told.pop(2 * number, []))) == (number, report)
    assert told == {}
    assert incomplete(rows).schema == INCOMPLETE


def interleaved(seed: int) -> list[Record]:
    """Six messages and four ordinary records in one partition, with up to three faults."""
    rng = random.Random(seed)
    queues: list[list[Record]] = []
    for number in range(6):
        record = Record(b"k%d" % number, rng.randbytes(rng.randrange(400, 2_000)), [("n", b"%d" % number)], seed)
        queues.append(list(Chunking(500).split(record, f"{seed}-{number}")))
    queues.append([Record(b"p", b"%d" % n, (), 1) for n in range(4)])
    log = []
    while any(queues):
        log.append(rng.choice([queue for queue in queues if queue]).pop(0))
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(log))
        fault = rng.choice(["lost", "twice", "moved"])
        chunk = log[place]
        if fault != "twice":
            del log[place]
        if fault != "lost":
            log.insert(rng.randrange(len(log)), chunk)
    return log


Found = tuple[int, int, bytes | None, tuple[int, int] | None]


def delivered(number: int, log: Sequence[Record]) -> list[Found]:
    """What the assembler makes of a partition."""
    assembler = Reassembly(Limits(expire_ms=0))
    found: list[Found] = []
    for offset, r in enumerate(log):
        if not is_chunk(r.headers):
            found.append((number, offset, r.value, None))
            continue
        events = assembler.receive(0, Logged(r.key, r.value, r.headers, r.timestamp, offset))
        whole = [event for event in events if isinstance(event, Assembled)]
        found += [(number, offset, event.record.value, (event.id.first, event.id.last)) for event in whole]
    return found


def test_assemble_as_the_assembler(spark: SparkSession) -> None:
    """Random interleavings with chunks lost, doubled and moved: the very messages that the assembler gives."""
    partitions = [interleaved(seed) for seed in range(30)]
    expected = [each for number, log in enumerate(partitions) for each in delivered(number, log)]
    rows = ordered(assemble(frame(spark, *partitions)))
    found = [
        (row.partition, row.offset, bytes(row.value), row.chunk_message_id and tuple(row.chunk_message_id))
        for row in rows
    ]
    assert found == expected
    assert 60 < len([each for each in found if each[3]]) < 180


def test_report_too_many_bytes(spark: SparkSession) -> None:
    """Chunks that are far more than they say are not put together at all: Python never has their values."""
    log = [Record(b"k", bytes([i] * 20), Chunk("lies", i, 9, 30).headers(), 1) for i in range(4)]
    (row,) = incomplete(frame(spark, log), 30).collect()
    assert (row.uuid, row.reason, row.chunks, row.offsets) == ("lies", "oversized", 4, [0, 1, 2, 3])
    assert assemble(frame(spark, log), 30).collect() == []


def test_assemble_written_again_and_again(spark: SparkSession) -> None:
    """A writer that was killed three times in the middle has left one message, however many bytes that makes."""
    whole = list(Chunking(400).split(Record(b"k", bytes(range(256)), (("own", b"1"),), 1), "u"))
    log = [*whole[:-1], *whole[:-1], *whole[:-1], *whole]
    (row,) = assemble(frame(spark, log), 256).collect()
    assert (bytes(row.value), row.chunk_message_id.last) == (bytes(range(256)), len(log) - 1)
    assert incomplete(frame(spark, log), 256).collect() == []


@pytest.mark.parametrize("function", [assemble, incomplete])
def test_arguments_refused(spark: SparkSession, function: Callable[..., DataFrame]) -> None:
    """A stream has no end at which a message could be called incomplete; no message fits into no bytes, or headers."""
    with pytest.raises(ValueError, match=r"found a stream, allowed is a batch"):
        function(spark.readStream.format("rate").load())
    with pytest.raises(ValueError, match=r"limit_bytes: found 0, allowed is 1 or more"):
        function(frame(spark, ABC), 0)
    with pytest.raises(ValueError, match="includeHeaders"):
        function(frame(spark, ABC).drop("headers"))
