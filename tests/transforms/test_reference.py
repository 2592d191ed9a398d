"""The reference record: its literal bytes both ways, and what is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import headers, reference_headers, references, values
from transforms.errors import MalformedReferenceError, TransformError
from transforms.record import Header, Record
from transforms.reference import MAX_PATH_BYTES, Encryption, Reference, is_reference

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
    "\uff11\uff12".encode(), "\u0663".encode(), b"\xff\xfe", b"1" * 20, b"10000000000000000000", b"x" * 100,
    b"\xff" * 101, MEGABYTE,
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
BAD_SIGNATURES = [None, b"", b"hmac-sha256", b"hmac-sha256:12345678:" + b"0" * 63, b"x:1234567G:" + b"0" * 64, MEGABYTE]
ALLOWED = {
    "size": (BAD_SIZES, "a decimal number of bytes, 1 to 19 digits"),
    "checksum": (BAD_CHECKSUMS, "sha256: and 64 lower-case hex digits"),
    "compression": (BAD_CODECS, "gzip, snappy, lz4, zstd"),
    "signature": (BAD_SIGNATURES, "hmac-sha256, the key's name and the digest, in hex"),
}


def as_text(value: bytes | None) -> str:
    """How a message shows a header: one of a megabyte by its beginning and its length."""
    text = "null" if value is None else value[:100].decode(errors="replace")
    return f"{text}… ({len(value):,} bytes)" if value is not None and len(value) > 100 else text


@pytest.mark.parametrize(
    ("header", "value", "allowed"),
    [(header, value, allowed) for header, (values, allowed) in ALLOWED.items() for value in values],
    ids=lambda value: repr(value)[:40].replace("\\", "~"),
)
def test_reference_parse_malformed_header(header: str, value: bytes | None, allowed: str) -> None:
    """Each bad header is refused in one short line that names it, with what was found and what is allowed."""
    name = f"large-message.{header}"
    good = [each for each in (FLAG, SIZE, CHECKSUM) if each[0] != name]
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, PATH.encode(), (*good, (name, value))))
    assert vars(raised.value) == {"field": name, "found": as_text(value), "allowed": allowed}
    assert len(str(raised.value)) < 300
    assert str(raised.value).isprintable()


ENCRYPTED = Reference(PATH, 3, DIGEST, encryption=Encryption("kek", bytes(12), bytes(80))).headers()
CIPHER, KEY_ID, NONCE, DATA_KEY = (name for name, _ in ENCRYPTED[3:])


@pytest.mark.parametrize(
    ("changed", "field", "found", "allowed"),
    [
        ({"large-message": b"false"}, "large-message", "absent or another", "true"),
        ({CIPHER: b"aes"}, CIPHER, "aes", "aes-256-gcm"),
        ({KEY_ID: b""}, KEY_ID, "", "1 to 256 characters of [a-zA-Z0-9._:/-]"),
        ({NONCE: None}, NONCE, "null", "24 lower-case hex digits"),
        ({DATA_KEY: b"0" * 159}, DATA_KEY, as_text(b"0" * 159), "160 to 12,544 lower-case hex digits"),
        ({"large-message.checksum": CHECKSUM[1]}, "large-message.checksum", (CHECKSUM[1] or b"").decode(),
         "sha256-stored: and 64 lower-case hex digits"),
    ],
)  # fmt: skip
def test_reference_parse_malformed_encryption(
    changed: dict[str, bytes | None], field: str, found: str, allowed: str
) -> None:
    """Each header of an encrypted payload has its form."""
    headers = [(name, changed.get(name, value)) for name, value in ENCRYPTED]
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, PATH.encode(), headers))
    assert vars(raised.value) == {"field": field, "found": found, "allowed": allowed}


@pytest.mark.parametrize(
    ("missing", "field", "allowed"),
    [
        (KEY_ID, KEY_ID, "1 to 256 characters of [a-zA-Z0-9._:/-]"),
        ("large-message.size", "large-message.size", "present, as the payload is encrypted"),
        ("large-message.checksum", "large-message.checksum", "present, as the payload is encrypted"),
    ],
)
def test_reference_parse_header_that_is_missing(missing: str, field: str, allowed: str) -> None:
    """All headers of an encrypted payload are needed; and the size bounds compressed bytes."""
    headers = [(name, value) for name, value in ENCRYPTED if name != missing]
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, PATH.encode(), headers))
    assert vars(raised.value) == {"field": field, "found": "absent", "allowed": allowed}
    with pytest.raises(MalformedReferenceError) as raised:
        Reference.parse(Record(None, PATH.encode(), (FLAG, COMPRESSION)))
    bound = "a size, which large-message.compression requires"
    assert vars(raised.value) == {"field": "large-message.size", "found": "absent", "allowed": bound}


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
    ids=lambda value: repr(value)[:40].replace("\\", "~"),
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
