"""The configuration file: read once, checked, and turned into settings."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from app.config.document import check_top_names, flatten
from app.config.fields import settings_of
from app.config.findings import Checked, Findings
from app.config.handover import form_errors
from app.config.keys import SECURITY_KEYS
from app.config.naming import check_name, check_topic, name_errors
from app.config.pipeline import POLL_INTERVAL, Table
from app.config.settings import CONNECTION_KEYS, WORKER_KEYS, ClientSettings, PipelineSettings, Settings
from app.config.topology import circle_errors, control_errors, group_errors
from transforms.errors import ConfigurationError, shown
from transforms.identifiers import LIMIT_KEY

_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_URL = re.compile(r"https?://[^\s/?#@]+(?:[/?][^\s#]*)?", re.IGNORECASE)
_CREDENTIALS = "sasl.oauthbearer.client.credentials."
# The properties that a mechanism requires, if they are not user and password.
_NEEDED: Mapping[str, Sequence[str]] = {
    "GSSAPI": (),
    "AWS_MSK_IAM": (),
    "OAUTHBEARER": (_ENDPOINT, f"{_CREDENTIALS}client.id", f"{_CREDENTIALS}client.secret"),
}
_ADDRESS = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", re.ASCII)
_LAST_PORT = 65_535
_CONTROL, _CONTROL_TOKEN = "web.control.enable", "web.control.token"
_TOKEN_FORM = re.compile(r"[!-~]{16,}")  # characters that a header can carry
_WORKER_NAMES = frozenset(key.name for key in WORKER_KEYS)


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a TOML file. Sends no request.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or has settings that cannot work.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors put a byte order mark before the text
    except OSError as exc:
        raise ConfigurationError(str(path), f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(str(path), "is not UTF-8, which TOML requires") from exc
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(str(path), f"is not TOML: {exc}") from exc
    return parse(document)


def parse(document: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a document that `tomllib` has read.

    Raises:
        ConfigurationError: the settings cannot work. It lists all errors, in the order of the file.
    """
    top = Findings()
    tables = _tables(document, top)
    flat = flatten({name: value for name, value in document.items() if name != "pipeline"}, environ, top)
    defaults = check_top_names(flat, top)
    worker = top.read(WORKER_KEYS, flat)
    clients = _client_settings(worker, top)
    with top.noted():
        _check_web_control(worker)
    with top.noted():
        if worker["control.topic"] is not None:
            check_topic("control.topic", worker["control.topic"])
    shared = {name: value for name, value in flat.items() if name not in _WORKER_NAMES}
    top.read(defaults, shared)  # notes each wrong value, once
    if not tables and "pipeline" not in top.wrong:
        top.add(ConfigurationError("pipeline", "is missing; a worker needs at least one table [pipeline.NAME]"))
    usable = {name: value for name, value in shared.items() if name not in top.wrong}
    found = [Table(name, flatten(table, environ, findings), findings) for name, table, findings in tables]
    for table in found:
        table.findings.wrong |= top.wrong - table.given.keys()  # the table would inherit them, so none is missing
    pipelines = [each.settings(usable, worker) for each in found]
    right = [pipeline for pipeline in pipelines if pipeline is not None]
    between = Findings()
    names = [error for client in clients for each in right for error in name_errors(client, each)]
    for error in (
        *names,
        *group_errors(right),
        *circle_errors(right),
        *form_errors(right),
    ):
        between.add(error)
    with top.noted():
        for error in control_errors(worker["control.topic"], right):
            top.add(error)
    with top.noted():
        _check_shutdown(worker["task.shutdown.graceful.timeout.ms"], right)
    everything = Findings()
    for error in (*top.errors, *_of_tables(found, flat), *between.errors):
        everything.add(error)
    order = _order(flat, found)
    everything.check(_place(order))
    (client,) = clients
    return settings_of(Settings, worker, client=client, pipelines=tuple(right), order=order)


def _tables(document: Mapping[str, Any], top: Findings) -> Sequence[tuple[str, Mapping[str, Any], Findings]]:
    """The tables of the pipelines by name, each with separate findings."""
    tables = document.get("pipeline", {})
    if isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values()):
        return [(name, table, Findings(name)) for name, table in tables.items()]
    top.add(ConfigurationError("pipeline", "found a value, allowed are tables: [pipeline.NAME]"))
    return []


def _of_tables(tables: Sequence[Table], top: Mapping[str, object]) -> Iterator[ConfigurationError]:
    """The errors of the tables. An error of a default that several tables share is reported once, at the default."""
    of_defaults: dict[tuple[str, str], list[ConfigurationError]] = {}
    for table in tables:
        for error in table.findings.errors:
            if error.key in top and error.key not in table.given:
                of_defaults.setdefault((error.key, error.reason), []).append(error)
            else:
                yield error
    for (key, reason), errors in of_defaults.items():
        yield errors[0] if len(errors) == 1 else ConfigurationError(key, reason)


def _order(top: Mapping[str, object], tables: Sequence[Table]) -> tuple[tuple[str | None, str], ...]:
    """See `Settings.order`."""
    names: list[tuple[str | None, str]] = [(None, name) for name in [*top, ""]]
    for table in tables:
        names += [(table.name, name) for name in [*table.given, ""]]
    return tuple(names)


def _place(order: Sequence[tuple[str | None, str]]) -> Callable[[ConfigurationError], float]:
    places = {name: i for i, name in enumerate(order)}
    return lambda error: places.get((error.pipeline, error.key), places[error.pipeline, ""])


def checked_client_settings(config: Mapping[str, object]) -> ClientSettings:
    """The connection settings of the worker or a command; properties other than `CONNECTION_KEYS` are ignored.

    Raises:
        ConfigurationError: some values are missing or wrong, or contradict each other.
    """
    findings = Findings()
    values = findings.read(CONNECTION_KEYS, config)
    clients = _client_settings(values, findings)
    findings.check()
    return clients[0]


def _client_settings(values: Checked, findings: Findings) -> Sequence[ClientSettings]:
    """The settings; none if one of the values is wrong."""
    with findings.noted():
        _check_addresses(values["bootstrap.servers"])
    with findings.noted():
        check_name("client-id", values["client.id"], "client.id", enabled=values[LIMIT_KEY])
    _check_security(values, findings)
    found = []
    with findings.noted():
        security = {key.name: values[key.name] for key in SECURITY_KEYS}
        found.append(settings_of(ClientSettings, values, security=security))
    return found


def _check_addresses(addresses: str) -> None:
    for address in addresses.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1]) <= _LAST_PORT:
            raise ConfigurationError(
                "bootstrap.servers", f"found {addresses!r}, allowed is host:port, several separated by commas"
            )


def _check_security(security: Checked, findings: Findings) -> None:
    with findings.noted():
        protocol, mechanism = str(security["security.protocol"]), str(security["sasl.mechanism"])
        if protocol.startswith("SASL"):
            for name in _NEEDED.get(mechanism, ("sasl.username", "sasl.password")):
                with findings.noted():
                    if security[name] is None:
                        reason = f"security.protocol {protocol} with sasl.mechanism {mechanism} requires it"
                        raise ConfigurationError(name, f"is missing; {reason}")
    with findings.noted():
        _check_endpoint(security[_ENDPOINT])
    with findings.noted():
        if (security["ssl.certificate.location"] is None) != (security["ssl.key.location"] is None):
            raise ConfigurationError(
                "ssl.key.location", "must be set together with ssl.certificate.location: set both or neither"
            )
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        with findings.noted():
            value = security[name]
            # Unlike `Path.is_file` this raises no error for a name that is too long.
            if value is not None and not os.path.isfile(str(value)):  # noqa: PTH113
                raise ConfigurationError(name, f"there is no file {shown(value)}")


def _check_endpoint(url: object) -> None:
    if url is not None and not _URL.fullmatch(str(url)):
        found = "" if "@" in str(url) else f"found {url!r}, "  # a password may stand in front of it
        allowed = "allowed is https://host/path, or http:// without TLS; without user and password"
        raise ConfigurationError(_ENDPOINT, found + allowed)


def _check_shutdown(graceful_timeout_ms: int, pipelines: Iterable[PipelineSettings]) -> None:
    """Checks that a pipeline that loses partitions can drain before its time to rejoin the group is over.

    Raises:
        ConfigurationError: some cannot.
    """
    found = []
    for pipeline in pipelines:
        interval = cast("int", pipeline.consumer[POLL_INTERVAL])
        if graceful_timeout_ms >= interval:
            found.append(
                ConfigurationError(
                    "task.shutdown.graceful.timeout.ms",
                    f"found {graceful_timeout_ms:,}, allowed is less than {POLL_INTERVAL} of pipeline {pipeline.name}, "
                    f"which is {interval:,}",
                )
            )
    if found:
        raise ConfigurationError.together(found)


def _check_web_control(worker: Mapping[str, object]) -> None:
    """Checks that the worker can be controlled only with a token that is hard to guess.

    Raises:
        ConfigurationError: the token is missing, or invalid.
    """
    token = worker[_CONTROL_TOKEN]
    if token is None and worker[_CONTROL]:
        raise ConfigurationError(_CONTROL_TOKEN, f"is missing; {_CONTROL} = true requires it")
    if token is not None and not _TOKEN_FORM.fullmatch(str(token)):
        raise ConfigurationError(
            _CONTROL_TOKEN,
            f"found {len(str(token))} characters, allowed are 16 or more random ASCII characters without spaces, for "
            "example from `openssl rand -hex 32`",
        )
