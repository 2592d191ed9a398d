"""Compression that goes there and back, and refuses to write more than was agreed."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import values
from transforms.compression import CODECS, Codec, CompressionError, _require_limit, compress, decompress
from transforms.errors import ConfigurationError

VALUE = b"hello world " * 50

# "large" as each format's own document lays it out, so that bytes which others stored are read.
LITERAL: dict[Codec, bytes] = {
    # RFC 1952: magic, deflate, no flags, no time; one stored block; CRC-32 and length.
    "gzip": bytes.fromhex("1f8b08000000000000ff 01 0500 faff 6c61726765 be296b59 05000000"),
    # format_description.txt: length as a varint, then one literal of five bytes.
    "snappy": bytes.fromhex("05 10 6c61726765"),
    # LZ4 frame: magic, flags 0x60 (version 1, blocks independent), 64 KB, header check, stored block, end mark.
    "lz4": bytes.fromhex("04224d18 60 40 82 05000080 6c61726765 00000000"),
    # RFC 8878: magic, single segment with its size in one byte, one raw block that is the last.
    "zstd": bytes.fromhex("28b52ffd 20 05 290000 6c61726765"),
}


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_literal(codec: Codec) -> None:
    """A value that was compressed by the letter of the format is read."""
    assert decompress(codec, LITERAL[codec], 5) == b"large"


@pytest.mark.parametrize(
    ("codec", "magic"),
    [("gzip", b"\x1f\x8b\x08"), ("snappy", b"\xd8\x04"), ("lz4", b"\x04\x22\x4d\x18"), ("zstd", b"\x28\xb5\x2f\xfd")],
)
def test_compress_magic(codec: Codec, magic: bytes) -> None:
    """Compressed bytes begin as the format has it: its magic number, or for snappy the length, 600."""
    assert compress(codec, VALUE).startswith(magic)


def test_compress_gzip_is_read_by_gzip() -> None:
    """What is stored as gzip can be read with any gunzip."""
    assert gzip.decompress(compress("gzip", VALUE)) == VALUE


@pytest.mark.parametrize("codec", CODECS)
def test_compress_same_bytes(codec: Codec) -> None:
    """The same value compresses to the same bytes (no time stamp), so a replay rewrites the same object."""
    assert compress(codec, VALUE) == compress(codec, VALUE)


@given(st.sampled_from(CODECS), values())
def test_decompress_reverses_compress(codec: Codec, value: bytes) -> None:
    """Decompress ∘ compress is the identity, also for the empty value."""
    assert decompress(codec, compress(codec, value), len(value)) == value


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 598, 599, 601, 602, 100_000])
def test_decompress_wrong_size(codec: Codec, size: int) -> None:
    """A size that is not the value's own is an error, were it by one byte only."""
    with pytest.raises(CompressionError, match=f"{codec} value of .*{size}"):
        decompress(codec, compress(codec, VALUE), size)


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_truncated(codec: Codec) -> None:
    """No proper beginning of the compressed bytes is taken for the whole."""
    compressed = compress(codec, VALUE)
    for end in range(len(compressed)):
        with pytest.raises(CompressionError):
            decompress(codec, compressed[:end], len(VALUE))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("trailing", [b"\0", b"x", b"\0" * 8, b"trailing bytes"])
def test_decompress_trailing(codec: Codec, trailing: bytes) -> None:
    """Bytes behind the value are an error, not passed over."""
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, VALUE) + trailing, len(VALUE))


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_twice(codec: Codec) -> None:
    """A second value behind the first does not fit into the size of the first."""
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, VALUE) * 2, len(VALUE))


@given(
    st.sampled_from(CODECS),
    st.data(),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=5),
    st.sampled_from((0, 1, 599, 600, 601, 5_000)),
)
def test_decompress_any_bytes(codec: Codec, data: st.DataObject, changes: list[tuple[int, int]], size: int) -> None:
    """For any bytes, `size` bytes come back or CompressionError is raised, nothing else."""
    damaged = bytearray(data.draw(st.just(compress(codec, VALUE)) | st.binary(max_size=80)))
    for position, byte in changes:
        if position < len(damaged):
            damaged[position] = byte
    message = ""
    try:
        assert len(decompress(codec, bytes(damaged), size)) == size
    except CompressionError as exc:
        message = str(exc)
    assert len(message) < 300


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_holds_no_more_than_promised(codec: Codec) -> None:
    """Python memory stays at the size that was agreed, however much the bytes hold."""
    compressed = compress(codec, bytes(1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(codec, compressed, 1_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("release", "refused"), [("2.9.0", True), ("2.13.1", True), ("2.14.0", False), ("3.0", False)])
def test_cramjam_without_a_limit_is_refused(release: str, refused: bool) -> None:  # noqa: FBT001
    """A bomb of gzip takes all memory with a release before 2.14, and no installer looks at Spark's executors."""
    if not refused:
        _require_limit(release)
        return
    with pytest.raises(ConfigurationError) as caught:
        _require_limit(release)
    assert str(caught.value) == (
        f"cramjam: found {release}, allowed is 2.14 or newer: older ones decompress gzip without a limit; "
        "run pip install 'cramjam>=2.14' for the Python that runs this"
    )
