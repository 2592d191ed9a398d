"""The limits for names that a job gives to Kafka through Spark; checked before Spark starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from app.config.naming import check_name
from transforms.identifiers import CLIENT_KEYS, LIMIT_KEY, Kind

LIMIT_OPTION = f"kafka.{LIMIT_KEY}"
"""The option that turns the limits off with `false`; Spark does not get it."""

_PREFIX = "groupIdPrefix"
# Spark makes a group id of the prefix: PREFIX-UUID-HASH-driver-NUMBER, with numbers of 32 bits. Without a client id,
# Kafka's client makes one of the group id: consumer-GROUP-NUMBER.
_GROUP = "{}-" + "0" * 36 + "-" + "0" * 11 + "-driver-" + "0" * 10
_CLIENT = "consumer-{}-" + "0" * 10


def check_names(topics: Iterable[str], options: Mapping[str, str], topic_option: str = "--topic") -> None:
    """Checks every name that a job gives, or that Spark makes for it.

    Args:
        topics: the topics that the job names.
        options: of Spark's Kafka source or Kafka sink, as Spark takes them.
        topic_option: the option that names the topics.

    Raises:
        ConfigurationError: a name is over its limit.
    """
    # Spark ignores the case of its options, and passes their names to Kafka's client in lower case.
    lowered = {name.lower(): value for name, value in options.items()}
    enabled = lowered.get(LIMIT_OPTION, "true").lower() != "false"
    for kind, text, key, derived in _names(topics, lowered, topic_option):
        check_name(kind, text, key, enabled=enabled, derived=derived, switch=f"{LIMIT_OPTION}=false")


def _names(
    topics: Iterable[str], options: Mapping[str, str], topic_option: str
) -> Iterator[tuple[Kind, str, str, str]]:
    for topic in topics:
        yield "topic", topic, topic_option, ""
    for name, kind in CLIENT_KEYS.items():
        if f"kafka.{name}" in options:
            yield kind, options[f"kafka.{name}"], f"kafka.{name}", ""
    prefix = options.get(_PREFIX.lower())
    group = options.get("kafka.group.id")
    key = "kafka.group.id" if group else _PREFIX
    if group is None and prefix is not None:
        group = _GROUP.format(prefix)
        yield "group-id", group, _PREFIX, _PREFIX
    if group is not None and "kafka.client.id" not in options:
        yield "client-id", _CLIENT.format(group), key, key
