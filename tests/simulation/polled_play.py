"""Histories of clients that are polled on one thread: their own calls in random order, over a simulated client.

The client that ours derives from is replaced, as its threads and its C code run on no simulated loop: a fake gives
records, positions, commits and rebalances as it does. Nothing is awaited, and time passes within its calls.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from tests.simulation.chunk_ledger import Ledger, Reading, given_up
from tests.simulation.partition_log import PartitionLog
from tests.simulation.play import Play, PlayScenario
from tests.simulation.promises import Broken
from transforms.chunk import Chunking
from transforms.chunked_message import Discarded
from transforms.record import Record

TOPIC = "chunks"
_LIMIT = 500
_CALM_CALLS = 3_000


class AppError(Exception):
    """Of the application, in a callback, or in a deserializer: then it is told of the message."""

    def __init__(self, message: Any = None) -> None:
        super().__init__()
        self.message = message


class Member(ABC):
    """A consumer of the group, and the application that calls it."""

    RAISED: tuple[type[Exception], ...]  # what commits, pauses and seeks may raise
    PARTITION: Any  # the `TopicPartition` of the library

    def __init__(self, play: Any, number: int) -> None:
        self.play = play
        self.name = f"member {number}"
        self.chance = play.stream(self.name)
        self.reading = Reading(play.ledger, self.name)
        self.owned: list[int] = []  # the partitions that it knows to be its own, in order
        self.expelled = False  # whether the group has given its partitions to others, and it does not know yet
        self.gone = False  # whether it was killed, or has closed
        made = play.client_class()
        self.client = made.__new__(made)
        self.client.member = self

    @abstractmethod
    def begin(self, values: dict[str, Any]) -> None: ...

    @abstractmethod
    def read(self, *, calm: bool) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    def partitions(self, numbers: Iterable[int]) -> list[Any]:
        return [self.PARTITION(TOPIC, each) for each in numbers]

    @abstractmethod
    def hold(self, call: Callable[..., None], numbers: Sequence[int]) -> None: ...

    @abstractmethod
    def position(self, number: int) -> int: ...

    @abstractmethod
    def seek(self, number: int, offset: int) -> None: ...

    def discarded(self, discarded: Discarded) -> None:
        if self.play.keys["raises"] and self.play.fails(self.name, "on_discarded", self.chance):
            raise AppError
        self.reading.give(given_up(discarded))

    def call(self) -> None:
        """One poll, and what the application does before the next one."""
        calm = self.play.weather.calm
        self.read(calm=calm)
        try:
            self._acts(calm=calm)
        except self.RAISED as exc:
            self.play.tell(f"{self.name}: {exc!r}")

    def _acts(self, *, calm: bool) -> None:
        chance, client, keys = self.chance, self.client, self.play.keys
        if keys["commits"] == "manual" and (calm or chance.random() < 0.4):
            self.commit()
        owned = sorted(each.partition for each in client.assignment())
        if keys["pauses"]:
            if calm:
                self.hold(client.resume, owned)
            elif owned and chance.random() < 0.2:
                self.hold(chance.choice((client.pause, client.resume)), [chance.choice(owned)])
        if keys["seeks"] and owned and not calm and chance.random() < 0.15 and not self.expelled:
            number = chance.choice(owned)
            seen = self.reading.seen.get(number, [])
            kind = chance.choice(("record", "position", "beginning"))
            offset = chance.choice(seen[-5:]).offset if kind == "record" and seen else 0
            if kind == "position":
                offset = self.position(number)
            self.play.tell(f"{self.name} seeks to {offset} of {number} ({kind})")
            self.reading.forget(number)
            self.seek(number, offset)


class PolledPlay(Play):
    @abstractmethod
    def member(self, number: int) -> Member: ...

    def prepare(self) -> None:
        chance = self.chance
        expires = chance.random() < 0.2
        self.keys: dict[str, Any] = {
            "commits": chance.choice(("auto", "manual")),
            "pending": chance.choice((1, 2, 100)),
            "pending_bytes": chance.choice((40_000, 200_000)),
            "expire_ms": 500 if expires else 40_000,
            "seeks": chance.random() < 0.3,
            "pauses": chance.random() < 0.3,
            "raises": chance.random() < 0.2,
            "iterates": chance.random() < 0.3,
        }
        # What a commit has passed would be found by looking back; a seek needs it.
        self.keys["lookback"] = 10_000 if self.keys["seeks"] else chance.choice((0, 10_000))
        self.errors = chance.choice((0.0, 0.0, 0.05, 0.2))
        self.logs = [PartitionLog(1) for _ in range(chance.choice((1, 1, 2, 3)))]
        self.commits: dict[int, tuple[int, str]] = {}
        self.values: dict[bytes, bytes] = {}
        self.ledger = Ledger(self, self.logs.__getitem__, lambda: self.values, expires=expires)
        self.members: list[Member] = []
        self._rebalance_due = True
        self._writing = self.stream("source")
        self._coming = [self._records(number, self._writing.choice((2, 5, 12))) for number in range(len(self.logs))]
        members = chance.choice((1, 1, 2))
        self.scenario = PlayScenario(members, sum(map(len, self._coming)))
        for _ in range(members):
            self.new()

    def properties(self) -> dict[str, Any]:
        return {
            "max.pending.chunked.message": self.keys["pending"],
            "max.pending.chunked.bytes": self.keys["pending_bytes"],
            "chunk.max.message.bytes": 5_000,
            "expire.time.of.incomplete.chunked.message.ms": self.keys["expire_ms"],
            "chunk.lookback": self.keys["lookback"],
        }

    def _records(self, number: int, messages: int) -> list[Record]:
        """What is written into a partition: the chunks of several messages, some without an end, among each other."""
        chance = self._writing
        open_messages: list[list[Record]] = []
        for each in range(messages):
            key = b"p%d-%d" % (number, each)
            value = self.values[key] = key + b"." * chance.choice((0, 10, 700, 1_500, 4_000))
            record = Record(key, value, [("n", key)] * min(1, each % 3), 1_800_000_000_000)
            chunking = Chunking(_LIMIT)
            pieces = [*chunking.split(record, f"u{number}-{each}")] if chunking.wants(record) else [record]
            if len(pieces) > 1 and chance.random() < 0.15:
                del pieces[chance.randrange(len(pieces)) :]
            open_messages.append(pieces)
        found: list[Record] = []
        while open_messages := [each for each in open_messages if each]:
            found.append(chance.choice(open_messages[:3]).pop(0))
        return found

    def pass_time(self, seconds: float) -> None:
        """Time passes, in which records may come."""
        self.loop.now_s += seconds + 0.000_1
        self.loop.steps += 1
        chance = self._writing
        while self.weather.calm or chance.random() < 0.4:
            left = [number for number, records in enumerate(self._coming) if records]
            if not left:
                return
            number = chance.choice(left)
            record = self._coming[number].pop(0)
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
            builder.append(0, record.timestamp, record.key, record.value, list(record.headers))
            assert self.logs[number].append(bytes(builder.build()), 1 << 30).code == 0

    def fails(self, member: str, name: str, chance: Random) -> bool:
        if self.weather.calm or chance.random() >= self.errors:
            return False
        return self.happens(f"{member} {name} {next(self._acts)}", f"{member}: {name} fails")

    def records(self, number: int, offset: int, most: int) -> Iterable[tuple[int, Any]]:
        batches = self.logs[number].batches
        found = (each for each in batches if each.last >= offset)
        for batch in itertools.islice(found, most):
            for record in DefaultRecordBatch(batch.data):
                yield record.offset, record

    def commit(self, member: Member, offsets: Mapping[int, tuple[int, str]]) -> bool:
        """Takes a commit of a member; False if the group does not know it any more."""
        if member.expelled or member.gone:
            return False
        for number, (offset, metadata) in offsets.items():
            self.commits[number] = offset, metadata
            self.ledger.commit(number, offset, metadata)
        return True

    def new(self, former: Any = None) -> None:
        member = self.member(len(self.members) + 1)
        self.members.append(member)
        self.tell(f"{member.name} starts")
        member.begin(self.properties())
        self._rebalance_due = True

    def joined(self) -> dict[str, list[int]]:
        """The partitions of each member after a rebalance: in turn, from a member that is drawn."""
        running = [each for each in self.members if not each.gone]
        first = self.stream(f"rebalance {next(self._acts)}").randrange(max(1, len(running)))
        given: dict[str, list[int]] = {each.name: [] for each in running}
        for number in range(len(self.logs)):
            given[running[(first + number) % len(running)].name].append(number)
        return given

    def rebalance_now_and_then(self) -> None:
        """A rebalance that is due happens, or not yet."""
        if self._rebalance_due and (self.weather.calm or self.chance.random() < 0.3):
            self.rebalance()

    def rebalance(self) -> None:
        """All that are in the group give their partitions back, and then get new ones."""
        self._rebalance_due = False
        running = [each for each in self.members if not each.gone]
        lost = {each.name for each in running if each.expelled}
        for each in running:
            self.revoke(each, lost=each.expelled)
        for each in running:
            each.expelled = False
        given = self.joined()
        for each in running:
            self.assign(each, given[each.name], came_back=each.name not in lost)

    @abstractmethod
    def revoke(self, member: Member, *, lost: bool) -> None:
        """A member is told that its partitions may go; or that they have gone."""

    @abstractmethod
    def assign(self, member: Member, numbers: list[int], *, came_back: bool) -> None:
        """A member is told what it has. `came_back`: it was in the group, so it may know positions."""

    def drawn(self) -> list[Callable[[], None]]:
        return [self.kill, self.close_one, self.join, self.again, self.expel]

    def _running(self) -> Member | None:
        running = [each for each in self.members if not each.gone]
        return self.chance.choice(running) if running else None

    def kill(self) -> None:
        if (member := self._running()) is not None:
            member.gone = True
            self.tell(f"{member.name} is killed")
            self.new()

    def close_one(self) -> None:
        if (member := self._running()) is not None:
            self._close(member)
            self.new()

    def join(self) -> None:
        if sum(not each.gone for each in self.members) < 3:
            self.new()

    def again(self) -> None:
        self._rebalance_due = True

    def expel(self) -> None:
        """The session of a member ends: its partitions go to others, and it is told later."""
        others = [each for each in self.members if not (each.gone or each.expelled)]
        if len(others) > 1:
            member = self.chance.choice(others)
            member.expelled = True
            self._rebalance_due = True  # its next heartbeat tells it
            rest = [each for each in others if each is not member]
            for number in member.owned:
                new = self.chance.choice(rest)
                self.revoke(new, lost=False)
                self.assign(new, sorted({*new.owned, number}), came_back=True)

    def _close(self, member: Member) -> None:
        self.tell(f"{member.name} closes")
        member.client.close()
        member.gone = True
        self._rebalance_due = True

    async def _play(self) -> None:
        self.prepare()
        for _ in range(self.chance.choice((10, 40, 100))):
            if self.acts and self.chance.random() < 0.15:
                act = self.chance.choice(self.acts)
                if self.happens(f"act {next(self._acts)}", act.__name__):
                    act()
            self._call()
        self.calm()
        self._rebalance_due = True
        for _ in range(_CALM_CALLS):
            self._call()
            if not self.left():
                break
        else:
            raise Broken(f"not done after {_CALM_CALLS:,} calls in calm: {self.left()}")
        for member in self.members:
            if not member.gone:
                self._close(member)
        self.check_end()

    def _call(self) -> None:
        self.rebalance_now_and_then()
        member = self._running()
        if member is None:
            self.new()
            return
        member.call()
        if self.broken is not None:
            raise Broken(self.broken)

    def left(self) -> object:
        if any(self._coming):
            return "records"
        return [left for number in range(len(self.logs)) if (left := self.ledger.left(number)) is not None]

    def check_end(self) -> None:
        for number in range(len(self.logs)):
            self.ledger.check_end(number)
        self.check_left()
