"""Kafka to Parquet or Delta: reads a topic of whole values, plain or inflated, with Spark's Kafka source.

Each record of the topic is in the output once, over any number of failures and restarts: Spark's checkpoint and the
file sink's list of whole files see to that (for Delta, the table's own log). A record that the topic holds
twice, as from a producer or a worker that is "at least once", is there twice, with two offsets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TextIO

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if not __package__:  # spark-submit runs this file by itself, with this directory on the path, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from app.config.arguments import configure, parse
from app.kafka.clients import ClusterError
from app.kafka.spans import required
from app.payloads.terminal import failed, repaint
from jobs.driver.command_line import session_settings
from jobs.driver.failures import SPARK_ERRORS, JobFailedError, explained, overflowed, require_broker
from jobs.driver.installed_spark import release
from jobs.driver.jvm import Files
from jobs.driver.session import open_session, require_class, stopping
from jobs.ingesting.bad_timestamps import first_bad_timestamp, read_in_python
from jobs.ingesting.checkpoint import Checkpoint, bind
from jobs.ingesting.command_line import IngestSettings, parser, settings_of
from jobs.ingesting.json_fault import fault
from jobs.ingesting.kept_schema import check
from jobs.ingesting.output import write
from jobs.ingesting.query_progress import Tally, counted, follow, measured, table
from jobs.ingesting.spark_logs import offsets, planned
from jobs.ingesting.table_schema import as_table
from jobs.ingesting.topics import Topics
from jobs.ingesting.values import CORRUPT, parsed
from jobs.records.schemas import RECORD, conform
from transforms.errors import ConfigurationError

__all__ = ["IngestSettings", "main", "read", "records", "run"]


def read(spark: SparkSession, settings: IngestSettings) -> DataFrame:
    """The stream of the topics' records, with the columns of Spark's Kafka source."""
    return spark.readStream.format("kafka").options(**settings.source_options()).load()


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
    tally.bad_values = 0 if settings.value.on_bad == "null" else None
    tally.bad_timestamps = 0 if settings.on_bad_timestamp == "null" else None
    try:
        if settings.delta:
            require_class(spark, "io.delta.sql.DeltaSparkSessionExtension", "--format", "Delta Lake", release().delta)
        checkpoint = bind(spark, settings)
        topics = Topics(spark, checkpoint)
        if settings.rebuild:
            print(f"ingest: {topics.rebuilt()}", file=sys.stderr)
        if settings.value.schema is not None:
            settings = _kept(spark, checkpoint)

        def show() -> None:
            topics.watch(tally.batches)
            if screen is not None:
                repaint(screen, str(tally))

        _follow(spark, settings, topics, tally, show, stop)
    except SPARK_ERRORS as error:
        raise explained(
            error,
            servers=settings.bootstrap_servers,
            source=settings.source,
            options=settings.kafka_options,
            fault=fault(spark, settings, error),
        ) from error
    except ClusterError as error:
        raise JobFailedError(str(error)) from error
    finally:
        if screen is not None:
            screen.write("\n")


def _follow(
    spark: SparkSession,
    settings: IngestSettings,
    topics: Topics,
    tally: Tally,
    show: Callable[[], None],
    stop: Event,
) -> None:
    """Follows one query, or another one behind a batch with which it failed, if that batch is done by then."""
    files, checkpoint = Files(spark), settings.checkpoint
    last = topics.ends() if settings.once and settings.on_bad_timestamp == "null" else {}
    while True:
        before = planned(files, checkpoint)
        try:
            rows = _rows(read(spark, settings), settings)
            follow(write(rows, settings, until_end=settings.once), tally, show, stop)
        except StreamingQueryException as error:
            batch, unfinished = planned(files, checkpoint)
            if before == (batch, True) and not unfinished:
                # So each query of the Kafka source ends in Spark 4.1 that does an unfinished batch of an earlier run
                # (SPARK-55271): behind it, it reports offsets that it has not asked for yet.
                continue
            if not (overflowed(error) and unfinished):
                raise
            if settings.on_bad_timestamp == "fail":
                found = first_bad_timestamp(settings, files, batch)
                advice = "--on-bad-timestamp null keeps such records with a null timestamp"
                raise JobFailedError(f"{found}; {advice}") from error
            rows = _rows(read_in_python(spark, settings, files, batch), settings)
            follow(write(rows, settings, until_end=True), tally, show, stop)
            end = offsets(files, checkpoint, batch)[1]
            # The next query would read what has come since this run began, and so on without end.
            if settings.once and all(end.get(place, 0) >= at for place, at in last.items()):
                return
        else:
            return
        if stop.is_set():
            return


def _rows(source: DataFrame, settings: IngestSettings) -> DataFrame:
    """What is written: the records, with their values as `settings.value` says."""
    rows = parsed(measured(records(source)), settings.value)
    return counted(rows, CORRUPT) if CORRUPT in rows.columns else rows


def _kept(spark: SparkSession, checkpoint: Checkpoint) -> IngestSettings:
    """The settings with which values have the types of the table; the checkpoint has noted them."""
    settings, before = checkpoint.settings, checkpoint.values
    if before is not None:
        settings = replace(settings, value=as_table(settings.value, before))
    now = _rows(read(spark, settings), settings).schema["value"].dataType
    if before is not None:
        check(
            "--value-schema" if settings.value.registered is None else "--schema-registry-url",
            before,
            now,
            widens=checkpoint.output.widens(),
            checkpoint=settings.checkpoint,
            output=settings.output,
        )
    checkpoint.remember(values=now.jsonValue())
    return settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 done, 1 failed at work, 2 something to set right first."""
    arguments = parse(parser(), argv)
    tally = Tally()
    status, message = 0, None
    try:
        configure(arguments)
        settings = settings_of(arguments)
        wanted = (
            release().connector,
            release().delta if settings.delta else None,
            release().avro if settings.value.format == "avro" else None,
        )
        session = session_settings(
            arguments,
            "wideload-ingest",
            packages=tuple(filter(None, wanted)),
            delta=settings.delta,
        )
        require_broker(settings.bootstrap_servers)
        if settings.client is not None:  # before Spark starts, which takes seconds
            required(settings.client, {"--topic": settings.topics})
        with open_session(session) as spark, stopping() as stop:
            run(spark, settings, tally, stop, screen=sys.stderr if sys.stderr.isatty() else None)
    except (ConfigurationError, JobFailedError, ClusterError) as error:
        status, message = failed("ingest", error, arguments), str(error)
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
