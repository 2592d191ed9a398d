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


@pytest.mark.parametrize(
    ("files", "spark", "scala"),
    [
        ({"version.py": '#\n__version__: str = "4.2.1"\n'}, "4.2", "2.13"),
        ({"version.py": "#\n__version__ = '4.2.0.dev1'\n"}, "4.2", "2.13"),
        ({"version.py": '__version__ = "4.2.1"', "jars/spark-core_2.13-3.5.0-amzn-0.jar": ""}, "3.5", "2.13"),
        ({}, DEFAULT.name, DEFAULT.scala),
    ],
    ids=["client of Spark Connect", "other quotes", "jars", "nothing"],
)
def test_spark_is_what_lies_there(
    pyspark: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], spark: str, scala: str
) -> None:
    """The jars count, as they are what runs; then PySpark's version; then, as in the set-up, that of the lock."""
    for name, text in files.items():
        (pyspark / name).parent.mkdir(exist_ok=True)
        (pyspark / name).write_text(text)
    assert (spark_home.release().name, spark_home.release().scala) == (spark, scala)
    if "version.py" in files and len(files) == 1:
        monkeypatch.setenv("SPARK_HOME", str(pyspark / "elsewhere"))
        assert spark_home.release().name == spark


def test_without_pyspark_that_of_the_lock(pyspark: Path) -> None:
    """So it is during the set-up."""
    (pyspark / "__init__.py").unlink()
    assert spark_home.release() == DEFAULT
