"""The columns of rows: one `StructType` for each kind of row."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["CHUNK_MESSAGE_ID", "HEADERS", "INCOMPLETE", "RECORD", "conform", "require_columns"]

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""Headers in the order of the record; a name may come more than once, a value may be null."""

RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
    ]
)
"""One whole Kafka record.

A null `value` is a tombstone, an empty one is not; `headers` is null for a record without headers. `timestamp_type` is
Kafka's own number: 0 if the producer set `timestamp`, 1 if the broker did.
"""

CHUNK_MESSAGE_ID = StructType([StructField("first", LongType()), StructField("last", LongType())])
"""Offsets of the first and the last chunk of a message."""

INCOMPLETE = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("uuid", StringType()),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("chunks", IntegerType()),
        StructField("offsets", ArrayType(LongType())),
    ]
)
"""A message that is not whole.

`uuid` is null if it cannot be read. `reason` is one of `transforms.assembly`, or `incomplete`; `detail` is for people.
`offsets` are the offsets of the chunks that were found, in order, and `chunks` is their number.
"""


def require_columns(rows: DataFrame, needed: Sequence[str]) -> None:
    """Makes sure that rows of Spark's Kafka source have the columns.

    Raises:
        ValueError: a column is missing.
    """
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        hint = "; read with the option includeHeaders" if "headers" in missing else ""
        raise ValueError(f"rows of Spark's Kafka source have {', '.join(needed)}; missing: {', '.join(missing)}{hint}")


def conform(rows: DataFrame, schema: StructType) -> DataFrame:
    """`rows` with the columns of `schema` and no others, in its order and with its types.

    Raises:
        pyspark.errors.AnalysisException: a column is missing, or its type cannot be cast.
    """
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema))
