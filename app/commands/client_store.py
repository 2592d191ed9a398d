"""The store of clients, which have no worker's configuration: options of a command, or a file of their properties."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from app.config.client import embedded_client_settings
from app.config.document import flatten
from app.config.findings import Findings
from app.config.secret import fill_in, known
from app.serializers.options import CONSUMER_KEYS, read_options
from stores.registry import STORE_CLASS, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError
from transforms.identifiers import LIMIT_KEY
from transforms.properties import entries

_FILE, _KEY = "--store-config", "--store"
_SERVERS = "bootstrap.servers"
_NOT_TAKEN = "client.id"  # the quotas of the application are not the command's

_Function = TypeVar("_Function", bound=Callable[..., Any])


def client_store_options(command: _Function) -> _Function:
    """Adds `store_file` and `store_pairs` to a command; they are the arguments of `given_keys`."""
    options = (
        click.option(
            _FILE,
            "store_file",
            metavar="FILE",
            help="The properties of a client, for its store and its connection: a properties file, or TOML if it is "
            "named *.toml.",
        ),
        click.option(
            "-s",
            _KEY,
            "store_pairs",
            metavar="KEY=VALUE",
            multiple=True,
            help=f"A property of the store, such as {STORE_CLASS}=s3; may be repeated. Pass secrets as ${{env:NAME}} "
            "or ${file:/path}.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def given_keys(file: str | None, pairs: Sequence[str], environ: Mapping[str, str] = os.environ) -> Mapping[str, object]:
    """The properties of a client: those of the options override those of the file.

    Raises:
        ConfigurationError: the file cannot be read, an entry is not KEY=VALUE, or a placeholder cannot be replaced.
    """
    values = {} if file is None else _read(Path(file), environ)
    return {**values, **_pairs(_KEY, pairs, environ)}


def store_of(given: Mapping[str, object]) -> Mapping[str, object]:
    """The configuration of the store, as the serializers read it, without properties that are not the store's.

    Raises:
        ConfigurationError: the store is missing, or one of its properties is unknown or wrong.
    """
    if STORE_CLASS not in given:
        raise ConfigurationError(
            _KEY, f"{STORE_CLASS}=… is missing; pass the properties of the clients' store, or their file with {_FILE}"
        )
    _, store = read_options(given, CONSUMER_KEYS)
    secret = {key.name for key in (*COMMON_KEYS, *(store_keys(str(given[STORE_CLASS])) or ())) if key.secret}
    return {name: known(value) if name in secret else value for name, value in store.items()}


def connection_of(given: Mapping[str, object]) -> Mapping[str, object]:
    """The connection properties of a client, by the names of a worker's configuration.

    Raises:
        ConfigurationError: our own clients do not support a value.
    """
    values, defaults = (
        {**found.security, LIMIT_KEY: found.limit_names, _SERVERS: found.bootstrap_servers}
        for found in (
            embedded_client_settings({_SERVERS: "", **{k: v for k, v in given.items() if k != _NOT_TAKEN}}),
            embedded_client_settings({_SERVERS: ""}),
        )
    )
    # A default must not override a worker's configuration.
    return {name: value for name, value in values.items() if name in given or value != defaults[name]}


def _read(path: Path, environ: Mapping[str, str]) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigurationError(_FILE, f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(_FILE, f"{path} is not UTF-8") from exc
    if path.suffix != ".toml":
        return _pairs(_FILE, [_without_blanks(entry) for entry in entries(text)], environ)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(_FILE, f"{path} is not TOML: {exc}") from exc
    findings = Findings()
    values = flatten(document, environ, findings)
    findings.check()
    if "pipeline" in document:
        raise ConfigurationError(
            _FILE, f"{path} has pipelines, so it is the configuration of a worker; pass it with -c"
        )
    return values


def _pairs(option: str, texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            # The text is not repeated, as it may be a misplaced secret.
            raise ConfigurationError(option, "must be KEY=VALUE, but one entry has no '=', or no key")
        values[name.strip()] = fill_in(name.strip(), value, environ)
    return values


def _without_blanks(entry: str) -> str:
    """`a = b` as `a=b`, before a placeholder is filled in: a secret may begin with a blank."""
    return "=".join(part.strip() for part in entry.split("=", 1))
