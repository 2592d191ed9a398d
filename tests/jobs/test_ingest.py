"""From a topic to Parquet, with nothing but Spark's own Kafka source."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from threading import Event
from typing import Any, cast

import psutil
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from app.config.client import embedded_client_settings
from jobs.driver.failures import JobFailedError
from jobs.ingest import IngestSettings, _follow, main, records, run
from jobs.ingesting.query_progress import Tally
from jobs.records.schemas import RECORD
from tests.integration.topics import send
from transforms.errors import ConfigurationError
from transforms.record import Record

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_RECORD = 1 << 25

Settings = Callable[..., IngestSettings]


def produce(servers: str, topic: str, by_partition: Mapping[int, Sequence[Record]], *, abort: bool = False) -> None:
    """Write records in order; with `abort` in a transaction that is then aborted."""

    async def send() -> None:
        transactional = {"transactional_id": f"{topic}-aborts"} if abort else {}
        producer = AIOKafkaProducer(bootstrap_servers=servers, max_request_size=MAX_RECORD, **transactional)
        await producer.start()
        try:
            if abort:
                await producer.begin_transaction()
            for partition, sent in by_partition.items():
                for record in sent:
                    await producer.send_and_wait(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        record.timestamp if record.timestamp >= 0 else None,
                        list(record.headers),
                    )
            if abort:
                await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(send())


@pytest.fixture
def settings(broker: str, tmp_path: Path) -> Settings:
    """Settings of a bounded run into a folder of this test."""

    def make(*topics: str, **changes: Any) -> IngestSettings:
        values: dict[str, Any] = {
            "bootstrap_servers": broker,
            "client": embedded_client_settings({"bootstrap.servers": broker}),
            "topics": topics,
            "output": str(tmp_path / "out"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "once": True,
        }
        return IngestSettings(**values | changes)

    return make


def ingest(spark: SparkSession, settings: IngestSettings) -> Tally:
    """One bounded run."""
    tally = Tally()
    run(spark, settings, tally, Event(), screen=None)
    return tally


def written(spark: SparkSession, settings: IngestSettings) -> list[Row]:
    """What is in the output, in order."""
    return spark.read.parquet(settings.output).orderBy("topic", "partition", "offset").collect()


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(b"k%d" % n, b"v%d" % n) for n in range(first, first + count)]


# --- without Spark


def test_source_options_defaults() -> None:
    """Whole records from the beginning, only committed ones, and loss is a failure."""
    options = IngestSettings("b:9092", "o", "c", topics=("x", "y")).source_options()
    assert options == {
        "kafka.bootstrap.servers": "b:9092",
        "subscribe": "x,y",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.allow.auto.create.topics": "false",
        "maxOffsetsPerTrigger": "100000",
    }


def test_source_options_user_wins() -> None:
    """What the user hands to Kafka's source stands above what the job chose."""
    settings = IngestSettings(
        "b:9092",
        "o",
        "c",
        subscribe_pattern="orders-.*",
        max_offsets_per_trigger=0,
        min_partitions=4,
        kafka_options={"kafka.isolation.level": "read_uncommitted"},
    )
    options = settings.source_options()
    assert options["kafka.isolation.level"] == "read_uncommitted"
    assert options["subscribePattern"] == "orders-.*"
    assert options["minPartitions"] == "4"
    assert not {"subscribe", "maxOffsetsPerTrigger"} & set(options)


def test_settings_repr_hides_secrets() -> None:
    """Printing the settings prints no credentials."""
    settings = IngestSettings("b:9092", "o", "c", topics=("t",), kafka_options={"kafka.sasl.jaas.config": "pass-9"})
    assert "pass-9" not in repr(settings)


def bad_options() -> list[tuple[list[str], str]]:
    return [
        (["--kafka-option", "secret-without-equals"], "--kafka-option: is KEY=VALUE"),
        (["--kafka-config", "/nowhere/client.properties"], "/nowhere/client.properties cannot be read"),
        (["--jars", "/nowhere/connector.jar"], "--jars: /nowhere/connector.jar is neither a file nor a folder"),
        (["--bootstrap-servers", "broker"], "bootstrap.servers: found 'broker', allowed is host:port"),
    ]


@pytest.mark.parametrize(("options", "message"), bad_options(), ids=[case[0][0] for case in bad_options()])
def test_main_bad_option(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad value is one sentence on stderr that names the option, and exit status 2; it repeats no secret."""
    basis = ["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", "--output", "o", "--checkpoint", "c", "--once"]
    assert main([*basis, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert "secret-without-equals" not in captured.err


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


def test_main_broker_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that is not there is told at once, with its address, and exit status 2."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        status = main(["--bootstrap-servers", address, "--topic", "t", "--output", "o", "--checkpoint", "c", "--once"])
    assert status == 2
    assert f"no broker answers: {address} (" in capsys.readouterr().err


def test_main_java_not_there(
    broker: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without Java the message says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert main(["--bootstrap-servers", broker, "--topic", make_topic(), "--output", "o", "--checkpoint", "c"]) == 2
    assert "install Java 17 to 22" in capsys.readouterr().err


# --- with Spark


def test_records_has_contract(spark: SparkSession) -> None:
    """Rows of Kafka's source become rows of the contract, value for value."""
    source = spark.sql(
        "SELECT X'6b' AS key, X'' AS value, 't' AS topic, 3 AS partition, 9 AS offset, timestamp_millis(1500) AS "
        "timestamp, 1 AS timestampType, CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers"
    )
    rows = records(source)
    assert rows.columns == RECORD.fieldNames()
    row = rows.collect()[0]
    assert (bytes(row.key), bytes(row.value), row.headers, row.topic) == (b"k", b"", None, "t")
    assert (row.partition, row.offset, row.timestamp_type) == (3, 9, 1)


@pytest.mark.matrix
def test_ingest_keeps_everything_of_a_record(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """Null keys and values, empty ones, headers twice or null, time and place: all arrive as they were."""
    topic = make_topic(partitions=1)
    sent = [
        Record(None, b"no key", timestamp=1_700_000_000_123),
        Record(b"tombstone", None, [("why", b"deleted")], timestamp=1_700_000_000_124),
        Record(b"", b"", timestamp=1_700_000_000_125),
        Record(b"h", b"v", [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"")], timestamp=1_700_000_000_126),
        Record(b"\x00\xff", bytes(range(256)), [("ünï", b"\xff")], timestamp=0),
    ]
    produce(broker, topic, {0: sent})
    chosen = settings(topic)
    tally = ingest(spark, chosen)

    files = [pq.read_table(file) for file in Path(chosen.output).glob("*.parquet")]
    found = sorted((row for file in files for row in file.to_pylist()), key=lambda row: row["offset"])
    assert [
        (
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
            row["timestamp"].replace(tzinfo=UTC),
        )
        for row in found
    ] == [
        (
            r.key,
            r.value,
            list(r.headers),
            datetime.fromtimestamp(r.timestamp // 1000, UTC).replace(microsecond=r.timestamp % 1000 * 1000),
        )
        for r in sent
    ]
    assert [(row["topic"], row["partition"], row["offset"], row["timestamp_type"]) for row in found] == [
        (topic, 0, offset, 0) for offset in range(len(sent))
    ]
    assert (tally.batches, tally.rows) == (1, 5)
    assert tally.bytes == sum(len(r.key or b"") + len(r.value or b"") for r in sent)
    assert tally.end_offsets == {topic: {"0": 5}}


def test_ingest_large_values_over_partitions(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """Values of 20 MB arrive whole from every partition, and no row group holds more than it must."""
    topic = make_topic(partitions=3, **{"max.message.bytes": MAX_RECORD})
    noise = os.urandom(20_000_000)
    sent = {partition: [Record(b"%d" % n, noise[n:]) for n in range(3)] + numbered(2) for partition in range(3)}
    produce(broker, topic, sent)
    chosen = settings(topic)
    tally = ingest(spark, chosen)

    assert tally.rows == 15
    found: dict[int, list[bytes]] = {}
    for file in Path(chosen.output).glob("*.parquet"):
        metadata = pq.ParquetFile(file).metadata
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        assert max(group.total_byte_size for group in groups) < chosen.row_group_bytes + len(noise)
        assert all(group.column(1).path_in_schema == "value" for group in groups)
        assert not any(group.column(1).has_dictionary_page or group.column(1).statistics for group in groups)
        for row in pq.read_table(file, columns=["partition", "offset", "value"]).sort_by("offset").to_pylist():
            found.setdefault(row["partition"], []).append(row["value"])
    assert found == {partition: [r.value for r in rows] for partition, rows in sent.items()}


@pytest.mark.matrix
def test_ingest_again_adds_only_what_is_new(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A second run finds nothing; a third, after new records, adds those alone; batches are bounded."""
    topic = make_topic(partitions=2)
    produce(broker, topic, {0: numbered(30), 1: numbered(10)})
    chosen = settings(topic, max_offsets_per_trigger=16)
    first = ingest(spark, chosen)
    assert (first.rows, first.end_offsets) == (40, {topic: {"0": 30, "1": 10}})
    assert first.batches >= 3
    assert ingest(spark, chosen).rows == 0
    produce(broker, topic, {1: numbered(5, first=10)})
    last = ingest(spark, chosen)

    assert (last.rows, last.end_offsets) == (5, {topic: {"0": 30, "1": 15}})
    assert [(row.partition, row.offset) for row in written(spark, chosen)] == [
        *((0, offset) for offset in range(30)),
        *((1, offset) for offset in range(15)),
    ]


def test_ingest_leaves_out_aborted_transactions(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """Records of a transaction that was aborted are not in the output, those around it are."""
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: numbered(2)})
    produce(broker, topic, {0: numbered(2, first=100)}, abort=True)
    produce(broker, topic, {0: numbered(2, first=2)})
    chosen = settings(topic)
    ingest(spark, chosen)
    assert [bytes(row.value) for row in written(spark, chosen)] == [b"v0", b"v1", b"v2", b"v3"]


def test_ingest_pattern_of_two_topics(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A pattern reads each topic that it matches, and an empty topic is no error."""
    full, empty = make_topic(partitions=1), make_topic(partitions=1)
    produce(broker, full, {0: numbered(3)})
    chosen = settings(subscribe_pattern=f"{full}|{empty}")
    tally = ingest(spark, chosen)
    assert tally.end_offsets == {full: {"0": 3}, empty: {"0": 0}}
    assert [row.topic for row in written(spark, chosen)] == [full] * 3


def test_ingest_pattern_of_no_topic(
    spark: SparkSession,
    broker: str,
    make_topic: Callable[..., str],
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pattern that matches no topic is told, as it may be misspelt; the same checkpoint reads a topic of later."""
    name = f"later-{uuid.uuid4().hex}"
    chosen = settings(subscribe_pattern=f"{name}.*")
    assert ingest(spark, chosen).rows == 0
    told = capsys.readouterr().err
    assert f"no topic on the broker at {broker} matches --subscribe-pattern '{name}.*'" in told
    topic = make_topic(partitions=1, named=name)
    produce(broker, topic, {0: numbered(2)})
    assert ingest(spark, chosen).rows == 2
    assert "matches" not in capsys.readouterr().err


def test_ingest_refuses_checkpoint_of_another_topic(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A checkpoint serves the topic that it was made with, and no other."""
    first, second = make_topic(partitions=1), make_topic(partitions=1)
    produce(broker, first, {0: numbered(1)})
    ingest(spark, settings(first))
    with pytest.raises(ConfigurationError, match=f"belongs to source {first}, this is source {second}"):
        ingest(spark, settings(second))


def test_ingest_missing_topic_then_right_one(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A topic that is not there is named; the same folders then serve the topic that was meant."""
    with pytest.raises(ConfigurationError, match=r"--topic: no-such-topic is not on the broker"):
        ingest(spark, settings("no-such-topic"))
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: numbered(2)})
    assert ingest(spark, settings(topic)).rows == 2


def test_timestamps_of_other_units(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A record whose timestamp Spark cannot hold is a failure with its place, or is kept without it, and counted."""
    topic = make_topic(2, **{"message.timestamp.after.max.ms": 2**63 - 1})
    rows = [(0, b"%d" % n, b"v", [("h", b"x")], stamp) for n, stamp in enumerate((5, 2**63 - 1, 7, -(2**62)))]
    send(broker, topic, [*rows, (1, b"other", None, [], 9)])
    chosen = settings(topic, max_offsets_per_trigger=3)
    with pytest.raises(JobFailedError) as told:
        ingest(spark, chosen)
    assert str(told.value).startswith(f"topic {topic} partition 0 offset 1: the timestamp is {2**63 - 1} ms")
    assert "--on-bad-timestamp null" in str(told.value)
    tally = ingest(spark, replace(chosen, on_bad_timestamp="null"))
    assert (tally.rows, tally.bad_timestamps) == (5, 2)
    assert tally.summary()["first_bad_timestamp"] == f"topic {topic} partition 0 offset 1"
    found = written(spark, chosen)
    stamps = [row.timestamp and row.timestamp.replace(tzinfo=UTC).timestamp() for row in found]
    assert stamps == [0.005, None, 0.007, None, 0.009]
    assert [bytes(row.key) for row in found] == [b"0", b"1", b"2", b"3", b"other"]
    assert [(each.key, bytes(each.value)) for each in found[1].headers] == [("h", b"x")]
    send(broker, topic, [(1, b"later", b"v", [], 11)])
    assert ingest(spark, chosen).rows == 1, "Spark's own source goes on where the other ended"


# --- as a process


def command(broker: str, folder: Path, *options: str) -> list[str]:
    return [
        *("--bootstrap-servers", broker, "--output", str(folder / "out"), "--checkpoint", str(folder / "checkpoint")),
        *options,
    ]


def connector(spark: SparkSession) -> str:
    """The jars that the tests' own session was given."""
    return str(spark.conf.get("spark.jars"))


def test_process_continuous_until_sigterm(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """`python -m jobs.ingest` goes on until SIGTERM, then ends with status 0 and says in JSON what it did.

    All its ports, those of Spark's pages among them, are for this machine alone.
    """
    topic = make_topic(partitions=2)
    produce(broker, topic, {0: numbered(3), 1: numbered(4)})
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}  # which the tests set
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jobs.ingest", "--conf", "spark.ui.enabled=true"),
            *command(broker, tmp_path, "--topic", topic, "--trigger-seconds", "0.2"),
        ],
        cwd=REPOSITORY,
        env={**inherited, "WIDELOAD_SPARK_JARS": connector(spark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        commits = tmp_path / "checkpoint" / "commits" / "0"
        deadline, stopped = time.monotonic() + 120, Event()
        while not commits.exists() and process.poll() is None and time.monotonic() < deadline:
            stopped.wait(0.1)
        open_to = set()
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # Spark's Python workers come and go
                found = [each.laddr.ip for each in one.net_connections() if each.status == psutil.CONN_LISTEN]
                open_to |= {each.removeprefix("::ffff:") for each in found}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary["job"], summary["status"], summary["rows"]) == ("ingest", "done", 7)
    assert summary["end_offsets"] == {topic: {"0": 3, "1": 4}}
    assert open_to
    assert all(ip_address(each).is_loopback for each in open_to), open_to


def test_process_missing_topic(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """A user's mistake is a sentence and exit status 2: no traceback of Python, no stack of Java."""
    done = subprocess.run(
        [sys.executable, "-m", "jobs.ingest", *command(broker, tmp_path, "--topic", "no-such-topic", "--once")],
        cwd=REPOSITORY,
        env={**os.environ, "WIDELOAD_SPARK_JARS": connector(spark)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"ingest: --topic: no-such-topic is not on the broker at {broker}; create it, or check its name"
    )
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    assert done.stdout == ""


def test_process_spark_submit(spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """`spark-submit jobs/ingest.py` runs from any folder, with the connector that it was given itself."""
    topic = make_topic(partitions=1)
    produce(broker, topic, {0: numbered(3)})
    submit = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", "--jars", connector(spark)),
        *("--conf", "spark.log.level=ERROR", "--conf", "spark.sql.shuffle.partitions=1"),
        *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
        str(REPOSITORY / "jobs" / "ingest.py"),
    ]
    done = subprocess.run(
        [*submit, *command(broker, tmp_path, "--topic", topic, "--once")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 3
