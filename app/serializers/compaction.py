"""The warning that a topic is compacted and its payloads have random ids.

Source: seed 000, "TTL and usage of Compacted Topic": ids should be made from the content there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

__all__ = ["warn_if_compacted"]

_logger = logging.getLogger(__name__)
_LOOKUP_S = 30.0


def warn_if_compacted(config: Mapping[str, object], topic: str) -> None:
    """Asks the cluster for the topic's `cleanup.policy`, and waits for the answer: call it in a thread of its own.

    Args:
        config: of a client, with `bootstrap.servers`, `security.protocol`, `sasl.*` and `ssl.*`.
        topic: the topic.
    """
    try:
        policy = asyncio.run(asyncio.wait_for(_cleanup_policy(config, topic), _LOOKUP_S))
    except Exception as exc:  # noqa: BLE001  # a warning that cannot be given is no reason for an error
        _logger.debug("cleanup.policy of topic %s is not known: %s: %s", topic, type(exc).__name__, exc)
        return
    if "compact" in policy:
        _logger.warning(
            "topic %s has cleanup.policy=%s, and large.message.id.generator is uuid: each record leaves another "
            "payload, and those of compacted records stay; set large.message.id.generator to sha256",
            topic,
            policy,
        )


async def _cleanup_policy(config: Mapping[str, object], topic: str) -> str:
    # Here, as importing the serializers must import no client.
    from app.config.client import embedded_client_settings
    from app.kafka.clients import admin
    from app.kafka.topics import topics

    async with admin(embedded_client_settings(config)) as connection:
        return (await topics(connection, [topic]))[topic].cleanup_policy
