"""The settings of `ingest`, and its command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from app.config.arguments import JobParser, add_kafka, at_least, client_settings, properties
from app.config.java_client import JavaOnlyError
from app.config.settings import ClientSettings
from jobs.driver.command_line import add_spark, source_options
from jobs.driver.identifier_limits import LIMIT_OPTION
from jobs.ingesting.registry import CONFIG, OPTION, RegistrySettings
from jobs.ingesting.table_schema import check, registered
from jobs.ingesting.values import Framing, OnBad, ValueForm, ValueFormat
from transforms.errors import ConfigurationError

TableFormat = Literal["parquet", "delta"]
Partitioned = Literal["topic", "partition", "date", "hour"]

_DDL = re.compile(r"\s*(\w+|`[^`]+`)(\s+|\s*:\s*)[A-Za-z]")
_COLUMNS = get_args(Partitioned)

DEFAULT_MAX_OFFSETS_PER_TRIGGER = 100_000
"""Limits what Spark repeats after a failure, and how large a file grows; memory does not depend on it."""

DEFAULT_ROW_GROUP_BYTES = 32 << 20
"""A task that writes, and a reader, hold one row group in memory. Parquet's own 128 MiB takes four times as much memory
and gains nothing here: a large value fills pages by itself."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """The settings of the job.

    Attributes:
        bootstrap_servers: Kafka's `host:port`, comma-separated.
        output: the directory of the Parquet files or the Delta table, anywhere Spark can write.
        checkpoint: a directory that stores the progress of the job; it belongs to this output and these topics only.
        client: how to reach the cluster without Java; None if only Java can log in.
        topics: topics to read; or
        subscribe_pattern: a Java regular expression for their names, new ones included.
        once: read up to the current end, then stop; otherwise run until stopped.
        trigger_seconds: time from one micro-batch to the next; with 0 each begins when the one before it ends.
        starting_offsets: where a new checkpoint begins: `earliest`, `latest` or Spark's JSON of offsets.
        max_offsets_per_trigger: the most records in one micro-batch; 0 for no limit.
        min_partitions: the least number of tasks, by splitting Kafka's partitions; None for one task a partition.
        row_group_bytes: size of a Parquet row group, stored bytes.
        format: the format of the output.
        partition_by: columns that make its directories; `date` and `hour` are those of the timestamp in UTC.
        value: the format of the values.
        rebuild: forget what an earlier run wrote, if the output has no rows any more, and restart.
        fail_on_data_loss: fail if Kafka has deleted records before they were read.
        on_bad_timestamp: whether a record with a timestamp that Spark cannot hold is a failure; else its timestamp is
            null.
        kafka_options: more options of Spark's Kafka source; may hold secrets.
    """

    bootstrap_servers: str
    output: str
    checkpoint: str
    client: ClientSettings | None = field(default=None, repr=False)
    topics: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    once: bool = False
    trigger_seconds: float = 10.0
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS_PER_TRIGGER
    min_partitions: int | None = None
    row_group_bytes: int = DEFAULT_ROW_GROUP_BYTES
    format: TableFormat = "parquet"
    partition_by: tuple[Partitioned, ...] = ()
    value: ValueForm = field(default_factory=ValueForm)
    rebuild: bool = False
    fail_on_data_loss: bool = True
    on_bad_timestamp: OnBad = "fail"
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """The topics or the pattern, for a message."""
        return f"pattern {self.subscribe_pattern}" if self.subscribe_pattern else ",".join(sorted(self.topics))

    @property
    def delta(self) -> bool:
        """Whether the output is a Delta table."""
        return self.format == "delta"

    @property
    def form(self) -> str:
        """The form of the output, for a message: it must not change from one run to the next."""
        parts: list[str] = [self.format]
        if self.value.format != "binary":
            parts.append(f"value {self.value.format}")
        if self.partition_by:
            parts.append(f"partitioned by {', '.join(self.partition_by)}")
        return ", ".join(parts)

    def source_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source; the user's own win."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "startingOffsets": self.starting_offsets,
            "includeHeaders": "true",
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            # A worker with processing.guarantee = "exactly_once" writes transactions; aborted ones are left out.
            "kafka.isolation.level": "read_committed",
            # The source asks for offsets behind a fetch that it has sent ahead, and a broker answers the requests of a
            # connection one after the other. At the end of a partition it keeps the fetch for as long as this, half a
            # second by default.
            "kafka.fetch.max.wait.ms": "10",
            # A topic that is deleted while it is read shall not come back.
            "kafka.allow.auto.create.topics": "false",
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


def settings_of(arguments: argparse.Namespace) -> IngestSettings:
    """The settings of a command line; the schema registry is asked for the schema of the table, if there is one.

    Raises:
        ConfigurationError: an argument is wrong, or does not fit another; or the registry does not answer, or has no
            schema for the table.
    """
    client = None
    try:
        client = client_settings(arguments, of_spark=True)
    except JavaOnlyError as exc:
        if arguments.on_bad_timestamp == "null":
            raise
        print(f"ingest: it is not checked whether topics were created again: {exc}", file=sys.stderr)
    if arguments.on_bad_timestamp == "null":
        try:
            from jobs.reading import record_source  # noqa: F401  # whether its packages are there
        except ImportError as exc:
            raise ConfigurationError("--on-bad-timestamp", f"null needs Spark 4.0 and PyArrow: {exc}") from exc
    return IngestSettings(
        client=client,
        topics=tuple(arguments.topic or ()),
        partition_by=tuple(dict.fromkeys(arguments.partition_by)),
        value=_value(arguments),
        kafka_options=source_options(arguments, {"--topic": arguments.topic or ()}),
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
    )


_AS_GIVEN = (
    "bootstrap_servers", "output", "checkpoint", "subscribe_pattern", "once", "trigger_seconds", "starting_offsets",
    "max_offsets_per_trigger", "min_partitions", "row_group_bytes", "format", "rebuild", "fail_on_data_loss",
    "on_bad_timestamp",
)  # fmt: skip


def _value(arguments: argparse.Namespace) -> ValueForm:
    value = ValueForm(
        format=arguments.value_format,
        schema=_schema(arguments.value_schema) if arguments.value_schema else None,
        framing=arguments.avro_framing,
        on_bad=arguments.on_bad_value,
    )
    url, subject, message = (
        arguments.schema_registry_url,
        arguments.schema_registry_subject,
        arguments.protobuf_message,
    )
    if url is None:
        if arguments.schema_registry_config or subject or message:
            raise ConfigurationError(OPTION, "is missing; the other options of a registry require it")
        value.check()
        return value
    found = properties(CONFIG, arguments.schema_registry_config) if arguments.schema_registry_config else {}
    registry = RegistrySettings(url, found)
    check(value, registry)
    if message and value.format != "protobuf":
        raise ConfigurationError("--protobuf-message", "is for --value-format protobuf")
    value.check(registry=True)
    return registered(value, registry, subject, arguments.topic or (), message)


def _schema(given: str) -> str:
    """The schema in a file, or `given` itself if it is one."""
    try:
        file = Path(given).expanduser()
        # A column of DDL is a name and a type, apart by a space or a colon. JSON begins with a brace.
        if not file.is_file() and (given.lstrip()[:1] == "{" or _DDL.match(given)):
            return given
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError("--value-schema", f"{given[:200]} cannot be read: {reason}") from error


def _column(text: str) -> str:
    if text in ("key", "value"):
        raise argparse.ArgumentTypeError(
            f"{text} would create a directory for each value; {', '.join(_COLUMNS)} can be used"
        )
    if text not in _COLUMNS:
        raise argparse.ArgumentTypeError(f"is one of {', '.join(_COLUMNS)}, not {text!r}")
    return text


def parser() -> argparse.ArgumentParser:
    """The command line. With argparse, not click: the nodes of a cluster need nothing but Spark and these files."""
    parser = JobParser(
        prog="ingest",
        description="Reads a Kafka topic with full values (plain or inflated) into Parquet files or a Delta table, "
        "each record exactly once. The columns are key, value, headers, topic, partition, offset and timestamp.",
        epilog="Exit status: 0 if the job completed or was stopped, 1 if it failed while it ran, 2 if something "
        "must be corrected first. The last line on stdout is the result, as JSON if stdout is not a terminal.",
        allow_abbrev=False,
    )
    source = parser.add_argument_group("what to read")
    add_kafka(source, "an option of Spark's Kafka source")
    topics = source.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", action="append", metavar="NAME", help="a topic; may be given several times")
    topics.add_argument("--subscribe-pattern", metavar="REGEX", help="topics by a Java regular expression")
    # fmt: off
    source.add_argument("--starting-offsets", default="earliest", metavar="WHERE",
        help="where a new checkpoint starts: earliest (default), latest, or Spark's JSON of offsets")
    source.add_argument("--fail-on-data-loss", action=argparse.BooleanOptionalAction, default=True,
        help="fail if records were deleted before they were read, by retention or with their topic (the default)")
    source.add_argument("--on-bad-timestamp", choices=get_args(OnBad), default="fail",
        help="what to do with a record whose timestamp is out of Spark's range because it is not in milliseconds: "
            "fail (default), or null, which keeps the record with a null timestamp; null reads records with "
            "Python, which is slower and requires aiokafka and crc32c on executors")

    sink = parser.add_argument_group("where to write")
    sink.add_argument("--output", required=True, metavar="FOLDER",
        help="the directory of the Parquet files or the Delta table")
    sink.add_argument("--checkpoint", required=True, metavar="FOLDER",
        help="a directory that stores the progress of the job; it belongs to this output and these topics only")
    sink.add_argument("--rebuild", action="store_true",
        help="the output no longer exists: discard the checkpoint, report what the topics still contain, and read "
            "all of it again; refused if the output has rows")
    sink.add_argument("--format", choices=get_args(TableFormat), default="parquet",
        help="the format of the output (default %(default)s)")
    sink.add_argument("--partition-by", action="append", default=[], type=_column, metavar="COLUMN",
        help="create a directory for each topic, partition, date or hour (of the timestamp, in UTC); may be given "
            "several times, the outermost first")
    sink.add_argument("--row-group-bytes", type=at_least(0), default=DEFAULT_ROW_GROUP_BYTES, metavar="N",
        help="size of a Parquet row group, which each task holds in memory (default %(default)s)")

    values = parser.add_argument_group("what the values are")
    values.add_argument("--value-format", choices=get_args(ValueFormat), default="binary",
        help="the column `value`: the raw bytes (default), text, or the fields of JSON, Avro or Protobuf")
    values.add_argument("--value-schema", metavar="SCHEMA",
        help="the schema of the values, or a file that contains it. For JSON: Spark's DDL (id BIGINT, name STRING) "
            "or JSON; for Avro: the writer's .avsc")
    values.add_argument("--avro-framing", choices=get_args(Framing), default="none",
        help="confluent: skip the zero byte and the 4-byte schema id in front of each value")
    values.add_argument(OPTION, metavar="URL",
        help="a schema registry with Confluent's API: each value begins with a zero byte and the id of its schema; the "
        "columns are those of the newest schema, or of --value-schema")
    values.add_argument("--schema-registry-subject", metavar="NAME",
        help="the subject of the columns' schema (default TOPIC-value)")
    values.add_argument("--protobuf-message", metavar="NAME",
        help="the full name of the message that the rows contain (default: the first message of the schema)")
    values.add_argument(CONFIG, metavar="FILE",
        help="a properties file with the registry's credentials (basic.auth.user.info=USER:PASSWORD, "
        "bearer.auth.token, ssl.ca.location, …)")
    values.add_argument("--on-bad-value", choices=get_args(OnBad), default="fail",
        help="what to do with a value that is not valid in this format: fail (default), or null, which keeps its "
            "bytes in the column _corrupt_value")

    pace = parser.add_argument_group("how much, how often")
    when = pace.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="read up to the current end of the topics, then stop")
    when.add_argument("--trigger-seconds", type=float, default=10.0, metavar="S",
        help="without --once: the time between micro-batches; 0 for no pause (default %(default)s)")
    pace.add_argument("--max-offsets-per-trigger", type=at_least(0), default=DEFAULT_MAX_OFFSETS_PER_TRIGGER,
        metavar="N",
        help="the maximum number of records in a micro-batch, which limits what a restart repeats; 0 for no limit "
            "(default %(default)s)")
    pace.add_argument("--min-partitions", type=at_least(0), metavar="N",
        help="split Kafka's partitions until there are N tasks; for a topic with fewer partitions than cores")

    add_spark(parser)
    return parser
