"""Messages: what the producers of the source send, record by record, and what must become of each."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tests.simulation.scenario import MOST_BYTES, THRESHOLD_BYTES, WRAPPED_HEADER, Work
from tests.simulation.store import StoreWorld, path_of
from transforms.chunk import Chunk
from transforms.record import Header, Record
from transforms.reference import Reference
from transforms.wrapper import MessageWrapper

_OPEN = 3  # so many messages of chunks are written at a time in a partition

Fate = Literal["out", "dead", "either"]
_Part = tuple[bytes | None, tuple[Header, ...]]


@dataclass(slots=True, eq=False)
class Message:
    key: bytes  # no other message has it
    value: bytes | None  # as an application gets it in the end
    headers: tuple[Header, ...]  # likewise
    fate: Fate  # it comes out; or each record of it becomes a dead letter; or one of the two, as chance wills
    parts: list[_Part]  # value and headers of its records; several if it is written in chunks
    end: int = -1  # the number of the part with which it is whole
    sent: int = 0  # how many of its records there are so far
    offsets: list[int] = field(default_factory=list)  # of those that a reader of committed records gets
    timestamp: int = -1  # of its first record
    again: bool = False  # whether an application may get it twice, though nothing goes wrong with the worker
    # Whether it is one record that comes out as it is without headers too, and that may be missing
    simple: bool = False

    def note(self, offset: int, record: Record) -> None:
        """One of its records stands at an offset, as it is."""
        if not self.offsets:
            self.timestamp = record.timestamp
            if self.simple:
                self.headers = tuple(record.headers)
        self.offsets.append(offset)

    @property
    def first(self) -> int:
        return self.offsets[0]

    @property
    def offset(self) -> int:
        """Of the record with which it is whole."""
        return self.offsets[self.end]


class Messages:
    def __init__(self, chance: Random, work: Work, store: StoreWorld) -> None:
        self._chance = chance
        self._work = work
        self._wrapped = "unwrap" in work.kind.transforms
        self._makers: Sequence[Callable[[bytes], Message]] = [getattr(self, f"a_{name}") for name in work.makers]
        self._store = store
        self._expires = work.gives_up
        self._ids = itertools.count()
        self._open: dict[int, list[Message]] = {}
        self.by_key: dict[bytes | None, Message] = {}

    def record(self, number: int, now_ms: int) -> Record:
        """The next record of a partition: of a new message, or of one that is not whole."""
        waiting = self._open.setdefault(number, [])
        if waiting and (len(waiting) >= _OPEN or self._chance.random() < 0.6):
            return self._next(waiting, self._chance.choice(waiting), now_ms)
        message = self._chance.choice(self._makers)(b"p%d-%d" % (number, next(self._ids)))
        if message.end < 0:
            message.end = len(message.parts) - 1
        message.simple = message.simple and not self._wrapped
        self._may_run_out(message)
        self.by_key[message.key] = message
        waiting.append(message)
        return self._next(waiting, message, now_ms)

    def rest(self, number: int, now_ms: int, most: int) -> list[Record]:
        """As many records of a partition, or fewer, of messages that are not whole."""
        waiting = self._open.get(number, [])
        found: list[Record] = []
        while waiting and len(found) < most:
            found.append(self._next(waiting, self._chance.choice(waiting), now_ms))
        return found

    def _next(self, waiting: list[Message], message: Message, now_ms: int) -> Record:
        value, headers = message.parts[message.sent]
        message.sent += 1
        if message.sent == len(message.parts):
            waiting.remove(message)
        return Record(message.key, value, headers, now_ms)

    def _may_run_out(self, message: Message) -> None:
        """Lets the store have trouble with this message alone; but any one may be given up then."""
        transforms, value = self._work.kind.transforms, message.value or b""
        path = f"memory://default/raw/{message.key.decode(errors='replace')}"
        offloads = "offload" in transforms and len(value) > THRESHOLD_BYTES
        if not self._work.runs_out or message.fate != "out" or not (path in self._store.payloads or offloads):
            return
        message.fate = "either"
        if self._chance.random() < 0.15 and "large.message.strategy" not in self._work.kind.keys:
            self._store.cursed.add(path_of(value) if offloads else path)
            message.fate = "dead"

    def _whole(self, key: bytes, value: bytes | None, fate: Fate = "out", *, own: Sequence[Header] = ()) -> Message:
        """A message of one record. `own` are headers for the worker, behind those for the application."""
        headers: tuple[Header, ...] = (("n", key),)
        message = Message(key, value, headers, fate, [self._around(value, (*headers, *own))])
        message.simple = fate == "out" and not own
        return message

    def _around(self, value: bytes | None, headers: tuple[Header, ...]) -> _Part:
        """In a wrapper, if the pipeline takes wrappers off; references stay headers of the record."""
        if not self._wrapped or value is None:
            return value, headers
        (name, number), *own = headers
        assert name == "n"
        assert number is not None
        return MessageWrapper({WRAPPED_HEADER: number}, value).serialize(), tuple(own)

    def _bytes(self, key: bytes, size: int) -> bytes:
        return key + self._chance.randbytes(size)

    def a_small(self, key: bytes) -> Message:
        return self._whole(key, key + b"." * self._chance.choice((0, 10, 200, 800)))

    def a_tombstone(self, key: bytes) -> Message:
        return self._whole(key, None)

    def a_large(self, key: bytes) -> Message:
        size = self._chance.choice((1_500, 3_000))
        return self._whole(key, self._bytes(key, size) if self._chance.random() < 0.5 else key + b"." * size)

    def a_too_large(self, key: bytes) -> Message:
        """A value that the pipeline does not take."""
        return self._whole(key, self._bytes(key, MOST_BYTES + 1_000), "dead")

    def a_long_key(self, key: bytes) -> Message:
        """A record that the sink does not take, whatever becomes of its value."""
        message = self._whole(key, key, "dead")
        message.key = self._bytes(key, 5_000)
        return message

    def a_bare_value(self, key: bytes) -> Message:
        """A value without the wrapper that it must have."""
        return Message(key, b"\x01" + key, (), "dead", [(b"\x01" + key, ())])

    def a_strange_header(self, key: bytes) -> Message:
        """A header for which a wrapper has no number."""
        return self._whole(key, key, "dead", own=(("strange", b""),))

    def a_reference(self, key: bytes) -> Message:
        value = self._bytes(key, self._chance.choice((10, 1_500, 3_000)))
        path = f"memory://default/raw/{key.decode()}"
        self._store.payloads[path] = value
        reference = Reference(path)  # as seed 000 has it
        if self._chance.random() < 0.7:
            reference = Reference(path, len(value), hashlib.sha256(value).hexdigest())
        return self._referring(key, value, reference, "out")

    def _referring(self, key: bytes, value: bytes | None, reference: Reference, fate: Fate) -> Message:
        message = self._whole(key, reference.value(), fate, own=reference.headers())
        message.value = value
        return message

    def a_forged_reference(self, key: bytes) -> Message:
        path = self._chance.choice(("memory://other/raw/1", "file:///etc/passwd", "memory://default/../raw/1"))
        return self._referring(key, None, Reference(path, self._chance.choice((None, 5))), "dead")

    def a_missing_payload(self, key: bytes) -> Message:
        path = f"memory://default/raw/{key.decode()}"
        return self._referring(key, None, Reference(path, self._chance.choice((None, 5))), "dead")

    def a_corrupt_payload(self, key: bytes) -> Message:
        message = self.a_reference(key)
        assert message.value is not None
        path = f"memory://default/raw/{key.decode()}"
        wrong = Reference(path, len(message.value), hashlib.sha256(key + b"?").hexdigest())
        if self._chance.random() < 0.5:
            wrong = Reference(path, len(message.value) - 1, wrong.checksum)
        return self._referring(key, None, wrong, "dead")

    def a_huge_payload(self, key: bytes) -> Message:
        path = f"memory://default/raw/{key.decode()}"
        self._store.payloads[path] = value = self._bytes(key, MOST_BYTES + 1_000)
        return self._referring(key, None, Reference(path, self._chance.choice((None, 100, len(value)))), "dead")

    def a_message_of_chunks(self, key: bytes) -> Message:
        return self._of_chunks(key, (0, 1, 2), "either" if self._expires else "out")

    def a_message_begun_twice(self, key: bytes) -> Message:
        """Its writer died, and another one wrote it again."""
        return self._of_chunks(key, (0, 1, 0, 1, 2), "either" if self._expires else "out")

    def a_message_of_twins(self, key: bytes) -> Message:
        """Its writer was slow, another one wrote it again, and then the first one went on."""
        message = self._of_chunks(key, (0, 1, 0, 1, 2, 2), "either" if self._expires else "out")
        message.end = 4
        return message

    def a_message_sent_twice(self, key: bytes) -> Message:
        message = self._of_chunks(key, (0, 1, 2, 0, 1, 2), "either" if self._expires else "out")
        message.end = 2
        message.again = True  # the worker remembers what it has delivered, but not over a restart
        return message

    def a_message_with_a_gap(self, key: bytes) -> Message:
        return self._of_chunks(key, (0, 2), "dead")

    def a_message_without_end(self, key: bytes) -> Message:
        return self._of_chunks(key, (0, 1), "dead")

    def _of_chunks(self, key: bytes, order: Sequence[int], fate: Fate) -> Message:
        value = self._bytes(key, self._chance.choice((10, 900, 2_400)))
        whole, headers = self._around(value, (("n", key),))
        assert whole is not None
        size = -(-len(whole) // 3)
        parts: list[_Part] = []
        for number in order:
            piece = whole[number * size : (number + 1) * size]
            chunk = Chunk(key.decode(), number, 3, len(whole), hashlib.sha256(whole).hexdigest())
            parts.append((piece, (*headers, *chunk.headers())))
        return Message(key, value, (("n", key),), fate, parts)
