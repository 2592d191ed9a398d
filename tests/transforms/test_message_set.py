"""Messages of the formats 0 and 1: what is read of them, and each way in which they may be broken."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from tests.built_batches import message, wrapped
from transforms.errors import MalformedError
from transforms.frames import OversizeError
from transforms.message_set import Message
from transforms.record import Record

KEY_AT = {0: 18, 1: 26}  # where the length of the key stands
ROWS = {n: Record(b"k", b"v" * 100, (), 1_000 + n) for n in (3, 5, 6)}


def read(data: bytes) -> Message:
    """The message that `data` is."""
    return Message.read(memoryview(data))


def named(each: object) -> str:
    """The id of a case: what was found."""
    return str(each[1]) if isinstance(each, tuple) else ""


def put(data: bytes, form: str, at: int, number: int) -> bytes:
    """The same bytes, with another number at one place."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, number)
    return bytes(changed)


def packed(magic: int, *inner: bytes) -> bytes:
    """Messages by gzip in one, whose offset is 9."""
    compressor = zlib.compressobj(wbits=31)
    return message(magic, 9, None, compressor.compress(b"".join(inner)) + compressor.flush(), 7, 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_fields(magic: int) -> None:
    """Each field, for a record and for several, with and without the time of the broker."""
    data = message(magic, 12, b"key", None, 1_700, 8)
    found = read(data)
    assert found == Message(memoryview(data), 12, magic, 0, 1_700 if magic else -1, bool(magic))
    assert (found.intact, Message.offset_of(memoryview(data)), found.most_plain_bytes) == (True, 12, len(data))
    assert (found.plain(0), list(found.records(data))) == (
        data, [(12, Record(b"key", None, (), 1_700 if magic else -1))],
    )  # fmt: skip
    assert not read(put(data, ">i", 12, 0)).intact
    assert not Message.is_intact(memoryview(data)[:17])
    several = read(wrapped(magic, "gzip", ROWS, 5_000))
    assert (several.last_offset, several.codec, several.broker_time) == (6, 1, False)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("packer", ["gzip", "snappy", "lz4"])
def test_records_of_a_compressed_message(packer: str, magic: int) -> None:
    """They have their offsets, their own timestamps, or the one of the broker, and as many bytes as is said before."""
    found = read(wrapped(magic, packer, ROWS, 5_000))
    plain = found.plain(1_000)
    assert len(plain) <= found.most_plain_bytes
    rows = list(ROWS.items())
    assert list(found.records(plain)) == [(n, r if magic else Record(r.key, r.value)) for n, r in rows]
    with pytest.raises(OversizeError):
        found.plain(len(plain) - 1)
    stamped = read(wrapped(magic, packer, ROWS, 5_000, 8))
    times = [record.timestamp for _, record in stamped.records(plain)]
    assert times == [5_000 if magic else -1] * 3


def test_distances_in_format_0() -> None:
    """Some clients wrote distances there, too: the last offset of the whole is right."""
    found = read(packed(0, message(0, 0, b"a", b""), message(0, 1, b"b", b"")))
    assert [(n, record.key) for n, record in found.records(found.plain(1_000))] == [(8, b"a"), (9, b"b")]


ONE = {magic: message(magic, 12, b"key", b"value") for magic in (0, 1)}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (ONE[0][:17], ("message", "17 bytes", "at least 18")),
        (put(ONE[0], ">b", 16, 2), ("magic of a message", "2", "0 or 1")),
        (put(ONE[0], ">i", 8, 5_000), ("size of a message", "5,000", "22")),
        (ONE[0] + bytes(5_000), ("size of a message", "22", "5,022")),
        (put(ONE[0], ">b", 17, 4), ("codec of a message", "4", "0 to 3")),
        (put(ONE[1][:25], ">i", 8, 13), ("message", "25 bytes", "at least 26")),
    ],
    ids=named,
)
def test_heads_that_are_refused(data: bytes, said: tuple[str, str, str]) -> None:
    """What is wrong, and what would be right."""
    with pytest.raises(MalformedError) as caught:
        read(data)
    assert (caught.value.field, caught.value.found, caught.value.allowed) == said


def test_heads_that_are_just_long_enough() -> None:
    """They are read; their keys are missed later."""
    assert read(put(ONE[0][:18], ">i", 8, 6)).magic == 0
    assert read(put(ONE[1][:26], ">i", 8, 14)).magic == 1
    assert read(put(ONE[0], ">b", 17, 3)).codec == 3


def cut(data: bytes, end: int) -> bytes:
    """A message whose end is missing, and which says so."""
    return put(data[:end], ">i", 8, end - 12)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data, at: cut(data, at + 3), ("message", "{at3} bytes", "a key and a value")),
        (lambda data, at: put(data, ">i", at, 5_001), ("length in a message", "5,001", "up to 12")),
        (lambda data, at: put(data, ">i", at, 13), ("length in a message", "13", "up to 12")),
        (lambda data, at: put(data, ">i", at, 10), ("message", "{all} bytes", "a key and a value")),
        (lambda data, at: put(data, ">i", at + 7, 6), ("length in a message", "6", "up to 5")),
    ],
    ids=named,
)
def test_keys_and_values_that_are_refused(
    magic: int, change: Callable[[bytes, int], bytes], said: tuple[str, str, str]
) -> None:
    """A length is compared with what there is."""
    at = KEY_AT[magic]
    data = change(ONE[magic], at)
    with pytest.raises(MalformedError) as caught:
        list(read(data).records(data))
    expected = tuple(each.format(at3=at + 3, all=len(data)) for each in said)
    assert (caught.value.field, caught.value.found, caught.value.allowed) == expected


def test_lengths_at_the_end() -> None:
    """A value that is null, empty, or takes all that is left; a negative length is a null."""
    for value in (None, b"", b"value"):
        data = message(0, 1, None, value)
        assert list(read(data).records(data)) == [(1, Record(None, value))]
    data = put(message(0, 1, None, b""), ">i", 18, -7)
    assert list(read(data).records(data)) == [(1, Record(None, b""))]


ANOTHER_FORMAT = ("compressed messages", "one of another format, or compressed again", "neither")
NOT_GZIP = message(1, 9, None, b"none of gzip", 7, 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message(1, 9, None, None, 7, 1), ("value of a message", "null", "compressed messages")),
        (packed(1, b""), ("compressed messages", "none", "at least one")),
        (packed(1, bytes(17)), ("compressed messages", "17 bytes more", "a message, or none")),
        (packed(1, ONE[1], b"12345"), ("compressed messages", "5 bytes more", "a message, or none")),
        (packed(1, put(ONE[1], ">i", 8, 5)), ("size of a message", "5", f"up to {len(ONE[1]) - 12}")),
        (packed(1, put(ONE[1], ">i", 8, 5_000)), ("size of a message", "5,000", f"up to {len(ONE[1]) - 12}")),
        (
            packed(1, put(message(1, 0, None, bytes(5_000)), ">i", 8, 9_000)),
            ("size of a message", "9,000", "up to 5,022"),
        ),
        (packed(1, ONE[0]), ANOTHER_FORMAT),
        (packed(0, ONE[1]), ANOTHER_FORMAT),
        (
            packed(1, packed(1, ONE[1])),
            ("compressed messages", "one of another format, or compressed again", "neither"),
        ),
        (
            packed(0, *(message(0, n, None, b"") for n in (5, 5, 9))),
            ("offset of a message", "5", "6 to 8"),
        ),
        (packed(0, *(message(0, n, None, b"") for n in (9, 9))), ("offset of a message", "9", "0 to 8")),
        (packed(0, *(message(0, n, None, b"") for n in (-1, 9))), ("offset of a message", "-1", "0 to 8")),
    ],
    ids=named,
)
def test_compressed_messages_that_are_refused(data: bytes, said: tuple[str, str, str]) -> None:
    """What is inside is checked as what is outside is."""
    found = read(data)
    with pytest.raises(MalformedError) as caught:
        list(found.records(found.plain(1_000_000)))
    assert (caught.value.field, caught.value.found, caught.value.allowed) == said


@pytest.mark.parametrize(
    ("data", "codec", "call"),
    [
        (NOT_GZIP, "gzip", lambda found: found.plain(1_000)),
        (message(1, 9, None, b"\0none of snappy", 7, 2), "snappy", lambda found: found.plain(1_000)),
        (message(1, 9, None, b"\0none of snappy", 7, 2), "snappy", lambda found: found.most_plain_bytes),
    ],
    ids=["gzip", "snappy", "snappy's size"],
)
def test_bytes_that_are_no_compressed_messages(data: bytes, codec: str, call: Callable[[Message], object]) -> None:
    """The first call that needs the content raises the error of the codec."""
    with pytest.raises(MalformedError) as caught:
        call(read(data))
    assert (caught.value.field, caught.value.allowed) == ("value of a message", f"one of {codec}")
    assert str(caught.value.__cause__) == caught.value.found
