"""The Spark program of the docs, as a user runs it: by itself, and through a real server of Spark Connect."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pyspark
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.local import jars, spark_start
from tests.integration.topics import send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "docs" / "examples" / "spark_program.py"
LARGE = b"x" * 5_000
QUICK = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "1",
    # To make Java code of a plan that runs once takes longer than to run it without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "tests.spark_daemon",
}

pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    """What the page tells to set, and what makes a short run shorter."""
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))},
        **spark_start.environ(short_run=True),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(REPOSITORY),
    }


def run(place: tuple[str, str, str, Path], **more: str) -> list[str]:
    """What the program prints."""
    broker, topic, copy, root = place
    done = subprocess.run(
        [sys.executable, str(PROGRAM), broker, topic, copy, str(root)],
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout.splitlines()[-2:]


@pytest.fixture
def place(broker: str, make_topic: Callable[..., str], tmp_path: Path) -> tuple[str, str, str, Path]:
    """A topic with a reference and a plain value, an empty one, and the store."""
    topic, copy = make_topic(), make_topic()
    payload = tmp_path / topic / hashlib.sha256(LARGE).hexdigest()
    payload.parent.mkdir()
    payload.write_bytes(LARGE)
    large = WIDELOAD.write_reference(Record(b"large", b"?"), Reference(f"file://{payload}", len(LARGE)))
    rows = [(0, record.key, record.value, list(record.headers), 1) for record in (large, Record(b"small", b"plain"))]
    send(broker, topic, rows)
    return broker, topic, copy, tmp_path


async def written(broker: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """The records of a topic by their keys, as they are in the log."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest")
    await consumer.start()
    try:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        await consumer.seek_to_beginning(at)
        found: list[tuple[bytes | None, bytes | None]] = []
        while await consumer.position(at) < end:
            records = await consumer.getmany(at, timeout_ms=1_000)
            found += [(each.key, each.value) for some in records.values() for each in some]
        return sorted(found, key=lambda each: each[0] or b"")
    finally:
        await consumer.stop()


def check(place: tuple[str, str, str, Path], printed: list[str]) -> None:
    broker, _, copy, root = place
    told = f"2 values, {len(LARGE) + len(b'plain')} bytes"
    assert printed == [f"inflate: {told}", f"wideload: {told}"]
    path = f"file://{root}/{copy}/{hashlib.sha256(LARGE).hexdigest()}"
    assert asyncio.run(written(broker, copy)) == [(b"large", path.encode()), (b"small", b"plain")]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Spark's own server, with the connector; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {
        **QUICK,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    log = folder / "connect.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--jars", ",".join(map(str, jars.ensure("spark")))),
                *(part for key, text in conf.items() for part in ("--conf", f"{key}={text}")),
                "spark-internal",
            ],
            env=environment(),
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline, pause = time.monotonic() + 120, Event()
        while True:
            assert server.poll() is None, log.read_text()[-5_000:]
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                pause.wait(0.1)
            else:
                break
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_page_has_the_program() -> None:
    """What the page prints is the program that the tests run."""
    page = (REPOSITORY / "docs" / "spark-program.md").read_text(encoding="utf-8")
    assert f"```python\n{PROGRAM.read_text(encoding='utf-8')}```\n" in page


def test_program_runs_as_printed(place: tuple[str, str, str, Path]) -> None:
    """The example runs with the jars that `wideload job jars` prints, on a session of its own."""
    listed = subprocess.run(
        [sys.executable, "-m", "app.cli", "job", "jars"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert all(Path(name).is_file() for name in listed.split(","))
    conf = " ".join(f"--conf {key}={text}" for key, text in QUICK.items())
    submit = f"--master local[2] --jars {listed} {conf} pyspark-shell"
    check(place, run(place, PYSPARK_SUBMIT_ARGS=submit))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_status", "pandas")),
    reason="needs the packages of pyspark[connect]",
)
def test_program_through_spark_connect(place: tuple[str, str, str, Path], tmp_path: Path) -> None:
    """The same program runs through a server of Spark Connect, where there is no Java on the side of the user."""
    with connect_server(tmp_path) as address:
        check(place, run(place, SPARK_REMOTE=address, JAVA_HOME="/nonexistent"))
