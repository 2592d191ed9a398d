"""The downloads of the records that come next: in order, bounded, each once; what failed ahead begins again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.chunks.allowance import PARALLEL
from app.chunks.inbox import Place
from app.chunks.prefetch import Prefetch
from app.kafka.source_batch import ReadRecord
from tests.app.chunks.records import Records
from transforms.chunk import Chunk
from transforms.chunked_message import Limits
from transforms.record import Header

P0, P1 = ("orders", 0), ("orders", 1)


class Store:
    """Downloads that a test ends. The value of a record is the size of its payload."""

    def __init__(self, max_bytes: int = 1_000) -> None:
        self.inbox = Records(Limits(), 10)
        self.begun: list[tuple[int, int]] = []
        self.futures: dict[tuple[int, int], asyncio.Future[ReadRecord]] = {}
        self.prefetch = Prefetch(self.inbox, self.size, self.restore, max_bytes)

    def size(self, record: ReadRecord) -> int | None:
        return int(record.value) if record.value else None

    def restore(self, record: ReadRecord) -> asyncio.Future[ReadRecord]:
        place = record.partition, record.offset
        self.begun.append(place)
        self.futures[place] = asyncio.get_running_loop().create_future()
        return self.futures[place]

    def put(self, place: Place, *values: bytes, headers: tuple[Header, ...] = ()) -> None:
        known = [each.offset for each in self.inbox.entries(place)]
        start = max(known, default=-1) + 1
        records = [ReadRecord(*place, start + n, 7, b"k", value, headers) for n, value in enumerate(values)]
        self.inbox.put(place, records)


async def test_order_and_number() -> None:
    """Partitions take turns, as they do in the delivery; a few are under way, and each begins once."""
    store = Store()
    store.put(P0, b"", *[b"1"] * 9)
    store.put(P1, b"1", b"1")
    under_way = store.prefetch.begin([P0, P1])
    assert store.begun == [(1, 0), (0, 1), (1, 1), *((0, n) for n in range(2, 7))]
    assert len(under_way) == PARALLEL
    assert len(store.prefetch.begin([P1])) == 2
    store.futures[0, 1].set_result(None)  # type: ignore[arg-type]
    assert len(store.prefetch.begin([P0, P1])) == PARALLEL
    assert store.begun[8:] == [(0, 7)]


@pytest.mark.parametrize(
    ("values", "begun"),
    [([b"600", b"400", b"1"], 2), ([b"5000", b"1"], 1), ([b"", b"5000", b"", b"1"], 1), ([b"600", b"500", b"1"], 1)],
)
async def test_bytes(values: list[bytes], begun: int) -> None:
    """What is downloaded and not delivered is within the limit; one alone may be larger, and none passes another."""
    store = Store()
    store.put(P0, *values)
    store.prefetch.begin([P0])
    assert len(store.begun) == begun


async def test_one_may_always_begin() -> None:
    """What other partitions hold, which are paused, stops nobody; of them nothing is waited for."""
    store = Store()
    store.put(P1, *[b"200"] * 9)
    assert len(store.prefetch.begin([P1])) == 5
    store.put(P0, b"300", b"300")
    assert store.prefetch.begin([P0]) == {store.futures[0, 0]}
    assert store.begun[5:] == [(0, 0)]
    late = Store()  # no time is left, or room for two records
    late.put(P0, b"1", b"1")
    assert len(late.prefetch.begin([P0], parallel=0)) == 1
    late.put(P1, *[b"1"] * 9)
    assert len(late.prefetch.begin([P1], 2)) == 2


async def test_what_failed_ahead_begins_again() -> None:
    """The store may have been down for a moment. What fails at the head stays as it is."""
    store = Store()
    store.put(P0, b"1", b"1")
    store.prefetch.begin([P0])
    for future in store.futures.values():
        future.set_exception(OSError("down"))
    first, second = store.inbox.entries(P0)
    assert [store.prefetch.ready(each) for each in (first, second)] == [True, False]
    assert (first.work is None, second.work is None) == (False, True)
    store.inbox.pop(P0)
    store.prefetch.begin([P0])
    store.futures[0, 1].set_exception(OSError("down"))
    assert store.prefetch.ready(second)
    assert store.begun == [(0, 0), (0, 1), (0, 1)]


async def test_what_is_ready() -> None:
    """A record that downloads is so when that has ended; others are, as pieces with the headers of a reference."""
    store = Store()
    store.put(P0, b"", b"1")
    plain, large = store.inbox.entries(P0)
    assert [store.prefetch.ready(each) for each in (plain, large)] == [True, False]
    store.prefetch.begin([P0])
    assert not store.prefetch.ready(large)
    result: Any = "whole"
    store.futures[0, 1].set_result(result)
    assert store.prefetch.ready(large)
    store = Store()
    store.put(P0, b"1", headers=Chunk("u", 0, 2, 2).headers())
    assert store.prefetch.begin([P0]) == set()
    assert store.prefetch.ready(store.inbox.first(P0))
