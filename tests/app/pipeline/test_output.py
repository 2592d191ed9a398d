"""The output: single records, many at once, and whole batches, in any order; offsets and bytes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from aiokafka.structs import RecordMetadata, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.batches.batch import Batch
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import BatchSettings, Outbox
from app.kafka.source_batch import ReadRecord, SourceBatch, decoded
from app.pipeline.budget import Budget, Share
from app.pipeline.output import Origins
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.outputs import output_over
from tests.built_batches import built
from transforms.record import Record
from transforms.record_batch import RecordBatch

DONE = RecordMetadata("t", 0, TopicPartition("t", 0), 0, -1, 0, 0)
WAYS = st.sampled_from(["one", "many", "whole"])
STEPS = st.lists(
    st.tuples(WAYS, st.integers(0, 1), st.integers(1, 12), st.sampled_from([0, 4])), min_size=1, max_size=12
)


class Sent:
    """An output with one partition, whose batches are never sent by themselves."""

    def __init__(self, room: int) -> None:
        self.share = Share(Budget(10**9))
        self.outbox: Outbox[Any] | None = None
        self._room = room
        self.output = output_over(self._make, self.share.give)

    def _make(self, topic: str, partition: int, make_load: Any, *, limit_bytes: int | None) -> Outbox[Any]:
        batches: Any = SimpleNamespace(
            settings=BatchSettings(batch_bytes=self._room),
            controls=SimpleNamespace(codec=0, transactional=False),
            numbers=BatchNumbers(),
        )
        self.outbox = Outbox(batches, TopicPartition(topic, partition), make_load, limit_bytes)
        return self.outbox


def apart(offset: int, codec: int, rows: list[ReadRecord]) -> Any:
    """A batch that does not go whole."""
    return SimpleNamespace(offset=offset, codec=codec, merged_from=0, is_forwarded=lambda *_: False, rows=lambda: rows)


def records_of(batch: Batch[Any]) -> list[tuple[bytes | None, int]]:
    """Key and codec of each record that a broker gets."""
    read = RecordBatch.read(memoryview(batch.built()))
    return [(record.key, batch.codec) for _, record in decoded(read)]


@settings(max_examples=150)
@given(STEPS, st.integers(150, 2_000), st.data())
def test_all_leaves_in_order_and_is_accounted_for(
    steps: list[tuple[str, int, int, int]], room: int, data: st.DataObject
) -> None:
    """Whatever the ways of records of two source partitions, and however their batches are split and acknowledged.

    They leave in the order in which they came, each with its codec; no commit passes one that is not durable; and in
    the end all bytes are given back.
    """
    asyncio.run(_all_leaves_in_order(steps, room, data))


async def _all_leaves_in_order(steps: list[tuple[str, int, int, int]], room: int, data: st.DataObject) -> None:
    sent = Sent(room)
    lanes = [lane_of(source, 0) for source in range(2)]
    trackers, offsets = [lane.tracked(0) for lane in lanes], [0, 0]
    expected: list[tuple[int, int]] = []  # source and offset
    wanted: list[tuple[bytes, int]] = []
    for way, source, count, codec in steps:
        offsets[source] += data.draw(st.sampled_from([0, 0, 5]))  # gaps, as in a compacted topic
        first = offsets[source]
        rows = [
            ReadRecord("raw", source, first + n, 5 + n, b"%d-%d" % (source, first + n), b"v" * 20, [])
            for n in range(count)
        ]
        offsets[source] += count
        held = data.draw(st.integers(0, 1_000))
        sent.share.take(held)
        if way == "one":
            rows = rows[:1]
            offsets[source] = first + 1
            sent.output.append(lanes[source], rows[0], first, held, codec)
        elif way == "many":
            sent.output.forward(lanes[source], apart(first, codec, rows), held)
        else:
            made = [Record(row.key, row.value, (), row.timestamp) for row in rows]
            batch = RecordBatch.read(memoryview(built(0, made, base=first)))
            sent.output.forward(lanes[source], SourceBatch(lanes[source].partition, first, batch), held)
        expected += [(source, row.offset) for row in rows]
        wanted += [(row.key or b"", 0 if way == "whole" else codec) for row in rows]
        assert trackers[source].released == offsets[source]
    assert sent.outbox is not None
    found: list[tuple[bytes | None, int]] = []
    batches: list[tuple[Any, list[tuple[int, int]]]] = []
    while (taken := sent.outbox.take()) is not None:
        found += records_of(taken)
        batches.append((taken.load, expected[: taken.records]))
        del expected[: taken.records]
    assert (found, expected) == (wanted, [])
    while batches:
        at = data.draw(st.integers(0, len(batches) - 1))
        load, inside = batches[at]
        if len(inside) > 1 and data.draw(st.booleans()):
            cut = data.draw(st.integers(1, len(inside) - 1))
            batches[at : at + 1] = [(load, inside[:cut]), (load.split(cut), inside[cut:])]
        else:
            assert list(load.offsets) == [offset for _, offset in inside]
            load.delivered(DONE, len(inside), 1)
            del batches[at]
        for source, tracker in enumerate(trackers):
            waiting = [offset for _, rest in batches for where, offset in rest if where == source]
            assert tracker.in_flight == bool(waiting)
            assert tracker.safe() == min(waiting, default=tracker.released)
    assert sent.share.used == 0
    assert sent.output._parts.stats.records_out == len(wanted)


async def test_partitions_are_sent_in_the_order_in_which_they_were_written() -> None:
    """Of many at once too: else two runs of a simulation with one seed would differ."""
    sent: list[int] = []

    class Outboxes:
        def __init__(self, _: str, partition: int, make_load: Callable[[], Origins], **__: object) -> None:
            self._partition = partition
            self._make_load = make_load

        def append(self, *_: object) -> Origins:
            return self._make_load()

        def send(self) -> None:
            sent.append(self._partition)

    output = output_over(Outboxes, lambda _: None)
    lane = lane_of(0, 0)
    wanted = [number * 7 % 100 for number in range(100)]
    for _ in range(2):
        for offset, partition in enumerate(wanted):
            lane.sink_partition = partition
            output.append(lane, Record(b"k", b"v", (), 1), offset, 1, 0)
        output.flush()
    assert sent == [*wanted, *wanted]
