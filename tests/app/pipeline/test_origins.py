"""What is kept of a batch, when the batch is split: offsets, source partitions, bytes of the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aiokafka.structs import RecordMetadata, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.budget import Budget, Share
from app.pipeline.offset_tracker import OffsetTracker
from app.pipeline.output import Origins

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

    def durable(held: int, records: int, _: int) -> None:
        share.give(held)
        counts.append(records)

    output = cast(Any, SimpleNamespace(durable=durable))

    batches: list[tuple[Origins, list[tuple[int, int]]]] = []  # and (source, offset) of its records
    offsets = [0] * sources
    for source in origins:
        if not batches or data.draw(st.booleans()):
            batches.append((Origins(output), []))
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
