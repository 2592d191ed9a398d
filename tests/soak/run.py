"""`make soak MINUTES=30 SEED=7`: mixed traffic with faults by chance, held to its numbers and digests all the time.

Three workers run the same pipelines: two are victims, one is not. At the end everything is made whole, what is on its
way arrives, and one table says what happened. The status is 1 where a message was lost, changed or came out of order,
where one was there twice on a route that is exactly once, or where a worker took more memory, files or threads than it
may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.faults.proxy import FaultProxy
from tests.integration.cluster import Cluster
from tests.integration.topics import read_all
from tests.integration.worker_process import WorkerProcess
from tests.s3_server import S3UnavailableError, s3_server
from tests.soak.faults import Brokers, Chaos, Targets
from tests.soak.journal import Verdict
from tests.soak.traffic import PARTITIONS, Poison, Reader, Route, Writer

_BUDGET_BYTES = 64 * 1024 * 1024
_PENDING_BYTES = 64 * 1024 * 1024
# What a worker takes at rest, what clients read ahead and hold for six pipelines, and the two limits above.
_MEMORY_BYTES = 1_200 * 1024 * 1024
_WHOLE_S = 600.0
_SAMPLE_S = 2.0
_BEGIN_SAMPLES = 90
_END_SAMPLES = 30
_FOREVER = {"retention.ms": "-1"}
_BIG = {**_FOREVER, "max.message.bytes": "16777216"}


@dataclass(frozen=True, slots=True)
class Result:
    """What a soak has found.

    Attributes:
        routes: the verdict of the journal of each, by its name.
        faults: what was done, by kind.
        peak_bytes: the most memory of a worker.
        growth: of the worker that was not killed: memory, files and threads, in the first minutes and at the end.
    """

    minutes: float
    seed: int
    routes: Mapping[str, Mapping[str, int]]
    faults: Mapping[str, int]
    poison: int
    dead_letters: int
    unexpected_dead_letters: int
    peak_bytes: int
    growth: Mapping[str, tuple[int, int]]
    seconds_to_settle: float
    failures: tuple[str, ...]


def _table(result: Result) -> Table:
    shown = Table("", *result.routes, title=f"{result.minutes:g} minutes, seed {result.seed}")
    for row in fields(Verdict):
        what = "lost" if row.name == "pending" else row.name
        shown.add_row(what, *(f"{found[row.name]:,}" for found in result.routes.values()))
    shown.add_section()
    for kind, count in result.faults.items():
        shown.add_row(kind, f"{count:,}")
    shown.add_section()
    shown.add_row("poison records, dead letters", f"{result.poison:,}, {result.dead_letters:,}")
    shown.add_row("peak memory of a worker", f"{result.peak_bytes / 2**20:,.0f} MiB")
    for what, (begin, end) in result.growth.items():
        shown.add_row(f"{what}, begin and end", f"{begin:,}, {end:,}")
    shown.add_row("until all had arrived", f"{result.seconds_to_settle:g} s")
    return shown


# What may be added between the first minutes and the end.
_MORE = {"bytes of memory": 200 * 1024 * 1024, "open files": 60, "threads": 20}


@dataclass(slots=True)
class _Usage:
    """What the workers take: the most memory of one, and what the one that is never killed has, at each look."""

    peak_bytes: int = 0
    samples: dict[str, list[int]] = field(default_factory=lambda: {what: [] for what in _MORE})

    def growth(self) -> dict[str, tuple[int, int]]:
        """The most of the first minutes, as one that has just begun has little; and the median of the last one."""
        found = {}
        for what, samples in self.samples.items():
            begin = max(samples[:_BEGIN_SAMPLES], default=0)
            last = samples[_BEGIN_SAMPLES:][-_END_SAMPLES:]
            found[what] = begin, int(statistics.median(last or [begin]))
        return found


def _routes(prefix: str) -> list[Route]:
    def route(letter: str, between: str, *, once: bool = False, compression: str | None = None) -> Route:
        name = "offload, inflate" if between == "references" else "chunk, assemble"
        topics = tuple(f"{prefix}{letter}-{each}" for each in ("raw", between, "whole"))
        return Route(name + ", exactly once" * once, topics, once, compression)

    return [
        route("a", "references"),
        route("b", "chunks", compression="zstd"),
        route("c", "references", once=True, compression="lz4"),
        route("d", "chunks", once=True),
    ]


def _topics(routes: Sequence[Route], prefix: str) -> dict[str, dict[str, str]]:
    big = {topic: _BIG for route in routes for topic in (route.topics[0], route.topics[-1])}
    small = {route.topics[1]: _FOREVER for route in routes}
    return {**big, **small, f"{prefix}dead": _BIG}


def _pipelines(store: Mapping[str, object], prefix: str) -> dict[str, dict[str, object]]:
    quick = {
        "large.message.store.timeout.ms": 15_000,
        "s3.retry.attempts": 1,
        "s3.connection.timeout.ms": 3_000,
        "s3.read.timeout.ms": 10_000,
    }
    with_store = {"large.message.payload.store.class": "s3", **store, **quick}
    once = {"processing.guarantee": "exactly_once"}
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{prefix}dead"}
    assembling = {"max.pending.chunked.bytes": _PENDING_BYTES}
    smaller = {"large.message.compression.type": "zstd"}
    ways: dict[str, tuple[str, str, str, dict[str, object]]] = {
        "a-offload": ("a-raw", "a-references", "offload", {**with_store, **smaller}),
        "a-inflate": ("a-references", "a-whole", "inflate", {**with_store, **tolerant}),
        "b-chunk": ("b-raw", "b-chunks", "chunk", {}),
        "b-assemble": ("b-chunks", "b-whole", "assemble", {**assembling, "producer.compression.type": "gzip"}),
        "c-offload": ("c-raw", "c-references", "offload", {**with_store, **once}),
        "c-inflate": ("c-references", "c-whole", "inflate", {**with_store, **once, "producer.compression.type": "lz4"}),
        "d-chunk": ("d-raw", "d-chunks", "chunk", {**once, "producer.compression.type": "zstd"}),
        "d-assemble": ("d-chunks", "d-whole", "assemble", {**once, **assembling}),
    }
    return {
        f"{prefix}{name}": {
            "topics": [prefix + source],
            "output.topic": prefix + sink,
            "transforms": [transform],
            # By default one that has waited for brokers may wait a minute more, and is not ready to be ended meanwhile.
            "errors.retry.delay.max.ms": 2_000,
            **more,
        }
        for name, (source, sink, transform, more) in ways.items()
    }


def _worker(folder: Path, bootstrap: str, pipelines: Mapping[str, Mapping[str, object]]) -> WorkerProcess:
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "in.flight.bytes": _BUDGET_BYTES,
        "consumer.session.timeout.ms": 6_000,
        "consumer.heartbeat.interval.ms": 1_000,
        "consumer.max.poll.interval.ms": 30_000,
        "task.shutdown.graceful.timeout.ms": 10_000,
    }
    return WorkerProcess(folder, settings, pipelines)


async def _watch(workers: Sequence[WorkerProcess], usage: _Usage) -> None:
    steady = workers[-1]
    while True:
        for worker in workers:
            if worker.process is None:
                continue
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(worker.process.pid)
                usage.peak_bytes = max(usage.peak_bytes, process.memory_info().rss)
                if worker is steady:
                    taken = (process.memory_info().rss, process.num_fds(), process.num_threads())
                    for samples, number in zip(usage.samples.values(), taken, strict=True):
                        samples.append(number)
        await asyncio.sleep(_SAMPLE_S)


async def _supervise(workers: Sequence[WorkerProcess], chaos: Chaos) -> None:
    """Starts a worker again that has ended by itself, as whatever runs workers does: one that found no broker."""
    while True:
        for worker in workers:
            if worker in chaos.broken or worker.process is None:
                continue
            if (status := worker.process.poll()) is not None:
                chaos.counts[f"worker ended by itself with {status}, and was started again"] += 1
                worker.start()
        await asyncio.sleep(1)


async def _settled(routes: Sequence[Route]) -> float:
    """Waits until all has arrived, and returns how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < _WHOLE_S and any(route.journal.verdict().pending for route in routes):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await asyncio.sleep(5)  # for copies, which come last
    return time.monotonic() - began


async def _tell(began: float, routes: Sequence[Route], faults: Counter[str]) -> None:
    terminal = sys.stderr.isatty()
    begin, end = ("\r\x1b[K", "") if terminal else ("", "\n")
    while True:
        await asyncio.sleep(1 if terminal else 60)
        found = Counter[str]()
        for route in routes:
            found.update(asdict(route.journal.verdict()))
        print(
            f"{begin}{time.monotonic() - began:6.0f} s  {found['received']:,} of {found['sent']:,} messages, "
            f"{found['bytes'] / 1e6:,.0f} MB, {sum(faults.values())} faults, {found['duplicated']} copies, "
            f"{found['disordered']} out of order",
            end=end,
            file=sys.stderr,
            flush=True,
        )


def _ended(worker: WorkerProcess) -> int:
    """The exit status after SIGTERM; -1 where the worker was not there to be asked."""
    try:
        worker.wait_ready()  # one that has only begun is not asked to end, but ended
        return worker.terminate()
    except AssertionError as exc:
        print(str(exc)[-2_000:], file=sys.stderr)
        return -1


@contextlib.contextmanager
def _running(workers: Sequence[WorkerProcess]) -> Iterator[None]:
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield
    finally:
        for worker in workers:
            worker.kill()


async def _run(
    routes: Sequence[Route],
    poison: Poison,
    writers: Sequence[Writer],
    chaos: Chaos,
    others: Iterable[Coroutine[Any, Any, None]],
    minutes: float,
) -> float:
    """Breaks things for so long, makes all whole, and returns how many seconds it took until all had arrived."""
    tasks = [asyncio.create_task(each) for each in others]
    sending: list[Writer | Poison] = [*writers, poison]
    writing = [asyncio.create_task(each.run()) for each in sending]
    breaking = asyncio.create_task(chaos.run())
    everyone = [breaking, *writing, *tasks]
    ended, _ = await asyncio.wait(everyone, timeout=60 * minutes, return_when=asyncio.FIRST_COMPLETED)
    for each in sending:
        each.stop()
    chaos.stop()
    for task in ended:  # before its time: it has failed
        task.result()
    await breaking
    await asyncio.gather(*writing)
    seconds = await _settled(routes)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seconds


def soak(
    minutes: float,
    *,
    seed: int,
    rate: float,
    pause_s: float,
    scale: float,
    folder: Path,
    brokers: Brokers,
    victims: int = 2,
    prefix: str = "",
) -> Result:
    """Runs one.

    Args:
        minutes: how long things are broken.
        seed: of all chance; what the machine does besides is not the same again.
        rate: messages a second, of each route.
        pause_s: the mean time between two faults of one target.
        scale: of the length of faults.
        folder: for logs and payloads.
        brokers: where the topics are made. They are broken too, if they have nodes.
        victims: workers that are broken; there is one more.
        prefix: of the names of topics and pipelines.
    """
    routes = _routes(prefix)
    with s3_server("versitygw", folder / "s3") as s3, FaultProxy(s3.endpoint, seed=seed) as proxy:
        bootstrap = brokers.bootstrap_servers
        for name, config in _topics(routes, prefix).items():
            brokers.make_topic(name, PARTITIONS, **config)
        # Without a signature this server takes an upload that was cut for a whole one.
        store = {**s3.config("soak/"), "s3.endpoint": proxy.endpoint, "s3.payload.signing": True}
        folders = [folder / f"worker-{number}" for number in range(victims + 1)]
        for each in folders:
            each.mkdir()
        workers = [_worker(each, bootstrap, _pipelines(store, prefix)) for each in folders]
        targets = Targets(brokers, proxy, tuple(workers[:victims]), (f"{prefix}a-references", _FOREVER))
        chaos = Chaos(targets, pause_s=pause_s, scale=scale, seed=seed)
        usage = _Usage()
        poison = Poison(bootstrap, f"{prefix}a-references", seed=seed)
        writers = [Writer(bootstrap, route, rate=rate, seed=seed + n) for n, route in enumerate(routes)]
        others = (
            *(Reader(bootstrap, route).run() for route in routes),
            _watch(workers, usage),
            _supervise(workers, chaos),
            _tell(time.monotonic(), routes, chaos.counts),
        )
        with _running(workers):
            seconds = asyncio.run(_run(routes, poison, writers, chaos, others, minutes))
            dead = read_all(bootstrap, f"{prefix}dead")
            statuses = [_ended(worker) for worker in workers]
    letters = [letter for found in dead.values() for letter in found]
    buried = {letter.key for letter in letters}
    expected = {b"poison-%d" % number for number in range(poison.sent)}
    for letter in [each for each in letters if each.key not in expected][:5]:
        print("dead letter that nobody expected:", letter.key, dict(letter.headers), file=sys.stderr)
    verdicts = {route.name: asdict(route.journal.verdict()) for route in routes}
    result = Result(
        minutes=minutes,
        seed=seed,
        routes=verdicts,
        faults=dict(sorted(chaos.counts.items())),
        poison=poison.sent,
        dead_letters=len(buried & expected),
        unexpected_dead_letters=len(buried - expected),
        peak_bytes=usage.peak_bytes,
        growth=usage.growth(),
        seconds_to_settle=round(seconds, 1),
        failures=tuple(_failures(routes, usage, statuses, buried, expected)),
    )
    for route in routes:
        if missing := route.journal.missing():
            print(f"{route.name}: partition and number of what is missing: {missing}", file=sys.stderr)
    return result


def _failures(
    routes: Sequence[Route],
    usage: _Usage,
    statuses: Sequence[int],
    buried: set[bytes | None],
    expected: set[bytes],
) -> Iterator[str]:
    for route in routes:
        verdict = route.journal.verdict()
        found = {"lost": verdict.pending, "out of order": verdict.disordered, "changed": verdict.changed}
        found["never sent"] = verdict.unknown
        if route.exactly_once:
            found["there twice"] = verdict.duplicated
        yield from (f"{route.name}: {count:,} {what}" for what, count in found.items() if count)
    if usage.peak_bytes > _MEMORY_BYTES:
        yield f"a worker took {usage.peak_bytes / 2**20:,.0f} MiB, allowed are {_MEMORY_BYTES / 2**20:,.0f}"
    for what, (begin, end) in usage.growth().items():
        if end > begin + _MORE[what]:
            yield f"the worker that was not killed has {end:,} {what}, {begin:,} at the beginning"
    if any(statuses):
        yield f"workers ended with {list(statuses)}, not with 0"
    if buried != expected:
        yield f"{len(buried - expected)} dead letters that nobody expected, {len(expected - buried)} that are missing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one; the exit status."""
    options = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    options.add_argument("--minutes", type=float, default=30, help="how long things are broken (%(default)s)")
    options.add_argument("--seed", type=int, default=None, help="of all chance; by default another one each time")
    options.add_argument("--rate", type=float, default=60, help="messages a second, of each route (%(default)s)")
    options.add_argument("--pause", type=float, default=20, help="mean seconds between two faults of one target")
    options.add_argument("--scale", type=float, default=1, help="makes each fault longer or shorter (%(default)s)")
    options.add_argument("--folder", type=Path, help="for logs and payloads; by default one that is removed")
    options.add_argument("--output", type=Path, default=Path("build/soak.json"), help="the result (%(default)s)")
    given = options.parse_args(arguments)
    # What clients say of a broker that is away would hide the rest.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    seed = int(time.time()) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        if given.folder is not None:
            given.folder.mkdir(parents=True)
            folder: Path = given.folder
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wideload-soak-")))
        try:
            result = soak(
                given.minutes,
                seed=seed,
                rate=given.rate,
                pause_s=given.pause,
                scale=given.scale,
                folder=folder,
                brokers=stack.enter_context(Cluster(folder, {}, heap="640m")),
            )
        except S3UnavailableError as exc:
            print(f"soak: {exc}", file=sys.stderr)
            return 2
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(asdict(result), indent=2) + "\n")
    print(file=sys.stderr)
    Console(width=None if sys.stdout.isatty() else 120).print(_table(result))
    for failure in result.failures:
        print(f"FAILED: {failure}")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
