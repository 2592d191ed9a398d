"""Values come back as they were, or an error says why not."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import codecs, headers, records, reference_headers, values
from tests.transforms.reserved import reserved_bytes
from transforms.compression import CODECS, Codec, compress
from transforms.errors import (
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadTooLargeError,
    SignatureError,
    TransformError,
)
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate, has_large_key
from transforms.offload import Offload
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, Reference
from transforms.signing import Signing

PATH = "s3://bucket/orders/id"
VALUE = b"hello world " * 50
DIGEST = hashlib.sha256(VALUE).hexdigest()
FLAG: Header = ("large-message", b"true")


def offloaded(record: RecordLike, store: dict[str, bytes], codec: Codec | None = None) -> Record:
    """What the worker does of offload, with a dict for a store."""
    assert record.value is not None
    offload = Offload(threshold_bytes=0, codec=codec)
    payload = offload.payload(record.value)
    path = f"memory://bucket/orders/{hashlib.sha256(payload.data).hexdigest()}"
    store[path] = payload.data
    return offload.refer(record, payload.reference(path))


def inflated(record: RecordLike, store: dict[str, bytes]) -> Record:
    """What the worker does of inflate, with a dict for a store."""
    inflate = Inflate()
    assert inflate.wants(record)
    inflation = inflate.begin(record)
    stored = store[inflation.reference.path]
    assert len(stored) <= inflation.stored_limit_bytes
    return inflate.finish(record, inflation, stored)


def referring(reference: Reference) -> Record:
    """A record that holds this reference."""
    return Record(b"k", reference.value(), reference.headers(), 5)


def finish(reference: Reference, stored: bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes | None:
    """The value that `stored` gives for a record with this reference."""
    inflate = Inflate(max_bytes)
    record = referring(reference)
    return inflate.finish(record, inflate.begin(record), stored).value


@given(records(value=values().filter(bool)), codecs())
def test_inflate_reverses_offload(record: Record, codec: Codec | None) -> None:
    """Inflate ∘ offload is the identity: key, value, timestamp, every header, also one with our own names."""
    store: dict[str, bytes] = {}
    assert inflated(offloaded(record, store, codec), store) == record


@given(records(value=values().filter(bool)), st.lists(codecs(), min_size=2, max_size=4))
def test_inflate_reverses_nested_offload(record: Record, nested: list[Codec | None]) -> None:
    """A record that was offloaded several times comes back by as many inflates, each the reverse of one."""
    store: dict[str, bytes] = {}
    steps = [record]
    for codec in nested:
        steps.append(offloaded(steps[-1], store, codec))
    while len(steps) > 1:
        reference = steps.pop()
        assert inflated(reference, store) == steps[-1]


@given(records(value=values().filter(bool)), codecs(), headers(max_size=3))
def test_inflate_keeps_headers_added_later(record: Record, codec: Codec | None, added: list[Header]) -> None:
    """Headers that others put behind the reference stay, as long as they are not of the reference's own names."""
    added = [header for header in added if not header[0].startswith("large-message")]
    store: dict[str, bytes] = {}
    reference = offloaded(record, store, codec)
    seen = Record(reference.key, reference.value, (*reference.headers, *added), reference.timestamp)
    assert inflated(seen, store) == Record(record.key, record.value, (*record.headers, *added), record.timestamp)


def test_inflate_seed_format() -> None:
    """A record with nothing but `large-message: true` is inflated, unverified, since it says nothing to verify."""
    record = Record(b"k", PATH.encode(), (("trace", b"1"), FLAG), 5)
    inflation = Inflate().begin(record)
    assert inflation.reference == Reference(PATH)
    assert inflation.stored_limit_bytes == DEFAULT_MAX_BYTES == 268_435_456
    assert Inflate().finish(record, inflation, VALUE) == Record(b"k", VALUE, (("trace", b"1"),), 5)


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (Record(b"k", PATH.encode(), (FLAG,)), True),
        (Record(None, PATH.encode(), (FLAG,)), True),
        (Record(b"k", b"", (FLAG,)), True),
        (Record(b"k", None, (FLAG,)), False),
        (Record(b"k", PATH.encode()), False),
        (Record(b"k", PATH.encode(), (("large-message", b"false"),)), False),
        (Record(b"k", PATH.encode(), (("large-message.size", b"3"),)), False),
        (Record(None, None), False),
    ],
)
def test_inflate_wants(record: Record, *, wanted: bool) -> None:
    """A reference is wanted; a tombstone never is, whatever its headers say."""
    assert Inflate().wants(record) is wanted


@given(records(), st.integers(0, 100_000))
def test_inflate_reserve_bytes_any_record(record: Record, max_bytes: int) -> None:
    """For any record the reservation is a number up to twice the limit; what cannot be inflated takes none."""
    inflate = Inflate(max_bytes)
    reserved = reserved_bytes(inflate, record)
    assert 0 <= reserved <= 2 * max_bytes
    try:
        inflate.begin(record)
    except TransformError:
        assert reserved == 0


@pytest.mark.parametrize(
    ("reference", "reserved"),
    [
        (Reference(PATH), 1_000),
        (Reference(PATH, 0), 0),
        (Reference(PATH, 999), 999),
        (Reference(PATH, 1_000, DIGEST, "zstd"), 2_000),
        (Reference(PATH, 1_001, DIGEST, "zstd"), 0),
        (Reference(PATH, 1_001), 0),
    ],
)
def test_inflate_reserve_bytes(reference: Reference, reserved: int) -> None:
    """Reserved is what the reference says, twice if compressed; all where it says nothing; none for what is refused."""
    assert reserved_bytes(Inflate(max_bytes=1_000), referring(reference)) == reserved


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_inflate_holds_what_it_reserves(codec: Codec | None) -> None:
    """Restoring a value takes no more memory, the stored bytes among it, than was reserved."""
    value = bytes(1 << 23)
    store: dict[str, bytes] = {}
    record = offloaded(Record(None, value), store, codec)
    (stored,) = store.values()
    tracemalloc.start()
    try:
        assert inflated(record, store).value == value
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(stored) + peak < reserved_bytes(Inflate(), record) + (1 << 18)
    assert peak < len(value) + (1 << 18)


@pytest.mark.parametrize("size", [0, 999, 1_000])
def test_inflate_begin_within_limit(size: int) -> None:
    """A payload of up to the limit is asked for, and no more than the reference says."""
    assert Inflate(max_bytes=1_000).begin(referring(Reference(PATH, size))).stored_limit_bytes == size


@pytest.mark.parametrize("size", [1_001, 2**63, 10**19 - 1])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_inflate_begin_over_limit(size: int, codec: Codec | None) -> None:
    """A reference that says more than the limit is refused before anything is asked for."""
    with pytest.raises(PayloadTooLargeError) as raised:
        Inflate(max_bytes=1_000).begin(referring(Reference(PATH, size, DIGEST, codec)))
    assert (raised.value.path, raised.value.size, raised.value.limit) == (PATH, size, 1_000)


@pytest.mark.parametrize(("length", "taken"), [(999, True), (1_000, True), (1_001, False)])
def test_inflate_finish_limit(length: int, *, taken: bool) -> None:
    """The limit holds for a payload of unknown size too, should the store have given more."""
    if taken:
        assert finish(Reference(PATH), bytes(length), max_bytes=1_000) == bytes(length)
        return
    with pytest.raises(PayloadTooLargeError, match=r"too large: 1,001 bytes, the limit is 1,000 bytes"):
        finish(Reference(PATH), bytes(length), max_bytes=1_000)


@pytest.mark.parametrize("off", [-1, 1])
def test_inflate_finish_size(off: int) -> None:
    """A payload that is one byte longer or shorter than the reference says is corrupt."""
    with pytest.raises(PayloadCorruptError) as raised:
        finish(Reference(PATH, 600 + off, DIGEST), VALUE)
    assert (raised.value.what, raised.value.found) == ("size", "600 bytes")
    assert raised.value.expected == f"{600 + off} bytes"


@pytest.mark.parametrize("position", [0, 299, 599])
def test_inflate_finish_checksum(position: int) -> None:
    """A payload in which a single bit was changed is corrupt."""
    changed = bytearray(VALUE)
    changed[position] ^= 1
    with pytest.raises(PayloadCorruptError) as raised:
        finish(Reference(PATH, 600, DIGEST), bytes(changed))
    assert (raised.value.what, raised.value.expected) == ("checksum", DIGEST)
    assert raised.value.found == hashlib.sha256(changed).hexdigest()


def test_inflate_finish_checksum_without_size() -> None:
    """A checksum is verified also where no size was given."""
    assert finish(Reference(PATH, None, DIGEST), VALUE) == VALUE
    with pytest.raises(PayloadCorruptError, match="checksum is "):
        finish(Reference(PATH, None, DIGEST), VALUE[:-1])


def test_inflate_finish_size_without_checksum() -> None:
    """A size is verified also where no checksum was given."""
    assert finish(Reference(PATH, 600), VALUE) == VALUE
    with pytest.raises(PayloadCorruptError, match="size is 599 bytes, the reference says 600 bytes"):
        finish(Reference(PATH, 600), VALUE[:-1])


def test_inflate_finish_empty_value() -> None:
    """A payload of no bytes is a value, not a tombstone."""
    assert finish(Reference(PATH, 0, hashlib.sha256(b"").hexdigest()), b"") == b""
    assert finish(Reference(PATH), b"") == b""


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 599, 601])
def test_inflate_finish_compressed_size(codec: Codec, size: int) -> None:
    """A size that lies about the decompressed bytes is found out, were it by one byte."""
    with pytest.raises(PayloadCorruptError) as raised:
        finish(Reference(PATH, size, DIGEST, codec), compress(codec, VALUE))
    assert (raised.value.what, raised.value.expected) == ("compression", f"{codec} of {size} bytes")


@pytest.mark.parametrize("codec", CODECS)
def test_inflate_finish_compressed_damaged(codec: Codec) -> None:
    """Compressed bytes that were cut, continued, or are none at all, are corrupt."""
    compressed = compress(codec, VALUE)
    reference = Reference(PATH, 600, DIGEST, codec)
    assert finish(reference, compressed) == VALUE
    for stored in (b"", compressed[:-1], compressed[:-9], compressed + b"x", compressed * 2, VALUE):
        with pytest.raises(PayloadCorruptError, match=f"compression is .*, the reference says {codec} of 600 bytes"):
            finish(reference, stored)


@pytest.mark.parametrize("codec", CODECS)
def test_inflate_finish_compressed_other_value(codec: Codec) -> None:
    """Sound compressed bytes of another value of the same size do not pass the checksum."""
    with pytest.raises(PayloadCorruptError, match="checksum is "):
        finish(Reference(PATH, 600, DIGEST, codec), compress(codec, VALUE.swapcase()))


@given(values() | st.none(), headers() | reference_headers(), st.binary(max_size=80))
def test_inflate_total(value: bytes | None, found: list[Header], stored: bytes) -> None:
    """For any record that is wanted and any stored bytes there is a record or a TransformError, nothing else."""
    inflate = Inflate(max_bytes=1_000)
    record = Record(None, value, found)
    if not inflate.wants(record):
        return
    try:
        inflation = inflate.begin(record)
        restored = inflate.finish(record, inflation, stored)
    except TransformError:
        return
    assert restored.value is not None
    assert len(restored.value) <= 1_000
    assert len(restored.headers) < len(found)


def test_inflate_begin_malformed() -> None:
    """A reference without a path is refused before anything is asked for."""
    with pytest.raises(MalformedReferenceError, match="value is '0 bytes'"):
        Inflate().begin(Record(b"k", b"", (FLAG,)))


KEY_PATH = "s3://bucket/orders/key"
KEY_REFERENCE = Reference(KEY_PATH, 3, hashlib.sha256(b"key").hexdigest())


def test_key_and_value_are_restored() -> None:
    """Each has its reference; the headers that stay are the record's own, and all else is as it was."""
    signing = Signing("s" * 32)
    key, value = signing.signed(KEY_REFERENCE, KEY), signing.signed(Reference(PATH))
    headers = (("own", b"1"), *key.headers(KEY), *value.headers())
    referring_ = Inflate(signing=signing).read(Record(key.value(), value.value(), headers, 5))
    assert referring_.key == key
    assert list(referring_.references) == [key, value]
    assert (referring_.lacks_size, referring_.is_measured) == (True, False)
    stored = {KEY_PATH: b"key", PATH: VALUE}
    restored = Inflate().restored(referring_, lambda reference, _: stored[reference.path])
    assert restored == Record(b"key", VALUE, (("own", b"1"),), 5)
    alone = Inflate().read(Record(key.value(), b"plain", key.headers(KEY), 5))
    assert (list(alone.references), alone.lacks_size, alone.value) == ([key], False, None)
    assert Inflate().restored(alone, lambda *_: b"key") == Record(b"key", b"plain", (), 5)
    for wrong in (KEY_REFERENCE, signing.signed(KEY_REFERENCE)):  # without a signature, and with that of a value
        with pytest.raises(SignatureError):
            Inflate(signing=signing).read(Record(key.value(), b"plain", wrong.headers(KEY)))
    with pytest.raises(PayloadTooLargeError):
        Inflate(max_bytes=2).read(Record(key.value(), b"plain", key.headers(KEY)))


@pytest.mark.parametrize(
    ("record", "has"),
    [
        (Record(b"k", b"v", KEY_REFERENCE.headers(KEY)), True),
        (Record(None, b"v", KEY_REFERENCE.headers(KEY)), False),
        (Record(b"k", b"v", KEY_REFERENCE.headers()), False),
        (Record(b"k", b"v"), False),
    ],
)
def test_large_key(record: Record, *, has: bool) -> None:
    """A null key is no reference, whatever the headers say."""
    assert has_large_key(record) is has


def test_sizes_that_no_reference_says_are_measured() -> None:
    """The store is asked for those alone, and what is over the limit is refused with what it said."""
    sizes: dict[str, int | None] = {PATH: 1_000, KEY_PATH: 7}
    key = Reference(KEY_PATH)
    both = Inflate().read(Record(key.value(), PATH.encode(), (*key.headers(KEY), FLAG)))
    measured = Inflate(max_bytes=1_000).measured(both, sizes.__getitem__)
    assert (measured.key_bytes, measured.value_bytes, measured.is_measured) == (7, 1_000, True)
    assert Inflate(max_bytes=2_000).reserve_bytes(measured) == 1_007
    assert Inflate(max_bytes=2_000, copied=True).reserve_bytes(measured) == 2_007
    assert Inflate(max_bytes=5).stored_limit_bytes(key, 7) == 5
    with pytest.raises(PayloadTooLargeError) as raised:
        Inflate(max_bytes=999).measured(both, sizes.__getitem__)
    assert vars(raised.value) == {"path": PATH, "size": 1_000, "limit": 999}
    known = Inflate().read(Record(KEY_REFERENCE.value(), b"v", KEY_REFERENCE.headers(KEY)))
    assert Inflate().measured(known, lambda _: 1 // 0) == known
    assert Inflate().reserve_bytes(known) == 3


@functools.cache
def bomb(codec: Codec) -> bytes:
    """About a GiB of zeros, compressed, made without ever holding them."""
    if codec == "zstd":
        # RFC 8878: window 128 KiB; blocks of three bytes (last | RLE << 1 | size << 3) and the byte to repeat.
        block = (1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"
        return b"\x28\xb5\x2f\xfd\x00\x38" + block * 8_191 + (1 | 1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"
    if codec == "snappy":
        # 2**30 as a varint, a literal of one zero, then copies of 64 bytes from one byte back; few of the many.
        return b"\x80\x80\x80\x80\x04" + b"\x00\x00" + b"\xfe\x01\x00" * 1_000
    if codec == "gzip":
        compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
        member = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(32)) + compressor.flush()
        return member * 32
    return compress("lz4", bytes(1 << 25)) * 32


_CHILD = """
import resource, sys
from transforms.errors import PayloadCorruptError
from transforms.inflate import Inflate
from transforms.record import Record
from transforms.reference import Reference

codec, size = sys.argv[1], int(sys.argv[2])
stored = sys.stdin.buffer.read()
reference = Reference("s3://bucket/orders/id", size, "0" * 64, codec)
record = Record(None, reference.value(), reference.headers())
inflate = Inflate()
inflation = inflate.begin(record)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    inflate.finish(record, inflation, stored)
except PayloadCorruptError as exc:
    print(exc.what, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1_000, 1 << 20])
def test_inflate_finish_bomb(codec: Codec, size: int) -> None:
    """A few KB (zstd) or MB (lz4) that would inflate to a GiB end as an error, in memory of the promised size."""
    stored = bomb(codec)
    assert len(stored) < 5 << 20
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, codec, str(size)], input=stored, capture_output=True, check=True, cwd=root
    )
    what, grown = ended.stdout.split()
    unit = 1 if sys.platform == "darwin" else 1 << 10
    assert what == b"compression"
    assert int(grown) * unit < size + (16 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_inflate_begin_bomb(codec: Codec) -> None:
    """A reference that admits to a GiB is refused by the limit, without a download."""
    with pytest.raises(PayloadTooLargeError, match="1,073,741,824 bytes, the limit is 268,435,456 bytes"):
        Inflate().begin(referring(Reference(PATH, 1 << 30, DIGEST, codec)))


def test_bomb_is_one() -> None:
    """The bombs are sound from their first byte on, so that they fail for their size and nothing else."""
    gzip = zlib.decompressobj(31)
    assert gzip.decompress(bomb("gzip")) == bytes(1 << 25)
    assert len(gzip.unused_data) == len(bomb("gzip")) // 32 * 31
    small = b"\x28\xb5\x2f\xfd\x00\x38" + (1 | 1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"\0"
    assert finish(Reference(PATH, 131_072, None, "zstd"), small) == bytes(131_072)
    assert len(bomb("zstd")) < 33_000
