"""Avro of one schema, as Avro of the table's schema: Avro's own rules of schema resolution, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS
from pyspark.sql.types import DataType, DoubleType, LongType

from jobs.ingesting.registry import MOST_FIELDS, BadValueError, Reader, Registered

_WIDER = {("int", LongType): "long", ("int", DoubleType): "double", ("float", DoubleType): "double"}
_MOST_DECIMAL_BYTES = 128  # Spark's longest has 16


def _short(read: Callable[..., Decimal], data: bytes, *schemas: Any) -> Decimal:
    """A decimal of no more bytes than these: to make digits of a MB takes more than a minute."""
    if len(data) > _MOST_DECIMAL_BYTES:
        raise ValueError
    return read(data, *schemas)


# As fastavro's documentation has it for logical types; there is no other way to them.
LOGICAL_READERS.update({each: partial(_short, LOGICAL_READERS[each]) for each in ("bytes-decimal", "fixed-decimal")})


def reader(written: Registered, table: Registered, _: str | None = None) -> Reader:
    """What reads values of `written`, and writes them with `table`."""
    theirs, ours = (fastavro.parse_schema(_whole(each)) for each in (written, table))

    def read(content: bytes) -> bytes:
        # Behind a value that is cut, fastavro reads on as far as there is anything; so there is one byte more.
        source, found = io.BytesIO(content + b"\0"), io.BytesIO()
        try:
            value = fastavro.schemaless_reader(source, theirs, ours)
            fastavro.schemaless_writer(found, ours, value)
        except Exception as exc:  # of many classes; their texts may have what stands in the value
            raise BadValueError(
                f"is not valid Avro of this schema, or does not fit the table: {type(exc).__name__}"
            ) from exc
        if source.tell() != len(content):
            raise BadValueError("is not valid Avro of this schema: it is truncated, or other bytes follow")
        return found.getvalue()

    return read


def columns(table: Registered, _: str | None = None, kept: DataType | None = None) -> str:
    """The schema for Spark, with those that it refers to in it.

    Args:
        table: the schema.
        kept: what the table has already: numbers are the wider ones that it has in their place. Only where no value
            changes: Avro's own rules allow int as float too, and long as float and double.

    Raises:
        BadValueError: no table can hold its values.
    """
    return json.dumps(_whole(table, kept))


def _whole(schema: Registered, kept: DataType | None = None) -> Any:
    """The schema with those that it refers to put in where they are named first; see `columns`."""
    named: dict[str, Any] = {}
    for text in schema.references.values():
        fastavro.parse_schema(json.loads(text), named)
    whole = fastavro.parse_schema(json.loads(schema.text), named)
    return _Walk(named).of(whole, kept)[0]


class _Walk:
    """Looks at each named type once, whatever a schema says.

    fastavro would follow a value as deep as it nests, and as often as its count says. No type may contain itself,
    and no item may have a value that takes no byte.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._sizes: dict[str, tuple[int, bool] | None] = {}  # None while inside of it

    def of(self, part: Any, kept: Any) -> tuple[Any, int, bool]:
        """A part as it stands in the whole, how many values one of it has, and whether one of these takes no byte."""
        if isinstance(part, list):  # which of them it is takes a byte
            alone = sum(each != "null" for each in part) == 1
            inside = [self.of(each, kept if alone else None) for each in part]
            return [each[0] for each in inside], _bounded(1 + sum(each[1] for each in inside)), False
        if isinstance(part, dict):
            found, count, free = self._of_dict(part, part["type"], kept)
            if "name" in part:
                self._sizes[part["name"]] = count, free
            return found, count, free
        if part not in self._named:
            return _WIDER.get((part, type(kept)), part), 1, part == "null"
        if part not in self._sizes:
            return self.of(self._named[part], kept)
        known = self._sizes[part]
        if known is None:
            raise BadValueError("whose Avro schema has a record inside itself, which no table can represent")
        return part, *known

    def _of_dict(self, part: dict[str, Any], kind: str, kept: Any) -> tuple[Any, int, bool]:
        if kind in ("record", "error"):
            self._sizes[part["name"]] = None
            kinds = {each.name: each.dataType for each in getattr(kept, "fields", ())}
            inside = [self.of(each["type"], kinds.get(each["name"])) for each in part["fields"]]
            fields = [{**each, "type": new[0]} for each, new in zip(part["fields"], inside, strict=True)]
            found = {key: each for key, each in part.items() if not key.startswith("__")} | {"fields": fields}
            return found, _bounded(1 + sum(each[1] for each in inside)), not fields or any(each[2] for each in inside)
        if kind in ("array", "map"):
            name, of = ("items", "elementType") if kind == "array" else ("values", "valueType")
            item, count, free = self.of(part[name], getattr(kept, of, None))
            if free:
                raise BadValueError("whose Avro schema has items with values without bytes, which no table can hold")
            return {**part, name: item}, _bounded(1 + count), False
        if "logicalType" not in part:
            part = {**part, "type": _WIDER.get((kind, type(kept)), kind)}
        return part, 1, kind == "null" or part.get("size") == 0


def _bounded(count: int) -> int:
    if count > MOST_FIELDS:
        raise BadValueError(f"whose Avro schema has more than {MOST_FIELDS:,} fields")
    return count
