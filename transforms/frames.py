"""Compressed values of unknown length, which may have other bytes after their end.

bakdata's serializer compresses as Kafka compresses its batches, and stores the whole buffer: the frame, and zeros after
it. Therefore a reader must find the end of the frame, and a bound for its content, before it decompresses anything.

    gzip     RFC 1952: members, one after the other; zlib finds the end of each
    snappy   xerial's stream, of snappy-java: a header of 16 bytes, then blocks of int32 length, big-endian, and as many
             bytes of a raw snappy block; no end mark, but no block is empty; a header in place of a length starts
             another stream
    lz4      LZ4 frame, magic 0x184D2204: blocks of uint32 length, little-endian, up to a length of 0; one frame only
    zstd     RFC 8878 frames, magic 0xFD2FB528: blocks with a header of 3 bytes, up to the one that is marked as the
             last; and skippable frames, magic 0x184D2A50 to 0x184D2A5F, uint32 length, little-endian

The readers of Kafka's Java client also continue after the first frame: GZIPInputStream, SnappyInputStream,
ZstdInputStream; for LZ4, KafkaLZ4BlockInputStream reads one frame.

Before anything is allocated, every length is checked against the available bytes, and every sum against the limit. The
number of blocks is checked as well: empty blocks could occupy a core for seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import cramjam

from transforms.compression import Codec, CompressionError, compress, sized_buffer

_GZIP = 16 + zlib.MAX_WBITS  # means a gzip header and trailer to zlib
_GZIP_MAGIC = b"\x1f\x8b\x08"  # and the only method
_GZIP_READ_BYTES = 4_096  # per read, of members after the first: the unused rest of a read is copied for each member
_MOST_GZIP_RATIO = 1032  # zlib.net, "Maximum Compression Factor"

XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEAD = XERIAL_MAGIC + b"\0\0\0\x01\0\0\0\x01"  # version 1, readable by version 1
_XERIAL_BLOCK_BYTES = 32 * 1024  # as in snappy-java
MOST_SNAPPY_RATIO = 64  # a copy element of at least 2 bytes produces at most 64

_LZ4_MAGIC = 0x184D2204
_LZ4_LARGEST_BLOCK: Mapping[int, int] = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_MOST_RATIO = 255  # each byte of a match's length stands for 255 bytes
_LZ4_LEVEL = 1  # as in transforms/compression.py

_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_ZSTD_LARGEST_BLOCK = 128 * 1024

# Compressors write blocks of some 10 KB or more, before compression, but more blocks if flushed for each record.
_MOST_BLOCKS, _LEAST_BLOCK_BYTES = 65_536, 256


class OversizeError(CompressionError):
    """A frame has more bytes than allowed.

    Attributes:
        limit: the maximum that is allowed.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class _Extent:
    """The end of the frames, and an upper bound of their content."""

    end: int
    most_bytes: int


def compress_frame(codec: Codec, data: bytes) -> bytes:
    """`data` as one frame that bakdata's deserializer reads, with nothing after it."""
    if codec == "snappy":
        return _compress_xerial(data)
    if codec == "lz4":
        # Kafka's reader refuses linked blocks, which are the codec's default.
        compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    return compress(codec, data)


def decompress_frame(codec: Codec, data: bytes, limit: int) -> bytes:
    """The content of the frame at the beginning of `data`, and of those that follow it; other bytes are ignored.

    Only snappy's stream has no end mark: only zeros may follow, and a missing block at the end is not noticed.

    Args:
        codec: the codec of the frame.
        data: the whole frame.
        limit: the maximum size of the content; no more memory is used, except zstd's window of at most 128 MiB.

    Raises:
        OversizeError: there are more than `limit`.
        CompressionError: the frame is damaged, or truncated.
    """
    return _DECOMPRESS[codec](data, limit)


def most_bytes(codec: Codec, data: bytes) -> int:
    """An upper bound of the content of the frames at the beginning of `data`, without decompressing them.

    Raises:
        CompressionError: the frame is of an unknown kind, or truncated.
    """
    if codec == "gzip":
        return len(data) * _MOST_GZIP_RATIO
    if codec == "snappy":
        return sum(size for _, size in _xerial_blocks(data, MOST_SNAPPY_RATIO * len(data)))
    return (_lz4_extent if codec == "lz4" else _zstd_extent)(data).most_bytes


def _gzip(data: bytes, limit: int) -> bytes:
    first, at = _gzip_member(data, 0, len(data), limit)
    if data[at : at + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
        return first
    value, count = bytearray(first), _Count(len(data))
    while data[at : at + len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        count.block()
        try:
            member, at = _gzip_member(data, at, _GZIP_READ_BYTES, limit - len(value))
        except OversizeError as exc:
            raise OversizeError(limit) from exc
        value += member
    return bytes(value)


def _gzip_member(data: bytes, at: int, step: int, limit: int) -> tuple[bytes, int]:
    """The content of the member at index `at`, and the index of its end; reads `step` bytes at a time."""
    decoder, view = zlib.decompressobj(_GZIP), memoryview(data)
    most, pieces = limit, list[bytes]()
    while not decoder.eof:
        if at == len(data):
            raise CompressionError("a truncated gzip member")
        read = view[at : at + step]
        try:
            piece = decoder.decompress(read, most + 1)
        except zlib.error as exc:
            raise CompressionError(f"not a gzip member: {exc}") from exc
        if len(piece) > most:
            raise OversizeError(limit)
        pieces.append(piece)
        most -= len(piece)
        at += len(read) - len(decoder.unused_data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), at


def _compress_xerial(data: bytes) -> bytes:
    pieces = [_XERIAL_HEAD]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += [len(block).to_bytes(4), block]
    return b"".join(pieces)


def _xerial(data: bytes, limit: int) -> bytes:
    # Two passes over the blocks: a list of blocks of one byte each could exceed the limit.
    buffer = sized_buffer(sum(size for _, size in _xerial_blocks(data, limit)))
    with buffer.getbuffer() as view:
        at = 0
        for block, size in _xerial_blocks(data, limit):
            try:
                written = cramjam.snappy.decompress_raw_into(block, view[at : at + size])
            except cramjam.DecompressionError as exc:
                raise CompressionError(f"a damaged snappy block: {exc}") from exc
            if written != size:
                raise CompressionError(f"a snappy block of {written} bytes whose header declares {size}")
            at += size
    return buffer.getvalue()


def _xerial_blocks(data: bytes, limit: int) -> Iterator[tuple[memoryview, int]]:
    """Each block, and the length of its content according to its header."""
    if not data.startswith(XERIAL_MAGIC) or len(data) < len(_XERIAL_HEAD):
        raise CompressionError("not a stream of xerial's snappy: wrong header")
    view = memoryview(data)
    at, total = len(_XERIAL_HEAD), 0
    count = _Count(len(data))
    while at < len(data):
        count.block()
        if data.startswith(XERIAL_MAGIC, at):
            at += len(_XERIAL_HEAD)
            continue
        length = int.from_bytes(view[at : at + 4])
        if length == 0:  # the zeros of the buffer; there may be fewer than four
            if data.count(0, at) != len(data) - at:
                raise CompressionError("a snappy block of 0 bytes")
            return
        at += 4
        if length > len(data) - at:
            raise CompressionError(f"a snappy block of {length} bytes, of which {max(len(data) - at, 0)} exist")
        block = view[at : at + length]
        size = _varint(block)
        if not 0 < size <= MOST_SNAPPY_RATIO * length:
            raise CompressionError(f"a snappy block of {length} bytes whose header declares {size}")
        total += size
        if total > limit:
            raise OversizeError(limit)
        yield block, size
        at += length


def _varint(block: memoryview) -> int:
    """The length at the beginning of a raw snappy block: 7 bits per byte, the lowest first, at most 32 bits."""
    size = 0
    for position, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:  # noqa: PLR2004  # the bit that marks a following byte
            return size
    raise CompressionError("a snappy block whose length has too many bytes")


def _lz4_extent(data: bytes) -> _Extent:
    reader = _Reader(data, "LZ4")
    if reader.number(4) != _LZ4_MAGIC:
        raise CompressionError("not an LZ4 frame: wrong magic number")
    flags, descriptor = reader.number(1), reader.number(1)
    largest = _LZ4_LARGEST_BLOCK.get(descriptor >> 4 & 7)
    if flags >> 6 != 1 or largest is None:
        raise CompressionError(f"an LZ4 frame of an unknown kind: its header is {flags:#x}, {descriptor:#x}")
    if flags & 0x01:
        raise CompressionError("an LZ4 frame that needs a dictionary")
    reader.skip((8 if flags & 0x08 else 0) + 1)  # the length of the content, and the check byte of the header
    block_checksum = 4 if flags & 0x10 else 0
    most_bytes = 0
    while (length := reader.number(4)) != 0:
        reader.count.block()
        plain, length = length >> 31, length & 0x7FFFFFFF
        most_bytes += min(largest, length if plain else length * _LZ4_MOST_RATIO)
        reader.skip(length + block_checksum)
    reader.skip(4 if flags & 0x04 else 0)  # the checksum of the content
    return _Extent(reader.position, most_bytes)


def _zstd_extent(data: bytes) -> _Extent:
    reader = _Reader(data, "zstd")
    most_bytes, end = 0, 0
    while len(data) - reader.position >= 4:  # noqa: PLR2004  # bytes of a magic
        magic = reader.number(4)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            reader.count.block()
            reader.skip(reader.number(4))
        elif magic == _ZSTD_MAGIC:
            most_bytes += _zstd_frame(reader)
            end = reader.position
        else:
            break
    if not end:
        raise CompressionError("not a zstd frame: wrong magic number")
    return _Extent(end, most_bytes)


def _zstd_frame(reader: _Reader) -> int:
    """Skips a frame after its magic number; returns an upper bound of its content."""
    descriptor = reader.number(1)
    single_segment = descriptor & 0x20
    reader.skip((0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3])  # the window, and the dictionary's id
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    declared = reader.number(width) + (256 if width == 2 else 0) if width else None  # noqa: PLR2004  # RFC 8878, 3.1.1.1.4
    most_bytes = 0
    last = 0
    while not last:
        head = reader.number(3)
        reader.count.block()
        last, kind, length = head & 1, head >> 1 & 3, head >> 3
        # RFC 8878, 3.1.1.2: 0 is a raw block, 1 a run of one byte, 2 a compressed block.
        most_bytes += length if kind == 0 else min(length, _ZSTD_LARGEST_BLOCK) if kind == 1 else _ZSTD_LARGEST_BLOCK
        reader.skip(1 if kind == 1 else length)
    reader.skip(4 if descriptor & 4 else 0)  # the checksum
    if declared is None:
        return most_bytes
    if declared > most_bytes:
        raise CompressionError(f"a zstd frame that declares {declared} bytes and has room for {most_bytes}")
    return declared


class _Count:
    """Counts blocks, up to the maximum for this number of bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = _MOST_BLOCKS + size // _LEAST_BLOCK_BYTES

    def block(self) -> None:
        self._left -= 1
        if self._left < 0:
            most = _MOST_BLOCKS + self._size // _LEAST_BLOCK_BYTES
            raise CompressionError(f"more than {most:,} blocks in {self._size:,} bytes")


class _Reader:
    """Reads little-endian numbers from `data`, one after the other; missing bytes are an error."""

    def __init__(self, data: bytes, what: str) -> None:
        self.position = 0
        self.count = _Count(len(data))
        self._data = data
        self._what = what

    def number(self, width: int) -> int:
        start = self.position
        self.skip(width)
        return int.from_bytes(self._data[start : self.position], "little")

    def skip(self, length: int) -> None:
        if length > len(self._data) - self.position:
            raise CompressionError(f"a frame of {self._what} that is truncated at byte {len(self._data)}")
        self.position += length


def _framed(
    extent: Callable[[bytes], _Extent], decompress_into: Callable[[memoryview, memoryview], int]
) -> Callable[[bytes, int], bytes]:
    """A decoder that is called with exactly the frames, and a buffer with room for their content."""

    def decompress(data: bytes, limit: int) -> bytes:
        found = extent(data)
        buffer = sized_buffer(min(found.most_bytes, limit))
        try:
            with buffer.getbuffer() as view:
                written = decompress_into(memoryview(data)[: found.end], view)
        except cramjam.DecompressionError as exc:
            # The decoder's text for a full buffer. If that changes, a bomb is reported as damaged.
            if found.most_bytes > limit and "whole buffer" in str(exc):
                raise OversizeError(limit) from exc
            raise CompressionError(f"a damaged frame: {exc}") from exc
        buffer.truncate(written)
        return buffer.getvalue()

    return decompress


_DECOMPRESS: Mapping[Codec, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "snappy": _xerial,
    "lz4": _framed(_lz4_extent, cramjam.lz4.decompress_into),
    "zstd": _framed(_zstd_extent, cramjam.zstd.decompress_into),
}
