"""Records that were fetched and not delivered: their downloads are found again, and counted; failures are not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from app.chunks.backlog import Backlog, Entry
from transforms.errors import SerializationError

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def entry(offset: int, size: int | None = 10, value: bytes = b"path", partition: TopicPartition = P0) -> Entry:
    """A record as aiokafka gives it, with the size of its payload."""
    return Entry(ConsumerRecord(*partition, offset, 7, 0, b"k", value, None, 1, len(value), ()), size)


async def restored(entry: Entry) -> ConsumerRecord:
    """Restores a record."""
    record: Any = entry.record
    await asyncio.sleep(0)
    if record.value == b"gone":
        raise SerializationError("orders", "value", "gone")
    return record


def offsets(taken: dict[TopicPartition, list[Entry]]) -> dict[int, list[int]]:
    """The offsets by partition."""
    return {partition.partition: [each.record.offset for each in entries] for partition, entries in taken.items()}


def backlog_of(entries: Sequence[Entry], others: Sequence[Entry] = ()) -> Backlog:
    """With these entries in two partitions."""
    backlog = Backlog()
    for partition, each in ((P0, entries), (P1, others)):
        for one in each:
            backlog.add(partition, one)
    return backlog


async def test_a_record_finds_its_download() -> None:
    """A download begins once, and serves every call; what it gives is the record."""
    found = entry(1)
    ready = [found.ready, entry(2, None).ready]
    task = found.begin(restored)
    assert found.begin(restored) is task
    assert await task is found.record
    assert [*ready, found.ready] == [False, True, True]


async def test_a_failure_of_yesterday_does_not_count() -> None:
    """The next call begins a download again that has failed for a call that was cancelled."""
    failing = entry(1, value=b"gone")
    backlog = backlog_of([failing])
    await asyncio.wait([failing.begin(restored)])
    before = failing.ready, failing.failed
    assert backlog.next([P0], None) == {P0: [failing]}
    assert before == (True, True)
    assert (failing.ready, failing.failed) == (False, False)


@pytest.mark.parametrize(
    ("most", "under_way", "taken"),
    [
        (None, 0, {0: [1, 2, 3], 1: [7, 8]}),
        (1, 0, {0: [1]}),
        (4, 0, {0: [1, 2, 3], 1: [7]}),
        (1, 1, {0: [1], 1: [7]}),
        (2, 1, {0: [1, 2], 1: [7]}),
    ],
)
async def test_a_call_takes_so_many(most: int | None, under_way: int, taken: dict[int, list[int]]) -> None:
    """In the order of offsets; a download that is under way, as for another call, counts for nothing."""
    backlog = backlog_of([entry(1), entry(2), entry(3)], [entry(7), entry(8)])
    for each in list(backlog.entries(P0))[:under_way]:
        _ = each.begin(restored)
    assert offsets(backlog.next([P0, P1], most)) == taken
    backlog.cancel()


async def test_other_partitions_go_first_after_a_delivery() -> None:
    """What is left of a partition comes behind the others; nothing is left of one that is empty."""
    backlog = backlog_of([entry(1), entry(2)], [entry(7)])
    backlog.drop(P0, 1)
    assert offsets(backlog.next([P0, P1], None)) == {1: [7], 0: [2]}
    backlog.drop(P1, 1)
    assert list(backlog.partitions) == [P0]


async def test_bytes_of_the_partitions_of_other_calls() -> None:
    """What is downloaded, or begun, counts; what is not begun does not."""
    mine, other = entry(1, 40), entry(7, 30)
    backlog = backlog_of([mine], [other, entry(8, 20), entry(9, None)])
    assert backlog.downloaded_bytes(without=[]) == 0
    await asyncio.wait([mine.begin(restored), other.begin(restored)])
    assert [backlog.downloaded_bytes(without=each) for each in ([], [P0], [P0, P1])] == [70, 30, 0]


async def test_a_move_drops_records() -> None:
    """A partition that is left drops its records, no others; a thread that downloads is left to end."""
    begun = entry(1)
    task = begun.begin(restored)
    backlog = backlog_of([begun], [entry(7)])
    backlog.forget(P0)
    backlog.forget(P0)
    assert offsets(backlog.next([P0, P1], None)) == {1: [7]}
    assert await task is begun.record
    assert begun.result() is begun.record
