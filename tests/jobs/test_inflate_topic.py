"""Inflate between Spark's own Kafka source and a sink: a real broker, the filesystem store and real S3 servers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.chunks import assemble
from jobs.inflate import inflate, split
from jobs.records.schemas import RECORD
from stores.registry import open_store
from stores.store import Delete
from tests.integration.topics import Sent, read_all, send
from tests.s3_server import S3Server, S3UnavailableError, s3_server
from transforms.chunk import Chunking
from transforms.offload import Offload
from transforms.record import Record

MakeTopic = Callable[..., str]


class Place:
    """A topic, a store, and what a test puts there."""

    def __init__(self, spark: SparkSession, broker: str, topic: str, config: Mapping[str, object]) -> None:
        self.spark = spark
        self.kafka = {"kafka.bootstrap.servers": broker, "subscribe": topic, "includeHeaders": "true"}
        self.broker = broker
        self.topic = topic
        self.config = config

    def referring(self, key: bytes, value: bytes) -> Record:
        work = Offload(0)
        payload = work.payload(value)
        with closing(open_store(self.config)) as store:
            return work.refer(Record(key, value), payload.reference(store.publish(self.topic, payload.data)))

    def lose(self, record: Record) -> None:
        assert record.value is not None
        with closing(open_store(self.config)) as store:
            assert isinstance(store, Delete)
            store.delete(record.value.decode())

    def send(self, records: Sequence[Record], partition: int = 0) -> None:
        sent: list[Sent] = [(partition, r.key, r.value, r.headers, 1_000) for r in records]
        send(self.broker, self.topic, sent)

    def batch(self) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.kafka).load()

    def stream(self, **more: str) -> DataFrame:
        options = {**self.kafka, "startingOffsets": "earliest", **more}
        return self.spark.readStream.format("kafka").options(**options).load()


def config_of(folder: Path) -> dict[str, object]:
    return {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(folder / "payloads"),
        "filesystem.fsync": False,
    }


@pytest.fixture
def place(spark: SparkSession, broker: str, make_topic: MakeTopic, tmp_path: Path) -> Place:
    return Place(spark, broker, make_topic(4), config_of(tmp_path))


@pytest.fixture(params=["filesystem", "versitygw"])
def stored(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: str,
    make_topic: MakeTopic,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    """A place with each kind of store."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "filesystem":
        yield Place(spark, broker, make_topic(4), config_of(folder))
        return
    try:
        with s3_server(request.param, folder) as server:
            yield Place(spark, broker, make_topic(4), s3_config(server))
    except S3UnavailableError as exc:
        pytest.skip(str(exc))


def s3_config(server: S3Server) -> dict[str, object]:
    return {"large.message.payload.store.class": "s3", **server.config("base")}


def whole(rows: Sequence[Row]) -> list[tuple[bytes | None, bytes | None]]:
    return [(r.key and bytes(r.key), None if r.value is None else bytes(r.value)) for r in rows]


def test_inflate_one_partition_has_all_the_large_records(stored: Place) -> None:
    """A topic with 40 MB in one partition, and small records in the others, comes out whole."""
    noise = random.Random(7).randbytes(2_000_000)
    values = [noise[n:] + noise[:n] for n in range(20)]
    stored.send([stored.referring(b"large", value) for value in values])
    for partition in (1, 2, 3):
        stored.send([Record(b"small", b"%d" % n) for n in range(500)], partition)
    rows = inflate(stored.batch(), stored.config)
    digests = rows.where("partition = 0").selectExpr("offset", "sha2(value, 256) AS digest").orderBy("offset").collect()
    assert [row.digest for row in digests] == [hashlib.sha256(value).hexdigest() for value in values]
    small = rows.where("partition = 2").orderBy("offset").collect()
    assert whole(small) == [(b"small", b"%d" % n) for n in range(500)]


def test_inflate_behind_assemble(place: Place) -> None:
    """Chunks are put together first, and are left alone where they are not."""
    pieces = list(Chunking(2_000).split(Record(b"c", b"v" * 9_000), "u"))
    place.send([place.referring(b"r", b"stored"), *pieces])
    rows = inflate(assemble(place.batch()), place.config).orderBy("offset").collect()
    assert whole(rows) == [(b"r", b"stored"), (b"c", b"v" * 9_000)]
    assert whole(inflate(place.batch(), place.config).orderBy("offset").collect())[1:] == [
        (r.key, r.value) for r in pieces
    ]


@pytest.mark.matrix
def test_inflate_stream_restarts_in_the_middle(place: Place, tmp_path: Path) -> None:
    """A stream that fails for a missing payload goes on where it was once that is there again: no row twice."""
    values = [b"value %d " % n * 1_000 for n in range(12)]
    records = [place.referring(b"k", value) for value in values]
    place.send(records)
    place.lose(records[7])

    def run() -> StreamingQuery:
        rows = inflate(place.stream(maxOffsetsPerTrigger="3"), place.config).select(*RECORD.fieldNames()[:6])
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = run()
    with pytest.raises(StreamingQueryException, match=f"topic {place.topic} partition 0 offset 7: the value cannot be"):
        query.processAllAvailable()
    assert place.referring(b"k", values[7]) == records[7]
    query = run()
    if place.spark.version.startswith("4.1."):  # SPARK-55271: it may end behind the batch that it does again
        with suppress(StreamingQueryException):
            query.processAllAvailable()
        query.stop()
        query = run()
    query.processAllAvailable()
    query.stop()
    written = place.spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert whole(written) == [(b"k", value) for value in values]


def streamed(rows: DataFrame, folder: Path, take: Callable[[DataFrame, int], None]) -> None:
    """A stream, until all that is there was taken."""
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).start()
    query.processAllAvailable()
    query.stop()


def test_inflate_payload_that_is_missing(stored: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """By choice a failure, a null beside the reason, or a dead letter; in a batch and in a stream, of each store."""
    letters = make_topic(1)
    records = [stored.referring(b"k%d" % n, b"value %d" % n) for n in range(6)]
    stored.send(records)
    stored.lose(records[2])
    with pytest.raises(PySparkException, match="partition 0 offset 2: the value cannot be restored: there is no pay"):
        inflate(stored.batch(), stored.config).collect()
    streams: list[Row] = []
    rows = inflate(stored.stream(), stored.config, on_error="null")
    streamed(rows, tmp_path / "null", lambda batch, _: streams.extend(batch.collect()))
    for nulls in (inflate(stored.batch(), stored.config, on_error="null").collect(), streams):
        assert whole(nulls) == [(b"k%d" % n, None if n == 2 else b"value %d" % n) for n in range(6)]
        assert [row.inflate_error and row.inflate_error.state for row in nulls] == [None] * 2 + ["missing"] + [None] * 3
    found: list[Row] = []

    def take(rows: DataFrame, number: int) -> None:
        rows.persist()
        good, dead = split(rows)
        found.extend(good.collect())
        options = {"kafka.bootstrap.servers": stored.broker, "topic": letters}
        dead.write.format("kafka").options(**options).save()
        rows.unpersist()

    streamed(inflate(stored.stream(), stored.config, on_error="keep"), tmp_path / "keep", take)
    assert whole(found) == [(b"k%d" % n, b"value %d" % n) for n in range(6) if n != 2]
    (letter,) = read_all(stored.broker, letters)[0]
    assert (letter.key, letter.value) == (b"k2", records[2].value)
    assert list(letter.headers[: len(records[2].headers)]) == list(records[2].headers)
    assert dict(letter.headers)["__connect.errors.offset"] == b"2"
