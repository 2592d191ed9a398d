"""What a job sets in the session that it is given."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from jobs.driver.installed_spark import release
from jobs.driver.session import (
    SessionSettings,
    _builder,
    _runs_here,
    connector_jars,
    fit_shuffles,
    open_session,
    share_code,
)
from transforms.errors import ConfigurationError

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


def test_start_is_quick_here_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on this machine has one collector, a daemon of ours and no pages; a cluster keeps what it is set to."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    keys = ("spark.python.daemon.module", "spark.ui.enabled")
    here = _builder(SessionSettings("a job", master="local[2]"), tmp_path)._options
    assert "-XX:+UseSerialGC" in here["spark.driver.extraJavaOptions"]
    assert [here[key] for key in keys] == ["jobs.driver.python_daemon", "false"]
    there = _builder(SessionSettings("a job", master="spark://h:7077"), tmp_path)._options
    assert "-XX" not in there["spark.driver.extraJavaOptions"]
    assert not {*keys} & {*there}
    large = _builder(SessionSettings("a job", master="local[2]", driver_memory="8g"), tmp_path)._options
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    other = _builder(SessionSettings("a job", master="local[2]"), tmp_path)._options
    assert not any("UseSerialGC" in each["spark.driver.extraJavaOptions"] for each in (large, other))
    told = _builder(SessionSettings("a job", master="local[2]", conf={"spark.ui.enabled": "true"}), tmp_path)._options
    assert told["spark.ui.enabled"] == "true"
    assert (
        "spark.ui.enabled" not in _builder(SessionSettings("a job", master="local[2]", lasting=True), tmp_path)._options
    )


@pytest.mark.parametrize(
    ("cores", "rows", "set_by_user", "found"),
    [
        (2, None, False, "8"),
        (8, None, False, "16"),
        (2, 10, False, "2"),
        (2, 1_000_000, False, "8"),
        (2, 10, True, None),
    ],
)
def test_fit_shuffles(cores: int, rows: int | None, set_by_user: bool, found: str | None) -> None:  # noqa: FBT001
    """Few rows take a task a core; many, two a core and eight at least; the user's number stays."""
    conf: dict[str, str] = {}
    known = SimpleNamespace(contains=lambda _: set_by_user)
    context = SimpleNamespace(defaultParallelism=cores, getConf=lambda: known)
    fit_shuffles(
        cast("SparkSession", SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=conf.__setitem__))), rows
    )
    assert conf.get("spark.sql.shuffle.partitions") == found


def test_jars_for_another_scala(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such jars are refused in a sentence, as after a change of PySpark; under spark-submit they are not used."""
    for name in ("SPARK_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    ours = release().scala
    other = "2.12" if ours != "2.12" else "2.13"
    good, bad = tmp_path / f"delta-spark_4.1_{ours}-4.1.0.jar", tmp_path / f"spark-avro_{other}-3.5.7.jar"
    good.touch()
    assert connector_jars(f"{tmp_path}") == (str(good),)
    bad.touch()
    with pytest.raises(ConfigurationError, match=f"is for Scala {other}, and this Spark .* is built with {ours}; give"):
        connector_jars(f"{tmp_path}")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert connector_jars(f"{tmp_path}") == (str(good), str(bad))


def test_spark_home_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong SPARK_HOME is one sentence, where PySpark would raise a `FileNotFoundError`."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with (
        pytest.raises(ConfigurationError, match=f"SPARK_HOME: {tmp_path} holds no bin/spark-submit; set it to a Spark"),
        open_session(SessionSettings("audit")),
    ):
        pass
