"""Batches that aiokafka cannot read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from aiokafka import TopicPartition
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.util import calc_crc32c

from app.kafka.batches.raw import raw_batch
from app.kafka.undecodable import _decoded
from transforms.record import Record

PLACE = TopicPartition("raw", 0)
ODD = (("\udcff", b""),)


def damaged(first: int) -> bytes:
    """A batch of two records, from an offset on; the second has less than it says. Its checksum is right."""
    batch = bytearray(raw_batch([Record(b"k", b"v", ODD), Record(b"k", b"v", ODD)]).built())
    batch[0:8] = first.to_bytes(8)
    batch[-1] = 0x7E  # the length of the last header's value
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4)
    return bytes(batch)


def test_nothing_of_a_damaged_batch_is_read_twice() -> None:
    """Of what is behind the batch that was asked for, a batch that is damaged is left to the next read, whole."""
    good = bytes(raw_batch([Record(b"k", b"v", ODD)]).built())
    found = _decoded(PLACE, 0, good + damaged(1))
    assert found is not None
    records, end = found
    assert ([record.offset for record in records], end) == ([0], 1)
    with pytest.raises(CorruptRecordException, match="offset 1: malformed record"):
        _decoded(PLACE, 1, damaged(1))


@pytest.mark.parametrize(
    ("codec", "encode"), list(enumerate([bytes, gzip_encode, snappy_encode, lz4_encode, zstd_encode]))
)
def test_compressed_batches(codec: int, encode: Callable[[bytes], bytes]) -> None:
    """The records are those before compression; a batch that is cut off at the end of a response is left."""
    sent = [Record(b"k", None, ODD, 5), Record(None, b"v" * 99, ODD, 7)]
    batch = bytearray(raw_batch(sent).built())
    batch[61:] = encode(bytes(batch[61:]))
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    batch[21:23] = codec.to_bytes(2)
    batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4)
    found = _decoded(PLACE, 0, bytes(batch + batch[:-1]))
    assert found is not None
    records, end = found
    assert [Record(each.key, each.value, each.headers, each.timestamp) for each in records] == sent
    assert ([each.offset for each in records], end) == ([0, 1], 2)


@pytest.mark.parametrize(("length", "magic"), [(-13, 2), (0, 2), (4, 2), (5, 2), (48, 2), (-12, 0)])
def test_batch_that_is_shorter_than_its_header(length: int, magic: int) -> None:
    """A length that no batch can have is an error; nothing beyond the batch is read, and the search ends."""
    data = struct.pack(">qiib", 0, length, 0, magic) + bytes(99)
    with pytest.raises(CorruptRecordException, match="a batch of"):
        _decoded(PLACE, 0, data)
