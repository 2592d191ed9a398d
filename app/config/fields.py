"""Fields of settings with their property: one definition for the field, the parser, the docs and `wideload check`.

    web_port: int = keyed("web.port", "int", "The port of the web server.", default=6066)

A field with other settings stands for their properties. A field with a mapping has the names of properties in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from stores.keys import REQUIRED, Key, Kind, read

_T = TypeVar("_T")
_KEYS = "keys"


def keyed(name: str, kind: Kind, doc: str, **more: Any) -> Any:
    """A field for the value of a property; the arguments are those of `Key`. Its default is that of the field."""
    key = Key(name, kind, doc, **more)
    if key.default is None or key.default is REQUIRED:
        return field(metadata={_KEYS: (key,)})
    return field(default=key.default, metadata={_KEYS: (key,)})


def mapped(keys: Sequence[Key]) -> Any:
    """A field for a mapping with the values of these properties, by name."""
    return field(default_factory=lambda: read(keys, {}), metadata={_KEYS: tuple(keys)})


def keys_of(cls: type) -> Sequence[Key]:
    """The properties of all fields of a class of settings, in order."""
    types = get_type_hints(cls)
    found: list[Key] = []
    for each in _fields(cls):
        found += keys_of(types[each.name]) if is_dataclass(types[each.name]) else _keys(each)
    return tuple(found)


def settings_of(cls: Callable[..., _T], values: Mapping[str, Any], **computed: object) -> _T:
    """Settings from the checked values of properties.

    Args:
        cls: the class of the settings.
        values: by name of the property.
        computed: the fields that are not the value of one property, except those that have a default.
    """
    taken = {
        each.name: values[_keys(each)[0].name] for each in _fields(cls) if _keys(each) and each.name not in computed
    }
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in taken.items()}
    return cls(**frozen, **computed)


def values_of(settings: object) -> dict[str, object]:
    """The values from which the settings were made, by name of the property, in the order of the fields."""
    values: dict[str, object] = {}
    for each in _fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, Mapping):
            values |= value
        elif _keys(each):
            values[_keys(each)[0].name] = value
        elif is_dataclass(value) and keys_of(type(value)):  # others were made of several keys, secret ones too
            values |= values_of(value)
    return values


def _fields(settings: Any) -> Iterator[Field[Any]]:
    return iter(fields(settings))


def _keys(each: Field[Any]) -> Sequence[Key]:
    keys: Sequence[Key] = each.metadata.get(_KEYS, ())
    return keys
