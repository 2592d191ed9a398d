"""What a dotted path in the configuration names: `package.module.Class`, or `package.module:Class`."""

from __future__ import annotations

import importlib

from transforms.errors import ConfigurationError

__all__ = ["parts", "resolve"]


def parts(name: str) -> tuple[str, str] | None:
    """Module and attribute of a dotted path; None where it is none."""
    module, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    well_formed = all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    return (module, attribute) if separator and well_formed else None


def resolve(key: str, name: str, path: tuple[str, str]) -> object:
    """The attribute of the module that `path` says, imported.

    Args:
        key: the key of the configuration, for the message.
        name: what stands there, for the message.
        path: as `parts` gives it.

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
            "install it, or set PYTHONPATH to the folder that it is in",
        ) from exc
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(key, f"found {name!r}, but module {module_name} has no {attribute}")
    return found
