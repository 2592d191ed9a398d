"""Fields of settings that carry their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from app.config.fields import keyed, keys_of, mapped, settings_of, values_of
from stores.keys import REQUIRED, Key, Value, read

MAPPED = (Key("client.a", "string", "A."), Key("client.b", "int", "B.", default=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Settings in settings."""

    flag: bool = keyed("inner.flag", "boolean", "Flag.", default=False)
    computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Settings with each kind of field."""

    names: tuple[str, ...] = keyed("names", "list", "Names.", default=REQUIRED)
    inner: Inner
    client: Mapping[str, Value | None] = mapped(MAPPED)
    port: int = keyed("port", "int", "Port.", default=80, minimum=1)


def test_keys_and_values_are_in_the_order_of_the_fields() -> None:
    """Of a class, of the settings in it, and of its mappings; values become fields by their keys, and come back."""
    assert [key.name for key in keys_of(Outer)] == ["names", "inner.flag", "client.a", "client.b", "port"]
    assert keys_of(Outer)[-1] == Key("port", "int", "Port.", default=80, minimum=1)
    values = read(keys_of(Outer), {"port": 7, "client.a": "x", "names": ["n", "m"]})
    inner = settings_of(Inner, values, computed=3)
    outer = settings_of(Outer, values, inner=inner, client={key.name: values[key.name] for key in MAPPED})
    assert outer == Outer(names=("n", "m"), inner=Inner(computed=3), client={"client.a": "x", "client.b": 2}, port=7)
    assert list(values_of(outer).items()) == [
        ("names", ("n", "m")),
        ("inner.flag", False),
        ("client.a", "x"),
        ("client.b", 2),
        ("port", 7),
    ]


def test_what_has_no_default_must_be_given() -> None:
    """A field that is the value of no key is not filled in by chance, nor is that of a required key."""
    assert (Outer(names=(), inner=Inner(computed=1)).port, Inner(computed=1).flag) == (80, False)
    with pytest.raises(TypeError, match="computed"):
        settings_of(Inner, {"inner.flag": True})
    with pytest.raises(TypeError, match="names"):
        Outer(inner=Inner(computed=1))
