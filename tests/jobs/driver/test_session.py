"""What a job sets in the session that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.driver.installed_spark import release
from jobs.driver.session import SessionSettings, _conf, _runs_here, connector_jars, open_session
from transforms.errors import ConfigurationError


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


def test_no_page_ends_a_job() -> None:
    """Spark's links that end a job work by GET. They are off, unless the user asks for them."""
    for conf, told in (({}, "false"), ({"spark.ui.killEnabled": "true"}, "true")):
        assert _conf(SessionSettings("a job", conf=conf))["spark.ui.killEnabled"] == told


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
    with pytest.raises(ConfigurationError, match=f"is for Scala {other}, and this Spark .* is built with {ours}; use"):
        connector_jars(f"{tmp_path}")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert connector_jars(f"{tmp_path}") == (str(good), str(bad))


def test_spark_home_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong SPARK_HOME is one sentence, where PySpark would raise a `FileNotFoundError`."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with (
        pytest.raises(ConfigurationError, match=f"SPARK_HOME: {tmp_path} holds no bin/spark-submit; set it to an"),
        open_session(SessionSettings("audit")),
    ):
        pass
