"""The topic of `control.topic`: created if it is missing, refused if it would delete requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka.errors import KafkaError

from app.cluster.topic_creation import create_topic, until_known
from app.config.settings import PipelineSettings, Settings
from app.kafka.admin import AdminClient
from app.kafka.clients import ClusterError, admin, describe
from app.kafka.topics import Operation, Topic, identities, topics
from transforms.errors import ConfigurationError

CONTROL_KEY = "control.topic"
CONTROL_CONFIGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""The properties with which it is created."""


async def check_control_topic(settings: Settings, *, create: bool = True) -> None:
    """Creates the topic if it is missing and `create` is true; does nothing if `control.topic` is not set.

    Raises:
        ConfigurationError: it has several partitions, or would delete records; or it cannot be created or read, or not
            be written to by a worker that accepts requests.
        ClusterError: the cluster did not answer.
    """
    name = settings.control_topic
    if name is None:
        return
    async with admin(settings.client) as connection:
        found = (await topics(connection, [name])).get(name)
        if found is None:
            if not create:
                return
            await create_topic(connection, CONTROL_KEY, name, 1, control_replicas(settings.pipelines), CONTROL_CONFIGS)
            found = (await until_known(connection, [name]))[name]
        _check(found)
        await _check_permissions(connection, name, writing=settings.web_control)


async def _check_permissions(connection: AdminClient, name: str, *, writing: bool) -> None:
    """Does nothing if the cluster does not report the user's permissions."""
    try:
        identity = (await identities(connection.send, [name], operations=True)).get(name)
    except KafkaError as exc:
        raise ClusterError(f"topic {name} cannot be described: {describe(exc)}", retriable=exc.retriable) from exc
    if identity is None or identity.operations is None:
        return
    needed = {Operation.READ: "each worker reads it", Operation.WRITE: "a worker with web.control.enable writes to it"}
    for operation, why in needed.items():
        if operation not in identity.operations and (writing or operation is not Operation.WRITE):
            permission = operation.name.capitalize()
            raise ConfigurationError(
                CONTROL_KEY, f"this user lacks {permission} on topic {name}, and {why}; grant {permission}"
            )


def control_replicas(pipelines: Sequence[PipelineSettings]) -> int:
    """The replication factor with which the topic is created."""
    return max(each.replication_factor for each in pipelines)


def _check(topic: Topic) -> None:
    if topic.partitions != 1:
        raise ConfigurationError(
            CONTROL_KEY,
            f"topic {topic.name} has {topic.partitions} partitions, allowed is 1: requests must keep their order",
        )
    policies = {each.strip() for each in topic.cleanup_policy.split(",")}
    if policies != {"compact"}:
        raise ConfigurationError(
            CONTROL_KEY,
            f"topic {topic.name} has cleanup.policy={topic.cleanup_policy}, allowed is compact: otherwise a pause "
            "would be lost after retention.ms; use another topic, or set cleanup.policy=compact on this one",
        )
