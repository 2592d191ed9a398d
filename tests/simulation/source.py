"""Writes the source topic of a history, and remembers what must come out of it."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.built_batches import HEADER_BYTES, PACKERS, built, changed, message, repacked, wrapped
from tests.simulation.messages import Message, Messages
from transforms.record import Record
from transforms.record_batch import Stamp

if TYPE_CHECKING:
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.world import World

_ATTRIBUTES, _LAST_DELTA, _FIRST_TIME, _LAST_TIME, _COUNT = 21, 23, 27, 35, 57
_EDGES = (0, -1, 1, 2**63 - 1, -(2**63), 2**62, -5)


class Upstream:
    """Writes records into source logs as producers, brokers and cleaners of all ages have.

    Each public method but `forget_open` is a kind of batch: it writes the given records, or some of them.
    """

    def __init__(
        self,
        world: World,
        chance: Random,
        note: Callable[[int, int, Record], None],
        damaged: Callable[[int, int, bytes], None],
    ) -> None:
        self._world, self._chance, self._note, self._damaged = world, chance, note, damaged
        self._producers = itertools.count(1)
        self._open: dict[int, list[tuple[int, int, Record]]] = {}

    def _log(self, number: int) -> PartitionLog:
        return self._world.cluster.log("raw", number)

    def _append(self, number: int, data: bytes) -> int:
        produced = self._log(number).append(data, 1 << 30)
        assert produced.code == 0
        return produced.base

    def _keep(self, number: int, data: bytes, base: int, last: int) -> None:
        """Appends a batch of format 2 as it is, behind a gap perhaps."""
        log = self._log(number)
        whole = struct.pack(">q", base) + data[8:12] + struct.pack(">i", log.epoch) + data[16:]
        log.append_as_is(whole, base, last, struct.unpack_from(">q", data, _LAST_TIME)[0])

    def _packed(self, data: bytes) -> bytes:
        return repacked(data, self._chance.choice([*PACKERS]))

    def plain(self, number: int, records: Sequence[Record]) -> None:
        """A batch of a producer of today, with any codec."""
        base = self._append(number, self._packed(built(0, records)))
        for offset, each in enumerate(records, base):
            self._note(number, offset, each)

    def small(self, number: int, records: Sequence[Record]) -> None:
        for each in records:
            self.plain(number, [each])

    def edges(self, number: int, records: Sequence[Record]) -> None:
        """Times at the limits of what a record can have; those of a batch are not further apart than 2^63."""
        times = self._chance.choice((_EDGES[:4], (_EDGES[0], *_EDGES[4:]), _EDGES))
        for each in records:
            self.plain(number, [replace(each, timestamp=self._chance.choice(times))])

    def broker_time(self, number: int, records: Sequence[Record]) -> None:
        """A batch of a topic with `message.timestamp.type=LogAppendTime`: the time of its end counts for all."""
        data = self._packed(built(0, records))
        now_ms, base = self._world.cluster.now_ms, self._log(number).end
        data = changed(data, ">h", _ATTRIBUTES, struct.unpack_from(">h", data, _ATTRIBUTES)[0] | 8)
        self._keep(number, changed(data, ">q", _LAST_TIME, now_ms), base, base + len(records) - 1)
        for offset, each in enumerate(records, base):
            self._note(number, offset, replace(each, timestamp=now_ms))

    def compacted(self, number: int, records: Sequence[Record]) -> None:
        """What compaction leaves: missing records, missing batches, empty batches, a delete horizon."""
        draw = self._chance.random
        base = self._log(number).end + (self._chance.randrange(1, 9) if draw() < 0.4 else 0)
        if draw() < 0.3:
            head = built(0, records[:1], stamp=Stamp(77, 0, 0))[:HEADER_BYTES]
            span = self._chance.randrange(1, 5)
            for place, field, value in ((8, ">i", HEADER_BYTES - 12), (_COUNT, ">i", 0), (_LAST_DELTA, ">i", span - 1)):
                head = changed(head, field, place, value)
            self._keep(number, head, base, base + span - 1)
            base += span
        deltas = sorted(self._chance.sample(range(len(records) * 2), len(records)))
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for delta, each in zip(deltas, records, strict=True):
            builder.append(delta, each.timestamp, each.key, each.value, list(each.headers))
        last = deltas[-1] + self._chance.choice((0, 0, 3))
        data = changed(bytes(builder.build()), ">i", _LAST_DELTA, last)
        shift = 0
        if draw() < 0.3:  # the horizon stands where the first time does, and the other times count from there
            shift = self._chance.choice((86_400_000, -5))
            data = changed(data, ">h", _ATTRIBUTES, 0x40)
            for place in (_FIRST_TIME, _LAST_TIME):
                data = changed(data, ">q", place, struct.unpack_from(">q", data, place)[0] + shift)
        for delta, each in zip(deltas, records, strict=True):
            self._note(number, base + delta, replace(each, timestamp=each.timestamp + shift))
        self._keep(number, self._packed(data), base, base + last)

    def old(self, number: int, records: Sequence[Record]) -> None:
        """Messages of the formats 0 and 1, each alone, or together in one that is compressed."""
        log, magic = self._log(number), self._chance.choice((0, 1))
        losses = self._world.losses
        if number in losses.unsteady - losses.repeated or (log.batches and log.batches[-1].data[16] == 2):
            # A log never goes back to them, not where it was cut either: by its epochs of leaders, which they have not,
            # nobody could see what was lost.
            self.plain(number, records)
            return
        base = log.end
        bare = [replace(each, headers=(), timestamp=each.timestamp if magic else -1) for each in records]
        if self._chance.random() < 0.5:
            packer = self._chance.choice(("gzip", "snappy", "lz4"))
            last = base + len(bare) - 1
            latest = max(each.timestamp for each in bare)
            log.append_as_is(wrapped(magic, packer, dict(enumerate(bare, base)), latest), base, last, latest)
        else:
            for offset, each in enumerate(bare, base):
                log.append_as_is(
                    message(magic, offset, each.key, each.value, each.timestamp), offset, offset, each.timestamp
                )
        for offset, each in enumerate(bare, base):
            self._note(number, offset, each)

    def transaction(self, number: int, records: Sequence[Record]) -> None:
        """A batch of a transaction, which ends after a while; or one more of a transaction that is open."""
        chance = self._chance
        if self._open and chance.random() < 0.5:
            producer = chance.choice([*self._open])
        else:
            producer = next(self._producers)
            self._open[producer] = []
            until_s = chance.choice((0.0, 0.1, 1.0)) * chance.random() * self._world.scenario.storm_s
            self._world.loop.call_later(until_s, self._end, producer, chance.random() < 0.6)
        written = self._open[producer]
        sequence = sum(1 for place, *_ in written if place == number)
        data = built(0, records, transactional=True, stamp=Stamp(producer, 0, sequence))
        base = self._append(number, self._packed(data))
        written += [(number, offset, each) for offset, each in enumerate(records, base)]

    def _end(self, producer: int, commit: bool) -> None:  # noqa: FBT001
        written = self._open.pop(producer)
        for number in dict.fromkeys(place for place, *_ in written):
            mine = [each for each in written if each[0] == number]
            for each in mine if commit else ():
                self._note(*each)
            log = self._log(number)
            log.end_transaction(producer, 0, commit=commit, time_ms=self._world.cluster.now_ms)

    def forget_open(self) -> None:
        """The source topic is gone, and what was written in open transactions."""
        for written in self._open.values():
            written.clear()

    def mark(self, number: int, records: Sequence[Record]) -> None:
        """The mark of a transaction without a record here, behind a batch."""
        self.plain(number, records)
        commit = self._chance.random() < 0.5
        self._log(number).end_transaction(next(self._producers), 0, commit=commit, time_ms=self._world.cluster.now_ms)

    def damage(self, number: int, records: Sequence[Record]) -> None:
        """A batch with the right checksum, of which no reader can decode more than the first records."""
        chance, base = self._chance, self._log(number).end
        good = chance.randrange(len(records))
        whole = built(0, records, base=base)
        if good == 0 and chance.random() < 0.5:
            codec = chance.choice((1, 2, 3, 4, 5, 7))
            data = changed(whole, ">h", _ATTRIBUTES, codec)  # says that it is compressed
        else:
            at = HEADER_BYTES + len(built(0, records[:good])[HEADER_BYTES:]) if good else HEADER_BYTES
            data = changed(whole, ">B", at, 1)  # a length of -1
        log = self._log(number)
        data = struct.pack(">q", base) + data[8:12] + struct.pack(">i", log.epoch) + data[16:]
        log.append_as_is(data, base, base + len(records) - 1, records[-1].timestamp)
        for offset, each in enumerate(records[:good], base):
            self._note(number, offset, each)
        self._damaged(number, base + good, data)


KINDS = [name for name in vars(Upstream) if not name.startswith("_") and name != "forget_open"]
"""The names of all kinds, in the order of the class."""


_KEEPING = {"plain", "small", "broker_time", "compacted", "mark"}  # whatever a record has, and each one


class Source:
    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._messages = Messages(chance, world.scenario.work, world.store)
        # For each source partition the messages that are whole, in the order in which they are
        self.written: dict[int, list[Message]] = {each: [] for each in range(world.scenario.partitions)}
        # For each source partition all messages
        self.began: dict[int, dict[Message, None]] = {each: {} for each in self.written}
        # For each source partition the batches that no reader can decode: offset of the damage, and bytes
        self.damaged: dict[int, list[tuple[int, bytes]]] = {each: [] for each in self.written}
        self._upstream = upstream = Upstream(world, chance, self._note, self._note_damage)
        names = ["plain", *(each for each in KINDS if chance.random() < world.scenario.odd)]
        self._kinds = {each: getattr(upstream, each) for each in names}

    def _note(self, number: int, offset: int, record: Record) -> None:
        message = self._messages.by_key[record.key]
        message.note(offset, record)
        if offset < self._world.cluster.log("raw", number).start:
            self._world.losses.gone.add(message.key)
        self.began[number][message] = None
        if len(message.offsets) == message.end + 1:
            bisect.insort(self.written[number], message, key=attrgetter("offset"))

    def _note_damage(self, number: int, offset: int, data: bytes) -> None:
        self.damaged[number].append((offset, data))

    def begin_again(self) -> None:
        self._upstream.forget_open()
        for number in self.written:
            self.forget(number, 0)

    def grow(self) -> None:
        self.began[len(self.written)] = {}
        self.written[len(self.written)] = []
        self.damaged[len(self.damaged)] = []

    def forget(self, number: int, end: int) -> None:
        """A source partition has lost its records from the offset `end` on."""
        self.written[number] = [each for each in self.written[number] if each.offset < end]

    async def write(self) -> None:
        """Writes all records of the scenario, in about twice the time of the storm at most."""
        chance, scenario = self._chance, self._world.scenario
        left = scenario.records
        while left > 0:
            count = min(left, chance.choice((1, 1, 2, 5, 10)))
            left -= count
            await self._exists()
            number = chance.randrange(len(self.written))
            self._write(number, [self._messages.record(number, self._world.cluster.now_ms) for _ in range(count)])
            await asyncio.sleep(chance.random() * scenario.storm_s * 2 * count / scenario.records)
        for number in [*self.written]:
            await self._exists()
            while rest := self._messages.rest(number, self._world.cluster.now_ms, chance.choice((1, 5))):
                self._write(number, rest)
                await asyncio.sleep(chance.random() * scenario.storm_s / 10)
                await self._exists()

    async def _exists(self) -> None:
        """Waits while the source topic is deleted."""
        while "raw" not in self._world.cluster.topics:  # noqa: ASYNC110  # producers wait as they like
            await asyncio.sleep(0.1)

    def _write(self, number: int, records: list[Record]) -> None:
        simple = all(self._messages.by_key[each.key].simple for each in records)
        kind = self._chance.choice([each for each in self._kinds if simple or each in _KEEPING])
        self._world.tell(f"raw-{number} gets {len(records)} records: {kind}")
        self._kinds[kind](number, records)
