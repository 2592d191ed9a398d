"""Values that must not be seen: filled in from outside the file, printed as ***."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from transforms.errors import ConfigurationError

__all__ = ["Secret", "fill_in"]

_PLACEHOLDER = re.compile(r"\$\{(env|file):([^}]+)\}")
_MAX_FILE_BYTES = 65_536


class Secret(str):
    """A string that shows itself only where it is used, not where it is printed with `repr` or in an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"


def fill_in(key: str, value: object, environ: Mapping[str, str] = os.environ) -> object:
    """`value` with each `${env:NAME}` and `${file:/path}` replaced; a string with one of them becomes a `Secret`.

    The syntax is that of Kafka's configuration providers (KIP-297, KIP-887).

    Raises:
        ConfigurationError: the variable is not set, or the file cannot be read.
    """
    if isinstance(value, list):
        return [fill_in(key, item, environ) for item in value]
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value

    def replacement(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in environ:
                raise ConfigurationError(key, f"the environment variable {name} is not set")
            return environ[name]
        try:
            with Path(name).open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        except OSError as exc:
            raise ConfigurationError(key, f"file {name} cannot be read: {exc.strerror}") from exc
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigurationError(key, f"file {name} is over {_MAX_FILE_BYTES:,} bytes, no secret is so long")
        try:
            return content.decode().strip()
        except UnicodeDecodeError as exc:
            raise ConfigurationError(key, f"file {name} is not UTF-8") from exc

    return Secret(_PLACEHOLDER.sub(replacement, value))
