"""What a record is."""

from __future__ import annotations

import dataclasses

import pytest
from aiokafka import ConsumerRecord

from transforms.batch_size import batch_of_one_bytes
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Record, RecordLike


def test_record_defaults() -> None:
    """A record has no headers and no timestamp unless it is given them."""
    record = Record(None, None)
    assert record.headers == ()
    assert record.timestamp == -1


def test_record_is_frozen() -> None:
    """A record cannot be changed, so a transform can only give back another one."""
    record = Record(b"k", b"v")
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.value = b"other"  # type: ignore[misc]


def test_record_null_and_empty_differ() -> None:
    """A tombstone is not an empty value, and a null key is not an empty key."""
    assert Record(b"k", None) != Record(b"k", b"")
    assert Record(None, b"v") != Record(b"", b"v")


def test_record_like_is_what_aiokafka_delivers() -> None:
    """The transforms take aiokafka's own record as it is."""
    delivered: RecordLike = ConsumerRecord(
        topic="raw-large",
        partition=0,
        offset=7,
        timestamp=5,
        timestamp_type=0,
        key=b"k",
        value=b"s3://bucket/raw-large/id",
        checksum=None,
        serialized_key_size=1,
        serialized_value_size=24,
        headers=(("large-message", b"true"),),
    )
    same = Record(b"k", b"s3://bucket/raw-large/id", (("large-message", b"true"),), 5)
    assert batch_of_one_bytes(delivered) == batch_of_one_bytes(same)
    assert Offload(threshold_bytes=23).wants(delivered)
    assert not Offload(threshold_bytes=24).wants(delivered)
    assert Inflate().begin(delivered) == Inflate().begin(same)
