"""Consumers of a history with chunks, as applications use them, and what they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from app.chunks.consumer import AssemblingConsumer
from app.chunks.record_inbox import AssembledRecord
from tests.simulation.chunk_ledger import Given, Ledger, Reading, given_up
from tests.simulation.play import Actor, Play
from transforms.chunked_message import Discarded

__all__ = ["Reader"]


class Reader(Actor):
    """An application that consumes, and commits."""

    def __init__(self, play: Play, ledger: Ledger, config: dict[str, Any], habits: dict[str, Any]) -> None:
        super().__init__(play, "reader")
        self._config, self._habits = config, habits
        self._reading = Reading(ledger, self.process.name)

    async def work(self) -> None:
        """Consumes until it is asked to end."""
        while not self.stopping:
            consumer = AssemblingConsumer(self._config, on_discarded=self._discarded)
            consumer.subscribe(["chunks"], listener=_Listener(self))
            try:
                await consumer.start()
                await self._consume(consumer)
            except KafkaError as exc:
                self.play.tell(f"{self.process.name} begins again: {exc!r}")
                await asyncio.sleep(0.2)
            finally:
                await consumer.stop()

    async def _consume(self, consumer: AssemblingConsumer) -> None:
        chance, habits = self.chance, self._habits
        paused: list[TopicPartition] = []
        while not self.stopping:
            try:
                if habits["one"]:
                    records = [await asyncio.wait_for(consumer.getone(), 1.0)]
                else:
                    most = chance.choice((None, 1, 2, 7))
                    found = await consumer.getmany(timeout_ms=chance.choice((50, 300)), max_records=most)
                    records = [each for partition in found.values() for each in partition]
            except TimeoutError:
                records = []
            for record in records:
                self._given(record)
            stats = consumer.stats()
            if stats["pendingChunkedBytes"] > self._config["max.pending.chunked.bytes"]:
                self.play.breaks(f"{self.process.name} holds {stats['pendingChunkedBytes']} bytes of chunks")
            try:
                await self._acts(consumer, paused)
            except (KafkaError, IllegalStateError) as exc:
                self.play.tell(f"{self.process.name}: {exc!r}")

    async def _acts(self, consumer: AssemblingConsumer, paused: list[TopicPartition]) -> None:
        """Commits, and what else an application does between two calls."""
        chance, habits, calm = self.chance, self._habits, self.play.weather.calm
        owned = sorted(consumer.assignment())
        if habits["commits"] and (calm or chance.random() < 0.5):
            last = self._reading.last
            if habits["own"] and chance.random() < 0.5:
                told = {tp: last[tp.partition] + 1 for tp in owned if tp.partition in last}
                if told:
                    await consumer.commit(told)
            else:
                await consumer.commit()
        if habits["pauses"] and owned and not paused and not calm and chance.random() < 0.1:
            paused[:] = [chance.choice(owned)]
            consumer.pause(*paused)
        elif paused and (calm or chance.random() < 0.5):
            consumer.resume(*(tp for tp in paused if tp in consumer.assignment()))
            paused.clear()
        if habits["seeks"] and owned and not calm and chance.random() < 0.1:
            await self._seek(consumer, chance.choice(owned))

    async def _seek(self, consumer: AssemblingConsumer, tp: TopicPartition) -> None:
        chance = self.chance
        seen = self._reading.seen.get(tp.partition, [])
        kind = chance.choice(("record", "position", "committed", "beginning"))
        if kind == "record" and seen:
            target = chance.choice(seen[-5:])
            self.play.tell(f"{self.process.name} seeks to {target.key!r}, offset {target.offset} of {tp.partition}")
            self._reading.forget(tp.partition)
            consumer.seek(tp, target.offset)
        elif kind == "position":
            position = await consumer.position(tp)
            if tp in consumer.assignment():
                self.play.tell(f"{self.process.name} seeks to its position {position} of {tp.partition}")
                self._reading.forget(tp.partition)
                consumer.seek(tp, position)
        elif kind == "committed":
            self._reading.forget(tp.partition)
            await consumer.seek_to_committed(tp)
            self._reading.forget(tp.partition)
        elif kind == "beginning":
            self._reading.forget(tp.partition)
            await consumer.seek_to_beginning(tp)
            self._reading.forget(tp.partition)

    def _given(self, record: Any) -> None:
        first = record.chunk_message_id.first if isinstance(record, AssembledRecord) else record.offset
        self._reading.give(Given(record.partition, record.offset, record.key, record.value, first))

    def _discarded(self, discarded: Discarded) -> None:
        self._reading.give(given_up(discarded))

    def assigned(self, numbers: Iterable[int]) -> None:
        """Takes in which partitions have come."""
        for number in [*self._reading.last]:
            self._reading.forget(number)
        self._reading.assigned(numbers)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing is done."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._reader.assigned(each.partition for each in assigned)
