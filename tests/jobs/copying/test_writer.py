"""The writer of a task, with a real broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import TopicPartition

from app.config.client import embedded_client_settings
from app.kafka.range_reader import RangeReader
from jobs.copying.receipt import Receipt
from jobs.copying.writer import SinkWriter, sink_topic
from jobs.driver.failures import JobFailedError
from tests.integration.topics import end_offsets, read_all
from transforms.record import Record

STARTED_MS = 1_600_000_000_000


def test_writer_that_was_given_up(broker: str, make_topic: Callable[..., str]) -> None:
    """A task that was thought lost and writes on is ended by the one in its place; the two are never mixed."""
    topic, client = make_topic(), embedded_client_settings({"bootstrap.servers": broker})
    sink = sink_topic(client, topic)

    def records(name: bytes) -> list[Record]:
        return [Record(name, b"%06d" % number * 50_000, (), STARTED_MS) for number in range(8)]

    with closing(SinkWriter(client, sink, f"{topic}-0", 60_000)) as lost:
        for record in records(b"lost"):
            lost.write(0, record)
        with closing(SinkWriter(client, sink, f"{topic}-0", 60_000)) as again:
            for record in records(b"again"):
                again.write(0, record)
                with contextlib.suppress(JobFailedError):
                    lost.write(0, record)
            again.commit(topic, 0, Receipt("again", 0, 8))
        with pytest.raises(JobFailedError, match="another run or task of the same backfill"):
            lost.commit(topic, 0, Receipt("lost", 0, 8))
    everything = [found.key for found in read_all(broker, topic)[0]]
    assert everything == [b"lost"] * (len(everything) - 8) + [b"again"] * 8
    with closing(RangeReader(client)) as log:
        found = log.records(TopicPartition(topic, 0), 0, end_offsets(broker, topic)[0])
        assert [record.key for record in found] == [b"again"] * 8


def test_writer_keeps_timestamps(broker: str, make_topic: Callable[..., str]) -> None:
    """Each record keeps its own, also one without, and one so far from another that their distance is no int64."""
    topic = make_topic(1, **{"retention.ms": "-1"})
    client = embedded_client_settings({"bootstrap.servers": broker})
    now = int(time.time() * 1000)
    times = [-1, -1, now, now - 5, -1, now - 2**63 + 600_000, now, -1]
    with closing(SinkWriter(client, sink_topic(client, topic), f"{topic}-0", 60_000)) as writer:
        for time_ms in times:
            writer.write(0, Record(b"k", b"v", (), time_ms))
        writer.commit(topic, 0, Receipt("all", 0, len(times)))
    assert [found.timestamp for found in read_all(broker, topic, "read_committed")[0]] == times
