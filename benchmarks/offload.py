"""Large values to a store and back: the worker on S3, beside its peer, and on the filesystem."""

from __future__ import annotations

import asyncio
import hashlib
import random
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from botocore.config import Config

from benchmarks import peer
from benchmarks.bench import Bench, median
from benchmarks.race import BenchmarkError, Run, race
from benchmarks.result import Result
from benchmarks.topics import Digests
from tests.s3_server import S3Server, S3UnavailableError, s3_server

__all__ = ["RECORDS", "offload"]

RECORDS = 200
_VALUE_BYTES = 4 * 2**20
_VALUE_MIB = _VALUE_BYTES / 2**20
_TOPIC_LIMIT_BYTES = _VALUE_BYTES + 2**20
_PEER_AGENT = Path(__file__).with_name("contenders") / "peer_agent.py"
_BACKED = b"\x01"  # the peer's mark of a reference

Fetch = Callable[[str], bytes]


@dataclass(slots=True)
class _Source:
    """The values, and what must come of them."""

    topic: str
    count: int
    checksums: dict[bytes, str] = field(default_factory=dict)
    digests: Digests = field(default_factory=dict)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Random bytes, so that nothing on the way can compress them; the same ones each time."""
        for number in range(self.count):
            key, value = f"key-{number:07d}".encode(), random.Random(number).randbytes(_VALUE_BYTES)  # noqa: S311
            self.checksums[key] = hashlib.sha256(value).hexdigest()
            yield key, value


async def offload(bench: Bench) -> list[Result]:
    """Offloads values of 4 MiB: to S3 with the worker, and back, and with the peer; to the filesystem, with fsync.

    Raises:
        BenchmarkError: a payload or an inflated value is not what went in, or an order was lost.
    """
    source = _Source(await bench.topics.make("large", max_message_bytes=_TOPIC_LIMIT_BYTES), bench.records or RECORDS)
    source.digests = await bench.topics.load(source.topic, source.records())
    try:
        interpreter: Path | None = await asyncio.to_thread(peer.python)
    except peer.PeerUnavailableError as exc:
        bench.console.print(f"offload: without the peer: {exc}", markup=False)
        interpreter = None
    runs: dict[str, list[Run]] = {"worker": [], "peer": [], "inflate": [], "filesystem": []}
    for number in range(bench.repeat):
        bench.console.print(f"offload, round {number + 1} of {bench.repeat}: {source.count} records of 4 MiB")
        with TemporaryDirectory(dir=bench.folder) as folder, ExitStack() as stack:
            try:
                server = stack.enter_context(s3_server("versitygw", Path(folder)))
            except S3UnavailableError as exc:
                bench.console.print(f"offload: without S3: {exc}", markup=False)
            else:
                # Whoever comes second finds a server that is warm and a disk that is busy; so they take turns.
                turns = ("worker", "peer") if number % 2 == 0 else ("peer", "worker")
                for name in turns if interpreter is not None else ("worker",):
                    await (_worker_s3 if name == "worker" else _peer)(bench, source, server, interpreter, runs)
            await _filesystem(bench, source, Path(folder), runs["filesystem"])
    await bench.topics.delete(source.topic)
    return [*_s3_results(runs), _speed("offload.filesystem", runs["filesystem"])]


def _s3_results(runs: Mapping[str, list[Run]]) -> list[Result]:
    ours, theirs = runs["worker"], runs["peer"]
    if not ours:
        return []
    compared = _speed("offload.s3.vs_peer", ours)
    if theirs:
        compared = Result(
            compared.name,
            compared.value,
            compared.unit,
            _speed("peer", theirs).value,
            median(a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)),
        )
    return [compared, _speed("inflate.s3", runs["inflate"])]


def _speed(name: str, runs: list[Run]) -> Result:
    return Result(name, median(run.per_second for run in runs) * _VALUE_MIB, "MiB/s")


async def _worker_s3(
    bench: Bench, source: _Source, server: S3Server, _: Path | None, runs: Mapping[str, list[Run]]
) -> None:
    store = {"large.message.payload.store.class": "s3", **server.config("worker")}
    references = await bench.topics.make("references")
    run = await _pipeline(bench, "offload", source.topic, references, source.count, store)
    await _check(bench, source, references, _s3_fetch(server), marked=False)
    bench.say("worker, S3", run, record_mib=_VALUE_MIB)
    runs["worker"].append(run)

    inflated = await bench.topics.make("inflated", max_message_bytes=_TOPIC_LIMIT_BYTES)
    run = await _pipeline(bench, "inflate", references, inflated, source.count, store)
    if await bench.topics.digests(inflated) != source.digests:
        raise BenchmarkError("inflate: the values are not what went in, in their order")
    bench.say("worker, S3, inflate", run, record_mib=_VALUE_MIB)
    runs["inflate"].append(run)
    await bench.topics.delete(references, inflated)


async def _peer(
    bench: Bench, source: _Source, server: S3Server, interpreter: Path | None, runs: Mapping[str, list[Run]]
) -> None:
    references = await bench.topics.make("references")
    base_path = f"s3://{server.bucket}/peer"
    run = await race(
        bench.topics,
        references,
        source.count,
        [
            str(interpreter),
            str(_PEER_AGENT),
            bench.topics.bootstrap,
            source.topic,
            references,
            server.endpoint,
            base_path,
        ],
        log=bench.log(f"offload-{references}"),
        environ={
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": server.region,
        },
    )
    await _check(bench, source, references, _s3_fetch(server), marked=True)
    bench.say("peer, S3", run, record_mib=_VALUE_MIB)
    runs["peer"].append(run)
    await bench.topics.delete(references)


async def _filesystem(bench: Bench, source: _Source, folder: Path, runs: list[Run]) -> None:
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(folder / "payloads")}
    references = await bench.topics.make("references")
    run = await _pipeline(bench, "offload", source.topic, references, source.count, store)
    await _check(bench, source, references, _file_fetch, marked=False)
    bench.say("worker, filesystem", run, record_mib=_VALUE_MIB)
    runs.append(run)
    await bench.topics.delete(references)


async def _pipeline(
    bench: Bench, transform: str, source: str, sink: str, count: int, store: Mapping[str, object]
) -> Run:
    pipeline = {
        "topics": [source],
        "output.topic": sink,
        "transforms": [transform],
        "group.id": f"{sink}-worker",
        **store,
    }
    name = f"{transform}-{sink}"
    return await race(bench.topics, sink, count, bench.worker(name, {transform: pipeline}), log=bench.log(name))


async def _check(bench: Bench, source: _Source, references: str, fetch: Fetch, *, marked: bool) -> None:
    """Reads every payload by its reference; within a partition, keys must come in the order of the source."""
    found: dict[int, list[bytes]] = {}
    async for record in bench.topics.read(references):
        found.setdefault(record.partition, []).append(record.key)
        if marked and record.value[:1] != _BACKED:
            raise BenchmarkError(f"the peer did not offload {record.key!r}")
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
