"""The topic of `control.topic`: made where it is missing, refused where it would forget what it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.cluster.topic_creation import create_topic, until_known
from app.config.settings import PipelineSettings, Settings
from app.kafka.clients import admin
from app.kafka.topics import Topic, topics
from transforms.errors import ConfigurationError

__all__ = ["CONTROL_CONFIGS", "CONTROL_KEY", "check_control_topic", "control_replicas"]

CONTROL_KEY = "control.topic"
CONTROL_CONFIGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""The properties with which it is made."""


async def check_control_topic(settings: Settings, *, create: bool = True) -> None:
    """Makes the topic if it is missing and `create` is true; nothing is done without the key.

    Raises:
        ConfigurationError: it has several partitions, or would delete records; or it cannot be made.
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


def control_replicas(pipelines: Sequence[PipelineSettings]) -> int:
    """The replication factor with which the topic is made."""
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
            "would be forgotten after retention.ms; use another topic, or set cleanup.policy=compact on this one",
        )
