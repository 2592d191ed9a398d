"""The topic watcher: notices topics that are deleted, created anew, get partitions or another limit, or are compacted.

It also notices topics that accept no records, as too few of their replicas are in sync. Brokers refuse each batch then,
and aiokafka sends it again without a word.

Kafka's clients look at their topics every few minutes, and by name alone. To them a topic that was deleted and created
anew is the same, but its offsets mean other records. Since Kafka 2.8 the id of a topic (KIP-516) tells them apart. With
older brokers only the other changes are noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from app.cluster.preflight import Plan
from app.kafka.broker_health import ago
from app.kafka.clients import ClusterError
from app.kafka.errors import KafkaError
from app.kafka.topics import (
    CLEANUP_POLICY,
    MAX_MESSAGE_BYTES,
    Identity,
    Topic,
    TopicSettings,
    identities,
    shortage,
    topic_settings,
)
from app.pipeline.termination import Termination

__all__ = ["LimitChangedError", "PartitionsChangedError", "PolicyChangedError", "TopicChangedError", "TopicWatcher"]

# Seen twice, for a broker may be a little behind the others.
_LOOK_S = 2.5
_REFUSED = "topic {} accepts no records: brokers answer that fewer replicas are in sync than min.insync.replicas"


class TopicChangedError(ClusterError):
    """A topic is gone, or is not the one of the plan.

    Attributes:
        topic: its name.
    """

    def __init__(self, topic: str, change: str) -> None:
        super().__init__(f"topic {topic} {change}", retriable=True)
        self.topic = topic


class PartitionsChangedError(TopicChangedError):
    """A topic has more partitions than the plan says; what was written may be committed before another try."""


class LimitChangedError(ClusterError):
    """A topic takes more, or less, than when the flow began; what was written may be committed before another try."""

    def __init__(self, topic: str, limit: int, former: int) -> None:
        super().__init__(f"{MAX_MESSAGE_BYTES} of topic {topic} is {limit:,}, and was {former:,}", retriable=True)


class PolicyChangedError(ClusterError):
    """A topic is compacted, and was not, or the reverse; what was written may be committed before another try.

    The next flow is refused, or goes another way: `app.cluster.topic_checks`, `Chain`.
    """

    def __init__(self, topic: str, policy: str, former: str) -> None:
        super().__init__(f"{CLEANUP_POLICY} of topic {topic} is {policy}, and was {former}", retriable=True)


class TopicWatcher:
    """Looks whether the topics of a flow are still those of its plan. Belongs to its event loop.

    `plan` is as the cluster was found, without the limits that refusals taught (`app.pipeline.learned_limits`).
    `send` sends a request to a broker, and returns the answer. `clock` are seconds that do not go back. `chunked` says
    whether the sources hold chunks, which compaction would delete. `refused` gives the topics for which brokers refuse
    writes, as too few replicas are in sync, and since when, by that clock. `before` is the watcher of the flow before
    this one: what was wrong when that ended is wrong since then.

    Attributes:
        short: of a topic that accepts no records the reason, and since when.
    """

    def __init__(
        self,
        plan: Plan,
        termination: Termination,
        send: Callable[[Any], Awaitable[Any]],
        *,
        clock: Callable[[], float],
        chunked: bool,
        refused: Callable[[], Mapping[str, float]] = dict,
        before: TopicWatcher | None = None,
    ) -> None:
        self._sources = {topic.name: topic for topic in plan.sources}
        self._targets = {topic.name: topic for topic in (plan.sink, plan.dead_letters) if topic is not None}
        self._topics = {**self._sources, **self._targets}
        self._configured = self._topics if chunked else self._targets
        self._termination = termination
        self._send = send
        self._clock = clock
        self._refused = refused
        self.short: Mapping[str, tuple[str, float]] = {} if before is None else before.short

    @property
    def trouble(self) -> str | None:
        """Which topics accept no records, why, and since when; None if all do."""
        now_s = self._clock()
        return "; ".join(f"{reason} (since {ago(now_s - since_s)})" for reason, since_s in self._reasons()) or None

    @property
    def lacking(self) -> str | None:
        """As `trouble`, without the times."""
        return "; ".join(reason for reason, _ in self._reasons()) or None

    def _reasons(self) -> Collection[tuple[str, float]]:
        # Brokers before Kafka 3.7 may require more replicas than there are; and the last look may be some time ago.
        refused = {name: (_REFUSED.format(name), since_s) for name, since_s in self._refused().items()}
        return {**refused, **self.short}.values()

    async def watch(self) -> None:
        """Looks again and again; ends the flow with the first change, and returns."""
        seen: str | None = None
        while True:
            # No answer says nothing of the topics; the clients see for themselves that brokers are away.
            with contextlib.suppress(KafkaError, OSError):
                found = await identities(self._send, self._topics)
                change = self._change(found)
                if change is None:
                    settings = await topic_settings(self._send, self._configured)
                    self._note_shortages(found, settings)
                    change = self._settings_change(settings)
                if change is not None and str(change) == seen:
                    self._termination.fail(change)
                    return
                seen = None if change is None else str(change)
            await asyncio.sleep(_LOOK_S)

    def _note_shortages(self, found: Mapping[str, Identity | None], settings: Mapping[str, TopicSettings]) -> None:
        short = {}
        for name in self._targets:
            identity = found.get(name)
            if identity is not None and name in settings:
                told = shortage(name, identity.in_sync, settings[name].min_in_sync)
                if told is not None:
                    short[name] = told, self.short[name][1] if name in self.short else self._clock()
        self.short = short

    def _change(self, found: Mapping[str, Identity | None]) -> ClusterError | None:
        # The changes after which nothing may be committed come first.
        changed = {name: self._topics[name] for name in found}
        for name, topic in sorted(changed.items(), key=lambda each: each[0] not in self._sources):
            identity = found[name]
            if identity is None:
                return TopicChangedError(name, "does not exist any more")
            if topic.id is not None and identity.id is not None and identity.id != topic.id:
                return TopicChangedError(name, "was deleted and created again")
        for name, topic in changed.items():
            if (error := _grown(topic, found[name])) is not None:
                return error
        return None

    def _settings_change(self, found: Mapping[str, TopicSettings]) -> ClusterError | None:
        for name, settings in found.items():
            former = self._topics[name].cleanup_policy
            if settings.compacted != ("compact" in former):
                return PolicyChangedError(name, settings.cleanup_policy, former)
            limit, planned = settings.max_message_bytes, self._topics[name].max_message_bytes
            if name in self._targets and limit != planned:
                return LimitChangedError(name, limit, planned)
        return None


def _grown(topic: Topic, identity: Identity | None) -> PartitionsChangedError | None:
    if identity is None or identity.partitions == topic.partitions:
        return None
    return PartitionsChangedError(topic.name, f"has {identity.partitions} partitions, and had {topic.partitions}")
