"""The Spark programs of the docs, as a user runs them: by themselves, and through a real server of Spark Connect."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from app.local import jars, spark_start
from tests.app.payloads.swept import referring, write
from tests.integration.topics import read_all
from tests.integration.worker_process import until
from tests.s3_server import free_port
from transforms.chunk import Chunking
from transforms.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "docs" / "examples" / "spark_program.py"
STREAM = REPOSITORY / "docs" / "examples" / "spark_stream.py"
LARGE = b"x" * 5_000
CHUNKED = list(Chunking(2_000).split(Record(b"chunked", LARGE), "one"))
# `inflate` alone leaves chunks as they are.
STREAMED = ["inflate: 5 values", "assemble: 3 values", "wideload: 3 values"]
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


def run(program: Path, *arguments: object, **more: str) -> list[str]:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, str(program), *map(str, arguments)],
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout.splitlines()


@pytest.fixture
def place(broker: str, make_topic: Callable[..., str], tmp_path: Path) -> tuple[str, str, str, Path]:
    """A topic with a reference and a plain value, an empty one, and the store."""
    topic, copy = make_topic(), make_topic()
    payload = tmp_path / topic / hashlib.sha256(LARGE).hexdigest()
    payload.parent.mkdir()
    payload.write_bytes(LARGE)
    write(broker, topic, referring(f"file://{payload}", b"large"), Record(b"small", b"plain"))
    return broker, topic, copy, tmp_path


def submit(listed: str) -> str:
    """What starts a session with these jars on this machine."""
    conf = " ".join(f"--conf {key}={text}" for key, text in QUICK.items())
    return f"--master local[2] --jars {listed} {conf} pyspark-shell"


def check(place: tuple[str, str, str, Path], printed: list[str]) -> None:
    broker, _, copy, root = place
    told = f"2 values, {len(LARGE) + len(b'plain')} bytes"
    assert printed[-2:] == [f"inflate: {told}", f"wideload: {told}"]
    path = f"file://{root}/{copy}/{hashlib.sha256(LARGE).hexdigest()}"
    records = sorted((record.key, record.value) for record in read_all(broker, copy)[0])
    assert records == [(b"large", path.encode()), (b"small", b"plain")]


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Spark's own server, with the connector, for all tests here."""
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
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
        until(lambda: answers(port) or server.poll() is not None, "the server answers", 120)
        assert server.poll() is None, log.read_text()[-5_000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        # Spark ends its Python processes, which have groups of their own, only where it may end itself.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def test_page_has_the_programs() -> None:
    """What the page prints are the programs that the tests run."""
    page = (REPOSITORY / "docs" / "spark-program.md").read_text(encoding="utf-8")
    for program in (PROGRAM, STREAM):
        assert f"```python\n{program.read_text(encoding='utf-8')}```\n" in page


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
    check(place, run(PROGRAM, *place, PYSPARK_SUBMIT_ARGS=submit(listed)))


def test_program_through_spark_connect(place: tuple[str, str, str, Path], connect: str) -> None:
    """The same program runs through a server of Spark Connect, where there is no Java on the side of the user."""
    check(place, run(PROGRAM, *place, SPARK_REMOTE=connect, JAVA_HOME="/nonexistent"))


@pytest.mark.skipif("WIDELOAD_CLUSTER" not in os.environ, reason="only with `make cluster-test`")
def test_streams_in_session_of_their_own(place: tuple[str, str, str, Path], tmp_path: Path) -> None:
    """Streams run as printed, on a session of their own too."""
    broker, topic, _, root = place
    classic = {"PYSPARK_SUBMIT_ARGS": submit(",".join(map(str, jars.ensure("spark"))))}
    write(broker, topic, *CHUNKED)
    assert run(STREAM, broker, topic, root, tmp_path / "out", **classic) == STREAMED


def test_streams_through_spark_connect(place: tuple[str, str, str, Path], connect: str, tmp_path: Path) -> None:
    """Streams run through it too: `inflate`, `assemble` in `foreachBatch`, and the source."""
    broker, topic, _, root = place
    write(broker, topic, *CHUNKED)
    printed = run(STREAM, broker, topic, root, tmp_path / "out", SPARK_REMOTE=connect, JAVA_HOME="/nonexistent")
    assert printed == STREAMED


ORPHANS = """
import sys
from pyspark.sql import SparkSession
from wideload.jobs.audit import audit
from wideload.jobs.sweep import orphans

broker, topic, copy, root = sys.argv[1:]
store = {"large.message.payload.store.class": "filesystem", "filesystem.root": root}
spark = SparkSession.builder.getOrCreate()
found = orphans(spark, {"kafka.bootstrap.servers": broker}, store, topic, carriers=(copy,))
print(sorted((row.path, row.size, row.state) for row in found.collect()))
found = audit(spark, {"kafka.bootstrap.servers": broker}, store, topic, copy, verify=True)
print({row.state for row in found.collect()})
"""


def test_orphans_through_spark_connect(place: tuple[str, str, str, Path], connect: str) -> None:
    """The functions for notebooks give DataFrames through a server of Spark Connect, too."""
    broker, topic, copy, root = place
    orphan = root / topic / f"{7:064x}"
    orphan.write_bytes(b"orphan")
    for each in (root / topic).iterdir():
        os.utime(each, (1, 1))
    program = root / "orphans.py"
    program.write_text(ORPHANS)
    printed = run(program, broker, topic, copy, str(root), SPARK_REMOTE=connect, JAVA_HOME="/nonexistent")
    assert printed[-2:] == [str([(f"file://{orphan}", len(b"orphan"), "orphan")]), "{'ok'}"]
