"""The sweep on Spark: that it agrees with the one without it, and what a kill in the middle leaves.

What a sweep finds and refuses is tested without Spark (`tests/app/payloads/test_sweep.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from app.config.client import embedded_client_settings
from app.payloads import sweep_command
from app.payloads.sweep import sweep
from app.payloads.sweep_settings import SweepSettings
from jobs.driver.failures import JobFailedError
from jobs.driver.session import SessionSettings
from jobs.payloads.spark_engine import running
from jobs.sweep import main, orphans
from tests.app.payloads.swept import digest, files, options, put, refer
from tests.integration.topics import send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(spark: SparkSession) -> dict[str, str]:
    return {**os.environ, "WIDELOAD_SPARK_JARS": str(spark.conf.get("spark.jars"))}


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the tests' own session, which is there already."""

    @contextlib.contextmanager
    def opened(_settings: SessionSettings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("jobs.payloads.spark_engine.open_session", opened)


@pytest.mark.usefixtures("in_session")
def test_both_engines_agree(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`wideload sweep` and the Spark job list, report, refuse and delete the same of the same topics and store."""
    topic, copies = make_topic(2, **{"cleanup.policy": "compact"}), make_topic()
    root = tmp_path / "store"
    paths = put(root, topic, [f"payload-{number}" for number in range(40)])
    (root / topic / "sales.csv").write_bytes(b"foreign")
    os.utime(root / topic / "sales.csv", (1, 1))
    (root / topic / digest("young")).write_bytes(b"young")
    references = [WIDELOAD.write_reference(Record(b"%d" % (n % 12), b"?"), Reference(paths[n])) for n in range(20)]
    send(broker, topic, [(n % 2, r.key, r.value, list(r.headers), 1) for n, r in enumerate(references)])
    refer(broker, copies, paths[38:])
    send(broker, copies, [(0, b"k", b"\xff", [("large-message", b"true")], 1)])
    given = options(broker, root, topic, "--newest-only")

    mains: tuple[Callable[[list[str]], int], ...] = (sweep_command.main, main)

    def both(status: int, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        summaries, rows = [], []
        for number, run in enumerate(mains):
            report = tmp_path / f"{'-'.join(more) or 'none'}-{number}.parquet"
            capsys.readouterr()
            assert run([*given, *more, "--report", str(report)]) == status
            summaries.append(json.loads(capsys.readouterr().out))
            found = [row | {"modified": row["modified"].timestamp()} for row in pq.read_table(report).to_pylist()]
            rows.append(sorted(found, key=lambda row: str(row["path"])))
        changing = ("cutoff", "seconds", "report")
        first, second = ({k: v for k, v in each.items() if k not in changing} for each in summaries)
        assert first == second
        assert rows[0] == rows[1]
        return first, rows[0]

    refused, rows = both(3)
    folder = refused["topics"][topic]
    assert (folder["live"], folder["young"], folder["foreign"], folder["orphans"]) == (12, 1, 1, 28)
    assert list(refused["refer"]) == [copies]
    assert [words in each for words, each in zip((copies, "28 of the 41"), refused["refusals"], strict=True)] == [
        True
    ] * 2
    assert len(rows) == 42
    both(3, "--carrier", copies)
    # Of two stores with the same payloads the same ones go.
    left = []
    for run in mains:
        there = make_topic()
        put(tmp_path / "again", there, [f"payload-{name}" for name in range(40)])
        refer(broker, there, [f"file://{tmp_path}/again/{there}/{digest(f'payload-{name}')}" for name in range(25)])
        assert run(options(broker, tmp_path / "again", there, "--delete")) == 0
        left.append(files(tmp_path / "again" / there))
    assert left[0] == left[1] == sorted(digest(f"payload-{name}") for name in range(25))


def test_function_for_notebooks(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """`orphans` gives the orphans as a DataFrame, and raises an error with each reason for which they are not known."""
    topic, copies = make_topic(), make_topic()
    live, gone, carried = put(tmp_path, topic, ["live", "gone", "carried"])
    refer(broker, topic, [live])
    refer(broker, copies, [carried])
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path)}
    kafka = {"kafka.bootstrap.servers": broker}
    with pytest.raises(JobFailedError, match=f"refer to these payloads: {copies}"):
        orphans(spark, kafka, store, topic)
    found = orphans(spark, kafka, store, topic, carriers=(copies,))
    assert [(row.path, row.topic, row.size, row.state) for row in found.collect()] == [(gone, topic, 7, "orphan")]
    assert len(files(tmp_path / topic)) == 3


@pytest.mark.slow
def test_process_killed_while_it_deletes(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Killed in the middle of deleting, and run again: what is live is whole, and what is not is gone."""
    topic = make_topic()
    live = put(tmp_path, topic, [f"live-{number}" for number in range(100)])
    orphans = 1_000
    put(tmp_path, topic, [f"orphan-{number}" for number in range(orphans)])
    refer(broker, topic, live)
    arguments = options(broker, tmp_path, topic, "--max-delete-fraction", "1", "--delete")
    conf = {
        "spark.python.daemon.module": "tests.jobs.stalling_daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    given = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *arguments, *given],
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

    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path)}
    client = embedded_client_settings({"bootstrap.servers": broker})
    with running(spark, client, [topic]) as engine:
        again = sweep(engine, SweepSettings(client, store, (topic,), max_delete_fraction=1.0, delete=True))
    assert (again.refusals, again.folders[0].live) == ([], len(live))
    assert set(again.outcomes) <= {"deleted", "gone"}
    assert files(tmp_path / topic) == sorted(path.rpartition("/")[2] for path in live)


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
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["outcomes"] == {"deleted": {"payloads": 1, "bytes": 7}}
    assert files(tmp_path / "store" / topic) == [digest("live")]
