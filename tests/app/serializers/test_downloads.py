"""Downloads that outlive a call: found again, bounded, and never a failure of yesterday."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from app.serializers.downloads import Downloads


@dataclass(frozen=True)
class Raw:
    """A record as Kafka has it."""

    offset: int
    value: bytes = b"path"
    topic: str = "orders"
    partition: int = 0


async def upper(record: Raw) -> bytes:
    """Restores a record."""
    await asyncio.sleep(0)
    if record.value == b"gone":
        raise LookupError("gone")
    return record.value.upper()


def everything(topic: str, partition: int, offset: int) -> bool:
    """All is still going to be read."""
    return True


async def test_a_record_finds_its_download() -> None:
    """The same record at the same place has one download; another record there, as after a truncation, its own."""
    downloads = Downloads(upper, 100)
    task = downloads.begin(Raw(1), 10)
    assert downloads.begin(Raw(1), 10) is task
    assert downloads.has(Raw(1))
    assert not downloads.has(Raw(1, b"other"))
    assert downloads.begin(Raw(1, b"other"), 10) is not task
    assert await task == b"PATH"


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [([40, 40, 40], [2, 3]), ([100, 1], [2]), ([1, 500], [2]), ([500], [1]), ([30, 30, 40], [1, 2, 3])],
)
async def test_so_much_is_kept(sizes: list[int], kept: list[int]) -> None:
    """At the end of a call the newest are kept, within the bound, but at least one, or it would never be done."""
    downloads = Downloads(upper, 100)
    for offset, size in enumerate(sizes, start=1):
        _ = downloads.begin(Raw(offset), size)
    downloads.trim(everything)
    assert [offset for offset in range(1, len(sizes) + 1) if downloads.has(Raw(offset))] == kept
    downloads.clear()


async def test_what_is_over_is_not_kept() -> None:
    """A failure, and a record that nobody is going to read, are forgotten: the next reader tries anew."""
    downloads = Downloads(upper, 100)
    failing = downloads.begin(Raw(1, b"gone"), 10)
    done = downloads.begin(Raw(2), 10)
    passed = downloads.begin(Raw(3), 10)
    await asyncio.wait([failing, done, passed])
    downloads.trim(lambda topic, partition, offset: offset != 3)
    assert [downloads.has(record) for record in (Raw(1, b"gone"), Raw(2), Raw(3))] == [False, True, False]
    downloads.forget(Raw(2))
    assert not downloads.has(Raw(2))
