"""The limit of a topic, and its other settings, changed while it is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

_MARK = "segment.ms"  # no test writes a segment for a week
_WEEK_MS = 7 * 24 * 3_600_000


async def set_limit(broker: str, topic: str, size: int) -> None:
    """Sets `max.message.bytes`, and waits until the broker goes by it; the topic keeps its records for ever."""
    await set_configs(broker, topic, {"max.message.bytes": str(size)})


async def set_configs(broker: str, topic: str, configs: Mapping[str, str]) -> None:
    """Sets a configuration, and waits until the broker goes by it; the topic keeps its records for ever."""
    await alter_configs(broker, topic, {"retention.ms": "-1", **configs})


def alter(broker: str, topic: str, configs: Mapping[str, str]) -> None:
    """`alter_configs`, for who is not in an event loop."""
    asyncio.run(alter_configs(broker, topic, configs))


async def alter_configs(broker: str, topic: str, configs: Mapping[str, str]) -> None:
    """Gives a topic these configs, takes all others from it, and waits until the broker goes by them.

    A broker answers once the change is in the log of the cluster, and applies it a moment later. It shows a change
    before it applies it, and applies one after the other. So a second one that is shown means that the first is in use.
    """
    least = int(configs.get(_MARK, _WEEK_MS))
    client = AIOKafkaAdminClient(bootstrap_servers=broker)
    await client.start()
    try:
        for mark in (str(least + 1), str(least)):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {**configs, _MARK: mark})
            await client.alter_configs([resource])
            async with asyncio.timeout(20):
                while await _mark(client, topic) != mark:  # noqa: ASYNC110  # nobody says when
                    await asyncio.sleep(0.01)
    finally:
        await client.close()


async def _mark(client: AIOKafkaAdminClient, topic: str) -> str:
    """What the broker shows."""
    (response,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {_MARK: ""})])
    (entry,) = response.to_object()["resources"][0]["config_entries"]
    return str(entry["config_value"])
