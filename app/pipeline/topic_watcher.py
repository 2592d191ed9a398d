"""The topic watcher: notices topics that are deleted, recreated, get partitions or another limit, or are compacted.

It also notices topics that accept no records, as too few of their replicas are in sync. Brokers refuse each batch then,
and aiokafka sends it again without a word.

Kafka's clients refresh their topics every few minutes, and by name alone. To them a topic that was deleted and created
again is the same, but its offsets mean other records. Since Kafka 2.8 the id of a topic (KIP-516) differs.
With older brokers only the other changes are noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from app.cluster.preflight import Plan
from app.kafka.admin import Send, configs
from app.kafka.clients import ClusterError
from app.kafka.errors import KafkaError
from app.kafka.topics import CLEANUP_POLICY, MAX_MESSAGE_BYTES, MIN_IN_SYNC, Identity, Topic, identities, shortage
from app.kafka.troubles import SHORT, Troubles
from app.pipeline.termination import Termination

# Seen twice, for a broker may be a little behind the others.
_LOOK_S = 2.5


class TopicChangedError(ClusterError):
    """A topic differs from the plan.

    Attributes:
        topic: its name.
        same_log: whether offsets mean the same records as before, so that what was written may be committed.
    """

    def __init__(self, topic: str, change: str, *, same_log: bool) -> None:
        super().__init__(change, retriable=True)
        self.topic = topic
        self.same_log = same_log


class TopicWatcher:
    """Looks whether the topics of a flow are still those of its plan. Belongs to its event loop.

    The plan is as the cluster was found, without the limits that refusals taught (`app.pipeline.learned_limits`). If
    the sources are `chunked`, compaction would delete what they hold.
    """

    def __init__(self, plan: Plan, termination: Termination, send: Send, troubles: Troubles, *, chunked: bool) -> None:
        self._targets = {topic.name: topic for topic in (plan.sink, plan.dead_letters) if topic is not None}
        self._topics = {**{topic.name: topic for topic in plan.sources}, **self._targets}
        self._configured = self._topics if chunked else self._targets
        self._termination = termination
        self._send = send
        self._troubles = troubles

    async def watch(self) -> None:
        """Looks again and again; ends the flow with the first change, and returns."""
        seen: str | None = None
        while True:
            # Without an answer nothing is known of the topics; the clients notice unavailable brokers themselves.
            with contextlib.suppress(KafkaError, OSError):
                change = await self._change()
                if change is not None and str(change) == seen:
                    self._termination.fail(change)
                    return
                seen = None if change is None else str(change)
            await asyncio.sleep(_LOOK_S)

    async def _change(self) -> TopicChangedError | None:
        """What has changed; the changes after which nothing may be committed come first."""
        found = await identities(self._send, self._topics)
        for differs, same_log in ((_is_another, False), (_has_grown, True)):
            for name, topic in self._topics.items():
                if name in found and (change := differs(topic, found[name])) is not None:
                    return TopicChangedError(name, change, same_log=same_log)
        wanted = (MAX_MESSAGE_BYTES, CLEANUP_POLICY, MIN_IN_SYNC)
        for name, config in (await configs(self._send, self._configured, wanted)).items():
            if isinstance(config, KafkaError):
                continue  # it may be gone, or the user may not see its configuration any more
            if name in self._targets:
                self._note_shortage(name, found.get(name), int(config[MIN_IN_SYNC]))
            if (change := _is_configured(self._topics[name], config, target=name in self._targets)) is not None:
                return TopicChangedError(name, change, same_log=True)
        return None

    def _note_shortage(self, name: str, found: Identity | None, min_in_sync: int) -> None:
        lacks = None if found is None else shortage(name, found.in_sync, min_in_sync)
        if lacks is None:
            self._troubles.end(SHORT, name)
        else:
            self._troubles.note(SHORT, name, lacks)


def _is_another(topic: Topic, found: Identity | None) -> str | None:
    if found is None:
        return f"topic {topic.name} does not exist any more"
    another = topic.id is not None and found.id is not None and found.id != topic.id
    return f"topic {topic.name} was deleted and created again" if another else None


def _has_grown(topic: Topic, found: Identity | None) -> str | None:
    if found is None or found.partitions == topic.partitions:
        return None
    return f"topic {topic.name} has {found.partitions} partitions, and had {topic.partitions}"


def _is_configured(topic: Topic, config: Mapping[str, str], *, target: bool) -> str | None:
    policy = config[CLEANUP_POLICY]
    if ("compact" in policy) != ("compact" in topic.cleanup_policy):
        return f"{CLEANUP_POLICY} of topic {topic.name} is {policy}, and was {topic.cleanup_policy}"
    limit, planned = int(config[MAX_MESSAGE_BYTES]), topic.max_message_bytes
    if not target or limit == planned:
        return None
    return f"{MAX_MESSAGE_BYTES} of topic {topic.name} is {limit:,}, and was {planned:,}"
