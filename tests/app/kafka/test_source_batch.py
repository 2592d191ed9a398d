"""Batches as they were read: the records that are wanted, whatever the batch is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from app.kafka.source_batch import SourceBatch, UnreadBatch, decoded
from tests.app.kafka.scripted_log import PLACE
from tests.built_batches import PACKERS, built, changed, record, repacked, rows_of
from tests.transforms.peak import allocated_at_most
from transforms import record_format
from transforms.errors import TooManyHeadersError
from transforms.record import Record, SourceRecord
from transforms.record_batch import RecordBatch, pack
from transforms.record_format import MAX_HEADERS

RECORDS = [record(number) for number in range(10)]
LARGE = [record(number, 30_000) for number in range(10)]  # more than is read once
ODD = [*RECORDS[:2], Record(b"k", b"v", (("\udcff", b"x"), ("own", None)), 1_700_000_000_000)]
CROWDED = Record(b"k", None, (("", None),) * (MAX_HEADERS + 1), 1_700_000_000_000)
SIZES = (100, 600_000)  # whose headers are counted late, and before


def source(data: bytes | bytearray, offset: int = 0) -> SourceBatch:
    return SourceBatch(PLACE, offset, RecordBatch.read(memoryview(data)))


def found(batch: SourceBatch) -> list[tuple[int, Record]]:
    """Offsets and records of a batch; each is where it was read."""
    records = list(batch.records())
    assert all((each.topic, each.partition) == ("raw", 0) for each in records)
    return [(r.offset, Record(r.key, r.value, tuple(r.headers), r.timestamp)) for r in records]


def check_unread(batch: SourceBatch, whole: list[int], first: int, last: int, value: bytes, count: int) -> UnreadBatch:
    """The records before are whole; the others are one failed record with their bytes, and the batch is not plain."""
    assert not batch.plain
    *before, failed = batch.records()
    assert [each.offset for each in before] == whole
    assert isinstance(failed, UnreadBatch)
    assert (failed.first, failed.offset, failed.value, failed.count) == (first, last, value, count)
    return failed


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("records", [RECORDS, LARGE, ODD], ids=["small", "large", "odd"])
def test_records_from_a_position_on(packer: str, records: list[Record]) -> None:
    """Those before the position are left out; a batch with names that are no text is not plain, and is read as well."""
    data = changed(repacked(bytes(pack(records)), packer), ">q", 0, 100)
    for offset in (0, 99, 100, 101, 102, 105, 109):
        batch = source(data, offset)
        expected = [(100 + n, each) for n, each in enumerate(records) if 100 + n >= offset]
        assert found(batch) == expected
        assert batch.plain is (records is not ODD)
        if offset <= 100 and batch.plain:
            assert [row.offset for row in batch.rows()] == [each[0] for each in expected]
        assert found(batch) == expected
        assert batch.whole is (offset <= 100)
        assert (batch.size, batch.codec) == (len(data), PACKERS[packer][0])


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("size", SIZES)
def test_record_of_too_many_headers(packer: str, size: int) -> None:
    """It comes as a batch of its own, in its place; the others are read."""
    records = [record(0, size), CROWDED, record(2, size)]
    data = repacked(built(0, records, base=50), packer)
    for offset in (50, 51, 52):
        batch = source(data, offset)
        assert not batch.plain
        given = list(batch.records())
        assert [each.offset for each in given] == list(range(offset, 53))
        for each in given:
            if each.offset != 51:
                assert (each.value, len(each.headers)) == (b"v" * size, 2)
                continue
            assert isinstance(each, UnreadBatch)
            assert (each.key, each.headers, each.first, each.count) == (None, (), 51, 1)
            assert each.timestamp == CROWDED.timestamp
            assert str(each.error) == "malformed record: headers is '65,537'; allowed: at most 65,536"
            assert rows_of(each.value) == [(51, CROWDED)]
    with pytest.raises(TooManyHeadersError, match="65,537"):
        list(decoded(RecordBatch.read(memoryview(data))))
    allowed = replace(CROWDED, headers=CROWDED.headers[:-1])
    batch = source(built(0, [record(0, size), allowed, record(2, size)]))
    assert batch.plain
    assert [len(each.headers) for each in batch.records()] == [2, MAX_HEADERS, 2]


def test_headers_take_no_memory_before_they_are_counted() -> None:
    """A million headers of one record, or all those of a batch, would be objects of more than its bytes allow."""
    for records, most in (
        ([replace(CROWDED, headers=(("", None),) * 1_000_000)], 16_000_000),
        ([Record(b"k", b"v", (("", None),) * 60_000, n) for n in range(20)], 24_000_000),
    ):
        data = repacked(built(0, records), "zstd")
        with allocated_at_most(most):
            batch = source(data)
            assert not batch.plain
            unread = sum(isinstance(each, UnreadBatch) for each in batch.records())
        assert unread == (len(records) == 1)
        del batch
    assert source(built(0, [record(n, 10) for n in range(20_000)])).plain


def hand_made(records: list[tuple[int, Record]], attributes: int = 0) -> bytes:
    """A batch whose records have these offset deltas, and these attributes, which brokers ignore."""
    parts = []
    for delta, each in records:
        data = record_format.serialize(replace(each, timestamp=0), delta)
        at = record_format.number(data, 0, len(data))[1]
        parts.append(data[:at] + bytes([attributes]) + data[at + 1 :])
    whole = built(0, [Record(None, None)] * len(records), base=50)[:61] + b"".join(parts)
    return changed(whole, ">i", 8, len(whole) - 12)


@pytest.mark.parametrize("size", SIZES)
def test_attributes_that_clients_read_in_two_ways(size: int) -> None:
    """aiokafka takes what follows for other fields, offset and headers among them: it does not read such a batch."""
    records = [Record(b"k" * 70, b"v" * size), Record(b"k", b"v" * size, (("h", b"x"),)), Record(b"", b"")]
    batch = source(hand_made(list(enumerate(records)), 0x80), 50)
    assert not batch.plain
    assert [(n, each.key, each.value, each.headers) for n, each in found(batch)] == [
        (50 + n, each.key, each.value, each.headers) for n, each in enumerate(records)
    ]
    assert source(hand_made(list(enumerate(records))), 50).plain


@pytest.mark.parametrize("deltas", [[0, 2, 1], [0, 0, 2], [0, 3, 2], [0, 900_000, 2]])
@pytest.mark.parametrize("packer", ["none", "zstd"])
def test_offsets_that_records_cannot_have(deltas: list[int], packer: str) -> None:
    """The records before the first of them are read; the others are one letter, and no offset behind is committed."""
    data = repacked(hand_made([(delta, record(n)) for n, delta in enumerate(deltas)]), packer)
    failed = check_unread(source(data, 50), [50], 51, 52, data, 2)
    assert "offset of a record (offsets 51 to 52) is" in str(failed.error)


@pytest.mark.parametrize("packer", PACKERS)
def test_records_that_cannot_be_decoded(packer: str) -> None:
    """Cut off, not counted, or not to be decompressed: those before are given, the others are one letter."""
    for records in (RECORDS, ODD):
        cut = bytes(pack(records))[:-3]
        data = repacked(changed(cut, ">i", 8, len(cut) - 12), packer)
        last = len(records) - 1
        for offset in (0, last):
            batch = source(data, offset)
            assert batch.unread(1 << 20) is None
            check_unread(batch, list(range(offset, last)), last, last, data, 1)
    data = repacked(changed(built(0, RECORDS), ">i", 57, 9), packer)
    check_unread(source(data), list(range(8)), 8, 9, data, 2)
    if packer == "none":
        return
    data = repacked(bytes(pack(RECORDS)), packer)
    data = changed(data[:-3], ">i", 8, len(data) - 15)
    batch = source(data, 2)
    assert (batch.plain, batch.plain_bytes) == (False, len(data))
    failed = check_unread(batch, [], 2, 9, data, 8)
    assert "records of a batch (offsets 2 to 9) is" in str(failed.error)
    wrong = source(data[:17] + bytes(4) + data[21:], 2)  # its checksum is: it is fetched again
    with pytest.raises(CorruptRecordException, match=r"topic='raw', partition=0.*offset 2: "):
        list(wrong.records())


@pytest.mark.parametrize("packer", PACKERS)
def test_bytes_behind_the_fields_of_a_record(packer: str) -> None:
    """They are ignored, as librdkafka ignores them; brokers take such records if they are compressed."""
    parts = [record_format.serialize(replace(each, timestamp=0), n) for n, each in enumerate(RECORDS)]
    longer = [record_format.number_bytes(len(part) - 2 + 1) + part[2:] + b"x" for part in parts]
    data = built(0, [replace(each, timestamp=0) for each in RECORDS])[:61] + b"".join(longer)
    batch = source(repacked(changed(data, ">i", 8, len(data) - 12), packer))
    assert not batch.plain
    assert [each for _, each in found(batch)] == [replace(each, timestamp=0) for each in RECORDS]


def test_unopened_has_the_whole_batch() -> None:
    """A batch over the limit is given as it was read, with the place of all its records; others are opened."""
    data = repacked(built(0, [record(n, 10_000) for n in range(3)], base=50), "gzip")
    batch = source(data, 51)
    assert batch.unread(40_000) is None
    unread = batch.unread(20_000)
    assert unread is not None
    assert (unread.first, unread.offset, unread.count) == (51, 52, 3)
    assert (unread.topic, unread.partition, unread.timestamp) == ("raw", 0, 1_700_000_000_002)
    assert unread.value == data
    assert str(unread.error) == (
        "the batch of offsets 51 to 52 holds more than 20,000 bytes before compression; allowed are in.flight.bytes, "
        "or 64 MiB if that is more"
    )
    assert SourceBatch(PLACE, 0, None, ()).unread(1) is None


def test_broker_time_is_that_of_all_records() -> None:
    """With the time of the broker, and names that are text or not; such a batch does not go whole."""
    for records in (RECORDS, ODD):
        batch = source(changed(changed(bytes(pack(records)), ">h", 21, 0x08), ">q", 35, 4_711))
        assert {each.timestamp for _, each in found(batch)} == {4_711}
        assert not batch.whole


def test_compaction_leaves_gaps() -> None:
    """Each record has its own offset; where all that are wanted are gone there are none."""
    data = changed(hand_made([(n, record(n)) for n in (0, 3, 4)]), ">i", 23, 9)
    for offset, expected in ((50, [50, 53, 54]), (51, [53, 54]), (54, [54]), (55, []), (59, [])):
        batch = source(data, offset)
        assert [each for each, _ in found(batch)] == expected
        if offset == 50:
            assert [row.offset for row in batch.rows()] == expected
        assert not batch.whole


def test_records_in_another_way() -> None:
    """Records of old formats come as they are, and never whole."""
    records = list(source(built(0, RECORDS, base=7), 9).records())
    assert all(isinstance(each, SourceRecord) for each in records)
    batch = SourceBatch(PLACE, 9, None, records)
    assert (list(batch.records()), batch.whole, batch.codec) == (records, False, 0)
    assert batch.size > 8 * 100


def test_kept_has_bytes_of_its_own() -> None:
    """What else was fetched with a batch may be let go while it waits."""
    response = bytearray(built(0, RECORDS, base=5) * 2)
    batch = SourceBatch(PLACE, 6, RecordBatch.read(memoryview(response)[: len(response) // 2]))
    expected = found(batch)
    kept = batch.kept()
    response[:] = bytes(len(response))
    assert found(kept) == expected
    assert (kept.offset, kept.partition) == (6, TopicPartition("raw", 0))


def test_decoded_wraps_as_brokers_do() -> None:
    """The sum of the first timestamp and the distance is an int64."""
    data = changed(bytes(pack([Record(b"k", b"v", (), 0), Record(b"k", b"v", (), 10)])), ">q", 27, 2**63 - 5)
    assert [each.timestamp for _, each in decoded(RecordBatch.read(memoryview(data)))] == [2**63 - 5, -(2**63) + 5]
