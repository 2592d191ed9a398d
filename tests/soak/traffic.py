"""The traffic of a soak: numbered messages on their way through pipelines, and who holds them to the journal."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.soak.journal import Journal
from transforms.record import Header

PARTITIONS = 4
_LARGEST = 12_000_000
# Of values, in bytes, and how many of a thousand have such a size; (0, 0) is a null.
_SIZES = {(0, 0): 10, (0, 500): 920, (1_000, 200_000): 50, (900_000, 3_000_000): 17, (3_000_000, _LARGEST): 3}
_IN_FLIGHT = 200  # messages of a writer that are not acknowledged
_UNBOUNDED_MS = 3_600_000  # a broker may be away for as long as a fault lasts; nothing may be given up meanwhile


@dataclass(slots=True)
class Route:
    """A way that messages take, from the first topic to the last.

    Attributes:
        name: for the report.
        topics: those on the way, the source first, where they are read last.
        exactly_once: whether a copy is a fault.
        compression: of the batches that are written to the first topic.
    """

    name: str
    topics: tuple[str, ...]
    exactly_once: bool = False
    compression: str | None = None
    journal: Journal = field(default_factory=lambda: Journal(PARTITIONS))


def own_headers(number: int) -> tuple[Header, ...]:
    """What each message has: a name twice, and a null."""
    return ("own", b"%d" % number), ("own", None)


class Sender:
    """Sends until it is told to end."""

    def __init__(self, bootstrap: str, *, seed: int) -> None:
        self._bootstrap = bootstrap
        self._chance = random.Random(seed)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Lets `run` end when all that was sent is durable."""
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _producer(self, **options: object) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=_UNBOUNDED_MS,
            max_request_size=2 * _LARGEST,
            **options,
        )


class Poison(Sender):
    """Writes now and then a reference that must be refused into the middle of a route; counts them by its key."""

    def __init__(self, bootstrap: str, topic: str, *, seed: int) -> None:
        super().__init__(bootstrap, seed=seed)
        self._topic = topic
        self.sent = 0

    async def run(self) -> None:
        """Sends until `stop`."""
        async with self._producer() as producer:
            while not self._stopping.is_set():
                path = self._chance.choice((b"file:///etc/passwd", b"s3://elsewhere/t/id", b"\xff\xfe", b"s3://x/../y"))
                await producer.send_and_wait(
                    self._topic,
                    path,
                    key=b"poison-%d" % self.sent,
                    partition=self._chance.randrange(PARTITIONS),
                    headers=[("large-message", b"true")],
                )
                self.sent += 1
                await self._pause(5)


class Writer(Sender):
    """Sends messages of all sizes to the source of a route, at about so many a second.

    A size is that of a small record nearly always; one in twenty is over any threshold, some have several megabytes.
    Every other value repeats itself, so that it can be compressed.
    """

    def __init__(self, bootstrap: str, route: Route, *, rate: float, seed: int) -> None:
        super().__init__(bootstrap, seed=seed)
        self._route = route
        self._rate = rate

    async def run(self) -> None:
        """Sends until `stop`."""
        room = asyncio.Semaphore(_IN_FLIGHT)
        async with self._producer(compression_type=self._route.compression) as producer:
            began, count = time.monotonic(), 0
            while not self._stopping.is_set():
                due = int((time.monotonic() - began) * self._rate)
                # After a fault the writer does not catch up all at once.
                count = max(count, due - _IN_FLIGHT)
                while count < due and not self._stopping.is_set():
                    count += 1
                    await room.acquire()
                    partition, value = self._chance.randrange(PARTITIONS), self._value()
                    number = self._route.journal.sent(partition, value)
                    future = await producer.send(
                        self._route.topics[0],
                        value,
                        key=b"%d" % number,
                        partition=partition,
                        headers=list(own_headers(number)),
                    )
                    future.add_done_callback(lambda _: room.release())
                await self._pause(0.02)

    def _value(self) -> bytes | None:
        ((least, most),) = self._chance.choices([*_SIZES], [*_SIZES.values()])
        if not most:
            return None
        size = self._chance.randrange(least, most)
        if self._chance.random() < 0.5:
            return self._chance.randbytes(size)
        return (self._chance.randbytes(1_000) * (size // 1_000 + 1))[:size]


class Reader:
    """Reads the end of a route all the time, as a consumer that sees committed records only."""

    def __init__(self, bootstrap: str, route: Route) -> None:
        self._bootstrap = bootstrap
        self._route = route
        self._positions: dict[TopicPartition, int] = {
            TopicPartition(route.topics[-1], number): 0 for number in range(PARTITIONS)
        }

    async def run(self) -> None:
        """Reads until it is cancelled; a client that fails is followed by another one where it was."""
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await self._read()
            await asyncio.sleep(0.5)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_partition_fetch_bytes=2 * _LARGEST,
        )
        try:  # it is stopped also if its start fails
            await consumer.start()
            consumer.assign(list(self._positions))
            for partition, position in self._positions.items():
                consumer.seek(partition, position)
            while True:
                for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                    for record in records:
                        self._take(partition, record.key, record.value, tuple(record.headers))
                        self._positions[partition] = record.offset + 1
                    await asyncio.sleep(0)
        finally:
            await consumer.stop()

    def _take(
        self, partition: TopicPartition, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> None:
        number = int(key) if key is not None and key.isdigit() else -1
        # What has lost its headers on the way counts for what nobody has sent.
        intact = headers == own_headers(number)
        self._route.journal.received(partition.partition, number if intact else -1, value)
