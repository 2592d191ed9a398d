"""The columns of rows: one `StructType` for each kind of row."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
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

_KINDS = MappingProxyType(
    {
        "binary": BinaryType(),
        "int": IntegerType(),
        "long": LongType(),
        "string": StringType(),
        "timestamp": TimestampType(),
    }
)


def columns(text: str) -> StructType:
    """The schema of `NAME TYPE, …`; unlike Spark's own DDL it needs no session."""
    pairs = (each.split() for each in text.split(","))
    return StructType([StructField(name, _KINDS[kind]) for name, kind in pairs])


HEADERS = ArrayType(columns("key string, value binary"))
"""Headers in the order of the record; a name may come more than once, a value may be null."""

RECORD = StructType(
    [
        *columns("key binary, value binary"),
        StructField("headers", HEADERS),
        *columns("topic string, partition int, offset long, timestamp timestamp, timestamp_type int"),
    ]
)
"""One whole Kafka record.

A null `value` is a tombstone, an empty one is not; `headers` is null for a record without headers. `timestamp_type` is
Kafka's own number: 0 if the producer set `timestamp`, 1 if the broker did.
"""

CHUNK_MESSAGE_ID = columns("first long, last long")
"""Offsets of the first and the last chunk of a message."""

INCOMPLETE = StructType(
    [
        *columns("topic string, partition int, uuid string, reason string, detail string, chunks int"),
        StructField("offsets", ArrayType(LongType())),
    ]
)
"""A message that is not whole.

`uuid` is null if it cannot be read. `reason` is one of `transforms.reassembly`, or `incomplete`; `detail` is for
people. `offsets` are the offsets of the chunks that were found, in order, and `chunks` is their number.
"""


def few(spark: SparkSession, rows: Sequence[Sequence[str | int | None]], schema: StructType) -> DataFrame:
    """A few rows, which the plan itself holds.

    To read those of `createDataFrame` Spark starts tasks, and it does not see when there are none. Parameters of
    `spark.sql` are not used: the parser of Delta Lake for Spark 4.1 and 4.2 loses them.
    """
    names = [field.name for field in schema]
    given = rows or [(None,) * len(names)]
    values = ", ".join(f"({', '.join(map(_literal, row))})" for row in given)
    listed = spark.sql(f"SELECT * FROM VALUES {values} AS given(`{'`, `'.join(names)}`)")  # noqa: S608  # no user's text
    return conform(listed if rows else listed.where(F.lit(False)), schema)


def _literal(value: str | int | None) -> str:
    """A literal of SQL; that of a text has its bytes, so that nothing in it means anything."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else f"cast(X'{value.encode().hex()}' AS STRING)"


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
