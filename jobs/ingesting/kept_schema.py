"""The schema of the values, kept with the checkpoint: the files of one output can be read together.

A reader of Parquet takes one schema for all files. So a field may be added, and is null in the files before it; a field
that changes its type or goes away would make the output unreadable, or hide what is in it.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from jobs.driver.jvm import Files
from jobs.ingesting.spark_logs import NONE, newest, text
from transforms.errors import ConfigurationError

__all__ = ["differences", "keep"]

_FILE = "wideload-values.json"
_NAMED = 5


def keep(spark: SparkSession, checkpoint: str, option: str, values: DataType) -> None:
    """Notes the type of the values in the checkpoint, or makes sure that it only has new fields since the last run.

    A checkpoint without a finished batch may get another type.

    Args:
        spark: the session.
        checkpoint: its folder.
        option: where the schema comes from, for a message.
        values: the type of the column `value`.

    Raises:
        ConfigurationError: another field than a new one differs; or the note is damaged.
    """
    files, path = Files(spark), f"{checkpoint}/{_FILE}"
    now = values.json()
    known = text(files, path)
    if known is not None and newest(files, f"{checkpoint}/commits") != NONE:
        try:
            before = StructType.fromJson(json.loads(known))
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            raise ConfigurationError("--checkpoint", f"{path} is damaged; it has the schema of the values") from exc
        found = differences(before, values)
        if found:
            more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise ConfigurationError(
                option,
                f"does not fit what checkpoint {checkpoint} has written: {', '.join(found[:_NAMED])}{more}; new fields "
                "may be added, for anything else give a new --checkpoint and a new --output",
            )
    if known != now:
        files.write(path, now)


def differences(before: DataType, now: DataType, path: str = "") -> list[str]:
    """What differs, other than new fields, the order of fields, and whether something may be null; for a message."""
    if isinstance(before, StructType) and isinstance(now, StructType):
        kinds = {field.name: field.dataType for field in now}
        found = []
        for field in before:
            name = f"{path}.{field.name}" if path else field.name
            if field.name in kinds:
                found += differences(field.dataType, kinds[field.name], name)
            else:
                found.append(f"field {name} is missing")
        return found
    if isinstance(before, ArrayType) and isinstance(now, ArrayType):
        return differences(before.elementType, now.elementType, f"{path}[]")
    if isinstance(before, MapType) and isinstance(now, MapType):
        keys = differences(before.keyType, now.keyType, f"{path}{{}}")
        return keys or differences(before.valueType, now.valueType, f"{path}{{}}")
    if before == now:
        return []
    return [f"field {path} was {_short(before)} and is {_short(now)} now"]


def _short(kind: DataType) -> str:
    nested = isinstance(kind, StructType | ArrayType | MapType)
    return (kind.typeName() if nested else kind.simpleString()).upper()
