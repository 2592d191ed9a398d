"""From a topic to Parquet or a Delta table, with nothing but Spark's own Kafka source."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from typing import Any, cast

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from app.kafka.topics import Identity
from jobs.driver.failures import JobFailedError
from jobs.ingest import IngestSettings, _follow
from jobs.ingesting.query_progress import Tally
from jobs.ingesting.values import CORRUPT, ValueForm
from tests.app.payloads.swept import write, write_aborted
from tests.integration.topics import send
from tests.integration.worker_process import until
from tests.jobs.ingests import Settings, ingest, numbered, require_delta, written
from transforms.errors import ConfigurationError
from transforms.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]
DAY_MS = 86_400_000
ANY_TIME = {"message.timestamp.after.max.ms": 2**63 - 1}
MakeTopic = Callable[..., str]


@pytest.mark.parametrize(
    ("before", "after", "queries"),
    [((3, True), (3, False), 2), ((3, True), (3, True), 1), ((3, True), (4, True), 1), ((3, False), (3, False), 1)],
)
def test_query_that_fails_behind_an_unfinished_batch(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, bool], after: tuple[int, bool], queries: int
) -> None:
    """It is started once more if that batch is done now and no other has begun; any other failure ends the job."""
    looks, started = iter((before, after, after)), []

    def follow(query: int, *_: object) -> None:
        started.append(query)
        if len(started) == 1:
            raise StreamingQueryException("it ended")

    for name, fake in {
        "Files": lambda _: None,
        "planned": lambda *_: next(looks),
        "read": lambda *_: None,
        "_rows": lambda *_: None,
        "write": lambda *_, **__: 0,
        "follow": follow,
    }.items():
        monkeypatch.setattr(f"jobs.ingest.{name}", fake)
    ended = pytest.raises(StreamingQueryException) if queries == 1 else nullcontext()
    with ended:
        _follow(cast("Any", None), IngestSettings("b:1", "o", "c"), cast("Any", None), Tally(), lambda: None, Event())
    assert len(started) == queries


# --- records


@pytest.mark.matrix
def test_ingest_keeps_everything_of_a_record(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """Null keys and values, empty ones, headers twice or null, time and place: all arrive as they were."""
    topic = make_topic(partitions=1)
    sent = [
        Record(None, b"no key", timestamp=1_700_000_000_123),
        Record(b"tombstone", None, [("why", b"deleted")], timestamp=1_700_000_000_124),
        Record(b"", b"", timestamp=1_700_000_000_125),
        Record(b"h", b"v", [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"")], timestamp=1_700_000_000_126),
        Record(b"\x00\xff", bytes(range(256)), [("ünï", b"\xff")], timestamp=1),
    ]
    write(broker, topic, *sent)
    chosen = settings(topic)
    tally = ingest(spark, chosen)

    rows = [row for file in Path(chosen.output).glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    rows.sort(key=lambda row: row["offset"])
    assert [(row["key"], row["value"]) for row in rows] == [(r.key, r.value) for r in sent]
    headers = [[(each["key"], each["value"]) for each in row["headers"] or ()] for row in rows]
    assert headers == [list(r.headers) for r in sent]
    times = [row["timestamp"].replace(tzinfo=UTC) for row in rows]
    assert times == [datetime.fromtimestamp(r.timestamp / 1000, UTC) for r in sent]
    assert [(row["topic"], row["partition"], row["offset"], row["timestamp_type"]) for row in rows] == [
        (topic, 0, offset, 0) for offset in range(len(sent))
    ]
    assert (tally.batches, tally.rows) == (1, 5)
    assert tally.bytes == sum(len(r.key or b"") + len(r.value or b"") for r in sent)
    assert tally.end_offsets == {topic: {"0": 5}}


def test_ingest_large_values_over_partitions(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """Large values arrive whole from every partition, and no row group holds more than it must."""
    topic = make_topic(partitions=2, **{"max.message.bytes": 2**24})
    noise = os.urandom(4_000_000)
    sent = [Record(b"%d" % n, noise[n:]) for n in range(3)] + numbered(2)
    for partition in range(2):
        write(broker, topic, *sent, partition=partition)
    chosen = settings(topic, row_group_bytes=4_000_000)
    assert ingest(spark, chosen).rows == 10
    found: dict[int, list[bytes]] = {}
    for file in Path(chosen.output).glob("*.parquet"):
        metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        assert max(group.total_byte_size for group in groups) < chosen.row_group_bytes + len(noise)
        assert all(group.column(1).path_in_schema == "value" for group in groups)
        assert not any(group.column(1).has_dictionary_page or group.column(1).statistics for group in groups)
        for row in pq.read_table(file, columns=["partition", "offset", "value"]).sort_by("offset").to_pylist():
            found.setdefault(row["partition"], []).append(row["value"])
    assert found == {partition: [r.value for r in sent] for partition in range(2)}


@pytest.mark.matrix
def test_ingest_again_adds_only_what_is_new(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """A second run finds nothing; a third, after new records, adds those alone, and none of an aborted transaction."""
    topic = make_topic(partitions=2)
    for partition, count in ((0, 30), (1, 10)):
        write(broker, topic, *numbered(count), partition=partition)
    with pytest.raises(ConfigurationError, match="--topic: no-such-topic is not on the broker"):
        ingest(spark, settings("no-such-topic"))  # with the same folders
    chosen = settings(topic, max_offsets_per_trigger=16)
    first = ingest(spark, chosen)
    assert (first.rows, first.end_offsets) == (40, {topic: {"0": 30, "1": 10}})
    assert first.batches >= 3
    assert ingest(spark, chosen).rows == 0
    write_aborted(broker, topic, *numbered(2, first=100), partition=1)
    write(broker, topic, *numbered(5, first=10), partition=1)
    last = ingest(spark, chosen)
    assert (last.rows, last.end_offsets) == (5, {topic: {"0": 30, "1": 18}})
    assert [(row.partition, bytes(row.value)) for row in written(spark, chosen)] == [
        *((0, b"v%d" % n) for n in range(30)),
        *((1, b"v%d" % n) for n in range(15)),
    ]


def test_ingest_of_a_pattern(
    spark: SparkSession,
    broker: str,
    make_topic: MakeTopic,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pattern that matches no topic of users is told, as it may be misspelt; the same checkpoint reads later ones."""
    name = f"later-{uuid.uuid4().hex}"
    chosen = settings(subscribe_pattern=f"{name}.*|__.*")
    with pytest.raises(ConfigurationError, match="--subscribe-pattern: is not a Java regular expression: "):
        ingest(spark, replace(chosen, subscribe_pattern="("))
    with monkeypatch.context() as patch:
        patch.setattr("jobs.ingesting.topics.listed", lambda _: {"__consumer_offsets": Identity(None, 1)})
        assert ingest(spark, chosen).rows == 0
    told = capsys.readouterr().err
    assert f"no topic on the broker at {broker} matches --subscribe-pattern '{name}.*|__.*'" in told
    full, empty = make_topic(partitions=1, named=name), make_topic(partitions=1, named=f"{name}-empty")
    write(broker, full, *numbered(2))
    tally = ingest(spark, chosen)
    assert tally.end_offsets == {full: {"0": 2}, empty: {"0": 0}}
    assert [row.topic for row in written(spark, chosen)] == [full] * 2
    assert "matches" not in capsys.readouterr().err


def test_timestamps_of_other_units(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """A record whose timestamp Spark cannot hold is a failure with its place, or is kept without it, and counted.

    The batch that Python does is one of many: it begins where Spark's began, and Spark's source goes on behind it.
    `latest` is the end that the first run found, an aborted transaction is left out, and `--once` ends.
    """
    topic = make_topic(2, **ANY_TIME)
    for partition in range(2):
        write(broker, topic, *numbered(3), partition=partition)
    chosen = settings(topic, starting_offsets="latest", max_offsets_per_trigger=4)
    assert ingest(spark, chosen).rows == 0
    write_aborted(broker, topic, *numbered(3, first=9))
    late = [Record(b"late", b"late%d" % n, [("h", b"x")], 2**62) for n in range(2)]
    write(broker, topic, *numbered(2, first=3), late[0])
    write(broker, topic, *numbered(1, first=3), late[1], *numbered(1, first=4), partition=1)
    with pytest.raises(JobFailedError) as told:
        ingest(spark, chosen)
    assert str(told.value).startswith(f"topic {topic} partition 1 offset 4: the timestamp is {2**62} ms")
    assert "--on-bad-timestamp null" in str(told.value)
    tally = ingest(spark, replace(chosen, on_bad_timestamp="null"))
    assert tally.bad_timestamps == 2
    assert tally.summary()["first_bad_timestamp"] == f"topic {topic} partition 1 offset 4"
    send(broker, topic, [(1, b"later", None, [], 11)])
    assert ingest(spark, chosen).rows == 1
    rows = written(spark, chosen)
    values = [row.value and bytes(row.value) for row in rows]
    assert values == [b"v3", b"v4", b"late0", b"v3", b"late1", b"v4", None]
    assert [row.timestamp is None for row in rows] == [False, False, True, False, True, False, False]
    assert rows[-1].timestamp.replace(tzinfo=UTC).timestamp() == 0.011
    assert [(each.key, bytes(each.value)) for each in rows[2].headers] == [("h", b"x")]


def test_ingest_bad_value(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """A bad value fails with its place, its size and what to do, not with its bytes; or goes in, counted, if asked."""
    topic = make_topic(partitions=1)
    write(broker, topic, Record(None, b'{"id": 1}'), Record(None, b"secret" * 1000), Record(b"k", None))
    with pytest.raises(JobFailedError) as failed:
        ingest(spark, settings(topic, value=ValueForm("json", "id BIGINT")))
    assert str(failed.value) == (
        f"topic {topic} partition 0 offset 1: the value, 6000 bytes, is not JSON of --value-schema: it is not a "
        f"JSON object; --on-bad-value null continues, and writes the bytes of such values to a separate column"
    )
    chosen = settings(topic, value=ValueForm("json", "id BIGINT", on_bad="null"))
    tally = ingest(spark, chosen)
    assert (tally.bytes, tally.summary()["bad_values"]) == (6010, 1)
    rows = written(spark, chosen)
    assert [row.value and row.value.id for row in rows] == [1, None, None]
    assert [row[CORRUPT] for row in rows] == [None, bytearray(b"secret" * 1000), None]
    write(broker, topic, Record(None, b"{"), Record(None, b"[]"))
    tally = ingest(spark, replace(chosen, max_offsets_per_trigger=1))
    assert (tally.batches, tally.summary()["bad_values"]) == (2, 2)


# --- folders, and Delta


def test_ingest_partitions_by_time(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """Folders are of the timestamp's date and hour in UTC, whatever the session's zone."""
    topic = make_topic(partitions=1)
    write(broker, topic, *(Record(None, b"v", (), at) for at in (3 * 3_600_000, DAY_MS - 1, 20_000 * DAY_MS + 1)))
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
    assert [(row.offset, row.date, row.hour) for row in written(spark, chosen)][2] == (2, date(2024, 10, 4), 0)
    with pytest.raises(ConfigurationError, match="belongs to form parquet, partitioned by topic, date, hour"):
        ingest(spark, settings(topic))


def test_delta_writes_each_record_once(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """A batch that is in the table, and not in the checkpoint's list of what is done, is not there twice afterwards."""
    require_delta(spark)
    topic = make_topic(partitions=2)
    write(broker, topic, *numbered(3))
    write(broker, topic, Record(b"k", None), Record(None, b""), partition=1)
    chosen = settings(topic, format="delta", partition_by=("partition",))
    assert ingest(spark, chosen).rows == 5
    for name in ("0", ".0.crc"):
        Path(chosen.checkpoint, "commits", name).unlink()
    write(broker, topic, *numbered(2, first=3))
    write(broker, topic, *numbered(1), partition=1)
    ingest(spark, chosen)

    rows = written(spark, chosen)
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

    def files() -> Counter[int]:
        found = spark.read.format("delta").load(chosen.output).select("partition", F.input_file_name()).distinct()
        return Counter(row.partition for row in found.collect())

    assert files() == {1: 2, 0: 2}  # by partition: one for each micro-batch with records of it
    spark.sql(f"OPTIMIZE delta.`{chosen.output}`")
    assert files() == {0: 1, 1: 1}
    write(broker, topic, *numbered(1, first=5))
    assert ingest(spark, chosen).rows == 1, "the job goes on in a table that was compacted"
    assert len(written(spark, chosen)) == 9


def test_delta_refusals(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings, tmp_path: Path
) -> None:
    """Parquet files are no Delta table, nor the other way round; and a table has one checkpoint."""
    require_delta(spark)
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(1))
    parquet, delta = settings(topic, place="parquet"), settings(topic, place="delta", format="delta")
    spark.sql(f"CREATE TABLE delta.`{delta.output}` (key BINARY, value BINARY) USING delta")
    for each in (parquet, delta):
        ingest(spark, each)
    for chosen, form, refused in (
        (parquet, "delta", r"--format: .* contains files and is not a Delta table"),
        (delta, "parquet", r"--format: .* is a Delta table, in which separate Parquet files"),
        (delta, "delta", r"--checkpoint: .* was written with another .* be duplicated"),
    ):
        with pytest.raises(ConfigurationError, match=refused):
            ingest(spark, settings(topic, output=chosen.output, checkpoint=str(tmp_path / "fresh"), format=form))


# --- as a process


def begun(spark: SparkSession, arguments: list[str], commit: Path) -> subprocess.Popen[str]:
    """A job as a process of its own, that has ended this batch."""
    jars = {"WIDELOAD_SPARK_JARS": str(spark.conf.get("spark.jars"))}
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}  # which the tests set
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.ingest", *arguments],
        cwd=REPOSITORY,
        env=inherited | jars,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: commit.exists() or process.poll() is not None, f"{commit} is there", 180)
    return process


@pytest.mark.matrix
@pytest.mark.slow
def test_process_killed_and_ended(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """Killed in the middle and run again: each record is in the output once. SIGTERM ends it with status 0 and JSON.

    All its ports, those of Spark's pages among them, are for this machine alone.
    """
    topic = make_topic(partitions=2)
    for partition, count in ((0, 60), (1, 20)):
        write(broker, topic, *numbered(count), partition=partition)
    chosen = settings(topic)
    commits = Path(chosen.checkpoint, "commits")
    options = ["--bootstrap-servers", broker, "--topic", topic, "--max-offsets-per-trigger", "20"]
    options += ["--output", chosen.output, "--checkpoint", chosen.checkpoint, "--trigger-seconds", "0"]
    process = begun(spark, [*options, "--conf", "spark.ui.enabled=true"], commits / "0")
    try:
        open_to = set()
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # Spark's Python workers come and go
                found = [each.laddr.ip for each in one.net_connections() if each.status == psutil.CONN_LISTEN]
                open_to |= {each.removeprefix("::ffff:") for each in found}
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert open_to
    assert all(ip_address(each).is_loopback for each in open_to), open_to
    write(broker, topic, *numbered(1, first=60))
    last = commits / str(max(int(file.name) for file in commits.iterdir() if file.name.isdecimal()) + 1)
    process = begun(spark, options, last)
    try:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary["job"], summary["status"]) == ("ingest", "done")
    assert summary["batches"] > 0
    assert ingest(spark, chosen).end_offsets in ({}, {topic: {"0": 61, "1": 20}})

    def places(rows: list[Row]) -> list[tuple[int, int]]:
        return [(row.partition, row.offset) for row in rows]

    assert places(written(spark, chosen)) == [*((0, n) for n in range(61)), *((1, n) for n in range(20))]
