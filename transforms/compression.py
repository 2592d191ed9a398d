"""Compression of stored payloads: four codecs of cramjam, with a bound for decompressed sizes.

The formats: gzip (RFC 1952), snappy (one raw block, format_description.txt), lz4 (LZ4 frame), zstd (RFC 8878 frame).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import cramjam

from transforms.errors import ConfigurationError

Codec = Literal["gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = get_args(Codec)

# Kafka's default levels (KIP-390); cramjam's own zstd default, 11, is several times slower.
_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3


_OLDEST = (2, 14)  # of cramjam; pyproject.toml has it, too


def _require_limit(release: str) -> None:
    """Refuses a cramjam without limits: executors of Spark may have any release installed.

    Before 2.14, cramjam decompresses a whole gzip value into a separate buffer, and ignores what follows an LZ4 frame.

    Raises:
        ConfigurationError: `release` is too old.
    """
    if tuple(int(part) for part in release.split(".")[:2]) < _OLDEST:
        raise ConfigurationError(
            "cramjam",
            f"found {release}, allowed is 2.14 or newer: older ones decompress gzip without a limit; "
            "run pip install 'cramjam>=2.14' for the Python that runs this",
        )


_require_limit(cramjam.__version__)


class CompressionError(ValueError):
    """The bytes are not one whole compressed value of the expected size."""


@dataclass(frozen=True, slots=True)
class _Functions:
    compress: Callable[[bytes], bytes]
    decompress_into: Callable[[bytes, memoryview], int]


_FUNCTIONS: Mapping[Codec, _Functions] = {
    "gzip": _Functions(
        lambda data: bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL)),
        cramjam.gzip.decompress_into,
    ),
    "snappy": _Functions(
        lambda data: bytes(cramjam.snappy.compress_raw(data)),
        cramjam.snappy.decompress_raw_into,
    ),
    "lz4": _Functions(
        lambda data: bytes(cramjam.lz4.compress(data, level=_LZ4_LEVEL)),
        cramjam.lz4.decompress_into,
    ),
    "zstd": _Functions(
        lambda data: bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL)),
        cramjam.zstd.decompress_into,
    ),
}


def compress(codec: Codec, data: bytes) -> bytes:
    """`data` as one compressed block or frame of the codec."""
    return _FUNCTIONS[codec].compress(data)


def sized_buffer(size: int) -> io.BytesIO:
    """A buffer with room for `size` bytes.

    If BytesIO is filled completely, it returns its bytes without a copy. A bytearray would be copied: that is half of
    the memory and 40 % of the time for a zstd value of 32 MB.
    """
    buffer = io.BytesIO()
    if size:
        buffer.seek(size - 1)
        buffer.write(b"\0")
    return buffer


def decompress(codec: Codec, data: bytes, size: int) -> bytes:
    """The `size` bytes of the compressed `data`.

    The decoder writes into a buffer of exactly `size` bytes, so a compression bomb is an error and needs no memory. The
    caller has checked that `size` is within the limits.

    Raises:
        CompressionError: `data` is damaged, or holds more or fewer than `size` bytes.
    """
    buffer = sized_buffer(size)
    try:
        with buffer.getbuffer() as view:
            written = _FUNCTIONS[codec].decompress_into(data, view)
    except cramjam.DecompressionError as exc:
        raise CompressionError(f"not one whole {codec} value of {size} bytes: {exc}") from exc
    if written != size:
        raise CompressionError(f"a {codec} value of {written} bytes, not of {size}")
    return buffer.getvalue()
