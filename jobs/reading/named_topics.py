"""Whether the topics that the user named are there, asked before Spark starts, which takes ten seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobs.reading.topics import Kafka
from transforms.errors import ConfigurationError
from transforms.text import did_you_mean

if TYPE_CHECKING:
    from jobs.reading.client import Client

__all__ = ["require_topics"]

_SECONDS = 10


def require_topics(cluster: Kafka | Client, topics: Mapping[str, Iterable[str]]) -> None:
    """Makes sure that topics are there.

    Nothing is said if the cluster does not answer aiokafka, or if there is no aiokafka, as on a cluster of Spark: the
    job's own client may have more luck, and tells why if it has not.

    Args:
        cluster: how to reach it.
        topics: by option, the topics that the user named with it.

    Raises:
        ConfigurationError: a topic is not there; the message names the option, and a topic with nearly this name.
    """
    there = _there(cluster)
    for option, names in topics.items():
        for name in names:
            if there is not None and name not in there:
                raise ConfigurationError(
                    option,
                    f"{name} is not on the broker at {cluster.servers}; create it, or check its name"
                    f"{did_you_mean(name, sorted(there))}",
                )


def _there(cluster: Kafka | Client) -> set[str] | None:
    """The topics that these credentials may see; None if they are not known."""
    try:
        # Sweep, audit and ingest run without aiokafka, too.
        from aiokafka.errors import KafkaError

        from jobs.reading.client import client_of_java
    except ImportError:
        return None
    try:
        servers = {"kafka.bootstrap.servers": cluster.servers}
        client = client_of_java({**cluster.options, **servers}) if isinstance(cluster, Kafka) else cluster
        with _silent():
            return asyncio.run(asyncio.wait_for(_names(client), _SECONDS))
    except (ConfigurationError, KafkaError, OSError, TimeoutError):
        return None


async def _names(client: Client) -> set[str]:
    from aiokafka.admin import AIOKafkaAdminClient

    from app.kafka.gate import create_no_topics

    admin = create_no_topics(AIOKafkaAdminClient(**client.connection()))
    try:
        await admin.start()
        return set(await admin.list_topics())
    finally:
        await admin.close()


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps aiokafka's own ERROR lines from the terminal."""
    logger = logging.getLogger("aiokafka")
    former = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(former)
