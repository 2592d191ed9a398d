"""JSON with a JSON Schema of a registry: each value is checked with its own, the columns come from the newest."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from jsonschema.exceptions import ValidationError
from jsonschema.validators import validator_for
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from referencing import Registry as References
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from jobs.ingesting.codec import MOST_FIELDS, BadValueError, unusable
from jobs.ingesting.json_validator import linear
from jobs.ingesting.registry import Registered
from jobs.ingesting.time_limit import TimeIsUpError, within
from transforms.errors import ConfigurationError
from transforms.text import printable

__all__ = ["JsonCodec", "columns"]

_MOST_DEPTH = 64
# jsonschema takes 3 seconds for a MiB of plain numbers.
_SECONDS, _SECONDS_OF_A_BYTE = 1.0, 30 / 2**20
_SIMPLE = {"string": StringType(), "integer": LongType(), "number": DoubleType(), "boolean": BooleanType()}


class JsonCodec:
    """Checks values with their own schema. References to other addresses are never followed.

    Raises:
        BadValueError: the schema cannot be used.
    """

    @unusable("JSON Schema")
    def __init__(self, written: Registered) -> None:
        schema = json.loads(written.text)
        others = {name: json.loads(text) for name, text in written.references.items()}
        kind: Any = validator_for(schema)
        # Without formats: regular expressions would have to be those of Python.
        kind.check_schema(schema, format_checker=None)
        known: References[Any] = References().with_resources(
            (name, Resource.from_contents(each, default_specification=DRAFT7)) for name, each in others.items()
        )
        self._validator = linear(kind)(schema, registry=known)

    def plain(self, content: bytes) -> bytes:
        """See `codec.Codec`."""
        try:
            value = json.loads(content.decode("utf-8"), parse_constant=_no_number)
            if b"\\ud" in content or b"\\uD" in content:  # half a character, of which Spark would make a question mark
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as exc:
            raise BadValueError("is no JSON") from exc
        seconds = _SECONDS + len(content) * _SECONDS_OF_A_BYTE
        try:
            within(seconds, lambda: self._validator.validate(value))
        except ValidationError as exc:
            # The place in the schema: that in the value has names that the value chose.
            where = "/".join(map(str, exc.absolute_schema_path))
            raise BadValueError(f"is not JSON of it: {printable(where, 100)}") from exc
        except TimeIsUpError as exc:
            raise BadValueError(f"cannot be checked with it in {seconds:.1f} seconds of CPU") from exc
        except (Unresolvable, RecursionError) as exc:
            raise BadValueError(f"cannot be checked with it: {type(exc).__name__}") from exc
        return content


def columns(written: Registered, where: str) -> StructType:
    """The type of a table's column for values of this schema.

    Args:
        written: the schema.
        where: its name, for a message.

    Raises:
        ConfigurationError: the schema, or a part of it, has no one type in a table.
    """
    try:
        with unusable("JSON Schema"):
            schema = json.loads(written.text)
            others = {name: json.loads(text) for name, text in written.references.items()}
            found = _Types(schema, others, where).of(schema, "", 0)
    except BadValueError as exc:
        raise ConfigurationError("--schema-registry-url", f"{where} is no JSON Schema") from exc
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigurationError(
            "--schema-registry-url", f"{where} is no object with properties; give the columns with --value-schema"
        )
    return found


class _Types:
    """Finds the types of a schema's parts."""

    def __init__(self, root: Any, others: dict[str, Any], where: str) -> None:
        self._root = root
        self._others = others
        self._where = where
        self._found = 0

    def of(self, schema: Any, path: str, depth: int) -> DataType:
        """The type of a part, which is at `path` and so many parts deep."""
        if depth > _MOST_DEPTH:
            self._fail(path, f"goes on for more than {_MOST_DEPTH} levels, or contains itself")
        self._found += 1
        if self._found > MOST_FIELDS:
            self._fail("", f"has more than {MOST_FIELDS:,} fields")
        if not isinstance(schema, dict):
            self._fail(path, "says no type")
        if "$ref" in schema:
            return self.of(self._referred(schema["$ref"], path), path, depth + 1)
        choices = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(choices, list) and "type" not in schema:
            kinds = [each for each in choices if each != {"type": "null"}]
            return self.of(kinds[0] if len(kinds) == 1 else {}, path, depth + 1)
        kind = _kind(schema)
        return _SIMPLE[kind] if kind in _SIMPLE else self._nested(kind, schema, path, depth)

    def _nested(self, kind: str | None, schema: dict[str, Any], path: str, depth: int) -> DataType:
        if kind == "array" and "items" in schema:
            return ArrayType(self.of(schema["items"], f"{path}[]", depth + 1))
        if kind == "object" and isinstance(schema.get("properties"), dict):
            return StructType([
                StructField(name, self.of(each, f"{path}.{name}", depth + 1))
                for name, each in schema["properties"].items()
            ])  # fmt: skip
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return MapType(StringType(), self.of(schema["additionalProperties"], f"{path}{{}}", depth + 1))
        return self._fail(path, "has no one type")

    def _referred(self, address: Any, path: str) -> Any:
        base, _, inside = str(address).partition("#")
        found = self._others.get(base) if base else self._root
        try:
            for step in filter(None, inside.split("/")):
                found = found[step.replace("~1", "/").replace("~0", "~")]  # type: ignore[index]  # or it fails
        except (LookupError, TypeError):
            found = None
        return found if found is not None else self._fail(path, f"refers to {str(address)[:100]!r}, which is not there")

    def _fail(self, path: str, what: str) -> NoReturn:
        raise ConfigurationError(
            "--schema-registry-url",
            f"{self._where}: {path.lstrip('.') or 'the value'} {what}; give the columns with --value-schema",
        )


def _kind(schema: dict[str, Any]) -> str | None:
    """The one type of a part beside null; None if there is none, or more than one."""
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and _only_strings(schema):
        return "string"
    return kind if isinstance(kind, str) else None


def _only_strings(schema: dict[str, Any]) -> bool:
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return bool(found) and all(each is None or isinstance(each, str) for each in found)


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)
