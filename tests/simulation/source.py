"""Writes the source topic of a history, and remembers what must come out of it."""

from __future__ import annotations

import asyncio
import bisect
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.messages import Message, Messages
from tests.simulation.upstream import KINDS, Upstream
from transforms.record import Record

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Source"]

_KEEPING = {"plain", "small", "broker_time", "compacted", "mark"}  # whatever a record has, and each one


class Source:
    """The legacy producers.

    Attributes:
        written: for each source partition the messages that are whole, in the order in which they are.
        began: for each source partition all messages.
        damaged: for each source partition the batches that no reader can decode: offset of the damage, and bytes.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._messages = Messages(chance, world.scenario.work, world.store)
        self.written: dict[int, list[Message]] = {each: [] for each in range(world.scenario.partitions)}
        self.began: dict[int, dict[Message, None]] = {each: {} for each in self.written}
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
        """The source topic is deleted."""
        self._upstream.forget_open()
        for number in self.written:
            self.forget(number, 0)

    def grow(self) -> None:
        """The source topic has one more partition."""
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
