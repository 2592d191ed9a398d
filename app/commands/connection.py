"""The connection of a command to the cluster: options of the command line, or a configuration file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar

import click

from app.config.parsing import checked_client_settings, load
from app.config.secret import fill_in
from app.config.settings import CONNECTION_KEYS, ClientSettings, PipelineSettings, Settings
from app.config.wrapping import WrapperSettings
from stores.keys import unknown
from stores.registry import open_store
from stores.store import PayloadStore
from transforms.errors import ConfigurationError, of_pipeline
from transforms.identifiers import LIMIT_KEY
from transforms.text import did_you_mean
from transforms.wrapper import Unwrap, Wrap

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")

# For commands that need a configuration.
config_option = click.option(
    "-c",
    "--config",
    metavar="FILE",
    required=True,
    envvar="WIDELOAD_CONFIG",
    show_envvar=True,
    help="The configuration file of the worker.",
)


def connection_options(command: _Function) -> _Function:
    """Adds `bootstrap_servers`, `config` and `extra` to a command; they are the arguments of `client_of`."""
    options = (
        click.option(
            "-b",
            "--bootstrap-servers",
            "--bootstrap-server",
            "bootstrap_servers",
            metavar="HOST:PORT,…",
            help=f"The brokers for the initial connection. Default: those of -c, or of ${BOOTSTRAP_VARIABLE}.",
        ),
        click.option(
            "-c",
            "--config",
            metavar="FILE",
            help="The configuration file of a worker, for brokers, security and store.",
        ),
        click.option(
            "-X",
            "extra",
            metavar="KEY=VALUE",
            multiple=True,
            help="A connection property, such as security.protocol=SSL; may be repeated. Pass secrets as "
            "${env:NAME} or ${file:/path}, since other users can see the command line.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def client_of(
    bootstrap_servers: str | None,
    config: str | None,
    extra: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    given: Mapping[str, object] | None = None,
) -> ClientSettings:
    """The connection from, in order of precedence: `-b`, `-X`, `given`, the file of `-c`, the environment.

    Raises:
        ConfigurationError: the file or an option is wrong, or no broker is given.
    """
    values: dict[str, object] = {}
    if environ.get(BOOTSTRAP_VARIABLE):
        values["bootstrap.servers"] = environ[BOOTSTRAP_VARIABLE]
    if config is not None:
        client = load(config).client
        values |= {"bootstrap.servers": client.bootstrap_servers, "client.id": client.client_id}
        values[LIMIT_KEY] = client.limit_names
        values |= {name: value for name, value in client.security.items() if value is not None}
    values |= given or {}
    values |= _pairs(extra, environ)
    if bootstrap_servers is not None:
        values["bootstrap.servers"] = bootstrap_servers
    if "bootstrap.servers" not in values:
        raise ConfigurationError(
            "--bootstrap-servers", f"is missing; pass it, or a configuration with -c, or set ${BOOTSTRAP_VARIABLE}"
        )
    return checked_client_settings(values)


def _pairs(extra: Sequence[str], environ: Mapping[str, str]) -> dict[str, object]:
    keys = {key.name: key for key in CONNECTION_KEYS}
    pairs: dict[str, object] = {}
    for text in extra:
        name, separator, value = text.partition("=")
        if not separator:
            # The text is not repeated, as it may be a misplaced secret.
            raise ConfigurationError("-X", "must be KEY=VALUE, but one value has no '='")
        if name not in keys:
            raise unknown(name, keys)
        filled = fill_in(name, value, environ)
        pairs[name] = keys[name].coerce(filled)
    return pairs


def pipeline_of(settings: Settings, name: str | None) -> PipelineSettings:
    """The pipeline whose store and format a command uses: the one called `name`, or any if all have the same.

    Raises:
        ConfigurationError: there is no such pipeline, or a name is needed.
    """
    pipelines = [pipeline for pipeline in settings.pipelines if pipeline.store]
    if not pipelines:
        raise ConfigurationError("--config", "no pipeline of this configuration has a store")
    names = ", ".join(pipeline.name for pipeline in pipelines)
    if name is None:
        if any(pipeline.store != pipelines[0].store for pipeline in pipelines):
            raise ConfigurationError(
                "--pipeline", f"is missing, but the stores, or their properties, differ; name one of: {names}"
            )
        if any(pipeline.reference_format != pipelines[0].reference_format for pipeline in pipelines):
            raise ConfigurationError("--pipeline", f"is missing, but reference.format differs; name one of: {names}")
        # One store, but perhaps different limits: this command may read whatever any pipeline may read.
        return max(pipelines, key=lambda pipeline: pipeline.max_bytes)
    return named(pipelines, name, "the configuration has")


def named(pipelines: Sequence[PipelineSettings], name: str, which: str) -> PipelineSettings:
    """The pipeline with this name.

    Args:
        pipelines: to choose from.
        name: as the user gives it.
        which: what these pipelines are, for the error.

    Raises:
        ConfigurationError: there is none.
    """
    names = [pipeline.name for pipeline in pipelines]
    if name not in names:
        found = f"found {name!r}, {which}: {', '.join(names)}"
        raise ConfigurationError("--pipeline", found + did_you_mean(name, names))
    return pipelines[names.index(name)]


def agreed(
    settings: Settings,
    name: str | None,
    concerns: Callable[[PipelineSettings], bool],
    what: Callable[[PipelineSettings], _Value],
    differ: str,
) -> _Value | None:
    """The setting of the pipeline called `name`, or of all that it concerns; None if it concerns none.

    Args:
        settings: of the file.
        name: None for no choice.
        concerns: whether the setting concerns a pipeline.
        what: the setting.
        differ: which properties differ, for the error.

    Raises:
        ConfigurationError: there is no such pipeline, or a name is needed, as the pipelines differ.
    """
    if name is not None:
        return what(named(settings.pipelines, name, "the configuration has"))
    found = [pipeline for pipeline in settings.pipelines if concerns(pipeline)]
    if any(what(pipeline) != what(found[0]) for pipeline in found):
        names = ", ".join(pipeline.name for pipeline in found)
        raise ConfigurationError("--pipeline", f"is missing, but {differ}; name one of: {names}")
    return what(found[0]) if found else None


def wrap_of(settings: Settings | None, name: str | None) -> Wrap:
    """How the pipelines of the file wrap; without a file, headers have numbers alone.

    Raises:
        ConfigurationError: see `agreed`.
    """
    return _wrapping(settings, name, lambda each: each.wraps, lambda each: each.wrap) or Wrap()


def unwrap_of(settings: Settings | None, name: str | None) -> Unwrap:
    """How the pipelines of the file unwrap; without a file, headers have numbers alone.

    Raises:
        ConfigurationError: see `agreed`.
    """
    return _wrapping(settings, name, lambda each: each.unwraps, lambda each: each.unwrap) or Unwrap()


def _wrapping(
    settings: Settings | None,
    name: str | None,
    does: Callable[[WrapperSettings], bool],
    what: Callable[[WrapperSettings], _Value],
) -> _Value | None:
    """The table of all pipelines that know wrappers, with the rest from those that do what the command does."""
    if settings is None:
        return None

    def knows(each: PipelineSettings) -> bool:
        return each.wrapper.wraps or each.wrapper.unwraps or bool(each.wrapper.headers)

    def of(each: PipelineSettings) -> _Value:
        return what(each.wrapper)

    agreed(settings, name, knows, lambda each: each.wrapper.headers, "wrapper.header.NUMBER differ")
    differ = "the handling of other values differs"
    found = agreed(settings, name, lambda each: does(each.wrapper), of, differ)
    return agreed(settings, name, knows, of, differ) if found is None else found


def opened_store(pipeline: PipelineSettings, stack: ExitStack) -> PayloadStore:
    """The store of a pipeline; `stack` closes it.

    Raises:
        ConfigurationError: it cannot be opened; the error names the pipeline.
    """
    with of_pipeline(pipeline.name):
        return stack.enter_context(closing(open_store(pipeline.store)))
