"""What topics take, where a refusal tells more than their configuration.

A pipeline sends no record that is over the `max.message.bytes` which its preflight has found. If one is refused all
the same, the limit has been lowered since; the pipeline begins again at that record and does by the new limit what it
does with any large record: offload, split into chunks, dead letter, or stop. A refusal that the configuration does not
explain (a broker that compresses records itself may make them larger) must not repeat for ever: then the size that was
refused is the limit. What is refused for other reasons than its size is known by its place in the source: whether the
next one will be, depends on clocks that are not ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from aiokafka import TopicPartition

from app.cluster.preflight import Plan
from app.kafka.batches.producer import RecordRefusedError
from app.kafka.clients import ClusterError
from app.kafka.topics import Topic
from app.pipeline.offset_tracker import OffsetTracker
from transforms.errors import RecordUnfitError

__all__ = ["LearnedLimits", "LimitError", "UnfitError"]


class LimitError(ClusterError):
    """A topic takes less than it did when the pipeline began; another try begins with what it takes now.

    Attributes:
        topic: the topic.
        size: bytes of the record that it has refused, as a batch of one.
    """

    def __init__(self, error: RecordRefusedError) -> None:
        super().__init__(str(error), retriable=True)
        self.topic = error.topic
        self.size = error.size


class UnfitError(ClusterError):
    """A topic refuses a record; another try does with it what `errors.tolerance` says.

    Attributes:
        tracker: of its source partition, as the flow knows it.
        offset: in its source partition.
        error: what the topic says.
        partition: the source partition, once the flow has looked it up; None where it is not the flow's any more.
    """

    def __init__(self, tracker: OffsetTracker, offset: int, error: RecordUnfitError) -> None:
        super().__init__(str(error), retriable=True)
        self.tracker = tracker
        self.offset = offset
        self.error = error
        self.partition: TopicPartition | None = None


class LearnedLimits:
    """The limits that refusals have shown, of the topics of one pipeline."""

    def __init__(self) -> None:
        self._below: dict[str, tuple[int, int]] = {}  # topic: its configured limit when it refused, and the size
        self._unfit: dict[tuple[str, int, int], RecordUnfitError] = {}

    @property
    def unfit(self) -> Mapping[tuple[str, int, int], RecordUnfitError]:
        """Why a topic has refused a record, by topic, partition and offset of the record as it was read."""
        return self._unfit

    def learn_unfit(self, error: UnfitError) -> None:
        """Takes in that a record was refused.

        Raises:
            ClusterError: that was known, so this was its dead letter, and no record can pass it.
        """
        if error.partition is None:
            return
        place = (*error.partition, error.offset)
        if place in self._unfit:
            told = f"topic {place[0]}, partition {place[1]}, offset {place[2]}: {self._unfit[place]}"
            raise ClusterError(f"{told}; and it cannot be a dead letter: {error}", retriable=False) from error
        self._unfit[place] = error.error

    def learn(self, plan: Plan, error: LimitError) -> None:
        """Takes in that a record was refused where `plan` had let it through."""
        for topic in (plan.sink, plan.dead_letters):
            if topic is not None and topic.name == error.topic:
                self._below[topic.name] = (topic.max_message_bytes, error.size)

    def applied(self, plan: Plan) -> Plan:
        """The plan with what is known beside the configuration."""
        dead_letters = None if plan.dead_letters is None else self._limited(plan.dead_letters)
        return dataclasses.replace(plan, sink=self._limited(plan.sink), dead_letters=dead_letters)

    def _limited(self, topic: Topic) -> Topic:
        configured, refused = self._below.get(topic.name, (None, 0))
        if topic.max_message_bytes == configured and refused <= configured:
            return dataclasses.replace(topic, max_message_bytes=refused - 1)
        self._below.pop(topic.name, None)  # explained; it says nothing of a limit that is raised again
        return topic
