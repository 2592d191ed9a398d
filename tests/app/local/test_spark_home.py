"""The Spark of this machine, by what lies in its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.local import spark_home
from transforms.spark_release import DEFAULT


@pytest.fixture
def pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a PySpark without jars, the only one that Python finds."""
    folder = tmp_path / "pyspark"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    return folder


@pytest.mark.parametrize("line", ['__version__: str = "4.2.1"', "__version__ = '4.2.0.dev1'"])
def test_without_jars_the_version_counts(
    pyspark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """The client of Spark Connect has no jars, and those of Databricks have other names: PySpark says its version."""
    (pyspark / "version.py").write_text(f"#\n{line}\n")
    assert spark_home.release().name == "4.2"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_home.release().name == "4.2"


def test_without_a_version_that_of_the_lock(pyspark: Path) -> None:
    """So it is during the set-up, when there is no PySpark yet."""
    assert spark_home.release() == DEFAULT
    (pyspark / "__init__.py").unlink()
    assert spark_home.release() == DEFAULT


def test_jars_count_before_the_version(pyspark: Path) -> None:
    """The jars are what runs."""
    (pyspark / "version.py").write_text('__version__ = "4.2.1"')
    (pyspark / "jars").mkdir()
    (pyspark / "jars" / "spark-core_2.13-3.5.0-amzn-0.jar").touch()
    assert (spark_home.release().name, spark_home.release().scala) == ("3.5", "2.13")
