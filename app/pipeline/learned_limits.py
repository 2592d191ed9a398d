"""The limits that a pipeline has learned from refusals, beyond what the configuration of topics says.

A pipeline sends no record over the `max.message.bytes` that its preflight has found. If a topic refuses one all the
same, its limit has been lowered since. The pipeline begins again at that record, with the new limit: it offloads the
record, splits it, writes a dead letter, or stops. If the configuration does not explain the refusal (a broker that
compresses records itself may make them larger), it must not repeat for ever: the refused size becomes the limit. A
record that is refused for another reason is remembered by its place in the source, for the next one may fare better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from app.cluster.preflight import Plan
from app.kafka.batches.producer import RecordRefusedError
from app.kafka.clients import ClusterError
from app.kafka.structs import TopicPartition
from app.kafka.topics import Topic
from app.pipeline.offset_tracker import OffsetTracker
from transforms.errors import RecordUnfitError

__all__ = ["LearnedLimits", "LimitError", "UnfitError"]


class LimitError(ClusterError):
    """A topic takes less than it did when the pipeline began; the next flow begins with the new limit.

    Attributes:
        topic: the topic.
        size: bytes of the record that the topic has refused, as a batch of one.
    """

    def __init__(self, error: RecordRefusedError) -> None:
        super().__init__(str(error), retriable=True)
        self.topic = error.topic
        self.size = error.size


class UnfitError(ClusterError):
    """A topic refuses a record for what it is; the next flow treats it by `errors.tolerance`.

    Attributes:
        tracker: of the source partition.
        offset: of the record in its source partition.
        error: the answer of the topic.
        partition: the source partition, once the flow has looked it up; None if the flow has lost it.
    """

    def __init__(self, tracker: OffsetTracker, offset: int, error: RecordUnfitError) -> None:
        super().__init__(str(error), retriable=True)
        self.tracker = tracker
        self.offset = offset
        self.error = error
        self.partition: TopicPartition | None = None


class LearnedLimits:
    """The limits of the topics of one pipeline, and the records that they have refused."""

    def __init__(self) -> None:
        self._below: dict[str, tuple[int, int]] = {}  # topic: its configured limit when it refused, and the size
        self._unfit: dict[tuple[str, int, int], RecordUnfitError] = {}

    @property
    def unfit(self) -> Mapping[tuple[str, int, int], RecordUnfitError]:
        """The answers of topics that have refused a record, by its source topic, partition and offset."""
        return self._unfit

    def learn_unfit(self, error: UnfitError) -> None:
        """Takes in that a record was refused for what it is.

        Raises:
            ClusterError: its dead letter was refused, as it was known by now; so no record can pass it.
        """
        if error.partition is None:
            return
        place = (*error.partition, error.offset)
        if place in self._unfit:
            told = f"topic {place[0]}, partition {place[1]}, offset {place[2]}: {self._unfit[place]}"
            raise ClusterError(f"{told}; and it cannot be a dead letter: {error}", retriable=False) from error
        self._unfit[place] = error.error

    def forget_unfit(self, topics: Collection[str] | None = None) -> None:
        """Forgets which records were refused for what they are: those of these source topics; None for all."""
        self._unfit = {} if topics is None else {at: each for at, each in self._unfit.items() if at[0] not in topics}

    def learn(self, plan: Plan, error: LimitError) -> None:
        """Takes in that a record was refused for its size, which `plan` allows."""
        for topic in (plan.sink, plan.dead_letters):
            if topic is not None and topic.name == error.topic:
                self._below[topic.name] = (topic.max_message_bytes, error.size)

    def forget_sizes(self) -> None:
        """Forgets which sizes were refused. The next refusal teaches it again, at the price of one more restart."""
        self._below.clear()

    def applied(self, plan: Plan) -> Plan:
        """The plan with the limits that were learned."""
        dead_letters = None if plan.dead_letters is None else self._limited(plan.dead_letters)
        return dataclasses.replace(plan, sink=self._limited(plan.sink), dead_letters=dead_letters)

    def _limited(self, topic: Topic) -> Topic:
        configured, refused = self._below.get(topic.name, (None, 0))
        if topic.max_message_bytes == configured and refused <= configured:
            return dataclasses.replace(topic, max_message_bytes=refused - 1)
        self._below.pop(topic.name, None)  # the new limit explains the refusal, which says nothing of a later limit
        return topic
