"""How often batches must be split if the records of a topic compress very differently (KIP-126)."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from aiokafka import AIOKafkaProducer

from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.outbox import BatchSettings
from benchmarks.bench import Bench
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from transforms.record import Record

BATCHES = 5_000
_CODEC = "gzip"  # as in Kafka's own test of the split frequency
_BATCH_BYTES = 16_384  # Kafka's default; the topic takes no more, so whatever is estimated too low is split
_BUFFER_BYTES = 1_000_000
_BEST, _WORST = 0.02, 1.0  # what a record compresses to, of its size
_RUN = 300


def _value(rng: random.Random, share: float) -> bytes:
    size = rng.randrange(200, 1_200)
    chosen = int(size * share)
    return rng.randbytes(chosen) + bytes(size - chosen)


def _mixed(good: float) -> Callable[[random.Random], Iterator[bytes]]:
    def values(rng: random.Random) -> Iterator[bytes]:
        while True:
            yield _value(rng, _BEST if rng.random() < good else _WORST)

    return values


def _any(rng: random.Random) -> Iterator[bytes]:
    while True:
        yield _value(rng, rng.uniform(_BEST, _WORST))


def _runs(rng: random.Random) -> Iterator[bytes]:
    """The hardest: nothing but the best for a while, then nothing but the worst."""
    for share in itertools.cycle((_BEST, _WORST)):
        for _ in range(int(rng.expovariate(1 / _RUN)) + 1):
            yield _value(rng, share)


_DATA: Mapping[str, Callable[[random.Random], Iterator[bytes]]] = {
    "10 % compress well": _mixed(0.1),
    "50 % compress well": _mixed(0.5),
    "90 % compress well": _mixed(0.9),
    "anything": _any,
    f"runs of {_RUN}": _runs,
}


async def batches(bench: Bench) -> list[Result]:
    """Sends batches of mixed data, a fifth of each kind, to topics that take no larger batch than is aimed at.

    Raises:
        BenchmarkError: a topic does not have what was sent to it, in its order.
    """
    count = (bench.records or BATCHES) // len(_DATA)
    splits = tried = 0
    fill = []
    for name, values in _DATA.items():
        topic = await bench.topics.make("batches", max_message_bytes=_BATCH_BYTES)
        split, of, size = await _send(bench, topic, values(random.Random(0)), count)  # noqa: S311
        bench.console.print(f"batches, {name}: {split:,} of {of:,} split ({split / of:.2%}), {size:,.0f} bytes each")
        await bench.topics.delete(topic)
        splits, tried = splits + split, tried + of
        fill.append(size / _BATCH_BYTES)
    return [
        Result("batches.split_percent", 100 * splits / tried, "% of batches"),
        Result("batches.fill_percent", 100 * sum(fill) / len(fill), "% of batch.size"),
    ]


async def _send(bench: Bench, topic: str, values: Iterator[bytes], count: int) -> tuple[int, int, float]:
    sent, wire_bytes = hashlib.sha256(), 0
    async with AIOKafkaProducer(
        bootstrap_servers=bench.topics.bootstrap, enable_idempotence=True, compression_type=_CODEC
    ) as inner:
        producer = BatchingProducer(inner, BatchSettings(batch_bytes=_BATCH_BYTES), buffer_bytes=_BUFFER_BYTES)
        numbers = producer.numbers
        while numbers.batch_total + numbers.batch_split_total < count:
            value = next(values)
            sent.update(value)
            _ = await producer.send(topic, Record(None, value, (), 0), partition=0)
        await producer.close()
        wire_bytes = numbers.wire_bytes_total
    found = hashlib.sha256()
    async for record in bench.topics.read(topic):
        found.update(record.value)
    if found.digest() != sent.digest():
        raise BenchmarkError("batches: the topic does not have what was sent, in its order")
    return numbers.batch_split_total, numbers.batch_total + numbers.batch_split_total, wire_bytes / numbers.batch_total
