"""Ranges of offsets, read by one blocking client from any partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from app.config.client import embedded_client_settings
from app.config.settings import ClientSettings
from app.kafka import range_reader
from app.kafka.clients import ClusterError
from app.kafka.range_reader import RangeReader, RecordsLostError
from app.kafka.source_batch import ReadRecord, SourceBatch, UnreadBatch
from app.kafka.spans import described
from tests.built_batches import built, changed
from tests.integration.odd_batches import produce
from tests.integration.operations import Operations
from tests.integration.topics import send, write_raw
from transforms.errors import MalformedError
from transforms.record import Record
from transforms.record_batch import pack

MakeTopic = Callable[..., str]
PLACE = TopicPartition("t", 0)


def client_of(broker: str) -> ClientSettings:
    return embedded_client_settings({"bootstrap.servers": broker})


def test_ranges_of_several_partitions_at_a_time(broker: str, make_topic: MakeTopic) -> None:
    """Each range has its records once and in order, whatever ranges of other partitions and its own come between."""
    one, other = make_topic(2), make_topic(1)
    for topic, numbers in ((one, range(2)), (other, range(1))):
        send(broker, topic, [(number, b"k", b"%d" % at, [], 5) for number in numbers for at in range(20)])
    ranges = [(TopicPartition(one, 0), 0, 20), (TopicPartition(one, 1), 3, 17), (TopicPartition(one, 0), 5, 9)]
    ranges.append((TopicPartition(other, 0), 0, 20))
    with closing(RangeReader(client_of(broker), max_partition_fetch_bytes=200)) as log:
        found: dict[int, list[int]] = {at: [] for at in range(len(ranges))}
        running = {at: log.records(*each) for at, each in enumerate(ranges)}
        while running:
            for at, records in list(running.items()):
                record = next(records, None)
                if record is None:
                    del running[at]
                else:
                    assert record.value == b"%d" % record.offset
                    found[at].append(record.offset)
        assert found == {at: [*range(start, end)] for at, (_, start, end) in enumerate(ranges)}
        assert log.first(TopicPartition(other, 0)) == 0


def test_records_that_cannot_be_read(broker: str, make_topic: MakeTopic) -> None:
    """A header name that is not UTF-8 has its bytes; a batch that cannot be decoded is one in each range it is in."""
    place = TopicPartition(make_topic(1), 0)
    asyncio.run(write_raw(broker, place.topic, [Record(b"k", b"v", (("h\udcff", b""), ("ä", b"x")))]))
    records = b"\x10\0\0\0\2a\2b\0" + b"\x10\0\0\0\2c\2d\0"  # the second one has the offset of the first
    broken = built(0, [Record(b"a", b"b")] * 2)[:61] + records
    broken = changed(broken, ">i", 8, len(broken) - 12)
    assert produce(broker, place.topic, [broken, bytes(pack([Record(b"last", b"v")]))]) == 2
    with closing(RangeReader(client_of(broker))) as log:
        name, first, failed, last = (
            record for start, end in ((0, 2), (2, 3), (3, 4)) for record in log.records(place, start, end)
        )
    assert [each.offset for each in (name, first, failed, last)] == [0, 1, 2, 3]
    assert [*name.headers] == [("h\udcff", b""), ("ä", b"x")]
    assert (first.key, last.key) == (b"a", b"last")
    assert isinstance(failed, UnreadBatch)
    assert "offset of a record (offsets 2 to 2) is '1'; allowed: 2 to 2" in str(failed.error)
    assert failed.value[61:] == broken[61:]


def test_a_batch_that_nobody_can_read_ends_with_its_range() -> None:
    """Each range that an unread batch is in has its own part of it, and none is passed over."""
    batch = SourceBatch(PLACE, 3, None, (UnreadBatch("t", 0, 8, 5, b"raw", MalformedError("batch", "x", "y"), 3),))
    found = [[(each.offset, each.value) for each in range_reader.opened(batch, end)] for end in (3, 6, 20)]
    assert found == [[], [(5, b"raw")], [(8, b"raw")]]


def test_records_and_topics_that_are_gone(broker: str, make_topic: MakeTopic) -> None:
    """They are an error with the place; records may be left out, but none behind the end, nor of another topic."""
    topic = make_topic(1)
    place = TopicPartition(topic, 0)

    async def delete() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=broker)
        await client.start()
        await client.delete_records({place: RecordsToDelete(2)})
        await client.close()

    send(broker, topic, [(0, b"k", b"v", [], 5)] * 4)
    asyncio.run(delete())
    before = described(client_of(broker), {"--topic": [topic]})[topic].topic.id
    with closing(RangeReader(client_of(broker))) as log:
        with pytest.raises(RecordsLostError, match="offset 1 is not there, the first one is 2: Kafka has") as caught:
            next(log.records(place, 1, 4))
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.first) == (*place, 1, 2)
        assert [each.offset for each in log.records(place, 1, 4, fail_on_loss=False)] == [2, 3]
        with pytest.raises(RecordsLostError, match="offset 9 is not there"):
            next(log.records(place, 9, 10, fail_on_loss=False))
        log.require_topic(topic, before)
    with closing(RangeReader(client_of(broker))) as log:
        Operations(broker).remove_topic(topic)
        with pytest.raises(ClusterError, match=f"topic {topic} does not exist any more"):
            next(log.records(place, 0, 1))
        make_topic(1, named=topic)
        log.require_topic(topic, None)
        with pytest.raises(ClusterError, match=f"topic {topic} was deleted and created again while it was read"):
            log.require_topic(topic, before)


def test_no_broker() -> None:
    """A cluster that does not answer is an error with its address."""
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1"):
        RangeReader(client_of("127.0.0.1:1"))


# --- silence


class Controls:
    """A partition that answers each poll, after some time, with one offset that may have a record; then no more."""

    def __init__(self, answers: list[bool], poll_s: float) -> None:
        self.consumer = self
        self.now = 0.0
        self._answers = answers
        self._poll_s = poll_s
        self._at = 0

    def monotonic(self) -> float:
        """The time, which goes on with polls, and where a test says so."""
        return self.now

    async def stop(self) -> None:
        """It has no connection."""

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def check_fetcher(self) -> None:
        """Nothing has failed."""

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self._at = offset

    async def getmany(self, place: TopicPartition, **_: int) -> dict[TopicPartition, list[SourceBatch]]:
        self.now += self._poll_s
        if self._at >= len(self._answers):
            return {}
        self._at += 1
        read = ReadRecord("t", 0, self._at - 1, 0, b"k", b"v", ())
        return {place: [SourceBatch(place, read.offset, None, [read])]} if self._answers[self._at - 1] else {}

    def position(self, _place: TopicPartition) -> int:
        return self._at


@pytest.mark.parametrize(
    ("answers", "poll_s", "caller_s", "found"),
    [
        ([True, True, False, True], 1, 1_000, [0, 1, 3]),  # the time that the caller takes is no silence
        ([*[False] * 9, True], 30, 0, [9]),  # nor are aborted transactions, which may be long: the position goes on
        ([True], 1, 1_000, [0]),
    ],
)
def test_silence_is_an_error(
    answers: list[bool], poll_s: float, caller_s: float, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that gives nothing more fails after a minute, and not before."""
    controls = Controls(answers, poll_s)

    async def started(*_: object) -> Any:
        return controls

    async def identity(*_: object) -> Any:
        return SimpleNamespace(id=None)

    monkeypatch.setattr(range_reader, "time", controls)
    monkeypatch.setattr(range_reader, "_started", started)
    monkeypatch.setattr(RangeReader, "_identity", identity)
    given = []
    with closing(RangeReader(client_of("b:1"))) as log:
        left = log.records(PLACE, 0, len(answers) + 1)
        for _ in found:
            given.append(next(left).offset)
            controls.now += caller_s
        last_s = controls.now
        with pytest.raises(ClusterError, match=f"has returned no record at offset {len(answers)} for 60 s"):
            next(left)
    assert given == found
    assert last_s + 60 < controls.now <= last_s + 60 + 2 * poll_s
