"""The output of `ingest`: a folder of Parquet files or a Delta table, set up for large values."""

from __future__ import annotations

from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from jobs.ingesting.command_line import IngestSettings

__all__ = ["write"]

# Parquet counts bytes only after each 100 rows, and then guesses when to count again: 100 values of 15 MB are 1.5 GB
# before the first look, and end a JVM of 4 GB. To look at every row costs little beside copying it. A dictionary and
# the least and greatest value are useless for values that are large and all different, and Parquet would keep a copy of
# each (with them 512 MB of heap are too little, without them enough).
_PARQUET = MappingProxyType(
    {
        "parquet.page.size.row.check.min": "1",
        "parquet.page.size.row.check.max": "1",
        "parquet.enable.dictionary#value": "false",
        "parquet.column.statistics.enabled#value": "false",
    }
)


# Delta notes the least and the greatest value of a file's columns in the table's log; by default of the first 32. For
# `value` that is useless, and Delta would look at each value again.
_DELTA_STATS = ("topic", "partition", "offset", "timestamp", "timestamp_type")
_STATS_KEY = "spark.databricks.delta.properties.defaults.dataSkippingStatsColumns"
_DELTA_TASKS_KEY = "spark.databricks.delta.snapshotPartitions"

_US_A_DAY = 86_400_000_000
_US_AN_HOUR = 3_600_000_000


def write(rows: DataFrame, settings: IngestSettings) -> StreamingQuery:
    """Starts to write `rows`.

    The settings of the formats go into the session (a user's own `--conf` stays): Spark's file sink does not hand the
    options of a stream to Parquet.

    Args:
        rows: the stream.
        settings: of the job.
    """
    conf = rows.sparkSession.conf
    conf.set("parquet.block.size", str(settings.row_group_bytes))
    for key, value in _PARQUET.items():
        if conf.get(key, None) is None:
            conf.set(key, value)
    if settings.delta:
        _set_delta(rows, settings)
    for name in ("date", "hour"):
        if name in settings.partition_by:
            rows = rows.withColumn(name, _derived(name))
    writer = (
        rows.writeStream.format(settings.format)
        .queryName("ingest")
        .option("path", settings.output)
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.partition_by:
        writer = writer.partitionBy(*settings.partition_by)
    if settings.delta:
        # A schema of values may get new fields; Delta refuses every change that would lose data.
        writer = writer.option("mergeSchema", "true")
    if settings.once or settings.in_python:  # in Python each query does one micro-batch
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds").start()


def _set_delta(rows: DataFrame, settings: IngestSettings) -> None:
    context, conf = rows.sparkSession.sparkContext, rows.sparkSession.conf
    given = context.getConf()
    if not given.contains(_STATS_KEY):
        conf.set(_STATS_KEY, ",".join(name for name in _DELTA_STATS if name not in settings.partition_by))
    if not given.contains(_DELTA_TASKS_KEY):
        # Before each batch Delta reads its log, in 50 tasks, which on two cores takes longer than a small batch.
        conf.set(_DELTA_TASKS_KEY, str(2 * context.defaultParallelism))


def _derived(name: str) -> Column:
    """Date or hour of the timestamp in UTC, whatever the session's time zone."""
    micros = F.unix_micros("timestamp")
    if name == "date":
        return F.date_from_unix_date(F.floor(micros / _US_A_DAY).cast("int"))
    return F.pmod(F.floor(micros / _US_AN_HOUR), F.lit(24)).cast("int")
