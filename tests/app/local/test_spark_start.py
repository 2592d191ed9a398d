"""The archive of classes with which Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.local import java, spark_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_archive_is_used(spark: SparkSession) -> None:
    """The Java process of the tests has taken the archive that the set-up made: Java maps only what fits it."""
    assert spark._jvm is not None
    number = spark._jvm.java.lang.ProcessHandle.current().pid()
    path = spark_start._archive()
    assert path is not None
    assert str(path) in Path(f"/proc/{number}/maps").read_text()


def test_environment_keeps_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that were set already stay, and none comes twice."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Da=b {java.SHORT_RUN[0]}")
    name, *others = spark_start.environ(short_run=True).items()
    assert name[0] == "SPARK_SUBMIT_OPTS"
    assert not others
    assert name[1].split()[: 1 + len(java.SHORT_RUN)] == ["-Da=b", *java.SHORT_RUN]
    monkeypatch.setenv(*name)
    assert spark_start.environ(short_run=True) == dict([name])


def test_without_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark there is no archive: Java gets the options that were asked for alone."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert spark_start.environ() == {"SPARK_SUBMIT_OPTS": ""}
    assert spark_start.environ(short_run=True) == {"SPARK_SUBMIT_OPTS": " ".join(java.SHORT_RUN)}
