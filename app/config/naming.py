"""The names that the worker and our clients use in Kafka, and the check that all of them are within limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from app.config.settings import ClientSettings, PipelineSettings
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError
from transforms.identifiers import CLIENT_KEYS, IDENTIFIERS, LIMIT_KEY, Kind, check, transactional_id

_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_LAST_PARTITION = 2**31 - 1  # Kafka counts partitions in 32 bits


def client_id(client: ClientSettings, pipeline: str) -> str:
    """The client id of the clients of a pipeline."""
    return f"{client.client_id}-{pipeline}"


def check_name(
    kind: Kind, text: str, key: str, *, enabled: bool = True, derived: str = "", switch: str = f"{LIMIT_KEY} = false"
) -> None:
    """Refuses a name that is over its limit.

    Args:
        kind: the kind of the name.
        text: the name.
        key: the property or option that must be changed.
        enabled: `resource.identifier.limit.enable`.
        derived: the parts of the name, if it is not the value of the property.
        switch: the setting that disables the limits, as the user writes it.

    Raises:
        ConfigurationError: it is; the message has kind, length, limit and property, but not the name.
    """
    try:
        check(kind, text, enabled=enabled)
    except ResourceIdentifierTooLargeError as exc:
        raise ConfigurationError(key, _reason(exc, kind, derived, switch if enabled else "")) from exc


def _reason(error: ResourceIdentifierTooLargeError, kind: Kind, derived: str, switch: str) -> str:
    row = IDENTIFIERS[kind]
    made = f", which is built from {derived}," if derived else ""
    way_out = "" if row.enforced or not switch else f", or set {switch} if the brokers accept it"
    return (
        f"the {row.name}{made} has {error.length:,} {error.unit}, allowed are {error.limit:,}; shorten "
        f"{derived or 'it'}{way_out}"
    )


def check_topics(topics: Iterable[str], key: str = "topics") -> None:
    """As `check_name`, for topics.

    Raises:
        ConfigurationError: one is over the limit.
    """
    for topic in topics:
        check_name("topic", topic, key)


def check_topic(key: str, topic: str) -> None:
    """Checks the name of a topic in a configuration.

    Raises:
        ConfigurationError: it is over the limit, or the brokers would refuse it.
    """
    check_name("topic", topic, key)
    if not _TOPIC.fullmatch(topic):
        raise ConfigurationError(key, f"found {topic!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]")


def name_errors(client: ClientSettings, pipeline: PipelineSettings) -> Iterator[ConfigurationError]:
    """The names that the pipeline uses in Kafka and that are over their limit; each error names the pipeline."""
    reported = set()
    for kind, text, key, derived in _names(client, pipeline):
        try:
            check_name(kind, text, key, enabled=client.limit_names, derived=derived)
        except ConfigurationError as exc:
            if key not in reported:  # each topic has a transactional id
                yield exc.of(pipeline.name)
            reported.add(key)


def _names(client: ClientSettings, pipeline: PipelineSettings) -> Iterator[tuple[Kind, str, str, str]]:
    for topic in pipeline.topics:
        yield "topic", topic, "topics", ""
    yield "topic", pipeline.output_topic, "output.topic", ""
    if pipeline.dead_letter_topic is not None:
        yield "topic", pipeline.dead_letter_topic, "errors.deadletterqueue.topic.name", ""
    yield "group-id", pipeline.group_id, "group.id", ""
    made_of = "client.id and the pipeline's name"
    yield "client-id", client_id(client, pipeline.name), "client.id", made_of
    if pipeline.guarantee.exactly_once:
        for topic in pipeline.topics:
            name = transactional_id(pipeline.name, topic, _LAST_PARTITION)
            yield "transactional-id", name, "topics", "the pipeline's name, the topic and the partition"
    for name in ("group.instance.id", "client.rack"):
        value = pipeline.consumer[f"consumer.{name}"]
        if value is not None:
            yield CLIENT_KEYS[name], str(value), f"consumer.{name}", ""


def check_config(config: Mapping[str, object], *, enabled: bool = True) -> None:
    """Checks the names in a client's configuration with Kafka's properties.

    Raises:
        ConfigurationError: one is over its limit.
    """
    for key, kind in CLIENT_KEYS.items():
        value = config.get(key)
        if isinstance(value, str):
            check_name(kind, value, key, enabled=enabled)
