"""Chunks: a value that is too large for one record is sent as several records, in order, to one partition.

    value                              a piece of the value, not empty; all pieces in order are the value
    key                                the key of the record, on every chunk
    header large-message.chunk.uuid    1 to 64 characters of [a-zA-Z0-9._-], shared by all chunks of a message
    header .id                         the number of the chunk, from 0, decimal
    header .count                      the number of chunks of the message, decimal
    header .size                       bytes of the whole value, decimal
    header .checksum                   "sha256:" and 64 lower-case hex digits, of the whole value; may be absent

Source: Pulsar's post on chunking, "How Message Chunking Is Implemented" (uuid, chunk_id, num_chunks_from_msg,
total_chunk_msg_size); design, "Chunks" (the names of the headers, and the checksum). The five come after the record's
own headers, `uuid` first. The headers after the last `uuid` are the chunk's, so a chunk may be split again. Each
chunk has the record's own headers if they need at most half of its space; otherwise only the first one has them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transforms.batch_size import (
    BATCH_OVERHEAD_BYTES,
    batch_of_one_bytes,
    is_within,
    value_room_bytes,
)
from transforms.errors import ChunkError, MalformedChunkError
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch
from transforms.text import printable

_UUID = "large-message.chunk.uuid"
_ID = "large-message.chunk.id"
_COUNT = "large-message.chunk.count"
_SIZE = "large-message.chunk.size"
_CHECKSUM = "large-message.chunk.checksum"
_DETAILS = frozenset({_ID, _COUNT, _SIZE, _CHECKSUM})

_UUID_FORM = re.compile(rb"[a-zA-Z0-9._-]{1,64}", re.ASCII)
_NUMBER_FORM = re.compile(rb"[0-9]{1,10}", re.ASCII)
_CHECKSUM_FORM = re.compile(rb"sha256:([0-9a-f]{64})", re.ASCII)
_MOST = 2**31 - 1  # Pulsar has int32 for count, size and id
_ANY_CHECKSUM = "0" * 64
_SHOWN_BYTES = 100
_LAYOUT = 1  # of the chunks that `split` makes; increase it when it cuts at other places or adds other headers


def may_hold_chunks(batch: RecordBatch) -> bool:
    """False if no record of the batch is a chunk; True if that cannot be determined cheaply."""
    return batch.may_hold(_UUID.encode())


def is_chunk(headers: Sequence[Header]) -> bool:
    """Whether the record is a chunk: it has a uuid header."""
    return any(name == _UUID for name, _ in headers)


def piece_text(headers: Sequence[Header]) -> str:
    """Which chunk of which message a record with these headers is, for an error message; they may be anything."""
    found = dict(headers)
    number, count, uuid = (printable(found.get(name), 64) for name in (_ID, _COUNT, _UUID))
    return f"chunk.id {number} of chunk.count {count}, chunk.uuid {uuid}"


def checksum(value: bytes) -> str:
    """The SHA-256 of a whole value, in hex, as in the headers of chunks."""
    return hashlib.sha256(value).hexdigest()


@dataclass(frozen=True, slots=True)
class Chunk:
    """The headers of a chunk.

    Attributes:
        uuid: of the message.
        id: the number of the chunk, from 0.
        count: the number of chunks.
        size: bytes of the whole value.
        checksum: SHA-256 of the whole value, hex; None if the header is absent.
    """

    uuid: str
    id: int
    count: int
    size: int
    checksum: str | None = None

    def headers(self) -> tuple[Header, ...]:
        """The headers to append to the record's own."""
        headers: list[Header] = [
            (_UUID, self.uuid.encode()),
            (_ID, b"%d" % self.id),
            (_COUNT, b"%d" % self.count),
            (_SIZE, b"%d" % self.size),
        ]
        if self.checksum is not None:
            headers.append((_CHECKSUM, b"sha256:" + self.checksum.encode()))
        return tuple(headers)

    @classmethod
    def parse(cls, record: RecordLike) -> tuple[Chunk, tuple[Header, ...]]:
        """The chunk, and the record's own headers.

        Raises:
            MalformedChunkError: the record is not a chunk, a header breaks the format, `id` is not below `count`, the
                value is empty, or it is longer than `size` allows with a byte for each other chunk.
        """
        headers = record.headers
        flag = next((i for i in reversed(range(len(headers))) if headers[i][0] == _UUID), None)
        if flag is None:
            raise MalformedChunkError(_UUID, "absent", "1 to 64 characters of [a-zA-Z0-9._-]")
        ours: dict[str, int] = {}
        for i in range(flag + 1, len(headers)):
            if headers[i][0] in _DETAILS:
                ours.setdefault(headers[i][0], i)
        found = {name: headers[i][1] for name, i in ours.items()}
        uuid = headers[flag][1]
        if uuid is None or not _UUID_FORM.fullmatch(uuid):
            raise MalformedChunkError(_UUID, _text(uuid), "1 to 64 characters of [a-zA-Z0-9._-]")
        count = _number(_COUNT, found, 1, _MOST)
        chunk = cls(
            uuid.decode(),
            _number(_ID, found, 0, count - 1),
            count,
            _number(_SIZE, found, 1, _MOST),
            _checksum(found[_CHECKSUM]) if _CHECKSUM in found else None,
        )
        length = len(record.value or b"")
        if not 1 <= length <= chunk.size - (chunk.count - 1):
            what = "null" if record.value is None else f"{length:,} bytes, {chunk.count:,} chunks"
            raise MalformedChunkError("value", what, f"one of {chunk.count:,} pieces of {chunk.size:,} bytes")
        taken = {flag, *ours.values()}
        return chunk, tuple(header for i, header in enumerate(headers) if i not in taken)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Splits records that are too large.

    Attributes:
        limit_bytes: the most bytes of a record, alone in a batch: `max.message.bytes` of the output topic, or less.
            Each chunk is within it before it is compressed.
    """

    limit_bytes: int

    def wants_any(self, batch: RecordBatch, *, whole: bool = False) -> bool:
        """Whether a record of the batch may be over the limit; it looks at lengths alone.

        Args:
            batch: to look at.
            whole: whether the batch is sent as it is, so that its length counts and not that of its records.
        """
        if whole and len(batch.data) <= self.limit_bytes:
            return False
        return not batch.fits(self.limit_bytes - BATCH_OVERHEAD_BYTES)

    def wants(self, record: RecordLike) -> bool:
        """Whether the record is over the limit, uncompressed. A tombstone or an empty value is never split."""
        return bool(record.value) and not is_within(record, self.limit_bytes)

    def uuid(self, record: RecordLike, digest: str, origin: Sequence[str | int]) -> str:
        """A uuid of 32 characters, identical whenever a record of a log is split into identical chunks.

        With it, readers can continue a message whose writer died in the middle: repeated chunks are duplicates, and the
        others are the rest. It is a digest of everything that the chunks depend on, so no other message has it. If a
        topic is deleted and recreated, or the limit changes, the uuid changes.

        Args:
            record: the record to split.
            digest: `checksum` of its value.
            origin: the place where it was read, and the reader; a copy by another reader is another message.
        """
        own = [part for name, value in record.headers for part in (name, value)]
        parts = (_LAYOUT, *origin, self.limit_bytes, record.timestamp, digest, record.key, *own)
        digested = hashlib.sha256()
        for part in parts:
            octets = part if isinstance(part, bytes) else b"" if part is None else str(part).encode()
            digested.update(b"%d:%b" % (-1 if part is None else len(octets), octets))
        return digested.hexdigest()[:32]

    def split(self, record: RecordLike, uuid: str, digest: str | None = None) -> Iterator[Record]:
        """The chunks of a record, in order; each one, alone in a batch, is within the limit.

        Errors are raised by the call itself, not by the iterator. A piece is copied when its chunk is taken.

        Args:
            record: a record for which `wants` is true.
            uuid: 1 to 64 characters of `[a-zA-Z0-9._-]`; a new one for each message, and for each attempt unless it
                makes the same chunks (see `uuid`).
            digest: `checksum` of its value, if known; else it is computed when the first chunk is taken.

        Raises:
            ChunkError: key and headers leave no space for a piece of the value, or the value is too long.
            ValueError: the value is null or empty, or the uuid has another form.
        """
        value = record.value
        if not value:
            raise ValueError("a tombstone, or an empty value, cannot be split")
        if not _UUID_FORM.fullmatch(uuid.encode()):
            raise ValueError(f"{uuid[:_SHOWN_BYTES]!r} is not a uuid: 1 to 64 characters of [a-zA-Z0-9._-]")
        if len(value) > _MOST:
            raise ChunkError(len(value), self.limit_bytes, f"a message of chunks has at most {_MOST:,} bytes")
        return self._pieces(record, value, uuid, digest, *self._rooms(record, uuid, len(value)))

    def _pieces(
        self, record: RecordLike, value: bytes, uuid: str, digest: str | None, first: int, rest: int, count: int
    ) -> Iterator[Record]:
        digest = digest or checksum(value)
        riding = first == rest
        start = 0
        for number in range(count):
            end = min(start + (rest if number else first), len(value))
            chunk = Chunk(uuid, number, count, len(value), digest)
            own = tuple(record.headers) if riding or not number else ()
            yield Record(record.key, value[start:end], (*own, *chunk.headers()), record.timestamp)
            start = end

    def _rooms(self, record: RecordLike, uuid: str, size: int) -> tuple[int, int, int]:
        """Bytes of the value in the first chunk and in each other chunk, and the number of chunks."""
        # Headers with more digits need more space, so the number of digits is determined first.
        for digits in range(1, 11):
            widest = Chunk(uuid, 10**digits - 1, 10**digits - 1, size, _ANY_CHECKSUM).headers()
            bare = value_room_bytes(Record(record.key, b"", widest), self.limit_bytes)
            first = value_room_bytes(Record(record.key, b"", (*record.headers, *widest)), self.limit_bytes)
            if first < 1:
                break
            rest = first if 2 * first >= bare else bare
            count = 1 + max(0, -(-(size - first) // rest))
            if len(str(count)) <= digits:
                return first, rest, count
        own = batch_of_one_bytes(Record(record.key, b"", record.headers))
        raise ChunkError(size, self.limit_bytes, f"key and headers alone take {own:,} bytes, and a chunk its headers")


def _number(name: str, found: dict[str, bytes | None], least: int, most: int) -> int:
    value = found.get(name)
    if value is not None and _NUMBER_FORM.fullmatch(value) and least <= int(value) <= most:
        return int(value)
    text = _text(value) if name in found else "absent"
    raise MalformedChunkError(name, text, f"a decimal number from {least} to {most:,}")


def _checksum(value: bytes | None) -> str:
    match = None if value is None else _CHECKSUM_FORM.fullmatch(value)
    if match is None:
        raise MalformedChunkError(_CHECKSUM, _text(value), "sha256: and 64 lower-case hex digits")
    return match[1].decode()


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    return value[:_SHOWN_BYTES].decode(errors="replace") + ("…" if len(value) > _SHOWN_BYTES else "")
