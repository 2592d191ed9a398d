"""Large values to a store and back: the worker on S3, compared with its peers, and on the filesystem."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from botocore.config import Config

from benchmarks import bakdata, peer
from benchmarks.bench import Bench, median, turned
from benchmarks.digests import Digests
from benchmarks.java import compiled
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from tests.s3_server import S3Server, S3UnavailableError, s3_server

RECORDS = 200
_VALUE_BYTES = 4 * 2**20
_VALUE_MIB = _VALUE_BYTES / 2**20
_TOPIC_LIMIT_BYTES = _VALUE_BYTES + 2**20
_CONTENDERS = Path(__file__).with_name("contenders")
_BACKED = b"\x01"  # bakdata's mark of a reference, before the path
_MARKING = ("bakdata", "Faust and bakdata")
_THREADS: Mapping[str, int] = {"bakdata": 4, "boto3": 8}  # bakdata: one for each partition
_HEAP = "2g"  # with 1g a thread of bakdata's loop once ran out of memory

Fetch = Callable[[str], bytes]
Command = Callable[[str, str, str, S3Server], Sequence[str]]
"""The command of a contender, for "offload" or "inflate", a source, an output topic, and the server."""


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


async def offload(bench: Bench) -> list[Result]:
    """Offloads values of 4 MiB to S3 and inflates them again, with each contender; and to the filesystem, with fsync.

    Raises:
        BenchmarkError: a payload or an inflated value is not what went in, or an order was lost.
    """
    source = _Source(await bench.topics.make("large", max_message_bytes=_TOPIC_LIMIT_BYTES), bench.records or RECORDS)
    source.digests = await bench.topics.load(source.topic, source.records())
    commands = {"worker": _worker(bench, source.count), "boto3": _boto3(bench, source.count)}
    for name, make in (("bakdata", _bakdata), ("Faust and bakdata", _faust)):
        try:
            commands[name] = await asyncio.to_thread(make, bench, source.count)
        except (bakdata.BakdataUnavailableError, peer.PeerUnavailableError) as exc:
            bench.console.print(f"offload: without {name}: {exc}", markup=False)
    there: dict[str, list[Run]] = {name: [] for name in commands}
    back: dict[str, list[Run]] = {name: [] for name in commands}
    files: list[Run] = []
    for number in range(bench.repeat):
        bench.console.print(f"offload, round {number + 1} of {bench.repeat}: {source.count} records of 4 MiB")
        with TemporaryDirectory(dir=bench.folder) as folder:
            try:
                with s3_server("versitygw", Path(folder)) as server:
                    # The later ones find a warm server and a busy disk, so they take turns.
                    for name in turned(list(commands), number):
                        await _there_and_back(bench, source, server, name, commands[name], there[name], back[name])
            except S3UnavailableError as exc:
                bench.console.print(f"offload: without S3: {exc}", markup=False)
            await _filesystem(bench, source, Path(folder), files)
    await bench.topics.delete(source.topic)
    return [
        *_beside_best("offload.s3", there),
        *_beside_best("inflate.s3", back),
        *_beside_faust(there),
        _speed("offload.filesystem", files),
    ]


def _beside_best(name: str, runs: Mapping[str, list[Run]]) -> list[Result]:
    """Compared with the better of the two loops in each round."""
    ours, peers = runs["worker"], [seen for peer in ("bakdata", "boto3") if (seen := runs.get(peer))]
    if not ours:
        return []
    fastest = [max(each.per_second for each in seen) * _VALUE_MIB for seen in zip(*peers, strict=True)]
    leanest = [min(each.cpu_us for each in seen) / 1000 for seen in zip(*peers, strict=True)]
    return [
        _compared(f"{name}.vs_best_peer", "MiB/s", [run.per_second * _VALUE_MIB for run in ours], fastest),
        _compared(f"{name}.cpu_ms", "ms/value", [run.cpu_us / 1000 for run in ours], leanest),
    ]


def _beside_faust(runs: Mapping[str, list[Run]]) -> list[Result]:
    ours, theirs = ([run.per_second * _VALUE_MIB for run in runs.get(name, ())] for name in ("worker", _MARKING[1]))
    return [_compared("offload.s3.vs_peer", "MiB/s", ours, theirs)] if ours and theirs else []


def _compared(name: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Result:
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    return Result(name, median(ours), unit, median(theirs), ratio)


def _speed(name: str, runs: list[Run]) -> Result:
    return Result(name, median(run.per_second for run in runs) * _VALUE_MIB, "MiB/s")


async def _there_and_back(
    bench: Bench, source: _Source, server: S3Server, name: str, command: Command, there: list[Run], back: list[Run]
) -> None:
    references = await bench.topics.make("references")
    run = await _raced(bench, command("offload", source.topic, references, server), references, source.count, server)
    await _check(bench, source, references, _s3_fetch(server), marked=name in _MARKING)
    bench.say(f"{name}, S3", run, record_mib=_VALUE_MIB)
    there.append(run)
    if name != "Faust and bakdata":
        inflated = await bench.topics.make("inflated", max_message_bytes=_TOPIC_LIMIT_BYTES)
        run = await _raced(bench, command("inflate", references, inflated, server), inflated, source.count, server)
        if await bench.topics.digests(inflated) != source.digests:
            raise BenchmarkError(f"{name}, inflate: the values are not what went in, in their order")
        bench.say(f"{name}, S3, inflate", run, record_mib=_VALUE_MIB)
        back.append(run)
        await bench.topics.delete(inflated)
    await bench.topics.delete(references)


async def _raced(bench: Bench, command: Sequence[str], sink: str, count: int, server: S3Server) -> Run:
    # For all but the worker; command lines are public.
    environ = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
    }
    return await race(bench.topics, sink, count, command, log=bench.log(f"offload-{sink}"), environ=environ)


def _worker(bench: Bench, _: int) -> Command:
    return lambda mode, source, sink, server: _pipeline(
        bench, mode, source, sink, {"large.message.payload.store.class": "s3", **server.config("worker")}
    )


def _boto3(bench: Bench, count: int) -> Command:
    script, threads = str(_CONTENDERS / "boto3_loop.py"), str(_THREADS["boto3"])
    return lambda mode, source, sink, server: [
        *(sys.executable, script, mode, bench.topics.bootstrap, source, sink, str(count)),
        *(server.endpoint, server.bucket, threads),
    ]


def _bakdata(bench: Bench, count: int) -> Command:
    folder = bench.folder / "classes"
    java = compiled(_CONTENDERS / "BakdataLoop.java", bakdata.ensure(), folder, heap=_HEAP)
    return lambda mode, source, sink, server: [
        *(*java, mode, bench.topics.bootstrap, source, sink, str(count)),
        *(server.endpoint, f"s3://{server.bucket}/bakdata/", str(_THREADS["bakdata"])),
    ]


def _faust(bench: Bench, _: int) -> Command:
    interpreter, script = str(peer.python()), str(_CONTENDERS / "peer_agent.py")
    return lambda _, source, sink, server: [
        *(interpreter, script, bench.topics.bootstrap, source, sink),
        *(server.endpoint, f"s3://{server.bucket}/peer"),
    ]


async def _filesystem(bench: Bench, source: _Source, folder: Path, runs: list[Run]) -> None:
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(folder / "payloads")}
    references = await bench.topics.make("references")
    command = _pipeline(bench, "offload", source.topic, references, store)
    run = await race(bench.topics, references, source.count, command, log=bench.log(f"offload-{references}"))
    await _check(bench, source, references, _file_fetch, marked=False)
    bench.say("worker, filesystem", run, record_mib=_VALUE_MIB)
    runs.append(run)
    await bench.topics.delete(references)


def _pipeline(bench: Bench, transform: str, source: str, sink: str, store: Mapping[str, object]) -> Sequence[str]:
    pipeline = {
        "topics": [source],
        "output.topic": sink,
        "transforms": [transform],
        "group.id": f"{sink}-worker",
        **store,
    }
    return bench.worker(f"{transform}-{sink}", {transform: pipeline})


async def _check(bench: Bench, source: _Source, references: str, fetch: Fetch, *, marked: bool) -> None:
    """Reads every payload by its reference; within a partition, keys must come in the order of the source."""
    found: dict[int, list[bytes]] = {}
    async for record in bench.topics.read(references):
        found.setdefault(record.partition, []).append(record.key)
        if marked and record.value[:1] != _BACKED:
            raise BenchmarkError(f"{record.key!r} was not offloaded")
        path = record.value[len(_BACKED) :] if marked else record.value
        stored = await asyncio.to_thread(fetch, path.decode())
        if hashlib.sha256(stored).hexdigest() != source.checksums[record.key]:
            raise BenchmarkError(f"the payload of {record.key!r} is not the value that went in")
    for keys in found.values():
        if keys != sorted(keys):
            raise BenchmarkError(f"{references}: an order was lost")
    if sorted(key for keys in found.values() for key in keys) != sorted(source.checksums):
        raise BenchmarkError(f"{references}: not every record came once")


def _file_fetch(path: str) -> bytes:
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(path).path)).read_bytes()


def _s3_fetch(server: S3Server) -> Fetch:
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )

    def fetch(path: str) -> bytes:
        url = urllib.parse.urlsplit(path)
        return client.get_object(Bucket=url.netloc, Key=url.path.lstrip("/"))["Body"].read()

    return fetch
