"""The sweep on Spark agrees with the one without it, and runs as a program.

What a sweep finds and refuses is tested without Spark (`tests/app/payloads/test_sweep.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from app.payloads import sweep_command
from jobs.driver.failures import JobFailedError
from jobs.sweep import main, orphans
from tests.app.payloads.swept import digest, digests, files, filesystem, options, put, refer, referring, write
from transforms.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]


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
    for number in (0, 1):
        records = (referring(paths[n], b"%d" % (n % 12)) for n in range(number, 20, 2))
        write(broker, topic, *records, partition=number)
    refer(broker, copies, paths[38:])
    write(broker, copies, Record(b"k", b"\xff", [("large-message", b"true")]))
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
    first, second = refused["refusals"]
    assert (copies in first, "28 of the 41" in second) == (True, True)
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
    assert left[0] == left[1] == digests(*(f"payload-{name}" for name in range(25)))


def test_function_for_notebooks(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """`orphans` gives the orphans as a DataFrame, and raises an error with each reason for which they are not known."""
    topic, copies = make_topic(), make_topic()
    live, gone, carried = put(tmp_path, topic, ["live", "gone", "carried"])
    refer(broker, topic, [live])
    refer(broker, copies, [carried])
    store = filesystem(tmp_path)
    kafka = {"kafka.bootstrap.servers": broker}
    with pytest.raises(JobFailedError, match=f"refer to these payloads: {copies}"):
        orphans(spark, kafka, store, topic)
    found = orphans(spark, kafka, store, topic, carriers=(copies,))
    assert [(row.path, row.topic, row.size, row.state) for row in found.collect()] == [(gone, topic, 7, "orphan")]
    assert len(files(tmp_path / topic)) == 3


@pytest.mark.slow
def test_process_spark_submit(spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """`spark-submit jobs/sweep.py` runs from any folder, and its Python workers find the code."""
    topic = make_topic()
    (live, _) = put(tmp_path / "store", topic, ["live", "orphan"])
    refer(broker, topic, [live])
    conf = {
        "spark.jars": str(spark.conf.get("spark.jars")),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    submit = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
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
