"""What a job sets in the session that it is given."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from jobs.driver.session import SessionSettings, _builder, _runs_here, share_code

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("given", [None, "/mine", f"{REPOSITORY}{os.pathsep}/mine"])
def test_share_code_once(given: str | None) -> None:
    """A second job in a session leaves the path of the Python workers as it is: Spark starts new ones for another."""
    environment = {} if given is None else {"PYTHONPATH": given}
    spark = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(environment=environment)))
    share_code(spark)
    once = dict(environment)
    share_code(spark)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    assert environment == once
    assert entries.count(str(REPOSITORY)) == 1
    assert given is None or "/mine" in entries


@pytest.mark.parametrize(
    ("settings", "defaults", "here"),
    [
        ({}, None, True),
        ({"master": "local"}, None, True),
        ({"master": "local[2,4]"}, "spark.master spark://h:7077", True),
        ({"master": "local-cluster[2,1,1024]"}, None, False),
        ({"master": "spark://h:7077"}, None, False),
        ({"master": "local[2]", "conf": {"spark.master": "yarn"}}, None, False),
        ({}, "# spark.master  no\n spark.master\tyarn\n", False),
        ({}, "spark.master=k8s://h:443", False),
        ({}, "spark.master.rest.enabled true", True),
    ],
)
def test_local_jobs_listen_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any], defaults: str | None, *, here: bool
) -> None:
    """A job with a local master is told from one whose executors must reach the driver; by all that names a master."""
    monkeypatch.delenv("MASTER", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if defaults is not None:
        (tmp_path / "spark-defaults.conf").write_text(defaults)
    assert _runs_here(SessionSettings("a job", **settings)) is here


def test_no_page_ends_a_job(tmp_path: Path) -> None:
    """Spark's links that end a job work by GET. They are off, unless the user asks for them."""
    for conf, told in (({}, "false"), ({"spark.ui.killEnabled": "true"}, "true")):
        builder = _builder(SessionSettings("a job", conf=conf), tmp_path)
        assert builder._options["spark.ui.killEnabled"] == told
