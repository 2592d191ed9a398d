"""What a sink keeps of a batch, when the batch is split: offsets, source partitions, bytes of the budget."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from aiokafka.structs import RecordMetadata, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.batches.batch import Builder
from app.kafka.batches.outbox import Outbox
from app.pipeline.budget import Budget, Share
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.sink import Origins, Sink
from transforms.record import Record

DONE = RecordMetadata("t", 0, TopicPartition("t", 0), 0, -1, 0, 0)


@given(st.data())
def test_parts_of_a_batch_commit_no_more_than_is_durable(data: st.DataObject) -> None:
    """However batches of records of several partitions are split, and in which order ever their parts arrive.

    No tracker's safe offset passes a record that is not durable; in the end each does, and all bytes are given back.
    """
    sources = data.draw(st.integers(1, 3))
    trackers = [OffsetTracker(0) for _ in range(sources)]
    origins = data.draw(st.lists(st.integers(0, sources - 1), min_size=1, max_size=40))
    share = Share(Budget(10**9))
    counts: list[int] = []
    batches: list[tuple[Origins, list[tuple[int, int]]]] = []  # and (source, offset) of its records
    offsets = [0] * sources
    for source in origins:
        if not batches or data.draw(st.booleans()):
            batches.append((Origins(share, lambda records, size: counts.append(records)), []))
        load, inside = batches[-1]
        offset = offsets[source]
        offsets[source] += data.draw(st.integers(0, 2))  # chunks share the offset of their source
        if trackers[source] is not load.tracker:
            load.switch(trackers[source], offset)
        load.offsets.append(offset)
        trackers[source].released = offset + 1
        held = data.draw(st.integers(0, 1_000))
        share.take(held)
        load.held += held
        inside.append((source, offset))
    while batches:
        at = data.draw(st.integers(0, len(batches) - 1))
        load, inside = batches[at]
        if len(inside) > 1 and data.draw(st.booleans()):
            count = data.draw(st.integers(1, len(inside) - 1))
            rest = load.split(count)
            batches[at : at + 1] = [(load, inside[:count]), (rest, inside[count:])]
            assert load.offsets == [offset for _, offset in inside[:count]]
            assert rest.offsets == [offset for _, offset in inside[count:]]
        else:
            load.delivered(DONE, len(inside), 1)
            del batches[at]
        for source, tracker in enumerate(trackers):
            waiting = [offset for _, rest_of in batches for where, offset in rest_of if where == source]
            assert tracker.safe() == min(waiting, default=tracker.released)
    assert share.used == 0
    assert sum(counts) == len(origins)


async def test_partitions_are_sent_in_the_order_in_which_they_were_written() -> None:
    """Of many at once too: else two runs of a simulation with one seed would differ."""
    sent: list[int] = []
    tracker = OffsetTracker(0)

    def outbox(topic: str, partition: int, make_load: Callable[[], Origins], **_: object) -> Outbox[Origins]:
        def builder(codec: int) -> Builder:
            return Builder(1_000, codec, transactional=False)

        return Outbox(
            TopicPartition(topic, partition),
            builder,
            make_load,
            lambda made: sent.append(made.partition.partition),
            codec=0,
            transactional=False,
        )

    sink = Sink(cast(Any, SimpleNamespace(outbox=outbox)), "t", Share(Budget(1)), acknowledged=lambda *_: None)
    wanted = [number * 7 % 100 for number in range(100)]
    for _ in range(2):
        for offset, partition in enumerate(wanted):
            sink.append(partition, Record(b"k", b"v", (), 1), tracker, offset, 1)
        sink.flush()
    assert sent == [*wanted, *wanted]
