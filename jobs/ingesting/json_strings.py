"""Whether the strings in a table were strings in the JSON: Spark takes a number, an object and all else as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from types import MappingProxyType

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

__all__ = ["JSON_OPTIONS", "any_string", "strings_fit"]

JSON_OPTIONS = MappingProxyType({"mode": "PERMISSIVE", "maxStringLen": str(2**31 - 1)})
"""The options with which `from_json` reads values, beside the name of its own field."""

_NUMBERS = ("-", "+", *"0123456789")
_NESTED = ("{", "[")
_WORDS = ("true", "false", "NaN", "INF", "Infinity")

Test = Callable[[Column], Column]


def strings_fit(text: Column, parsed: Column, schema: StructType) -> Column:
    """Whether each field of strings holds strings.

    A text that cannot be a number, a word or a part of JSON was a string for certain. For all others the JSON is parsed
    again, with variants, which know what they were. A variant has 16 MB at most: of a longer text that begins like a
    part of JSON it is not known what it was, and it counts as a string.

    Args:
        text: the JSON.
        parsed: the fields that `from_json` made of it.
        schema: of the fields.
    """
    if not _has_strings(schema):
        return F.lit(True)
    maybe = any_string(parsed, schema, _may_be_other)
    again = F.from_json(text, _with_variants(schema), dict(JSON_OPTIONS))
    # Bound by a lambda, so that it is parsed once for all fields.
    other = F.exists(F.array(again), lambda whole: any_string(whole, schema, _is_other))
    return F.when(maybe, ~other).otherwise(F.lit(True))


def any_string(value: Column, kind: DataType, test: Test) -> Column:
    """Whether the test holds for any string in a value of this type, which has strings; never null."""
    if isinstance(kind, StructType):
        fields = (field for field in kind if _has_strings(field.dataType))
        return reduce(or_, (any_string(value.getField(field.name), field.dataType, test) for field in fields))
    if isinstance(kind, ArrayType):
        found = F.exists(value, lambda each: any_string(each, kind.elementType, test))
    elif isinstance(kind, MapType):
        found = F.exists(F.map_values(value), lambda each: any_string(each, kind.valueType, test))
    else:
        found = test(value)
    return F.coalesce(found, F.lit(False))


def _may_be_other(text: Column) -> Column:
    return F.substring(text, 1, 1).isin(*_NUMBERS, *_NESTED) | text.isin(*_WORDS)


def _is_other(variant: Column) -> Column:
    return ~F.schema_of_variant(variant).isin("STRING", "VOID")


def _has_strings(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_strings(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_strings(kind.elementType)
    return _has_strings(kind.valueType) if isinstance(kind, MapType) else _is_string(kind)


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType | CharType | VarcharType)


def _with_variants(kind: StructType) -> StructType:
    return StructType([StructField(field.name, _variant(field.dataType)) for field in kind])


def _variant(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _with_variants(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_variant(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _variant(kind.valueType))
    from pyspark.sql.types import VariantType  # since Spark 4.0

    return VariantType() if _is_string(kind) else kind
