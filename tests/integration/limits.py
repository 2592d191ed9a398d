"""The limit of a topic, and its other settings, changed while it is in use."""

from __future__ import annotations

import asyncio

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

__all__ = ["set_configs", "set_limit"]


async def set_limit(broker: str, topic: str, size: int) -> None:
    """Sets `max.message.bytes`, and waits until the broker goes by it; the topic keeps its records for ever."""
    await set_configs(broker, topic, {"max.message.bytes": str(size)})


async def set_configs(broker: str, topic: str, configs: dict[str, str]) -> None:
    """Sets a configuration, and waits until the broker goes by it; the topic keeps its records for ever."""
    configs = {"retention.ms": "-1", **configs}
    client = AIOKafkaAdminClient(bootstrap_servers=broker)
    await client.start()
    try:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        async with asyncio.timeout(20):
            while True:
                (response,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
                entries = response.to_object()["resources"][0]["config_entries"]
                if {entry["config_names"]: entry["config_value"] for entry in entries} == configs:
                    return
                await asyncio.sleep(0.05)
    finally:
        await client.close()
