"""How the schema of values may change from one run to the next, so that the files of one output can be read together.

A reader of Parquet takes one schema for all files. A field may be added, and is null in the files before it; a field
that changes its type or goes away would make the output unreadable, or hide what is in it. Spark does not merge INT
with BIGINT, and takes the type of any one file. A Delta table has its types in its log, and may widen a column if its
property says so (https://docs.delta.io/latest/delta-type-widening.html).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

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

from transforms.errors import ConfigurationError

WIDENING = "delta.enableTypeWidening"
"""The property of a Delta table whose columns may get wider types."""

_NAMED = 5
_WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = MappingProxyType(
    {
        ByteType: (ShortType, IntegerType, LongType),
        ShortType: (IntegerType, LongType),
        IntegerType: (LongType,),
        FloatType: (DoubleType,),
    }
)

Change = tuple[str, DataType, DataType | None]
"""A field with another type: its path, with `[]` for the items of an array and `{}` for those of a map; the type before
and the type now, None if it is gone."""


def check(option: str, before: DataType, now: DataType, *, widens: bool, checkpoint: str, output: str) -> None:
    """Makes sure that an output can hold what is new in the type of the values.

    Args:
        option: where the schema comes from, for the message.
        before: the type of the values that are written.
        now: that of the values to come.
        widens: whether the output may have wider types.
        checkpoint: the directory, for the message.
        output: the same.

    Raises:
        ConfigurationError: it cannot.
    """
    found = list(changes(before, now))
    if not found or (widens and all(_widens(former, then) for _, former, then in found)):
        return
    said = [
        f"field {path} is missing" if then is None else f"field {path} was {_short(former)} and is {_short(then)} now"
        for path, former, then in found[:_NAMED]
    ]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise ConfigurationError(
        option,
        f"does not fit what checkpoint {checkpoint} has written: {', '.join(said)}{more}; new fields may be added, and "
        f"in a Delta table with {WIDENING}=true integers may get longer (INT to BIGINT) and FLOAT may become DOUBLE; "
        f"for any other change use the former schema, or move {output} away and use --rebuild, which reads again "
        f"what the topics still contain",
    )


def changes(before: DataType, now: DataType, path: str = "") -> Iterator[Change]:
    """What differs, other than new fields, the order of fields, and whether something may be null."""
    if isinstance(before, StructType) and isinstance(now, StructType):
        kinds = {field.name: field.dataType for field in now}
        for field in before:
            name = f"{path}.{field.name}" if path else field.name
            if field.name in kinds:
                yield from changes(field.dataType, kinds[field.name], name)
            else:
                yield name, field.dataType, None
    elif isinstance(before, ArrayType) and isinstance(now, ArrayType):
        yield from changes(before.elementType, now.elementType, f"{path}[]")
    elif isinstance(before, MapType) and isinstance(now, MapType):
        yield from changes(before.keyType, now.keyType, f"{path}{{}}")
        yield from changes(before.valueType, now.valueType, f"{path}{{}}")
    elif before != now:
        yield path, before, now


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
    return table if _widens(now, table) else now


def _widens(before: DataType, now: DataType | None) -> bool:
    """Whether a type holds each value of the one before, and Delta can make the one of the other."""
    return type(now) in _WIDER.get(type(before), ())


def _short(kind: DataType) -> str:
    nested = isinstance(kind, StructType | ArrayType | MapType)
    return (kind.typeName() if nested else kind.simpleString()).upper()
