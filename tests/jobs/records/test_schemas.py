"""The columns that jobs hand to one another."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from jobs.records.schemas import RECORD, columns, conform, few


def test_conform_selects_in_order(spark: SparkSession) -> None:
    """The columns come in the schema's order and types, and no others come along; one that is missing is named."""
    with pytest.raises(AnalysisException, match="key"):
        conform(spark.range(1), RECORD)
    rows = spark.sql(
        "SELECT 1 AS extra, 0 AS timestamp_type, timestamp_millis(7) AS timestamp, 5 AS offset, 0 AS partition, 't' AS "
        "topic, array(named_struct('key', 'h', 'value', X'00')) AS headers, X'6b' AS key, CAST(NULL AS BINARY) AS value"
    )
    shaped = conform(rows, RECORD)
    assert [(f.name, f.dataType.simpleString()) for f in shaped.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestamp_type", "int"),
    ]
    row = shaped.collect()[0]
    assert (bytes(row.key), row.value, row.offset, row.headers[0]["key"]) == (b"k", None, 5, "h")


@pytest.mark.matrix
def test_few_rows_are_part_of_the_plan(spark: SparkSession) -> None:
    """A few rows need no task of Spark's; they keep their types, also where there are none, and any text is a text."""
    schema = columns("name string, count long, day timestamp")
    rows = [("it's `a` ? :a ä \\", 2**40, None), (None, None, None)]
    found = few(spark, rows, schema)
    assert (found.schema, [tuple(row) for row in found.collect()]) == (schema, rows)
    nothing = few(spark, (), schema)
    assert (nothing.schema, nothing.collect()) == (schema, [])
    for frame in (found, nothing):
        assert "LocalTableScan" in explained(frame)


def explained(frame: DataFrame) -> str:
    output = StringIO()
    with redirect_stdout(output):
        frame.explain()
    return output.getvalue()
