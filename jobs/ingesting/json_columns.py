"""What `from_json` takes that it should not: anything as a string, and decimals without end."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

JSON_OPTIONS = MappingProxyType({"mode": "PERMISSIVE", "maxStringLen": str(2**31 - 1)})
"""The options with which `from_json` reads values, in addition to the name of its field."""

_TEXTS = (T.StringType, T.CharType, T.VarcharType)
_NOT_TEXT = ("-", "+", "{", "[", *"0123456789")  # how all else begins, but these words
_WORDS = ("true", "false", "NaN", "INF", "Infinity")
_MOST_DIGITS = 10_000
# Neither has a group that Java's regular expressions would follow by recursion.
_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{4}"
_DIGITS = rf"(?<![0-9,.])[0-9,.]{{{_MOST_DIGITS}}}"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def strings_fit(text: Column, parsed: Column, schema: T.StructType) -> Column:
    """Whether the strings in `parsed` were strings in the JSON: Spark takes a number, an object and all else as text.

    A text that cannot be a number, a word or a part of JSON was a string for certain. For all others the JSON is parsed
    again, with variants, which know what they were. A variant has 16 MB at most: of a longer text that begins like a
    part of JSON it is not known what it was, and it counts as a string.
    """
    strings = _alone(schema, _TEXTS, T.StringType())
    if strings is None:
        return F.lit(True)
    maybe = _any(parsed, strings, lambda each: F.substring(each, 1, 1).isin(*_NOT_TEXT) | each.isin(*_WORDS))
    variants = _alone(schema, _TEXTS, T.VariantType())
    again = F.from_json(text, variants, dict(JSON_OPTIONS))
    # Bound by a lambda, so that it is parsed once for all fields.
    other = F.exists(
        F.array(again),
        lambda whole: _any(whole, variants, lambda each: ~F.schema_of_variant(each).isin("STRING", "VOID")),
    )
    return F.when(maybe, ~other).otherwise(F.lit(True))


def bounded(text: Column, schema: T.StructType) -> Column:
    """The JSON; null if a decimal has an exponent of five digits, or more than 10,000 digits.

    Of `1e99999999`, 10 bytes of a value, Spark would write out all zeros: Jackson bounds the digits of a number but not
    its exponent, and neither in a string, of which Spark makes a decimal too. Few texts are parsed for that.
    """
    decimals = _alone(schema, T.DecimalType, T.StringType())
    if decimals is None:
        return text
    maybe = text.rlike(_EXPONENT) | ((F.octet_length(text) > _MOST_DIGITS) & text.rlike(_DIGITS))
    number = F.regexp_replace(text, F.lit(_STRING), F.lit('""')).rlike(_EXPONENT)
    parsed = F.from_json(text, decimals, dict(JSON_OPTIONS))
    endless = _any(parsed, decimals, lambda each: each.rlike(_EXPONENT) | (F.length(each) > _MOST_DIGITS))
    return F.when(~maybe | ~(number | endless), text)


def _alone(kind: T.DataType, leaves: type | tuple[type, ...], into: T.DataType) -> Any:
    """A type with nothing but the parts of these types, in place of which is another one; None if it has none."""
    if isinstance(kind, T.StructType):
        found = [(each.name, _alone(each.dataType, leaves, into)) for each in kind]
        return T.StructType([T.StructField(name, each) for name, each in found if each is not None]) or None
    if isinstance(kind, T.ArrayType):
        inner = _alone(kind.elementType, leaves, into)
        return None if inner is None else T.ArrayType(inner)
    if isinstance(kind, T.MapType):
        inner = _alone(kind.valueType, leaves, into)
        return None if inner is None else T.MapType(kind.keyType, inner)
    return into if isinstance(kind, leaves) else None


def _any(value: Column, kind: T.DataType, test: Callable[[Column], Column]) -> Column:
    """Whether the test holds for any part of a value of this type; never null."""
    if isinstance(kind, T.StructType):
        return reduce(or_, (_any(value.getField(each.name), each.dataType, test) for each in kind))
    if isinstance(kind, T.ArrayType):
        found = F.exists(value, lambda each: _any(each, kind.elementType, test))
    elif isinstance(kind, T.MapType):
        found = F.exists(F.map_values(value), lambda each: _any(each, kind.valueType, test))
    else:
        found = test(value)
    return F.coalesce(found, F.lit(False))
