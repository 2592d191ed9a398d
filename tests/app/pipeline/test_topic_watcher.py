"""The topic watcher with a cluster that is scripted: limits that were changed before it has looked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.admin import DescribeConfigsRequest

from app.cluster.preflight import Plan
from app.kafka.topics import CLEANUP_POLICY, MAX_MESSAGE_BYTES, Topic
from app.kafka.troubles import SHORT, Troubles
from app.pipeline import topic_watcher
from app.pipeline.termination import Termination
from app.pipeline.topic_watcher import TopicChangedError, TopicWatcher

SOURCE, SINK, DEAD = Topic("raw", 1, 500, "delete"), Topic("orders", 1, 9_000, "delete"), Topic("dead", 1, 7, "delete")
PLAN = Plan("p", (SOURCE,), SINK, DEAD)


class Cluster:
    """The topics of the plan, with limits of their own, and three replicas each."""

    def __init__(self, **limits: int) -> None:
        self.in_sync: dict[str, list[int]] = {}
        self.min_in_sync = "2"
        self.limits = {topic.name: topic.max_message_bytes for topic in (SOURCE, SINK, DEAD)} | limits

    async def send(self, request: object) -> Any:
        """Answers what the watcher asks."""
        await asyncio.sleep(0)
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(to_object=lambda: {"resources": [self._described(name) for name in self.limits]})
        topics = [{"error_code": 0, "name": name, "partitions": [self._partition(name)]} for name in self.limits]
        return SimpleNamespace(to_object=lambda: {"topics": topics})

    def _partition(self, name: str) -> dict[str, object]:
        return {"partition": 0, "replicas": [1, 2, 3], "isr": self.in_sync.get(name, [1, 2, 3])}

    def _described(self, name: str) -> dict[str, object]:
        configs = {MAX_MESSAGE_BYTES: str(self.limits[name]), CLEANUP_POLICY: "delete"}
        configs["min.insync.replicas"] = self.min_in_sync
        entries = [{"config_names": key, "config_value": value} for key, value in configs.items()]
        return {"resource_name": name, "error_code": 0, "config_entries": entries}


class Watched:
    """A watcher, what it notes, and the termination of its flow."""

    def __init__(self, cluster: Cluster) -> None:
        self.termination = Termination("p", lambda: None)
        self.troubles = Troubles("p")
        self.watcher = TopicWatcher(PLAN, self.termination, cluster.send, self.troubles, chunked=False)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watcher, "_LOOK_S", 0)


@pytest.mark.parametrize("limit", [5, 10_000])
@pytest.mark.parametrize("topic", ["orders", "dead"])
async def test_a_limit_that_moves_before_the_first_look_ends_the_flow(topic: str, limit: int) -> None:
    """The plan is older than the first look by as long as the group takes to assign partitions."""
    watched = Watched(Cluster(**{topic: limit}))
    async with asyncio.timeout(5):
        await watched.watcher.watch()
    error = watched.termination.error
    assert isinstance(error, TopicChangedError)
    assert error.same_log
    assert f"max.message.bytes of topic {topic} is {limit:,}, and was " in str(error)


@pytest.mark.parametrize("topic", ["orders", "dead"])
async def test_a_topic_that_accepts_no_records_is_reported_until_it_does(topic: str) -> None:
    """With the topic, the replicas and the property, and since when: the next flow keeps that."""
    watched = Watched(cluster := Cluster())
    cluster.in_sync["raw"] = [1]  # nothing is written there
    watching = asyncio.create_task(watched.watcher.watch())
    try:
        async with asyncio.timeout(5):
            cluster.in_sync[topic] = [3]
            await until(lambda: watched.troubles.text(SHORT) is not None)
            text = watched.troubles.text(SHORT)
            assert str(text).startswith(
                f"topic {topic}, partition 0 accepts no records: 1 replica in sync, and min.insync.replicas is 2; "
                "start the missing brokers, or lower min.insync.replicas of the topic (since 20"
            )
            watched.troubles.end_flow()
            assert watched.troubles.text(SHORT) == text
            cluster.in_sync[topic] = [2, 3]
            await until(lambda: watched.troubles.text(SHORT) is None)
    finally:
        watching.cancel()
    assert watched.termination.error is None


async def until(condition: Callable[[], bool]) -> None:
    """Lets others run until the condition is true."""
    while not condition():  # noqa: ASYNC110  # nothing waits for a look of the watcher
        await asyncio.sleep(0)
