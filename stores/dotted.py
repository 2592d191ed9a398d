"""Dotted paths in the configuration: `package.module.Class`, or `package.module:Class`."""

from __future__ import annotations

import importlib

from transforms.errors import ConfigurationError


def parts(name: str) -> tuple[str, str] | None:
    """Module and attribute of a dotted path; None if `name` is not a dotted path."""
    module, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    well_formed = all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    return (module, attribute) if separator and well_formed else None


def resolve(key: str, name: str, path: tuple[str, str]) -> object:
    """Imports the module of a path and returns the attribute.

    Args:
        key: the key of the configuration, for the message.
        name: its value, for the message.
        path: the result of `parts`.

    Raises:
        ConfigurationError: the module cannot be imported, or has no such attribute.
    """
    module_name, attribute = path
    try:
        found: object = importlib.import_module(module_name)
    except ConfigurationError:
        raise
    except Exception as exc:
        raise ConfigurationError(
            key,
            f"found {name!r}, but module {module_name} cannot be imported ({type(exc).__name__}: {exc}); "
            "install it, or set PYTHONPATH to the directory that contains it",
        ) from exc
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(key, f"found {name!r}, but module {module_name} has no {attribute}")
    return found
