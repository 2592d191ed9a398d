"""Secret values: read from outside the file, and printed as `***`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar, cast

from transforms.errors import ConfigurationError
from transforms.masking import HIDDEN, masked

_T = TypeVar("_T")

_PLACEHOLDER = re.compile(r"\$\{([a-z]+):([^}]+)\}")
_MAX_FILE_BYTES = 65_536
_KNOWN: set[str] = set()
_FOREIGN: ContextVar[bool] = ContextVar("foreign", default=False)


class Secret(str):
    """A string that `repr` and error messages hide."""

    __slots__ = ()

    def __repr__(self) -> str:
        return HIDDEN


class _OfFiles(Secret):
    """A secret from files, which `template` names."""

    template: str


@contextmanager
def foreign() -> Iterator[None]:
    """Marks what is parsed in the block as untrusted.

    No placeholder is replaced, since it could read any file of the worker. No value is added to those that are hidden,
    since any word could be removed from the logs in this way.
    """
    token = _FOREIGN.set(True)
    try:
        yield
    finally:
        _FOREIGN.reset(token)


def fill_in(key: str, value: object, environ: Mapping[str, str] = os.environ) -> object:
    """`value` with each `${env:NAME}` and `${file:/path}` replaced; a string that had one becomes a `Secret`.

    The syntax is that of Kafka's configuration providers (KIP-297, KIP-887). Replaced text is not searched again.
    A line break at the end of a file is not part of the value.

    Raises:
        ConfigurationError: the variable is not set, or the file cannot be read.
    """
    if isinstance(value, list):
        return [fill_in(key, item, environ) for item in value]
    if isinstance(value, dict):
        return {name: fill_in(key, item, environ) for name, item in value.items()}
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value

    def replacement(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if _FOREIGN.get():
            raise ConfigurationError(key, f"found ${{{kind}:…}}, which is replaced only in the worker's own file")
        if kind == "file":
            return _file(key, name)
        if kind != "env":
            raise ConfigurationError(key, f"found ${{{kind}:…}}, allowed are ${{env:NAME}} and ${{file:/path}}")
        if name not in environ:
            raise ConfigurationError(key, f"the environment variable {name} is not set")
        return environ[name]

    text = _PLACEHOLDER.sub(replacement, value)
    if "${file:" not in value:
        return Secret(text)
    filled = _OfFiles(text)
    filled.template = value
    return filled


def renewed(values: Mapping[str, _T]) -> Mapping[str, _T]:
    """The values with the current contents of their files: an agent may have replaced one, as Kubernetes does.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    found = dict(values)
    for key, value in values.items():
        if isinstance(value, _OfFiles):
            new = fill_in(key, value.template)
            found[key] = cast("_T", known(new) if value in _KNOWN else new)
    return found


def _file(key: str, name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigurationError(key, f"file {name!r} cannot be read: {reason}") from exc
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigurationError(key, f"file {name!r} is over {_MAX_FILE_BYTES:,} bytes, too large for a secret")
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # `from exc` would show the content.
        raise ConfigurationError(key, f"file {name!r} is not UTF-8") from None


def hidden(value: object) -> object:
    """`value` with every string in it a `Secret`."""
    if isinstance(value, list):
        return [hidden(item) for item in value]
    if isinstance(value, dict):
        return {name: hidden(item) for name, item in value.items()}
    return Secret(value) if isinstance(value, str) and not isinstance(value, Secret) else value


def known(value: object) -> object:
    """As `hidden`; `without_secrets` also hides each string from now on, in this process."""
    if isinstance(value, str):
        if not _FOREIGN.get():
            _KNOWN.add(value)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            known(item)
    return hidden(value)


def without_secrets(text: str) -> str:
    """A text of foreign code, for an output, without values of secret properties, and without what looks like one."""
    return masked(text, _KNOWN)
