"""Properties as data: one definition for the parser, the error messages and the documentation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from transforms.errors import ConfigurationError, shown
from transforms.masking import HIDDEN

OURS = "large.message."
"""Names with this prefix are reserved for Wideload, also if a custom class has properties."""

Value = str | int | float | bool | list[str]
Kind = Literal["string", "int", "bytes", "float", "boolean", "list"]


class _Required:
    def __repr__(self) -> str:
        return "(required)"


REQUIRED = _Required()

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))? ?([A-Za-z]{2,3})", re.ASCII)
_PLACEHOLDER = re.compile(r"\$\{(env|file):")
_UNITS: Mapping[str, int] = {
    "KB": 1000, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_SHOWN_CHARACTERS = 200
_TYPO = 0.9  # similarity from which a property of a custom class counts as a known one, misspelt
_NEAR = 0.75  # names with a long common prefix are similar: at 0.6, `producer.acks` was near `producer.linger.ms`

_PYTHON: Mapping[Kind, tuple[type, ...]] = {
    "string": (str,),
    "int": (int,),
    "bytes": (int,),
    "float": (int, float),
    "boolean": (bool,),
    "list": (list,),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One property of the configuration.

    Attributes:
        name: the dotted name, as in the file.
        kind: the type in the file. `bytes`: a number of bytes, or a text with a number and a unit.
        doc: the text for the reference page: what the property does, its unit, and the effect of its limit.
        default: the value if the file has none; REQUIRED if it must have one; None for "not set".
        allowed: the only allowed values; empty for any.
        minimum: the lowest value of a number.
        maximum: the highest.
        secret: whether the value is never printed.
    """

    name: str
    kind: Kind
    doc: str
    default: Value | _Required | None = None
    allowed: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False

    def coerce(self, value: object) -> object:
        """A text converted to the type of this property; other values, and texts that cannot be converted, unchanged.

        Kafka's configurations are maps of strings in many places: `8080`, `true`, `a,b`. Booleans are read as Kafka
        reads them, upper or lower case. The items of a list have the class of the text, so a secret stays secret.
        `check` reports a text that could not be converted.
        """
        if not isinstance(value, str) or self.kind == "string":
            return value
        number = self._number(value.strip())
        if number is not None:
            return number
        if self.kind == "boolean" and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if self.kind == "list":
            return [type(value)(item.strip()) for item in value.split(",")]
        return value

    def _number(self, text: str) -> int | float | None:
        if self.kind in ("int", "bytes") and _INTEGER.fullmatch(text):
            return int(text)
        if self.kind == "float" and _FLOAT.fullmatch(text):
            return float(text)
        return _size(text) if self.kind == "bytes" else None

    def check(self, value: object) -> Value:
        """`value`, if it is valid for this property.

        Raises:
            ConfigurationError: wrong type, not one of the allowed values, outside minimum and maximum, or a
                placeholder that was not replaced.
        """
        for text in value if isinstance(value, list) else (value,):
            self._check_filled_in(text)
        found = HIDDEN if self.secret else _as_written(value)
        if self.kind == "bytes" and isinstance(value, str) and (size := _size(value)) is not None:
            value = size
        right = isinstance(value, _PYTHON[self.kind]) and (self.kind == "boolean" or not isinstance(value, bool))
        if right and isinstance(value, list):
            right = all(isinstance(item, str) for item in value)
        if not right:
            raise ConfigurationError(self.name, f"found {found}, allowed is {self._type()}")
        assert isinstance(value, (str, int, float, list))
        if self.allowed and value not in self.allowed:
            raise ConfigurationError(self.name, f"found {found}, allowed is one of: {', '.join(self.allowed)}")
        if self.kind in ("int", "bytes", "float") and isinstance(value, (int, float)) and not self._within(value):
            raise ConfigurationError(self.name, f"found {found}, allowed is {self._range()}")
        return value

    def read(self, config: Mapping[str, object]) -> Value | None:
        """The checked value of this property, or its default.

        Raises:
            ConfigurationError: the property is required and missing, or its value is invalid.
        """
        if self.name in config:
            return self.check(config[self.name])
        if isinstance(self.default, _Required):
            raise ConfigurationError(self.name, f"is missing; it is required: {self.doc}")
        return self.default

    def _check_filled_in(self, text: object) -> None:
        # A replaced text is a string of another class. An open placeholder would be used as the value itself.
        if type(text) is str and (match := _PLACEHOLDER.search(text)):
            raise ConfigurationError(
                self.name,
                f"found ${{{match[1]}:…}}, which is replaced only in the worker's file and in options whose help says "
                "so; pass the value itself, for instance from os.environ",
            )

    def _type(self) -> str:
        if self.kind == "bytes":
            return 'a number of bytes, or a text such as "1MB" or "64KiB"'
        return "a list of strings" if self.kind == "list" else f"a value of type {self.kind}"

    def _within(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def _range(self) -> str:
        if self.maximum is None:
            return f"{self.minimum:,} or more"
        return f"{self.maximum:,} or less" if self.minimum is None else f"{self.minimum:,} to {self.maximum:,}"


def _size(text: str) -> int | None:
    """The bytes of a text such as `64KiB`; None if it lacks number or unit, or is not a whole number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[3] not in _UNITS:
        return None
    fraction = match[2] or ""
    size, rest = divmod(int(match[1] + fraction) * _UNITS[match[3]], 10 ** len(fraction))
    return None if rest else size


def _as_written(value: object) -> str:
    """`value` as a file has it (`true`, not `True`), cut if it is long."""
    if isinstance(value, str):
        return shown(value)
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{text[:_SHOWN_CHARACTERS]}…" if len(text) > _SHOWN_CHARACTERS else text


def read(keys: Iterable[Key], config: Mapping[str, object]) -> dict[str, Value | None]:
    """The checked value of every property, with defaults; other properties of `config` are ignored.

    Raises:
        ConfigurationError: a required property is missing, or a value is invalid.
    """
    return {key.name: key.read(config) for key in keys}


def unknown(name: str, known: Iterable[str]) -> ConfigurationError:
    """The error for an unknown property, with the nearest known name."""
    near = nearest(name, known)
    hint = "" if near is None else f"; did you mean {near}?"
    return ConfigurationError(name, f"unknown property{hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known property that an unknown name probably means; None if none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)), None)


def misspelt(name: str, known: Iterable[str]) -> ConfigurationError | None:
    """The error for a property of a custom class if it is probably a known one, misspelt.

    That is so if its prefix is ours, or nearly so, or if it is very near to a known one. A name that contains a known
    one between dots, such as `kv.bootstrap.servers`, is not misspelt.
    """
    names = list(known)
    near = next(iter(difflib.get_close_matches(name, names, n=1, cutoff=_TYPO)), None)
    if name in names or (near is not None and f".{near}." in f".{name}."):
        return None
    first = ".".join([*name.split(".")[:2], ""])
    if near is None and not difflib.get_close_matches(first, [OURS], n=1, cutoff=_TYPO):
        return None
    reason = unknown(name, names).reason
    return ConfigurationError(name, f"{reason}; if a custom class has this property, list it in its KEYS")
