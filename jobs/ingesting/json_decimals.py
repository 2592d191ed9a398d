"""Whether Spark may make decimals of a JSON: of `1e99999999`, 10 bytes of a value, it would write out all zeros.

Jackson bounds the digits of a number but not its exponent, and neither in a string, of which Spark makes a decimal too.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from jobs.ingesting.json_strings import JSON_OPTIONS, any_string

__all__ = ["decimals_fit", "has_decimals"]

_MOST_DIGITS = 10_000
# Neither has a group that Java's regular expressions would follow by recursion.
_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{4}"
_DIGITS = rf"(?<![0-9,.])[0-9,.]{{{_MOST_DIGITS}}}"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def decimals_fit(text: Column, schema: StructType) -> Column:
    """Whether no decimal has an exponent of five digits, or more than 10,000 digits. Few texts are parsed for that.

    Args:
        text: the JSON.
        schema: of its fields, with decimals.
    """
    maybe = text.rlike(_EXPONENT) | ((F.octet_length(text) > _MOST_DIGITS) & text.rlike(_DIGITS))
    number = F.regexp_replace(text, F.lit(_STRING), F.lit('""')).rlike(_EXPONENT)
    kind = _alone(schema)
    parsed = F.from_json(text, kind, dict(JSON_OPTIONS))
    long = any_string(parsed, kind, lambda each: each.rlike(_EXPONENT) | (F.length(each) > _MOST_DIGITS))
    return F.when(maybe, ~(number | F.coalesce(long, F.lit(False)))).otherwise(F.lit(True))


def has_decimals(kind: DataType) -> bool:
    """Whether a type has decimals, at any depth."""
    if isinstance(kind, StructType):
        return any(has_decimals(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return has_decimals(kind.elementType)
    return has_decimals(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, DecimalType)


def _alone(kind: StructType) -> StructType:
    """The decimals alone, as strings."""
    return StructType([StructField(each.name, _string(each.dataType)) for each in kind if has_decimals(each.dataType)])


def _string(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _alone(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_string(kind.elementType))
    return MapType(kind.keyType, _string(kind.valueType)) if isinstance(kind, MapType) else StringType()
