"""The reference record: its literal bytes both ways, and what is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import headers, reference_headers, references, values
from transforms.errors import MalformedReferenceError, TransformError
from transforms.record import Header, Record
from transforms.reference import MAX_PATH_BYTES, Reference, is_reference

PATH = "s3://payloads/wide/orders/2c26b46b68ffc68f"
DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"  # of b"foo"

FLAG: Header = ("large-message", b"true")
SIZE: Header = ("large-message.size", b"3")
CHECKSUM: Header = ("large-message.checksum", b"sha256:" + DIGEST.encode())
COMPRESSION: Header = ("large-message.compression", b"zstd")
TRACE: Header = ("trace", b"1")

WHOLE = Reference(PATH, 3, DIGEST)
SEED = Reference(PATH)


@pytest.mark.parametrize(
    ("reference", "written"),
    [
        (SEED, (FLAG,)),
        (WHOLE, (FLAG, SIZE, CHECKSUM)),
        (Reference(PATH, 3, DIGEST, "zstd"), (FLAG, SIZE, CHECKSUM, COMPRESSION)),
        (Reference(PATH, 3, DIGEST, "gzip"), (FLAG, SIZE, CHECKSUM, ("large-message.compression", b"gzip"))),
        (Reference(PATH, 3, DIGEST, "lz4"), (FLAG, SIZE, CHECKSUM, ("large-message.compression", b"lz4"))),
        (Reference(PATH, 3, DIGEST, "snappy"), (FLAG, SIZE, CHECKSUM, ("large-message.compression", b"snappy"))),
        (Reference(PATH, 0), (FLAG, ("large-message.size", b"0"))),
        (Reference(PATH, 20_971_520), (FLAG, ("large-message.size", b"20971520"))),
        (Reference("file:///größe", 10**19 - 1), (FLAG, ("large-message.size", b"9999999999999999999"))),
    ],
)
def test_reference_literal(reference: Reference, written: tuple[Header, ...]) -> None:
    """A reference is written as these headers, and these headers are read as this reference."""
    assert reference.headers() == written
    assert Reference.parse(Record(None, reference.path.encode(), written)) == (reference, ())


@given(references(), headers())
def test_reference_parse_reverses_headers(reference: Reference, own: list[Header]) -> None:
    """A whole reference is found behind any headers, and these come back as they were."""
    if reference.size is None:
        own = [header for header in own if not header[0].startswith("large-message.")]
    record = Record(b"k", reference.value(), (*own, *reference.headers()))
    assert is_reference(record.headers)
    assert Reference.parse(record) == (reference, tuple(own))


@pytest.mark.parametrize(
    ("found", "expected", "own"),
    [
        pytest.param([FLAG], SEED, (), id="nothing but the flag"),
        pytest.param([TRACE, FLAG, TRACE], SEED, (TRACE, TRACE), id="the seed's, among others"),
        pytest.param([TRACE, FLAG, SIZE, CHECKSUM, TRACE], WHOLE, (TRACE, TRACE), id="others added behind"),
        pytest.param([FLAG, CHECKSUM, SIZE], WHOLE, (), id="another order"),
        pytest.param([SIZE, CHECKSUM, FLAG], WHOLE, (), id="the flag last"),
        pytest.param([CHECKSUM, TRACE, SIZE, FLAG], WHOLE, (TRACE,), id="the flag last, with a gap"),
        pytest.param([FLAG, TRACE, SIZE, CHECKSUM], WHOLE, (TRACE,), id="a gap behind the flag"),
        pytest.param([FLAG, SIZE, TRACE, CHECKSUM], WHOLE, (TRACE,), id="a gap further behind"),
        pytest.param([SIZE, FLAG, CHECKSUM], Reference(PATH, None, DIGEST), (SIZE,), id="around the flag"),
        pytest.param(
            [("large-message.size", b"9"), FLAG, TRACE, SIZE],
            Reference(PATH, 3),
            (("large-message.size", b"9"), TRACE),
            id="the last of a name counts, the other stays",
        ),
        pytest.param(
            [("large-message.size", b"9"), FLAG, SIZE, CHECKSUM],
            WHOLE,
            (("large-message.size", b"9"),),
            id="those behind the flag go before those elsewhere",
        ),
        pytest.param(
            [FLAG, SIZE, CHECKSUM, ("large-message.size", b"x")],
            WHOLE,
            (("large-message.size", b"x"),),
            id="the first of a name behind the flag counts",
        ),
        pytest.param([FLAG, SIZE, CHECKSUM, FLAG, SIZE], Reference(PATH, 3), (FLAG, SIZE, CHECKSUM), id="nested"),
        pytest.param([FLAG, SIZE, CHECKSUM, FLAG], SEED, (FLAG, SIZE, CHECKSUM), id="the seed's around ours"),
        pytest.param([FLAG, FLAG, SIZE], Reference(PATH, 3), (FLAG,), id="ours around the seed's"),
        pytest.param(
            [("large-message", b"false"), ("large-message.size", None), FLAG],
            SEED,
            (("large-message", b"false"), ("large-message.size", None)),
            id="an earlier flag keeps what is its own",
        ),
    ],
)
def test_reference_parse_order(found: list[Header], expected: Reference, own: tuple[Header, ...]) -> None:
    """The headers of the reference are told from the record's own, whoever wrote them and in whatever order."""
    assert Reference.parse(Record(None, PATH.encode(), found)) == (expected, own)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], False),
        ([TRACE], False),
        ([SIZE, CHECKSUM], False),
        ([FLAG], True),
        ([FLAG, TRACE], True),
        ([("large-message", None)], False),
        ([("large-message", b"")], False),
        ([("large-message", b"false")], False),
        ([("large-message", b"TRUE")], False),
        ([("large-message", b"true ")], False),
        ([("large-message", b"true\0")], False),
        ([("Large-Message", b"true")], False),
        ([("large-message ", b"true")], False),
        ([("large-message-key", b"true")], False),
        ([FLAG, ("large-message", b"false")], False),
        ([("large-message", b"false"), FLAG], True),
    ],
)
def test_is_reference(found: list[Header], *, expected: bool) -> None:
    """The last `large-message` header decides, and only by the four bytes `true`."""
    assert is_reference(found) is expected


@pytest.mark.parametrize(
    "found", [[], [TRACE], [SIZE, CHECKSUM], [("large-message", b"false")], [("large-message", None)]]
)
def test_reference_parse_not_a_reference(found: list[Header]) -> None:
    """A record that is no reference is refused with the documented error, were it handed to parse all the same."""
    with pytest.raises(MalformedReferenceError, match="malformed reference: large-message is "):
        Reference.parse(Record(None, PATH.encode(), found))


MEGABYTE = b"7" * 1_000_000

BAD_SIZES = [
    None, b"", b"-1", b"-0", b"+5", b" 5", b"5 ", b"5\n", b"5\0", b"5.0", b"1e3", b"0x10", b"1_000", b"1,000", b"NaN",
    "\uff11\uff12".encode(), "\u0663".encode(), b"\xff\xfe", b"1" * 20, b"10000000000000000000", MEGABYTE,
]  # fmt: skip
BAD_CHECKSUMS = [
    None, b"", DIGEST.encode(), b"sha256:", b"sha256:" + DIGEST.upper().encode(), b"SHA256:" + DIGEST.encode(),
    b"sha256:" + DIGEST[:-1].encode(), b"sha256:" + DIGEST.encode() + b"0", b"sha256:" + DIGEST.encode() + b"\n",
    b" sha256:" + DIGEST.encode(), b"sha256: " + DIGEST.encode(), b"sha256:" + b"g" * 64, b"md5:" + b"0" * 32,
    b"sha512:" + b"0" * 128, b"sha256:" + "\uff11".encode() * 64, b"\xff" * 71, b"sha256:" + MEGABYTE,
]  # fmt: skip
BAD_CODECS = [
    None, b"", b"none", b"GZIP", b"Gzip", b"gzip ", b" gzip", b"gzip\n", b"gzip\0", b"gzip,zstd", b"br", b"\xff\xfe",
    "gz\u0131p".encode(), MEGABYTE,
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("large-message.size", value) for value in BAD_SIZES),
        *(("large-message.checksum", value) for value in BAD_CHECKSUMS),
        *(("large-message.compression", value) for value in BAD_CODECS),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_reference_parse_malformed_header(name: str, value: bytes | None) -> None:
    """Each bad header is refused in one short line that names it."""
    good = [header for header in (FLAG, SIZE, CHECKSUM) if header[0] != name]
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, PATH.encode(), (*good, (name, value))))
    message = str(raised.value)
    assert raised.value.field == name
    assert message.startswith(f"malformed reference: {name} is ")
    assert len(message) < 300
    assert message.isprintable()


def test_reference_parse_long_header_says_its_length() -> None:
    """A header of a megabyte is shown by its beginning and its length."""
    with pytest.raises(MalformedReferenceError, match=r"is '7{100}… \(1,000,000 bytes\)'; allowed: a decimal"):
        Reference.parse(Record(None, PATH.encode(), (FLAG, ("large-message.size", MEGABYTE))))


def test_reference_parse_compression_without_size() -> None:
    """Compressed bytes need the size, as it is what bounds them."""
    with pytest.raises(MalformedReferenceError, match=r"large-message\.size is 'absent'; .*large-message\.compression"):
        Reference.parse(Record(None, PATH.encode(), (FLAG, COMPRESSION)))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "'null'"),
        (b"", "'0 bytes'"),
        (b"\xff", "'not UTF-8 at byte 0'"),
        (b"s3://b/\xc3", "'not UTF-8 at byte 7'"),
        (b"s3://b/\xed\xa0\x80", "'not UTF-8 at byte 7'"),
        (b"/" * (MAX_PATH_BYTES + 1), "'16,385 bytes'"),
        (bytes(1_000_000), "'1,000,000 bytes'"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_reference_parse_malformed_value(value: bytes | None, found: str) -> None:
    """A value that cannot be a path is refused, and its bytes are not shown."""
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, value, (FLAG,)))
    assert str(raised.value) == f"malformed reference: value is {found}; allowed: a path in UTF-8 of 1 to 16,384 bytes"


@pytest.mark.parametrize("length", [1, MAX_PATH_BYTES - 1, MAX_PATH_BYTES])
def test_reference_value_boundary(length: int) -> None:
    """A path up to the longest is written and read."""
    reference = Reference("p" * length)
    assert Reference.parse(Record(None, reference.value(), (FLAG,))) == (reference, ())


@pytest.mark.parametrize("path", ["", "p" * (MAX_PATH_BYTES + 1), "é" * (MAX_PATH_BYTES // 2) + "p", "file:///\udc80"])
def test_reference_value_refused(path: str) -> None:
    """What no reader would take is not written: no path, one too long in bytes, one that is not UTF-8."""
    with pytest.raises(MalformedReferenceError, match=r"malformed reference: value is .*; allowed: a path in UTF-8"):
        Reference(path).value()


@given(values() | st.none(), headers() | reference_headers())
def test_reference_parse_total(value: bytes | None, found: list[Header]) -> None:
    """For any value and headers, parse accepts or raises a TransformError, and what it accepts is written the same."""
    try:
        reference, own = Reference.parse(Record(None, value, found))
    except TransformError:
        return
    assert is_reference(found)
    assert reference.value() == value
    assert Reference.parse(Record(None, value, (*own, *reference.headers()))) == (reference, own)
    assert len(own) < len(found)


def test_reference_parse_many_headers() -> None:
    """A hundred thousand headers cost time in proportion, not in the square."""
    found = [SIZE, TRACE, ("large-message", b"false"), CHECKSUM] * 25_000
    start = time.process_time()
    reference, own = Reference.parse(Record(None, PATH.encode(), (*found, *WHOLE.headers())))
    assert time.process_time() - start < 2
    assert reference == WHOLE
    assert own == tuple(found)
