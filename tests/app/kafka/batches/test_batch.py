"""A batch by itself: its stamp, its size, its halves."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import assume, given
from hypothesis import strategies as st

from app.kafka.batches.batch import UNLIMITED_BYTES, Batch, Each, sent_bytes
from tests.built_batches import PACKERS, built, record, repacked
from tests.strategies import records
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes, record_bytes
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch, Stamp, pack

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Load = Each[int]  # an entry for each record


def load(count: int = 0) -> Load:
    """The load of so many records."""
    made = Load(lambda *_: None, lambda *_: None)
    made.entries += range(count)
    return made


def batch_of(codec: str, room: int = UNLIMITED_BYTES) -> Batch[Load]:
    """An empty batch."""
    return Batch(load(), 3.0, CODECS[codec], transactional=False, room_bytes=room)


def whole_of(data: bytes | bytearray, codec: int, count: int = 0) -> Batch[Load]:
    """A batch that goes whole."""
    return Batch(load(count), 3.0, codec, transactional=False, whole=RecordBatch.read(memoryview(data)))


def listed(record: RecordLike) -> Record:
    """The record as aiokafka reads it."""
    return Record(record.key, record.value, list(record.headers), record.timestamp)


def parsed(builder: Batch[Load]) -> tuple[Stamp, list[Record]]:
    """What a broker finds in the batch, whose checksum must be right."""
    batch = MemoryRecords(bytes(builder.built())).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    return Stamp(batch.producer_id, batch.producer_epoch, batch.base_sequence), [*map(listed, batch)]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_does_not_grow(codec: str) -> None:
    """What does not compress is sent as it is, with its stamp: chunks are as long as their topic allows."""
    noise = Record(b"k", random.Random(1).randbytes(100_000), (("h", b"1"),), 7)
    plain = batch_of_one_bytes(noise)
    builder = batch_of(codec)
    assert builder.append(noise)
    for each in (builder, whole_of(pack([noise]), CODECS[codec])):
        for stamp in (
            Stamp(5, 1, 10),
            Stamp(6, 2, 11),
        ):  # compressed beforehand, it goes with the one that is right then
            each.stamped(stamp)
            assert len(each.built()) == each.wire_bytes + BATCH_OVERHEAD_BYTES == plain
            assert parsed(each) == (stamp, [listed(noise)])
    assert sent_bytes(noise, CODECS[codec]) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_sizes_and_stamps(codec: str) -> None:
    """A record that is judged alone is as long when it is sent; `wire_bytes` is that size once it is known."""
    text = Record(b"k", b"a text that repeats itself, " * 9_000, (("h", None),), 7)
    builder = batch_of(codec, 100)
    assert builder.append(text)
    assert not builder.append(Record(None, b"", (), 0)), "the first one goes over its room, and no other"
    builder.close()
    assert builder.uncompressed_bytes == builder.wire_bytes == record_bytes(text)
    builder.stamped(Stamp(5, 1, 10))
    assert sent_bytes(text, CODECS[codec]) == len(builder.built()) == builder.wire_bytes + BATCH_OVERHEAD_BYTES
    assert (builder.wire_bytes < 50_000, builder.uncompressed_bytes) == (codec != "none", record_bytes(text))
    for stamp in (Stamp(5, 1, 10), Stamp(2**40, 9, 2**31 - 1)):
        builder._set_producer_state(*stamp)  # as aiokafka does
        assert parsed(builder) == (stamp, [listed(text)])
        assert builder.stamp == stamp
    builder._set_producer_state(5, 1, -(2**31))  # so aiokafka counts on; in a log 0 follows
    assert builder.stamp == Stamp(5, 1, 0)


@given(st.lists(records(), min_size=2, max_size=7), st.sampled_from(sorted(CODECS)))
def test_halves_are_the_batch(batch: list[Record], codec: str) -> None:
    """Whatever the records: the two halves have all of them in order, and their loads as many."""
    whole = batch_of(codec)
    batch = [record for record in batch if whole.append(record)]  # not all: see the test of those without timestamps
    assume(len(batch) > 1)
    whole.load.entries += range(len(batch))
    whole.close()
    assert not whole.append(batch[0])
    whole.stamped(Stamp(1, 0, 0))
    check_halves(whole, batch)


def check_halves(whole: Batch[Load], records: list[Record]) -> list[Batch[Load]]:
    """Divides a batch."""
    parts = whole.divided()
    whole.split_load(parts)
    assert len(parts) >= 2
    assert [part.records for part in parts] == [len(part.load.entries) for part in parts]
    assert [entry for part in parts for entry in part.load.entries] == [*range(len(records))]
    assert [each for part in parts for each in parsed(part)[1]] == [*map(listed, records)]
    assert {part.began_s for part in parts} == {3.0}
    return parts


def test_records_without_timestamps_keep_that() -> None:
    """A record without a timestamp has none in the batch either, and a batch of such is no larger than any other."""
    batch = batch_of("none", 500)
    untimed, timed = Record(b"k", bytes(50), (), -1), Record(b"k", bytes(50), (), 1_700_000_000_000)
    assert batch.append(untimed)
    assert not batch.append(timed)
    assert parsed(batch)[1] == [listed(untimed)]
    batch = batch_of("none", 500)
    while batch.append(untimed):
        pass
    assert 400 < len(batch.built()) <= 500
    assert {record.timestamp for record in parsed(batch)[1]} == {-1}


@pytest.mark.parametrize("packer", PACKERS)
def test_whole_batch(packer: str) -> None:
    """It goes with the stamp that is given last, its records as they came; refused, they go in halves, as others do."""
    sent = [record(number, 200) for number in range(9)]
    data = repacked(built(0, sent, base=70, transactional=True, stamp=Stamp(9, 9, 9)), packer)
    codec = PACKERS[packer][0]
    builder = whole_of(data, codec, 9)
    assert (builder.record_count(), builder.wire_bytes, builder.codec) == (9, len(data) - 61, codec)
    assert not builder.append(sent[0])
    assert builder.extend(sent, 0) == 0
    for stamp in (Stamp(5, 1, 10), Stamp(5, 1, 10), Stamp(2**40, 9, 2**31 - 1)):
        builder._set_producer_state(*stamp)
        assert parsed(builder) == (stamp, [*map(listed, sent)])
        assert builder.stamp == stamp
    assert builder._build() == builder.built()
    assert builder.tries == 1
    assert bytes(builder.built())[61:] == data[61:]
    parts = check_halves(builder, sent)
    assert len(parts) == 2
    assert {RecordBatch.read(memoryview(part.built())).codec for part in parts} == {codec}


@given(st.lists(records(), max_size=12), st.integers(100, 3_000), st.integers(0, 3))
def test_extend_is_append_for_many(added: list[Record], room: int, start: int) -> None:
    """The same records get in as one by one, up to the first that has no room or no timestamp."""
    many, single = batch_of("none", room), batch_of("none", room)
    taken = many.extend([*map(listed, added)], min(start, len(added)))
    for number, each in enumerate(added[start:]):
        if each.timestamp < 0 or not single.append(each):
            assert taken == number
            break
    else:
        assert taken == len(added[start:])
    assert many.record_count() == taken
    if taken:
        assert parsed(many)[1] == [*map(listed, added[start : start + taken])]
