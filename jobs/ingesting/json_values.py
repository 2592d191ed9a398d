"""JSON with a JSON Schema of a registry: each value is checked with its own, the columns come from the newest."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import re2
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from pyspark.sql import types as T
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from jobs.ingesting.registry import MOST_FIELDS, BadValueError, Reader, Registered
from transforms.text import printable

_MOST_DEPTH = 64
# jsonschema takes 3 seconds for a MiB of plain numbers.
_SCHEMA_SECONDS, _SECONDS, _SECONDS_OF_A_BYTE = 10.0, 1.0, 30 / 2**20
# RE2's program and the states that it keeps; an expression of 200 times any Unicode character class takes 3 MB.
_MOST_EXPRESSION_BYTES = 2**22
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SIMPLE = {"string": T.StringType(), "integer": T.LongType(), "number": T.DoubleType(), "boolean": T.BooleanType()}


class _TimeIsUpError(BaseException):
    """No `Exception`: code that handles those would mistake it for one that it has caused."""


def within(seconds: float, work: Callable[[], object], what: str = "") -> None:
    """Does some work in Python, which is interrupted after so many seconds of the process's CPU; `re` is, too.

    In the main thread alone, where Spark's Python workers run all tasks; elsewhere there is no limit. No timer is left:
    one that goes off when the interpreter ends would kill the process.

    Raises:
        BadValueError: the time was over first.
    """

    def interrupt(*_: object) -> None:
        raise _TimeIsUpError

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGVTALRM, interrupt)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)  # again and again: one in a finalizer is lost
    try:
        try:
            work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TimeIsUpError:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        raise BadValueError(f"{what}cannot be checked in {seconds:.1f} seconds of CPU") from None


@lru_cache(128)
def searcher(expression: str) -> Callable[[str], object]:
    """What looks for a regular expression of ECMA-262 in a text: RE2, whose time is linear, or `re` if RE2 cannot."""
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MOST_EXPRESSION_BYTES, True, False
    # ECMA-262 has `\u00e9` where RE2 has `\x{00e9}`.
    escaped = _ESCAPED.sub(lambda found: f"\\x{{{found[1]}}}" if found[1] else found[0], expression)
    try:
        found: Callable[[str], object] = re2.compile(escaped, options).search
    except (re2.error, UnicodeError):
        found = re.compile(expression).search
    return found


def _pattern(validator: Any, expression: str, value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not searcher(expression)(value):
        yield ValidationError("does not match")


def _pattern_properties(validator: Any, patterns: dict[str, Any], value: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for expression, schema in patterns.items():
            for name, each in value.items():
                if searcher(expression)(name):
                    yield from validator.descend(each, schema, path=name, schema_path=expression)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            if name not in known and not any(searcher(expression)(name) for expression in patterns):
                yield from validator.descend(each, allowed, path=name)


_LINEAR = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}


def reader(written: Registered, *_: object) -> Reader:
    """What checks values with their own schema. References to other addresses are never followed."""
    schema = json.loads(written.text)
    kind: Any = validator_for(schema)
    # Without formats: regular expressions would have to be those of Python.
    within(_SCHEMA_SECONDS, lambda: kind.check_schema(schema, format_checker=None), "whose schema ")
    known: Registry[Any] = Registry().with_resources(
        (name, Resource.from_contents(json.loads(text), default_specification=DRAFT7))
        for name, text in written.references.items()
    )
    validator = extend(kind, _LINEAR)(schema, registry=known)  # type: ignore[no-untyped-call]

    def read(content: bytes) -> bytes:
        try:
            value = json.loads(
                content.decode("utf-8"), parse_constant=int
            )  # of "NaN", which is not JSON, no int can be made
            if b"\\ud" in content or b"\\uD" in content:  # half a character, of which Spark would make a question mark
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as exc:
            raise BadValueError("is not JSON") from exc
        try:
            within(_SECONDS + len(content) * _SECONDS_OF_A_BYTE, lambda: validator.validate(value))
        except ValidationError as exc:
            # The place in the schema: that in the value has names that the value chose.
            where = "/".join(map(str, exc.absolute_schema_path))
            raise BadValueError(f"is not valid JSON of this schema: {printable(where, 100)}") from exc
        return content

    return read


def columns(table: Registered, *_: object) -> str:
    """The type of a table's column, as Spark's JSON, for values of this schema.

    Raises:
        BadValueError: the schema, or a part of it, does not have a single type in a table.
    """
    others = {name: json.loads(text) for name, text in table.references.items()}
    schema = json.loads(table.text)
    found = _Types({**others, "": schema}).of(schema, "", 0)
    if not isinstance(found, T.StructType):
        raise BadValueError("which is not an object with properties")
    return found.json()


class _Types:
    """Finds the types of parts of schemas.

    Args:
        schemas: those that parts may refer to, by their addresses.
    """

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas
        self._left = MOST_FIELDS

    def of(self, part: Any, path: str, depth: int) -> T.DataType:
        """The type of a part, which is at `path` and so many parts deep."""
        self._left -= 1
        if self._left < 0:
            raise BadValueError(f"which has more than {MOST_FIELDS:,} fields")
        if depth > _MOST_DEPTH:
            raise BadValueError(f"whose {path[1:]} has more than {_MOST_DEPTH} levels, or contains itself")
        if "$ref" in part:
            return self.of(self._referred(part["$ref"], path), path, depth + 1)
        choices = part.get("oneOf", part.get("anyOf"))
        if isinstance(choices, list) and "type" not in part:
            kinds = [each for each in choices if each != {"type": "null"}]
            return self.of(kinds[0] if len(kinds) == 1 else {}, path, depth + 1)
        kind, inside, depth = _kind(part), part.get("additionalProperties"), depth + 1
        if kind == "array" and "items" in part:
            return T.ArrayType(self.of(part["items"], f"{path}[]", depth))
        if kind == "object" and part.get("properties"):
            fields = ((name, self.of(each, f"{path}.{name}", depth)) for name, each in part["properties"].items())
            return T.StructType([T.StructField(*each) for each in fields])
        if kind == "object" and isinstance(inside, dict):
            return T.MapType(T.StringType(), self.of(inside, f"{path}{{}}", depth))
        if kind not in _SIMPLE:
            raise BadValueError(f"whose {path[1:] or 'value'} does not have a single type")
        return _SIMPLE[kind]

    def _referred(self, address: str, path: str) -> Any:
        base, _, inside = address.partition("#")
        try:
            found = self._schemas[base]
            for step in filter(None, inside.split("/")):
                found = found[step.replace("~1", "/").replace("~0", "~")]
        except (LookupError, TypeError):
            raise BadValueError(f"whose {path[1:]} refers to {address[:100]!r}, which is not there") from None
        return found


def _kind(part: dict[str, Any]) -> Any:
    """The one type of a part, in addition to null; None if there is none, or more than one."""
    named = part.get("type", "object" if "properties" in part else None)
    kinds = [each for each in named if each != "null"] if isinstance(named, list) else [named]
    values = part.get("enum", [part["const"]] if "const" in part else [])
    if kinds == [None] and values and all(each is None or isinstance(each, str) for each in values):
        return "string"
    return kinds[0] if len(kinds) == 1 else None
