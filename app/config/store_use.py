"""The stores of a configuration, for programs that read or remove payloads without a pipeline: audit, sweep, backfill.

For each store it has the topics whose payloads are in it, and their referencing topics: other topics to which pipelines
may forward references to these payloads. A sweep that misses such a topic deletes payloads that are still in use. The
keys that sign references and encrypt payloads are found by topic, since each topic may have different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from app.config.settings import PipelineSettings, Settings
from stores.encryption import ENCRYPTION_KEYS
from stores.registry import open_store
from stores.store import Store
from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.keyring import PREVIOUS_NAME as PREVIOUS_KEYS_NAME
from transforms.keyring import EncryptionSettings
from transforms.retention import LONGEST_HOLD_S
from transforms.signing import KEY_NAME, PREVIOUS_NAME, REQUIRED_NAME
from transforms.text import did_you_mean

_KEYS_OF_TOPICS = frozenset({KEY_NAME, PREVIOUS_NAME, REQUIRED_NAME, *(key.name for key in ENCRYPTION_KEYS)})


@dataclass(frozen=True, slots=True)
class StoreUse:
    """One store, and the topics that refer to its payloads.

    Attributes:
        pipelines: those that use it.
        referencing: the referencing topics of each topic with payloads in the store.
    """

    pipelines: tuple[PipelineSettings, ...]
    referencing: Mapping[str, tuple[str, ...]]

    @property
    def store(self) -> dict[str, object]:
        """Its configuration, which may hold secrets, without the keys for signatures and encryption.

        Pipelines of one store may have different limits; here a payload may be as large as any of them allows.
        """
        widest = max(self.pipelines, key=lambda pipeline: pipeline.max_bytes)
        return {key: value for key, value in widest.store.items() if key not in _KEYS_OF_TOPICS}

    @property
    def in_flight(self) -> timedelta:
        """The longest time between the call that stores a payload and its record, as the configuration limits it.

        That is the call, the time behind a preceding record of its partition, and the delivery.
        """
        return max(
            timedelta(
                milliseconds=pipeline.store_timeout_ms + cast("int", pipeline.producer["producer.delivery.timeout.ms"]),
                seconds=int(LONGEST_HOLD_S),
            )
            for pipeline in self.pipelines
        )

    @property
    def topics(self) -> list[str]:
        """Every topic whose records may refer to payloads of the store, once."""
        return list(
            dict.fromkeys([*self.referencing, *(name for names in self.referencing.values() for name in names)])
        )

    @property
    def formats(self) -> dict[str, FormatName]:
        """The reference format of each topic. If pipelines differ, `bakdata-flag` wins, since no header shows it."""
        found: dict[str, FormatName] = {}
        for pipeline, topic in self._reached():
            if found.get(topic) != "bakdata-flag":
                found[topic] = pipeline.reference_format
        return found

    def signing_of(self, topic: str) -> Mapping[str, object]:
        """The properties `large.message.signing.…` that sign and verify references in a topic; empty for none.

        A topic that no pipeline has may be a copy of any other one: it has the keys that all topics have.

        Raises:
            ConfigurationError: the pipelines of the topic do not share a key; or no pipeline has the topic, and those
                of the others differ.
        """
        return self._of(topic, self._signing, f"{KEY_NAME}=…", "keys")

    def encryption_of(self, topic: str) -> Mapping[str, object]:
        """The properties `large.message.encryption.…` of a topic, of those that write it first; empty for none.

        A topic that no pipeline has may be a copy of any other one: it has the keys that all topics have.

        Raises:
            ConfigurationError: no pipeline has the topic, and the topics of the others differ.
        """
        return self._of(topic, self._encryption, f"{PREVIOUS_KEYS_NAME}=…", "encryption keys")

    def _of(
        self, topic: str, keys: Callable[[str], Mapping[str, object]], given: str, what: str
    ) -> Mapping[str, object]:
        known = {name for _, name in self._reached()}
        if topic in known:
            return keys(topic)
        found, *others = map(keys, sorted(known))
        if any(each != found for each in others):
            raise ConfigurationError(
                "-c",
                f"has no pipeline for topic {topic}, and the pipelines of the store have different {what}; pass the "
                f"keys of the topic with --store {given}",
            )
        return found

    def _signing(self, topic: str) -> Mapping[str, object]:
        own = [each for each in self.pipelines if topic in (*_inflated(each), *_offloaded(each))]
        if own:
            _check_shared(own, topic)
            readers = [each for each in own if topic in _inflated(each)] or own
            required = any(map(_requires, readers))
        else:
            # Dead-letter records and copies of several topics may be signed with the key of each; only such programs
            # read them.
            own = [each for each, name in self._reached() if name == topic]
            required = all(map(_requires, own))
        keyed = _keyed(own)
        if not keyed:
            return {}
        key, *previous = dict.fromkeys(
            [_keys(each)[0] for each in keyed] + [key for each in keyed for key in _keys(each)]
        )
        return {KEY_NAME: key, REQUIRED_NAME: required} | ({PREVIOUS_NAME: previous} if previous else {})

    def _encryption(self, topic: str) -> Mapping[str, object]:
        found = [each for each, name in self._reached() if name == topic]
        writers_first = sorted(found, key=lambda each: not each.offloads)
        return EncryptionSettings.together([each.encryption for each in writers_first if each.encryption is not None])

    def _reached(self) -> Iterable[tuple[PipelineSettings, str]]:
        """Each pipeline with each topic that may have references to the payloads that it stores or reads."""
        return [
            (pipeline, name)
            for pipeline in self.pipelines
            for topic in _stored_topics(pipeline)
            for name in (topic, *self.referencing[topic])
        ]


def store_uses(settings: Settings) -> list[StoreUse]:
    """The stores of the pipelines, each once.

    Raises:
        ConfigurationError: a store cannot be opened.
    """
    groups: dict[object, list[PipelineSettings]] = {}
    for pipeline in settings.pipelines:
        if pipeline.store:
            with closing(open_store(pipeline.store)) as store:
                # Without a known root, each configuration counts as a separate store.
                config = tuple(sorted((key, str(value)) for key, value in pipeline.store.items()))
                groups.setdefault(store.root.uri if isinstance(store, Store) else config, []).append(pipeline)
    return [
        StoreUse(
            tuple(group),
            {
                topic: tuple(reachable_topics(topic, settings.pipelines))
                for topic in dict.fromkeys(topic for pipeline in group for topic in _stored_topics(pipeline))
            },
        )
        for group in groups.values()
    ]


def use_of(settings: Settings, pipeline: str | None, topics: Iterable[str]) -> StoreUse:
    """The store of a pipeline. Without a pipeline: the store of the topics, or the only store.

    Raises:
        ConfigurationError: there is no store, or several.
    """
    uses = store_uses(settings)
    known = [each.name for use in uses for each in use.pipelines]
    if not uses:
        raise ConfigurationError("-c", "has no pipeline with a store")
    if pipeline is not None:
        found = [use for use in uses if pipeline in (each.name for each in use.pipelines)]
        if not found:
            said = f"found {pipeline!r}, those with a store are: {', '.join(known)}{did_you_mean(pipeline, known)}"
            raise ConfigurationError("--pipeline", said)
        return found[0]
    found, topics = uses, [*topics]
    if len(uses) > 1 and topics:
        found = [use for use in uses if not use.referencing.keys().isdisjoint(topics)]
    if len(found) != 1:
        raise ConfigurationError(
            "--pipeline", f"is missing, but there are several stores; name one of: {', '.join(known)}"
        )
    return found[0]


def reachable_topics(topic: str, pipelines: Sequence[PipelineSettings]) -> list[str]:
    """The topics to which the pipelines may forward references of `topic`, also indirectly, in the file's order.

    More than `app.cluster.expiry.referencing_topics`: `inflate` forwards references to keys, and references in other
    formats.
    """
    found: list[str] = []
    waiting = [topic]
    while waiting:
        source = waiting.pop(0)
        for pipeline in pipelines:
            if source in pipeline.topics:
                sinks = (pipeline.output_topic, pipeline.dead_letter_topic)
                new = [name for name in sinks if name is not None and name not in (topic, *found)]
                found += new
                waiting += new
    return found


def _stored_topics(pipeline: PipelineSettings) -> list[str]:
    """The topics whose payloads are in the store; large dead-letter records have a payload too."""
    letters = () if pipeline.dead_letter_topic is None else (pipeline.dead_letter_topic,)
    return [*_inflated(pipeline), *_offloaded(pipeline), *letters]


def _inflated(pipeline: PipelineSettings) -> tuple[str, ...]:
    return pipeline.topics if "inflate" in pipeline.transforms else ()


def _offloaded(pipeline: PipelineSettings) -> tuple[str, ...]:
    return (pipeline.output_topic,) if pipeline.offloads else ()


def _requires(pipeline: PipelineSettings) -> bool:
    return pipeline.signing is not None and pipeline.signing.required


def _keyed(pipelines: Iterable[PipelineSettings]) -> list[PipelineSettings]:
    """Those with keys for signatures, writers first: a program signs as they do, and accepts every key."""
    return sorted((each for each in pipelines if each.signing is not None), key=lambda pipeline: not pipeline.offloads)


def _keys(pipeline: PipelineSettings) -> Sequence[str]:
    assert pipeline.signing is not None
    return pipeline.signing.key, *pipeline.signing.previous


def _check_shared(pipelines: Iterable[PipelineSettings], topic: str) -> None:
    """Refuses the pipelines of a topic if one does not share a key with the others.

    During a key rotation they have different keys, but share one.

    Raises:
        ConfigurationError: there is one.
    """
    left = keyed = _keyed(pipelines)
    keys: set[str] = set()
    while left:
        near = next((each for each in left if not keys or not keys.isdisjoint(_keys(each))), None)
        if near is None:
            names = ", ".join(sorted(each.name for each in keyed))
            raise ConfigurationError(
                "-c",
                f"has no {KEY_NAME} that is valid for topic {topic}: pipelines {names} do not share a key; leave the "
                "topic out, or pass the keys with --store",
            )
        keys |= {*_keys(near)}
        left = [each for each in left if each is not near]
