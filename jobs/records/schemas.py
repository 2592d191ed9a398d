"""The columns that jobs hand to one another: one `StructType` for each kind of row."""

from __future__ import annotations

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

__all__ = ["CHUNK_MESSAGE_ID", "HEADERS", "INCOMPLETE", "RECORD", "conform"]

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""Headers in the order of the record; names may stand more than once, values may be null."""

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
"""One Kafka record, all of it.

A null `value` is a tombstone, an empty one is not; a null `headers` is a record without headers. `timestamp_type` is
Kafka's own number: 0 when the producer set `timestamp`, 1 when the broker did.
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

`uuid` is null where it cannot be read. `reason` is one of `transforms.assembly`, or `incomplete`; `detail` is for
people. `offsets` are those of its chunks that are there, in order, and `chunks` is how many they are.
"""


def conform(rows: DataFrame, schema: StructType) -> DataFrame:
    """`rows` with the columns of `schema`, in its order and of its types, and no others.

    Raises:
        pyspark.errors.AnalysisException: a column is missing, or its type cannot become the one that is asked for.
    """
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema))
