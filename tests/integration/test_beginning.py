"""Where the group of a pipeline begins: it is told at the start; if records may be written again, the user is asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError, RequestTimedOutError

from app.cluster.preflight import check
from app.config.parsing import parse
from tests.integration.topics import Sent, send
from tests.integration.way import MakeTopic
from transforms.errors import ConfigurationError

RESET = "consumer.auto.offset.reset"


class Cluster:
    """A source with three records in two partitions, another one with one, and an output topic."""

    def __init__(self, broker: str, make_topic: MakeTopic) -> None:
        self._broker = broker
        self.raw, self.other, self.orders = (make_topic(2, **{"retention.ms": -1}) for _ in range(3))
        self.write(self.raw, 3)
        self.write(self.other, 1)

    def write(self, topic: str, count: int) -> None:
        """Records in both partitions."""
        records: list[Sent] = [(number % 2, b"k", b"v", (), 1_700_000_000_000) for number in range(count)]
        send(self._broker, topic, records)

    def commit(self, group: str, offset: int) -> None:
        """Commits as a pipeline of this group has."""

        async def run() -> None:
            async with AIOKafkaConsumer(
                bootstrap_servers=self._broker, group_id=f"{self.raw}-{group}", enable_auto_commit=False
            ) as consumer:
                place = TopicPartition(self.raw, 0)
                consumer.assign([place])
                await consumer.commit({place: offset})

        asyncio.run(run())

    def check(self, **pipelines: Mapping[str, object]) -> list[str]:
        """What the start says of each pipeline."""
        table = {"topics": [self.raw], "output.topic": self.orders, "transforms": ["chunk"]}
        named = {name: {**table, "group.id": f"{self.raw}-{name}", **more} for name, more in pipelines.items()}
        settings = parse({"bootstrap.servers": self._broker, "pipeline": named})
        return [plan.beginning.replace(f"{self.raw}-", "") for plan in asyncio.run(check(settings))]

    def refusal(self, **pipelines: Mapping[str, object]) -> str:
        """Why there is no start."""
        with pytest.raises(ConfigurationError) as caught:
            self.check(**pipelines)
        return str(caught.value).replace(f"{self.raw}-", "")


@pytest.fixture
def cluster(broker: str, make_topic: MakeTopic) -> Cluster:
    """Topics of one test."""
    return Cluster(broker, make_topic)


def test_beginning_of_a_group(cluster: Cluster) -> None:
    """A first start into an empty topic just works; what is read is told."""
    both: dict[str, Any] = {"new": {}, "late": {RESET: "latest"}}
    begins = "group {} has committed nothing: starts {} of 3 records in 2 partitions"
    assert cluster.check(**both) == [begins.format("new", "at the first"), begins.format("late", "after the last")]
    cluster.commit("new", 1)
    cluster.write(cluster.orders, 1)
    known = "group new resumes at its committed offsets: 1 record in 1 partition is left"
    assert cluster.check(new={}) == [
        f"{known}; 1 partition without a committed offset: starts at the first of 1 record in 1 partition"
    ]
    assert cluster.check(new={"topics": [cluster.orders], "output.topic": cluster.raw, RESET: "latest"}) == [
        "group new has committed nothing: starts after the last of 1 record in 2 partitions"
    ]


def test_beginning_that_is_not_known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the brokers do not answer in time, that is reported with the reason, and the worker starts."""
    cluster.write(cluster.orders, 1)

    async def moving(*_: object) -> str:
        raise GroupCoordinatorNotAvailableError

    for name in ("_PATIENCE_S", "_LEAST_PATIENCE_S"):
        monkeypatch.setattr(f"app.cluster.beginning.{name}", 0.1)
    monkeypatch.setattr("app.kafka.admin.AdminClient.find_coordinator", moving)
    (beginning,) = cluster.check(new={})
    assert beginning.startswith("where group new starts is not known: ")
    assert "GroupCoordinatorNotAvailableError" in beginning


def test_pipeline_that_was_renamed(cluster: Cluster) -> None:
    """It would write all again: it starts only with the former group, or with a word; which group it was is told."""
    cluster.write(cluster.orders, 3)
    told = cluster.refusal(renamed={})
    assert re.match(rf"\[pipeline\.renamed\] {RESET}: is not set; group renamed has committed nothing: starts", told)
    assert (
        "its former group (by default wideload- and the former name); if not, or if its topics were recreated" in told
    )
    cluster.commit("orders", 2)
    assert "(groups with committed offsets of these topics: orders); if not" in cluster.refusal(renamed={})
    for reset in ("earliest", "latest", "none"):
        assert "group renamed has committed nothing" in cluster.check(renamed={RESET: reset})[0]
    assert cluster.check(renamed={"group.id": f"{cluster.raw}-orders"})[0].startswith("group orders resumes")


def test_pipelines_that_write_one_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the topic is what others write, if nobody has read the source of a new one; but not if one has."""
    cluster.write(cluster.orders, 3)
    cluster.commit("first", 2)
    added: dict[str, Any] = {"first": {}, "second": {"topics": [cluster.other]}}
    assert cluster.check(**added)[1].startswith(
        "group second has committed nothing: starts at the first of 1 record in"
    )
    assert "[pipeline.renamed]" in cluster.refusal(renamed={}, second={"topics": [cluster.other], RESET: "latest"})
    expired = cluster.refusal(third={}, second={"topics": [cluster.other]})
    assert "[pipeline.third]" in expired
    assert "[pipeline.second]" in expired, "no pipeline that writes the topic has committed offsets"

    async def silent(*_: object) -> list[str]:
        raise RequestTimedOutError

    monkeypatch.setattr("app.cluster.beginning._groups_of", silent)  # nobody knows whether another has read it
    assert "[pipeline.second]" in cluster.refusal(**added)
