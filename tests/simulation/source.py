"""Writes the source topic of a history, and remembers what must come out of it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.simulation.messages import Message, Messages

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Source"]


class Source:
    """The legacy producers.

    Attributes:
        written: for each source partition the messages that are whole, in order.
        began: for each source partition all messages.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        scenario = world.scenario
        self._messages = Messages(chance, scenario.work, world.store)
        self.written: dict[int, list[Message]] = {each: [] for each in range(scenario.partitions)}
        self.began: dict[int, dict[Message, None]] = {each: {} for each in range(scenario.partitions)}

    async def write(self) -> None:
        """Writes all records of the scenario, in about twice the time of the storm at most."""
        chance, scenario = self._chance, self._world.scenario
        left = scenario.records
        while left > 0:
            count = min(left, chance.choice((1, 1, 2, 5, 10)))
            left -= count
            self._write_batch(chance.randrange(scenario.partitions), count)
            await asyncio.sleep(chance.random() * scenario.storm_s * 2 * count / scenario.records)
        for number in self.written:
            while self._write_batch(number, chance.choice((1, 5)), last=True):  # noqa: ASYNC110  # producers wait as they like
                await asyncio.sleep(chance.random() * scenario.storm_s / 10)

    def _write_batch(self, number: int, count: int, *, last: bool = False) -> bool:
        """Writes a batch; nothing, and returns False, if only the `last` messages are left, and all are whole."""
        chance = self._chance
        log = self._world.cluster.log("raw", number)
        builder = DefaultRecordBatchBuilder(2, chance.choice((0, 0, 1, 2, 3)), False, -1, -1, -1, 1 << 30)
        end = log.end
        for delta in range(count):
            message = self._messages.next(number, last=last)
            if message is None:
                count = delta
                break
            value, headers = self._messages.part(number, message, end + delta)
            builder.append(delta, self._world.cluster.now_ms, message.key, value, [*headers])
            self.began[number][message] = None
            if len(message.offsets) == message.end + 1:
                self.written[number].append(message)
        if not count:
            return False
        produced = log.append(bytes(builder.build()), 1 << 30)
        assert produced.code == 0
        return True
