"""The clients that applications embed, in turns with the bare ones: plain records, and values of 1 MB in each form.

Each figure is a time, and each ratio is the bare client's time by ours, so that more is faster. Both times are of the
round whose ratio is the median, so they divide to it.

    plain records   µs of CPU of the application's thread. librdkafka and kafka-python fetch and send on other threads,
                    aiokafka on this one. The elapsed time is printed next to it
    1 MB            elapsed ms, eight values at a time: references compared with a loop of the bare client and boto3,
                    chunks compared with values that Kafka accepts whole

What is read must be what was written.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import boto3
import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers import aiokafka as ours_aiokafka
from app.serializers import confluent as ours_confluent
from app.serializers import kafka_python as ours_kafka_python
from benchmarks.bench import Bench
from benchmarks.contenders.boto3_loop import storing
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from tests.s3_server import S3Server, S3UnavailableError, s3_server

RECORDS = 30_000
_LARGE = 100
_LARGE_BYTES = 1_000_000
_BYTES = {"100b": 100, "1kb": 1_000, "references": _LARGE_BYTES, "chunks": _LARGE_BYTES}
_LIMIT_BYTES = 300_000
_COPIED_LIMIT_BYTES = 2_000_000
_AT_ONCE = 8
_LONG_S = 60.0
_LOOK_S = 0.03
_LOOKS = 150

_READS = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
_WRITES = {"acks": "all", "linger.ms": 5, "batch.size": 262_144}

Keys = Mapping[str, object]
Convert = Callable[[bytes], bytes]


class _Job:
    """One topic of one partition that is written, or read, by one client.

    Args:
        bootstrap: of the cluster.
        topic: its name.
        values: what is written or expected. The first one passes before the clock starts, as it makes connections.
        keys: the additional properties of our client; None for the bare client.
        convert: of large values, before they are written or after they are read, on eight threads.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        values: Sequence[bytes],
        keys: Keys | None,
        convert: Convert,
    ) -> None:
        # Hidden from the garbage collector: a full collection randomly cost one side 3.5 µs a record.
        gc.collect()
        gc.freeze()
        self._bootstrap = bootstrap
        self.topic, self.values, self.keys, self.convert = topic, values, keys, convert
        self.large = len(values[0]) >= _LARGE_BYTES
        self.pool = ThreadPoolExecutor(_AT_ONCE)
        self.cpu = self.elapsed = 0.0
        self._found: list[bytes] = []
        self._converted: list[Future[bytes]] = []
        self.take: Callable[[bytes], object] = self._found.append
        if self.large:
            self.take = lambda value: self._converted.append(self.pool.submit(convert, value))

    def client(self, bare: Callable[[Any], Any], ours: Callable[[Keys], Any], config: Keys) -> Any:
        """The client of this side."""
        config = {"bootstrap.servers": self._bootstrap, **config}
        return bare(config) if self.keys is None else ours({**config, **self.keys})

    def begin(self) -> None:
        """Starts the clock, for small records when no thread does anything: what is fetched ahead is here then."""
        gc.collect()
        used = 0.0
        for _ in range(0 if self.large else _LOOKS):
            before, used = used, time.process_time()
            if used - before < _LOOK_S / 20:
                break
            time.sleep(_LOOK_S)
        self.cpu, self.elapsed = time.thread_time(), time.perf_counter()

    def end(self) -> None:
        """Stops the clock when all is converted; the times are those of one value then."""
        self._found += [each.result() for each in self._converted]
        self._converted.clear()
        scale = (1e3 if self.large else 1e6) / (len(self.values) - 1)
        self.cpu = (time.thread_time() - self.cpu) * scale
        self.elapsed = (time.perf_counter() - self.elapsed) * scale
        self.pool.shutdown()
        gc.unfreeze()

    def send_large(self, send: Callable[[bytes], object]) -> None:
        """Sends from eight threads, like an application that does not want to wait for the store each time."""
        list(self.pool.map(lambda value: send(self.convert(value)), self.values[1:]))

    @property
    def figure(self) -> float:
        """What is compared."""
        return self.elapsed if self.large else self.cpu

    def __str__(self) -> str:
        return f"{self.cpu:6.2f} CPU, {self.elapsed:6.2f} elapsed {'ms' if self.large else 'µs'}"

    def check(self) -> None:
        """Eight values are written at a time, so they come in any order.

        Raises:
            BenchmarkError: what was read is not what was written.
        """
        if sorted(self._found) != sorted(self.values):
            raise BenchmarkError(f"clients: what was read of {self.topic} is not what was written")
        self._found.clear()


def _named(make: Callable[..., Any], **renamed: str) -> Callable[[Keys], Any]:
    """Accepts Kafka's properties in place of arguments."""
    return lambda config: make(
        **{renamed.get(name, name): value for key, value in config.items() for name in [key.replace(".", "_")]}
    )


async def _aiokafka_write(job: _Job) -> None:
    config = {**_WRITES, "max.request.size": _COPIED_LIMIT_BYTES}
    bare = _named(AIOKafkaProducer, batch_size="max_batch_size")
    turns, loop = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop()

    async def send(value: bytes) -> None:
        async with turns:
            converted = await loop.run_in_executor(job.pool, job.convert, value)
            await producer.send_and_wait(job.topic, converted, b"key")

    async with job.client(bare, ours_aiokafka.SerializingProducer, config) as producer:
        await send(job.values[0])
        job.begin()
        if job.large:
            await asyncio.gather(*map(send, job.values[1:]))
        else:
            for value in job.values[1:]:
                await producer.send(job.topic, value, b"key")
            await producer.flush()
        job.end()


async def _aiokafka_read(job: _Job, call: str) -> None:
    made = job.client(_named(AIOKafkaConsumer), ours_aiokafka.DeserializingConsumer, _READS)
    take, left = job.take, len(job.values) - 1
    async with made as consumer:
        consumer.assign([kafka.TopicPartition(job.topic, 0)])
        take((await consumer.getone()).value)
        job.begin()
        while left and call == "getone":
            take((await consumer.getone()).value)
            left -= 1
        while left:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                left -= len(records)
                for record in records:
                    take(record.value)
        job.end()


def _confluent_write(job: _Job) -> None:
    # With room for all, no call waits for the broker.
    room = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_000_000}
    config = {**_WRITES, **room, "message.max.bytes": _COPIED_LIMIT_BYTES}
    producer = job.client(confluent_kafka.SerializingProducer, ours_confluent.SerializingProducer, config)
    producer.produce(job.topic, value=job.convert(job.values[0]), key=b"key")
    producer.flush(_LONG_S)
    job.begin()
    if job.large:
        job.send_large(lambda value: producer.produce(job.topic, value=value, key=b"key"))
    else:
        for value in job.values[1:]:
            producer.produce(job.topic, value=value, key=b"key")
            producer.poll(0)
    producer.flush(_LONG_S)
    job.end()
    if job.keys is not None:
        producer.close()


def _confluent_read(job: _Job, call: str) -> None:
    # With less room, librdkafka pauses for a second each time that its queue is full.
    room = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000}
    config = {**_READS, **room, "group.id": "bench-clients"}
    consumer = job.client(confluent_kafka.Consumer, ours_confluent.DeserializingConsumer, config)
    consumer.assign([confluent_kafka.TopicPartition(job.topic, 0, 0)])
    take, left = job.take, len(job.values) - 1
    take(consumer.poll(_LONG_S).value())
    job.begin()
    while left and call == "poll":
        take(consumer.poll(_LONG_S).value())
        left -= 1
    while left:
        messages = consumer.consume(min(left, 500), _LONG_S)
        left -= len(messages)
        for message in messages:
            take(message.value())
    job.end()
    consumer.close()


def _kafka_python_write(job: _Job) -> None:
    config = {**_WRITES, "max.request.size": _COPIED_LIMIT_BYTES}
    producer = job.client(_named(kafka.KafkaProducer), ours_kafka_python.SerializingProducer, config)
    producer.send(job.topic, job.convert(job.values[0]), b"key").get(_LONG_S)
    job.begin()
    if job.large:
        job.send_large(lambda value: producer.send(job.topic, value, b"key"))
    else:
        for value in job.values[1:]:
            producer.send(job.topic, value, b"key")
    producer.flush(_LONG_S)
    job.end()
    producer.close()


def _kafka_python_read(job: _Job, call: str) -> None:
    consumer = job.client(_named(kafka.KafkaConsumer), ours_kafka_python.DeserializingConsumer, _READS)
    consumer.assign([kafka.TopicPartition(job.topic, 0)])
    take, left = job.take, len(job.values) - 1
    # Not next(consumer), which keeps what it has fetched from a later poll.
    for records in consumer.poll(timeout_ms=_LONG_S * 1_000, max_records=1).values():
        take(records[0].value)
    job.begin()
    while left and call == "iteration":
        take(next(consumer).value)
        left -= 1
    while left:
        for records in consumer.poll(timeout_ms=1_000).values():
            left -= len(records)
            for record in records:
                take(record.value)
    job.end()
    consumer.close()


@dataclass(frozen=True, slots=True)
class _Client:
    writes: str
    write: Callable[[_Job], None]
    reads: Sequence[str]
    read: Callable[[_Job, str], None]


_CLIENTS: Mapping[str, _Client] = {
    "aiokafka": _Client(
        "send",
        lambda job: asyncio.run(_aiokafka_write(job)),
        ("getmany", "getone"),
        lambda job, call: asyncio.run(_aiokafka_read(job, call)),
    ),
    # Its Consumer is the bare one; ours writes as SerializingProducer does, from which it derives.
    "confluent": _Client("produce", _confluent_write, ("poll", "consume"), _confluent_read),
    "kafka_python": _Client("send", _kafka_python_write, ("poll", "iteration"), _kafka_python_read),
}
PARTS = [f"{client}.{form}" for client in _CLIENTS for form in _BYTES]


async def clients(bench: Bench) -> list[Result]:
    """Writes and reads with our clients and with the bare ones, in turns.

    Raises:
        BenchmarkError: what was read is not what was written.
    """
    results = []
    with ExitStack() as stack:
        server = None
        try:
            server = stack.enter_context(s3_server("versitygw", bench.folder / "s3"))
        except S3UnavailableError as exc:
            bench.console.print(f"clients: no references, without S3: {exc}", markup=False)
        for part in PARTS:
            if bench.wants(part) and (server or not part.endswith(".references")):
                results += await _compared(bench, part, server)
    return results


async def _compared(bench: Bench, part: str, server: S3Server | None) -> list[Result]:
    name, form = part.split(".")
    count, size = max(2, bench.records or RECORDS), _BYTES[form]
    if large := size == _LARGE_BYTES:
        count = min(count, _LARGE)
    values = [random.Random(number).randbytes(size) for number in range(count)]  # noqa: S311
    rounds: dict[str, list[tuple[_Job, _Job]]] = {}
    for number in range(bench.repeat):
        seen = {}
        for side in (True, False) if number % 2 else (False, True):
            seen[side] = await _run(bench, _CLIENTS[name], form, values, server, ours=side)
        for call, bare in seen[False].items():
            ours = seen[True].get(call)
            bench.console.print(f"  {f'{part}.{call}':<30} ours {ours or 'missing'}   bare {bare}", highlight=False)
            if ours:
                rounds.setdefault(call, []).append((ours, bare))
    results, unit = [], "ms/value" if large else "µs CPU/record"
    for call, pairs in rounds.items():
        ours, bare = sorted(pairs, key=lambda pair: pair[1].figure / pair[0].figure)[(len(pairs) - 1) // 2]
        ratio = bare.figure / ours.figure
        results.append(Result(f"clients.{part}.{call}.vs_bare", ours.figure, unit, bare.figure, ratio))
    return results


async def _run(
    bench: Bench, client: _Client, form: str, values: Sequence[bytes], server: S3Server | None, *, ours: bool
) -> dict[str, _Job]:
    """Writes a topic and reads it by each call; the jobs, by their calls."""
    writing: Keys | None = None
    reading: Keys | None = None
    converts: tuple[Convert, Convert] = (bytes, bytes)
    if ours:
        kind, keys = ("s3", server.config()) if server else ("filesystem", {"filesystem.root": str(bench.folder)})
        store = {"large.message.payload.store.class": kind, **keys}
        reading = {**store, "value.deserializer": LargeMessageDeserializer}
        writing = {**store, "value.serializer": LargeMessageSerializer, "large.message.threshold.bytes": _LIMIT_BYTES}
        if form == "chunks":
            writing = {"large.message.strategy": "chunk"}
    elif form == "references" and server:
        session = boto3.session.Session(server.access_key, server.secret_key, region_name=server.region)
        converts = storing(server.endpoint, server.bucket, _AT_ONCE, session)
    # If a value must not be sent whole, the topic refuses it.
    limit = _COPIED_LIMIT_BYTES if form == "chunks" and not ours else _LIMIT_BYTES
    topic = await bench.topics.make("clients", max_message_bytes=limit, partitions=1)
    async with bench.topics.watch(topic):
        pass  # until the broker knows it
    jobs = {client.writes: _Job(bench.topics.bootstrap, topic, values, writing, converts[0])}
    await asyncio.to_thread(client.write, jobs[client.writes])
    for call in client.reads[: 1 if jobs[client.writes].large else None]:
        job = _Job(bench.topics.bootstrap, topic, values, reading, converts[1])
        try:
            await asyncio.to_thread(client.read, job, call)
        except NotImplementedError:
            continue
        job.check()
        jobs[call] = job
    await bench.topics.delete(topic)
    return jobs
