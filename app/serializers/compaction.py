"""Whether the topics of a producer are compacted: asked beside the way of a record, and told once a topic.

Source: seed 000, "TTL and usage of Compacted Topic": ids should be made from the content there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping

__all__ = ["CompactionWarning"]

_logger = logging.getLogger(__name__)
_LOOKUP_S = 30.0


class CompactionWarning:
    """Warns where payloads with random ids go to a compacted topic.

    The cluster is asked with `bootstrap.servers`, `security.protocol`, `sasl.*` and `ssl.*` of the client's own
    configuration, on a thread, so no record waits for it. Where they are not in the configuration, or the cluster does
    not say, there is no warning.

    Args:
        config: the configuration that the serializer was given.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def look(self, topic: str) -> None:
        """Looks at the topic, the first time that it is named. Returns at once."""
        if topic in self._seen:
            return
        with self._lock:
            if topic in self._seen:
                return
            self._seen.add(topic)
        if self._config.get("bootstrap.servers"):
            threading.Thread(target=self._look, args=(topic,), name=f"cleanup-policy-{topic}", daemon=True).start()

    def _look(self, topic: str) -> None:
        try:
            policy = asyncio.run(asyncio.wait_for(_cleanup_policy(self._config, topic), _LOOKUP_S))
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
    from app.config.client import embedded_client_settings
    from app.kafka.clients import admin
    from app.kafka.topics import topics

    async with admin(embedded_client_settings(config)) as connection:
        found = await topics(connection, [topic])
    return found[topic].cleanup_policy
