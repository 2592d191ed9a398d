"""A batch by itself: its stamp, its size, its halves."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import assume, given
from hypothesis import strategies as st

from app.kafka.batches.batch import Batch, Builder
from tests.strategies import records
from transforms.batch_size import BATCH_OVERHEAD_BYTES, record_bytes
from transforms.record import Record
from transforms.record_batch import Stamp

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Count:
    """A load that knows how many records it is for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def split(self, count: int) -> Count:
        """See `Load`."""
        rest = Count(self.count - count)
        self.count = count
        return rest

    def delivered(self, metadata: object, records: int, size: int) -> None:
        """See `Load`."""

    def failed(self, error: BaseException) -> None:
        """See `Load`."""


def builder_of(codec: str, room: int = 2**31 - 1) -> Builder:
    """An empty builder."""
    return Builder(room, CODECS[codec], transactional=False)


def parsed(builder: Builder) -> tuple[Stamp, list[Record]]:
    """What a broker finds in the batch, whose checksum must be right."""
    batch = MemoryRecords(bytes(builder.built())).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    stamp = Stamp(batch.producer_id, batch.producer_epoch, batch.base_sequence)
    return stamp, [Record(each.key, each.value, each.headers, each.timestamp) for each in batch]


@pytest.mark.parametrize("codec", CODECS)
def test_builder_takes_another_stamp_when_built(codec: str) -> None:
    """A batch that was compressed beforehand still goes with the sequence number that is right when it goes."""
    builder = builder_of(codec)
    record = Record(b"k", bytes(5_000), [("h", None)], 7)
    assert Batch(builder, Count(0), 0.0).append(record)
    builder.stamped(Stamp(5, 1, 10))
    assert parsed(builder) == (Stamp(5, 1, 10), [record])
    builder._set_producer_state(2**40, 9, 2**31 - 1)  # as aiokafka does
    assert parsed(builder) == (Stamp(2**40, 9, 2**31 - 1), [record])
    assert builder.stamp == Stamp(2**40, 9, 2**31 - 1)


@given(st.lists(records(), min_size=2, max_size=7), st.sampled_from(sorted(CODECS)))
def test_halves_are_the_batch(batch: list[Record], codec: str) -> None:
    """Whatever the records: the two halves have all of them in order, and their loads as many."""
    builder = builder_of(codec)
    whole = Batch(builder, Count(len(batch)), 3.0)
    batch = [record for record in batch if whole.append(record)]  # not all: see the test of those without timestamps
    assume(len(batch) > 1)
    whole.load.count = len(batch)
    whole.close()
    assert not whole.append(batch[0])
    builder.stamped(Stamp(1, 0, 0))
    builder.built()
    parts = whole.parts(whole.divided(lambda: builder_of(codec)))
    assert len(parts) >= 2
    assert [part.records for part in parts] == [part.load.count for part in parts]
    assert [record for part in parts for record in parsed(part.builder)[1]] == [
        Record(record.key, record.value, list(record.headers), record.timestamp) for record in batch
    ]
    assert {part.began_s for part in parts} == {3.0}


def test_size_before_and_after_it_is_built() -> None:
    """`uncompressed_bytes` is that of the records; `wire_bytes` is what they compress to, once that is known."""
    batch = Batch(builder_of("gzip"), Count(0), 0.0)
    record = Record(b"k", bytes(50_000), (), 7)
    batch.append(record)
    batch.close()
    assert batch.uncompressed_bytes == batch.wire_bytes == record_bytes(record)
    assert len(batch.builder.built()) == batch.wire_bytes + BATCH_OVERHEAD_BYTES
    assert batch.wire_bytes < 1_000
    assert batch.uncompressed_bytes == record_bytes(record)


def test_room_of_a_batch() -> None:
    """A batch takes its first record whatever its size, and none that goes over its room after that."""
    batch = Batch(builder_of("none", 200), Count(0), 0.0)
    assert batch.append(Record(None, bytes(1_000), (), 0))
    assert not batch.append(Record(None, b"", (), 0))
    assert batch.records == 1


def test_records_without_timestamps_keep_that() -> None:
    """A record without a timestamp has none in the batch either, and a batch of such is no larger than any other."""
    batch = Batch(builder_of("none", 500), Count(0), 0.0)
    untimed, timed = Record(b"k", bytes(50), (), -1), Record(b"k", bytes(50), (), 1_700_000_000_000)
    assert batch.append(untimed)
    assert not batch.append(timed)
    assert parsed(batch.builder)[1] == [Record(b"k", bytes(50), [], -1)]
    batch = Batch(builder_of("none", 500), Count(0), 0.0)
    while batch.append(untimed):
        pass
    assert 400 < len(batch.builder.built()) <= 500
    assert {record.timestamp for record in parsed(batch.builder)[1]} == {-1}
