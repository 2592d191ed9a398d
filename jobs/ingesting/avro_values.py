"""Avro of one schema, as Avro of the table's schema: Avro's own rules of schema resolution, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NoReturn

import fastavro
from fastavro.read import LOGICAL_READERS
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, MapType, StructType

from jobs.ingesting.codec import MOST_FIELDS, BadValueError, unusable
from jobs.ingesting.registry import Registered

__all__ = ["AvroCodec", "whole", "widened"]

_NAMED = ("record", "error", "enum", "fixed")
_WIDENED: Mapping[tuple[str, type[DataType]], str] = MappingProxyType(
    {("int", LongType): "long", ("int", DoubleType): "double", ("float", DoubleType): "double"}
)
_MOST_FREE = 64
_MOST_DECIMAL_BYTES = 128  # Spark's longest has 16


def _bounded(read: Callable[..., Decimal]) -> Callable[..., Decimal]:
    """A reader of decimals that takes no more bytes than these: to make digits of a MB takes more than a minute."""

    def bounded(data: bytes, *schemas: Any) -> Decimal:
        if len(data) > _MOST_DECIMAL_BYTES:
            raise ValueError
        return read(data, *schemas)

    return bounded


# As fastavro's documentation has it for logical types; there is no other way to them.
LOGICAL_READERS.update({each: _bounded(LOGICAL_READERS[each]) for each in ("bytes-decimal", "fixed-decimal")})


class AvroCodec:
    """Reads values of `written`, and writes them with `table`.

    Raises:
        BadValueError: one of the schemas is wrong, or no table can hold its values.
    """

    @unusable("Avro schema")
    def __init__(self, written: Registered, table: Registered) -> None:
        schemas = whole(written), whole(table)
        for each in schemas:
            _Sizes().of(each)
        self._written, self._table = (fastavro.parse_schema(each) for each in schemas)

    def plain(self, content: bytes) -> bytes:
        """See `codec.Codec`."""
        # Behind a value that is cut, fastavro reads on as far as there is anything; so there is one byte more.
        source, found = io.BytesIO(content + b"\0"), io.BytesIO()
        try:
            value = fastavro.schemaless_reader(source, self._written, self._table)
        except Exception as exc:  # fastavro has errors of many classes for what it cannot read
            raise BadValueError(f"is not Avro of it, or not as the table needs it: {_named(exc)}") from exc
        if source.tell() != len(content):
            raise BadValueError("is not Avro of it: it is cut, or something stands behind it")
        try:
            fastavro.schemaless_writer(found, self._table, value)
        except Exception as exc:  # the same
            raise BadValueError(f"does not fit the table's schema: {_named(exc)}") from exc
        return found.getvalue()


def whole(schema: Registered) -> Any:
    """The schema with those that it refers to put in where they are named first.

    Raises:
        ValueError: a schema is no JSON.
    """
    parts: dict[str, Any] = {}
    for text in schema.references.values():
        found = json.loads(text)
        if isinstance(found, dict) and isinstance(found.get("name"), str):
            parts[_full(found, found.get("namespace", ""))] = found
    return _put_in(json.loads(schema.text), parts, set(), "")


def widened(schema: Any, table: DataType) -> Any:
    """The schema as the table's reader: an int or a float as the wider number that the table has in its place.

    Only where no value changes: Avro's own rules allow int as float too, and long as float and double.

    Args:
        schema: as `whole` makes it.
        table: what the table has in place of the schema's values.
    """
    if isinstance(schema, str):
        return _WIDENED.get((schema, type(table)), schema)
    if isinstance(schema, list):
        several = sum(each != "null" for each in schema) > 1
        return schema if several else [widened(each, table) for each in schema]
    if not isinstance(schema, dict) or "logicalType" in schema:
        return schema
    found = dict(schema)
    if isinstance(table, StructType):
        kinds = {field.name: field.dataType for field in table}
        if schema.get("type") in ("record", "error"):
            inside = ((each, kinds.get(each["name"])) for each in schema["fields"])
            found["fields"] = [{**each, "type": widened(each["type"], kind)} if kind else each for each, kind in inside]
    elif isinstance(table, ArrayType) and "items" in schema:
        found["items"] = widened(schema["items"], table.elementType)
    elif isinstance(table, MapType) and "values" in schema:
        found["values"] = widened(schema["values"], table.valueType)
    elif isinstance(schema.get("type"), str):
        found["type"] = widened(schema["type"], table)
    return found


def _put_in(schema: Any, parts: Mapping[str, Any], done: set[str], space: str) -> Any:
    if isinstance(schema, str):
        name = schema if "." in schema or f"{space}.{schema}" not in parts else f"{space}.{schema}"
        if name not in parts or name in done:
            return schema
        done.add(name)
        part = parts[name]
        return _put_in({**part, "name": name}, parts, done, name.rpartition(".")[0])
    if isinstance(schema, list):
        return [_put_in(each, parts, done, space) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if isinstance(found.get("name"), str) and found.get("type") in _NAMED:
        space = _full(found, found.get("namespace", space)).rpartition(".")[0]
    for key in ("items", "values"):
        if key in found:
            found[key] = _put_in(found[key], parts, done, space)
    if isinstance(found.get("fields"), list):
        found["fields"] = [{**each, "type": _put_in(each["type"], parts, done, space)} for each in found["fields"]]
    elif "type" in found and not isinstance(found["type"], str):
        found["type"] = _put_in(found["type"], parts, done, space)
    return found


def _full(schema: Mapping[str, Any], space: str) -> str:
    name = str(schema["name"])
    return name if "." in name or not space else f"{space}.{name}"


@dataclass(frozen=True, slots=True)
class _Size:
    """What one value of a schema is at most: the values in it, and those of them that need no byte of their own.

    Items of arrays and maps count once; `empty` says that the whole value may have no byte.
    """

    values: int
    free: int
    empty: bool


_PLAIN, _NULL = _Size(1, 0, empty=False), _Size(1, 1, empty=True)


class _Sizes:
    """Looks whether a schema lets fastavro follow a value as deep as it goes, or as often as its count says.

    It looks at each named type once, so a schema takes as long as its text, whatever it says.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Size | None] = {}

    def of(self, schema: Any, space: str = "") -> _Size:
        """The size of a schema in this namespace.

        Raises:
            BadValueError: no table can hold its values, or a few bytes make too many of them.
        """
        found = self._of(schema, space)
        if found.values > MOST_FIELDS:
            raise BadValueError(f"whose Avro schema has more than {MOST_FIELDS:,} fields")
        return found

    def _of(self, schema: Any, space: str) -> _Size:
        if isinstance(schema, str):
            full = schema if "." in schema or f"{space}.{schema}" not in self._named else f"{space}.{schema}"
            if full in self._named:
                return self._named[full] or _refused("a record inside itself")
            return _NULL if schema == "null" else _PLAIN
        if isinstance(schema, list):  # which of them it is takes a byte
            several = [self.of(each, space) for each in schema]
            most = max((each.free for each in several), default=0)
            return _Size(1 + sum(each.values for each in several), max(most - 1, 0), empty=False)
        kind = schema["type"]
        if kind in ("array", "map"):
            item = self.of(schema["items" if kind == "array" else "values"], space)
            if item.empty and kind == "array":
                _refused("an array of items without bytes")
            if item.free > _MOST_FREE:
                _refused(f"items with more than {_MOST_FREE} fields without bytes")
            return _Size(1 + item.values, 0, empty=False)
        return self._of_named(schema, space) if kind in _NAMED else self.of(kind, space)

    def _of_named(self, schema: Mapping[str, Any], space: str) -> _Size:
        full = _full(schema, schema.get("namespace", space))
        self._named[full] = None  # it is not to be inside itself
        if schema["type"] == "fixed":
            found = _NULL if schema["size"] == 0 else _PLAIN
        else:
            inside = [self.of(each["type"], full.rpartition(".")[0]) for each in schema.get("fields", ())]
            empty = schema["type"] != "enum" and all(each.empty for each in inside)
            found = _Size(1 + sum(each.values for each in inside), empty + sum(each.free for each in inside), empty)
        self._named[full] = found
        return found


def _refused(what: str) -> NoReturn:
    raise BadValueError(f"whose Avro schema has {what}, which no table can hold")


def _named(error: Exception) -> str:
    """The class of an error: its text may hold what stands in the value."""
    return type(error).__name__
