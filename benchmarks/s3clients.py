"""Clients of S3 side by side: boto3, as the store `s3` uses it, and obstore, as the stores `gcs` and `azure` use it.

Both move the same bytes to and from one server, in turns, in this process. SHA-256 is computed of each payload that is
put, as its name, and of each that was read, as the worker does. Over `http://` both sign the payload, over `https://`
neither does, as is the default of `s3.payload.signing`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from obstore.store import S3Store as Bucket

from benchmarks.bench import Bench, median, turned
from benchmarks.machine import load_average
from benchmarks.race import BenchmarkError
from benchmarks.result import Result
from stores.cloud_client import CloudClient, Times, client_options
from stores.cloud_errors import Cloud
from stores.http_time import within
from stores.s3 import S3Store
from tests.s3_server import Certificate, S3Server, S3UnavailableError, s3_server

_KIB, _MIB = 2**10, 2**20
_SIZES: Mapping[str, int] = {"64k": 64 * _KIB, "1m": _MIB, "4m": 4 * _MIB, "64m": 64 * _MIB}
_PAYLOADS: Mapping[str, int] = {"64k": 256, "1m": 64, "4m": 32, "64m": 8}
_THREADS = (1, 8)
_RANGES = 4
_TOPIC = "orders"
_RECEIVE_BYTES = 2**18  # as the store does
_LONGEST_S = 60.0

PARTS: Sequence[str] = [
    f"{scheme}.{what}"
    for scheme in ("http", "https")
    for what in (
        *(f"{verb}.{size}.{threads}t" for verb in ("put", "get") for size in _SIZES for threads in _THREADS),
        "ranges",
    )
]
"""Scheme, verb, size and threads; `ranges`: 64 MiB read in four parallel parts, compared with one GET."""


class _Client(Protocol):
    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str, size: int) -> bytes: ...

    def part(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`."""


class _Boto3:
    """The store as users have it."""

    def __init__(self, server: S3Server) -> None:
        self.store = S3Store()
        self.store.configure(server.config("boto3"))

    def put(self, name: str, data: bytes) -> None:
        self.store.put(_TOPIC, name, data)

    def get(self, name: str, size: int) -> bytes:
        return self.store.get(self.store.root.path(_TOPIC, name), size)

    def part(self, name: str, start: int, end: int) -> bytes:
        client: Any = self.store._client  # noqa: SLF001  # the store reads no parts
        key = self.store.root.path(_TOPIC, name).removeprefix("s3://payloads/")
        with within(_LONGEST_S, end - start):
            answer = client.get_object(Bucket="payloads", Key=key, Range=f"bytes={start}-{end - 1}")
            with answer["Body"] as stream:
                return b"".join(iter(partial(stream.read1, _RECEIVE_BYTES), b""))


class _Obstore:
    """What a store on obstore would do: `stores.cloud_client` on a bucket of S3's."""

    def __init__(self, server: S3Server) -> None:
        plain = server.endpoint.startswith("http://")
        times = Times(call_ms=60_000, connect_ms=5_000, read_ms=9_000, attempts=3)

        def bucket(*, reading: bool) -> Bucket:
            options: Any = client_options(times, 16, plain=plain, reading=reading)
            options |= {"allow_invalid_certificates": True}  # it takes no certificate of our own
            return Bucket(
                server.bucket,
                endpoint=server.endpoint,
                region=server.region,
                access_key_id=server.access_key,
                secret_access_key=server.secret_key,
                unsigned_payload=not plain,
                client_options=options,
                retry_config={"max_retries": 0},
            )

        none: frozenset[str] = frozenset()
        cloud = Cloud(
            name="S3",
            container="bucket",
            container_key="",
            endpoint_key="",
            credentials_key="",
            permissions="",
            missing=none,
            no_container=none,
            passing=none,
            denied=none,
            blamed={},
            advice={},
        )
        self.client = CloudClient(bucket(reading=True), bucket(reading=False), times, cloud)

    def put(self, name: str, data: bytes) -> None:
        self.client.put(f"obstore/{_TOPIC}/{name}", data, name)

    def get(self, name: str, size: int) -> bytes:
        return self.client.get(f"obstore/{_TOPIC}/{name}", size, name)

    def part(self, name: str, start: int, end: int) -> bytes:
        return bytes(self.client.reader.get_range(f"obstore/{_TOPIC}/{name}", start=start, end=end))


@dataclass(frozen=True, slots=True)
class _Took:
    """Of one payload, in milliseconds."""

    cpu_ms: float
    wall_ms: float


def _timed(one: Callable[[int], None], count: int, threads: int) -> _Took:
    with ThreadPoolExecutor(threads) as executor:
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in executor.map(one, range(count)):
            pass
        wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return _Took(cpu * 1000 / count, wall * 1000 / count)


class _Payloads:
    """Random bytes of each size, equal in each run, under separate names."""

    def __init__(self, limit: int | None) -> None:
        self._data = {size: random.Random(size).randbytes(length) for size, length in _SIZES.items()}  # noqa: S311
        self._limit = limit

    def put(self, client: _Client, size: str, threads: int) -> _Took:
        data = self._data[size]

        def one(number: int) -> None:
            client.put(f"{hashlib.sha256(data).hexdigest()}-{number}", data)

        return self._all(one, size, threads)

    def get(self, client: _Client, size: str, threads: int) -> _Took:
        digest = hashlib.sha256(self._data[size]).hexdigest()

        def one(number: int) -> None:
            _check(client.get(f"{digest}-{number}", _SIZES[size]), digest)

        return self._all(one, size, threads)

    def parts(self, client: _Client, threads: int) -> _Took:
        """64 MiB, each payload in parts."""
        digest = hashlib.sha256(self._data["64m"]).hexdigest()
        length = _SIZES["64m"] // _RANGES
        with ThreadPoolExecutor(threads) as executor:

            def one(number: int) -> None:
                def part(at: int) -> bytes:
                    return client.part(f"{digest}-{number}", at * length, (at + 1) * length)

                _check(b"".join(executor.map(part, range(_RANGES))), digest)

            return self._all(one, "64m", 1)

    def _all(self, one: Callable[[int], None], size: str, threads: int) -> _Took:
        # Eight threads are to have work; one alone does not need as much.
        count = min(max(1, _PAYLOADS[size] // (1 if threads > 1 else 2)), self._limit or _PAYLOADS[size])
        return _timed(one, count, threads)


def _check(data: bytes, digest: str) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise BenchmarkError("a client of S3 gave other bytes than were put")


async def s3clients(bench: Bench) -> list[Result]:
    """Puts and gets by both clients, of three sizes and with one and eight threads; and 64 MiB read in four parts.

    Raises:
        BenchmarkError: what was read is not what was put.
    """
    return await asyncio.to_thread(_measured, bench)


def _measured(bench: Bench) -> list[Result]:
    results: list[Result] = []
    for scheme in ("http", "https"):
        parts = [part for part in PARTS if part.startswith(f"{scheme}.") and bench.wants(part)]
        if parts:
            try:
                with _clients(scheme, bench.folder) as clients:
                    results += _of_scheme(bench, parts, clients)
            except S3UnavailableError as exc:
                bench.console.print(f"s3clients: without {scheme}: {exc}", markup=False)
    return results


@contextmanager
def _clients(scheme: str, folder: Path) -> Iterator[Mapping[str, _Client]]:
    place = folder / scheme
    place.mkdir()
    bundle = os.environ.get("AWS_CA_BUNDLE")
    with ExitStack() as stack:
        certificate = None
        if scheme == "https":
            certificate = Certificate.made(place)
            os.environ["AWS_CA_BUNDLE"] = str(certificate.file)
        try:
            server = stack.enter_context(s3_server("versitygw", place, certificate=certificate))
            ours = _Boto3(server)
        finally:
            if bundle is None:
                os.environ.pop("AWS_CA_BUNDLE", None)
            else:
                os.environ["AWS_CA_BUNDLE"] = bundle
        stack.callback(ours.store.close)
        yield {"boto3": ours, "obstore": _Obstore(server)}


def _of_scheme(bench: Bench, parts: Sequence[str], clients: Mapping[str, _Client]) -> list[Result]:
    payloads = _Payloads(bench.records)
    sizes = [size for size in _SIZES if any(f".{size}." in part for part in parts)]
    if any(part.endswith(".ranges") for part in parts):
        sizes.append("64m")
    for client in clients.values():  # what is read must be there, and connections and code be warm
        for size in dict.fromkeys(sizes):
            payloads.put(client, size, max(_THREADS))
    return [result for part in parts for result in _part(bench, part, payloads, clients)]


def _part(bench: Bench, part: str, payloads: _Payloads, clients: Mapping[str, _Client]) -> Iterator[Result]:
    _, verb, *rest = part.split(".")
    calls: dict[str, Callable[[], _Took]] = {}
    if verb == "ranges":
        for name, client in clients.items():
            calls[f"{name}, {_RANGES} parts"] = partial(payloads.parts, client, _RANGES)
            calls[f"{name}, one GET"] = partial(payloads.get, client, "64m", 1)
        compared = [(f".{name}", f"{name}, {_RANGES} parts", f"{name}, one GET") for name in clients]
    else:
        size, threads = rest[0], int(rest[1].removesuffix("t"))
        act = payloads.put if verb == "put" else payloads.get
        calls = {name: partial(act, client, size, threads) for name, client in clients.items()}
        compared = [("", "boto3", "obstore")]
    took: dict[str, list[_Took]] = {name: [] for name in calls}
    for number in range(bench.repeat):
        for name in turned(list(calls), number):
            took[name].append(calls[name]())
    for name, seen in took.items():
        bench.console.print(
            f"  {f'{part}, {name}':<34} {median(each.cpu_ms for each in seen):10.2f} ms CPU  "
            f"{median(each.wall_ms for each in seen):10.2f} ms  a payload  load average {load_average():.2f}",
            highlight=False,
        )
    for end, ours, theirs in compared:
        yield _compared(f"s3clients.{part}{end}.cpu_ms", lambda each: each.cpu_ms, took[ours], took[theirs])
        yield _compared(f"s3clients.{part}{end}.wall_ms", lambda each: each.wall_ms, took[ours], took[theirs])


def _compared(name: str, figure: Callable[[_Took], float], ours: Sequence[_Took], theirs: Sequence[_Took]) -> Result:
    ratio = median(figure(a) / figure(b) for a, b in zip(ours, theirs, strict=True))
    return Result(name, median(map(figure, ours)), "ms", median(map(figure, theirs)), ratio)
