"""Merging small batches."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.kafka.source_batch import decoded
from tests.built_batches import built, rows_of
from transforms.batch_merge import merge
from transforms.errors import MalformedError
from transforms.record import Record
from transforms.record_batch import RecordBatch, pack

FIRST = 1_700_000_000_000
# Deltas around the lengths of their varints, and around what is looked up.
NEAR = st.sampled_from([2**bits + off for bits in (0, 5, 6, 7, 12, 13, 14, 15, 20, 21) for off in (-2, -1, 0, 1)])
DELTAS = st.one_of(NEAR, NEAR.map(lambda delta: -delta), st.integers(0, 70))
KEYS = st.sampled_from([None, b"", b"42", b"k", b"key-12", b"order-00017", b"k" * 200])
VALUES = st.sampled_from([None, b"", b"v", b"v" * 60, b"v" * 9_000])
HEADERS = st.sampled_from([(), (("h", b"x"),), (("h", None), ("h", b"y" * 100))])


def batch(
    first_ms: int, records: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
) -> RecordBatch:
    """A batch of records of (delta, key, value, headers)."""
    made = [Record(key, value, headers, first_ms + delta) for delta, key, value, headers in records]
    return RecordBatch.read(memoryview(bytes(built(0, made))))


ROWS = st.lists(st.tuples(DELTAS, KEYS, VALUES, HEADERS), min_size=1, max_size=5)
BATCHES = st.lists(st.tuples(DELTAS, ROWS), min_size=1, max_size=4)


@given(BATCHES)
@example([(0, [(0, b"k", b"v", ())]), (16_380, [(0, b"k", b"v", ()), (4, b"k", b"v", ())])])
@settings(max_examples=300, deadline=None)
def test_merged_records_are_those_of_all(
    sent: list[tuple[int, list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]]],
) -> None:
    """Whatever the times between them, each record is as it was, in order, and offsets count on."""
    batches = [batch(FIRST + shift, [(0, *rows[0][1:]), *rows[1:]]) for shift, rows in sent]
    expected = [record for each in batches for _, record in decoded(each)]
    merged = merge(batches)
    assert list(decoded(merged)) == list(enumerate(expected, batches[0].base_offset))
    assert merged.latest_timestamp == max(each.latest_timestamp for each in batches)
    assert merged.appendable


TIMES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), -1, FIRST, FIRST - 2**63, 2**63 - 1]))


@given(st.lists(st.lists(TIMES, min_size=1, max_size=3), min_size=1, max_size=4))
@example([[2**61], [FIRST], [FIRST - 2**63 + 1], [FIRST]])
def test_merged_records_keep_times_that_are_far_apart(times: list[list[int]]) -> None:
    """Whatever time a producer has given its record, the others keep theirs, for every reader."""
    records = [[Record(b"k", b"v", (), time_ms) for time_ms in each] for each in times]
    merged = merge([RecordBatch.read(memoryview(bytes(pack(each)))) for each in records])
    expected = list(enumerate(record for each in records for record in each))
    assert list(decoded(merged)) == rows_of(bytes(merged.data)) == expected


def test_many_records_are_merged() -> None:
    """More than are looked up, and so many that their numbers take three bytes."""
    one = batch(FIRST, [(number % 90, b"k", b"v", ()) for number in range(1_000)])
    merged = merge([one] * 20)
    assert [offset for offset, _ in decoded(merged)] == list(range(20_000))


def test_every_time_between_two_batches() -> None:
    """The two lengths of varints and the end of what is looked up lie between."""
    one = batch(FIRST, [(0, b"k", b"v", ())])
    for shift in [*range(16_250, 16_450), *range(60, 70), *range(8_180, 8_200)]:
        other = batch(FIRST + shift, [(delta, b"42", b"v", ()) for delta in (0, 1, 62, 63, 64, 65, 127, 128, 130)])
        expected = [record for each in (one, other) for _, record in decoded(each)]
        assert [record for _, record in decoded(merge([one, other]))] == expected


@pytest.mark.parametrize("at", range(61, 75))
def test_damaged_batch_is_refused_or_read(at: int) -> None:
    """Whatever stands at one byte of a record, nothing but the documented error comes."""
    whole = bytes(batch(FIRST, [(5, b"key", b"value", (("h", b"x"),)), (70, b"k", None, ())]).data)
    for octet in range(256):
        data = bytearray(whole)
        data[at] = octet
        try:
            merged = merge([RecordBatch.read(memoryview(bytes(data)))])
        except MalformedError:
            assert data != whole
        else:
            assert merged.count == 2


def counted(data: bytes, count: int) -> bytes:
    """A batch that says it has so many records."""
    return data[:23] + bytes((0, 0, 0, count - 1)) + data[27:57] + bytes((0, 0, 0, count)) + data[61:]


def test_what_is_wrong_is_said() -> None:
    """Where a record or the batch ends in another place than it says."""
    data = bytes(batch(FIRST, [(0, b"k", b"v" * 20, ()), (1, b"k", b"v" * 20, ())]).data)
    size = len(data)
    for changed, said in (
        (data[:61] + b"\x7e" + data[62:], ("record", "a length of 63", f"up to {size - 62}")),
        (data[:61] + b"\x0f" + data[62:], ("record", "a length of 7", f"up to {size - 62}")),
        (counted(data, 3), ("records of a batch", f"an end at byte {size}", "3 records")),
        (counted(data, 1), ("records of a batch", f"{(size - 61) // 2} bytes more", "1 records")),
    ):
        with pytest.raises(MalformedError) as caught:
            merge([RecordBatch.read(memoryview(changed))])
        assert (caught.value.field, caught.value.found, caught.value.allowed) == said
