"""The one connector plugin of a worker, the pipeline: its properties, and the validation of a configuration.

The configuration comes from an untrusted client. It is only inspected: no file is read, no
class is imported, no request is made, and no value is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.config.document import flatten
from app.config.fields import values_of
from app.config.findings import Findings
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.secret import foreign
from app.config.settings import PIPELINE_KEYS, Settings
from app.web.connectors import CLASS, TYPE, config_text
from app.web.errors import RestError
from stores.keys import REQUIRED, Key, Kind
from stores.registry import STORE_CLASS, STORE_NAMES, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError, WideloadError
from transforms.masking import HIDDEN
from transforms.text import printable

_MOST_KEYS = 300
_MOST_MESSAGE = 1_000
_SHORT = CLASS.rpartition(".")[2]
_ALIASES = (CLASS, _SHORT, f"{_SHORT}Connector")
_OF_CONNECT = ("name", "connector.class")
_KINDS: Mapping[Kind, str] = {
    "string": "STRING",
    "int": "LONG",
    "bytes": "STRING",  # "64KiB", too
    "float": "DOUBLE",
    "boolean": "BOOLEAN",
    "list": "LIST",
}
_NAME = Key("name", "string", "The name of the pipeline: `[pipeline.NAME]`.", default=REQUIRED)


def plugins(version: str) -> list[dict[str, str]]:
    """`GET /connector-plugins`."""
    return [{"class": CLASS, "type": TYPE, "version": version}]


def check_plugin(name: str) -> None:
    """Refuses a name that is not that of the plugin.

    Raises:
        RestError: it is another one.
    """
    if name not in _ALIASES:
        raise RestError(404, f"Unknown plugin {printable(name)}. The only one is {CLASS}.")


def definitions() -> list[dict[str, Any]]:
    """`GET /connector-plugins/{name}/config`: all properties of a pipeline, with those of all stores."""
    return [_definition(group, key, place) for place, (group, key) in enumerate(_keys(sorted(STORE_NAMES)))]


def validation(document: Mapping[str, object], settings: Settings) -> dict[str, Any]:
    """`PUT /connector-plugins/{name}/config/validate`: what `wideload check` reports for a configuration, offline.

    Args:
        document: the properties of one pipeline. Values may be strings, as Connect's are.
        settings: of the worker, whose properties apply to the pipeline too.

    Raises:
        RestError: the request is not a configuration of this plugin.
    """
    given = _texts(document)
    kind = given.pop("connector.class", CLASS)
    if kind not in _ALIASES:
        raise RestError(400, f"Included connector type {printable(kind)} does not match request type {CLASS}")
    store = given.get(STORE_CLASS)
    keys = list(_keys([store] if store is not None and store in STORE_NAMES else []))
    errors: dict[str, list[str]] = {}
    for error in _problems(given, {key.name: key for _, key in keys}, settings):
        errors.setdefault("name" if error.key == "pipeline" else error.key, []).append(
            printable(str(ConfigurationError(error.key, error.reason)), _MOST_MESSAGE)
        )
    known = {key.name for _, key in keys}
    configs: list[dict[str, Any]] = [
        {"definition": _definition(group, key, place), "value": _value(key, given, errors.get(key.name, []))}
        for place, (group, key) in enumerate(keys)
    ]
    configs += [
        {"definition": None, "value": _plain_value(name, None, found)}
        for name, found in errors.items()
        if name not in known
    ]
    return {
        "name": CLASS,
        "error_count": sum(map(len, errors.values())),
        "groups": list(dict.fromkeys(group for group, _ in keys)),
        "configs": configs,
    }


def _texts(document: Mapping[str, object]) -> dict[str, str]:
    if len(document) > _MOST_KEYS:
        raise RestError(400, f"found {len(document):,} properties, allowed are {_MOST_KEYS}")
    texts = {}
    for name, value in document.items():
        if not isinstance(value, str | int | float):
            raise RestError(400, f"{printable(name)}: allowed are a string, a number, true and false")
        texts[name] = value if isinstance(value, str) else config_text(value)
    return texts


def _problems(given: Mapping[str, str], keys: Mapping[str, Key], settings: Settings) -> Iterator[ConfigurationError]:
    if not given.get("name"):
        yield ConfigurationError("name", "is missing; it is the name of the pipeline")
        return
    own = {name: text for name, text in given.items() if name not in _OF_CONNECT}
    try:
        with foreign():
            placeholders = Findings()
            flatten(given, {}, placeholders)  # refuses them, also where a number is wanted
            placeholders.check()
            table = {name: keys[name].coerce(text) if name in keys else text for name, text in own.items()}
            worker = {name: value for name, value in values_of(settings).items() if _holds_for_pipelines(name)}
            parse({**worker, "pipeline": {given["name"]: table}}, {})
    except ConfigurationError as exc:
        yield from exc.each
    except WideloadError as exc:
        yield ConfigurationError("name", str(exc))


def _holds_for_pipelines(name: str) -> bool:
    return name in {
        "bootstrap.servers",
        "client.id",
        "in.flight.bytes",
        "resource.identifier.limit.enable",
        "task.shutdown.graceful.timeout.ms",
    }


def _keys(stores: Sequence[str]) -> Iterator[tuple[str, Key]]:
    yield "Pipeline", _NAME
    for group, keys in (
        ("Pipeline", PIPELINE_KEYS),
        ("Store", COMMON_KEYS),
        *(("Store", _store_keys(name)) for name in stores),
        ("Consumer", CONSUMER_KEYS),
        ("Producer", PRODUCER_KEYS),
    ):
        for key in keys:
            yield group, key


def _store_keys(name: str) -> Sequence[Key]:
    try:
        return store_keys(name) or ()
    except ConfigurationError:  # a package that it needs is not installed
        return ()


def _definition(group: str, key: Key, place: int) -> dict[str, Any]:
    required = key.default is REQUIRED
    return {
        "name": key.name,
        "type": "PASSWORD" if key.secret else _KINDS[key.kind],
        "required": required,
        "default_value": None if required or key.default is None else config_text(key.default),
        "importance": "HIGH" if required else "MEDIUM",
        "documentation": key.doc,
        "group": group,
        "width": "NONE",
        "display_name": key.name,
        "dependents": [],
        "order": place,
    }


def _value(key: Key, given: Mapping[str, str], errors: list[str]) -> dict[str, Any]:
    text = given.get(key.name)
    if text is None and key.default is not REQUIRED and key.default is not None:
        text = config_text(key.default)
    shown = HIDDEN if key.secret and text else text
    return {**_plain_value(key.name, shown, errors), "recommended_values": list(key.allowed)}


def _plain_value(name: str, text: str | None, errors: list[str]) -> dict[str, Any]:
    return {"name": name, "value": text, "recommended_values": [], "errors": errors, "visible": True}
