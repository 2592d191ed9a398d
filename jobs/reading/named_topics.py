"""Whether the topics that the user named are there, asked before Spark starts, which takes ten seconds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from app.config.java_client import from_java
from app.config.parsing import checked_client_settings
from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError
from app.kafka.spans import listed
from jobs.reading.topics import Kafka
from transforms.errors import ConfigurationError
from transforms.text import did_you_mean


def require_topics(cluster: Kafka | ClientSettings, topics: Mapping[str, Iterable[str]]) -> None:
    """Makes sure that topics are there.

    Nothing is said if the cluster does not answer aiokafka: the job's own client may have more luck, and says why if it
    has not.

    Args:
        cluster: how to reach it.
        topics: by option, the topics that the user named with it.

    Raises:
        ConfigurationError: a topic is not there; the message names the option, and a topic with nearly this name.
    """
    logger = logging.getLogger("aiokafka")
    former = logger.level
    logger.setLevel(logging.CRITICAL)  # its own ERROR lines would come to the terminal
    try:
        client = _client_of(cluster) if isinstance(cluster, Kafka) else cluster
        there = sorted(listed(client))
    except (ConfigurationError, ClusterError):
        return
    finally:
        logger.setLevel(former)
    for option, names in topics.items():
        for name in names:
            if name not in there:
                raise ConfigurationError(
                    option,
                    f"{name} is not on the broker at {client.bootstrap_servers}; create it, or check its name"
                    f"{did_you_mean(name, there)}",
                )


def _client_of(kafka: Kafka) -> ClientSettings:
    options = {name.removeprefix("kafka."): text for name, text in kafka.options.items() if name.startswith("kafka.")}
    return checked_client_settings(from_java({**options, "bootstrap.servers": kafka.servers}))
