"""Kafka to Parquet or Delta: reads a topic of whole values, plain or inflated, with nothing but Spark's Kafka source.

Each record of the topic is in the output once, over any number of failures and restarts: Spark's checkpoint and the
file sink's list of whole files see to that (for Delta, the table's own log). A record that the topic holds twice, as
from a producer or a worker that is "at least once", is there twice, with two offsets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import TextIO

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

if not __package__:  # spark-submit runs this file by itself, with this folder on the path in place of the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from app.config.arguments import configure, parse
from jobs.driver.command_line import session_settings
from jobs.driver.failures import SPARK_ERRORS, JobFailedError, explained, overflowed, require_broker
from jobs.driver.installed_spark import release
from jobs.driver.jvm import Files
from jobs.driver.progress import repaint
from jobs.driver.session import open_session, require_class, stopping
from jobs.ingesting.checkpoint import TopicWatch, bind, bind_topics, read_start
from jobs.ingesting.command_line import IngestSettings, parser, settings_of
from jobs.ingesting.json_fault import fault
from jobs.ingesting.kept_schema import keep, known
from jobs.ingesting.outputs import may_widen
from jobs.ingesting.query_progress import Tally, counted, follow, line, measured, table
from jobs.ingesting.rebuild import anew
from jobs.ingesting.spark_logs import planned
from jobs.ingesting.table import write
from jobs.ingesting.table_schema import as_table
from jobs.ingesting.values import CORRUPT, parsed
from jobs.reading.named_topics import require_topics
from jobs.reading.topics import Kafka, source_format
from jobs.records.schemas import RECORD, conform
from transforms.errors import ConfigurationError, WideloadError

__all__ = ["IngestSettings", "main", "read", "records", "run"]


def read(spark: SparkSession, settings: IngestSettings, options: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
    """The stream of the topics' records, with the columns of Spark's Kafka source; `options` win over `settings`."""
    source = spark.readStream.format(source_format(spark, in_python=settings.in_python))
    return source.options(**{**settings.source_options(), **options}).load()


def records(source: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source as `RECORD`."""
    return conform(source.withColumn("timestamp_type", F.col("timestampType")), RECORD)


def run(spark: SparkSession, settings: IngestSettings, tally: Tally, stop: Event, *, screen: TextIO | None) -> None:
    """Runs the job on a session: binds the checkpoint, reads, writes, and follows the query until it ends.

    Args:
        spark: the session.
        settings: what to do.
        tally: the result, filled in while the job works.
        stop: when it is set, the current micro-batch is broken off (the next run repeats it) and the job ends.
        screen: a terminal for the bar; None for none.

    Raises:
        ConfigurationError: the user can set it right; the output is not in doubt.
        JobFailedError: any other failure.
    """
    watch = TopicWatch(spark, settings)

    def show(now: Tally) -> None:
        watch.look(now.batches)
        if screen is not None:
            repaint(screen, line(now))

    tally.bad_values = 0 if settings.value.on_bad == "null" else None
    tally.bad_timestamps = 0 if settings.in_python else None
    try:
        if settings.delta:
            require_class(spark, "io.delta.sql.DeltaSparkSessionExtension", "--format", "Delta Lake", release().delta)
        _bind(spark, settings)
        if settings.rebuild:
            print(f"ingest: {anew(spark, settings)}", file=sys.stderr)
        if settings.value.schema is not None:
            settings = _kept(spark, settings)
        if not settings.in_python:
            # Where a run that read records in Python began, if Spark has not noted that yet.
            beginning = read_start(spark, settings.checkpoint) or settings.starting_offsets
            _follow(spark, replace(settings, starting_offsets=beginning), tally, show, stop)
        else:
            # Imported only here, as it needs PyArrow, on executors too.
            from jobs.ingesting.planned_query import follow_planned

            follow_planned(spark, settings, lambda options: _start(spark, settings, options), tally, show, stop)
    except SPARK_ERRORS as error:
        raise _failure(spark, settings, error) from error
    finally:
        if screen is not None:
            screen.write("\n")


def _follow(
    spark: SparkSession, settings: IngestSettings, tally: Tally, show: Callable[[Tally], None], stop: Event
) -> None:
    """Starts the query and follows it; once more, if it fails when an unfinished batch of an earlier run is done.

    That is how each query of the Kafka source ends in Spark 4.1 (SPARK-55271): behind such a batch it reports offsets
    that it has not asked for yet. The next query continues from there.
    """
    files, checkpoint = Files(spark), settings.checkpoint
    number, unfinished = planned(files, checkpoint)
    try:
        follow(_start(spark, settings), tally, show, stop)
    except StreamingQueryException:
        if not unfinished or planned(files, checkpoint) != (number, False):
            raise
        follow(_start(spark, settings), tally, show, stop)


def _failure(spark: SparkSession, settings: IngestSettings, error: Exception) -> WideloadError:
    """What an error of Spark means to the user."""
    if overflowed(error) and not settings.in_python:
        # Imported only here, as above.
        from jobs.ingesting.timestamp_fault import timestamp_fault

        return timestamp_fault(spark, settings)
    return explained(
        error,
        servers=settings.bootstrap_servers,
        source=settings.source,
        options=settings.kafka_options,
        fault=fault(spark, settings, error),
    )


def _bind(spark: SparkSession, settings: IngestSettings) -> None:
    """Ties the checkpoint to the output and the topics; a pattern that matches no topic is told."""
    bind(spark, settings)
    if not bind_topics(spark, settings) and settings.subscribe_pattern is not None:
        print(
            f"ingest: no topic on the broker at {settings.bootstrap_servers} matches --subscribe-pattern "
            f"{settings.subscribe_pattern!r}; a topic that is made later will be read",
            file=sys.stderr,
        )


def _kept(spark: SparkSession, settings: IngestSettings) -> IngestSettings:
    """The settings with which values have the types of the table; the checkpoint has noted them."""
    before = known(spark, settings.checkpoint, settings.output)
    if before is not None:
        settings = replace(settings, value=as_table(settings.value, before))
    option = "--value-schema" if settings.registry is None else "--schema-registry-url"
    values = _rows(spark, settings).schema["value"].dataType
    keep(spark, settings.checkpoint, option, values, settings.output, lambda: may_widen(spark, settings.output))
    return settings


def _start(
    spark: SparkSession, settings: IngestSettings, options: Mapping[str, str] = MappingProxyType({})
) -> StreamingQuery:
    """Starts the query; `options` are more options of its source."""
    return write(_rows(spark, settings, options), settings)


def _rows(
    spark: SparkSession, settings: IngestSettings, options: Mapping[str, str] = MappingProxyType({})
) -> DataFrame:
    """What is written: the records, with their values as `settings.value` says."""
    rows = parsed(measured(records(read(spark, settings, options))), settings.value)
    return counted(rows, CORRUPT) if CORRUPT in rows.columns else rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 done, 1 failed at work, 2 something to set right first."""
    arguments = parse(parser(), argv)
    tally = Tally()
    status, message = 0, None
    try:
        configure(arguments)
        settings = settings_of(arguments)
        wanted = (
            release().delta if settings.delta else None,
            release().avro if settings.value.format == "avro" else None,
        )
        session = session_settings(
            arguments,
            "wideload-ingest",
            packages=tuple(filter(None, wanted)),
            delta=settings.delta,
            lasting=not settings.once,
        )
        require_broker(settings.bootstrap_servers)
        require_topics(Kafka(settings.bootstrap_servers, settings.kafka_options), {"--topic": settings.topics})
        settings = settings.with_schema()
        with open_session(session) as spark, stopping() as stop:
            run(spark, settings, tally, stop, screen=sys.stderr if sys.stderr.isatty() else None)
    except (ConfigurationError, JobFailedError) as error:
        if arguments.verbose:
            raise
        status, message = 2 if isinstance(error, ConfigurationError) else 1, str(error)
        print(f"ingest: {message}", file=sys.stderr)
    if status == 0 or tally.batches:
        _report(tally, arguments, message)
    return status


def _report(tally: Tally, arguments: argparse.Namespace, message: str | None) -> None:
    summary = {"job": "ingest", "status": "failed" if message else "done", "output": arguments.output}
    summary |= tally.summary()
    if message:
        summary["error"] = message
    if sys.stdout.isatty():
        table(summary, sys.stdout)
    else:
        print(json.dumps(summary))


if __name__ == "__main__":
    raise SystemExit(main())
