"""Producers of a history with chunks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import KafkaError

from app.chunks.producer import ChunkingProducer
from tests.simulation.play import Actor, Play
from transforms.errors import ConfigurationError

__all__ = ["Sent", "Writer"]


@dataclass(slots=True)
class Sent:
    """A message that a producer has begun to send.

    Attributes:
        partition: where to.
        value: of it.
        order: of it among those that its task has sent.
        task: which task has sent it.
        acknowledged: the offset of its last record, once the producer has it.
    """

    partition: int
    value: bytes
    task: str
    order: int
    acknowledged: int | None = None


class Writer(Actor):
    """An application that sends messages from several tasks, some of them as chunks."""

    numbers: Iterator[int]

    def __init__(self, play: Play, config: dict[str, Any], partitions: int, messages: int) -> None:
        super().__init__(play, "writer")
        self._config, self._partitions, self._messages = config, partitions, messages
        self.sent: dict[bytes, Sent] = {}
        self._ids = itertools.count()

    async def work(self) -> None:
        """Sends all its messages, and ends."""
        producer = await self._started()
        if producer is None:
            return
        tasks = self.chance.choice((1, 1, 2))
        await asyncio.gather(*(self._send_all(producer, number) for number in range(tasks)))
        await producer.stop()

    async def _started(self) -> ChunkingProducer | None:
        while not self.stopping:
            producer = ChunkingProducer(self._config)
            try:
                await producer.start()
            except KafkaError as exc:
                self.play.tell(f"{self.process.name} cannot start: {exc!r}")
                await producer.stop()
                await asyncio.sleep(0.2)
                continue
            # On asyncio's own loop its tasks have had their first step by now; on ours they need not have.
            await asyncio.sleep(0.001)
            return producer
        return None

    async def _send_all(self, producer: ChunkingProducer, task: int) -> None:
        chance = self.chance
        results: list[tuple[bytes, Any]] = []
        for order in range(self._messages):
            if self.stopping:
                break
            number = next(self._ids)
            key = f"{self.process.name}/{task}/{number}".encode()
            value = key + b"." * chance.choice((0, 10, 700, 1_500, 4_000))
            partition = chance.randrange(self._partitions)
            self.sent[key] = Sent(partition, value, f"{self.process.name}/{task}", order)
            try:
                future = await producer.send("chunks", value, key, partition)
            except (KafkaError, ConfigurationError) as exc:
                self.play.tell(f"{key!r} cannot be sent: {exc!r}")
            else:
                results.append((key, future))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * self.play.storm_s / self._messages)
            if chance.random() < 0.3:
                await self._hear(results)
        await self._hear(results)

    async def _hear(self, results: list[tuple[bytes, Any]]) -> None:
        for key, future in results:
            try:
                metadata = await future
            except KafkaError as exc:
                self.play.tell(f"{key!r} was not sent: {exc!r}")
            else:
                self.sent[key].acknowledged = metadata.offset
        results.clear()
