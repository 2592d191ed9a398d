"""Chunks: a value that no record of a topic can hold travels as several records, in order, to one partition.

    value                              a piece of the value, not empty; the pieces, in order, are the value
    key                                that of the record, on every chunk
    header large-message.chunk.uuid    1 to 64 characters of [a-zA-Z0-9._-]: the same for all chunks of a message
    header .id                         which chunk, from 0, decimal
    header .count                      how many chunks the message has, decimal
    header .size                       bytes of the whole value, decimal
    header .checksum                   "sha256:" and 64 lower-case hex digits, of the whole value; may be absent

Source: seed 004, "How Message Chunking Is Implemented" (uuid, chunk_id, num_chunks_from_msg, total_chunk_msg_size);
design, "Chunks" (the names of the headers, and the checksum). The five stand behind the record's own headers, `uuid`
first, and those behind the last `uuid` are the chunk's, so a chunk may itself be chunked again. The record's own
headers ride on each chunk if they take no more than half of its room, else on the first alone, which has them always.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES, batch_of_one_bytes, value_room_bytes
from transforms.errors import ChunkError, MalformedChunkError
from transforms.record import Header, Record, RecordLike

__all__ = ["Chunk", "Chunking", "checksum", "is_chunk"]

_UUID = "large-message.chunk.uuid"
_ID = "large-message.chunk.id"
_COUNT = "large-message.chunk.count"
_SIZE = "large-message.chunk.size"
_CHECKSUM = "large-message.chunk.checksum"
_DETAILS = frozenset({_ID, _COUNT, _SIZE, _CHECKSUM})

_UUID_FORM = re.compile(rb"[a-zA-Z0-9._-]{1,64}", re.ASCII)
_NUMBER_FORM = re.compile(rb"[0-9]{1,10}", re.ASCII)
_CHECKSUM_FORM = re.compile(rb"sha256:([0-9a-f]{64})", re.ASCII)
_MOST = 2**31 - 1  # seed 004 has int32 for count, size and id
_ANY_CHECKSUM = "0" * 64
_SHOWN_BYTES = 100
_LAYOUT = 1  # of the chunks that `split` makes of a record: one more with each change of where it cuts, or what it adds


def is_chunk(headers: Sequence[Header]) -> bool:
    """True where a header says that the record is a chunk."""
    return any(name == _UUID for name, _ in headers)


def checksum(value: bytes) -> str:
    """The SHA-256 of a whole value, in hex, as chunks say it."""
    return hashlib.sha256(value).hexdigest()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a chunk says of itself and of its message.

    Attributes:
        uuid: the message's.
        id: which chunk, from 0.
        count: how many there are.
        size: bytes of the whole value.
        checksum: SHA-256 of the whole value, hex; None where the writer did not say.
    """

    uuid: str
    id: int
    count: int
    size: int
    checksum: str | None = None

    def headers(self) -> tuple[Header, ...]:
        """The headers that go behind the record's own."""
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
        """What a record says of the chunk that it is, and its own headers.

        Raises:
            MalformedChunkError: it is none, a header is not as above, `id` is not below `count`, it is empty, or with
                a byte for each other chunk there would be more than `size`.
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
    """Which records are too large, and how they are split.

    Attributes:
        limit_bytes: the most that a record may take as a batch of one, uncompressed: `max.message.bytes` of the topic
            that it goes to, or less.
    """

    limit_bytes: int

    def wants(self, record: RecordLike) -> bool:
        """True where the record would be refused. A tombstone and an empty value never are split."""
        value = record.value
        if not value:
            return False
        if not record.headers and len(value) + len(record.key or b"") + HEADERLESS_OVERHEAD_BYTES <= self.limit_bytes:
            return False
        return batch_of_one_bytes(record) > self.limit_bytes

    def uuid(self, record: RecordLike, digest: str, origin: Sequence[str | int]) -> str:
        """A uuid that is the same when the same record of a log is split again, into the same chunks; 32 characters.

        With it, readers go on with a message of which the writer died in the middle: what they have is a duplicate,
        what comes after it is the rest. All that the chunks are made of is in it, so no other message has it: a topic
        that was deleted and made anew, or another limit, gives another one.

        Args:
            record: what will be split.
            digest: `checksum` of its value.
            origin: where it was read, and by whom: another reader's copy of the record is another message.
        """
        own = [part for name, value in record.headers for part in (name, value)]
        parts = (_LAYOUT, *origin, self.limit_bytes, record.timestamp, digest, record.key, *own)
        digested = hashlib.sha256()
        for part in parts:
            octets = part if isinstance(part, bytes) else b"" if part is None else str(part).encode()
            digested.update(b"%d:%b" % (-1 if part is None else len(octets), octets))
        return digested.hexdigest()[:32]

    def split(self, record: RecordLike, uuid: str, digest: str | None = None) -> Iterator[Record]:
        """The chunks of a record, in order; none is over the limit as a batch of one.

        What is raised is raised by the call itself; only the piece that is taken is copied.

        Args:
            record: one that `wants` is true of.
            uuid: a new one for each message, and for each attempt unless it makes the same chunks (`uuid`): 1 to 64
                characters of `[a-zA-Z0-9._-]`.
            digest: `checksum` of its value, where it is known; else all of it is hashed when the first chunk is taken.

        Raises:
            ChunkError: key and headers leave no room for a piece of the value, or there is too much of it.
            ValueError: the value is null or empty, or the uuid is none.
        """
        value = record.value
        if not value:
            raise ValueError("a tombstone, or an empty value, cannot be split")
        if not _UUID_FORM.fullmatch(uuid.encode()):
            raise ValueError(f"{uuid[:_SHOWN_BYTES]!r} is no uuid: 1 to 64 characters of [a-zA-Z0-9._-]")
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
        """Bytes of the value in the first chunk and in each other one, and how many chunks that makes."""
        # The numbers of the chunks are in their headers, and take more room the more chunks there are.
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
