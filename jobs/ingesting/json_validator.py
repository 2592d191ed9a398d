"""The validators of jsonschema with regular expressions that take linear time.

Python's `re` tries one way after another: `^(a+)+$` takes hours for 40 letters, and many an honest expression is like
it. RE2 does not. It has no lookaround, no backreferences, and no more than 1,000 repetitions; such an expression is
left to `re`, and the caller limits the time. So is `unevaluatedProperties` next to `patternProperties`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import re2
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from jobs.ingesting.codec import BadValueError

__all__ = ["linear", "searcher"]

# RE2's program and the states that it keeps; an expression of 200 times any letter of Unicode takes 3 MB.
_MOST_BYTES = 2**22
_MOST_KEPT = 128
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


@cache
def linear(kind: type[Validator]) -> type[Validator]:
    """The validator of the same draft whose `pattern`, `patternProperties` and `additionalProperties` ask RE2."""
    changed = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    found: type[Validator] = extend(kind, changed)  # type: ignore[no-untyped-call]
    return found


@lru_cache(_MOST_KEPT)
def searcher(expression: str) -> Callable[[str], object]:
    """What looks for a regular expression of ECMA-262 in a text.

    Raises:
        BadValueError: it is no regular expression.
    """
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MOST_BYTES, True, False
    try:
        found: Callable[[str], object] = re2.compile(_ESCAPED.sub(_escape, expression), options).search
    except (re2.error, UnicodeError):
        try:
            return re.compile(expression).search
        except (re.error, RecursionError, OverflowError) as exc:
            raise BadValueError("cannot be checked with it: its schema has a wrong regular expression") from exc
    return found


def _escape(found: re.Match[str]) -> str:
    r"""ECMA-262 has `\u00e9` where RE2 has `\x{00e9}`."""
    return f"\\x{{{found[1]}}}" if found[1] else found[0]


def _pattern(validator: Validator, expression: str, value: Any, _: Any) -> Iterator[ValidationError]:
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
