"""Rows of Kafka's records in Spark and Arrow, and records whose values are in a store."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from jobs.records.arrow import arrow_schema
from jobs.records.schemas import HEADERS
from stores.encryption import keyring_of
from stores.payload import publish
from stores.registry import open_store
from stores.store import Delete
from transforms.compression import Codec
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload, Payload
from transforms.record import Record
from transforms.reference import Reference

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
"""The columns of Spark's Kafka source."""


def frame(spark: SparkSession, *partitions: Sequence[Record], shuffled: bool = False) -> DataFrame:
    """Rows as Spark's Kafka source has them; offsets are positions in the lists, timestamps are in seconds."""
    rows = [
        (r.key, r.value, "t", number, offset, datetime.fromtimestamp(r.timestamp, UTC), 0, list(r.headers) or None)
        for number, records in enumerate(partitions)
        for offset, r in enumerate(records)
    ]
    if shuffled:
        random.Random(1).shuffle(rows)
    found = spark.createDataFrame(rows, SOURCE)
    return found.repartition(3) if shuffled else found


def batch(records: Sequence[Record]) -> pa.RecordBatch:
    """The same rows of one partition as a task gets them."""
    rows = [
        {
            "key": r.key,
            "value": r.value,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": 5_000_000,
            "timestampType": 0,
            "headers": [{"key": name, "value": data} for name, data in r.headers] or None,
        }
        for offset, r in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(SOURCE))


def record_of(row: Row | Mapping[str, Any]) -> Record:
    """A row of Spark or Arrow as a record."""

    def plain(data: bytes | bytearray | None) -> bytes | None:
        return None if data is None else bytes(data)

    headers = [(header["key"], plain(header["value"])) for header in row["headers"] or ()]
    return Record(plain(row["key"]), plain(row["value"]), headers)


def records_of(rows: DataFrame) -> list[Record]:
    return [record_of(row) for row in rows.orderBy("partition", "offset").collect()]


def whole(rows: Sequence[Row]) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values."""
    return [(r.key and bytes(r.key), None if r.value is None else bytes(r.value)) for r in rows]


def published(
    config: Mapping[str, object],
    topic: str,
    value: bytes,
    codec: Codec | None = None,
    encryption: Mapping[str, object] | None = None,
    name: FormatName = "wideload",
) -> Reference:
    """A value in the store, as the worker publishes it."""
    payload: Payload = Offload(codec=codec, format=FORMATS[name]).payload(value)
    with closing(open_store(config)) as store:
        return publish(store, topic, payload, by_digest=True, keyring=keyring_of(encryption or {}))


def referring(config: Mapping[str, object], topic: str, record: Record, **more: Any) -> Record:
    """The record with its value in the store."""
    assert record.value is not None
    form = FORMATS[more.get("name", "wideload")]
    return form.write_reference(record, published(config, topic, record.value, **more))


def lose(config: Mapping[str, object], record: Record) -> bytes:
    """Removes a record's payload; gives what it was."""
    assert record.value is not None
    with closing(open_store(config)) as store:
        assert isinstance(store, Delete)
        data = store.download(record.value.decode())
        store.delete(record.value.decode())
    return data
