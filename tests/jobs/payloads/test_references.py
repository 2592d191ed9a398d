"""References in a DataFrame: each format, both parts of a record, and what is malformed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from jobs.payloads.references import REFERENCE, newest, references
from jobs.records.schemas import HEADERS
from tests.vectors.bakdata import bakdata_cases
from transforms import record_format
from transforms.bakdata import FLAG
from transforms.chunk import Chunking
from transforms.formats import FORMATS, FormatName
from transforms.letter import MARK
from transforms.record import Header, Record
from transforms.reference import KEY, MAX_PATH_BYTES, Encryption, Reference
from transforms.signing import Signing
from transforms.wrapper import Wrap

ROOT = "s3://payloads/base/"
DIGEST = "ab" * 32

SOURCE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)


def frame(spark: SparkSession, *partitions: Sequence[Record]) -> DataFrame:
    """Rows as Spark's Kafka source has them, in no order; offsets are positions in the lists."""
    rows = [
        (r.key, r.value, "t", number, offset, datetime.fromtimestamp(r.timestamp, UTC), 0, list(r.headers) or None)
        for number, records in enumerate(partitions)
        for offset, r in enumerate(records)
    ]
    random.Random(1).shuffle(rows)
    return spark.createDataFrame(rows, SOURCE).repartition(3)


def found(rows: DataFrame) -> list[Row]:
    """In the order of the log, keys first."""
    assert rows.columns == REFERENCE.fieldNames()
    return rows.orderBy("partition", "offset", "which").collect()


def says(row: Row) -> tuple[object, ...]:
    """What a reference says."""
    return row.offset, row.which, row.format, row.path, row.size, row.checksum, row.compression, row.error


def referring(path: str, *own: Header, size: int | None = None, name: FormatName = "wideload") -> Record:
    """A record whose value is elsewhere."""
    plain = Record(b"k", b"?", own, 5)
    return FORMATS[name].write_reference(plain, Reference(path, size, None if size is None else DIGEST))


def test_references_of_the_projects_own_format(spark: SparkSession) -> None:
    """Path, size, checksum and codec of values and keys come with their place; all else is left out."""
    key = Reference(f"{ROOT}t/key", 7, DIGEST)
    own: list[Header] = [("large-message", b"false"), ("x", b"1")]
    log = [
        Record(b"k", b"plain", [("x", b"1")]),
        referring(f"{ROOT}t/a", ("large-message", b"no"), ("x", None), size=3),
        Record(b"k", Reference(f"{ROOT}t/b", 9, DIGEST, "zstd").value(), Reference("-", 9, DIGEST, "zstd").headers()),
        Record(b"k", f"{ROOT}t/seed".encode(), [("large-message", b"true")]),
        Record(b"k", None, [("large-message", b"true")]),
        Record(key.value(), b"small", key.headers(KEY)),
        Record(key.value(), f"{ROOT}t/c".encode(), [*key.headers(KEY), *Reference("-", 1).headers()]),
        Record(key.value(), None, key.headers(KEY)),
        Record(None, b"v", [("large-message-key", b"true")]),
        Record(b"k", b"not one", own),
    ]
    rows = found(references(frame(spark, log), root=ROOT))
    assert [says(row) for row in rows] == [
        (1, "value", "wideload", f"{ROOT}t/a", 3, DIGEST, None, None),
        (2, "value", "wideload", f"{ROOT}t/b", 9, DIGEST, "zstd", None),
        (3, "value", "wideload", f"{ROOT}t/seed", None, None, None, None),
        (5, "key", "wideload", f"{ROOT}t/key", 7, DIGEST, None, None),
        (6, "key", "wideload", f"{ROOT}t/key", 7, DIGEST, None, None),
        (6, "value", "wideload", f"{ROOT}t/c", 1, None, None, None),
        (7, "key", "wideload", f"{ROOT}t/key", 7, DIGEST, None, None),
    ]
    assert (rows[0].topic, rows[0].partition, bytes(rows[0].key)) == ("t", 0, b"k")
    assert rows[0].timestamp.replace(tzinfo=UTC).timestamp() == 5


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_references_of_bakdatas_formats(spark: SparkSession, name: FormatName) -> None:
    """What bakdata's own serializer wrote leads to where it put the objects, and nothing of it is called malformed."""
    cases = [case for case in bakdata_cases() if case.format == name]
    rows = found(references(frame(spark, [case.wire for case in cases]), name, ROOT))
    assert [(row.offset, row.path, row.compression, row.error) for row in rows] == [
        (offset, case.stored[0], case.codec, None) for offset, case in enumerate(cases) if case.stored is not None
    ]
    assert {row.format for row in rows} == {name}


def test_references_in_letters_of_earlier_releases(spark: SparkSession) -> None:
    """A dead letter whose payload is a reference of bakdata's own is told: where that leads is in the payload."""
    backed = Record(b"k", b"?", [(FLAG, b"\x01"), (MARK, b"value")], 5)
    log = [FORMATS["wideload"].write_reference(backed, Reference(f"{ROOT}dlq/a", 3_000, DIGEST))]
    rows = found(references(frame(spark, log), root=ROOT))
    assert sorted((row.path or "", row.error or "") for row in rows) == [
        ("", "is a dead letter whose record is elsewhere, and may be a reference: replay or drop it"),
        (f"{ROOT}dlq/a", ""),
    ]


def test_references_of_another_header_format_count_too(spark: SparkSession) -> None:
    """A record that a header marks is a reference whatever the topic's format is said to be."""
    log = [referring(f"{ROOT}t/a", name="bakdata-headers"), referring(f"{ROOT}t/b", size=2)]
    for name in FORMATS:
        rows = found(references(frame(spark, log), name))
        assert [(row.offset, row.path, row.error) for row in rows] == [(0, f"{ROOT}t/a", None), (1, f"{ROOT}t/b", None)]


def test_references_malformed_are_rows(spark: SparkSession) -> None:
    """What says that it is a reference and is none is a row with the reason, for values and keys."""
    flag: Header = ("large-message", b"true")
    log = [
        Record(b"k", b"\xff", [flag]),
        Record(b"k", b"", [flag]),
        Record(b"k", b"p" * (MAX_PATH_BYTES + 1), [flag]),
        Record(b"k", b"path", [flag, ("large-message.size", b"many")]),
        Record(b"k", b"path", [flag, ("large-message.checksum", b"x" * 5_000)]),
        Record(b"\xff", b"v", [("large-message-key", b"true")]),
        Record(b"k", b"path", [flag, ("large-message.chunk.uuid", b"u")]),
        Record(b"k", b"path", [flag, ("large-message.size", b"9" * 19)]),
        Record(b"k", b"p" * MAX_PATH_BYTES, [flag]),
    ]
    rows = found(references(frame(spark, log)))
    reasons = [
        "value is 'not UTF-8 at byte 0'",
        "value is '0 bytes'",
        "bytes'; allowed: a path",
        "large-message.size is 'many'",
        "large-message.checksum is 'xxx",
        "key is 'not UTF-8 at byte 0'",
        "is a chunk of a reference",
    ]
    assert [row.offset for row in rows] == list(range(len(log)))
    for row, reason in zip(rows, reasons, strict=False):
        assert reason in row.error
        assert (row.path, row.format, row.size) == (None, None, None)
    assert [row.which for row in rows] == ["value"] * 5 + ["key"] + ["value"] * 3
    assert (rows[7].error, rows[7].size) == (None, 2**63 - 1)
    assert rows[8].path == "p" * MAX_PATH_BYTES


def test_references_with_the_longest_headers(spark: SparkSession) -> None:
    """A signature covers the whole data key, which a key service makes long, and the id of the key."""
    signing = Signing("s" * 32)

    def signed(key_id: str, data_key: bytes) -> Record:
        encryption = Encryption(key_id, b"n" * 12, data_key)
        reference = signing.signed(Reference(f"{ROOT}t/a", 9, DIGEST, encryption=encryption))
        return Record(b"k", reference.value(), reference.headers())

    log = [
        signed("one", b"d" * 80),
        signed("arn:aws:kms:eu-central-1:123456789012:key/1", b"d" * 264),
        signed("i" * 256, b"d" * 6_272),
        signed("i" * 257, b"d" * 80),
        signed("one", b"d" * 6_273),
    ]
    rows = found(references(frame(spark, log), root=ROOT, signing=signing))
    assert [row.error for row in rows[:3]] == [None] * 3
    assert ["large-message.encryption.key is" in rows[3].error, "data-key is" in rows[4].error] == [True, True]


def test_references_flag_format_that_is_none(spark: SparkSession) -> None:
    """In the format with flags each value has one; what has not is told."""
    rows = found(
        references(frame(spark, [Record(b"k", b"\0v"), Record(b"k", b"{}"), Record(b"k", b"")]), "bakdata-flag")
    )
    assert [(row.offset, "flag" in row.error) for row in rows] == [(1, True), (2, True)]


def test_references_unmarked_paths_are_told(spark: SparkSession) -> None:
    """A path below the root without a mark is told: the topic has another format, and nobody can say what lives."""
    log = [
        Record(b"k", f"{ROOT}t/a".encode()),
        Record(b"k", b"\1" + f"{ROOT}t/a".encode()),
        Record(f"{ROOT}t/a".encode(), b"v"),
        Record(b"k", f"{ROOT}t/values/a".encode()),
        Record(b"\1" + f"{ROOT}t/keys/a".encode(), None),
        Record(b"k", f"see {ROOT}t/a".encode()),
        Record(b"k", f"{ROOT}t/a".encode(), [("__large.message.backed.value", b"\0")]),
    ]
    rows = found(references(frame(spark, log), root=ROOT))
    assert [(row.offset, row.which) for row in rows] == [(0, "value"), (1, "value"), (2, "key"), (6, "value")]
    assert all("is not marked as a reference" in row.error for row in rows)
    assert found(references(frame(spark, log))) == []
    assert 6 not in [row.offset for row in found(references(frame(spark, log), "bakdata-headers", ROOT))]


def test_references_no_headers(spark: SparkSession) -> None:
    """Without headers nobody can see what is a reference: the message says which option is missing."""
    with pytest.raises(ValueError, match="includeHeaders"):
        references(frame(spark, []).drop("headers"))


def test_newest_is_what_compaction_keeps(spark: SparkSession) -> None:
    """The last record of each key of a partition, tombstones included, and everything that has no key."""
    first = [
        Record(b"a", b"old", (), 1),
        Record(b"b", b"only", (), 1),
        Record(None, b"keyless", (), 1),
        Record(b"a", b"new", (), 2),
        Record(b"c", b"gone", (), 2),
        Record(None, b"keyless", (), 2),
        Record(b"c", None, (), 3),
        Record(b"", b"empty", (), 3),
    ]
    second = [Record(b"a", b"of another partition", (), 1)]
    kept = newest(frame(spark, first, second)).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in kept] == [*((0, n) for n in (1, 2, 3, 5, 6, 7)), (1, 0)]


def test_newest_since(spark: SparkSession) -> None:
    """What was overwritten at the time or later counts too, for readers that are a little behind."""
    log = [
        Record(b"a", b"1", (), 10),
        Record(b"a", b"2", (), 20),
        Record(b"a", b"3", (), 30),
        Record(b"a", None, (), 40),
    ]
    for since, offsets in ((41, [3]), (40, [2, 3]), (30, [1, 2, 3]), (1, [0, 1, 2, 3])):
        kept = newest(frame(spark, log), datetime.fromtimestamp(since, UTC))
        assert sorted(row.offset for row in kept.collect()) == offsets


def test_newest_with_a_timestamp_that_spark_cannot_hold(spark: SparkSession) -> None:
    """A record without a timestamp overwrites others all the same, and nobody knows how long ago."""
    log = [Record(b"a", b"1", (), 10), Record(b"a", b"2", (), 20), Record(b"a", b"3", (), 30)]
    rows = frame(spark, log).withColumn("timestamp", sf.when(sf.col("offset") != 1, sf.col("timestamp")))
    for since, offsets in ((None, [2]), (datetime.fromtimestamp(41, UTC), [0, 2])):
        assert sorted(row.offset for row in newest(rows, since).collect()) == offsets


def wrapped(record: Record) -> Record:
    """The record as `wrap` writes it."""
    return Wrap().wrap(record)


def test_references_in_wrappers(spark: SparkSession) -> None:
    """What a wrapper or dead letter refers to is read as a record of its own would be, whatever stands before it."""
    key = Reference(f"{ROOT}t/key", 7, DIGEST)
    header: Header = ("wrapper.header.7", bytes(3 * MAX_PATH_BYTES))
    log = [
        wrapped(referring(f"{ROOT}t/a", size=3)),
        wrapped(referring(f"{ROOT}t/b", header, size=4)),
        wrapped(Record(key.value(), None, key.headers(KEY))),
        wrapped(wrapped(referring("s3://elsewhere/t/c"))),
        wrapped(referring(f"{ROOT}t/d", name="bakdata-headers")),
        wrapped(Record(b"k", b"a plain value", [("wrapper.header.5", b"trace")])),
        wrapped(Record(b"k", f"says {ROOT}t/e".encode())),
        Record(b"k", b"\0\0\0\0\7" + f"Avro, says {ROOT}t/f".encode()),
        wrapped(Record(b"k", None)),
        Record(b"k", record_format.serialize(wrapped(referring(f"{ROOT}t/g"))), [("wideload.dead-letter", b"record")]),
    ]
    heard = found(references(frame(spark, log), root=ROOT))
    assert [(row.offset, row.which, row.path, row.size) for row in heard] == [
        (0, "value", f"{ROOT}t/a", 3),
        (1, "value", f"{ROOT}t/b", 4),
        (2, "key", f"{ROOT}t/key", 7),
        (3, "value", "s3://elsewhere/t/c", None),
        (4, "value", f"{ROOT}t/d", None),
        (9, "value", f"{ROOT}t/g", None),
    ]
    kept = newest(frame(spark, [replace(r, key=None) for r in log]), root=ROOT)
    assert [row.offset for row in found(references(kept, "bakdata-headers", ROOT))] == [0, 1, 3, 4, 9]


def test_references_in_wrappers_with_flags(spark: SparkSession) -> None:
    """In the format without headers the flag stands inside of the wrapper; inline values are no wrappers."""
    form = FORMATS["bakdata-flag"]
    log = [
        wrapped(referring(f"{ROOT}t/a", name="bakdata-flag")),
        form.write_inline(Record(b"k", f"{ROOT}t/b".encode())),
        wrapped(form.write_inline(Record(b"k", f"{ROOT}t/c".encode()))),
    ]
    heard = found(references(frame(spark, log), "bakdata-flag", ROOT))
    assert [(row.offset, row.path, row.error) for row in heard] == [(0, f"{ROOT}t/a", None)]


def test_references_in_wrappers_that_cannot_be_read(spark: SparkSession) -> None:
    """A wrapper or dead letter that may hold a reference nobody can read is told, not passed over."""
    deep = referring(f"{ROOT}t/deep")
    for _ in range(9):
        deep = wrapped(deep)
    long: Header = ("wrapper.header.7", bytes(2**20))
    pieces = list(Chunking(600).split(wrapped(referring(f"{ROOT}t/a", ("wrapper.header.7", bytes(900)))), "u"))
    plain = list(Chunking(600).split(wrapped(Record(b"k", b"v" * 2 * MAX_PATH_BYTES)), "v"))
    log = [
        wrapped(referring("s3://elsewhere/t/a", long)),
        deep,
        wrapped(Record(b"k", b"\xff", [("large-message", b"true")])),
        wrapped(Record(b"k", f"{ROOT}t/unmarked".encode())),
        *pieces,
        *plain,
        Record(b"k", b"a record", [("wideload.dead-letter", b"bare-record")]),
        Record(b"k", b"plain", [("wideload.dead-letter", b"whole")]),
        replace(referring(f"{ROOT}t/b"), headers=[("wideload.dead-letter", b"record"), ("large-message", b"true")]),
    ]
    reasons = [
        "a wrapper of more than 1,048,576 bytes",
        "in a wrapper, more than 8 times",
        "not UTF-8",
        "is not marked as a reference",
        "is a chunk of a wrapper that may hold a reference",
        "malformed record",
        "is a dead letter whose record is elsewhere",
    ]
    assert len(pieces) > 1
    rows = newest(frame(spark, [replace(r, key=None) for r in log]), root=ROOT)
    heard = found(references(rows, root=ROOT))
    told = [row for row in heard if row.error is not None]
    assert [row.path for row in heard if row.error is None] == [f"{ROOT}t/b"]
    assert [row.offset for row in told] == [*range(5), len(log) - 3, len(log) - 1]
    for row, reason in zip(told, reasons, strict=True):
        assert reason in row.error
