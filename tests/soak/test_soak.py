"""A short run of a soak, whose brokers are left alone, and in `make chaos` a longer one, which breaks them too."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.local.broker import EmbeddedBroker
from tests.integration.cluster import Cluster
from tests.integration.topics import end_offsets
from tests.integration.worker_process import until
from tests.s3_server import S3UnavailableError
from tests.soak.faults import Brokers
from tests.soak.run import soak

VOLUMES: dict[str, dict[str, Any]] = {
    "short": {"minutes": 0.1, "rate": 20, "pause_s": 1.5, "scale": 0.05, "victims": 1},
    "long": {"minutes": 3, "rate": 60, "pause_s": 10, "scale": 0.2, "victims": 2},
}


class OneBroker:
    """The broker of the tests. It has no nodes, so that nobody breaks it."""

    nodes: tuple[EmbeddedBroker, ...] = ()

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.made: list[str] = []

    def make_topic(self, name: str, partitions: int, **configs: str) -> None:
        """See `Brokers`."""

        async def create() -> None:
            async with admin(ClientSettings(self.bootstrap_servers)) as connection:
                answer = await connection.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
                assert [code for _, code, *_ in answer.topic_errors] == [0], answer

        asyncio.run(create())
        self.made.append(name)
        until(lambda: len(end_offsets(self.bootstrap_servers, name)) == partitions, "the topic is there")

    def in_sync(self, topic: str) -> bool:
        """See `Brokers`."""
        return True

    def close(self) -> None:
        """Deletes the topics."""

        async def delete() -> None:
            async with admin(ClientSettings(self.bootstrap_servers)) as connection:
                await connection.delete_topics(self.made)

        asyncio.run(delete())


@pytest.fixture
def brokers(request: pytest.FixtureRequest, chaos: str, tmp_path: Path) -> Iterator[Brokers]:
    """The broker of the tests; for long chaos a cluster."""
    if chaos == "long":
        with Cluster(tmp_path, {}, heap="640m") as cluster:
            yield cluster
    else:
        with contextlib.closing(OneBroker(request.getfixturevalue("broker"))) as one:
            yield one


@pytest.mark.chaos
@pytest.mark.s3
@pytest.mark.integration
def test_soak_loses_nothing(brokers: Brokers, seed: int, chaos: str, tmp_path: Path) -> None:
    """While store, workers and brokers are broken by chance, all that is sent on three routes arrives, in order.

    `make soak` runs the same for as long as it is told.
    """
    (folder := tmp_path / "soak").mkdir()
    prefix = f"soak-{secrets.token_hex(3)}-"
    try:
        result = soak(**VOLUMES[chaos], seed=seed, folder=folder, brokers=brokers, prefix=prefix)
    except S3UnavailableError as exc:
        pytest.skip(str(exc))
    assert result.failures == ()
    assert all(route["received"] == route["sent"] > 0 for route in result.routes.values())
    assert result.poison == result.dead_letters > 0
    assert sum(result.faults.values()) > 0
    received = sum(route["received"] for route in result.routes.values())
    print(f"{received:,} messages; {dict(result.faults)}; settled after {result.seconds_to_settle:g} s")
