"""What `ingest` does where it is asked: Delta tables, folders, values taken apart, batches of so many bytes."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from jobs.driver.failures import JobFailedError
from jobs.ingest import IngestSettings, main
from jobs.ingesting.command_line import TableFormat
from jobs.ingesting.values import CORRUPT, ValueForm, parsed
from jobs.records.schemas import RECORD
from tests.jobs.delta import require_delta
from tests.jobs.test_ingest import REPOSITORY, Settings, command, connector, ingest, numbered, produce, settings
from transforms.errors import ConfigurationError
from transforms.record import Record

__all__ = ["settings"]  # the fixture

AVSC = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
DAY_MS = 86_400_000


def table(spark: SparkSession, settings: IngestSettings) -> list[Row]:
    """What is in a Delta table, in order."""
    return spark.read.format("delta").load(settings.output).orderBy("topic", "partition", "offset").collect()


def rows_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Records with these values, at offsets from 0."""
    rows = [
        (None, None if value is None else bytearray(value), None, "t", 0, at, datetime(2026, 1, 1, tzinfo=UTC), 0)
        for at, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD)


# --- the command line


def bad_options(folder: Path) -> list[tuple[list[str], str]]:
    (folder / "schema.json").write_text('{"$schema": "x", "type": "object"}')
    (folder / "schema.avsc").write_text('{"type": "string"}')
    js, avsc = str(folder / "schema.json"), str(folder / "schema.avsc")
    return [
        (["--value-format", "json"], "--value-schema: --value-format json needs the file of its schema"),
        (["--value-schema", js], "--value-schema: is for --value-format json and avro"),
        (["--value-format", "avro", "--value-schema", avsc], "--value-schema: is no Avro schema of a record"),
        (["--value-format", "avro", "--value-schema", "/nowhere/a.avsc"], "/nowhere/a.avsc cannot be read"),
        (["--avro-framing", "confluent"], "--avro-framing: is for --value-format avro"),
        (["--on-bad-value", "null"], "--on-bad-value: any value is binary"),
    ]


def test_main_bad_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not go together is one sentence that names the option, and exit status 2, before anything starts."""
    basis = ["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", "--output", "o", "--checkpoint", "c", "--once"]
    for options, message in bad_options(tmp_path):
        assert main([*basis, *options]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_main_limit_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """The option that is gone is refused with the one that takes its place."""
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("--bootstrap-servers", "b:1", "--topic", "t", "--output", "o", "--checkpoint", "c"),
                *("--max-bytes-per-trigger", "5"),
            ]
        )
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "no option --max-bytes-per-trigger; did you mean --max-offsets-per-trigger?" in said


@pytest.mark.parametrize("column", ["value", "key", "offset"])
def test_main_refuses_to_partition_by(column: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A column that has a value of its own in every record makes no folders."""
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "--bootstrap-servers",
                "b:1",
                "--topic",
                "t",
                "--output",
                "o",
                "--checkpoint",
                "c",
                "--partition-by",
                column,
            ]
        )
    assert ended.value.code == 2
    assert "topic, partition, date, hour" in capsys.readouterr().err


# --- values


def test_parsed_json(spark: SparkSession) -> None:
    """JSON becomes fields; a tombstone stays one; what is none of the schema keeps its bytes, and nothing else does."""
    form = ValueForm("json", "id BIGINT, note STRING", on_bad="null")
    bad = [b"", b"{", b"null", b'"text"', b'{"id": "seven"}', b'{"id": 1} \xff', b'{"id": 1, "note": "\xff"}']
    rows = parsed(rows_of(spark, b'{"id": 7, "note": "n", "more": 1}', b"{}", None, *bad), form).collect()
    assert rows[0].value.asDict() == {"id": 7, "note": "n"}
    assert rows[1].value.asDict() == {"id": None, "note": None}
    assert [row.value for row in rows[2:]] == [None] * (1 + len(bad))
    assert [row[CORRUPT] for row in rows] == [None, None, None, *map(bytearray, bad)]
    assert rows[0].__fields__ == ["key", "value", CORRUPT, *RECORD.fieldNames()[2:]]


def test_parsed_avro(spark: SparkSession) -> None:
    """Avro becomes fields, behind a registry's five bytes where they are asked for; the rest keeps its bytes."""
    good, empty, bad = b"\x0e\x02\x02n", b"\x00\x00", [b"", b"\x0e", b"\x0e\x02\x7fn"]
    plain = parsed(rows_of(spark, good, empty, None, *bad), ValueForm("avro", AVSC, on_bad="null")).collect()
    assert [row.value and row.value.asDict() for row in plain] == [
        {"id": 7, "note": "n"},
        {"id": 0, "note": None},
        *[None] * 4,
    ]
    assert [row[CORRUPT] for row in plain] == [None, None, None, *map(bytearray, bad)]

    form = ValueForm("avro", AVSC, "confluent", "null")
    frame = struct.pack(">bI", 0, 300)
    framed = parsed(
        rows_of(spark, frame + good, None, good, frame[:4], frame, b"\x01" + frame[1:] + good), form
    ).collect()
    assert [row.value and row.value.asDict() for row in framed] == [{"id": 7, "note": "n"}, *[None] * 5]
    assert [row[CORRUPT] is None for row in framed] == [True, True, False, False, False, False]


def test_parsed_avro_of_nulls(spark: SparkSession) -> None:
    """A record whose fields are all null is a record, and none that could not be read."""
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}]}'
    rows = parsed(rows_of(spark, b"\x00", b"\x04"), ValueForm("avro", schema, on_bad="null")).collect()
    assert rows[0].value.asDict() == {"a": None}
    assert (rows[1].value, rows[1][CORRUPT]) == (None, bytearray(b"\x04"))


def test_parsed_text(spark: SparkSession) -> None:
    """Text is what is valid UTF-8."""
    rows = parsed(rows_of(spark, "ü".encode(), b"", b"\xff", None), ValueForm("string", on_bad="null")).collect()
    assert [(row.value, row[CORRUPT]) for row in rows] == [
        ("ü", None),
        ("", None),
        (None, bytearray(b"\xff")),
        (None, None),
    ]


def test_parsed_json_of_large_values(spark: SparkSession) -> None:
    """A string of 21 million characters, more than Spark's parser and variants take by themselves, is no bad value."""
    row = rows_of(spark, b"x").withColumn(
        "value", F.expr("cast(concat('{\"a\": \"{', repeat('b', 20999999), '\"}') as binary)")
    )
    found = parsed(row, ValueForm("json", "a STRING")).select(F.length("value.a").alias("length")).first()
    assert found is not None
    assert found.length == 21_000_000


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id BIGINT name", "Spark does not read it as a schema: "),
        ('{"type": "object", "properties": {}}', "is no schema of Spark: give its DDL"),
        ("{", "is no JSON"),
    ],
)
def test_parsed_json_bad_schema(spark: SparkSession, schema: str, message: str) -> None:
    """A schema that is none of Spark's is told in a sentence."""
    with pytest.raises(ConfigurationError, match=f"--value-schema: {message}"):
        parsed(rows_of(spark, b"{}"), ValueForm("json", schema))


def test_parsed_avro_bad_schema(spark: SparkSession) -> None:
    """So is one of Avro that names a type that is not there."""
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "integer"}]}'
    with pytest.raises(ConfigurationError, match="--value-schema: Spark does not read it as Avro"):
        parsed(rows_of(spark, b""), ValueForm("avro", schema))


def test_ingest_bad_value(spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings) -> None:
    """A bad value fails with its place, its size and what to do, not with its bytes; or goes in, counted, if asked."""
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: [Record(None, b'{"id": 1}'), Record(None, b"secret" * 1000), Record(b"k", None)]})
    form = ValueForm("json", "id BIGINT")
    with pytest.raises(JobFailedError) as failed:
        ingest(spark, settings(topic, value=form))
    assert str(failed.value) == (
        f"topic {topic} partition 0 offset 1: the value, 6000 bytes, is not JSON of --value-schema: it is no "
        "JSON object; --on-bad-value null goes on, with the bytes of such values in a column of their own"
    )
    chosen = settings(topic, value=ValueForm("json", "id BIGINT", on_bad="null"))
    tally = ingest(spark, chosen)
    assert (tally.bytes, tally.summary()["bad_values"]) == (6010, 1)
    rows = spark.read.parquet(chosen.output).orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [1, None, None]
    assert [row[CORRUPT] for row in rows] == [None, bytearray(b"secret" * 1000), None]
    assert ingest(spark, chosen).summary()["bad_values"] == 0
    produce(broker, topic, {0: [Record(None, b"{"), Record(None, b"[]")]})
    tally = ingest(spark, settings(topic, value=chosen.value, max_offsets_per_trigger=1))
    assert (tally.batches, tally.summary()["bad_values"]) == (2, 2)


# --- folders


def test_ingest_partitions_by_time(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """Folders are of the timestamp's date and hour in UTC, whatever the session's zone, before 1970 too."""
    topic = make_topic(partitions=1)
    sent = [Record(None, b"v", timestamp=at) for at in (3 * 3_600_000, DAY_MS - 1, 20_000 * DAY_MS + 1)]
    produce(broker, topic, {0: sent})
    chosen = settings(topic, partition_by=("topic", "date", "hour"))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        ingest(spark, chosen)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    folders = {str(file.parent.relative_to(chosen.output)) for file in Path(chosen.output).rglob("*.parquet")}
    assert folders == {
        f"topic={topic}/date=1970-01-01/hour=3",
        f"topic={topic}/date=1970-01-01/hour=23",
        f"topic={topic}/date=2024-10-04/hour=0",
    }
    rows = spark.read.parquet(chosen.output).orderBy("offset").collect()
    assert [(row.offset, row.date, row.hour) for row in rows][2] == (2, date(2024, 10, 4), 0)
    with pytest.raises(ConfigurationError, match="belongs to form parquet, partitioned by topic, date, hour"):
        ingest(spark, settings(topic))


# --- Delta


def test_delta_writes_each_record_once(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A batch that is in the table, and not in the checkpoint's list of what is done, is not there twice afterwards."""
    topic = make_topic(partitions=2)
    produce(broker, topic, {0: numbered(3), 1: [Record(b"k", None), Record(None, b"")]})
    chosen = settings(topic, format="delta", partition_by=("partition",))
    assert ingest(spark, chosen).rows == 5
    for name in ("0", ".0.crc"):
        Path(chosen.checkpoint, "commits", name).unlink()
    produce(broker, topic, {0: numbered(2, first=3), 1: numbered(1)})
    ingest(spark, chosen)

    rows = table(spark, chosen)
    assert [(row.partition, row.offset) for row in rows] == [*((0, n) for n in range(5)), *((1, n) for n in range(3))]
    assert [row.value for row in rows[4:]] == [bytearray(b"v4"), None, bytearray(), bytearray(b"v0")]
    logs = [
        json.loads(line)
        for file in sorted(Path(chosen.output, "_delta_log").glob("*.json"))
        for line in file.read_text().splitlines()
    ]
    stats = [json.loads(log["add"]["stats"]) for log in logs if "add" in log]
    assert stats
    assert all(set(each["maxValues"]) == {"topic", "offset", "timestamp", "timestamp_type"} for each in stats)
    for file in Path(chosen.output).rglob("*.parquet"):
        groups = pq.ParquetFile(file).metadata
        column = groups.row_group(0).column(groups.schema.names.index("value"))
        assert not column.has_dictionary_page
        assert not column.statistics
    files = {1: 2, 0: 2}  # by partition: one for each micro-batch with records of it
    assert Counter(row.partition for row in _files(spark, chosen)) == files
    spark.sql(f"OPTIMIZE delta.`{chosen.output}`")
    assert Counter(row.partition for row in _files(spark, chosen)) == {0: 1, 1: 1}
    produce(broker, topic, {0: numbered(1, first=5)})
    assert ingest(spark, chosen).rows == 1, "the job goes on in a table that was compacted"
    assert len(table(spark, chosen)) == 9


def _files(spark: SparkSession, settings: IngestSettings) -> list[Row]:
    """The files of a Delta table, each with its partition."""
    rows = spark.read.format("delta").load(settings.output)
    return rows.select("partition", F.input_file_name().alias("file")).distinct().collect()


def test_delta_takes_new_fields(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A field more in the schema of values is a field more in the table, null in what was there before."""
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: [Record(None, b'{"a": 1, "b": 2}')]})
    ingest(spark, settings(topic, format="delta", value=ValueForm("json", "a BIGINT")))
    produce(broker, topic, {0: [Record(None, b'{"a": 1, "b": 2}')]})
    chosen = settings(topic, format="delta", value=ValueForm("json", "a BIGINT, b BIGINT"))
    ingest(spark, chosen)
    assert [row.value.b for row in table(spark, chosen)] == [None, 2]


def test_delta_refusals(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings, tmp_path: Path
) -> None:
    """Parquet files are no Delta table, nor the other way round; and a table has one checkpoint."""
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: numbered(1)})
    parquet, delta = str(tmp_path / "parquet"), str(tmp_path / "delta")
    fresh = str(tmp_path / "fresh")
    ingest(spark, settings(topic, output=parquet, checkpoint=str(tmp_path / "c1")))
    spark.sql(f"CREATE TABLE delta.`{delta}` (key BINARY, value BINARY) USING delta")
    ingest(spark, settings(topic, output=delta, checkpoint=str(tmp_path / "c2"), format="delta"))
    with pytest.raises(ConfigurationError, match=r"--format: .* holds files and is no Delta table"):
        ingest(spark, settings(topic, output=parquet, checkpoint=fresh, format="delta"))
    with pytest.raises(ConfigurationError, match=r"--format: .* is a Delta table, in which Parquet files alone"):
        ingest(spark, settings(topic, output=delta, checkpoint=fresh))
    with pytest.raises(ConfigurationError, match=r"--checkpoint: .* was written with another .* be there twice"):
        ingest(spark, settings(topic, output=delta, checkpoint=fresh, format="delta"))


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_process_killed(
    spark: SparkSession,
    broker: str,
    make_topic: Callable[..., str],
    settings: Settings,
    tmp_path: Path,
    form: TableFormat,
) -> None:
    """Killed in the middle and run again: each record is in the output once."""
    if form == "delta":
        require_delta(spark)
    topic = make_topic(partitions=2)
    produce(broker, topic, {0: numbered(60), 1: numbered(20)})
    options = command(broker, tmp_path, "--topic", topic, "--format", form, "--max-offsets-per-trigger", "20")
    run = [sys.executable, "-m", "jobs.ingest", *options, "--trigger-seconds", "0"]
    environ = {**os.environ, "WIDELOAD_SPARK_JARS": connector(spark)}
    process = subprocess.Popen(run, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        commits, deadline, stopped = tmp_path / "checkpoint" / "commits" / "0", time.monotonic() + 180, Event()
        while not commits.exists() and process.poll() is None and time.monotonic() < deadline:
            stopped.wait(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    done = ingest(spark, settings(topic, format=form, max_offsets_per_trigger=20))  # as `--once`, in this session
    assert done.end_offsets == {topic: {"0": 60, "1": 20}}
    found = spark.read.format(form).load(str(tmp_path / "out")).select("partition", "offset").collect()
    assert Counter(map(tuple, found)) == Counter([*((0, n) for n in range(60)), *((1, n) for n in range(20))])
