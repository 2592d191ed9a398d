"""The records of a batch in compressed form: frames of `transforms/frames.py`, or one raw snappy block.

Kafka's own reader of snappy (snappy-java's `SnappyInputStream`) treats data without xerial's magic as one raw block,
format_description.txt. librdkafka writes all its batches in this way, and so do most clients that are not in Java.
Kafka's reader of LZ4 (`KafkaLZ4BlockInputStream`) verifies neither the content size nor the content checksum; and
clients of message format 0 included the magic in the check byte of the header (KAFKA-3160).
"""

from __future__ import annotations

import cramjam

from transforms import frames
from transforms.compression import Codec, CompressionError, decompress

_LZ4_HEAD_BYTES = 7  # magic, flags, descriptor, check byte
_LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x08, 0x04  # flags


def unpacked(codec: Codec, data: bytes, limit: int) -> bytes:
    """The records before compression; see `frames.decompress_frame`.

    Raises:
        OversizeError: there are more bytes than `limit`.
        CompressionError: the bytes are damaged, or truncated.
    """
    if not _is_raw(codec, data):
        try:
            return frames.decompress_frame(codec, data, limit)
        except frames.OversizeError:
            raise
        except CompressionError:
            if codec != "lz4" or len(data) < _LZ4_HEAD_BYTES:
                raise
            return frames.decompress_frame(codec, _unchecked(data), limit)
    size = most_bytes(codec, data)
    if size > limit:
        raise frames.OversizeError(limit)
    return decompress("snappy", data, size)


def most_bytes(codec: Codec, data: bytes) -> int:
    """An upper bound of the size of the records before compression; see `frames.most_bytes`.

    Raises:
        CompressionError: the bytes are of an unknown kind, or truncated.
    """
    if not _is_raw(codec, data):
        return frames.most_bytes(codec, data)
    try:
        size = int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as exc:
        raise CompressionError(f"not a block of snappy: {exc}") from exc
    if not 0 < size <= frames.MOST_SNAPPY_RATIO * len(data):
        raise CompressionError(f"a snappy block of {len(data)} bytes whose header declares {size}")
    return size


def _unchecked(data: bytes) -> bytes:
    """An LZ4 frame without content size and content checksum, and with the right check byte in its header."""
    flags, descriptor = data[4], data[5]
    head = bytes((flags & ~(_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM), descriptor))
    begin = _LZ4_HEAD_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    return data[:4] + head + bytes((_xxh32_of_two(head) >> 8 & 0xFF,)) + data[begin:]


def _xxh32_of_two(data: bytes) -> int:
    """XXH32 of two bytes with `seed` 0; xxHash's specification, "XXH32 Algorithm Description", steps 1, 5 and 6."""
    prime_1, prime_2, prime_3, prime_5, mask = 2654435761, 2246822519, 3266489917, 374761393, 2**32 - 1
    found = prime_5 + len(data)
    for octet in data:
        found = found + octet * prime_5 & mask
        found = (found << 11 | found >> 21) * prime_1 & mask
    found = (found ^ found >> 15) * prime_2 & mask
    found = (found ^ found >> 13) * prime_3 & mask
    return found ^ found >> 16


def _is_raw(codec: Codec, data: bytes) -> bool:
    return codec == "snappy" and not data.startswith(frames.XERIAL_MAGIC)
