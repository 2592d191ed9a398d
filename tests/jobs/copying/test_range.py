"""One range of a backfill: what is done when it ends. The store may break; Kafka is two lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest

from app.config.client import embedded_client_settings
from jobs.copying import range as range_module
from jobs.copying.range import BackfillSettings, Outcome, Source, copied
from jobs.copying.receipt import Receipt
from jobs.copying.writer import SinkTopic
from jobs.reading.ranges import OffsetRange
from jobs.records.inflater import InflaterSettings
from stores.memory import MemoryStore
from tests.jobs.reading.test_messages import ListedLog, chunks
from transforms.chunked_message import Limits
from transforms.errors import PayloadStoreError
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.record import Record, RecordLike
from transforms.reference import Reference

LARGE = 5_000


class Log(ListedLog):
    """The partition of the source."""

    def close(self) -> None:
        """It has no connection."""


class Writer:
    """The sink, with what was committed to it."""

    partitions: ClassVar[list[int]] = []  # of the last one

    def __init__(self, sink: list[RecordLike]) -> None:
        self.ends: dict[int, int] = {}
        self._sink = sink
        self._open: list[RecordLike] = []
        Writer.partitions.clear()

    def receipt(self, *_: object) -> None:
        """No range was committed."""

    def write(self, partition: int, record: RecordLike) -> None:
        self.partitions.append(partition)
        self._open.append(record)

    def flush(self) -> None:
        """Each record is acknowledged at once."""

    def commit(self, _topic: str, _partition: int, _receipt: Receipt) -> None:
        self._sink += self._open

    def close(self) -> None:
        """It has no connection."""


class BreakingStore(MemoryStore):
    """Takes no large payload while it is broken."""

    broken = True

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        if self.broken and len(data) == LARGE:
            raise PayloadStoreError("no room", retriable=True)
        return super().put(topic, object_id, data)


STORE = {"large.message.payload.store.class": f"{__name__}.{BreakingStore.__name__}"}
CLIENT = embedded_client_settings({"bootstrap.servers": "b:1"})
SOURCE = Source(CLIENT, {}, "t", InflaterSettings(STORE), Limits(expire_ms=0))
PLAIN = BackfillSettings(SOURCE, "s", "c", None)
TOPIC = SinkTopic("s", {0: 0}, 2**20, keeps_timestamps=True)

Copy = Callable[..., Outcome]


@pytest.fixture
def sink() -> list[RecordLike]:
    """What was committed."""
    return []


@pytest.fixture
def source() -> list[Record]:
    return [Record(b"k", b"%d" % number) for number in range(4)]


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch, sink: list[RecordLike], source: list[Record]) -> Copy:
    """Copies from an offset up to another one, with these settings."""
    monkeypatch.setattr(range_module, "RangeReader", lambda *_, **__: Log(source))
    monkeypatch.setattr(range_module, "Log", lambda reader, _: reader)
    monkeypatch.setattr(range_module, "SinkWriter", lambda *_: Writer(sink))

    def copy(start: int, end: int, settings: BackfillSettings = PLAIN, topic: SinkTopic = TOPIC) -> Outcome:
        return copied(settings, topic, OffsetRange("t", 0, start, end))

    return copy


def test_a_message_of_chunks_before_a_failure_is_written_once(
    copy: Copy, sink: list[RecordLike], source: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails behind a message of chunks: what was written before is not written by the next run."""
    whole, large = b"w" * 1_200, b"l" * LARGE
    source[:] = [Record(b"k", b"first"), *chunks(whole, "a"), Record(b"k", large)]
    settings = replace(PLAIN, offload=Offload(LARGE - 1, None))
    failed = copy(0, len(source), settings)
    assert "no room" in str(failed.error)
    assert [record.value for record in sink] == [b"first", whole]
    assert failed.next == len(source) - 1
    monkeypatch.setattr(BreakingStore, "broken", False)
    done = copy(failed.next, len(source), settings)
    assert (done.error, done.next) == (None, len(source))
    assert [(record.value or b"")[:9] for record in sink] == [b"first", whole[:9], b"memory://"]


def test_a_timestamp_that_the_sink_refuses(copy: Copy, sink: list[RecordLike]) -> None:
    """The range ends before the record, and says where it is: brokers refuse whole batches without a place."""
    refused = copy(0, 3, topic=replace(TOPIC, oldest_ms=86_400_000))
    assert (refused.next, sink) == (0, [])
    assert str(refused.error).startswith(
        "topic t partition 0 offset 0: the timestamp is 1000 ms, and message.timestamp.before.max.ms of topic s is "
    )


@pytest.mark.parametrize(("timestamp_ms", "fits"), [(2**63 - 1, False), (-(2**63), False), (-1, True), (1, True)])
def test_timestamps_that_a_sink_takes(timestamp_ms: int, *, fits: bool) -> None:
    """What brokers would refuse by their limits is known before; a record without a timestamp has none to refuse."""
    topic = replace(TOPIC, oldest_ms=2**62, newest_ms=3_600_000)
    assert (topic.refusal(timestamp_ms) is None) == fits
    first, last = topic.window()
    assert fits or not first <= timestamp_ms <= last


def test_a_source_that_was_cut_between_two_ranges(copy: Copy, sink: list[RecordLike], source: list[Record]) -> None:
    """Another record stands where the last range ended: those before the position may be others too."""
    first = copy(0, 2)
    assert first.mark is not None
    source[1] = Record(b"k", b"another")
    refused = copy(2, 4, replace(PLAIN, mark=first.mark))
    assert (refused.next, len(sink)) == (2, 2)
    assert str(refused.error).startswith("topic t partition 0 has a different record at offset 1 than the one that was")
    source[1] = Record(b"k", b"1")
    done = copy(2, 4, replace(PLAIN, mark=first.mark))
    assert (done.error, done.next, len(sink)) == (None, 4, 4)


def test_a_message_whose_beginning_kafka_has_deleted(
    copy: Copy, sink: list[RecordLike], source: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is left out, and counts; it ends no job."""
    source[:] = [*chunks(b"w" * 1_200, "a"), Record(b"k", b"last")]
    monkeypatch.setattr(range_module, "RangeReader", lambda *_, **__: Log(source, 1))
    done = copy(1, len(source))
    assert (done.error, done.next, done.tally.left_out) == (None, len(source), len(source) - 2)
    assert [record.value for record in sink] == [b"last"]
    del source[1]  # a message that was spoilt is an error, unless problems are kept; then it is left out, too
    monkeypatch.setattr(range_module, "RangeReader", lambda *_, **__: Log(source))
    assert "out-of-order" in str(copy(0, len(source)).error)
    kept = copy(0, len(source), replace(PLAIN, keep_problems=True))
    assert (kept.error, kept.tally.left_out, kept.tally.records) == (None, len(source) - 1, 1)


def test_partition_by_key(copy: Copy, source: list[Record]) -> None:
    """By key, a record goes where Kafka's own clients put it; those without a key go to one partition, in order."""
    # Of the Java client's own tests: murmur2 of these is 479470107, -973932308 and -790332482.
    source[:] = [Record(key, b"v") for key in (b"abc", b"21", None, b"foobar", None, b"abc")]
    two = replace(TOPIC, ends={0: 0, 1: 0})
    copy(0, len(source), replace(PLAIN, by_key=True), two)
    assert Writer.partitions == [1, 0, 0, 0, 0, 1]
    copy(0, len(source), PLAIN, two)
    assert Writer.partitions == [0] * 6


def referring(record: Record, name: FormatName = "wideload") -> Record:
    return FORMATS[name].write_reference(record, Reference("memory://default/t/nothing"))


@pytest.mark.parametrize(
    ("record", "form", "said"),
    [
        (referring(Record(b"k", None), "bakdata-headers"), "wideload", "is --format bakdata-headers meant?"),
        (referring(Record(b"k", None)), "bakdata-headers", "is --format wideload meant?"),
        (referring(Record(b"k", None)), "wideload", "offset 4: value missing: there is no"),
        (
            Record(b"k", b"v" * 2**20),
            "wideload",
            "offset 4: value too-large: a record of 1,048,651 bytes; max.message.bytes of topic s is 1,048,576",
        ),
    ],
)
def test_a_record_that_cannot_be_written(
    copy: Copy, sink: list[RecordLike], source: list[Record], record: Record, form: FormatName, said: str
) -> None:
    """It ends the range with its place; with `keep_problems` it goes as it is, if the sink takes it, and counts."""
    source += [record, Record(b"last", b"v")]
    inflater = replace(SOURCE.inflater, reference_format=form)
    settings = replace(PLAIN, source=replace(SOURCE, inflater=inflater))
    source[:4] = [Record(b"k", None)] * 4
    failed = copy(0, 6, settings)
    assert (failed.next, len(sink)) == (4, 4)
    assert said in str(failed.error)
    kept = copy(4, 6, replace(settings, keep_problems=True))
    fits = "too-large" not in said
    assert (kept.next, kept.tally.kept, len(sink)) == ((6, 1, 6) if fits else (4, 0, 4))
