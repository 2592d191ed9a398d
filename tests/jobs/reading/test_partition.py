"""A partition as tasks read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import TopicPartition

from app.kafka.source_batch import ReadRecord, SourceBatch
from jobs.driver.failures import JobFailedError
from jobs.reading import partition
from jobs.reading.client import KAFKA_KEYS, Client, look
from jobs.reading.partition import PartitionReader
from stores.keys import read
from tests.built_batches import built, changed
from tests.integration.odd_batches import produce
from tests.integration.operations import Operations
from tests.integration.topics import write_raw
from transforms.record import Record
from transforms.record_batch import pack


def test_records_that_nobody_can_have_as_they_are(broker: str, make_topic: Callable[..., str]) -> None:
    """A header name that is not UTF-8, and a batch that cannot be decoded, are problems in their place."""
    topic = make_topic(1)
    asyncio.run(write_raw(broker, topic, [Record(b"k", b"v", (("h\udcff", b""), ("ä", b"x")))]))
    records = b"\x10\0\0\0\2a\2b\0" + b"\x10\0\0\0\2c\2d\0"  # the second one has the offset of the first
    broken = built(0, [Record(b"a", b"b")] * 2)[:61] + records
    broken = changed(broken, ">i", 8, len(broken) - 12)
    assert produce(broker, topic, [broken, bytes(pack([Record(b"last", b"v")]))]) == 2
    found = []
    with closing(PartitionReader(Client(read(KAFKA_KEYS, {"kafka.bootstrap.servers": broker})), topic, 0)) as log:
        for start, end in ((0, 2), (2, 3), (3, 4)):
            found += list(log.records(start, end))
    name, first, failed, last = found
    assert [each.offset for each in found] == [0, 1, 2, 3]
    assert [*name.headers] == [("h\ufffd", b""), ("ä", b"x")]
    assert name.problem is not None
    assert name.problem.state == "malformed"
    assert (first.key, first.problem, last.key, last.problem) == (b"a", None, b"last", None)
    assert failed.problem is not None
    assert "offset of a record (offsets 2 to 2) is '1'; allowed: 2 to 2" in failed.problem.detail
    assert failed.value is not None
    assert failed.value[61:] == broken[61:]


def test_a_topic_that_was_created_again_while_it_was_read(broker: str, make_topic: Callable[..., str]) -> None:
    """At the end of a range it is the topic that it was at the beginning, or the task fails."""
    topic = make_topic(1)
    client = Client(read(KAFKA_KEYS, {"kafka.bootstrap.servers": broker}))
    before = look(client, [topic]).ids[topic]
    with closing(PartitionReader(client, topic, 0)) as log:
        log.require_topic(before)
        Operations(broker).remove_topic(topic)
        make_topic(1, named=topic)
        log.require_topic("")
        with pytest.raises(JobFailedError, match=f"topic {topic} partition 0: the topic was deleted and created again"):
            log.require_topic(before)


class Clock:
    """The time, which goes on where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Consumer:
    """A partition that answers each poll with one offset, after some time, and with nothing behind the last one.

    Args:
        clock: the time.
        answers: by offset, whether it has a record.
        poll_s: how long a poll takes.
    """

    def __init__(self, clock: Clock, answers: list[bool], poll_s: float) -> None:
        self._clock = clock
        self._answers = answers
        self._poll_s = poll_s
        self._at = 0

    async def start(self) -> None:
        """It is connected."""

    async def stop(self) -> None:
        """It has no connection."""

    def assign(self, _places: list[TopicPartition]) -> None:
        """It has one partition."""

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self._at = offset

    async def getmany(self, place: TopicPartition, **_: int) -> dict[TopicPartition, list[SourceBatch]]:
        self._clock.now += self._poll_s
        if self._at >= len(self._answers):
            return {}
        self._at += 1
        read = ReadRecord("t", 0, self._at - 1, 0, b"k", b"v", ())
        return {place: [SourceBatch(place, read.offset, None, [read])]} if self._answers[self._at - 1] else {}

    async def position(self, _place: TopicPartition) -> int:
        return self._at


def opened(monkeypatch: pytest.MonkeyPatch, clock: Clock, answers: list[bool], poll_s: float) -> PartitionReader:
    monkeypatch.setattr(partition, "time", clock)
    monkeypatch.setattr(partition, "ConsumerControls", lambda _: None)
    monkeypatch.setattr(partition, "FetchedBatches", lambda *_: None)
    monkeypatch.setattr(Client, "open", lambda _: Consumer(clock, answers, poll_s))
    return PartitionReader(Client(read(KAFKA_KEYS, {"kafka.bootstrap.servers": "b:1"})), "t", 0)


def test_the_time_that_the_caller_takes_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may take longer with a record than Kafka may be silent: the next record is asked for all the same."""
    clock, found = Clock(), []
    with closing(opened(monkeypatch, clock, [True] * 3, 1)) as log:
        for record in log.records(0, 3):
            found.append(record.offset)
            clock.now += 1_000
    assert found == [0, 1, 2]


def test_offsets_without_records_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted transactions may be long: while the position goes on, no record needs to come."""
    with closing(opened(monkeypatch, Clock(), [*[False] * 9, True], 30)) as log:
        assert [record.offset for record in log.records(0, 10)] == [9]


def test_silence_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that gives nothing more fails after a minute, and not before."""
    clock = Clock()
    with closing(opened(monkeypatch, clock, [True], 1)) as log:
        left = log.records(0, 2)
        assert next(left).offset == 0
        clock.now = 1_000
        with pytest.raises(JobFailedError, match="topic t partition 0 has no record at offset 1 for 60 s"):
            next(left)
    assert 1_060 < clock.now <= 1_062
