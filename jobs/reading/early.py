"""Whether topics exist, asked before Spark starts, so that a wrong name is told within a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.driver.failures import NO_TOPIC
from transforms.errors import ConfigurationError, WideloadError

if TYPE_CHECKING:
    from jobs.reading.client import Client

__all__ = ["require_topics"]

_SECONDS = 10.0
_UNKNOWN = (3, 17)  # Kafka's numbers for no such topic, and for no such name; a topic that may not be seen has another


def require_topics(servers: str, topics: Sequence[str], options: Mapping[str, str]) -> None:
    """Makes sure that the topics exist, as far as that is quickly found out; no topic is created by asking.

    Spark asks with Kafka's Java client, and decides. Where aiokafka is missing, does not know one of the options, or
    gets no clear answer, this says nothing.

    Args:
        servers: the bootstrap servers.
        topics: the names; none for a pattern.
        options: of Spark's Kafka source; may hold secrets.

    Raises:
        ConfigurationError: a topic does not exist.
    """
    try:
        from aiokafka.errors import KafkaError

        from jobs.reading.client import KAFKA_KEYS, Client
    except ImportError:
        return
    from stores.keys import read

    known = {key.name.lower(): key for key in KAFKA_KEYS}
    given = {name.lower(): text for name, text in options.items() if name.lower().startswith("kafka.")}
    given["kafka.bootstrap.servers"] = servers
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # or Python prints what it logs
    missing: list[str] = []
    with suppress(WideloadError, KafkaError, OSError, TimeoutError):
        # An option that is not known may be one that the brokers cannot be reached without.
        if not any(name.startswith(("kafka.ssl", "kafka.sasl")) and name not in known for name in given):
            values = {known[name].name: known[name].coerce(text) for name, text in given.items() if name in known}
            client = Client(read(KAFKA_KEYS, values))
            missing = asyncio.run(asyncio.wait_for(_missing(client, list(dict.fromkeys(topics))), _SECONDS))
    if missing:
        raise ConfigurationError("--topic", NO_TOPIC.format(source=", ".join(missing), servers=servers))


async def _missing(client: Client, topics: list[str]) -> list[str]:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(**client.connection())
    try:
        await admin.start()
        # Not `describe_topics`, with which a broker may create them.
        there = set(await admin.list_topics())
        unseen = [name for name in topics if name not in there]
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name, {}) for name in unseen])
        unknown = {each[3] for answer in answers for each in answer.resources if each[0] in _UNKNOWN}
        return [name for name in unseen if name in unknown]
    finally:
        await admin.close()
