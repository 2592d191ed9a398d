"""The clients that applications embed, beside the bare clients: plain values, and values of 1 MB in each form.

Each measures one call after the other in this process: first all are written, then all are read. What is read must be
what was written.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers import confluent as ours_confluent
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from benchmarks.bench import Bench, median, turned
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from tests.s3_server import S3Server, S3UnavailableError, s3_server

__all__ = ["clients"]

RECORDS = 50_000
_LARGE = 150
_SMALL_BYTES = 1_000
_LARGE_BYTES = 1_000_000
_CHUNKED_LIMIT_BYTES = 300_000
_COPIED_LIMIT_BYTES = 2_000_000
_AT_ONCE = 8  # sends that are under way at the same time
_BATCH_BYTES = 262_144
_LONG_S = 60.0

Seconds = tuple[float, float]
"""What writing took, and what reading took."""


def _values(count: int, size: int) -> list[bytes]:
    """Random bytes, the same ones each time."""
    return [random.Random(number).randbytes(size) for number in range(count)]  # noqa: S311


async def clients(bench: Bench) -> list[Result]:
    """Writes and reads with our clients and with the bare ones, in turns.

    Raises:
        BenchmarkError: what was read is not what was written.
    """
    count = bench.records or RECORDS
    small = _values(count, _SMALL_BYTES)
    large = _values(min(count, _LARGE), _LARGE_BYTES)
    seen: dict[str, list[Seconds]] = {}
    for number in range(bench.repeat):
        bench.console.print(
            f"clients, round {number + 1} of {bench.repeat}: {len(small):,} values of 1 KB, {len(large)} of 1 MB"
        )
        with TemporaryDirectory(dir=bench.folder) as folder:
            try:
                with s3_server("versitygw", Path(folder)) as server:
                    for name, run in _turns(bench, server, small, large, number):
                        seconds = await run()
                        seen.setdefault(name, []).append(seconds)
                        bench.console.print(f"  {name:<24} write {seconds[0]:6.2f} s, read {seconds[1]:6.2f} s")
            except S3UnavailableError as exc:
                bench.console.print(f"clients: without S3: {exc}", markup=False)
                return []
    mib = len(large) * _LARGE_BYTES / 2**20
    return [
        *_beside(seen, "aiokafka.plain", "bare aiokafka", len(small), "records/s", ("write", "read")),
        *_beside(seen, "confluent.plain", "bare confluent", len(small), "records/s", ("write", "read")),
        *_beside(seen, "aiokafka.reference", "bare copy", mib, "MiB/s", ("offload", "inflate")),
        *_beside(seen, "aiokafka.chunks", "bare copy", mib, "MiB/s", ("chunk", "assemble")),
        *_beside(seen, "confluent.chunks", "bare confluent copy", mib, "MiB/s", ("", "assemble")),
    ]


def _beside(
    seen: Mapping[str, Sequence[Seconds]], name: str, bare: str, amount: float, unit: str, verbs: tuple[str, str]
) -> list[Result]:
    results = []
    for side, verb in enumerate(verbs):
        ours, theirs = ([each[side] for each in seen[which]] for which in (name, bare))
        if verb:
            results.append(
                Result(
                    f"clients.{name.partition('.')[0]}.{verb}.vs_bare",
                    median(amount / each for each in ours),
                    unit,
                    median(amount / each for each in theirs),
                    median(b / a for a, b in zip(ours, theirs, strict=True)),
                )
            )
    return results


def _turns(
    bench: Bench, server: S3Server, small: Sequence[bytes], large: Sequence[bytes], number: int
) -> list[tuple[str, Callable[[], Awaitable[Seconds]]]]:
    base = {"bootstrap.servers": bench.topics.bootstrap}
    store = {**base, "large.message.payload.store.class": "s3", **server.config(f"clients-{number}")}
    writes = {"acks": "all", "linger.ms": 5, "batch.size": _BATCH_BYTES, "max.request.size": _COPIED_LIMIT_BYTES}
    offloads = {**store, **writes, "value.serializer": LargeMessageSerializer, "large.message.threshold.bytes": 500_000}
    inflates = {**store, "value.deserializer": LargeMessageDeserializer}
    chunks = {**base, **writes, "large.message.strategy": "chunk"}
    reads = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "group.id": f"clients-{number}"}

    async def way(
        values: Sequence[bytes], limit: int, writer: Callable[..., Awaitable[float]], reader: Callable[..., Any]
    ) -> Seconds:
        topic = await bench.topics.make("clients", max_message_bytes=limit, partitions=1)
        try:
            wrote = await writer(topic, values)
            return wrote, await reader(topic, values)
        finally:
            await bench.topics.delete(topic)

    def aiokafka(
        producer: Callable[[], AbstractAsyncContextManager[Any]], consumer: Callable[[str], Any]
    ) -> tuple[Callable[..., Awaitable[float]], Callable[..., Awaitable[float]]]:
        return (
            lambda topic, values: _write(producer, topic, values),
            lambda topic, values: _read(lambda: consumer(topic), values),
        )

    def confluent(producer: Callable[[], Any], consumer: Callable[[], Any]) -> tuple[Any, Any]:
        return (
            lambda topic, values: asyncio.to_thread(_produce, producer, topic, values),
            lambda topic, values: asyncio.to_thread(_poll, consumer, topic, values),
        )

    bare = aiokafka(
        lambda: AIOKafkaProducer(
            bootstrap_servers=bench.topics.bootstrap,
            acks="all",
            linger_ms=5,
            max_batch_size=_BATCH_BYTES,
            max_request_size=_COPIED_LIMIT_BYTES,
        ),
        lambda topic: AIOKafkaConsumer(
            topic, bootstrap_servers=bench.topics.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        ),
    )
    referring = aiokafka(
        lambda: SerializingProducer(offloads),
        lambda topic: DeserializingConsumer({**inflates, **_without(reads)}, topic),
    )
    chunking = aiokafka(
        lambda: SerializingProducer(chunks), lambda topic: DeserializingConsumer({**base, **_without(reads)}, topic)
    )
    theirs = {**base, "message.max.bytes": _COPIED_LIMIT_BYTES, "linger.ms": 5, "acks": "all"}
    bare_confluent = confluent(
        lambda: confluent_kafka.SerializingProducer(theirs),
        lambda: confluent_kafka.DeserializingConsumer({**base, **reads}),
    )
    own_confluent = confluent(
        lambda: ours_confluent.SerializingProducer(
            {**store, **theirs, "value.serializer": LargeMessageSerializer, "large.message.threshold.bytes": 500_000}
        ),
        lambda: ours_confluent.DeserializingConsumer({**inflates, **reads}),
    )
    plan: dict[str, tuple[Sequence[bytes], int, tuple[Any, Any]]] = {
        "bare aiokafka": (small, _COPIED_LIMIT_BYTES, bare),
        "aiokafka.plain": (small, _COPIED_LIMIT_BYTES, referring),
        "bare confluent": (small, _COPIED_LIMIT_BYTES, bare_confluent),
        "confluent.plain": (small, _COPIED_LIMIT_BYTES, own_confluent),
        "bare copy": (large, _COPIED_LIMIT_BYTES, bare),
        "aiokafka.reference": (large, _COPIED_LIMIT_BYTES, referring),
        "aiokafka.chunks": (large, _CHUNKED_LIMIT_BYTES, chunking),
        "bare confluent copy": (large, _COPIED_LIMIT_BYTES, bare_confluent),
        "confluent.chunks": (large, _CHUNKED_LIMIT_BYTES, (chunking[0], own_confluent[1])),
    }

    def run_of(name: str) -> Callable[[], Awaitable[Seconds]]:
        values, limit, (writer, reader) = plan[name]
        return lambda: way(values, limit, writer, reader)

    return [(name, run_of(name)) for name in turned(list(plan), number)]


def _without(reads: Mapping[str, object]) -> dict[str, object]:
    """aiokafka needs no group to read."""
    return {key: value for key, value in reads.items() if key != "group.id"}


# --- aiokafka ---------------------------------------------------------------------------------------------------------


async def _write(make: Callable[[], AbstractAsyncContextManager[Any]], topic: str, values: Sequence[bytes]) -> float:
    """How long it takes until all are durable; several large values are on their way at once."""
    async with make() as producer:
        await producer.partitions_for(topic)
        begun = time.perf_counter()
        if len(values[0]) < _LARGE_BYTES:
            for value in values:
                _ = await producer.send(topic, value, b"key")
        else:
            turns = asyncio.Semaphore(_AT_ONCE)

            async def send(value: bytes) -> None:
                async with turns:
                    await producer.send_and_wait(topic, value, b"key")

            await asyncio.gather(*map(send, values))
        await producer.flush()
        return time.perf_counter() - begun


async def _read(make: Callable[[], AbstractAsyncContextManager[Any]], values: Sequence[bytes]) -> float:
    async with make() as consumer:
        begun = time.perf_counter()
        found = [value async for value in _all(consumer, len(values))]
        seconds = time.perf_counter() - begun
    _check(found, values)
    return seconds


async def _all(consumer: Any, count: int) -> AsyncIterator[bytes]:
    seen = 0
    while seen < count:
        for records in (await consumer.getmany(timeout_ms=1_000)).values():
            seen += len(records)
            for record in records:
                yield record.value


# --- confluent-kafka --------------------------------------------------------------------------------------------------


def _produce(make: Callable[[], Any], topic: str, values: Sequence[bytes]) -> float:
    producer = make()
    begun = time.perf_counter()
    for value in values:
        while True:
            try:
                producer.produce(topic, key=b"key", value=value, headers=[])
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(_LONG_S):
        raise BenchmarkError("clients: confluent-kafka's producer did not end")
    seconds = time.perf_counter() - begun
    if isinstance(producer, ours_confluent.SerializingProducer):
        producer.close()
    return seconds


def _poll(make: Callable[[], Any], topic: str, values: Sequence[bytes]) -> float:
    consumer = make()
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    begun = time.perf_counter()
    found: list[bytes] = []
    while len(found) < len(values):
        message = consumer.poll(_LONG_S)
        if message is None:
            raise BenchmarkError(f"clients: {len(found):,} of {len(values):,} values came")
        found.append(message.value())
    seconds = time.perf_counter() - begun
    consumer.close()
    _check(found, values)
    return seconds


def _check(found: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Random values are told apart by their hashes; several large ones are written at once, in any order."""
    if sorted(map(_digest, found)) != sorted(map(_digest, values)):
        raise BenchmarkError("clients: what was read is not what was written")


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
