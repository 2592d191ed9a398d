"""What executors lack, told before a program begins."""

from __future__ import annotations

import traceback

import pytest
from pyspark.sql import SparkSession

from jobs.executors import NEEDS, require_executors
from transforms.errors import ConfigurationError


def test_executors_that_have_all(spark: SparkSession) -> None:
    """Nothing is said, and a package that is missing is told with the machine and its Python."""
    require_executors(spark, *NEEDS, tasks=2)
    with pytest.raises(
        ConfigurationError, match=r"executors: on .*, \S*python\S* lacks wideload_is_not \(.*\); install"
    ):
        require_executors(spark, "inflate", packages=["wideload_is_not"], tasks=1)


def test_executors_unknown_use(spark: SparkSession) -> None:
    """A use that is none is told with those that are."""
    with pytest.raises(ConfigurationError, match="uses: found 'inflation', allowed are assemble, inflate"):
        require_executors(spark, "inflation")


def test_executors_without_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that is not there is one sentence; Java's stack is not printed with it."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nonexistent/python")
    with pytest.raises(ConfigurationError) as failed:
        require_executors(spark, "inflate", tasks=1)
    told = "".join(traceback.format_exception(failed.value))
    assert ": PYSPARK_PYTHON: executors have no /nonexistent/python; set it (or" in told.splitlines()[-1]
    assert "java.io.IOException" not in told
