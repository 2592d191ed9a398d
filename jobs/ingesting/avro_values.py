"""Avro of one schema, as Avro of the table's schema: Avro's own rules of schema resolution, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, MapType, StructType

from jobs.ingesting.codec import BadValueError
from jobs.ingesting.registry import Registered

__all__ = ["AvroCodec", "whole", "widened"]

_NAMED = ("record", "error", "enum", "fixed")
_WIDENED: Mapping[tuple[str, type[DataType]], str] = MappingProxyType(
    {("int", LongType): "long", ("int", DoubleType): "double", ("float", DoubleType): "double"}
)
_EMPTY = "an array of items without bytes"
_ITSELF = "a record inside itself"


class AvroCodec:
    """Reads values of `written`, and writes them with `table`.

    Raises:
        BadValueError: one of the schemas is wrong, or no table can hold its values.
    """

    def __init__(self, written: Registered, table: Registered) -> None:
        try:
            schemas = whole(written), whole(table)
            self._written, self._table = (fastavro.parse_schema(each) for each in schemas)
            hazard = _hazard(schemas[0], {}, ())
        except (ValueError, TypeError, LookupError, RecursionError, SchemaParseException, UnknownType) as exc:
            raise BadValueError(f"whose Avro schema cannot be used: {type(exc).__name__}") from exc
        if hazard is not None:
            # fastavro follows a value as deep as it goes, and as often as its count says, whatever its length.
            raise BadValueError(f"whose Avro schema has {hazard}, which no table can hold")

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


def _hazard(schema: Any, named: dict[str, Any], open_: tuple[str, ...], space: str = "") -> str | None:
    """What in a schema makes fastavro unsafe for hostile values; None if nothing does."""
    if isinstance(schema, str):
        full = schema if "." in schema or f"{space}.{schema}" not in named else f"{space}.{schema}"
        return _ITSELF if full in open_ else None
    inside: list[Any] = schema if isinstance(schema, list) else []
    if isinstance(schema, dict):
        kind = schema["type"]
        if kind == "array" and _empty(schema["items"], named, space):
            return _EMPTY
        if kind in ("array", "map"):
            inside = [schema["items" if kind == "array" else "values"]]
        elif kind in _NAMED:
            full = _full(schema, schema.get("namespace", space))
            named[full] = schema
            space, open_ = full.rpartition(".")[0], (*open_, full)
            inside = [each["type"] for each in schema.get("fields", ())]
        else:
            inside = [kind]
    return next((found for each in inside if (found := _hazard(each, named, open_, space))), None)


def _empty(schema: Any, named: Mapping[str, Any], space: str) -> bool:
    """Whether a value of the schema may have no bytes; a record is told by its fields."""
    if isinstance(schema, str):
        found = named.get(schema, named.get(f"{space}.{schema}"))
        return schema == "null" or (found is not None and _empty(found, named, space))
    if isinstance(schema, list):
        return False  # which of them it is takes a byte
    kind = schema["type"]
    if kind == "fixed":
        return bool(schema.get("size") == 0)
    if kind in ("record", "error"):
        return all(_empty(each["type"], named, space) for each in schema["fields"])
    return not isinstance(kind, str) and _empty(kind, named, space)


def _named(error: Exception) -> str:
    """The class of an error: its text may hold what stands in the value."""
    return type(error).__name__
