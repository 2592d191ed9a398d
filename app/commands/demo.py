"""`wideload demo`: sends files through its own broker, worker and Spark job, and compares the result."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import click
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewTopic

from app.commands.console import Advance, Unit, progress
from app.commands.demo_store import NAMES, DemoStore
from app.commands.job import require_spark
from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.kafka.gate import create_no_topics
from app.kafka.sender import find_topic, open_sender
from app.local import jars, java, spark_home, spark_start
from app.local.broker import EmbeddedBroker, free_ports
from app.local.demo_files import Comparison, DemoFile, compare, from_folder, from_jars
from app.local.watchdog import Watched, watched
from transforms.errors import ConfigurationError, WideloadError
from transforms.record import Record
from transforms.text import bytes_text

RAW, ORDERS, INFLATED = "raw-large", "orders", "orders-inflated"
_PARTITIONS = 3
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # Kafka's own; `orders` keeps it
_ROOM_BYTES = 65_536  # for key, headers and batch overhead of the largest value
_READY_S = 60.0
_SILENCE_S = 120.0
_POLL_S = 0.2
_LOG_LINES = 20
_LISTED = 10
_DISK_COPIES = 4  # raw topic, store, inflated topic, Parquet
_DISK_EXTRA_BYTES = 300_000_000  # Spark's and Kafka's own files
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine
_ROOT = Path(__file__).resolve().parents[__name__.count(".")]  # it holds `wideload`

_CONFIG = """\
bootstrap.servers = "{servers}"
web.port = {port}
{store}
[pipeline.orders-offload]
topics = ["raw-large"]
output.topic = "orders"
transforms = ["offload"]

[pipeline.orders-inflate]
topics = ["orders"]
output.topic = "orders-inflated"
transforms = ["inflate"]
"""


class DemoError(WideloadError):
    """A step of the demo failed; the message has the last lines of its log."""


@dataclass(slots=True)
class _Report:
    messages: int = 0
    offloaded: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Demo:
    """One run of the demo. At the end of the block, all its processes end and its directory is removed.

    Args:
        files: the files to send.
        store: for their payloads.
        keep: whether to keep the directory and the payloads.
    """

    def __init__(self, files: Sequence[DemoFile], store: DemoStore, *, keep: bool = False) -> None:
        self.report = _Report(messages=len(files))
        self._files = files
        self._given = self._store = store
        self._keep = keep
        self._stack = ExitStack()
        self._largest = max(file.size for file in files)
        self._folder = Path()
        self._broker = EmbeddedBroker(
            {"socket.request.max.bytes": str(self._largest + 104_857_600)}, heap=self._heap(512)
        )
        self._worker: Watched | None = None
        self._port = 0

    @property
    def folder(self) -> Path:
        """The directory of configuration, logs, payloads and Parquet files."""
        return self._folder

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="wideload-demo-"))
        self._store = self._given.at(self._folder / "store")
        if not self._keep:
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if not self._store.temporary:
                self._stack.callback(self._store.remove, ORDERS)
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave a broker or a directory behind; closing takes a second or two.
        with _signals(signal.SIG_IGN):
            self._stack.close()

    def run(self) -> Comparison:
        """Runs all steps.

        Raises:
            DemoError: a step failed.
            WideloadError: the broker, its jars or Java failed.
        """
        with self._step("start a Kafka broker"):
            self._stack.callback(self._broker.close)
            self._broker.start()
            asyncio.run(self._create_topics())
        with self._step("start the worker"):
            self._start_worker()
        total = sum(file.size for file in self._files)
        with self._step(f"send to {RAW}", total, "bytes") as advance:
            digests = asyncio.run(self._send(advance))
        with self._step(f"offload to {ORDERS}, inflate to {INFLATED}", len(digests), "messages") as advance:
            asyncio.run(self._wait_for(len(digests), advance))
        with self._step("stop the worker"):
            self._stop_worker()
        with self._step("Spark to Parquet"):
            self._run_spark()
        with self._step("compare"):
            return compare(digests, self._folder / "parquet")

    @contextmanager
    def _step(self, title: str, total: int | None = None, unit: Unit = None) -> Iterator[Advance]:
        started = time.monotonic()
        with progress(title, total, unit=unit) as advance:
            yield advance
        seconds = time.monotonic() - started
        self.report.seconds[title] = seconds
        click.echo(f"{title}: {seconds:.1f} s")

    def _heap(self, least_mib: int) -> str:
        # Kafka and Spark hold several copies of a value in memory.
        return f"{least_mib + 10 * self._largest // (1 << 20)}m"

    @property
    def _client(self) -> ClientSettings:
        return ClientSettings(self._broker.bootstrap_servers, "wideload-demo")

    async def _create_topics(self) -> None:
        largest = str(max(self._largest + _ROOM_BYTES, _DEFAULT_MAX_MESSAGE_BYTES))
        limits = {RAW: largest, ORDERS: str(_DEFAULT_MAX_MESSAGE_BYTES), INFLATED: largest}
        async with admin(self._client) as connection:
            await connection.create_topics(
                [
                    NewTopic(name, _PARTITIONS, 1, topic_configs={"max.message.bytes": limit})
                    for name, limit in limits.items()
                ]
            )

    # --- the worker --------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        (self._port,) = free_ports(1)
        config = self._folder / "wideload.toml"
        servers = self._broker.bootstrap_servers
        text = _CONFIG.format(servers=servers, port=self._port, store=self._store.lines())
        config.write_text(text, encoding="utf-8")
        with (self._folder / "worker.log").open("ab") as log:
            self._worker = watched(
                [sys.executable, "-m", "wideload", "worker", "-c", config], output=log, environ=self._environ()
            )
        self._stack.callback(self._worker.kill)
        deadline = time.monotonic() + _READY_S
        while self._page("/health/ready") is None:
            self._check_worker()
            if time.monotonic() > deadline:
                raise self._failed(f"the worker was not ready within {_READY_S:g} s", "worker.log")
            time.sleep(_POLL_S)

    def _check_worker(self) -> None:
        """Raises `DemoError` if the worker or one of its pipelines has ended."""
        assert self._worker is not None
        status = self._worker.poll()
        if status is not None:
            raise self._failed(f"the worker ended with status {status}", "worker.log")
        for pipeline in self._page("/pipelines") or ():
            if pipeline["state"] == "FAILED":
                raise DemoError(f"pipeline {pipeline['name']} has stopped: {pipeline['last_error']}")

    def _stop_worker(self) -> None:
        assert self._worker is not None
        pipelines = {pipeline["name"]: pipeline for pipeline in self._page("/pipelines") or ()}
        self.report.offloaded = pipelines.get("orders-offload", {}).get("offloaded_records", 0)
        self._worker.signal(signal.SIGTERM)
        try:
            status = self._worker.wait(_READY_S)
        except subprocess.TimeoutExpired as exc:
            raise self._failed(f"the worker did not stop within {_READY_S:g} s", "worker.log") from exc
        if status != 0:
            raise self._failed(f"the worker ended with status {status}", "worker.log")
        self.report.sizes = {name: self._topic_bytes(name) for name in (RAW, ORDERS, INFLATED)}
        self.report.sizes["payload store"] = sum(self._store.sizes(ORDERS))

    def _topic_bytes(self, topic: str) -> int:
        data = self._broker.log_path.parent / "data"
        return sum(_file_bytes((data / f"{topic}-{number}").glob("*.log")) for number in range(_PARTITIONS))

    def _page(self, path: str) -> Any:
        """The JSON of an endpoint; None if the worker is not ready or does not respond."""
        try:
            with _DIRECT.open(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            return None

    # --- the messages ------------------------------------------------------------------------------------------------

    async def _send(self, advance: Advance) -> dict[bytes, bytes]:
        """Sends each file as a message; returns the SHA-256 of each value, by key."""
        digests: dict[bytes, bytes] = {}
        topic = await find_topic(self._client, RAW)
        async with open_sender(self._client, topic, done=advance) as sender:
            for file in self._files:
                try:
                    value = await asyncio.to_thread(file.path.read_bytes)
                except OSError as exc:
                    raise DemoError(f"{file.path} cannot be read: {exc.strerror}") from exc
                digests[file.key] = hashlib.sha256(value).digest()
                await sender.send(Record(file.key, value), str(file.path))
            await sender.drain()
        return digests

    async def _wait_for(self, count: int, advance: Advance) -> None:
        """Waits until the last topic has `count` messages; fails if the worker fails or no message arrives for long."""
        partitions = [TopicPartition(INFLATED, number) for number in range(_PARTITIONS)]
        async with create_no_topics(AIOKafkaConsumer(bootstrap_servers=self._broker.bootstrap_servers)) as consumer:
            seen, moved = 0, time.monotonic()
            while seen < count:
                ends = sum((await consumer.end_offsets(partitions)).values())
                if ends > seen:
                    advance(ends - seen)
                    seen, moved = ends, time.monotonic()
                await asyncio.to_thread(self._check_worker)
                if time.monotonic() - moved > _SILENCE_S:
                    arrived = f"{seen} of {count} messages arrived, and none in the last {_SILENCE_S:g} s"
                    raise self._failed(arrived, "worker.log")
                await asyncio.sleep(_POLL_S)

    # --- Spark -------------------------------------------------------------------------------------------------------

    def _run_spark(self) -> None:
        connector = ",".join(str(jar) for jar in jars.ensure("spark"))
        spark = [sys.executable, "-m", "wideload.jobs.ingest", "--bootstrap-servers", self._broker.bootstrap_servers]
        spark += ["--topic", INFLATED, "--once", "--jars", connector, "--driver-memory", self._heap(1024)]
        spark += ["--output", str(self._folder / "parquet"), "--checkpoint", str(self._folder / "checkpoint")]
        with (self._folder / "spark.log").open("ab") as log:
            job = watched(spark, output=log, environ={**self._environ(), **spark_start.environ()})
        self._stack.callback(job.kill)
        status = job.wait()
        if status != 0:
            raise self._failed(f"the Spark job ended with status {status}", "spark.log")

    def _environ(self) -> Mapping[str, str]:
        scratch = self._folder / "tmp"
        scratch.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}

    def _failed(self, what: str, log: str) -> DemoError:
        lines = (self._folder / log).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return DemoError("\n".join([f"{what}; the end of {log}:", *lines]))


def _file_bytes(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _check_disk(files: Sequence[DemoFile]) -> None:
    folder = tempfile.gettempdir()
    needed = _DISK_COPIES * sum(file.size for file in files) + _DISK_EXTRA_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigurationError(
            "INPUT",
            f"the demo needs about {bytes_text(needed)} in {folder}, but {bytes_text(free)} are free; free up space, "
            "set TMPDIR to another directory, or pass a smaller INPUT",
        )


@contextmanager
def _signals(handler: Any) -> Iterator[None]:
    """Sets one handler for Ctrl-C, SIGTERM and a closed terminal, for the length of a block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, before in zip(numbers, former, strict=True):
            signal.signal(number, before)


def _show(report: _Report, comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_row("messages", f"{report.messages:,}")
    table.add_row("offloaded", f"{report.offloaded:,}")
    for name, size in report.sizes.items():
        table.add_row(name if name == "payload store" else f"topic {name}", bytes_text(size))
    table.add_section()
    for title, seconds in report.seconds.items():
        table.add_row(title, f"{seconds:.1f} s")
    table.columns[1].justify = "right"
    Console().print(table)
    for what, keys in (
        ("different value", comparison.different),
        ("missing", comparison.missing),
        ("unknown key", comparison.strange),
    ):
        for key in keys[:_LISTED]:
            click.echo(f"{what}: {key!r}", err=True)
        if len(keys) > _LISTED:
            click.echo(f"{what}: {len(keys) - _LISTED} more", err=True)
    click.echo(f"{comparison.identical} of {report.messages} payloads identical")


@click.command("demo")
@click.argument("folder", metavar="[INPUT]", required=False, type=click.Path(path_type=Path))
@click.option("--store", type=click.Choice(NAMES), default="filesystem", help="The payload store.")
@click.option(
    "-s",
    "--store-key",
    "store_keys",
    multiple=True,
    metavar="KEY=VALUE",
    help="A property of the store; may be repeated.",
)
@click.option("--keep", is_flag=True, help="Keep the directory of configuration, payloads, Parquet files and logs.")
def command(folder: Path | None, store: str, store_keys: Sequence[str], *, keep: bool) -> int:
    """Send files through Kafka, a worker and Spark, and compare the result with the files.

    The demo starts a Kafka broker and a worker, and sends the files of INPUT to raw-large. The worker offloads them to
    orders and inflates them to orders-inflated, and Spark writes them to Parquet. The demo then compares SHA-256
    digests. Without INPUT it sends the jars that it has downloaded. In a store it uses a separate prefix. At the end it
    stops all processes, and removes all files and payloads. Exits with 1 if a payload differs or is missing. The demo
    requires Java 17 to 22.

    \b
    Examples:
      wideload demo
      wideload demo ~/Pictures --keep
      wideload demo --store gcs -s gcs.bucket=payloads
      wideload demo --store s3 -s s3.bucket=payloads -s s3.access.key=me -s 's3.secret.key=${env:SECRET}'
    """
    place = DemoStore.given(store, store_keys)
    require_spark("demo")
    if folder is not None:
        files = from_folder(folder)
    try:
        java.find(spark=spark_home.release())
    except java.JavaMissingError as exc:
        raise ConfigurationError("demo", str(exc)) from exc
    fetched = [jar for name in ("kafka", "spark") for jar in jars.ensure(name, lambda line: click.echo(line, err=True))]
    if folder is None:
        files = from_jars(fetched)
    _check_disk(files)
    size = bytes_text(sum(file.size for file in files))
    click.echo(f"{len(files)} files, {size}, the largest {bytes_text(max(file.size for file in files))}")
    with _signals(signal.default_int_handler), Demo(files, place, keep=keep) as demo, ExitStack() as last:
        if keep:
            last.callback(click.echo, f"kept in {demo.folder}")
        comparison = demo.run()
        _show(demo.report, comparison)
    return 0 if comparison.whole else 1
