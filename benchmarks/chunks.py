"""Large values as chunks and back: the worker compared with a plain copy, and its memory at the limit."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.config.keys import PRODUCER_KEYS
from benchmarks.bench import Bench, median
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.reassembly import Reassembly
from transforms.record import Record

if TYPE_CHECKING:
    from benchmarks.digests import Digests

RECORDS = 64
WAVES = 8
BUDGET_MIB = 64
PENDING_MIB = 64  # `max.pending.chunked.bytes`, in addition to the budget, which it may not exceed
_ALLOWANCE_MIB = 250  # as in `benchmarks.memory`, plus the overhead of messages in pieces
_VALUE_MIB = 8
_VALUE_BYTES = _VALUE_MIB * 2**20
_TOPIC_LIMIT_BYTES = _VALUE_BYTES + 2**20
_CHUNK_LIMIT_BYTES = 2**20
_CHUNKS = 9  # of a value: the last one has the bytes that headers displaced from the others
_WAVE = 8  # messages that start before the first of them ends
_SLACK_BYTES = 4096  # of each pending chunk: its headers and the assembler's bookkeeping
_REACHED = 0.99  # of the limit must be pending, or its memory was not measured
_BARE_LOOP = Path(__file__).with_name("contenders") / "bare_loop.py"


@dataclass(slots=True)
class _Source:
    """The values, and the expected result."""

    topic: str
    count: int
    checksums: dict[bytes, str] = field(default_factory=dict)
    digests: Digests = field(default_factory=dict)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Random bytes, so that nothing can compress them; equal in each run."""
        for number in range(self.count):
            key, value = f"key-{number:07d}".encode(), random.Random(number).randbytes(_VALUE_BYTES)  # noqa: S311
            self.checksums[key] = hashlib.sha256(value).hexdigest()
            yield key, value


async def chunks(bench: Bench) -> list[Result]:
    """Splits values of 8 MiB for a topic that accepts 1 MiB, and assembles them, compared with two plain copies.

    One copy is of the values, to a topic that accepts them, one of the chunks. The worker reads one and writes the
    other, so it is compared with the better copy of each round.

    Raises:
        BenchmarkError: a value is not what went in, an order was lost, or less was pending than the limit allows.
    """
    source = _Source(await bench.topics.make("large", max_message_bytes=_TOPIC_LIMIT_BYTES), bench.records or RECORDS)
    source.digests = await bench.topics.load(source.topic, source.records())
    runs: dict[str, list[Run]] = {"chunk": [], "assemble": [], "copy of values": [], "copy of chunks": []}
    chunked = ""
    for number in range(bench.repeat):
        bench.console.print(f"chunks, round {number + 1} of {bench.repeat}: {source.count} records of 8 MiB")
        # The later ones find a busy disk, so they take turns, with the chunks of the previous round.
        for name in runs if number % 2 == 0 else reversed(runs):
            if name == "chunk":
                stale, chunked = chunked, await _chunk(bench, source, runs[name])
                await bench.topics.delete(*filter(None, [stale]))
            else:
                await _whole_or_copy(bench, name, source, chunked, runs[name])
    await bench.topics.delete(chunked)
    await bench.topics.delete(source.topic)
    compared = [compare(name, runs) for name in ("chunk", "assemble") for compare in (_speed, _cpu)]
    return [*compared, await _memory(bench)]


def _speed(name: str, runs: dict[str, list[Run]]) -> Result:
    ours = [_mib(name, run) for run in runs[name]]
    theirs = [
        max(_mib("copy of values", values), _mib("copy of chunks", copied))
        for values, copied in zip(runs["copy of values"], runs["copy of chunks"], strict=True)
    ]
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    return Result(f"chunks.{name}.vs_copy", median(ours), "MiB/s", median(theirs), ratio)


def _cpu(name: str, runs: dict[str, list[Run]]) -> Result:
    """Of the client alone, so it varies less than the speed if the machine has other work."""
    ours = [_cpu_ms(name, run) for run in runs[name]]
    theirs = [
        min(_cpu_ms("copy of values", values), _cpu_ms("copy of chunks", copied))
        for values, copied in zip(runs["copy of values"], runs["copy of chunks"], strict=True)
    ]
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    return Result(f"chunks.{name}.cpu_ms_per_value", median(ours), "ms", median(theirs), ratio)


def _record_mib(name: str) -> float:
    """The size of the records that this race counts; the chunks of a value have different lengths, but all arrive."""
    return _VALUE_MIB / _CHUNKS if name in {"chunk", "copy of chunks"} else _VALUE_MIB


def _mib(name: str, run: Run) -> float:
    return run.per_second * _record_mib(name)


def _cpu_ms(name: str, run: Run) -> float:
    return run.cpu_us / 1000 * _VALUE_MIB / _record_mib(name)


async def _chunk(bench: Bench, source: _Source, runs: list[Run]) -> str:
    chunked = await bench.topics.make("chunked", max_message_bytes=_CHUNK_LIMIT_BYTES)
    command = _worker(bench, "chunk", source.topic, chunked)
    run = await race(bench.topics, chunked, source.count * _CHUNKS, command, log=bench.log(f"chunk-{chunked}"))
    await _check(bench, source, chunked)
    bench.say("worker, chunk", run, record_mib=_record_mib("chunk"))
    runs.append(run)
    return chunked


async def _whole_or_copy(bench: Bench, name: str, source: _Source, chunked: str, runs: list[Run]) -> None:
    """One race to a separate topic, which must then have the contents of the topic that was read."""
    of_chunks = name == "copy of chunks"
    limit_bytes = _CHUNK_LIMIT_BYTES if of_chunks else _TOPIC_LIMIT_BYTES
    sink = await bench.topics.make("copied", max_message_bytes=limit_bytes)
    count = source.count * _CHUNKS if of_chunks else source.count
    if name == "assemble":
        command = _worker(bench, "assemble", chunked, sink)
    else:
        command = _copy(bench, chunked if of_chunks else source.topic, sink, count)
    run = await race(bench.topics, sink, count, command, log=bench.log(f"chunks-{sink}"))
    if await bench.topics.digests(sink) != (await bench.topics.digests(chunked) if of_chunks else source.digests):
        raise BenchmarkError(f"chunks, {name}: the records are not what went in, in their order")
    await bench.topics.delete(sink)
    bench.say(f"worker, {name}" if name == "assemble" else f"bare {name}", run, record_mib=_record_mib(name))
    runs.append(run)


def _worker(bench: Bench, transform: str, source: str, sink: str, **keys: int) -> list[str]:
    pipeline = {
        "topics": [source],
        "output.topic": sink,
        "transforms": [transform],
        "group.id": f"{sink}-worker",
    }
    return list(bench.worker(f"{transform}-{sink}", {transform: pipeline}, **keys))


def _copy(bench: Bench, source: str, sink: str, count: int) -> list[str]:
    (batch_bytes,) = (key.default for key in PRODUCER_KEYS if key.name == "producer.batch.size")
    return [sys.executable, str(_BARE_LOOP), bench.topics.bootstrap, source, sink, str(count), str(batch_bytes)]


async def _check(bench: Bench, source: _Source, chunked: str) -> None:
    """Joins the pieces of each key, without our assembler; keys must come in the order of the source."""
    pieces: dict[tuple[int, bytes], list[bytes]] = {}
    async for record in bench.topics.read(chunked):
        pieces.setdefault((record.partition, record.key), []).append(record.value)
    found = {key: hashlib.sha256(b"".join(values)).hexdigest() for (_, key), values in pieces.items()}
    if found != source.checksums or len(found) != len(pieces):
        raise BenchmarkError(f"{chunked}: the chunks are not the values that went in")
    for partition in {partition for partition, _ in pieces}:
        keys = [key for place, key in pieces if place == partition]
        if keys != sorted(keys):
            raise BenchmarkError(f"{chunked}: an order was lost")


# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Logged(Record):
    """A record at its place, in the form that an assembler accepts."""

    offset: int = 0


async def _memory(bench: Bench) -> Result:
    """Messages that are all pending before the first of them ends, wave after wave, in one partition."""
    waves = WAVES if bench.records is None else 1
    bench.console.print(f"chunks, memory: {waves} waves of {_WAVE} messages, pending up to {PENDING_MIB} MiB")
    limits = Limits(pending_bytes=PENDING_MIB * 2**20, message_bytes=2 * _VALUE_BYTES)
    chunked = await bench.topics.make("interleaved", max_message_bytes=_CHUNK_LIMIT_BYTES)
    whole = await bench.topics.make("whole", max_message_bytes=_TOPIC_LIMIT_BYTES)
    expected: dict[bytes, str] = {}
    model = Reassembly(limits)
    peak_pending = 0

    def interleaved() -> Iterator[Record]:
        nonlocal peak_pending
        for offset, record in enumerate(_waves(waves, expected)):
            model.receive(0, _Logged(record.key, record.value, record.headers, record.timestamp, offset))
            peak_pending = max(peak_pending, model.pending_bytes)
            yield record

    await bench.topics.write(chunked, interleaved(), partition=0)
    if peak_pending < _REACHED * limits.pending_bytes or model.counts.discarded:
        raise BenchmarkError(f"chunks, memory: {peak_pending:,} bytes pending of {limits.pending_bytes:,}")
    pipeline = {
        "topics": [chunked],
        "output.topic": whole,
        "transforms": ["assemble"],
        "group.id": f"{whole}-worker",
        "max.pending.chunked.bytes": limits.pending_bytes,
    }
    command = bench.worker(f"memory-{whole}", {"assemble": pipeline}, in_flight_bytes=BUDGET_MIB * 2**20)
    run = await race(bench.topics, whole, waves * _WAVE, command, log=bench.log(f"memory-{whole}"))
    found = [(record.key, hashlib.sha256(record.value).hexdigest()) async for record in bench.topics.read(whole)]
    if found != list(expected.items()):
        raise BenchmarkError("chunks, memory: the messages are not what went in, in their order")
    await bench.topics.delete(chunked, whole)
    bench.say("worker, assemble, at the limit", run, record_mib=_VALUE_MIB)
    limit = float(BUDGET_MIB + PENDING_MIB + _ALLOWANCE_MIB)
    peak = run.peak_rss_bytes / 2**20
    return Result("chunks.memory.peak_mib", peak, "MiB", limit, peak / limit)


def _waves(count: int, checksums: dict[bytes, str]) -> Iterator[Record]:
    for wave in range(count):
        numbers = range(wave * _WAVE, (wave + 1) * _WAVE)
        yield from _round_robin([_message(number, checksums) for number in numbers])


def _message(number: int, checksums: dict[bytes, str]) -> Iterator[Record]:
    value = random.Random(number).randbytes(_VALUE_BYTES - (_CHUNKS - 1) * _SLACK_BYTES)  # noqa: S311
    key = f"key-{number:07d}".encode()
    checksums[key] = hashlib.sha256(value).hexdigest()
    chunking = Chunking(_CHUNK_LIMIT_BYTES - _SLACK_BYTES)
    return chunking.split(Record(key, value, (), 0), f"message-{number}", checksums[key])


def _round_robin(messages: Iterable[Iterator[Record]]) -> Iterator[Record]:
    for records in zip(*messages, strict=True):
        yield from records
