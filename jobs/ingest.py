"""Kafka to Parquet: a topic of whole values, plain or inflated, read with nothing but Spark's own Kafka source.

Each record that is in the topic is in the output once: Spark's checkpoint and the file sink's list of whole files make
it so, over any number of failures and restarts. What the topic itself holds twice (a producer, or a worker, that is "at
least once") is there twice, with two offsets.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

if not __package__:  # spark-submit runs this file by itself, with this folder on the path in place of the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from jobs.checkpoint import bind
from jobs.failures import SPARK_ERRORS, JobFailedError, explained, require_broker
from jobs.names import LIMIT_OPTION
from jobs.options import add_kafka, add_spark, configure, kafka_options, session_settings
from jobs.progress import Tally, bar, follow, measured, table
from jobs.report import repaint
from jobs.schemas import RECORD, conform
from jobs.session import open_session
from transforms.errors import ConfigurationError

__all__ = ["IngestSettings", "main", "read", "records", "write"]

_MIB = 1 << 20

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 100_000
"""Bounds what a failure makes Spark do again and how large one file grows; memory does not depend on it."""

DEFAULT_ROW_GROUP_BYTES = 32 * _MIB
"""A task holds one row group until it is written, and a reader holds one until it is read. Parquet's own 128 MiB costs
four times as much of both and gains nothing here: a large value fills pages by itself."""

# Parquet counts bytes only after each 100 rows, and from what it saw guesses when to count again: 100 values of 15 MB
# are 1.5 GB before the first look, and end a JVM of 4 GB. Looking at every row costs little beside copying it. A
# dictionary and the least and greatest value are of no use for values that are large and all different, and Parquet
# would keep a copy of each (with them, 512 MB of heap are too little; without, enough).
_PARQUET = MappingProxyType(
    {
        "parquet.page.size.row.check.min": "1",
        "parquet.page.size.row.check.max": "1",
        "parquet.enable.dictionary#value": "false",
        "parquet.column.statistics.enabled#value": "false",
    }
)


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """All that the job needs to know.

    Attributes:
        bootstrap_servers: Kafka's `host:port`, comma-separated.
        output: folder that receives the Parquet files, anywhere Spark can write.
        checkpoint: folder that remembers how far the job is; belongs to this output and these topics alone.
        topics: topics to read; or
        subscribe_pattern: a Java regular expression for their names, new ones included.
        once: read what is there now, then end; else go on until stopped.
        trigger_seconds: time from one micro-batch to the next; 0 begins each as soon as the one before it ends.
        starting_offsets: where a new checkpoint begins: `earliest`, `latest` or Spark's JSON of offsets.
        max_offsets_per_trigger: most records in one micro-batch; None is without bound.
        min_partitions: least number of tasks, by splitting Kafka's partitions; None is one task a partition.
        row_group_bytes: size of a Parquet row group, stored bytes.
        fail_on_data_loss: fail when records that were not yet read are gone from Kafka.
        kafka_options: further options of Spark's Kafka source, as it takes them; may hold secrets.
    """

    bootstrap_servers: str
    output: str
    checkpoint: str
    topics: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    once: bool = False
    trigger_seconds: float = 10.0
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int | None = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    min_partitions: int | None = None
    row_group_bytes: int = DEFAULT_ROW_GROUP_BYTES
    fail_on_data_loss: bool = True
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """What is read, for a message."""
        return f"pattern {self.subscribe_pattern}" if self.subscribe_pattern else ",".join(sorted(self.topics))

    def source_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source; the user's own win."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "startingOffsets": self.starting_offsets,
            "includeHeaders": "true",
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            # A worker with processing.guarantee = "exactly_once" writes transactions; what it aborted is no record.
            "kafka.isolation.level": "read_committed",
        }
        if self.subscribe_pattern:
            options["subscribePattern"] = self.subscribe_pattern
        else:
            options["subscribe"] = ",".join(self.topics)
        if self.max_offsets_per_trigger:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        if self.min_partitions:
            options["minPartitions"] = str(self.min_partitions)
        return options | {name: value for name, value in self.kafka_options.items() if name.lower() != LIMIT_OPTION}


def read(spark: SparkSession, settings: IngestSettings) -> DataFrame:
    """The stream of the topics' records, with the columns of Spark's Kafka source."""
    return spark.readStream.format("kafka").options(**settings.source_options()).load()


def records(source: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source as `RECORD`."""
    return conform(source.withColumn("timestamp_type", F.col("timestampType")), RECORD)


def write(rows: DataFrame, settings: IngestSettings) -> StreamingQuery:
    """Start to write `rows` to Parquet.

    Parquet's own settings go into the session (a user's own `--conf` stands): Spark's file sink does not hand the
    options of a stream to Parquet.
    """
    conf = rows.sparkSession.conf
    conf.set("parquet.block.size", str(settings.row_group_bytes))
    for key, value in _PARQUET.items():
        if conf.get(key, None) is None:
            conf.set(key, value)
    writer = (
        rows.writeStream.format("parquet")
        .queryName("ingest")
        .option("path", settings.output)
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds").start()


def run(spark: SparkSession, settings: IngestSettings, tally: Tally, stop: Event, *, screen: TextIO | None) -> None:
    """The job on a session: bind the checkpoint, read, write, and follow until the end.

    Args:
        spark: the session.
        settings: what to do.
        tally: what was done, filled in as it is done.
        stop: when set, the batch at work is broken off (the next run does it again) and the job ends.
        screen: a terminal for a bar that moves with each batch; None for none.

    Raises:
        ConfigurationError: the user can set it right; nothing that was written is in doubt.
        JobFailedError: anything else.
    """

    def show(now: Tally) -> None:
        if screen is not None:
            repaint(screen, bar(now))

    try:
        bind(spark, settings.checkpoint, settings.output, job="ingest", source=settings.source)
        query = write(measured(records(read(spark, settings))), settings)
        follow(query, tally, show, stop)
    except SPARK_ERRORS as error:
        raise explained(
            error, servers=settings.bootstrap_servers, source=settings.source, options=settings.kafka_options
        ) from error
    finally:
        if screen is not None:
            screen.write("\n")


def main(argv: Sequence[str] | None = None, document: Mapping[str, Any] | None = None) -> int:
    """Run the job; the exit status: 0 done, 1 failed at work, 2 something to set right first.

    Args:
        argv: the command line.
        document: what a worker's configuration says; see `jobs.configured`.
    """
    arguments = _parser().parse_args(argv)
    tally = Tally()
    status, message = 0, None
    try:
        configure(arguments, document)
        settings, session = _settings(arguments), session_settings(arguments, "wideload-ingest")
        require_broker(settings.bootstrap_servers)
        with open_session(session) as spark, _stopping() as stop:
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


@contextmanager
def _stopping() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set, in place of what they do elsewhere."""
    stop = Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, former, strict=True):
            signal.signal(number, handler)


def _settings(arguments: argparse.Namespace) -> IngestSettings:
    return IngestSettings(
        bootstrap_servers=arguments.bootstrap_servers,
        output=arguments.output,
        checkpoint=arguments.checkpoint,
        topics=tuple(arguments.topic or ()),
        subscribe_pattern=arguments.subscribe_pattern,
        once=arguments.once,
        trigger_seconds=arguments.trigger_seconds,
        starting_offsets=arguments.starting_offsets,
        max_offsets_per_trigger=arguments.max_offsets_per_trigger or None,
        min_partitions=arguments.min_partitions,
        row_group_bytes=arguments.row_group_bytes,
        fail_on_data_loss=arguments.fail_on_data_loss,
        kafka_options=kafka_options(arguments, {"--topic": arguments.topic or ()}),
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("is 0 or more")
    return number


def _parser() -> argparse.ArgumentParser:
    # argparse and not click: a cluster's nodes need nothing but Spark and these files.
    parser = argparse.ArgumentParser(
        prog="ingest",
        description="Read a Kafka topic of whole values, plain or inflated, into Parquet: key, value, headers, topic, "
        "partition, offset, timestamp, each record once.",
        epilog="Exit status: 0 done, 1 failed at work, 2 something to set right first. The last line on stdout says "
        "what was done, as JSON when stdout is not a terminal.",
        allow_abbrev=False,
    )
    source = parser.add_argument_group("what to read")
    add_kafka(source)
    topics = source.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", action="append", metavar="NAME", help="a topic; may be given several times")
    topics.add_argument("--subscribe-pattern", metavar="REGEX", help="topics by a Java regular expression")
    source.add_argument(
        "--starting-offsets",
        default="earliest",
        metavar="WHERE",
        help="where a new checkpoint begins: earliest (default), latest, or Spark's JSON of offsets",
    )
    source.add_argument(
        "--fail-on-data-loss",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fail when records that were not yet read are gone from Kafka, by retention or because the topic was "
        "deleted; the default",
    )

    sink = parser.add_argument_group("where to write")
    sink.add_argument("--output", required=True, metavar="FOLDER", help="folder for the Parquet files")
    sink.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="folder that remembers how far the job is; belongs to this output and these topics alone",
    )
    sink.add_argument(
        "--row-group-bytes",
        type=_count,
        default=DEFAULT_ROW_GROUP_BYTES,
        metavar="N",
        help="size of a Parquet row group, which each task holds in memory (default %(default)s)",
    )

    pace = parser.add_argument_group("how much, how often")
    when = pace.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="read what is there now, then end")
    when.add_argument(
        "--trigger-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="without --once: time from one micro-batch to the next; 0 for no pause (default %(default)s)",
    )
    pace.add_argument(
        "--max-offsets-per-trigger",
        type=_count,
        default=DEFAULT_MAX_OFFSETS_PER_TRIGGER,
        metavar="N",
        help="most records in one micro-batch, so that less is done again after a failure; 0 for no bound "
        "(default %(default)s)",
    )
    pace.add_argument(
        "--min-partitions",
        type=_count,
        metavar="N",
        help="split Kafka's partitions until there are N tasks; for a topic with fewer partitions than cores",
    )

    add_spark(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
