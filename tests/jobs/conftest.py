"""What tests of several jobs share."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run on the tests' own session, which is there already."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as sessions of the jobs have it
    for module in ("jobs.backfill", "jobs.payloads.spark_engine"):
        monkeypatch.setattr(f"{module}.open_session", lambda _: nullcontext(spark))
