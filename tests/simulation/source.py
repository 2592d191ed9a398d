"""Writes the source topic of a history, and remembers what must come out of it."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Source"]


class Source:
    """The legacy producers.

    Attributes:
        written: for each source partition the offset and the key of each record; a key comes once only.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._ids = itertools.count()
        self.written: dict[int, list[tuple[int, bytes]]] = {each: [] for each in range(world.scenario.partitions)}

    async def write(self) -> None:
        """Writes all records of the scenario, in twice the time of the storm at most."""
        chance, scenario = self._chance, self._world.scenario
        left = scenario.records
        while left > 0:
            count = min(left, chance.choice((1, 1, 2, 5, 10)))
            left -= count
            self._write_batch(chance.randrange(scenario.partitions), count)
            await asyncio.sleep(chance.random() * scenario.storm_s * 2 * count / scenario.records)

    def _write_batch(self, number: int, count: int) -> None:
        chance, scenario = self._chance, self._world.scenario
        log = self._world.cluster.log("raw", number)
        builder = DefaultRecordBatchBuilder(2, chance.choice((0, 0, 1, 2, 3)), False, -1, -1, -1, 1 << 30)
        for delta in range(count):
            key = b"p%d-%d" % (number, next(self._ids))
            large = scenario.offloads and chance.random() < 0.4
            value = key + b"." * (chance.choice((1_500, 3_000)) if large else chance.choice((0, 10, 200)))
            builder.append(delta, self._world.cluster.now_ms, key, value, [("n", key)])
            self.written[number].append((log.end + delta, key))
        produced = log.append(bytes(builder.build()), 1 << 30)
        assert produced.code == 0
