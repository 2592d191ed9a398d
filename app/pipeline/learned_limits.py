"""The limits that a pipeline has learned from refusals, beyond the configuration of the topics.

A pipeline sends no record over the `max.message.bytes` that its preflight has found. If a topic still refuses one, its
limit has been lowered since. The pipeline restarts at that record, with the new limit: it offloads the record, splits
it, writes a dead letter, or stops. If the configuration does not explain the refusal (a broker that compresses records
itself may make them larger), it must not repeat forever: the refused size becomes the limit. A record that is refused
for another reason is remembered by its place in the source, for the next one may fare better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from app.cluster.preflight import Plan
from app.kafka.batches.outbox import RecordRefusedError
from app.kafka.clients import ClusterError
from app.kafka.structs import TopicPartition
from app.kafka.topics import Topic
from transforms.errors import RecordUnfitError


class LimitError(ClusterError):
    """A topic takes less than it did when the pipeline began; the next flow begins with the new limit.

    Attributes:
        refused: the record that the topic has refused.
    """

    def __init__(self, refused: RecordRefusedError) -> None:
        super().__init__(str(refused), retriable=True)
        self.refused = refused


class UnfitError(ClusterError):
    """A topic refuses a record for what it is; the next flow treats it by `errors.tolerance`.

    Attributes:
        place: the source topic, partition and offset of the record; None if the flow has lost the partition.
        error: the answer of the topic.
    """

    def __init__(self, partition: TopicPartition | None, offset: int, error: RecordUnfitError) -> None:
        super().__init__(str(error), retriable=True)
        self.place = None if partition is None else (*partition, offset)
        self.error = error


class LearnedLimits:
    """What the topics of one pipeline have refused.

    Attributes:
        unfit: the answers of topics that have refused a record for what it is, by its place in the source.
        sizes: by topic, what it was configured to take when it refused a record, and the bytes of that. Without it the
            next refusal teaches it again, at the price of one more restart.
    """

    def __init__(self) -> None:
        self.unfit: dict[tuple[str, int, int], RecordUnfitError] = {}
        self.sizes: dict[str, tuple[int, int]] = {}

    def learn(self, found: Plan, error: LimitError | UnfitError) -> None:
        """Remembers what was refused, though `found`, as the cluster is configured, allows it.

        Raises:
            ClusterError: the dead letter of a record was refused, which so cannot pass.
        """
        if isinstance(error, LimitError):
            topic = next(each for each in found.topics if each.name == error.refused.topic)
            self.sizes[topic.name] = topic.max_message_bytes, error.refused.size
        elif error.place in self.unfit:
            place = "topic {}, partition {}, offset {}".format(*error.place)
            reason = f"{place}: {self.unfit[error.place]}; and it cannot be a dead letter: {error}"
            raise ClusterError(reason, retriable=False) from error
        elif error.place is not None:
            self.unfit[error.place] = error.error

    def forget_unfit(self, topics: Collection[str]) -> None:
        """Forgets which records of these source topics were refused for what they are."""
        self.unfit = {place: each for place, each in self.unfit.items() if place[0] not in topics}

    def applied(self, found: Plan) -> Plan:
        """The plan with the limits that were learned."""
        dead_letters = None if found.dead_letters is None else self._limited(found.dead_letters)
        return dataclasses.replace(found, sink=self._limited(found.sink), dead_letters=dead_letters)

    def _limited(self, topic: Topic) -> Topic:
        configured, refused = self.sizes.get(topic.name, (None, 0))
        if topic.max_message_bytes == configured and refused <= configured:
            return dataclasses.replace(topic, max_message_bytes=refused - 1)
        self.sizes.pop(topic.name, None)  # the new limit explains the refusal, which proves nothing about a later limit
        return topic
