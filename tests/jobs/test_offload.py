"""Large values that leave rows on their way to Kafka."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from jobs.inflate import inflate
from jobs.offload import offload
from tests.integration.topics import read_all
from transforms.claims import OnReference
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.record import Record

MakeTopic = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, object]:
    root = tmp_path / "payloads"
    return {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(root),
        "filesystem.fsync": False,
    }


def stored(store: dict[str, object]) -> list[str]:
    root = Path(str(store["filesystem.root"]))
    return sorted(str(file.relative_to(root)) for file in root.glob("*/*"))


def test_offload_to_a_topic_and_back(
    spark: SparkSession, broker: str, make_topic: MakeTopic, store: dict[str, object]
) -> None:
    """What Spark writes to a topic, readers of references read: small values as they are, large ones from the store."""
    topic = make_topic(1)
    large = random.Random(2).randbytes(300_000)
    rows = spark.createDataFrame(
        [
            ("a", b"small", [("x", b"1"), ("x", None)], 0),
            ("b", large, [("x", b"1")], 0),
            ("c", None, None, 0),
            (None, b"z" * 1_001, None, 0),
            ("e", b"z" * 1_000, None, 0),
        ],
        "key string, value binary, headers array<struct<key: string, value: binary>>, partition int",
    ).coalesce(1)
    kafka = {"kafka.bootstrap.servers": broker, "topic": topic}
    offload(rows, store, 1_000, topic=topic).write.format("kafka").options(**kafka).save()

    found = read_all(broker, topic)[0]
    digests = [hashlib.sha256(value).hexdigest() for value in (large, b"z" * 1_001)]
    assert stored(store) == sorted(f"{topic}/{digest}" for digest in digests)
    assert [(r.key, len(r.value or b"") > 300) for r in found] == [
        (b"a", False), (b"b", False), (b"c", False), (None, False), (b"e", True)
    ]  # fmt: skip
    assert dict(found[1].headers)["large-message.size"] == b"300000"
    source = spark.read.format("kafka").options(
        subscribe=topic, includeHeaders="true", **{"kafka.bootstrap.servers": broker}
    )
    back = inflate(source.load(), store).orderBy("offset").collect()
    assert [(row.key and bytes(row.key), row.value and bytes(row.value)) for row in back] == [
        (b"a", b"small"), (b"b", large), (b"c", None), (None, b"z" * 1_001), (b"e", b"z" * 1_000)
    ]  # fmt: skip
    assert [(h.key, h.value and bytes(h.value)) for h in back[0].headers] == [("x", b"1"), ("x", None)]
    assert [(h.key, bytes(h.value)) for h in back[1].headers] == [("x", b"1")]
    assert back[3].headers is None


@pytest.mark.usefixtures("compiled")
def test_offload_again_leaves_nothing_behind(spark: SparkSession, store: dict[str, object]) -> None:
    """A task that runs again writes the same objects, and makes the same rows, whatever compresses them."""
    rows = spark.createDataFrame(
        [(f"text {n} " * 500, f"topic-{n % 2}") for n in range(20)], "value string, topic string"
    )
    for compression in (None, "zstd"):
        made: Any = offload(rows, store, 100, compression=compression)
        once = made.collect()
        files = stored(store)
        assert made.collect() == once
        assert stored(store) == files
        assert len(files) == (20 if compression is None else 40)
        assert {file.partition("/")[0] for file in files} == {"topic-0", "topic-1"}
        back = inflate(made.selectExpr("*", "0 AS partition", "0L AS offset"), store)
        assert [bytes(row.value).decode() for row in back.collect()] == [row.value for row in rows.collect()]


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_offload_in_bakdatas_formats(spark: SparkSession, store: dict[str, object], name: FormatName) -> None:
    """Formats that mark values which stay mark them here too."""
    rows = spark.createDataFrame([(b"k", b"small"), (b"k", b"large" * 99), (b"k", None)], "key binary, value binary")
    found = offload(rows, store, 100, topic="t", reference_format=name).collect()
    form = FORMATS[name]
    records = [
        Record(bytes(r.key), r.value and bytes(r.value), [(h.key, bytes(h.value)) for h in r.headers or ()])
        for r in found
    ]
    assert form.read_inline(records[0]).value == b"small"
    assert form.refers(records[1])
    assert records[2].value is None


def test_offload_by_the_sinks_limit(spark: SparkSession, store: dict[str, object]) -> None:
    """A record that the sink topic would refuse is offloaded below the threshold too."""
    rows = spark.createDataFrame([(b"v" * 900,), (b"v" * 950,)], "value binary")
    found = offload(rows, store, topic="t", max_message_bytes=1_000).collect()
    assert [row.headers is None for row in found] == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic": "no topic"}, "topic: found 'no topic'"),
        ({"compression": "rar"}, "compression: found 'rar', allowed are gzip"),
        ({"store": {"large.message.id.generator": "uuid"}}, "must be sha256: Spark runs tasks again"),
        ({"store": {"filesystem.rot": "x"}}, "did you mean filesystem.root"),
    ],
)
def test_offload_bad_argument(
    spark: SparkSession, store: dict[str, object], changes: dict[str, Any], message: str
) -> None:
    """A wrong argument is told when `offload` is called."""
    arguments = {"topic": "t", **changes} | {"store": store | changes.get("store", {})}
    with pytest.raises(ConfigurationError, match=message):
        offload(spark.createDataFrame([(b"v",)], "value binary"), **arguments)


def test_offload_column_that_is_wrong(spark: SparkSession, store: dict[str, object]) -> None:
    """A column that the sink would not take, or that is missing, is told when `offload` is called."""
    with pytest.raises(TypeError, match="column value is bigint"):
        offload(spark.createDataFrame([(1,)], "value bigint"), store, topic="t")
    with pytest.raises(ValueError, match="no column topic"):
        offload(spark.createDataFrame([(b"v",)], "value binary"), store)


def test_offload_store_that_fails(spark: SparkSession, store: dict[str, object], tmp_path: Path) -> None:
    """A store that cannot be written to is a failure that names it; no reference is made to what is not there."""
    (tmp_path / "payloads").write_bytes(b"a file")
    rows = spark.createDataFrame([(b"v" * 99,)], "value binary")
    with pytest.raises(PythonException, match="a row for topic t: a value of 99 bytes cannot be stored"):
        offload(rows, store, 10, topic="t").collect()


def test_offload_signs(spark: SparkSession, store: dict[str, object]) -> None:
    """With a key, references are signed; who has another one, or finds none, refuses them without asking the store."""
    rows = spark.createDataFrame([(b"k", b"large" * 99)], "key binary, value binary")
    signed = offload(rows, {**store, "large.message.signing.key": "s" * 32}, 100, topic="t")
    made = signed.selectExpr("*", "0 AS partition", "0L AS offset", "'t' AS topic").cache()
    assert [h.key for h in made.collect()[0].headers][-1] == "large-message.signature"
    for key, state in (("s" * 32, None), ("x" * 32, "refused")):
        back = inflate(made, {**store, "large.message.signing.key": key}, on_error="null").collect()
        assert [row.inflate_error and row.inflate_error.state for row in back] == [state]
    with pytest.raises(ConfigurationError, match="has no signatures"):
        offload(
            rows, {**store, "large.message.signing.key": "s" * 32}, 100, topic="t", reference_format="bakdata-headers"
        )


@pytest.mark.usefixtures("compiled")
def test_offload_encrypts(spark: SparkSession, store: dict[str, object]) -> None:
    """With a key, payloads are encrypted; who has another one, or none, gets no value, and is told why."""
    rows = spark.createDataFrame([(b"k", b"large" * 99), (b"j", b"small")], "key binary, value binary")
    named = {"large.message.encryption.key.id": "one", "large.message.encryption.key.secret": "1f" * 32}
    writer = {**store, **named, "large.message.encryption.type": "aes-256-gcm"}
    made = offload(rows, writer, 100, topic="t", compression="zstd").selectExpr(
        "*", "0 AS partition", "0L AS offset", "'t' AS topic"
    )
    once = made.cache()
    assert "large-message.encryption" in {header.key for header in once.collect()[0].headers}
    back = inflate(once, {**store, **named}).collect()
    assert [(bytes(row.value), row.headers) for row in back] == [(b"large" * 99, None), (b"small", None)]
    others = {**named, "large.message.encryption.key.secret": "2e" * 32}
    for keys, said in (({}, "no key is configured here"), (others, "does not open its data key")):
        (refused, plain) = inflate(once, {**store, **keys}, on_error="null").collect()
        assert (refused.value, refused.inflate_error.state) == (None, "refused")
        assert said in refused.inflate_error.detail
        assert bytes(plain.value) == b"small"
    with pytest.raises(ConfigurationError, match="whose readers cannot decrypt"):
        offload(rows, writer, 100, topic="t", reference_format="bakdata-headers")


def test_offload_of_rows_that_are_references(spark: SparkSession, store: dict[str, object]) -> None:
    """However small it is, such a row comes back as it was, and nobody follows it; a chunk fails."""
    schema = "key string, value binary, headers array<struct<key: string, value: binary>>"
    forged = [("large-message", b"true"), ("own", b"1")]
    rows = [("small", b"v", [("own", b"1")]), ("forged", b"s3://b/salaries/1", forged), ("none", None, None)]
    made = spark.createDataFrame(rows, schema).coalesce(1)
    found = {bytes(row.key): row for row in offload(made, store, topic="t").collect()}
    assert len(stored(store)) == 1
    assert bytes(found[b"small"].value) == b"v"
    assert bytes(found[b"forged"].value) != b"s3://b/salaries/1"
    assert [header.key for header in found[b"forged"].headers][:3] == ["large-message", "own", "large-message"]
    passed = offload(made, store, topic="t", on_reference="pass").collect()
    assert [bytes(row.value) for row in passed if bytes(row.key) == b"forged"] == [b"s3://b/salaries/1"]
    chunk = spark.createDataFrame([("chunk", b"v", [("large-message.chunk.uuid", b"u")])], schema)
    keyed = spark.createDataFrame([("s3://b/salaries/1", None, [("large-message-key", b"true")])], schema)
    for refused, how, form, claimed in (
        (made, "fail", "wideload", "a reference in place of its value"),
        (chunk, "offload", "wideload", "a chunk"),
        (keyed, "offload", "bakdata-flag", "a reference in place of its key"),
    ):
        with pytest.raises(PythonException, match=f"a row for topic t: the record has the headers of {claimed}"):
            offload(
                refused,
                store,
                topic="t",
                on_reference=cast(OnReference, how),
                reference_format=cast(FormatName, form),
            ).collect()
    with pytest.raises(ConfigurationError, match="on_reference: found 'drop', allowed are offload, fail, pass"):
        offload(made, store, topic="t", on_reference=cast(OnReference, "drop"))
