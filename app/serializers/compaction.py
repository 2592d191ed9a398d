"""The warning that a topic is compacted and its payloads have random ids.

Source: seed 000, "TTL and usage of Compacted Topic": ids should be made from the content there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

__all__ = ["warn_if_compacted"]

_logger = logging.getLogger(__name__)


def warn_if_compacted(config: Mapping[str, object], topic: str) -> None:
    """Asks the cluster for the topic's `cleanup.policy`, and waits for the answer: call it in a thread of its own.

    Args:
        config: of a client, with `bootstrap.servers`, `security.protocol`, `sasl.*` and `ssl.*`.
        topic: the topic.
    """
    try:
        # Here, as importing the serializers must import no client.
        from app.chunks.topic_limits import described

        policy = described(config, topic).cleanup_policy
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
