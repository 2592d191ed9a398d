"""References in a DataFrame: the same as a scan finds, and those of what compaction keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jobs.references import REFERENCE, newest, references
from tests.jobs.rows import frame as rows_of
from transforms import record_format
from transforms.bakdata import FLAG
from transforms.chunk import Chunking
from transforms.formats import FORMATS, FormatName
from transforms.found_references import FoundReference, ReferenceFinder
from transforms.letter import MARK
from transforms.record import Header, Record
from transforms.reference import KEY, Encryption, Reference
from transforms.signing import Signing
from transforms.wrapper import Wrap

ROOT = "s3://payloads/base/"
MARKED: Header = ("large-message", b"true")
WITH_ROOT = ReferenceFinder(root=ROOT)


def referring(path: str, *own: Header, name: FormatName = "wideload", key: bytes | None = b"k", at: int = 5) -> Record:
    """A record whose value is elsewhere."""
    return FORMATS[name].write_reference(Record(key, b"?", own, at), Reference(path, 3, "ab" * 32))


def wrapped(record: Record) -> Record:
    """The record as `wrap` writes it."""
    return Wrap().wrap(record)


KEYED = Reference(f"{ROOT}t/key", 7)
LONG: Header = ("wrapper.header.7", bytes(100_000))
LOG = [
    Record(b"k", b"plain", [("x", b"1")]),
    Record(b"k", b"plain"),
    Record(None, None),
    referring(f"{ROOT}t/a", ("x", None)),
    referring(f"{ROOT}t/b", name="bakdata-headers"),
    referring(f"{ROOT}t/c", name="bakdata-flag"),
    Record(KEYED.value(), None, KEYED.headers(KEY)),
    Record(KEYED.value(), f"{ROOT}t/d".encode(), [*KEYED.headers(KEY), MARKED]),
    Record(b"k", b"\xff", [MARKED]),
    Record(b"k", b"path", [MARKED, ("large-message.size", b"9" * 19)]),
    Record(b"k", f"{ROOT}t/unmarked".encode()),
    Record(f"{ROOT}t/unmarked".encode(), b"v", [(FLAG, b"\0")]),
    wrapped(referring(f"{ROOT}t/e", LONG)),
    wrapped(wrapped(referring("s3://elsewhere/t/f"))),
    wrapped(Record(b"k", f"{ROOT}t/unmarked".encode())),
    wrapped(referring(f"{ROOT}t/g", name="bakdata-flag")),
    wrapped(Record(b"k", b"a plain value", [("wrapper.header.5", b"trace")])),
    Record(b"k", b"\0\0\0\0\7Avro"),
    Record(b"k", record_format.serialize(wrapped(referring(f"{ROOT}t/h", LONG))), [(MARK, b"record")]),
    Record(b"k", b"a record", [(MARK, b"bare-record")]),
    replace(referring(f"{ROOT}t/i"), headers=[(MARK, b"record"), MARKED]),
    FORMATS["wideload"].write_reference(
        Record(b"k", b"?", [(FLAG, b"\x01"), (MARK, b"value")]), Reference(f"{ROOT}t/j", 3)
    ),
    *Chunking(600).split(wrapped(referring(f"{ROOT}t/k", ("wrapper.header.7", bytes(900)))), "u"),
]


def frame(spark: SparkSession, *partitions: Sequence[Record]) -> DataFrame:
    """Rows in no order."""
    return rows_of(spark, *partitions, shuffled=True)


def found(rows: DataFrame) -> list[tuple[int, int, FoundReference]]:
    """Partition, offset and reference, in the order of the log, keys first."""
    assert rows.columns == REFERENCE.fieldNames()
    said = rows.drop("topic", "timestamp", "key").orderBy("partition", "offset", "which")
    return [(row[0], row[1], FoundReference(*row[2:])) for row in said.collect()]


def test_references_of_each_kind(spark: SparkSession) -> None:
    """Whatever a record is, its references are those that a finder finds; no filter before it leaves out one."""
    encryption = Encryption("i" * 256, b"n" * 12, b"d" * 6_272)
    signing = Signing("s" * 32)
    signed = signing.signed(Reference(f"{ROOT}t/signed", 9, "ab" * 32, encryption=encryption))
    log = [*LOG, Record(b"k", signed.value(), signed.headers())]
    rows = frame(spark, log, log[::-1]).cache()
    for finder in (
        ReferenceFinder("wideload", ROOT, signing),
        ReferenceFinder("bakdata-headers"),
        ReferenceFinder("bakdata-flag", ROOT),
    ):
        expected = [
            (number, offset, each)
            for number, records in enumerate((log, log[::-1]))
            for offset, record in enumerate(records)
            for each in finder.find(record)
        ]
        assert len(expected) > 10
        assert found(references(rows, finder.format, finder.root, finder.signing)) == expected
    # The ends of values may be cut off, but not those of wrappers and dead-letter records.
    keyless = [replace(record, key=None) for record in log]
    expected = [(0, offset, each) for offset, record in enumerate(keyless) for each in WITH_ROOT.find(record)]
    assert found(references(newest(frame(spark, keyless)), root=ROOT)) == expected


def test_references_no_headers(spark: SparkSession) -> None:
    """Without headers nobody can see what is a reference: the message says which option is missing."""
    for function in (references, newest):
        with pytest.raises(ValueError, match="includeHeaders"):
            function(frame(spark, []).drop("headers"))


def test_newest(spark: SparkSession) -> None:
    """The last record of each key of a partition counts, what has no key, and what was overwritten lately."""
    keys = ((b"a", 10), (b"b", 10), (None, 10), (b"a", 20), (b"a", 30), (None, 30), (b"a", 40), (b"", 40))
    log = [Record(key, b"%d" % n if n != 6 else None, (), at) for n, (key, at) in enumerate(keys)]
    rows = frame(spark, log, [Record(b"a", b"of another partition", (), 1)])
    # A record with a timestamp that Spark cannot hold overwrites others, and nobody knows how long ago.
    unknown = rows.withColumn("timestamp", sf.when(sf.col("offset") != 3, sf.col("timestamp")))
    for of, since, left_out in (
        (rows, None, {0, 3, 4}),
        (rows, 40, {0, 3}),
        (rows, 30, {0}),
        (unknown, None, {0, 3, 4}),
        (unknown, 41, {3, 4}),
    ):
        kept = newest(of, None if since is None else datetime.fromtimestamp(since, UTC))
        places = [(row.partition, row.offset) for row in kept.orderBy("partition", "offset").collect()]
        assert places == [*((0, offset) for offset in range(8) if offset not in left_out), (1, 0)]
