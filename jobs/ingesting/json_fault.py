"""Why a value is not the JSON of its schema: which field, and what it should be. Never what stands in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs.driver.failures import SPARK_ERRORS
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.values import fits, is_utf8

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
    options = {name: each for name, each in settings.source_options().items() if name.startswith("kafka.")} | {
        "assign": json.dumps({topic: [partition]}),
        "startingOffsets": json.dumps({topic: {partition: offset}}),
        "endingOffsets": json.dumps({topic: {partition: offset + 1}}),
    }
    text = F.col("value").cast("string")
    wrong = [F.when(~is_utf8(F.col("value")), "it is not UTF-8")]
    for path, kind, alone in islice(_parts(settings.value.json_schema()), _MOST_FIELDS):
        what = f"its field {path[1:]} is not {kind}" if path else "it is not a JSON object"
        wrong.append(F.when(~fits(text, alone), what))
    try:
        rows = spark.read.format("kafka").options(**options).load()
        found = rows.select(F.coalesce(*wrong).alias("wrong")).first()
    except SPARK_ERRORS:
        return None
    return None if found is None else found.wrong


def _parts(kind: T.DataType) -> Iterator[tuple[str, str, Any]]:
    """Each struct of a type, and each part that holds no others: its path, its type for people, and it alone."""
    if isinstance(kind, T.StructType):
        yield "", "an object", T.StructType()
        for field in kind:
            for path, name, alone in _parts(field.dataType):
                yield f".{field.name}{path}", name, T.StructType([T.StructField(field.name, alone)])
    elif isinstance(kind, T.ArrayType):
        for path, name, alone in _parts(kind.elementType):
            yield f"[]{path}", name, T.ArrayType(alone)
    elif isinstance(kind, T.MapType):
        for path, name, alone in _parts(kind.valueType):
            yield f"{{}}{path}", name, T.MapType(kind.keyType, alone)
    else:
        yield "", kind.simpleString().upper(), kind
