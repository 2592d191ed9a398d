"""Large values that leave rows on their way to Kafka."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from jobs.inflate import inflate
from jobs.offload import offload
from tests.app.payloads.swept import filesystem
from tests.integration.topics import read_all
from tests.jobs.rows import record_of, records_of
from transforms.claims import OnReference
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName

MakeTopic = Callable[..., str]
NAMED = {"large.message.encryption.key.id": "one", "large.message.encryption.key.secret": "1f" * 32}
ENCRYPTED = {**NAMED, "large.message.encryption.type": "aes-256-gcm"}
SIGNED = {"large.message.signing.key": "s" * 32}
BAKDATA = {"reference_format": "bakdata-headers"}


@pytest.fixture
def store(tmp_path: Path) -> dict[str, object]:
    return filesystem(tmp_path / "payloads")


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
    options = {"subscribe": topic, "includeHeaders": "true", "kafka.bootstrap.servers": broker}
    back = records_of(inflate(spark.read.format("kafka").options(**options).load(), store))
    assert [(r.key, r.value) for r in back] == [
        (b"a", b"small"), (b"b", large), (b"c", None), (None, b"z" * 1_001), (b"e", b"z" * 1_000)
    ]  # fmt: skip
    assert [r.headers for r in back] == [[("x", b"1"), ("x", None)], [("x", b"1")], [], [], []]


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


def test_offload_in_bakdatas_formats(spark: SparkSession, store: dict[str, object]) -> None:
    """Formats that mark values which stay mark them here too."""
    rows = spark.createDataFrame([(b"k", b"small"), (b"k", b"large" * 99), (b"k", None)], "key binary, value binary")
    for name in ("bakdata-headers", "bakdata-flag"):
        form = FORMATS[name]
        inline, large, tombstone = map(record_of, offload(rows, store, 100, topic="t", reference_format=name).collect())
        assert form.read_inline(inline).value == b"small"
        assert form.refers(large)
        assert tombstone.value is None


def test_offload_by_the_sinks_limit(spark: SparkSession, store: dict[str, object]) -> None:
    """A record that the sink topic would refuse is offloaded below the threshold too."""
    rows = spark.createDataFrame([(b"v" * 900,), (b"v" * 950,)], "value binary")
    found = offload(rows, store, topic="t", max_message_bytes=1_000).collect()
    assert [row.headers is None for row in found] == [True, False]


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        ("value binary", {"topic": "no topic"}, "topic: found 'no topic'"),
        ("value binary", {"compression": "rar"}, "compression: found 'rar', allowed are gzip"),
        ("value binary", {"on_reference": "drop"}, "on_reference: found 'drop', allowed are offload, fail, pass"),
        ("value binary", {"large.message.id.generator": "uuid"}, "must be sha256: Spark may repeat tasks"),
        ("value binary", {"filesystem.rot": "x"}, "did you mean filesystem.root"),
        ("value binary", {"topic": None}, "no column topic"),
        ("value bigint", {}, "column value is bigint"),
        ("key binary", {}, "no column value"),
        ("value binary", SIGNED | BAKDATA, "has no signatures"),
        ("value binary", ENCRYPTED | BAKDATA, "whose readers cannot decrypt"),
    ],
)
def test_offload_bad_argument(
    spark: SparkSession, store: dict[str, object], columns: str, changes: dict[str, Any], message: str
) -> None:
    """A wrong argument, or a column that the sink would not take, is told when `offload` is called."""
    arguments: dict[str, Any] = {"topic": "t", **{name: text for name, text in changes.items() if "." not in name}}
    keys = store | {name: text for name, text in changes.items() if "." in name}
    with pytest.raises((ConfigurationError, TypeError, ValueError), match=message):
        offload(spark.createDataFrame([], columns), keys, **arguments)


def test_offload_store_that_fails(spark: SparkSession, store: dict[str, object], tmp_path: Path) -> None:
    """A store that cannot be written to is a failure that names it; no reference is made to what is not there."""
    (tmp_path / "payloads").write_bytes(b"a file")
    rows = spark.createDataFrame([(b"v" * 99,)], "value binary")
    with pytest.raises(PythonException, match="a row for topic t: a value of 99 bytes cannot be stored"):
        offload(rows, store, 10, topic="t").collect()


def made(rows: DataFrame, store: dict[str, object], **more: Any) -> DataFrame:
    """Offloaded rows as `inflate` gets them."""
    return offload(rows, store, 100, topic="t", **more).selectExpr(
        "*", "0 AS partition", "0L AS offset", "'t' AS topic"
    )


def test_offload_signs(spark: SparkSession, store: dict[str, object]) -> None:
    """With a key, references are signed; who has another one, or finds none, refuses them without asking the store."""
    rows = spark.createDataFrame([(b"k", b"large" * 99)], "key binary, value binary")
    signed = made(rows, store | SIGNED).cache()
    assert [h.key for h in signed.collect()[0].headers][-1] == "large-message.signature"
    for key, state in (("s" * 32, None), ("x" * 32, "refused")):
        back = inflate(signed, {**store, "large.message.signing.key": key}, on_error="null").collect()
        assert [row.inflate_error and row.inflate_error.state for row in back] == [state]


@pytest.mark.usefixtures("compiled")
def test_offload_encrypts(spark: SparkSession, store: dict[str, object]) -> None:
    """With a key, payloads are encrypted; who has another one, or none, gets no value, and is told why."""
    rows = spark.createDataFrame([(b"k", b"large" * 99), (b"j", b"small")], "key binary, value binary")
    once = made(rows, store | ENCRYPTED, compression="zstd").cache()
    assert "large-message.encryption" in {header.key for header in once.collect()[0].headers}
    back = inflate(once, store | NAMED).collect()
    assert [(bytes(row.value), row.headers) for row in back] == [(b"large" * 99, None), (b"small", None)]
    others = {**NAMED, "large.message.encryption.key.secret": "2e" * 32}
    for keys, said in (({}, "no key is configured here"), (others, "cannot decrypt its data key")):
        (refused, plain) = inflate(once, store | keys, on_error="null").collect()
        assert (refused.value, refused.inflate_error.state) == (None, "refused")
        assert said in refused.inflate_error.detail
        assert bytes(plain.value) == b"small"


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
