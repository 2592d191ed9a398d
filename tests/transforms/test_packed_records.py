"""Compressed records as brokers take them, also where only Java's reader would."""

import contextlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.compression import CompressionError
from transforms.frames import OversizeError, decompress_frame
from transforms.packed_records import unpacked

VALUE = b"some value " * 9_000


def lz4(*, checksum: bool = True, linked: bool = False) -> bytearray:
    """`VALUE` as a frame."""
    made = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    made.compress(VALUE)
    return bytearray(bytes(made.finish()))


@pytest.mark.parametrize("linked", [False, True])
def test_lz4_checksums_that_java_does_not_compare(*, linked: bool) -> None:
    """A wrong content checksum, and the check byte as clients of message format 0 made it, keep no record back."""
    for at in (-1, 6):
        frame = lz4(linked=linked)
        frame[at] ^= 0xFF
        assert unpacked("lz4", bytes(frame), len(VALUE)) == VALUE
        with pytest.raises(CompressionError):  # a stored payload has no other checksum, perhaps
            decompress_frame("lz4", bytes(frame), len(VALUE))
        with pytest.raises(OversizeError):
            unpacked("lz4", bytes(frame), len(VALUE) - 1)


def test_lz4_content_size_that_java_does_not_compare() -> None:
    """A wrong length of the content keeps no record back."""
    frame = lz4(checksum=False)
    frame[4:6] = (frame[4] | 0x08, frame[5], *bytes(7), 1)
    assert unpacked("lz4", bytes(frame), len(VALUE)) == VALUE


@given(st.binary(max_size=40), st.integers(0, 30))
def test_lz4_any_bytes(data: bytes, start: int) -> None:
    """Any bytes are an error, or a value within the limit."""
    with contextlib.suppress(CompressionError):
        assert len(unpacked("lz4", bytes(lz4()[:start]) + data, 100)) <= 100
