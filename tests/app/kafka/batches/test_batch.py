"""A batch by itself: its stamp, its size, its halves."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import assume, given
from hypothesis import strategies as st

from app.kafka.batches.batch import UNLIMITED_BYTES, Batch, sent_bytes
from tests.built_batches import PACKERS, built, record, repacked
from tests.strategies import records
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes, record_bytes
from transforms.record import Record
from transforms.record_batch import RecordBatch, Stamp, pack

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


def batch_of(codec: str, room: int = UNLIMITED_BYTES) -> Batch[Count]:
    """An empty batch."""
    return Batch(Count(0), 3.0, CODECS[codec], transactional=False, room_bytes=room)


def whole_of(data: bytes | bytearray, codec: int, count: int = 0) -> Batch[Count]:
    """A batch that goes whole."""
    return Batch(Count(count), 0.0, codec, transactional=False, whole=RecordBatch.read(memoryview(data)))


def parsed(builder: Batch[Count]) -> tuple[Stamp, list[Record]]:
    """What a broker finds in the batch, whose checksum must be right."""
    batch = MemoryRecords(bytes(builder.built())).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    stamp = Stamp(batch.producer_id, batch.producer_epoch, batch.base_sequence)
    return stamp, [Record(each.key, each.value, each.headers, each.timestamp) for each in batch]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_does_not_grow(codec: str) -> None:
    """What does not compress is sent as it is, with its stamp: chunks are as long as their topic allows."""
    noise = Record(b"k", random.Random(1).randbytes(100_000), (("h", b"1"),), 7)
    plain = batch_of_one_bytes(noise)
    builder = batch_of(codec)
    assert builder.append(noise)
    builder.stamped(Stamp(5, 1, 10))
    whole = whole_of(pack([noise]), CODECS[codec])
    whole.stamped(Stamp(5, 1, 10))
    for each in (builder, whole):
        assert len(each.built()) == each.wire_bytes + BATCH_OVERHEAD_BYTES == plain
        assert parsed(each) == (Stamp(5, 1, 10), [Record(b"k", noise.value, [("h", b"1")], 7)])
        each.stamped(Stamp(6, 2, 11))
        assert parsed(each)[0] == Stamp(6, 2, 11)
    assert sent_bytes(noise, CODECS[codec]) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_sent_bytes_are_those_of_the_outbox(codec: str) -> None:
    """A record that is judged alone is as long when it is sent."""
    text = Record(b"k", b"a text that repeats itself, " * 9_000, (("h", b"1"),), 7)
    builder = batch_of(codec, 100)
    assert builder.append(text)
    builder.stamped(Stamp(5, 1, 10))
    assert sent_bytes(text, CODECS[codec]) == len(builder.built())


@pytest.mark.parametrize("codec", CODECS)
def test_builder_takes_another_stamp_when_built(codec: str) -> None:
    """A batch that was compressed beforehand still goes with the sequence number that is right when it goes."""
    builder = batch_of(codec)
    record = Record(b"k", bytes(5_000), [("h", None)], 7)
    assert builder.append(record)
    builder.stamped(Stamp(5, 1, 10))
    assert parsed(builder) == (Stamp(5, 1, 10), [record])
    builder._set_producer_state(2**40, 9, 2**31 - 1)  # as aiokafka does
    assert parsed(builder) == (Stamp(2**40, 9, 2**31 - 1), [record])
    assert builder.stamp == Stamp(2**40, 9, 2**31 - 1)


@given(st.lists(records(), min_size=2, max_size=7), st.sampled_from(sorted(CODECS)))
def test_halves_are_the_batch(batch: list[Record], codec: str) -> None:
    """Whatever the records: the two halves have all of them in order, and their loads as many."""
    whole = batch_of(codec)
    batch = [record for record in batch if whole.append(record)]  # not all: see the test of those without timestamps
    assume(len(batch) > 1)
    whole.load.count = len(batch)
    whole.close()
    assert not whole.append(batch[0])
    whole.stamped(Stamp(1, 0, 0))
    whole.built()
    parts = whole.divided()
    whole.split_load(parts)
    assert len(parts) >= 2
    assert [part.records for part in parts] == [part.load.count for part in parts]
    assert [record for part in parts for record in parsed(part)[1]] == [
        Record(record.key, record.value, list(record.headers), record.timestamp) for record in batch
    ]
    assert {part.began_s for part in parts} == {3.0}


def test_size_before_and_after_it_is_built() -> None:
    """`uncompressed_bytes` is that of the records; `wire_bytes` is what they compress to, once that is known."""
    batch = batch_of("gzip")
    record = Record(b"k", bytes(50_000), (), 7)
    batch.append(record)
    batch.close()
    assert batch.uncompressed_bytes == batch.wire_bytes == record_bytes(record)
    assert len(batch.built()) == batch.wire_bytes + BATCH_OVERHEAD_BYTES
    assert batch.wire_bytes < 1_000
    assert batch.uncompressed_bytes == record_bytes(record)


def test_room_of_a_batch() -> None:
    """A batch takes its first record whatever its size, and none that goes over its room after that."""
    batch = batch_of("none", 200)
    assert batch.append(Record(None, bytes(1_000), (), 0))
    assert not batch.append(Record(None, b"", (), 0))
    assert batch.records == 1


def test_records_without_timestamps_keep_that() -> None:
    """A record without a timestamp has none in the batch either, and a batch of such is no larger than any other."""
    batch = batch_of("none", 500)
    untimed, timed = Record(b"k", bytes(50), (), -1), Record(b"k", bytes(50), (), 1_700_000_000_000)
    assert batch.append(untimed)
    assert not batch.append(timed)
    assert parsed(batch)[1] == [Record(b"k", bytes(50), [], -1)]
    batch = batch_of("none", 500)
    while batch.append(untimed):
        pass
    assert 400 < len(batch.built()) <= 500
    assert {record.timestamp for record in parsed(batch)[1]} == {-1}


@pytest.mark.parametrize("packer", PACKERS)
def test_whole_batch_takes_any_stamp(packer: str) -> None:
    """It goes with the stamp that is given last, its records as they came, and takes none beside them."""
    sent = [record(number) for number in range(10)]
    data = repacked(built(0, sent, base=70, transactional=True, stamp=Stamp(9, 9, 9)), packer)
    builder = whole_of(data, PACKERS[packer][0])
    assert (builder.record_count(), builder.wire_bytes, builder.codec) == (10, len(data) - 61, PACKERS[packer][0])
    assert not builder.append(sent[0])
    assert builder.extend(sent, 0) == 0
    for stamp in (Stamp(5, 1, 10), Stamp(5, 1, 10), Stamp(2**40, 9, 2**31 - 1)):
        builder._set_producer_state(*stamp)  # as aiokafka does
        assert parsed(builder) == (stamp, [Record(r.key, r.value, list(r.headers), r.timestamp) for r in sent])
        assert builder.stamp == stamp
    assert builder._build() == builder.built()
    assert builder.tries == 1
    assert bytes(builder.built())[61:] == data[61:]


@pytest.mark.parametrize("packer", PACKERS)
def test_whole_batch_is_divided_as_others(packer: str) -> None:
    """If a broker refuses it, its records go in halves, each with the codec that it came with."""
    sent = [record(number, 200) for number in range(9)]
    data = repacked(built(0, sent, base=70), packer)
    codec = PACKERS[packer][0]
    batch = whole_of(data, codec, 9)
    parts = batch.divided()
    batch.split_load(parts)
    assert [part.load.count for part in parts] == [part.records for part in parts]
    assert len(parts) == 2
    found = [each for part in parts for each in parsed(part)[1]]
    assert found == [Record(r.key, r.value, list(r.headers), r.timestamp) for r in sent]
    assert {RecordBatch.read(memoryview(part.built())).codec for part in parts} == {codec}


@given(st.lists(records(), max_size=12), st.integers(100, 3_000), st.integers(0, 3))
def test_extend_is_append_for_many(added: list[Record], room: int, start: int) -> None:
    """The same records get in as one by one, up to the first that has no room or no timestamp."""
    listed = [Record(each.key, each.value, list(each.headers), each.timestamp) for each in added]
    many, single = batch_of("none", room), batch_of("none", room)
    taken = many.extend(listed, min(start, len(listed)))
    for number, each in enumerate(listed[start:]):
        if each.timestamp < 0 or not single.append(each):
            assert taken == number
            break
    else:
        assert taken == len(listed[start:])
    assert many.record_count() == taken
    if taken:
        assert parsed(many)[1] == listed[start : start + taken]
