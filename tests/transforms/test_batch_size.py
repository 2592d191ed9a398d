"""The size of a record in Kafka, held against the batch builder that aiokafka sends with."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies import records
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes, record_bytes, varint_bytes
from transforms.record import Header, Record


def built(record: Record) -> bytes:
    """The batch of one that aiokafka sends for `record`."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    builder.append(0, timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("record", "encoded"),
    [
        (Record(None, None), b"\x0c\x00\x00\x00\x01\x01\x00"),
        (Record(b"", b""), b"\x0c\x00\x00\x00\x00\x00\x00"),
        (Record(None, b"v"), b"\x0e\x00\x00\x00\x01\x02v\x00"),
        (Record(b"k", None), b"\x0e\x00\x00\x00\x02k\x01\x00"),
        (Record(b"k", b"v", (("h", None),)), b"\x16\x00\x00\x00\x02k\x02v\x02\x02h\x01"),
        (Record(b"k", b"v", (("h", b""),)), b"\x16\x00\x00\x00\x02k\x02v\x02\x02h\x00"),
        (
            Record(b"k", b"v", (("h", b"1"), ("h", b"1"))),
            b"\x20\x00\x00\x00\x02k\x02v\x04\x02h\x021\x02h\x021",
        ),
        (Record(None, b"", (("é", b"x"),)), b"\x16\x00\x00\x00\x01\x00\x02\x04\xc3\xa9\x02x"),
    ],
)
def test_record_bytes_literal(record: Record, encoded: bytes) -> None:
    """The size is that of the literal record, which is what aiokafka writes behind the batch's 61 bytes."""
    assert built(record)[BATCH_OVERHEAD_BYTES:] == encoded
    assert record_bytes(record) == len(encoded)


@pytest.mark.parametrize(
    ("number", "size"),
    [
        (-1, 1),
        (0, 1),
        (1, 1),
        (63, 1),
        (64, 2),
        (8_191, 2),
        (8_192, 3),
        (1_048_575, 3),
        (1_048_576, 4),
        (134_217_727, 4),
        (134_217_728, 5),
        (2**31 - 1, 5),
    ],
)
def test_varint_bytes_boundary(number: int, size: int) -> None:
    """A zigzag varint takes another byte from 2**6, 2**13, 2**20 and 2**27 on."""
    assert varint_bytes(number) == size


LENGTHS = [0, 1, 55, 56, 57, 63, 64, 65, 8_183, 8_184, 8_191, 8_192, 1_048_575, 1_048_576]


@pytest.mark.parametrize("length", LENGTHS)
def test_batch_of_one_bytes_value_boundary(length: int) -> None:
    """The size is the real one where the varint of the value's or the record's length grows."""
    record = Record(None, b"v" * length)
    assert batch_of_one_bytes(record) == len(built(record))


@pytest.mark.parametrize("length", LENGTHS)
def test_batch_of_one_bytes_key_boundary(length: int) -> None:
    """The size is the real one where the varint of the key's length grows."""
    record = Record(b"k" * length, None)
    assert batch_of_one_bytes(record) == len(built(record))


@pytest.mark.parametrize("count", [0, 1, 2, 62, 63, 64, 65, 8_191, 8_192])
def test_batch_of_one_bytes_header_count_boundary(count: int) -> None:
    """The size is the real one where the varint of the number of headers grows."""
    record = Record(b"k", b"v", (("n", b"1"),) * count)
    assert batch_of_one_bytes(record) == len(built(record))


@pytest.mark.parametrize("name", ["", "x", "é" * 31, "é" * 32, "x" * 63, "x" * 64, "名" * 21, "名" * 22, "🗝" * 2_048])
@pytest.mark.parametrize("value", [None, b"", b"x" * 63, b"x" * 64])
def test_batch_of_one_bytes_header_name(name: str, value: bytes | None) -> None:
    """The name of a header counts with its bytes in UTF-8, not with its characters."""
    record = Record(None, b"v", ((name, value),))
    assert batch_of_one_bytes(record) == len(built(record))


@given(records())
@example(Record(None, None))
def test_batch_of_one_bytes_any_record(record: Record) -> None:
    """The size of any record is that of the batch which aiokafka builds for it."""
    assert batch_of_one_bytes(record) == len(built(record))


@given(st.lists(st.tuples(st.just("large-message"), st.none() | st.binary(max_size=2)), max_size=70))
def test_batch_of_one_bytes_many_headers(headers: list[Header]) -> None:
    """Many equal headers count each by itself."""
    record = Record(b"", b"", headers)
    assert batch_of_one_bytes(record) == len(built(record))


def test_record_bytes_lone_surrogate() -> None:
    """A name that UTF-8 cannot hold is refused as aiokafka refuses it; no consumer can deliver one."""
    record = Record(b"k", b"v", (("\ud800", b""),))
    with pytest.raises(UnicodeEncodeError):
        built(record)
    with pytest.raises(UnicodeEncodeError):
        record_bytes(record)
