"""Chunks as they stand in records: split by the room that there is, and read with distrust."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies import headers, optional_bytes, records
from tests.transforms.peak import allocated_at_most
from tests.vectors.chunks import SplitCase, split_cases
from transforms.batch_size import batch_of_one_bytes, value_room_bytes
from transforms.chunk import Chunk, Chunking, checksum, is_chunk, piece_text
from transforms.errors import ChunkError, MalformedChunkError
from transforms.record import Header, Record

UUID = "large-message.chunk.uuid"
ID = "large-message.chunk.id"
COUNT = "large-message.chunk.count"
SIZE = "large-message.chunk.size"
CHECKSUM = "large-message.chunk.checksum"
ABC = b"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
# 61 of the batch, 2 + 3 of the record, 2 of the key, 1 for how many headers; then name and value of each header with
# their prefixes: 26, 24, 27, 26, and 102 (whose value has a prefix of two bytes); 1 for the value's own prefix.
ABC_OVERHEAD = 61 + 5 + 2 + 1 + (25 + 6) + (23 + 2) + (26 + 2) + (25 + 2) + (29 + 2 + 71) + 1


def chunk_names() -> st.SearchStrategy[str]:
    """Names of a chunk's headers, and of others."""
    return st.sampled_from((UUID, ID, COUNT, SIZE, CHECKSUM, "trace"))


def chunk_values() -> st.SearchStrategy[bytes | None]:
    """What a header of a chunk may say, and what it may not."""
    known = (b"u", b"0", b"1", b"2", b"3", b"03", b"-1", b"+1", b"1_0", b" 1", b"\xd9\xa1", b"9" * 10, b"1" * 5000, ABC)
    return st.sampled_from(known) | st.none() | st.binary(max_size=80)


def piece(*found: Header, value: bytes | None = b"a") -> Record:
    """A record with these headers."""
    return Record(b"k", value, found)


def good(**changed: bytes | None) -> tuple[Header, ...]:
    """The headers of chunk 0 of 3 of "abc", with some changed."""
    values = {"uuid": b"uuid1", "id": b"0", "count": b"3", "size": b"3", "checksum": ABC, **changed}
    return tuple((f"large-message.chunk.{name}", value) for name, value in values.items())


# --- literal --------------------------------------------------------------------------------------------------------


def test_split_literal() -> None:
    """The document's "abc" at one byte a chunk is three records, header for header."""
    whole = Record(b"k", b"abc", (), 7)
    chunks = list(Chunking(ABC_OVERHEAD + 1).split(whole, "uuid1"))
    assert chunks == [
        Record(b"k", letter, ((UUID, b"uuid1"), (ID, b"%d" % i), (COUNT, b"3"), (SIZE, b"3"), (CHECKSUM, ABC)), 7)
        for i, letter in enumerate((b"a", b"b", b"c"))
    ]
    assert [batch_of_one_bytes(chunk) for chunk in chunks] == [ABC_OVERHEAD + 1] * 3


def test_parse_literal() -> None:
    """Each header is read, leading zeros too, and the record's own are given back in order."""
    found = (("trace", b"1"), (UUID, b"uuid1"), (COUNT, b"03"), ("trace", None), (SIZE, b"3"), (ID, b"2"))
    assert Chunk.parse(piece(*found)) == (Chunk("uuid1", 2, 3, 3), (("trace", b"1"), ("trace", None)))
    assert Chunk.parse(piece(*good())) == (Chunk("uuid1", 0, 3, 3, ABC[7:].decode()), ())


FORM = "1 to 64 characters of [a-zA-Z0-9._-]"
NUMBER = "a decimal number from 1 to 2,147,483,647"
HEX = "sha256: and 64 lower-case hex digits"
MALFORMED: list[tuple[tuple[Header, ...], str, str, str]] = [
    ((), UUID, "absent", FORM),
    (((ID, b"0"), (COUNT, b"1"), (SIZE, b"1")), UUID, "absent", FORM),
    (((ID, b"0"), (COUNT, b"3"), (SIZE, b"3"), (UUID, b"u")), COUNT, "absent", NUMBER),
    (good(uuid=None), UUID, "null", FORM),
    (good(uuid=b""), UUID, "", FORM),
    (good(uuid=b"a" * 65), UUID, "a" * 65, FORM),
    (good(uuid=b"a/b"), UUID, "a/b", FORM),
    (good(uuid=b"a\n"), UUID, "a\\n", FORM),
    (good(uuid="é".encode()), UUID, "é", FORM),
    (good(count=b"0"), COUNT, "0", NUMBER),
    (good(count=b"2147483648"), COUNT, "2147483648", NUMBER),
    (good(count=b"00000000003"), COUNT, "00000000003", NUMBER),
    (good(count=b"-3"), COUNT, "-3", NUMBER),
    (good(count=b"3\n"), COUNT, "3\\n", NUMBER),
    (good(count="٣".encode()), COUNT, "٣", NUMBER),
    (good(count=None), COUNT, "null", NUMBER),
    (good(id=b"3"), ID, "3", "a decimal number from 0 to 2"),
    (good(id=b"-0"), ID, "-0", "a decimal number from 0 to 2"),
    (good(id=b""), ID, "", "a decimal number from 0 to 2"),
    (good(size=b"0"), SIZE, "0", NUMBER),
    (good(size=b"2147483648"), SIZE, "2147483648", NUMBER),
    (good(size=b"1" * 100), SIZE, "1" * 100, NUMBER),
    (good(size=b"1" * 1_000_000), SIZE, "1" * 100 + "…", NUMBER),
    (good(checksum=None), CHECKSUM, "null", HEX),
    (good(checksum=b"md5:00"), CHECKSUM, "md5:00", HEX),
    (good(checksum=ABC.upper()), CHECKSUM, ABC.decode().upper(), HEX),
    (good(checksum=ABC + b"0"), CHECKSUM, ABC.decode() + "0", HEX),
]


@pytest.mark.parametrize(("headers", "field", "found", "allowed"), MALFORMED)
def test_parse_malformed(headers: tuple[Header, ...], field: str, found: str, allowed: str) -> None:
    """A header that is not as the format says is an error: its name, how its value begins, what is allowed."""
    with pytest.raises(MalformedChunkError) as raised:
        Chunk.parse(piece(*headers))
    assert raised.value.field == field
    assert str(raised.value) == f"malformed chunk: {field} is '{found}'; allowed: {allowed}"


@pytest.mark.parametrize(
    ("value", "size", "found"),
    [
        (None, b"3", "null"),
        (b"", b"3", "0 bytes, 3 chunks"),
        (b"ab", b"3", "2 bytes, 3 chunks"),
        (b"a", b"2", "1 bytes, 3 chunks"),  # three chunks, none of them empty, have three bytes
    ],
)
def test_parse_value(value: bytes | None, size: bytes, found: str) -> None:
    """A null, an empty piece, and one that leaves no byte for each other chunk are malformed."""
    with pytest.raises(MalformedChunkError) as raised:
        Chunk.parse(piece(*good(size=size), value=value))
    wanted = f"malformed chunk: value is '{found}'; allowed: one of 3 pieces of {size.decode()} bytes"
    assert str(raised.value) == wanted


def test_piece_is_named_by_its_headers() -> None:
    """Of any headers, for an error message."""
    assert piece_text(good(uuid=b"u" * 65)) == f"chunk.id 0 of chunk.count 3, chunk.uuid {'u' * 63}…"
    assert piece_text(()) == "chunk.id - of chunk.count -, chunk.uuid -"


def test_parse_at_the_limits() -> None:
    """The largest numbers are read, ten digits of zeros with them, and nothing is allocated by what they say."""
    most = b"2147483647"
    with allocated_at_most(100_000):
        chunk, _ = Chunk.parse(piece(*good(id=b"2147483646", count=most, size=most)))
    assert (chunk.id, chunk.count, chunk.size) == (2**31 - 2, 2**31 - 1, 2**31 - 1)
    assert Chunk.parse(piece(*good(uuid=b"a" * 64, count=b"0000000003")))[0].count == 3


def test_parse_ten_thousand_headers() -> None:
    """Headers of the same names before the flag, and second ones behind it, are the record's own."""
    before = tuple((name, b"9") for name in (UUID, ID, COUNT, SIZE, CHECKSUM) for _ in range(1000))
    behind = tuple((name, b"9") for name in (ID, COUNT, SIZE, CHECKSUM) for _ in range(1250))
    chunk, own = Chunk.parse(piece(*before, *good(), *behind))
    assert chunk.count == 3
    assert own == before + behind


# --- splitting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", split_cases(), ids=lambda case: str(case.name))
def test_split_vector(case: SplitCase) -> None:
    """The chunks are those of the vector, which other arithmetic has made, to the byte."""
    if case.chunks is None:
        with pytest.raises(ChunkError):
            Chunking(case.limit).split(case.record, case.uuid)
    else:
        assert list(Chunking(case.limit).split(case.record, case.uuid)) == case.chunks


def test_split_of_the_document() -> None:
    """12 MB at 5 MB are three chunks."""
    value = bytes(12_000_000)
    chunks = list(Chunking(5_000_000).split(Record(b"k", value), "u"))
    assert len(chunks) == 3
    assert batch_of_one_bytes(chunks[0]) == batch_of_one_bytes(chunks[1]) == 5_000_000
    assert b"".join(chunk.value or b"" for chunk in chunks) == value


def test_wants_at_the_limit() -> None:
    """A record that is just as large as the limit passes; with one byte more it is split."""
    for own in ((), (("trace", b"1"),)):
        for size in (10, 63, 64, 8_191, 8_192):
            record = Record(b"k", bytes(size), own)
            limit = batch_of_one_bytes(record)
            assert [Chunking(limit + more).wants(record) for more in (-1, 0, 1)] == [True, False, False]


def test_wants_no_tombstone() -> None:
    """A tombstone and an empty value are never split, whatever their headers are."""
    large = (("h", bytes(1000)),)
    assert not Chunking(100).wants(Record(b"k", None, large))
    assert not Chunking(100).wants(Record(b"k", b"", large))
    for value in (None, b""):
        with pytest.raises(ValueError, match=r"^a tombstone, or an empty value, cannot be split$"):
            Chunking(1000).split(Record(b"k", value), "u")


@pytest.mark.parametrize(
    ("limit", "size", "count", "piece_bytes"),
    [
        (ABC_OVERHEAD + 2 + 50, 449, 9, 50),  # + 2: the size has three digits
        (ABC_OVERHEAD + 2 + 50, 450, 9, 50),
        (ABC_OVERHEAD + 2 + 50, 451, 10, 48),  # id and count have two digits
        (ABC_OVERHEAD + 3 + 2 + 50, 4_949, 99, 50),
        (ABC_OVERHEAD + 3 + 2 + 50, 4_950, 99, 50),
        (ABC_OVERHEAD + 3 + 2 + 50, 4_951, 104, 48),
    ],
)
def test_split_digits(limit: int, size: int, count: int, piece_bytes: int) -> None:
    """Where the number of chunks has one digit more, id and count take one byte more each, and the pieces two less."""
    chunks = list(Chunking(limit).split(Record(b"k", bytes(size)), "uuid1"))
    assert len(chunks) == count
    assert {len(chunk.value or b"") for chunk in chunks[:-1]} == {piece_bytes}
    assert limit - 1 <= batch_of_one_bytes(chunks[-2]) <= limit  # id 8 has one digit


def test_split_headers_ride_or_not() -> None:
    """Own headers ride on each chunk while they take no more than half of the room, else on the first alone."""
    value = bytes(10_000)
    limit = 2_000
    bare = value_room_bytes(Record(b"k", b"", Chunk("u", 9, 9, 10_000, "0" * 64).headers()), limit)
    bare_of_two_digits = bare - 2
    taken = bare_of_two_digits // 2 - 1 - 1 - 2  # name, its prefix, the value's prefix
    riding = list(Chunking(limit).split(Record(b"k", value, (("h", bytes(taken)),)), "u"))
    assert all(chunk.headers[0][0] == "h" for chunk in riding)
    alone = list(Chunking(limit).split(Record(b"k", value, (("h", bytes(taken + 3)),)), "u"))
    assert [chunk.headers[0][0] for chunk in alone] == ["h"] + [UUID] * (len(alone) - 1)
    assert len(alone) < len(riding)
    assert len(alone[1].value or b"") == bare


def test_split_no_room() -> None:
    """Key and headers that leave no room are a clear error, said by the call itself."""
    record = Record(b"k" * 500, bytes(5000), (("h", bytes(500)),))
    assert len(list(Chunking(ABC_OVERHEAD + 1).split(Record(b"k", b"abc"), "uuid1"))) == 3
    with pytest.raises(ChunkError):
        Chunking(ABC_OVERHEAD).split(Record(b"k", b"abc"), "uuid1")
    with pytest.raises(ChunkError, match=r"5,000 bytes .* chunks of 1,000 bytes: key and headers alone take 1,0"):
        Chunking(1000).split(record, "u")


@pytest.mark.parametrize("uuid", ["", "a/b", "a" * 65, "é", "a\n"])
def test_split_uuid(uuid: str) -> None:
    """A uuid that no reader takes is refused before anything is written."""
    with pytest.raises(ValueError, match="uuid"):
        Chunking(1000).split(Record(b"k", bytes(5000)), uuid)


def test_split_too_much() -> None:
    """A value of more bytes than an int32 counts is refused, unread."""

    class Large(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(ChunkError, match="2,147,483,647"):
        Chunking(10**6).split(Record(b"k", Large(b"x")), "u")


def test_split_again() -> None:
    """A chunk may be split once more: what is read of the outer ones is the inner one, whole."""
    inner = next(Chunking(2000).split(Record(b"k", bytes(range(256)) * 40, (("trace", b"1"),), 5), "inner"))
    outer = list(Chunking(1000).split(inner, "outer"))
    assert len(outer) > 1
    assert {Chunk.parse(chunk)[0].uuid for chunk in outer} == {"outer"}
    assert Chunk.parse(outer[0])[1] == inner.headers
    assert b"".join(chunk.value or b"" for chunk in outer) == inner.value


# --- the page -------------------------------------------------------------------------------------------------------


def shown(title: str, record: Record) -> str:
    """A record as the page shows it."""
    key, value = (record.key or b"").decode(), (record.value or b"").decode()
    rows = [f"key      {key}", f"value    {value}"]
    rows += [f"header   {name}: {(found or b'').decode()}" for name, found in record.headers]
    return "".join(f"{'' if i else title:<11}{row}\n" for i, row in enumerate(rows))


def test_page_shows_the_vector() -> None:
    """The example of the page is the vector, to the letter."""
    (case,) = (case for case in split_cases() if case.name == "abc")
    text = (Path(__file__).parents[2] / "docs" / "chunk-format.md").read_text(encoding="utf-8")
    listing = shown("message", case.record) + "".join(shown("chunk", chunk) for chunk in case.chunks or ())
    assert f"<!-- vector: abc -->\n```text\n{listing}```\n" in text
    assert f"`max.message.bytes` is {case.limit})" in text


# --- properties -----------------------------------------------------------------------------------------------------


@given(records(value=st.binary(min_size=1, max_size=3000) | st.just(bytes(9000))), st.integers(1, 4000))
@example(Record(None, b"x" * 129), 320)
def test_split_never_over_the_limit(record: Record, limit: int) -> None:
    """Whatever key, headers and limit are: no chunk is over the limit as aiokafka builds it, nor is one missing."""
    try:
        chunks = list(Chunking(limit).split(record, "u"))
    except ChunkError:
        # No room for one byte beside the largest headers that so many chunks may need.
        widest = Chunk("u", 10**4, 10**4, len(record.value or b""), "0" * 64).headers()
        assert batch_of_one_bytes(Record(record.key, b"x", (*record.headers, *widest))) > limit
        return
    checksum = hashlib.sha256(record.value or b"").hexdigest()
    for i, chunk in enumerate(chunks):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        builder.append(0, timestamp=0, key=chunk.key, value=chunk.value, headers=list(chunk.headers))
        assert len(builder.build()) == batch_of_one_bytes(chunk) <= limit
        assert (chunk.key, chunk.timestamp) == (record.key, record.timestamp)
        said, own = Chunk.parse(chunk)
        assert said == Chunk("u", i, len(chunks), len(record.value or b""), checksum)
        assert own in ((tuple(record.headers), ()) if i else (tuple(record.headers),))
    assert b"".join(chunk.value or b"" for chunk in chunks) == record.value


@given(optional_bytes(), headers(), st.integers(0, 20_000))
@example(None, [], 61 + 6 + 1 + 63)
@example(None, [], 61 + 7 + 2 + 64)
def test_value_room(key: bytes | None, own: list[Header], limit: int) -> None:
    """The longest value that fits fits, and one byte more does not."""
    room = value_room_bytes(Record(key, None, own), limit)
    assert batch_of_one_bytes(Record(key, bytes(max(0, room + 1)), own)) > limit
    if room >= 0:
        assert batch_of_one_bytes(Record(key, bytes(room), own)) <= limit


@given(st.lists(st.tuples(chunk_names(), chunk_values()), max_size=12), optional_bytes())
def test_parse_any_headers(found: list[Header], value: bytes | None) -> None:
    """Any headers are read, within the limits, or are a MalformedChunkError; own ones are the rest, in order."""
    record = Record(b"k", value, found)
    try:
        chunk, own = Chunk.parse(record)
    except MalformedChunkError:
        return
    assert is_chunk(found)
    assert 0 <= chunk.id < chunk.count <= chunk.size < 2**31
    left = iter(found)
    assert all(header in left for header in own)
    assert len(found) - len(own) == 4 + (chunk.checksum is not None)


@given(
    st.builds(
        Chunk,
        st.from_regex(r"\A[a-zA-Z0-9._-]{1,64}\Z"),
        st.just(0) | st.just(6),
        st.integers(7, 1000),
        st.integers(3000, 2**31 - 1),
        st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex),
    ),
    headers(),
)
def test_parse_is_the_inverse_of_headers(chunk: Chunk, own: list[Header]) -> None:
    """What was written behind any headers is read again."""
    assert Chunk.parse(Record(None, b"x", (*own, *chunk.headers()))) == (chunk, tuple(own))


def test_uuid_tells_messages_apart() -> None:
    """It is the same for the same record, and another one when anything of it, its origin or the limit is another."""
    record = Record(b"k", b"v", (("h", b"1"), ("i", None)), 5)
    origin = ("group", "raw", 0, 12)
    ours = Chunking(1_000).uuid(record, checksum(b"v"), origin)
    parts = b"".join(b"%d:%b" % (len(part), part) for part in (b"1", b"group", b"raw", b"0", b"12", b"1000", b"5"))
    parts += b"64:" + checksum(b"v").encode() + b"1:k1:h1:11:i-1:"
    assert ours == hashlib.sha256(parts).hexdigest()[:32]
    others = [
        Chunking(1_001).uuid(record, checksum(b"v"), origin),
        Chunking(1_000).uuid(record, checksum(b"w"), origin),
        *(
            Chunking(1_000).uuid(record, checksum(b"v"), each)
            for each in (("g", "raw", 0, 12), ("group", "raw", 0, 13))
        ),
        # The same letters, divided otherwise.
        *(
            Chunking(1_000).uuid(record, checksum(b"v"), each)
            for each in (("groupr", "aw", 0, 12), ("group", "raw", 1, 2))
        ),
        *(
            Chunking(1_000).uuid(Record(key, b"v", headers, stamp), checksum(b"v"), origin)
            for key, headers, stamp in (
                (b"", record.headers, 5),
                (None, record.headers, 5),
                (b"k", (), 5),
                (b"k", (("h", b"1"), ("i", b"")), 5),
                (b"k", (("i", None), ("h", b"1")), 5),
                (b"k", record.headers, 6),
            )
        ),
    ]
    assert len({ours, *others}) == len(others) + 1


def test_split_takes_the_digest_that_it_is_given() -> None:
    """It is not computed a second time."""
    record = Record(b"k", bytes(range(256)) * 20)
    known = Chunking(1_000).split(record, "u", "0" * 64)
    assert {Chunk.parse(each)[0].checksum for each in known} == {"0" * 64}
