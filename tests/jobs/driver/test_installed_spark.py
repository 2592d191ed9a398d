"""The Spark that runs the jobs, and the module that talks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from jobs.driver.installed_spark import release
from transforms.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ".".join(pyspark.__version__.split(".")[:2])


def spark_home(folder: Path, *jars: str) -> Path:
    """A folder of Spark with these jars and nothing else."""
    (folder / "jars").mkdir(parents=True)
    for name in jars:
        (folder / "jars" / name).touch()
    return folder


def test_own_jars_of_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SPARK_HOME the jars inside PySpark say which release and which Scala it is."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    found = release()
    assert found.name == INSTALLED
    assert list(Path(pyspark.__file__).parent.glob(f"jars/scala-library-{found.scala}.*.jar"))


def test_spark_of_a_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor's version and another Scala are taken from SPARK_HOME; if no jar says it, PySpark's version counts."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.0")
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "emr", "spark-core_2.13-3.5.0-amzn-1.jar")))
    assert (release().name, release().scala) == ("3.5", "2.13")
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "databricks", "----workspace_spark_3_5--core.jar")))
    assert (release().name, release().scala) == ("3.5", "2.12")


def test_spark_home_of_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that talks to a Java process of another release fails in the middle of a job; so it is refused."""
    name = "4.2" if INSTALLED != "4.2" else "4.1"
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path, f"spark-core_2.13-{name}.0.jar")))
    with pytest.raises(ConfigurationError) as caught:
        release()
    assert f"SPARK_HOME: {tmp_path} has Spark {name}.0, and the module pyspark in " in str(caught.value)
    assert f" is {pyspark.__version__}; both must be the same release: unset SPARK_HOME, or" in str(caught.value)


@pytest.mark.parametrize("submitted", [False, True])
def test_unsupported_release_is_one_line(tmp_path: Path, *, submitted: bool) -> None:
    """A job says it before it starts Java, also under spark-submit, which has started it."""
    program = (
        "import sys, pyspark; pyspark.__version__ = '4.4.0'\n"
        "from jobs.driver.session import SessionSettings, open_session\n"
        "from transforms.errors import ConfigurationError\n"
        "try:\n"
        "    with open_session(SessionSettings('audit')): pass\n"
        "except ConfigurationError as error:\n"
        "    sys.exit(str(error))\n"
    )
    environ = {**os.environ, "SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    environ |= {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_GATEWAY_SECRET": "x"} if submitted else {}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("spark: version 4.4.0 was found; supported are 3.5 to 4.3: ")
    assert done.stderr.count("\n") == 1
