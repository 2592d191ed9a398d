"""The records of a batch as they are after compression: a frame of `transforms/frames.py`, or one raw block of snappy.

Kafka's own reader of snappy (snappy-java's `SnappyInputStream`) takes what does not begin with xerial's magic for one
raw block, format_description.txt. librdkafka writes all its batches so, and with it most clients that are not in Java.
"""

from __future__ import annotations

import cramjam

from transforms import frames
from transforms.compression import Codec, CompressionError, decompress

__all__ = ["most_bytes", "unpacked"]


def unpacked(codec: Codec, data: bytes, limit: int) -> bytes:
    """The records before compression; see `frames.decompress_frame`.

    Raises:
        OversizeError: there are more bytes than `limit`.
        CompressionError: the bytes are damaged, or cut off.
    """
    if not _is_raw(codec, data):
        return frames.decompress_frame(codec, data, limit)
    size = most_bytes(codec, data)
    if size > limit:
        raise frames.OversizeError(limit)
    return decompress("snappy", data, size)


def most_bytes(codec: Codec, data: bytes) -> int:
    """The most bytes that the records can have before compression; see `frames.most_bytes`.

    Raises:
        CompressionError: the bytes are of an unknown kind, or cut off.
    """
    if not _is_raw(codec, data):
        return frames.most_bytes(codec, data)
    try:
        size = int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as exc:
        raise CompressionError(f"not a block of snappy: {exc}") from exc
    if not 0 < size <= frames.MOST_SNAPPY_RATIO * len(data):
        raise CompressionError(f"a snappy block of {len(data)} bytes that promises {size}")
    return size


def _is_raw(codec: Codec, data: bytes) -> bool:
    return codec == "snappy" and not data.startswith(frames.XERIAL_MAGIC)
