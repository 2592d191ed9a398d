"""Python data sources where PySpark has none."""

from __future__ import annotations

import importlib
import sys

import pyspark
import pytest


@pytest.mark.parametrize("name", ["jobs.source", "wideload.jobs.source", "jobs.reading.record_source"])
def test_spark_without_python_data_sources(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On Spark 3.5 the import says that the source needs 4.0, and what to use in its place."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    for each in {name, "jobs.source", "jobs.reading.data_source"}:
        monkeypatch.delitem(sys.modules, each, raising=False)
    with pytest.raises(ImportError, match=r"need PySpark 4\.0 or newer, and 3\.5\.9 is installed; read with format"):
        importlib.import_module(name)
