"""The schema of the values, kept with the checkpoint: the files of one output can be read together.

A reader of Parquet takes one schema for all files. So a field may be added, and is null in the files before it; a field
that changes its type or goes away would make the output unreadable, or hide what is in it. Spark does not merge INT
with BIGINT, and takes the type of any one file. A Delta table has its types in its log, and may widen a column if its
property says so (https://docs.delta.io/latest/delta-type-widening.html); older readers then refuse the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from jobs.driver.jvm import Files
from jobs.ingesting.outputs import SPARK_METADATA, WIDENING
from jobs.ingesting.spark_logs import NONE, newest, text
from transforms.errors import ConfigurationError

__all__ = ["Change", "as_wide", "changes", "keep", "known"]

_FILE = "wideload-values.json"
_NAMED = 5
_WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = MappingProxyType(
    {
        ByteType: (ShortType, IntegerType, LongType),
        ShortType: (IntegerType, LongType),
        IntegerType: (LongType,),
        FloatType: (DoubleType,),
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """A field that has another type now, or is gone.

    Attributes:
        path: its names from the outside in, with `[]` for the items of an array and `{}` for those of a map.
        before: its type at the last run.
        now: its type; None if it is gone.
    """

    path: str
    before: DataType
    now: DataType | None

    @property
    def widens(self) -> bool:
        """Whether the type now holds each value of the one before, and Delta can make the one of the other."""
        return type(self.now) in _WIDER.get(type(self.before), ())

    def __str__(self) -> str:
        if self.now is None:
            return f"field {self.path} is missing"
        return f"field {self.path} was {_short(self.before)} and is {_short(self.now)} now"


def known(spark: SparkSession, checkpoint: str, output: str) -> StructType | None:
    """The type of the values that a checkpoint has written; None if it has not written anything yet.

    Rows in a Parquet output count before their batch is noted as finished; a Delta table looks at types itself.

    Raises:
        ConfigurationError: the note is damaged.
    """
    files, path = Files(spark), f"{checkpoint}/{_FILE}"
    found = text(files, path)
    logs = (f"{checkpoint}/commits", f"{output}/{SPARK_METADATA}")
    if found is None or all(newest(files, log) == NONE for log in logs):
        return None
    try:
        return StructType.fromJson(json.loads(found))
    except (ValueError, TypeError, LookupError, RecursionError) as exc:
        raise ConfigurationError(
            "--checkpoint",
            f"{path} is damaged; it has the schema of the values; put a whole copy of the checkpoint "
            "back, or begin anew: move the output away and give --rebuild",
        ) from exc


def keep(
    spark: SparkSession, checkpoint: str, option: str, values: DataType, output: str, may_widen: Callable[[], bool]
) -> None:
    """Notes the type of the values in the checkpoint, or makes sure that the output can hold what is new in it.

    A checkpoint that has written nothing may get another type.

    Args:
        spark: the session.
        checkpoint: its folder.
        option: where the schema comes from, for a message.
        values: the type of the column `value`.
        output: the folder of the table.
        may_widen: says whether the table may have wider types; asked only where that matters.

    Raises:
        ConfigurationError: the output cannot hold it; or the note is damaged.
    """
    before = known(spark, checkpoint, output)
    found = [] if before is None else changes(before, values)
    if found and not (all(each.widens for each in found) and may_widen()):
        more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise ConfigurationError(
            option,
            f"does not fit what checkpoint {checkpoint} has written: {', '.join(map(str, found[:_NAMED]))}{more}; new "
            f"fields may be added, and in a Delta table with {WIDENING}=true integers may get longer (INT to BIGINT) "
            f"and FLOAT may become DOUBLE; for anything else give the former schema, or move {output} away and give "
            "--rebuild, which reads again what the topics still have",
        )
    files, path, now = Files(spark), f"{checkpoint}/{_FILE}", values.json()
    if text(files, path) != now:
        files.write(path, now)


def changes(before: DataType, now: DataType, path: str = "") -> list[Change]:
    """What differs, other than new fields, the order of fields, and whether something may be null."""
    if isinstance(before, StructType) and isinstance(now, StructType):
        kinds = {field.name: field.dataType for field in now}
        found = []
        for field in before:
            name = f"{path}.{field.name}" if path else field.name
            if field.name in kinds:
                found += changes(field.dataType, kinds[field.name], name)
            else:
                found.append(Change(name, field.dataType, None))
        return found
    if isinstance(before, ArrayType) and isinstance(now, ArrayType):
        return changes(before.elementType, now.elementType, f"{path}[]")
    if isinstance(before, MapType) and isinstance(now, MapType):
        keys = changes(before.keyType, now.keyType, f"{path}{{}}")
        return keys or changes(before.valueType, now.valueType, f"{path}{{}}")
    return [] if before == now else [Change(path, before, now)]


def as_wide(now: DataType, table: DataType) -> DataType:
    """`now`, with the table's type for each number where that is the wider one."""
    if isinstance(now, StructType) and isinstance(table, StructType):
        kinds = {field.name: field.dataType for field in table}
        return StructType(
            [StructField(each.name, as_wide(each.dataType, kinds.get(each.name, each.dataType))) for each in now]
        )
    if isinstance(now, ArrayType) and isinstance(table, ArrayType):
        return ArrayType(as_wide(now.elementType, table.elementType))
    if isinstance(now, MapType) and isinstance(table, MapType):
        return MapType(now.keyType, as_wide(now.valueType, table.valueType))
    return table if Change("", now, table).widens else now


def _short(kind: DataType) -> str:
    nested = isinstance(kind, StructType | ArrayType | MapType)
    return (kind.typeName() if nested else kind.simpleString()).upper()
