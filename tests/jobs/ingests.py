"""Runs of `ingest` on the tests' own session."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from jobs.driver.jvm import has_class
from jobs.ingest import IngestSettings, run
from jobs.ingesting.query_progress import Tally
from jobs.records.schemas import RECORD
from transforms.record import Record

Settings = Callable[..., IngestSettings]


def ingest(spark: SparkSession, settings: IngestSettings) -> Tally:
    """One bounded run."""
    tally = Tally()
    run(spark, settings, tally, Event(), screen=None)
    return tally


def written(spark: SparkSession, settings: IngestSettings) -> list[Row]:
    """What is in the output, in order."""
    rows = spark.read.format(settings.format).option("mergeSchema", "true").load(settings.output)
    return rows.orderBy("topic", "partition", "offset").collect()


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(b"k%d" % n, b"v%d" % n) for n in range(first, first + count)]


def rows_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Records with these values, at offsets from 0."""
    rows = [
        (None, None if value is None else bytearray(value), None, "t", 0, at, datetime(2026, 1, 1, tzinfo=UTC), 0)
        for at, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD)


def require_delta(spark: SparkSession) -> None:
    """Skips a test where no release of Delta Lake works with this Spark."""
    if not has_class(spark, "io.delta.sql.DeltaSparkSessionExtension"):
        pytest.skip(f"no Delta Lake for Spark {spark.version}")
