"""Why a value is not the JSON of its schema: which field, and what it should be. Never what stands in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from jobs.driver.failures import SPARK_ERRORS
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.values import fits, is_utf8

__all__ = ["fault"]

_PLACE = re.compile(r"topic (\S+) partition (\d+) offset (\d+): the value, ")
_MOST_FIELDS = 1000


def fault(spark: SparkSession, settings: IngestSettings, error: Exception) -> str | None:
    """What is wrong with the value that `error` names, for a message; None if it is not found.

    Reads that record once more, and asks for each field by itself. The value stays on its executor.
    """
    named = _PLACE.search(str(error))
    if settings.value.format != "json" or settings.value.registered is not None or named is None:
        return None
    topic, partition, offset = named[1], int(named[2]), int(named[3])
    options = {name: value for name, value in settings.source_options().items() if name.startswith("kafka.")}
    options["assign"] = json.dumps({topic: [partition]})
    for name, at in (("startingOffsets", offset), ("endingOffsets", offset + 1)):
        options[name] = json.dumps({topic: {partition: at}})
    text = F.col("value").cast("string")
    wrong = [
        F.when(~is_utf8(F.col("value")), "it is no UTF-8"),
        F.when(~fits(text, StructType()), "it is no JSON object"),
        *(
            F.when(~fits(text, StructType([field])), f"its field {path} is no {kind}")
            for path, kind, field in islice(_leaves(settings.value.json_schema()), _MOST_FIELDS)
        ),
    ]
    try:
        rows = spark.read.format("kafka").options(**options).load()
        found = rows.select(F.coalesce(*wrong).alias("wrong")).first()
    except SPARK_ERRORS:
        return None
    return None if found is None else found.wrong


def _leaves(schema: StructType) -> Iterator[tuple[str, str, StructField]]:
    """Each field that holds no others: its path, its type for people, and a schema with nothing beside it."""
    for field in schema:
        for path, kind, alone in _within(field.dataType):
            yield f"{field.name}{path}", kind, StructField(field.name, alone)


def _within(kind: DataType) -> Iterator[tuple[str, str, DataType]]:
    if isinstance(kind, StructType):
        yield "", "object", StructType()
        for path, name, field in _leaves(kind):
            yield f".{path}", name, StructType([field])
    elif isinstance(kind, ArrayType):
        for path, name, alone in _within(kind.elementType):
            yield f"[]{path}", name, ArrayType(alone)
    elif isinstance(kind, MapType):
        for path, name, alone in _within(kind.valueType):
            yield f"{{}}{path}", name, MapType(kind.keyType, alone)
    else:
        yield "", kind.simpleString().upper(), kind
