"""Warnings that a topic is compacted, where compaction keeps what should be removed.

Source: KIP-1159, "TTL and usage of Compacted Topic": ids should be derived from content; and KIP-82's wrapper, "To
handle compaction issue": compaction does not recognize a tombstone in a wrapper.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping

from transforms.logger_name import logger_name

_logger = logging.getLogger(logger_name(__name__))
_LOOKUP_S = 30.0


class CompactionWarning:
    """Warns once for each topic that is compacted, if the cluster can be queried. Several threads may use it.

    Args:
        config: of a client, with `bootstrap.servers`, `security.protocol`, `sasl.*` and `ssl.*`.
        consequence: what that means, for the log.
    """

    def __init__(self, config: Mapping[str, object], consequence: str) -> None:
        self._asked: dict[str, threading.Thread] = {}
        self._config = config
        self._consequence = consequence

    def ask(self, topic: str) -> None:
        """Has a thread look up once whether the topic is compacted; no record waits for it."""
        if topic in self._asked or not self._config.get("bootstrap.servers"):
            return
        thread = threading.Thread(target=self._warn, args=(topic,), name=f"cleanup-policy-{topic}", daemon=True)
        if self._asked.setdefault(topic, thread) is thread:
            thread.start()

    def _warn(self, topic: str) -> None:
        try:
            # Here, as importing the serializers must import no client.
            from app.kafka.topics import topic_of

            policy = asyncio.run(asyncio.wait_for(topic_of(self._config, topic), _LOOKUP_S)).cleanup_policy
        except Exception as exc:  # noqa: BLE001  # a warning that cannot be made is not an error
            _logger.debug("cleanup.policy of topic %s is not known: %s: %s", topic, type(exc).__name__, exc)
            return
        if "compact" in policy:
            _logger.warning("topic %s has cleanup.policy=%s, and %s", topic, policy, self._consequence)
