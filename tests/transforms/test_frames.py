"""Frames with something behind them: found, bounded, and never taken for another value."""

from __future__ import annotations

import contextlib
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vectors.bakdata import BakdataCase, bakdata_cases
from transforms.compression import CODECS, Codec, CompressionError, compress
from transforms.frames import OversizeError, compress_frame, decompress_frame, most_bytes

COMPRESSED = [case for case in bakdata_cases() if case.stored and case.codec and case.format == "bakdata-flag"]
XERIAL = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
SAMPLES = [b"", b"x", b"ab" * 40_000, bytes(range(256)) * 300]
LARGE = 300_000

codecs = st.sampled_from(CODECS)


def parts_of(case: BakdataCase) -> tuple[Codec, bytes, bytes]:
    """Codec, object and value of a vector."""
    assert case.codec is not None
    assert case.stored is not None
    assert case.plain.value is not None
    return case.codec, case.stored[1], case.plain.value


@pytest.mark.parametrize("case", COMPRESSED, ids=lambda case: case.label)
def test_object_of_theirs_at_the_limit(case: BakdataCase) -> None:
    """What Kafka's compressors wrote is read though zeros follow it, up to the limit, and not a byte above."""
    codec, stored, value = parts_of(case)
    assert stored.endswith(b"\0" * 500)
    assert decompress_frame(codec, stored, len(value)) == value
    with pytest.raises(OversizeError) as caught:
        decompress_frame(codec, stored, len(value) - 1)
    assert caught.value.limit == len(value) - 1


@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        ("snappy", XERIAL + b"\0\0\0\x05" + b"\x03\x08abc"),
        ("lz4", b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x03\0\0\x80abc" + b"\0\0\0\0"),
        ("zstd", b"\x28\xb5\x2f\xfd\x20\x03" + b"\x19\0\0abc"),
        ("zstd", b"\x28\xb5\x2f\xfd\0\x58" + b"\x18\0\0abc" + b"\x01\0\0"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\0" + b"\x01\x03\0\xfc\xffabc" + b"\xc2\x41\x24\x35\x03\0\0\0"),
    ],
)
@pytest.mark.parametrize("behind", [b"", b"\0", b"\0\0\0", b"\0" * 100])
def test_frame_by_hand(codec: Codec, frame: bytes, behind: bytes) -> None:
    """A frame put together from its specification is read, whatever number of zeros stands behind."""
    assert decompress_frame(codec, frame + behind, 3) == b"abc"
    with pytest.raises(OversizeError):
        decompress_frame(codec, frame + behind, 2)


@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        # `lz4 --content-size -BX` 1.9.4: the length of the content, and checksums of block and content.
        ("lz4", bytes.fromhex("04224d18 7c40 0300000000000000 74 03000080 616263 ff53d132 00000000 ff53d132")),
        # `zstd --check` 1.5.4 of a file, and of standard input: with and without a length, and with a checksum.
        ("zstd", bytes.fromhex("28b52ffd 24 03 190000 616263 990977ad")),
        ("zstd", bytes.fromhex("28b52ffd 04 58 190000 616263 990977ad")),
    ],
)
def test_frame_with_all_that_it_may_have(codec: Codec, frame: bytes) -> None:
    """Lengths and checksums that are no must are read where they are there, and missed where they are truncated."""
    assert decompress_frame(codec, frame + b"behind", 3) == b"abc"
    for length in range(len(frame)):
        with pytest.raises(CompressionError):
            decompress_frame(codec, frame[:length], 100)
    with pytest.raises(CompressionError):
        decompress_frame(codec, frame[:-1] + b"\0", 100)


SKIPPABLE = b"\x5f\x2a\x4d\x18\x04\0\0\0note"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
@pytest.mark.parametrize("behind", [b"", b"\0\0\0"])
def test_frames_that_follow_each_other(codec: Codec, behind: bytes) -> None:
    """All frames are read, as Java's clients read them, within one limit; a later one that is truncated is an error."""
    parts = [b"one " * 3, b"", bytes(range(256)) * 50, b"three"]
    frames, whole = b"".join(compress_frame(codec, part) for part in parts), b"".join(parts)
    assert decompress_frame(codec, frames + behind, len(whole)) == whole
    assert most_bytes(codec, frames + behind) >= len(whole)
    with pytest.raises(OversizeError) as error:
        decompress_frame(codec, frames + behind, len(whole) - 1)
    assert error.value.limit == len(whole) - 1
    with pytest.raises(CompressionError):
        decompress_frame(codec, frames[:-1], len(whole))


def test_frames_that_are_skipped() -> None:
    """Frames of zstd that hold no data are passed over, before and between those that do."""
    frame = compress_frame("zstd", b"abc")
    assert decompress_frame("zstd", SKIPPABLE + frame + SKIPPABLE * 2 + frame + SKIPPABLE, 6) == b"abcabc"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
def test_frames_without_number(codec: Codec) -> None:
    """So many frames that it would take seconds to look at them are refused."""
    frame = {"zstd": SKIPPABLE[:4] + bytes(4), "snappy": XERIAL}.get(codec) or compress_frame(codec, b"")
    with pytest.raises(CompressionError, match="more than"):
        decompress_frame(codec, frame * 80_000, 100)


def test_frames_as_their_reader_needs_them() -> None:
    """Snappy is in xerial's stream; LZ4's blocks do not depend on each other, which Kafka's reader insists on."""
    assert compress_frame("snappy", b"abc") == XERIAL + b"\0\0\0\x05" + b"\x03\x08abc"
    assert compress_frame("snappy", b"") == XERIAL
    assert compress_frame("lz4", b"abc")[4] & 0x20
    assert compress_frame("gzip", b"abc") == compress("gzip", b"abc")
    assert compress_frame("zstd", b"abc") == compress("zstd", b"abc")


@given(codec=codecs, data=st.sampled_from(SAMPLES) | st.binary(max_size=300), zeros=st.integers(0, 20))
def test_decompress_undoes_compress(codec: Codec, data: bytes, zeros: int) -> None:
    """Any value comes back, with a limit of just its length."""
    assert decompress_frame(codec, compress_frame(codec, data) + bytes(zeros), len(data)) == data


@given(codec=codecs, start=st.integers(0, 40), data=st.binary(max_size=100), limit=st.integers(0, 1000))
def test_any_bytes(codec: Codec, start: int, data: bytes, limit: int) -> None:
    """Whatever stands there, and behind however much of a head, it decodes within the limit or is an error."""
    frame = compress_frame(codec, b"a value " * 100)[:start] + data
    with contextlib.suppress(CompressionError):
        assert len(decompress_frame(codec, frame, limit)) <= limit


@given(codec=codecs, at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_frame_with_a_byte_that_differs(codec: Codec, at: int, byte: int) -> None:
    """A byte that was changed makes no difference to what is allowed: a value within the limit, or an error."""
    frame = bytearray(compress_frame(codec, bytes(range(256)) * 3))
    frame[at % len(frame)] = byte
    with contextlib.suppress(CompressionError):
        assert len(decompress_frame(codec, bytes(frame), 768)) <= 768


@pytest.mark.parametrize("codec", CODECS)
def test_frame_that_is_cut_off(codec: Codec) -> None:
    """A frame without its end is an error wherever it was cut, but for snappy's between two blocks."""
    frame = compress_frame(codec, b"some value")
    whole = range(16, 20) if codec == "snappy" else ()  # head, and zeros of the next length
    for length in range(len(frame)):
        if length in whole:
            assert decompress_frame(codec, frame[:length], 100) == b""
        else:
            with pytest.raises(CompressionError):
                decompress_frame(codec, frame[:length], 100)


@pytest.mark.parametrize("codec", CODECS)
def test_other_codec_is_an_error(codec: Codec) -> None:
    """What another codec wrote, or none, is not decoded."""
    frames = [compress_frame(other, b"some value") for other in CODECS if other != codec]
    for data in (*frames, b"", b"some value", b"\0" * 50, bytes(cramjam.snappy.compress_raw(b"some value"))):
        with pytest.raises(CompressionError):
            decompress_frame(codec, data, 1000)


@pytest.mark.parametrize(
    ("codec", "data", "why"),
    [
        (
            "snappy",
            XERIAL + b"\0\0\0\x05" + b"\xff\xff\xff\xff\x0f",
            "^a snappy block of 5 bytes whose header declares 4294967295$",
        ),
        (
            "snappy",
            XERIAL + b"\0\0\0\x05" + b"\xff\xff\xff\xff\xff",
            "^a snappy block whose length has too many bytes$",
        ),
        (
            "snappy",
            XERIAL + b"\x7f\xff\xff\xff" + b"\x03\x08abc",
            "^a snappy block of 2147483647 bytes, of which 5 exist$",
        ),
        ("snappy", XERIAL + b"\0\0\0\0" + b"abc", "^a snappy block of 0 bytes$"),
        ("snappy", XERIAL + b"\0\0\0\x01" + b"\0", "declares 0"),
        (
            "snappy",
            XERIAL + b"\0\0\0\x05" + b"\x04\x08abc",
            "^a damaged snappy block: |^a snappy block of 3 bytes whose header declares 4$",
        ),
        ("snappy", XERIAL[:12], "^not a stream of xerial's snappy: wrong header$"),
        ("snappy", XERIAL + b"\0\0\0\x05" + b"\x03", "^a snappy block of 5 bytes, of which 1 exist$"),
        ("snappy", XERIAL + b"\0\0\0\x05", "^a snappy block of 5 bytes, of which 0 exist$"),
        ("snappy", XERIAL + b"\1\0", "^a snappy block of 256 bytes, of which 0 exist$"),
        ("gzip", compress_frame("gzip", b"abc")[:-1], "^a truncated gzip member$"),
        ("lz4", b"none of them", "^not an LZ4 frame: wrong magic number$"),
        ("lz4", b"\x04\x22\x4d\x18\x20\x40\x82", "unknown kind"),
        ("lz4", b"\x04\x22\x4d\x18\x60\x30\x82", "unknown kind"),
        ("lz4", b"\x04\x22\x4d\x18\x61\x40\x82" + bytes(8), "^an LZ4 frame that needs a dictionary$"),
        ("lz4", b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xff\xff\xff\x7f", "^a frame of LZ4 that is truncated at byte 11$"),
        ("lz4", b"\x04\x22\x4d\x18\x60\x40\x83" + b"\x03\0\0\x80abc" + b"\0\0\0\0", "damaged"),
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\x19\0\0abc", "declares 18446744073709551615"),
        ("zstd", b"\x28\xb5\x2f\xfd\x20\x03" + b"\x1f\0\0abc", "damaged|truncated"),
        ("zstd", b"\x50\x2a\x4d\x18\x03\0\0\0abc", "wrong magic number"),
        (
            "gzip",
            b"\x1f\x8b\x08\0\0\0\0\0\0\0" + b"\x01\x03\0\xfc\xffabc" + b"\0\0\0\0\x03\0\0\0",
            "incorrect data check",
        ),
    ],
)
def test_lengths_that_lie(codec: Codec, data: bytes, why: str) -> None:
    """A length, a kind or a checksum that cannot be is an error that says which."""
    with pytest.raises(CompressionError, match=why):
        decompress_frame(codec, data, 1_000_000)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        *((codec, compress_frame(codec, bytes(50_000_000))) for codec in CODECS),
        (
            "zstd",
            b"\x28\xb5\x2f\xfd\0\x58" + b"\x02\0\x10\0" * 10_000 + b"\x01\0\0",
        ),  # a byte that stands 131,072 times
        ("snappy", XERIAL + (b"\0\0\0\x06" + b"\x80\x01\0a\xfe\1") * 100_000),
    ],
    ids=[*CODECS, "zstd-repeated", "snappy-blocks"],
)
def test_bomb_takes_no_memory(codec: Codec, bomb: bytes) -> None:
    """What would decompress to far more than is allowed ends as an error, and never takes much more than that."""
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress_frame(codec, bomb, LARGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * LARGE


@pytest.mark.parametrize(
    ("codec", "head", "block"),
    [
        ("snappy", XERIAL, b"\0\0\0\x03\x01\0x"),
        ("lz4", b"\x04\x22\x4d\x18\x60\x40\x82", b"\x01\0\0\x80x"),
        ("zstd", b"\x28\xb5\x2f\xfd\0\x58", b"\x08\0\0x"),
    ],
)
def test_tiny_blocks_are_bounded(codec: Codec, head: bytes, block: bytes) -> None:
    """A frame of nothing but heads of blocks is refused before it takes long; what a real writer flushes is not."""
    for read in (lambda data: decompress_frame(codec, data, 2**30), lambda data: most_bytes(codec, data)):
        with pytest.raises(CompressionError, match=r"more than [0-9,]+ blocks in [0-9,]+ bytes"):
            read(head + block * 300_000)
    end = {"snappy": b"", "lz4": bytes(4), "zstd": b"\x01\0\0"}[codec]
    assert decompress_frame(codec, head + block * 60_000 + end, 60_000) == b"x" * 60_000
