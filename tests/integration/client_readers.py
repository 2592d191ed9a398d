"""Consumers of ours behind one interface, for tests of what all of them promise.

A configuration has Kafka's names; partitions go by their numbers. Clients that block have a thread each.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.error import KeyDeserializationError, ValueDeserializationError
from kafka.structs import OffsetAndMetadata

from app.chunks import AssemblingConsumer
from app.serializers.aiokafka import DeserializingConsumer as AiokafkaConsumer
from app.serializers.confluent import DeserializingConsumer as ConfluentConsumer
from app.serializers.confluent import consumer_config
from app.serializers.kafka_python import DeserializingConsumer as KafkaPythonConsumer
from tests.integration.aiokafka_records import Source
from tests.integration.client_config import Config
from tests.integration.topics import marks
from transforms.chunked_message import Discarded
from transforms.record import Header

LONG_S = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Given:
    """A record as the application gets it."""

    partition: int
    offset: int
    key: Any
    value: Any
    headers: list[Header]
    timestamp: int


class Reader(ABC):
    """A consumer that reads a topic from the beginning, or from where its group is; it commits when it is asked to.

    Args:
        assigned: where reading begins in these partitions, None at the committed offset; without it, it subscribes.
    """

    interrupt: ClassVar[type[BaseException]] = KeyboardInterrupt  # what Ctrl-C is where the deserializers run
    batches: ClassVar[bool] = False  # whether a call gives several records
    passes: ClassVar[bool] = False  # whether the position is behind a record that could not be deserialized
    repeats: ClassVar[bool] = False  # whether an interrupt may give records again
    fetch_wait: ClassVar[str] = "fetch.max.wait.ms"
    bounds: ClassVar[tuple[str, ...]] = ("fetch.max.bytes",)  # of what a call may download
    joining_s: ClassVar[float] = 0.2  # of a call before there are partitions

    def __init__(
        self,
        source: Source,
        config: Config | None = None,
        on_discarded: Callable[[Discarded], Any] | None = None,
        *,
        assigned: dict[int, int | None] | None = None,
    ) -> None:
        self.topic, self.assigned = source.topic, assigned
        self.config = {
            "bootstrap.servers": source.broker,
            "group.id": f"{source.topic}-g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            self.fetch_wait: 20,  # what is sought comes behind that
            **(config or {}),
        }
        self.options: dict[str, Any] = {} if on_discarded is None else {"on_discarded": on_discarded}
        self.consumer: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        return function(*args)

    async def read(self, count: int = 1) -> list[Given]:
        found: list[Given] = []
        deadline = time.monotonic() + LONG_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {found} came"
            found += await self.poll(1.0, count - len(found))
        return found

    async def values(self, count: int = 1) -> list[Any]:
        return [each.value for each in await self.read(count)]

    async def becomes(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain until {what}"
            assert await self.poll(0.2 if self.assignment() else self.joining_s) == []

    async def marks(self) -> dict[int, tuple[int, str]]:
        found = await asyncio.to_thread(marks, self.config["bootstrap.servers"], self.config["group.id"], self.topic)
        return {number: (offset, metadata.rstrip("\0")) for number, (offset, metadata) in found.items()}

    async def committed(self) -> dict[int, int]:
        return {number: offset for number, (offset, _) in (await self.marks()).items()}

    async def seek(self, offset: int, partition: int = 0) -> None:
        await self.call(self.seek_now, offset, partition)

    async def pending(self) -> int:
        found: int = (await self.call(self.consumer.stats))["pendingChunkedMessages"]
        return found

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        pass

    @abstractmethod
    async def commit(self, offset: int | None = None, metadata: str = "") -> None:
        pass

    @abstractmethod
    async def position(self, partition: int = 0) -> int: ...

    @abstractmethod
    def seek_now(self, offset: int, partition: int = 0) -> None:
        pass

    @abstractmethod
    async def pause(self, *partitions: int) -> None: ...

    @abstractmethod
    async def resume(self, *partitions: int) -> None: ...

    @abstractmethod
    def assignment(self) -> set[int]: ...


class Getmany(Reader):
    """aiokafka's `getmany`."""

    interrupt = asyncio.CancelledError
    batches = True
    made: ClassVar[Any] = AiokafkaConsumer

    async def start(self) -> None:
        topics = [self.topic] if self.assigned is None else []
        self.consumer = self.made(self.config, *topics, **self.options)
        if self.assigned is not None:
            self.consumer.assign([self.place(number) for number in self.assigned])
        await self.consumer.start()
        for number, offset in (self.assigned or {}).items():
            if offset is not None:
                self.seek_now(offset, number)

    async def close(self) -> None:
        await self.consumer.stop()

    def place(self, partition: int) -> aiokafka.TopicPartition:
        return aiokafka.TopicPartition(self.topic, partition)

    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        found = await self.consumer.getmany(timeout_ms=round(wait_s * 1000), max_records=most)
        return [_given(each) for records in found.values() for each in records]

    async def commit(self, offset: int | None = None, metadata: str = "") -> None:
        await self.consumer.commit(None if offset is None else {self.place(0): (offset, metadata)})

    async def position(self, partition: int = 0) -> int:
        found: int = await self.consumer.position(self.place(partition))
        return found

    def seek_now(self, offset: int, partition: int = 0) -> None:
        self.consumer.seek(self.place(partition), offset)

    async def pause(self, *partitions: int) -> None:
        self.consumer.pause(*map(self.place, partitions))

    async def resume(self, *partitions: int) -> None:
        self.consumer.resume(*map(self.place, partitions))

    def assignment(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


class Getone(Getmany):
    """aiokafka's `getone`; a call whose time is over is cancelled."""

    batches = False

    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return [_given(await self.consumer.getone())]
        return []


class Assembling(Getone):
    """`getone` of the consumer that knows chunks alone."""

    made = AssemblingConsumer


class Blocking(Reader):
    """What the clients that block have in common."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *args)

    async def start(self) -> None:
        await self.call(self.make)

    async def close(self) -> None:
        await self.call(self.consumer.close)
        self.thread.shutdown()

    @abstractmethod
    def make(self) -> None: ...

    @abstractmethod
    def place(self, partition: int) -> Any: ...

    async def pause(self, *partitions: int) -> None:
        await self.call(self.consumer.pause, *map(self.place, partitions))

    async def resume(self, *partitions: int) -> None:
        await self.call(self.consumer.resume, *map(self.place, partitions))

    def assignment(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


class Confluent(Blocking):
    """confluent-kafka's `poll`."""

    passes = True
    fetch_wait = "fetch.wait.max.ms"

    def make(self) -> None:
        self.consumer = ConfluentConsumer(self.config, **self.options)
        if self.assigned is None:
            self.consumer.subscribe([self.topic])
        else:
            self.consumer.assign(
                [self.place(n) if at is None else self.place(n, at) for n, at in self.assigned.items()]
            )

    def place(self, partition: int, *offset: Any) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self.topic, partition, *offset)

    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        return [_message(each) for each in await self.call(self._polled, wait_s, most)]

    def _polled(self, wait_s: float, most: int | None) -> list[Any]:
        try:
            return self.messages(wait_s, most)
        except (KeyDeserializationError, ValueDeserializationError) as error:
            reason: Any = error.exception
            raise reason from reason.__cause__

    def messages(self, wait_s: float, most: int | None) -> list[Any]:  # of a batch
        message = self.consumer.poll(wait_s)
        return [] if message is None else [message]

    async def commit(self, offset: int | None = None, metadata: str = "") -> None:
        given: dict[str, Any] = {} if offset is None else {"offsets": [self.place(0, offset, metadata)]}
        try:
            await self.call(lambda: self.consumer.commit(asynchronous=False, **given))
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:  # nothing has changed
                raise

    async def position(self, partition: int = 0) -> int:
        found: int = (await self.call(self.consumer.position, [self.place(partition)]))[0].offset
        return found

    def seek_now(self, offset: int, partition: int = 0) -> None:
        self.consumer.seek(self.place(partition, offset))

    async def pause(self, *partitions: int) -> None:
        await self.call(self.consumer.pause, [*map(self.place, partitions)])

    async def resume(self, *partitions: int) -> None:
        await self.call(self.consumer.resume, [*map(self.place, partitions)])


class ConfluentBatches(Confluent):
    """confluent-kafka's `consume`, which waits until there are as many as it is asked for."""

    batches = True
    bounds = ("fetch.max.bytes", "message.max.bytes")

    def messages(self, wait_s: float, most: int | None) -> list[Any]:
        messages: list[Any] = self.consumer.consume(500 if most is None else most, wait_s)
        assert [error for each in messages if (error := each.error())] == []
        return messages


class ConfluentsOwn(Confluent):
    """confluent-kafka's own class, with our configuration: it knows no chunks."""

    def make(self) -> None:
        self.made = consumer_config(self.config)
        self.consumer = confluent_kafka.DeserializingConsumer(self.made)
        self.consumer.subscribe([self.topic])

    async def close(self) -> None:
        await super().close()
        for side in {"key.deserializer", "value.deserializer"} & self.made.keys():
            self.made[side].close()


class KafkaPython(Blocking):
    """kafka-python's `poll`."""

    batches = True
    repeats = True
    joining_s = 1.0  # a poll that ends while it joins may leave it outside for minutes

    def make(self) -> None:
        topics = [self.topic] if self.assigned is None else []
        self.consumer = KafkaPythonConsumer(self.config, *topics, **self.options)
        if self.assigned is not None:
            self.consumer.assign([self.place(number) for number in self.assigned])
            for number, offset in self.assigned.items():
                if offset is not None:
                    self.seek_now(offset, number)

    def place(self, partition: int) -> kafka.TopicPartition:
        return kafka.TopicPartition(self.topic, partition)

    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        found = await self.call(self.consumer.poll, round(wait_s * 1000), most)
        return [_given(each) for records in found.values() for each in records]

    async def commit(self, offset: int | None = None, metadata: str = "") -> None:
        given = None if offset is None else {self.place(0): OffsetAndMetadata(offset, metadata, -1)}
        await self.call(self.consumer.commit, given)

    async def position(self, partition: int = 0) -> int:
        found: int = await self.call(self.consumer.position, self.place(partition))
        return found

    def seek_now(self, offset: int, partition: int = 0) -> None:
        self.consumer.seek(self.place(partition), offset)


class KafkaPythonIteration(KafkaPython):
    """kafka-python's iteration."""

    batches = False

    async def poll(self, wait_s: float, most: int | None = None) -> list[Given]:
        self.consumer.config["consumer_timeout_ms"] = round(wait_s * 1000)
        record = await self.call(next, self.consumer, None)
        return [] if record is None else [_given(record)]


def _given(record: Any) -> Given:
    return Given(record.partition, record.offset, record.key, record.value, list(record.headers), record.timestamp)


def _message(message: Any) -> Given:
    headers = list(message.headers() or [])
    return Given(message.partition(), message.offset(), message.key(), message.value(), headers, message.timestamp()[1])


async def share(first: Reader, second: Reader) -> list[Given]:
    """What two consumers give until each has one of two partitions."""
    given: list[Given] = []
    async with asyncio.timeout(LONG_S):
        while len(first.assignment()) != 1 or len(second.assignment()) != 1:
            for records in await asyncio.gather(first.poll(1.0), second.poll(1.0)):
                given += records
    return given


Client = type[Reader]
READERS: list[Client] = [Getmany, Getone, Confluent, ConfluentBatches, KafkaPython, KafkaPythonIteration]
BATCHES = [each for each in READERS if each.batches]
CHUNKS = [Assembling if each is Getone else each for each in READERS]
CLIENTS: list[Client] = [Getmany, Confluent, KafkaPython]
"""One of each, where it does not matter by which call records come."""
