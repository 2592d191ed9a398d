"""The data source `wideload`: batches and streams of a real topic, with references and chunks in it."""

from __future__ import annotations

import base64
import json
import pickle
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="sources in Python need Spark 4.0")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from app.kafka.clients import security_arguments
from jobs import source
from jobs.driver.failures import JobFailedError
from jobs.ingesting.registered import RegisteredForm
from jobs.ingesting.registry import Registered, RegistrySettings
from jobs.ingesting.values import ValueForm, parsed
from jobs.reading.log import Look
from jobs.reading.options import settings_of
from jobs.reading.ranges import Bounds, OffsetRange
from jobs.source import WideloadDataSource, read_available
from tests.app.payloads.swept import delete_records, filesystem
from tests.integration.topics import send
from tests.integration.worker_process import until
from tests.jobs.ingests import rows_of
from tests.jobs.rows import published, referring, whole
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError
from transforms.record import Record
from transforms.reference import Reference
from transforms.wrapper import HeaderTable, Wrap

MakeTopic = Callable[..., str]

CHUNK_BYTES = 3_000
STARTED_MS = 1_700_000_000_000


class Place:
    """A topic, a store, and what a test puts there."""

    def __init__(self, spark: SparkSession, broker: str, topic: str, config: Mapping[str, object]) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = topic
        self.config = config
        spark.dataSource.register(WideloadDataSource)

    def referring(self, key: bytes, value: bytes, **more: Any) -> Record:
        return referring(self.config, self.topic, Record(key, value, [("x", b"1")]), **more)

    def chunks(self, key: bytes, value: bytes) -> list[Record]:
        return list(Chunking(CHUNK_BYTES).split(Record(key, value, [("x", b"2")]), key.decode()))

    def send(self, records: Sequence[Record], partition: int = 0) -> None:
        rows = [(partition, r.key, r.value, r.headers, STARTED_MS + n) for n, r in enumerate(records)]
        send(self.broker, self.topic, rows)

    def options(self, **more: object) -> dict[str, Any]:
        return {
            "kafka.bootstrap.servers": self.broker,
            "subscribe": self.topic,
            **{key: str(value).lower() if value is False else str(value) for key, value in self.config.items()},
            **{key: str(value) for key, value in more.items()},
        }

    def batch(self, **more: object) -> DataFrame:
        return self.spark.read.format("wideload").options(**self.options(**more)).load()

    def stream(self, **more: object) -> DataFrame:
        options = self.options(startingOffsets="earliest", **more)
        return self.spark.readStream.format("wideload").options(**options).load()


@pytest.fixture
def place(spark: SparkSession, broker: str, make_topic: MakeTopic, tmp_path: Path) -> Place:
    return Place(spark, broker, make_topic(2), filesystem(tmp_path / "payloads"))


# --- options


OPTIONS = {
    "kafka.bootstrap.servers": "b:9092",
    "subscribe": "orders, returns",
    "large.message.payload.store.class": "memory",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subscribe": ""}, "subscribe: names no topic"),
        ({"subscribe": "t" * 250}, "subscribe: the topic name has 250 characters"),
        ({"kafka.client.id": "c" * 250}, r"kafka.client.id: the client id has 250 characters, allowed are 249"),
        ({"kafka.sasl.mechanisms": "PLAIN"}, r"did you mean kafka\.sasl\.mechanism\?"),
        ({"startingOffset": "earliest"}, r"startingoffset: is not a known option; did you mean startingOffsets\?"),
        ({"onErorr": "null"}, r"did you mean onError\?"),
        ({"startingOffsets": "first"}, "startingOffsets: found 'first', allowed are earliest, latest and JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets: found 'earliest'"),
        ({"onBadTimestamp": "keep"}, "onBadTimestamp: found 'keep', allowed is one of: fail, null"),
        ({"onError": "skip"}, "onError: found 'skip', allowed is one of: fail, null, keep"),
        ({"unwrapOnPlainValue": "pass"}, "unwrapOnPlainValue: has no effect without unwrap=true"),
        ({"wrapper.header.3000001": "x"}, r"wrapper\.header\.3000001: has no effect without unwrap=true"),
        ({"subscribePattern": "o.*"}, "found subscribe and subscribePattern, allowed is one of subscribe, subscribeP"),
        ({"subscribe": None}, "subscribe: found none, allowed is one of subscribe, subscribePattern, assign"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern: is not a regular expression of Python: "),
        ({"subscribe": None, "assign": '{"orders": 1}'}, "assign: found .*, allowed is JSON as"),
        ({"subscribe": None, "assign": "{}"}, "assign: names no topic"),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "startingOffsets: cannot be combined with startingT"),
        ({"startingOffsetsByTimestamp": "latest"}, "startingOffsetsByTimestamp: found 'latest', allowed is JSON"),
        (
            {"kafka.ssl.truststore.location": "x.jks"},
            r"kafka\.ssl\.truststore\.location: is supported by Java clients only",
        ),
        ({"unwrap": "true", "wrapper.header.1x": "x"}, r"wrapper\.header\.1x: found '1x', allowed after"),
        ({"unwrap": "true", "unwrapOnPlainValue": "drop"}, "unwrapOnPlainValue: found 'drop', allowed is one"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger: found 'many', allowed is a value of type int"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.username: is missing; security.protocol SASL_SSL with"),
    ],
)
def test_settings_bad_option(changes: dict[str, str | None], message: str) -> None:
    """A wrong option is told by its name, with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        settings_of({name: text for name, text in {**OPTIONS, **changes}.items() if text is not None})


def test_settings() -> None:
    """User and password come from Kafka's own option, and are not printed; so do the other logins of the worker.

    The worker's names of options are accepted, too, and long names where brokers take them.
    """
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="p\\"9";'
    sasl = {**OPTIONS, "kafka.security.protocol": "SASL_PLAINTEXT"}
    found = settings_of({**sasl, "kafka.sasl.jaas.config": jaas})
    assert found.topics.names == ("orders", "returns")
    login = security_arguments(pickle.loads(pickle.dumps(found)).client)  # noqa: S301  # as Spark does
    assert (login["sasl_plain_username"], login["sasl_plain_password"]) == ("ann", 'p"9')
    assert 'p"9' not in repr(found)
    java = 'x.OAuthBearerLoginModule required clientId="a" clientSecret="b";'
    endpoint = {"kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token", "kafka.sasl.jaas.config": java}
    login = security_arguments(settings_of({**sasl, "kafka.sasl.mechanism": "OAUTHBEARER", **endpoint}).client)
    assert (login["sasl_mechanism"], "sasl_oauth_token_provider" in login) == ("OAUTHBEARER", True)
    former = {"reference.format": "bakdata-headers", "max.pending.chunked.message": "7", "unwrap": "true"}
    long = {"kafka.client.id": "c" * 250, "kafka.resource.identifier.limit.enable": "false"}
    found = settings_of({**OPTIONS, **former, **long, "unwrap.on.plain.value": "pass"})
    assert found.inflater is not None
    assert (found.inflater.reference_format, found.limits.messages) == ("bakdata-headers", 7)


# --- batches


def mixed(place: Place) -> tuple[list[Record], list[tuple[bytes, bytes | None]]]:
    """A log with all that there may be, and what it holds."""
    noise = random.Random(4)
    large, chunked = noise.randbytes(2_000_000), noise.randbytes(20_000)
    one, two = place.chunks(b"one", chunked), place.chunks(b"two", chunked[::-1])
    log = [
        Record(b"plain", b"v", [("y", None)]),
        *one[:3],
        place.referring(b"reference", large),
        *two,
        Record(b"tombstone", None),
        *one[3:],
        place.referring(b"last", b"small"),
    ]
    return log, [
        (b"plain", b"v"),
        (b"reference", large),
        (b"two", chunked[::-1]),
        (b"tombstone", None),
        (b"one", chunked),
        (b"last", b"small"),
    ]


@pytest.mark.matrix
@pytest.mark.usefixtures("compiled")
def test_batch_resolves_everything(place: Place) -> None:
    """References and chunks are whole values with the records' own headers, and the columns those of Kafka's source."""
    log, expected = mixed(place)
    place.send(log)
    place.send([Record(None, b"other partition")], 1)
    rows = place.batch(includeHeaders="true")
    kafka = place.spark.read.format("kafka").options(
        subscribe=place.topic, includeHeaders="true", **{"kafka.bootstrap.servers": place.broker}
    )
    plain = kafka.load()
    assert [(f.name, f.dataType) for f in rows.schema] == [(f.name, f.dataType) for f in plain.schema]
    found = rows.orderBy("partition", "offset").collect()
    assert whole(found) == [*expected, (None, b"other partition")]
    assert found[0] == plain.where("partition = 0 AND offset = 0").collect()[0]
    assert [(h.key, h.value and bytes(h.value)) for h in found[1].headers] == [("x", b"1")]
    chunked = found[4]
    assert [(h.key, bytes(h.value)) for h in chunked.headers] == [("x", b"2")]
    assert chunked.offset == len(log) - 2
    assert chunked.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(1_700_000_000.001, UTC)


def test_batch_takes_wrappers_off(place: Place) -> None:
    """Wrapped references, and wrappers that came in chunks, are whole values; their headers have the table's names."""
    wrap = Wrap(HeaderTable({3_000_001: "Trace"}))
    large = random.Random(5).randbytes(20_000)
    inner = place.referring(b"reference", large)
    named = wrap.wrap(Record(inner.key, inner.value, [("Trace", b"t"), *inner.headers[1:]]))
    pieces = Chunking(CHUNK_BYTES).split(wrap.wrap(Record(b"chunks", large[::-1], [("Trace", b"c")])), "u")
    place.send([named, *pieces, wrap.wrap(Record(b"tombstone", None)), Record(b"plain", b"no wrapper")])
    options = {"unwrap": "true", "wrapper.header.3000001": "Trace", "includeHeaders": "true", "onError": "null"}
    found = place.batch(**options).orderBy("offset").collect()
    assert whole(found) == [(b"reference", large), (b"chunks", large[::-1]), (b"tombstone", None), (b"plain", None)]
    assert [row.inflate_error and row.inflate_error.state for row in found] == [*[None] * 3, "malformed"]
    assert [[(h.key, bytes(h.value)) for h in row.headers or ()] for row in found[:3]] == [
        [("Trace", b"t")],
        [("Trace", b"c")],
        [],
    ]


def test_batch_cut_into_tasks(place: Place) -> None:
    """However many tasks read a partition, each message is there once, chunks over the cuts included."""
    log, expected = mixed(place)
    place.send(log)
    for cut, tasks in (({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 3}, -(-len(log) // 3))):
        rows = place.batch(**cut)
        assert rows.rdd.getNumPartitions() >= tasks
        assert whole(rows.orderBy("offset").collect()) == expected
    # A range of offsets has the messages whose last chunk is in it.
    start, end = (json.dumps({place.topic: offsets}) for offsets in ({"0": 3, "1": -2}, {"0": len(log) - 1, "1": -1}))
    rows = place.batch(startingOffsets=start, endingOffsets=end)
    assert whole(rows.orderBy("offset").collect()) == expected[1:5]


def test_batch_with_a_timestamp_of_another_unit(place: Place, make_topic: MakeTopic) -> None:
    """It is a failure with its place, or null; the records around it are as they are."""
    topic = make_topic(1, **{"message.timestamp.after.max.ms": 2**63 - 1})
    nanoseconds = 1_700_000_000_000_000_000
    send(place.broker, topic, [(0, b"k", b"v", [], stamp) for stamp in (5, nanoseconds, 7)])

    def read(**more: str) -> list[Any]:
        own = WideloadDataSource({**place.options(subscribe=topic), **more})
        found = cast("Any", own.reader(own.schema())).read(InputPartition([OffsetRange(topic, 0, 0, 3)]))
        return [each for batch in found for each in batch.column("timestamp").cast("int64").to_pylist()]

    with pytest.raises(JobFailedError, match=f"topic {topic} partition 0 offset 1: the timestamp is {nanoseconds} ms,"):
        read()
    assert read(onBadTimestamp="null") == [5_000, None, 7_000]


def test_batch_errors_are_one_line(place: Place) -> None:
    """An option that is wrong, and a topic that is not there, are reported without a traceback of Python's."""
    refusal = "subscribe: no-such-topic is not on the broker at "
    for options, message in (({"subscribe": "no-such-topic"}, refusal), ({"onErorr": "null"}, "did you mean onError?")):
        with pytest.raises(PySparkException) as caught:
            place.batch(**options).collect()
        assert message in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_batch_of_a_pattern_and_of_partitions(place: Place, make_topic: MakeTopic) -> None:
    """Topics may be named by a pattern of whole names; or only some partitions are read, or only records of a time."""
    other = make_topic(1)
    send(place.broker, other, [(0, b"other", b"%d" % at, [], 1_700_000_000_000 + at) for at in range(5)])
    place.send([Record(b"k", b"0"), Record(b"k", b"1")])
    place.send([Record(b"k", b"2")], 1)
    found = place.options()
    del found["subscribe"]

    def values(**more: object) -> list[bytes]:
        options = {**found, **{name: str(text) for name, text in more.items()}}
        rows = place.spark.read.format("wideload").options(**options).load().orderBy("topic", "partition", "offset")
        return [bytes(row.value) for row in rows.collect()]

    both = re.escape(place.topic) + "|" + re.escape(other)
    assert sorted(values(subscribePattern=both)) == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"4"]
    assert values(subscribePattern=place.topic[:-1]) == []
    assert values(assign=json.dumps({place.topic: [1]})) == [b"2"]
    times = {"startingTimestamp": 1_700_000_000_002, "endingTimestamp": 1_700_000_000_004}
    assert values(subscribe=other, **times) == [b"2", b"3"]
    by_partition = json.dumps({other: {"0": 1_700_000_000_004}})
    assert values(subscribe=other, startingOffsetsByTimestamp=by_partition) == [b"4"]
    assert values(subscribe=other, startingTimestamp=1_800_000_000_000) == []


def test_batch_records_deleted(place: Place) -> None:
    """Records that Kafka has deleted are a failure, or are passed over, as failOnDataLoss says."""
    place.send([*place.chunks(b"c", b"v" * 9_000), *[Record(b"k", b"%d" % n) for n in range(5)]])
    delete_records(place.broker, place.topic, 2)

    def read(start: int, **more: str) -> list[tuple[bytes | None, bytes | None]]:
        rows = place.batch(startingOffsets=json.dumps({place.topic: {"0": start, "1": -2}}), **more)
        return whole(rows.orderBy("offset").collect())

    with pytest.raises(PySparkException, match="offset 1 is not there, the first one is 2"):
        read(1)
    with pytest.raises(PySparkException, match=r"startingOffsets: 50 of topic .* partition 0 is behind its end 9"):
        read(50)
    assert read(1, failOnDataLoss="false") == read(-2) == [(b"k", b"%d" % n) for n in range(5)]


def test_batch_on_error(place: Place) -> None:
    """What cannot be restored fails with its place, is null, or stays as it is in the log."""
    spoilt = place.chunks(b"spoilt", b"v" * 9_000)
    spoilt[-1] = Record(spoilt[-1].key, b"w" + (spoilt[-1].value or b"")[1:], spoilt[-1].headers)
    missing = Reference(published(place.config, place.topic, b"x").path.rpartition("/")[0] + "/nothing", 1)
    reference = Record(b"missing", missing.path.encode(), missing.headers())
    place.send([Record(b"k", b"v"), reference, *spoilt])
    with pytest.raises(PySparkException, match=f"topic {place.topic} partition 0 offset 1: the value cannot be"):
        place.batch(onError="fail").collect()
    for on_error, values in (("null", [None] * (1 + len(spoilt))), ("keep", [r.value for r in (reference, *spoilt)])):
        found = place.batch(onError=on_error).orderBy("offset").collect()
        states = [row.inflate_error and row.inflate_error.state for row in found]
        assert states == [None, "missing", *["corrupt"] * len(spoilt)]
        assert [value for _, value in whole(found[1:])] == values


NAMED = "large.message.encryption.key.id"
SECRET = "large.message.encryption.key.secret"
PREVIOUS = "large.message.encryption.previous.keys"


def encrypting(name: str, secret: str) -> dict[str, object]:
    return {"large.message.encryption.type": "aes-256-gcm", NAMED: name, SECRET: secret}


def test_encrypted_payloads(place: Place) -> None:
    """Payloads of the present key and of previous ones are decrypted; no other is, and no key is shown."""
    old, new = "1f" * 32, "2e" * 32
    large = random.Random(6).randbytes(300_000)
    rows = ((b"old", large, encrypting("old", old)), (b"new", large[::-1], encrypting("new", new)), (b"k", b"v", None))
    place.send([place.referring(key, value, encryption=keys) for key, value, keys in rows])
    keys = {NAMED: "new", SECRET: new, PREVIOUS: f"older:{'3d' * 32}, old:{old}"}
    found = whole(place.batch(**keys).orderBy("offset").collect())
    assert found == [(key, value) for key, value, _ in rows]
    with pytest.raises(PySparkException, match="encrypted with key old, known here are: new;") as caught:
        place.batch(**{NAMED: "new", SECRET: old}).collect()
    assert old not in str(caught.value)


# --- streams


def follow(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


def written(place: Place, folder: Path) -> list[tuple[bytes | None, bytes | None]]:
    return whole(place.spark.read.parquet(str(folder / "out")).orderBy("partition", "offset").collect())


@pytest.mark.matrix
def test_stream_restarts_in_the_middle(place: Place, tmp_path: Path) -> None:
    """A stream that is stopped amid a message of chunks, and started again, gives each message once."""
    log, expected = mixed(place)
    place.send(log[:3])
    query = follow(place.stream(), tmp_path, processingTime="0 seconds")
    query.processAllAvailable()
    query.stop()
    assert written(place, tmp_path) == expected[:1]
    place.send(log[3:9])
    place.send([Record(b"other", b"v")], 1)
    query = follow(place.stream(), tmp_path, processingTime="0 seconds")
    query.processAllAvailable()
    place.send(log[9:])
    query.processAllAvailable()
    query.stop()
    assert written(place, tmp_path) == [*expected, (b"other", b"v")]


def test_stream_in_small_batches(place: Place, tmp_path: Path) -> None:
    """A bound on a micro-batch holds, and one that failed is done again within the same offsets."""
    log, expected = mixed(place)
    place.send(log)
    found: dict[int, list[list[Row]]] = {}
    bound = 4

    def take(rows: DataFrame, number: int) -> None:
        found.setdefault(number, []).append(rows.orderBy("partition", "offset").collect())
        if number == 2 and len(found[number]) == 1:
            raise ValueError("once")

    def run() -> StreamingQuery:
        writer = place.stream(maxOffsetsPerTrigger=bound).writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = run()
    with pytest.raises(StreamingQueryException, match="once"):
        query.processAllAvailable()
    place.send([Record(b"more", b"v")])
    query = run()
    query.processAllAvailable()
    query.stop()
    assert sorted(found) == list(range(-(-(len(log) + 1) // bound)))
    assert [len(tries) for tries in found.values()] == [2 if number == 2 else 1 for number in found]
    assert found[2][0] == found[2][1]
    assert whole([row for number in sorted(found) for row in found[number][-1]]) == [*expected, (b"more", b"v")]


def test_stream_available_now_within_a_bound(place: Place, tmp_path: Path) -> None:
    """A run takes what is there, and ends; with a bound, runs follow one another until all of it was taken."""
    log, expected = mixed(place)
    place.send(log)
    bound = -(-len(log) // 2)
    rows = place.stream(maxOffsetsPerTrigger=bound)
    assert read_available(lambda: follow(rows, tmp_path, availableNow=True)) == 2
    assert written(place, tmp_path) == expected


class Topics:
    """Topics as brokers describe them, without brokers: partition 0 of `orders` and of `returns`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids = {"orders": "1", "returns": "1"}
        self.ends = {"orders": 5, "returns": 5}
        self.looks = 0
        monkeypatch.setattr(source, "look", self.look)

    def look(self, _: object, topics: Any, **_more: bool) -> Look:
        self.looks += 1
        return Look({(name, 0): Bounds(0, self.ends[name]) for name in topics.names}, dict(self.ids))

    def reader(self, **more: str) -> Any:
        own = WideloadDataSource({**OPTIONS, "startingOffsets": "earliest", **more})
        return own.streamReader(own.schema())


def ranges(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    found = (each for task in reader.partitions(start, end) for each in task.value)
    return [(each.topic, each.start, each.end, each.topic_id) for each in found]


def test_stream_of_a_topic_that_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of another id is a failure, however long it is, or is read from its first record; others go on."""
    topics = Topics(monkeypatch)
    reader, start = topics.reader(), topics.reader().initialOffset()
    first = reader.latestOffset()
    looks = topics.looks
    assert ranges(reader, start, first) == [("orders", 0, 5, "1"), ("returns", 0, 5, "1")]
    assert topics.looks == looks, "a micro-batch that goes on takes no second look"
    topics.ids["orders"], topics.ends = "2", {"orders": 8, "returns": 6}
    refusal = "topic orders was deleted and created again since it was read: .*failOnDataLoss=false"
    with pytest.raises(JobFailedError, match=refusal):
        reader.latestOffset()
    with pytest.raises(JobFailedError, match=refusal):  # the run after a run that planned, and did no more
        topics.reader().partitions(start, first)
    lossy = topics.reader(failOnDataLoss="false")
    assert ranges(lossy, start, first) == [("returns", 0, 5, "1")]
    second = lossy.latestOffset()
    assert ranges(lossy, first, second) == [("orders", 0, 8, "2"), ("returns", 5, 6, "1")]


def test_stream_from_a_checkpoint_without_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of an older release goes on where it is, and has the ids from then on."""
    topics = Topics(monkeypatch)
    reader, old = topics.reader(), {"orders": {"0": 3}, "returns": {"0": 5}}
    assert ranges(reader, {"orders": {"0": 1}, "returns": {"0": 5}}, old) == [("orders", 1, 3, "")]
    end = reader.latestOffset()
    assert end["topic ids"] == topics.ids
    assert ranges(reader, old, end) == [("orders", 3, 5, "1")]


# --- what Spark keeps


def test_event_log_has_no_secret(place: Place, tmp_path: Path) -> None:
    """Whoever reads Spark's event log, a plan or a failure learns no password or key of a reader, stream or writer."""
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="jaas-hunter2";'
    kafka = {"kafka.sasl.jaas.config": jaas}
    own = {
        **kafka,
        "kafka.sasl.password": "own-hunter2",
        "large.message.signing.key": "signing-hunter2" * 3,
        **encrypting("one", "5ec1e7" * 10 + "0000"),
        PREVIOUS: "two:" + "5ec1e7" * 10 + "1111",
    }
    place.send([Record(b"k", b"v")])
    assert place.batch(**own).count() == 1
    asking = place.batch(**own, **{"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.request.timeout.ms": "1000"})
    assert "hunter2" not in asking._jdf.queryExecution().toString()
    registry = RegistrySettings("http://127.0.0.1:9", {"basic.auth.user.info": "user:reg-hunter2"})
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    form = ValueForm("avro", schema, registered=RegisteredForm(registry, "avro", Registered("AVRO", schema)))
    for rows, said in (
        (asking, "no broker answers"),
        (parsed(rows_of(place.spark, bytes(6)), form), "does not answer"),
    ):
        with pytest.raises(PySparkException, match=said) as caught:
            rows.collect()
        assert "hunter2" not in str(caught.value)
    query = place.stream(**own).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    java = {"kafka.bootstrap.servers": place.broker, **kafka}
    rows = place.spark.read.format("kafka").options(**java, subscribe=place.topic).load()
    rows.write.format("kafka").options(**java, topic=place.topic).save()
    context = place.spark.sparkContext
    context.setJobDescription(f"behind {place.topic}")  # it is in the log, so what was before it is
    place.spark.range(1).collect()
    context.setLocalProperty("spark.job.description", cast(str, None))
    folder = Path(str(context.getConf().get("spark.eventLog.dir")).removeprefix("file:"))

    def log() -> str:
        return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())

    until(lambda: f"behind {place.topic}" in log(), "the log has it")
    found = log()
    assert place.topic in found.partition(f"behind {place.topic}")[0], "the log has the reads"
    for secret in ("hunter2", base64.b64encode(b"user:reg-hunter2").decode(), "5ec1e7"):
        assert secret not in found
