"""Records in the bytes of Kafka's batches."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from tests.built_batches import raw_batch
from tests.transforms.peak import allocated_at_most
from transforms.errors import HeaderNameError, MalformedError
from transforms.record import Record
from transforms.record_format import check_names, name_bytes, parse, serialize

OCTETS = st.none() | st.binary(max_size=300)
NAMES = st.binary(max_size=20).map(lambda octets: octets.decode(errors="surrogateescape"))
RECORDS = st.builds(
    Record, OCTETS, OCTETS, st.lists(st.tuples(NAMES, OCTETS), max_size=4).map(tuple), st.integers(-1, 2**62)
)


@given(RECORDS)
def test_record_comes_back(record: Record) -> None:
    """All of it, header names that are not UTF-8 among it; and the bytes of the names are what they were."""
    data = serialize(record)
    assert parse(data) == record
    for name, _ in record.headers:
        assert name_bytes(name) in data


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_raw_batch_is_what_clients_read(records: list[Record]) -> None:
    """aiokafka reads the batch with the right checksum; where names are not UTF-8, it says so."""
    batch = MemoryRecords(bytes(raw_batch(records).built())).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    try:
        for record in records:
            check_names(record)
    except HeaderNameError:
        with pytest.raises(UnicodeDecodeError):
            list(batch)
        return
    found = [Record(each.key, each.value, tuple(each.headers), each.timestamp) for each in batch]
    assert found == records


@given(RECORDS, st.integers(0, 2_000), st.integers(0, 255))
def test_bytes_that_are_no_record(record: Record, place: int, octet: int) -> None:
    """A changed or cut record is another one or a documented error."""
    data = bytearray(serialize(record))
    data[place % len(data)] = octet
    for damaged in (bytes(data), bytes(data[: place % len(data)])):
        try:
            found = parse(damaged)
        except MalformedError:
            continue
        assert parse(serialize(found)) == found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        b"\xff" * 20,
        b"\x0c\0\0\0\x01\x01\xfe\xff\xff\xff\x0f",
        b"\x0c\0\0\0\xfe\xff",
        b"\x18\0\0\0\x01\x01\xfe\xff\xff\x1f" + b"\0" * 10,  # headers: 33 million
        b"\x18\0\0\0\xfe\xff\xff\x1f" + b"\0" * 12,  # a key of 33 MB
    ],
)
def test_sizes_that_lie(data: bytes) -> None:
    """Lengths and counts beyond the bytes that are there are refused, and nothing is allocated for what they claim."""
    with pytest.raises(MalformedError), allocated_at_most(100_000):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0c\0\0\0\x03\x05\0",  # lengths of -2 and -3
        b"\x1e\0" + b"\x80" * 9 + b"\x02" + b"\0\x01\x01\0",  # a timestamp of 65 bits
    ],
)
def test_numbers_that_brokers_take(data: bytes) -> None:
    """What brokers and other readers do not mind is read as they read it: one such record must not end a pipeline."""
    assert parse(data) == Record(None, None, (), 0)


def test_one_record_and_no_more() -> None:
    """What follows it is counted."""
    data = serialize(Record(b"k", b"v", (), 7))
    assert (parse(data), data[3]) == (Record(b"k", b"v", (), 7), 0)
    with pytest.raises(MalformedError) as caught:
        parse(data + bytes(1_234))
    assert (caught.value.field, caught.value.allowed) == ("record", "one record")
    assert caught.value.found.startswith("1,234 bytes")
