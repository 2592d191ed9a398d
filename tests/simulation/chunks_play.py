"""The history of aiokafka's clients with chunks: `ChunkingProducer`, and `AssemblingConsumer` in a group."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from app.chunks.consumer import AssemblingConsumer
from app.chunks.producer import ChunkingProducer
from app.chunks.record_inbox import AssembledRecord
from tests.simulation.chunk_ledger import Given, Ledger, Reading, given_up, logged
from tests.simulation.groups import Commit
from tests.simulation.play import Play, PlayActor, PlayScenario
from tests.simulation.promises import Broken
from transforms.chunked_message import Discarded
from transforms.errors import ConfigurationError


@dataclass(slots=True)
class Sent:
    partition: int  # where to
    value: bytes  # of it
    task: str  # which task has sent it
    order: int  # of it among those that its task has sent
    acknowledged: int | None = None  # the offset of its last record, once the producer has it


class Writer(PlayActor):
    """An application that sends messages from several tasks, some of them as chunks."""

    def __init__(self, play: Play, config: dict[str, Any], partitions: int, messages: int) -> None:
        super().__init__(play, "writer")
        self._config, self._partitions, self._messages = config, partitions, messages
        self.sent: dict[bytes, Sent] = {}
        self._ids = itertools.count()

    async def work(self) -> None:
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


class Reader(PlayActor, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, play: Play, ledger: Ledger, config: dict[str, Any], habits: dict[str, Any]) -> None:
        super().__init__(play, "reader")
        self._config, self._habits = config, habits
        self._reading = Reading(ledger, self.process.name)

    async def work(self) -> None:
        while not self.stopping:
            consumer = AssemblingConsumer(self._config, on_discarded=self._discarded)
            consumer.subscribe(["chunks"], listener=self)
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
        elif kind in {"committed", "beginning"}:
            self._reading.forget(tp.partition)
            await (consumer.seek_to_committed(tp) if kind == "committed" else consumer.seek_to_beginning(tp))
            self._reading.forget(tp.partition)

    def _given(self, record: Any) -> None:
        first = record.chunk_message_id.first if isinstance(record, AssembledRecord) else record.offset
        self._reading.give(Given(record.partition, record.offset, record.key, record.value, first))

    def _discarded(self, discarded: Discarded) -> None:
        self._reading.give(given_up(discarded))

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        for number in [*self._reading.last]:
            self._reading.forget(number)
        self._reading.assigned(each.partition for each in assigned)


_GROUP, _TOPIC = "readers", "chunks"
_SERVERS = "broker:9001,broker:9002,broker:9003"


class ChunksPlay(Play):
    def prepare(self) -> None:
        chance = self.chance
        partitions = chance.choice((1, 1, 2, 3))
        self._partitions = partitions
        self.cluster.create(_TOPIC, partitions, max_message_bytes=str(chance.choice((700, 1_200))))
        self.cluster.committed = self._committed
        pending = chance.choice((40_000, 200_000))
        expires = chance.random() < 0.2
        self._ledger = Ledger(self, partial(self.cluster.log, _TOPIC), self._values, expires=expires)
        self._reading: dict[str, Any] = {
            "bootstrap.servers": _SERVERS,
            "group.id": _GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_500,
            "request.timeout.ms": 7_000,
            "max.poll.interval.ms": 20_000,
            "retry.backoff.ms": 100,
            "enable.auto.commit": chance.random() < 0.5,
            "auto.commit.interval.ms": 300,
            "max.pending.chunked.bytes": pending,
            "chunk.max.message.bytes": 5_000,
            "max.pending.chunked.message": chance.choice((1, 2, 100)),
            "expire.time.of.incomplete.chunked.message.ms": 500 if expires else 30_000,
            "chunk.lookback": chance.choice((0, 10_000)),
            "fetch.max.bytes": chance.choice((2_000, 52_428_800)),
        }
        self._habits = {
            "one": chance.random() < 0.4,
            "commits": not self._reading["enable.auto.commit"],
            "own": chance.random() < 0.3,
            "pauses": chance.random() < 0.2,
            "seeks": chance.random() < 0.2,
        }
        if self._habits["seeks"]:
            self._reading["chunk.lookback"] = 10_000
        self._writing: dict[str, Any] = {
            "bootstrap.servers": _SERVERS,
            "request.timeout.ms": 4_000,
            "retry.backoff.ms": 100,
            "linger.ms": chance.choice((0, 20)),
            "max.request.size": 1_048_576,
        }
        if chance.random() < 0.3:
            self._writing["chunk.max.bytes"] = 500
        self._messages = chance.choice((2, 5, 10))
        writers, readers = chance.choice((1, 1, 2)), chance.choice((1, 1, 2, 3))
        self.scenario = PlayScenario(writers + readers, writers * self._messages)
        for _ in range(writers):
            self._new_writer()
        for _ in range(readers):
            self._new_reader()

    def _new_writer(self) -> None:
        Writer(self, self._writing, self._partitions, self._messages)

    def _new_reader(self) -> None:
        Reader(self, self._ledger, self._reading, self._habits)

    def new(self, former: Any = None) -> None:
        if isinstance(former, Reader):
            self._new_reader()
        elif sum(isinstance(each, Writer) for each in self.actors) < 4:
            self._new_writer()

    def _committed(self, group: str, offsets: Mapping[Any, Commit]) -> None:
        if group == _GROUP:
            for (_, number), commit in offsets.items():
                self._ledger.commit(number, commit.offset, commit.metadata)

    def _sent(self) -> dict[bytes, Sent]:
        return {key: sent for each in self.actors if isinstance(each, Writer) for key, sent in each.sent.items()}

    def left(self) -> object:
        writing = [each.process.name for each in self.actors if isinstance(each, Writer) and not each.ended]
        if writing:
            return writing
        return [left for number in range(self._partitions) if (left := self._ledger.left(number)) is not None]

    def _values(self) -> Mapping[bytes, bytes]:
        return {key: sent.value for key, sent in self._sent().items()}

    def check_end(self) -> None:
        sent = self._sent()
        for number in range(self._partitions):
            messages = logged(self.cluster.log(_TOPIC, number))
            whole = {each.key: each for each in messages if each.whole}
            for key, each in sent.items():
                if each.partition == number and each.acknowledged is not None and key not in whole:
                    raise Broken(f"{key!r} was acknowledged, and is not whole in the log of {number}")
            self._check_order(whole, sent, number)
            self._ledger.check_end(number)
        self.check_left()

    def _check_order(self, whole: Mapping[bytes, Any], sent: Mapping[bytes, Sent], number: int) -> None:
        last: dict[str, tuple[int, bytes]] = {}
        for key, each in sent.items():
            if each.partition == number and key in whole and each.acknowledged is not None:
                offset = whole[key].first
                if offset < last.get(each.task, (-1, b""))[0]:
                    raise Broken(f"{key!r} stands before {last[each.task][1]!r}, though it was sent behind it")
                last[each.task] = offset, key
