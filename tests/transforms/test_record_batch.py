"""The batch as a value: what its header says, what may be in it, and what leaves of it."""

from __future__ import annotations

import contextlib
import functools
import struct
import time
import zlib
from collections.abc import Callable, Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.kafka.source_batch import decoded
from tests.built_batches import NUMBERS, PACKERS, built, changed, record, repacked, rows_of
from tests.strategies import records as any_records
from tests.transforms.peak import allocated_at_most
from tests.transforms.test_inflate import bomb
from transforms import record_format
from transforms.bakdata import FLAG
from transforms.batch_size import BATCH_OVERHEAD_BYTES, batch_of_one_bytes, record_bytes
from transforms.chunk import Chunk, Chunking, is_chunk, may_hold_chunks
from transforms.errors import MalformedError
from transforms.formats import FORMATS
from transforms.frames import compress_frame
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch, Stamp, is_old, pack, restamp, single, split
from transforms.record_format import MAX_HEADERS
from transforms.record_lengths import is_crowded
from transforms.reference import VALUE

RECORDS = [record(number) for number in range(20)]
STAMP = Stamp(77, 3, 1_000)
LIMIT = 64 * 1_048_576
TIMES = st.integers(-(2**63), 2**63 - 1)


def read(data: bytes | bytearray) -> RecordBatch:
    return RecordBatch.read(memoryview(data))


def stored_bytes(data: bytes | bytearray) -> list[int]:
    """Bytes of each record in an uncompressed batch, its length included."""
    plain, at, sizes = bytes(data[BATCH_OVERHEAD_BYTES:]), 0, []
    while at < len(plain):
        end = record_format.read(plain, at)[2]
        sizes.append(end - at)
        at = end
    return sizes


# --- what the header says


@pytest.mark.parametrize("codec", NUMBERS)
def test_header_is_that_of_the_builder(codec: str) -> None:
    """Each field is what aiokafka's builder has put there, and its own reader finds the same records."""
    data = built(NUMBERS[codec], RECORDS, base=500, transactional=True, stamp=STAMP)
    batch = read(data)
    assert (batch.base_offset, batch.last_offset, batch.count) == (500, 519, 20)
    assert (batch.first_timestamp, batch.latest_timestamp) == (RECORDS[0].timestamp, RECORDS[-1].timestamp)
    assert (batch.producer_id, batch.codec) == (STAMP.producer_id, NUMBERS[codec])
    assert (batch.transactional, batch.control, batch.broker_time) == (True, False, False)
    assert batch.appendable
    assert batch.intact
    assert DefaultRecordBatch(data).validate_crc()
    assert rows_of(batch.uncompressed()) == [(500 + n, each) for n, each in enumerate(RECORDS)]


def test_checksum_is_wrong_whichever_bit_differs() -> None:
    """No bit behind the checksum, nor of it, can differ."""
    data = built(0, RECORDS[:1])
    for at in range(17, len(data)):
        other = bytearray(data)
        other[at] ^= 0x10
        try:
            assert not read(other).intact, at
        except MalformedError:
            assert at < BATCH_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("field", "at", "number", "why"),
    [
        (">b", 16, 1, "magic of a batch is '1'"),
        (">b", 16, 3, "magic of a batch is '3'"),
        (">b", 16, -1, "magic of a batch is '-1'"),
        (">i", 8, 0, "length of a batch"),
        (">i", 8, -1, "length of a batch"),
        (">i", 8, 2**31 - 1, "length of a batch"),
        (">h", 21, 5, "codec of a batch is '5'"),
        (">h", 21, 7, "codec of a batch is '7'"),
        (">q", 0, -1, "offsets of a batch"),
        (">q", 0, 2**63 - 5, "offsets of a batch"),
        (">i", 23, -1, "offsets of a batch"),
        (">i", 57, -1, "records of a batch"),
        (">i", 57, 21, "records of a batch"),
        (">i", 57, 2**31 - 1, "records of a batch"),
    ],
)
def test_header_that_breaks_the_format(field: str, at: int, number: int, why: str) -> None:
    """What no batch can say of itself is refused, with its name; the checksum does not save it."""
    data = changed(built(0, RECORDS), field, at, number)
    with pytest.raises(MalformedError, match=why):
        read(data)


@pytest.mark.parametrize("size", [0, 1, 60])
def test_batch_that_is_shorter_than_its_header(size: int) -> None:
    """Bytes that have no room for a header are refused, before any of them is read."""
    with pytest.raises(MalformedError, match=rf"{size} bytes.*at least 61"):
        read(built(0, RECORDS)[:size])


def test_count_that_the_bytes_have_no_room_for() -> None:
    """An uncompressed batch has no more records than bytes for them; of a compressed one only the offsets tell."""
    many = changed(changed(built(0, RECORDS[:1], base=0), ">i", 23, 10_000), ">i", 57, 10_001)
    with pytest.raises(MalformedError, match="records of a batch"):
        read(many)
    assert read(repacked(many[:57] + struct.pack(">i", 10_001) + many[61:], "zstd")).count == 10_001


@pytest.mark.parametrize(
    ("field", "at", "number", "whole"),
    [
        (">h", 21, 0, True),
        (">h", 21, 0x10, True),
        (">h", 21, 0x08, False),
        (">h", 21, 0x20, False),
        (">h", 21, 0x40, False),
        (">i", 23, 20, False),
        (">i", 57, 19, False),
        (">i", 57, 0, False),
    ],
)
def test_only_a_batch_of_a_producer_is_appendable(field: str, at: int, number: int, whole: bool) -> None:  # noqa: FBT001
    """Gaps, the broker's time, marks of transactions, and what compaction has written keep a batch from going whole."""
    assert read(changed(built(0, RECORDS), field, at, number)).appendable is whole


# --- split


def test_split_leaves_out_the_batch_that_is_cut_off() -> None:
    """Wherever a response ends, the batches before that are whole, and what is behind them is left for later."""
    batches = [built(number, RECORDS, base=20 * number) for number in (0, 4, 1)]
    data = b"".join(batches)
    ends = [len(batches[0]), len(batches[0] + batches[1]), len(data)]
    for size in range(len(data) + 1):
        found = [bytes(each) for each in split(memoryview(data)[:size])]
        assert found == batches[: sum(end <= size for end in ends)]


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 4])
def test_split_refuses_a_length_that_no_batch_has(length: int) -> None:
    """Nor does it go back or stand still; the batches before it were given."""
    good = built(0, RECORDS)
    pieces = split(memoryview(good + struct.pack(">qi", 20, length) + bytes(100)))
    assert bytes(next(pieces)) == good
    with pytest.raises(MalformedError, match="length of a batch"):
        next(pieces)


def test_old_formats_are_told_from_new_ones() -> None:
    """By the one byte that all formats have in the same place, which each batch that `split` finds has."""
    pieces = [struct.pack(">qiib", 0, 5, 0, magic) for magic in (0, 1, 2, 3)]
    assert [is_old(each) for each in split(memoryview(b"".join(pieces)))] == [True, True, False, False]


# --- what the records may be


@pytest.mark.parametrize("packer", PACKERS)
def test_fits_is_exact(packer: str) -> None:
    """The largest record decides, with its length before it; of compressed ones too."""
    plain = built(0, [record(1, 10), record(2, 5_000), record(3, 70)])
    largest = max(stored_bytes(plain))
    data = repacked(plain, packer)
    for limit, fits in ((largest, True), (largest - 1, False), (0, False), (len(plain), True)):
        assert read(data).fits(limit) is fits, limit


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.sampled_from(list(PACKERS)), st.data())
def test_fits_is_exact_for_any_sizes(sizes: list[int], packer: str, data: st.DataObject) -> None:
    """Also where varints take another byte, and wherever in the batch the largest record is."""
    plain = built(0, [Record(None, b"v" * size, (), 5) for size in sizes])
    largest = max(stored_bytes(plain))
    limit = largest + data.draw(st.integers(-2, 2))
    assert read(repacked(plain, packer)).fits(limit) is (largest <= limit)


@pytest.mark.parametrize("length", [b"\x01", b"\xff\xff\xff\xff\xff\x01", b"\xff\x7f", b"\x80" * 200])
def test_lengths_that_are_wrong_fit_nowhere(length: bytes) -> None:
    """A record whose length is below 0, does not end or is beyond the batch may be of any size."""
    plain = bytearray(built(0, RECORDS[:3]))
    at = BATCH_OVERHEAD_BYTES + stored_bytes(plain)[0]
    data = bytes(plain[:at]) + length + bytes(plain[at + 2 :])
    assert not read(changed(data, ">i", 8, len(data) - 12)).fits(len(data) - BATCH_OVERHEAD_BYTES - 1)


@pytest.mark.parametrize("packer", PACKERS)
def test_may_hold_finds_what_is_there(packer: str) -> None:
    """Names, keys and values are found, in compressed records too; what is nowhere is not."""
    each = Record(b"the-key", b"the-value" + b"v" * 500, (("a-name", b"of-it"),), 5)
    batch = read(repacked(built(0, [*RECORDS, each]), packer))
    for octets in (b"the-key", b"the-value", b"a-name", b"of-it"):
        assert batch.may_hold(octets)
    assert not batch.may_hold(b"another-name")


@pytest.mark.parametrize("packer", [each for each in PACKERS if each != "none"])
def test_damaged_records_may_be_anything(packer: str) -> None:
    """They cannot be looked at, so nothing is ruled out; to read them is an error."""
    data = bytearray(repacked(built(0, RECORDS), packer))
    data[BATCH_OVERHEAD_BYTES + 20 :] = b"\xff" * (len(data) - BATCH_OVERHEAD_BYTES - 20)
    batch = read(data)
    assert not batch.fits(10)
    assert batch.may_hold(b"another-name")
    with pytest.raises(MalformedError, match="records of a batch"):
        batch.uncompressed()


@pytest.mark.parametrize("packer", PACKERS)
def test_uncompressed_is_the_batch_before_compression(packer: str) -> None:
    """Each byte but the checksum is that of the batch that was never compressed."""
    plain = built(0, RECORDS, base=9, stamp=STAMP)
    batch = read(repacked(plain, packer))
    for _ in range(2):  # what `may_hold` has decompressed is taken, too
        found = bytes(batch.uncompressed())
        assert (found[:17], found[21:]) == (plain[:17], plain[21:])
        assert not batch.may_hold(b"another-name")


@functools.cache
def bombs() -> dict[str, bytes]:
    """Single frames of KBs that hold hundreds of MiB of zeros, or promise to."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    gzip = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(100)) + compressor.flush()
    lz4, raw = compress_frame("lz4", bytes(1 << 20)), bomb("snappy")
    xerial = compress_frame("snappy", b"")
    return {
        "gzip": gzip,
        "snappy": xerial + (len(raw).to_bytes(4) + raw) * 9,
        "snappy-raw": raw,
        "lz4": lz4[:7] + lz4[7:-4] * 100 + lz4[-4:],
        "zstd": bomb("zstd"),
    }


@pytest.mark.parametrize("packer", [each for each in PACKERS if each != "none"])
def test_bomb_is_not_looked_into(packer: str) -> None:
    """A batch of KBs that would become hundreds of MiB takes no more than those that are looked at, and passes no test.

    zlib alone takes twice the limit, as it cannot be told how much will come.
    """
    head = changed(built(0, RECORDS), ">h", 21, PACKERS[packer][0])[:BATCH_OVERHEAD_BYTES]
    data = head + bombs()[packer]
    data = changed(data, ">i", 8, len(data) - 12)
    assert len(data) < 1 << 19
    with allocated_at_most(LIMIT * 17 // 8):
        batch = read(data)
        assert not batch.fits(1_000_000)
        assert batch.may_hold(b"another-name")


@pytest.mark.parametrize("packer", ["gzip", "lz4", "zstd"])
def test_bomb_opens_within_no_budget(packer: str) -> None:
    """To find out whether a batch holds more than a limit takes no more memory than that, or than is looked at anyway.

    Snappy makes no more than twenty bytes of one, so it has no bombs.
    """
    head = changed(built(0, RECORDS), ">h", 21, PACKERS[packer][0])[:BATCH_OVERHEAD_BYTES]
    data = changed(head + bombs()[packer], ">i", 8, len(head + bombs()[packer]) - 12)
    for limit in (LIMIT, LIMIT + 1_048_576):
        with allocated_at_most((LIMIT + 1_048_576) * 17 // 8):
            assert not read(data).opens_within(limit)


@pytest.mark.parametrize("packer", PACKERS)
def test_opens_within_is_exact(packer: str) -> None:
    """A batch that holds as much as the limit, and one byte more; a damaged one is refused, if it is compressed."""
    whole = built(0, RECORDS)
    data, size = repacked(whole, packer), len(whole) - BATCH_OVERHEAD_BYTES
    assert read(data).opens_within(size)
    assert read(data).opens_within(size - 1) is (packer == "none")
    damaged = read(changed(data[:70] + bytes(20) + data[90:], ">i", 8, len(data) - 12))
    for limit in (1, LIMIT):
        if packer == "none":
            assert damaged.opens_within(limit)
        else:
            with contextlib.suppress(MalformedError):
                damaged.opens_within(limit)


@pytest.mark.parametrize("count", [MAX_HEADERS, MAX_HEADERS + 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_crowded_is_exact(count: int, at: int) -> None:
    """One more header than is read, in one record of three, whatever else is large; it takes no objects to find out."""
    records = [record(n, 200_000) for n in range(3)]
    records[at] = Record(b"k", b"v", (("", None),) * count)
    plain = bytes(built(0, records)[BATCH_OVERHEAD_BYTES:])
    with allocated_at_most(100_000):
        assert is_crowded(plain, 3) is (count > MAX_HEADERS)
    assert is_crowded(plain, 4)  # there is no fourth
    assert not is_crowded(b"\0" * 1_000, 1)  # too short
    assert is_crowded(b"\x84\x80\x80\x80\x01" + bytes(len(plain)), 1)  # longer than all of it
    first = record_format.number(plain, 0, len(plain))[1]
    assert is_crowded(plain[:first] + b"\x80" + plain[first + 1 :], 3)  # clients read such attributes in two ways


def test_single_is_the_record_byte_for_byte() -> None:
    """A batch of one record of another batch has its offset, its timestamp and all its bytes."""
    for transactional, packer in ((False, "none"), (True, "zstd")):
        batch = read(repacked(built(0, RECORDS, base=500, transactional=transactional, stamp=STAMP), packer)).plain()
        records, at = bytes(batch.data[BATCH_OVERHEAD_BYTES:]), 0
        for number, each in enumerate(RECORDS):
            end = record_format.place(records, at)[2]
            data = single(batch, records[at:end], 500 + number)
            at = end
            alone = read(data)
            assert rows_of(data) == [(500 + number, each)]
            assert (alone.count, alone.intact, alone.last_offset, alone.transactional) == (1, True, 500 + number, False)
            assert alone.producer_id == -1


def test_promise_that_the_bytes_have_no_room_for() -> None:
    """A raw block of snappy that promises 60 MiB in ten bytes takes none of them."""
    data = changed(built(0, RECORDS), ">h", 21, PACKERS["snappy-raw"][0])[:BATCH_OVERHEAD_BYTES]
    data += b"\x80\x80\x80\x1e" + bytes(10)
    data = changed(data, ">i", 8, len(data) - 12)
    with allocated_at_most(1 << 20):
        batch = read(data)
        assert not batch.fits(1_000_000)
        assert batch.may_hold(b"another-name")
        with pytest.raises(MalformedError, match="header declares"):
            batch.uncompressed()


def test_records_of_no_length_are_not_counted_one_by_one() -> None:
    """30 MB of zeros, in a few KB, do not hold up the event loop: the header says how many records there are.

    Nor do a million records, which are sound.
    """
    zeros = changed(built(0, RECORDS), ">h", 21, PACKERS["lz4"][0])[:BATCH_OVERHEAD_BYTES]
    zeros += compress_frame("lz4", bytes(30_000_000))
    one = record_format.serialize(Record(None, None, (), 0))
    many = changed(changed(built(0, RECORDS), ">i", 23, 999_999), ">i", 57, 1_000_000)[:BATCH_OVERHEAD_BYTES]
    many += compress_frame("zstd", one * 1_000_000)
    many = changed(many, ">h", 21, PACKERS["zstd"][0])
    for data in (zeros, many):
        batch = read(changed(data, ">i", 8, len(data) - 12))
        began = time.process_time()
        assert not batch.fits(6_000_000)
        assert time.process_time() - began < 1.0


# --- the batch of another producer


@pytest.mark.parametrize("codec", NUMBERS)
@pytest.mark.parametrize("was", [False, True])
@pytest.mark.parametrize("becomes", [False, True])
def test_forwarded_changes_what_is_ours_alone(codec: str, was: bool, becomes: bool) -> None:  # noqa: FBT001
    """Base offset, leader's epoch, transactional bit, stamp and checksum are new; each other byte is as it was."""
    data = built(NUMBERS[codec], RECORDS, base=2**40, transactional=was, stamp=Stamp(5, 6, 7))
    sent = bytes(read(data).forwarded(STAMP, transactional=becomes))
    assert DefaultRecordBatch(sent).validate_crc()
    assert struct.unpack_from(">q", sent)[0] == 0
    assert struct.unpack_from(">i", sent, 12)[0] == -1
    assert Stamp(*struct.unpack_from(">qhi", sent, 43)) == STAMP
    assert read(sent).transactional is becomes
    assert read(sent).intact
    bit = 0x10
    for own in (slice(8, 12), slice(16, 17), slice(21, 22), slice(23, 43), slice(57, None)):
        assert sent[own] == data[own]
    assert sent[22] & ~bit == data[22] & ~bit
    assert rows_of(sent) == list(enumerate(RECORDS))


@pytest.mark.parametrize("codec", NUMBERS)
def test_compressed_is_what_others_compress(codec: str) -> None:
    """Its header says how; records that become no longer shorter stay as they are."""
    batch = read(built(0, RECORDS, base=500, transactional=True, stamp=STAMP))
    found = batch.compressed(NUMBERS[codec])
    assert (found is batch) is (codec == "none")
    assert found.codec == NUMBERS[codec]
    assert (found.base_offset, found.last_offset, found.count, found.transactional) == (500, 519, 20, True)
    assert rows_of(found.uncompressed()) == [(500 + n, each) for n, each in enumerate(RECORDS)]
    sent = bytes(found.forwarded(STAMP, transactional=True))
    assert DefaultRecordBatch(sent).validate_crc()
    assert rows_of(sent) == list(enumerate(RECORDS))
    noise = read(built(0, [Record(None, None, (), 0)]))
    assert noise.compressed(NUMBERS[codec]) is noise


def test_forwarded_is_the_batch_itself_if_it_is_ours() -> None:
    """What can be written is changed in its place; a part of something else is not."""
    data = pack(RECORDS)
    assert read(data).forwarded(STAMP, transactional=False) is data
    part = memoryview(bytes(data))
    assert RecordBatch.read(part).forwarded(STAMP, transactional=False) == data
    assert read(memoryview(data).toreadonly()).forwarded(STAMP, transactional=False) is not data  # type: ignore[arg-type]


def test_forget_lets_go_of_the_records() -> None:
    """What was decompressed for a look is decompressed again for the next one."""
    batch = read(repacked(built(0, RECORDS), "zstd"))
    assert batch.may_hold(b"vvvv")
    batch.forget()
    assert batch._records is None
    assert batch.may_hold(b"vvvv")


def test_forwarded_leaves_what_was_read() -> None:
    """The batch that was read is the same afterwards, and can go again with another stamp."""
    data = built(4, RECORDS, base=3)
    batch = read(data)
    once = batch.forwarded(STAMP, transactional=True)
    again = bytearray(once)
    restamp(again, Stamp(1, 2, 3))
    assert bytes(batch.data) == data
    assert again == batch.forwarded(Stamp(1, 2, 3), transactional=True)
    assert again != once


@settings(max_examples=60)
@given(st.lists(any_records(), min_size=1, max_size=5))
def test_pack_is_what_the_builder_makes(records: Sequence[Record]) -> None:
    """aiokafka reads the same records, its checksum is right, and a batch of its own builder has the same bytes."""
    data = pack(records)
    assert DefaultRecordBatch(bytes(data)).validate_crc()
    assert rows_of(data) == list(enumerate(records))
    assert read(data).appendable
    assume(all(each.timestamp >= 0 for each in records))  # its builder has other rules for records without one
    theirs = changed(changed(built(0, records), ">q", 0, 0), ">i", 12, -1)
    assert data == theirs


@given(st.lists(st.one_of(st.sampled_from([-(2**63), -1, 0, 2**62, 2**63 - 1]), TIMES), min_size=1, max_size=5))
def test_pack_keeps_times_that_are_far_apart(times: list[int]) -> None:
    """A distance that is no int64 overflows, as in Java's writer and aiokafka's, and so readers find the same time."""
    records = [Record(b"k", b"v", (), time_ms) for time_ms in (1_700_000_000_000, *times)]
    data = pack(records)
    assert rows_of(data) == list(enumerate(records))
    assert [each for _, each in decoded(read(data))] == records
    assert data == changed(changed(built(0, records), ">q", 0, 0), ">i", 12, -1)


def test_pack_keeps_names_that_are_no_text() -> None:
    """The bytes of a name that is not UTF-8 are the same again, which aiokafka's builder could not write."""
    each = Record(b"k", b"v", (("\udcff\udc80", b"x"),), 5)
    data = bytes(pack([each]))
    assert b"\x04\xff\x80" in data
    assert record_format.read(data, BATCH_OVERHEAD_BYTES)[0].headers == each.headers


# --- nobody wants a record of a batch that is ruled out

NAMES = (
    VALUE.flag,
    VALUE.size,
    FLAG,
    "large-message.chunk.uuid",
    "large-messag",
    "arge-message",
    "\N{GREEK SMALL LETTER MU}",
)
_FLAGS = st.tuples(st.sampled_from(NAMES), st.sampled_from((b"true", b"\x00", b"\x01", b"x", None)))
_NEAR = st.builds(
    Record,
    st.none() | st.integers(0, 70).map(bytes),
    st.none() | st.integers(0, 200).map(lambda size: b"v" * size),
    st.lists(_FLAGS, max_size=2).map(tuple),
    st.integers(0, 100_000),
)


@settings(max_examples=300)
@given(st.lists(_NEAR, min_size=1, max_size=5), st.sampled_from(list(PACKERS)), st.data())
def test_what_is_ruled_out_is_not_there(records: list[Record], packer: str, data: st.DataObject) -> None:
    """If `wants_any` is false, `wants` is false for each record; thresholds are at the very sizes."""
    batch = read(repacked(bytes(pack(records)), packer))
    one = data.draw(st.sampled_from(records))
    near = st.integers(-3, 3)
    threshold = max(0, len(one.value or b"") + data.draw(near))
    limit = batch_of_one_bytes(one) + data.draw(near)
    wanting: list[tuple[Callable[[RecordBatch], bool], Callable[[RecordLike], bool]]]
    wanting = [(Offload(threshold, limit).wants_any, Offload(threshold, limit).changes)]
    wanting += [(Offload(threshold, None).wants_any, Offload(threshold, None).changes)]
    wanting += [(Offload(1_000, limit).wants_any, Offload(1_000, limit).changes)]
    strict = Offload(1_000, on_reference="fail")
    wanting += [(strict.wants_any, strict.changes)]
    wanting += [(Chunking(limit).wants_any, Chunking(limit).wants)]
    for name, form in FORMATS.items():
        marking = Offload(threshold, limit, format=form)
        wanting += [(form.wants_any, Inflate(format=form).wants), (marking.wants_any, marking.changes)]
        assert name == "bakdata-flag" or not form.wants_any(read(pack([Record(b"k", b"v", (("own", b"x"),), 1)])))
    wanting += [(may_hold_chunks, lambda each: is_chunk(each.headers))]
    for wants_any, wants in wanting:
        if not wants_any(batch):
            assert not any(wants(each) for each in records), wants_any


@pytest.mark.parametrize("packer", PACKERS)
def test_most_batches_are_ruled_out(packer: str) -> None:
    """Records well below the sizes, with headers of their own, are known to be unwanted without a look at each."""
    batch = read(repacked(bytes(pack(RECORDS)), packer))
    most = max(map(record_bytes, RECORDS)) + 2  # their distances of time and offset
    assert not Offload(most, most + BATCH_OVERHEAD_BYTES, on_reference="offload").wants_any(batch)
    assert not Chunking(most + BATCH_OVERHEAD_BYTES).wants_any(batch)
    assert not FORMATS["wideload"].wants_any(batch)
    assert not FORMATS["bakdata-headers"].wants_any(batch)
    assert not may_hold_chunks(batch)


@pytest.mark.parametrize("packer", PACKERS)
def test_what_is_wanted_is_found(packer: str) -> None:
    """One record among many is enough, wherever it is: a large one, a reference, a chunk."""
    large, reference = record(5, 3_000), Record(b"k", b"s3://b/t/i", ((VALUE.flag, b"true"),), 5)
    chunk = Record(b"k", b"piece", Chunk("uuid-1", 0, 2, 10).headers(), 5)
    marked = Record(b"k", b"s3://b/t/i", ((FLAG, b"\x01"),), 5)
    for place in (0, 7, 20):
        batches = []
        for odd in (large, reference, chunk, marked):
            records = [*RECORDS[:place], odd, *RECORDS[place:]]
            batches.append(read(repacked(bytes(pack(records)), packer)))
        assert Offload(2_999, None).wants_any(batches[0])
        assert not Offload(3_100, None).wants_any(batches[0])
        assert [Offload(3_100, on_reference="offload").wants_any(each) for each in batches] == [
            False,
            True,
            True,
            False,
        ]
        assert Chunking(3_000).wants_any(batches[0])
        assert FORMATS["wideload"].wants_any(batches[1])
        assert may_hold_chunks(batches[2])
        assert FORMATS["bakdata-headers"].wants_any(batches[3])
