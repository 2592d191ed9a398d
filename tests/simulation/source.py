"""Writes the source topic of a history, and remembers what must come out of it."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.upstream import KINDS, Upstream
from transforms.record import Record

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Source"]


class Source:
    """The legacy producers.

    Attributes:
        written: for each source partition the offset and the key of each record that must come out, in the order of
            their offsets; a key comes once only.
        records: by their keys.
        damaged: for each source partition the batches that no reader can decode: offset of the damage, and bytes.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._ids = itertools.count()
        self.written: dict[int, list[tuple[int, bytes]]] = {each: [] for each in range(world.scenario.partitions)}
        self.damaged: dict[int, list[tuple[int, bytes]]] = {each: [] for each in self.written}
        self.records: dict[bytes, Record] = {}
        self._upstream = upstream = Upstream(world, chance, self._note, self._note_damage)
        names = ["plain", *(each for each in KINDS if chance.random() < world.scenario.odd)]
        self._kinds = [getattr(upstream, each) for each in names]

    def _note(self, number: int, offset: int, record: Record) -> None:
        assert record.key is not None
        bisect.insort(self.written[number], (offset, record.key))
        if offset < self._world.cluster.log("raw", number).start:
            self._world.losses.gone.add(record.key)
        self.records[record.key] = record

    def _note_damage(self, number: int, offset: int, data: bytes) -> None:
        self.damaged[number].append((offset, data))

    def begin_again(self) -> None:
        """The source topic is deleted."""
        self._upstream.forget_open()
        for number in self.written:
            self.forget(number, 0)

    def grow(self) -> None:
        """The source topic has one more partition."""
        self.written[len(self.written)] = []
        self.damaged[len(self.damaged)] = []

    def forget(self, number: int, end: int) -> None:
        """A source partition has lost its records from the offset `end` on."""
        self.written[number] = [each for each in self.written[number] if each[0] < end]

    async def write(self) -> None:
        """Writes all records of the scenario, in twice the time of the storm at most."""
        chance, scenario = self._chance, self._world.scenario
        left = scenario.records
        while left > 0:
            count = min(left, chance.choice((1, 1, 2, 5, 10)))
            left -= count
            while "raw" not in self._world.cluster.topics:  # noqa: ASYNC110  # producers wait as they like
                await asyncio.sleep(0.1)
            number = chance.randrange(len(self.written))
            kind = chance.choice(self._kinds)
            self._world.tell(f"raw-{number} gets {count} records: {kind.__name__}")
            kind(number, [self._record(number) for _ in range(count)])
            await asyncio.sleep(chance.random() * scenario.storm_s * 2 * count / scenario.records)

    def _record(self, number: int) -> Record:
        chance = self._chance
        key = b"p%d-%d" % (number, next(self._ids))
        large = self._world.scenario.offloads and chance.random() < 0.4
        value = key + b"." * (chance.choice((1_500, 3_000)) if large else chance.choice((0, 10, 200, 800)))
        return Record(key, value, (("n", key),), self._world.cluster.now_ms)
