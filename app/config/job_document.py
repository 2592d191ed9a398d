"""The document that tells the Spark jobs what is configured; `jobs` know neither the worker nor its settings.

It lists the stores. For each one it has the topics whose payloads are in it, and the topics to which pipelines may
carry references to them. A sweep that overlooks such a topic deletes payloads that are still in use. The keys that sign
references, and those that encrypt payloads, are there by topic: those of one topic are of no use in another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from app.config.settings import PipelineSettings, Settings
from stores.encryption import ENCRYPTION_KEYS
from stores.registry import open_store
from stores.store import Store
from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.identifiers import LIMIT_KEY
from transforms.keyring import EncryptionSettings
from transforms.retention import LONGEST_HOLD_S
from transforms.signing import KEY_NAME, PREVIOUS_NAME, REQUIRED_NAME

__all__ = ["document", "reachable_topics", "write"]

_SIGNING = (KEY_NAME, PREVIOUS_NAME, REQUIRED_NAME)
_KEYS_OF_TOPICS = frozenset({*_SIGNING, *(key.name for key in ENCRYPTION_KEYS)})
_APART = "apart"


def document(settings: Settings) -> dict[str, object]:
    """The document, with secrets in the clear. `jobs.driver.worker_config` reads it.

    Raises:
        ConfigurationError: a store cannot be opened.
    """
    client = settings.client
    connection = {name: str(value) for name, value in client.security.items() if value is not None}
    return {
        "connection": {
            "bootstrap.servers": str(client.bootstrap_servers),
            LIMIT_KEY: str(client.limit_names).lower(),
            **connection,
        },
        "topics": sorted({name for each in settings.pipelines for name in (*each.topics, *_sinks(each))}),
        "stores": [_store(group, settings.pipelines) for group in _by_store(settings.pipelines)],
    }


def write(document: Mapping[str, object], path: str) -> None:
    """Writes a document for `--options` of a job, to a new file that nobody else may read.

    Raises:
        ConfigurationError: it cannot be written, or is there already.
    """
    try:
        # Never an existing file: others might have it open, or be allowed to read it.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    except FileExistsError as exc:
        raise ConfigurationError("--write-options", f"{Path(path)} is there already; give a new file") from exc
    except OSError as exc:
        raise ConfigurationError("--write-options", f"{Path(path)} cannot be written: {exc.strerror}") from exc


def reachable_topics(topic: str, pipelines: Sequence[PipelineSettings]) -> list[str]:
    """The topics to which the pipelines may carry references of `topic`, directly or not, in the file's order.

    These are more than `app.cluster.expiry.carriers` has: `inflate` passes on references to keys, and references in
    other formats.
    """
    found: list[str] = []
    waiting = [topic]
    while waiting:
        source = waiting.pop(0)
        for pipeline in pipelines:
            if source in pipeline.topics:
                new = [name for name in _sinks(pipeline) if name not in (topic, *found)]
                found += new
                waiting += new
    return found


def _sinks(pipeline: PipelineSettings) -> list[str]:
    return [name for name in (pipeline.output_topic, pipeline.dead_letter_topic) if name is not None]


def _by_store(pipelines: Sequence[PipelineSettings]) -> list[list[PipelineSettings]]:
    """The pipelines that have a store, grouped by the root of the store."""
    groups: dict[object, list[PipelineSettings]] = {}
    for pipeline in pipelines:
        if pipeline.store:
            with closing(open_store(pipeline.store)) as store:
                # Without a known root, each configuration counts as a store of its own.
                config = tuple(sorted((key, repr(_plain(value))) for key, value in pipeline.store.items()))
                groups.setdefault(store.root.uri if isinstance(store, Store) else config, []).append(pipeline)
    return list(groups.values())


def _store(group: Sequence[PipelineSettings], pipelines: Sequence[PipelineSettings]) -> dict[str, object]:
    topics = list(dict.fromkeys(topic for pipeline in group for topic in _folders(pipeline)))
    # Pipelines of one store may have different limits; a job may read as much as any of them.
    widest = max(group, key=lambda pipeline: pipeline.max_bytes)
    carriers = {topic: reachable_topics(topic, pipelines) for topic in topics}
    store = {key: value for key, value in widest.store.items() if key not in _KEYS_OF_TOPICS}
    return {
        "pipelines": [pipeline.name for pipeline in group],
        "store": {key: _plain(value) for key, value in store.items()},
        "in.flight.ms": max(_in_flight_ms(pipeline) for pipeline in group),
        "carriers": carriers,
        "signing": {topic: _plain(keys) for topic, keys in _signings(group, carriers).items()},
        "encryption": {topic: _plain(keys) for topic, keys in _encryptions(group, carriers).items()},
        "formats": _formats(group, carriers),
    }


def _folders(pipeline: PipelineSettings) -> list[str]:
    """The topics whose payloads are in the store."""
    found = list(pipeline.topics) if "inflate" in pipeline.transforms else []
    if pipeline.offloads:
        found.append(pipeline.output_topic)
    if pipeline.dead_letter_topic is not None:
        found.append(pipeline.dead_letter_topic)  # large dead letters have a payload too
    return found


def _signings(group: Sequence[PipelineSettings], carriers: Mapping[str, Sequence[str]]) -> dict[str, dict[str, object]]:
    """The signing keys for each topic: those of the pipelines that read or write its references, and of no other.

    The name of a key is there if the topic has one; `apart` has the names of pipelines that share no key.
    """
    own: dict[str, list[PipelineSettings]] = {}
    others: dict[str, list[PipelineSettings]] = {}
    for pipeline in group:
        ours = [*pipeline.topics] if "inflate" in pipeline.transforms else []
        ours += [pipeline.output_topic] if pipeline.offloads else []
        for topic in ours:
            own.setdefault(topic, []).append(pipeline)
        for topic in _folders(pipeline):
            for name in (topic, *carriers[topic]):
                others.setdefault(name, []).append(pipeline)
    found: dict[str, dict[str, object]] = {}
    for topic, pipelines in own.items():
        readers = [each for each in pipelines if "inflate" in each.transforms and topic in each.topics] or pipelines
        found[topic] = _signing(pipelines) | {REQUIRED_NAME: any(map(_requires, readers))}
    for topic, pipelines in others.items():
        # Dead letters and copies of several topics may be signed with the key of each; nobody reads them but jobs.
        if topic not in own:
            found[topic] = _signing(pipelines, apart=False) | {REQUIRED_NAME: all(map(_requires, pipelines))}
    return {topic: each if KEY_NAME in each or _APART in each else {} for topic, each in found.items()}


def _encryptions(
    group: Sequence[PipelineSettings], carriers: Mapping[str, Sequence[str]]
) -> dict[str, Mapping[str, object]]:
    """The keys of encryption for each topic: of the pipelines that store or read its payloads, writers first."""
    of_topic: dict[str, list[PipelineSettings]] = {}
    for pipeline in sorted(group, key=lambda each: not each.offloads):
        for topic in _folders(pipeline):
            for name in (topic, *carriers[topic]):
                of_topic.setdefault(name, []).append(pipeline)
    return {
        topic: EncryptionSettings.together([each.encryption for each in pipelines if each.encryption is not None])
        for topic, pipelines in of_topic.items()
    }


def _requires(pipeline: PipelineSettings) -> bool:
    return pipeline.signing is not None and pipeline.signing.required


def _signing(pipelines: Sequence[PipelineSettings], *, apart: bool = True) -> dict[str, object]:
    """The keys of the pipelines of a topic: a job signs as those that offload do, and accepts every one.

    In the middle of a change of keys they have different ones, and one in common. Without `apart` they need none.
    """
    keyed = [each for each in pipelines if each.signing is not None]
    writers_first = sorted(keyed, key=lambda pipeline: not pipeline.offloads)
    keys: dict[str, None] = {}
    left = writers_first
    while left:
        near = [each for each in left if not apart or not keys or not keys.keys().isdisjoint(_keys(each))]
        if not near:
            return {_APART: sorted({each.name for each in keyed})}
        keys |= dict.fromkeys(_keys(near[0]))
        left = [each for each in left if each is not near[0]]
    if not keys:
        return {}
    key, *previous = dict.fromkeys([_keys(each)[0] for each in writers_first]) | keys
    return {KEY_NAME: key} | ({PREVIOUS_NAME: previous} if previous else {})


def _keys(pipeline: PipelineSettings) -> Sequence[str]:
    signing = pipeline.signing
    return () if signing is None else (signing.key, *signing.previous)


def _in_flight_ms(pipeline: PipelineSettings) -> int:
    """The longest time between the call that stores a payload and its record.

    That is the call, the time behind a record before it in its partition, and the delivery.
    """
    delivery = cast("int", pipeline.producer["producer.delivery.timeout.ms"])
    return pipeline.store_timeout_ms + int(LONGEST_HOLD_S * 1000) + delivery


def _formats(group: Sequence[PipelineSettings], carriers: Mapping[str, Sequence[str]]) -> dict[str, FormatName]:
    """The reference format of each topic. If pipelines differ, `bakdata-flag` wins, since no header tells it."""
    found: dict[str, FormatName] = {}
    for pipeline in group:
        for topic in _folders(pipeline):
            for name in (topic, *carriers[topic]):
                if found.get(name) != "bakdata-flag":
                    found[name] = pipeline.reference_format
    return found


def _plain(value: object) -> object:
    """The value without `Secret`, a class that executors may lack."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, str) else value
