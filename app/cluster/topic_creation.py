"""The creation of topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from app.kafka.admin import AdminClient
from app.kafka.clients import ClusterError, describe, translated
from app.kafka.topics import Topic, topics
from transforms.errors import ConfigurationError

_CREATION_S = 15.0


async def create_topic(
    connection: AdminClient,
    key: str,
    name: str,
    partitions: int,
    replicas: int,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Creates a topic. If it already exists, it is left as it is.

    Args:
        connection: to the cluster.
        key: the property, or the option, that names the topic.
        name: of the topic.
        partitions: how many; -1 for the brokers' default.
        replicas: of each; -1 for the brokers' default.
        configs: properties that differ from the brokers' defaults.

    Returns:
        Whether it was created.

    Raises:
        ConfigurationError: the brokers refuse it.
        ClusterError: they did not respond.
    """
    topic = NewTopic(name, 1, 1, topic_configs=configs)
    topic.num_partitions, topic.replication_factor = partitions, replicas  # NewTopic refuses -1 (KIP-464)
    try:
        response = await connection.create_topics([topic])
    except (KafkaError, TimeoutError) as exc:  # a time-out, if the controller cannot be reached
        raise translated(exc, f"topic {name} cannot be created") from exc
    for _, code, *message in response.topic_errors:
        error = for_code(code)
        if error is TopicAlreadyExistsError:
            return False
        if error.errno != 0:
            reason = message[0] if message and message[0] else describe(error())
            raise ConfigurationError(key, f"topic {name} cannot be created: {reason}") from error()
    return True


async def until_known(connection: AdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """The topics that were just created, as soon as the brokers know them.

    Raises:
        ClusterError: they do not, after a while.
    """
    deadline = time.monotonic() + _CREATION_S
    while True:
        found = await topics(connection, names)
        if len(found) == len(names):
            return found
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in found)
            raise ClusterError(
                f"topic {missing} was created {_CREATION_S:.0f} s ago and is still missing", retriable=True
            )
        await asyncio.sleep(0.1)
