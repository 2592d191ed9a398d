"""Consumers of a history with chunks, as applications use them, and what they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from app.chunks.consumer import AssemblingConsumer
from app.chunks.pending import AssembledRecord
from tests.simulation.play import Actor
from transforms.assembly import Discarded

__all__ = ["Given", "Reader"]


@dataclass(frozen=True, slots=True)
class Given:
    """A record that an application got, or a message that it was told is not whole (`reason`)."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    first: int
    reason: str | None = None


class Reader(Actor):
    """An application that consumes, and commits."""

    def __init__(self, play: Any, config: dict[str, Any], habits: dict[str, Any]) -> None:
        super().__init__(play, "reader")
        self._config, self._habits = config, habits
        self._last: dict[int, int] = {}  # by partition: the last offset, since an assignment or a seek
        self._least: dict[int, int] = {}  # by partition: the least offset that may come
        self._seen: dict[int, list[Given]] = {}
        self._consumer: AssemblingConsumer | None = None

    async def work(self) -> None:
        """Consumes until it is asked to end."""
        while not self.stopping:
            consumer = AssemblingConsumer(self._config, on_discarded=self._discarded)
            consumer.subscribe(["chunks"], listener=_Listener(self))
            self._consumer = consumer
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
            if habits["own"] and chance.random() < 0.5:
                told = {tp: self._last[tp.partition] + 1 for tp in owned if self._last.get(tp.partition, -1) >= 0}
                if told:
                    await consumer.commit(told)
            else:
                await consumer.commit()
        if habits["pauses"] and owned and not calm and chance.random() < 0.1:
            paused[:] = [chance.choice(owned)]
            consumer.pause(*paused)
        elif paused and (calm or chance.random() < 0.5):
            consumer.resume(*(tp for tp in paused if tp in consumer.assignment()))
            paused.clear()
        if habits["seeks"] and owned and not calm and chance.random() < 0.1:
            await self._seek(consumer, chance.choice(owned))

    async def _seek(self, consumer: AssemblingConsumer, tp: TopicPartition) -> None:
        chance = self.chance
        seen = self._seen.get(tp.partition, [])
        kind = chance.choice(("record", "position", "committed", "beginning"))
        if kind == "record" and seen:
            target = chance.choice(seen[-5:])
            self.play.tell(f"{self.process.name} seeks to {target.key!r}, offset {target.offset} of {tp.partition}")
            self._forget([tp])
            consumer.seek(tp, target.offset)
        elif kind == "position":
            position = await consumer.position(tp)
            if tp in consumer.assignment():
                self.play.tell(f"{self.process.name} seeks to its position {position} of {tp.partition}")
                self._forget([tp])
                consumer.seek(tp, position)
        elif kind == "committed":
            self._forget([tp])
            await consumer.seek_to_committed(tp)
            self._forget([tp])
        elif kind == "beginning":
            self._forget([tp])
            await consumer.seek_to_beginning(tp)
            self._forget([tp])

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._last.pop(tp.partition, None)
            self._least.pop(tp.partition, None)
            self._seen.pop(tp.partition, None)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes in which partitions have come."""
        self._forget([TopicPartition("chunks", number) for number in [*self._last, *self._least]])
        names = sorted(tp.partition for tp in partitions)
        self.play.tell(f"{self.process.name} has partitions {names}")
        for number in names:
            self._least[number] = self.play.may_come(number)  # type: ignore[attr-defined]

    def _given(self, record: Any) -> None:
        first = record.chunk_message_id.first if isinstance(record, AssembledRecord) else record.offset
        given = Given(record.partition, record.offset, record.key, record.value, first)
        self.play.tell(f"{self.process.name} got {given.key!r}: {record.partition} at {given.first}-{given.offset}")
        number = given.partition
        if given.offset <= self._last.get(number, -1):
            self.play.breaks(
                f"{self.process.name} got offset {given.offset} behind {self._last[number]}: {given.key!r}"
            )
        if given.offset < self._least.get(number, 0):
            self.play.breaks(
                f"{self.process.name} got offset {given.offset} again, below {self._least[number]}: {given.key!r}"
            )
        self._last[number] = given.offset
        self._seen.setdefault(number, []).append(given)
        self.play.given(given)  # type: ignore[attr-defined]

    def _discarded(self, discarded: Discarded) -> None:
        if discarded.gone is not None:
            place, key = discarded.gone.partition, b""
        else:
            first: Any = discarded.records[0]
            place, key = TopicPartition(first.topic, first.partition), first.key
        self.play.tell(f"{self.process.name}: {key!r} is discarded: {discarded.reason}")
        given = Given(place.partition, discarded.last, key, None, discarded.first, discarded.reason)  # type: ignore[attr-defined]
        self.play.given(given)  # type: ignore[attr-defined]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing is done."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._reader.assigned(assigned)
