"""The output of `ingest`, Parquet files or a Delta table: what it knows of its checkpoint, and writing it."""

from __future__ import annotations

import json
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from jobs.driver.jvm import Files, delta_table
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.kept_schema import WIDENING
from jobs.ingesting.spark_logs import NONE, DamagedError, check_list, names_files, newest, text
from transforms.errors import ConfigurationError

# Parquet counts bytes only after each 100 rows, and then guesses when to count again: 100 values of 15 MB are 1.5 GB
# before the first look, and end a JVM of 4 GB. To look at every row costs little next to copying it. A dictionary and
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

_US_A_DAY = 86_400_000_000
_US_AN_HOUR = 3_600_000_000


class Output:
    """An output, as it is now. A Delta table's log names each query that writes, with its last batch.

    A directory of Parquet files has Spark's own list of them (`_spark_metadata`), and a mark of this job. Names that
    begin with `_` are not data for Spark, Hive and Arrow.

    Args:
        spark: the session.
        settings: of the job.

    Attributes:
        rows: whether there are files of rows.

    Raises:
        ConfigurationError: it is of the other kind.
    """

    def __init__(self, spark: SparkSession, settings: IngestSettings) -> None:
        self._files, self._folder, self._delta = Files(spark), settings.output, settings.delta
        self._list, self._mark = f"{settings.output}/_spark_metadata", f"{settings.output}/_wideload.json"
        is_table = self._any_in(f"{self._folder}/_delta_log")
        if is_table and not self._delta:
            raise ConfigurationError(
                "--format",
                f"{self._folder} is a Delta table, in which separate Parquet files are not visible; use --format delta",
            )
        self.rows = self._any_in(self._folder)
        if self._delta and not is_table and (self.rows or self._files.names(self._list)):
            raise ConfigurationError(
                "--format",
                f"{self._folder} contains files and is not a Delta table; use a new --output, or omit --format delta",
            )
        self._table = delta_table(spark, self._folder) if is_table else None

    def lost(self) -> bool:
        """Whether files of rows were written, and all are gone."""
        if self.rows:
            return False
        return self._table.files > 0 if self._table is not None else names_files(self._files, self._list)

    def check(self) -> None:
        """Makes sure that readers find what was written; the log of a Delta table was read before.

        Raises:
            ConfigurationError: the list of files is damaged.
        """
        try:
            check_list(self._files, self._list)
        except DamagedError as exc:
            raise ConfigurationError(
                "--output",
                f"the list of files in {self._list} cannot be read, so the rows cannot be read either: {exc.what}",
            ) from exc

    def last_batch(self, query: str) -> int:
        """The last batch of this query that is written; `NONE` if there is none. Parquet's list names no query."""
        if self._delta:
            return NONE if self._table is None else self._table.batches.get(query, NONE)
        return newest(self._files, self._list)

    def owner(self) -> str | None:
        """The mark of the checkpoint that writes here; None if there is no mark, as in a Delta table.

        Raises:
            ConfigurationError: the mark is damaged.
        """
        found = None if self._delta else text(self._files, self._mark)
        try:
            return None if found is None else str(json.loads(found)["checkpoint"])
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            raise ConfigurationError(
                "--output",
                f"{self._mark} is damaged; it contains the id of the checkpoint; delete it if no other ingest "
                f"writes there",
            ) from exc

    def claim(self, owner: str, checkpoint: str) -> None:
        """Marks the output, so that of two runs that begin at the same time only one continues.

        Raises:
            ConfigurationError: it has the mark of another checkpoint.
        """
        if self._delta:
            return
        found = self.owner()
        if found is None:
            try:
                self._files.create(self._mark, json.dumps({"checkpoint": owner}))
            except FileExistsError:
                found = self.owner()
            else:
                return
        if found != owner:
            raise ConfigurationError(
                "--output",
                f"{self._folder} is reserved for another checkpoint than {checkpoint}, by an ingest that was "
                f"started; use another --output, or, if that ingest no longer runs, --rebuild",
            )

    def forget(self) -> None:
        """Removes what an output without rows remembers; in a Delta table a new query has another id."""
        if not self._delta:
            self._files.delete(self._mark)
            self._files.delete_folder(self._list)

    def widens(self) -> bool:
        """Whether columns may get wider types; the owner of a Delta table allows it, since older readers refuse it."""
        return self._table is not None and self._table.properties.get(WIDENING, "").lower() == "true"

    def _any_in(self, folder: str) -> bool:
        return self._files.any_name(folder, lambda name: not name.startswith((".", "_")))


def write(rows: DataFrame, settings: IngestSettings, *, until_end: bool) -> StreamingQuery:
    """Starts to write `rows`, up to the current end of the source or until the query is stopped.

    The settings of the formats go into the session (a user's own `--conf` stays): Spark's file sink does not
    hand the options of a stream to Parquet.
    """
    conf, context = rows.sparkSession.conf, rows.sparkSession.sparkContext
    options = {**_PARQUET}
    if settings.delta:
        stats = ",".join(name for name in _DELTA_STATS if name not in settings.partition_by)
        options["spark.databricks.delta.properties.defaults.dataSkippingStatsColumns"] = stats
        # Before each batch Delta reads its log, in 50 tasks, which on two cores takes longer than a small batch.
        options["spark.databricks.delta.snapshotPartitions"] = str(2 * context.defaultParallelism)
    given = context.getConf()
    for key, value in options.items():
        if not given.contains(key):
            conf.set(key, value)
    conf.set("parquet.block.size", str(settings.row_group_bytes))
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
    if until_end:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds").start()


def _derived(name: str) -> Column:
    """Date or hour of the timestamp in UTC, whatever the session's time zone."""
    micros = F.unix_micros("timestamp")
    if name == "date":
        return F.date_from_unix_date(F.floor(micros / _US_A_DAY).cast("int"))
    return F.pmod(F.floor(micros / _US_AN_HOUR), F.lit(24)).cast("int")
