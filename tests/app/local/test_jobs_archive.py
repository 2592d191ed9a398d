"""The archive of the jobs: its content, and a job that runs with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from app.local import spark_start
from app.local.jobs_archive import write
from tests.integration.topics import read_all, send
from transforms.reference import is_reference

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = ("app/config", "app/kafka", "app/payloads", "jobs", "stores", "transforms", "wideload")

JOB = """
import sys
from pyspark.sql import SparkSession
from jobs import backfill
from wideload.jobs.backfill import main

def place(_):
    from jobs.copying import range as module
    return module.__file__

spark = SparkSession.builder.getOrCreate()
print(backfill.__file__, *spark.sparkContext.parallelize([0], 1).map(place).collect())
sys.exit(main())
"""


def test_archive_is_the_same_each_time(tmp_path: Path) -> None:
    """The archive has all modules of the packages, in order, and does not depend on the time."""
    number = write(tmp_path / "one" / "jobs.zip")
    os.utime(REPOSITORY / "jobs" / "__init__.py")
    assert write(tmp_path / "two.zip") == number
    assert (tmp_path / "one" / "jobs.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    names = ZipFile(tmp_path / "two.zip").namelist()
    expected = [file.relative_to(REPOSITORY) for name in PACKAGES for file in (REPOSITORY / name).rglob("*.py")]
    assert names == sorted(["app/__init__.py", *map(str, expected)])
    assert len(expected) > 100


@pytest.mark.slow
@pytest.mark.spark
def test_job_runs_with_the_archive_alone(broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """In a folder with only the archive, driver and executors read the jobs from it."""
    folder = tmp_path / "submit"
    write(folder / "jobs.zip")
    (folder / "run.py").write_text(JOB)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = {**inherited, "PATH": path, **spark_start.environ(short_run=True)}
    source, sink = make_topic(), make_topic()
    send(broker, source, [(0, b"k", bytes(2_000), [("x", b"1")], 1_600_000_000_000)])
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"),
            *("--py-files", "jobs.zip", "--conf", "spark.log.level=ERROR", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
            *("run.py", "--bootstrap-servers", broker, "--source", source, "--sink", sink, "--to", "references"),
            *("--checkpoint", str(tmp_path / "checkpoint"), "--threshold-bytes", "1000"),
            *("--store", "large.message.payload.store.class=filesystem"),
            *("--store", f"filesystem.root={tmp_path / 'payloads'}"),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places, last = done.stdout.splitlines()[-2:]
    assert [place.partition("jobs.zip")[2] for place in places.split()] == [
        "/jobs/backfill.py",
        "/jobs/copying/range.py",
    ]
    summary = json.loads(last)
    assert (summary["status"], summary["written"], summary["payloads"]) == ("done", 1, 1)
    ((found,),) = read_all(broker, sink).values()
    assert is_reference(found.headers)
