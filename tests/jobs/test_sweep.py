"""The sweep as a command: what it prints, its exit status, and what a kill in the middle leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.sweep import main
from tests.integration.topics import send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

REPOSITORY = Path(__file__).resolve().parents[2]
DAY = 86_400


def put(root: Path, topic: str, names: Sequence[str]) -> list[str]:
    """Files as the store has them, a day old; their paths."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    then = time.time() - DAY
    for name in names:
        file = root / topic / name
        file.write_bytes(b"payload")
        os.utime(file, (then, then))
    return [f"file://{root}/{topic}/{name}" for name in names]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def refer(broker: str, topic: str, paths: Sequence[str]) -> None:
    """A record for each path."""
    records = [WIDELOAD.write_reference(Record(b"k", b"?"), Reference(path)) for path in paths]
    send(broker, topic, [(0, r.key, r.value, list(r.headers), 1) for r in records])


def options(broker: str, root: Path, topic: str, *more: str) -> list[str]:
    return [
        *("--bootstrap-servers", broker, "--topic", topic, "--store", f"filesystem.root={root}"),
        *("--store", "large.message.payload.store.class=filesystem", *more),
    ]


def environment(spark: SparkSession) -> dict[str, str]:
    return {**os.environ, "WIDELOAD_SPARK_JARS": str(spark.conf.get("spark.jars"))}


def bad_options() -> list[tuple[list[str], str]]:
    store = ["--store", "large.message.payload.store.class=filesystem"]
    return [
        ([], "--store: large.message.payload.store.class=… is missing"),
        (["--store", "secret-without-equals"], "--store: is KEY=VALUE"),
        (["--store-config", "/nowhere/store.properties"], "/nowhere/store.properties cannot be read"),
        (store, "filesystem.root: is missing"),
        ([*store, "--store", "filesystem.rot=/p"], "filesystem.rot: is not a key"),
        ([*store, "--store", "filesystem.root=/p", "--store", "filesystem.fsync=2"], "filesystem.fsync: found '2'"),
    ]


@pytest.mark.parametrize(("given", "message"), bad_options())
def test_main_bad_store(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that cannot be opened is one sentence and status 2, before Spark is started; no secret is repeated."""
    assert main(["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", *given]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "secret-without-equals" not in captured.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--grace", "1w"], "'1w' is no duration; allowed are 90s, 90m, 24h, 7d"),
        (["--grace", "999999999d"], "is longer than time itself"),
        (["--max-delete-fraction", "50"], "is from 0 to 1"),
        (["--format", "avro"], "invalid choice: 'avro'"),
    ],
)
def test_main_bad_value(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What an option does not take is said with what it does."""
    with pytest.raises(SystemExit) as ended:
        main(["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", *given])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def sweep(spark: SparkSession, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """`python -m jobs.sweep`: status, summary, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "jobs.sweep", *arguments],
        cwd=REPOSITORY,
        env=environment(spark),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_process_killed_while_it_deletes(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Killed in the middle of deleting, and run again: what is live is whole, and what is not is gone."""
    topic = make_topic()
    live = put(tmp_path, topic, [f"live-{number}" for number in range(500)])
    orphans = 20_000
    put(tmp_path, topic, [f"orphan-{number}" for number in range(orphans)])
    refer(broker, topic, live)
    arguments = options(broker, tmp_path, topic, "--max-delete-fraction", "1", "--delete")
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *arguments, "--conf", "spark.ui.enabled=false"],
        cwd=REPOSITORY,
        env=environment(spark),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline, pause = time.monotonic() + 300, Event()
        while len(files(tmp_path / topic)) == orphans + len(live):
            assert process.poll() is None
            assert time.monotonic() < deadline
            pause.wait(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = len(files(tmp_path / topic))
    assert len(live) < left < orphans + len(live)

    status, summary, _ = sweep(spark, *arguments)
    assert (status, summary["status"]) == (0, "done")
    assert summary["topics"][topic]["live"] == len(live)
    assert files(tmp_path / topic) == sorted(path.rpartition("/")[2] for path in live)


def test_process_dry_run_then_refusal(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """A dry run tells and deletes nothing; what is refused has a status of its own and one sentence."""
    topic = make_topic()
    (live, _) = put(tmp_path, topic, ["live", "orphan"])
    refer(broker, topic, [live])
    store = tmp_path / "store.properties"
    store.write_text(f"# the store\nlarge.message.payload.store.class=filesystem\nfilesystem.root = {tmp_path}\n")
    given = ["--bootstrap-servers", broker, "--topic", topic, "--store-config", str(store)]
    status, summary, err = sweep(spark, *given)
    assert (status, summary["status"], err) == (0, "dry-run", "")
    assert summary["topics"][topic] | {"oldest": None} == {
        "payloads": 2,
        "bytes": 14,
        "live": 1,
        "young": 0,
        "orphans": 1,
        "orphan_bytes": 7,
        "oldest": None,
    }
    put(tmp_path, topic, ["orphan-2"])
    status, summary, err = sweep(spark, *given, "--delete")
    assert (status, summary["status"], summary["outcomes"]) == (3, "refused", {})
    assert err == f"sweep: refused: {summary['error']}\n"
    assert "2 of the 3 payloads" in err
    assert len(files(tmp_path / topic)) == 3


@pytest.mark.slow
def test_process_spark_submit(spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """`spark-submit jobs/sweep.py` runs from any folder, and its Python workers find the code."""
    topic = make_topic()
    (live, _) = put(tmp_path / "store", topic, ["live", "orphan"])
    refer(broker, topic, [live])
    submit = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"),
        *("--jars", str(spark.conf.get("spark.jars")), "--conf", "spark.log.level=ERROR"),
        str(REPOSITORY / "jobs" / "sweep.py"),
    ]
    done = subprocess.run(
        [*submit, *options(broker, tmp_path / "store", topic, "--delete")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["outcomes"] == {"deleted": {"payloads": 1, "bytes": 7}}
    assert files(tmp_path / "store" / topic) == ["live"]
