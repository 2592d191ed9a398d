"""aiokafka's consumer as a base for consumers that deliver records later than they fetch them."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError
from aiokafka.structs import OffsetAndMetadata

from app.config.naming import check_topics
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.fetch_errors import follow_leaders
from app.kafka.subscriptions import Subscriptions, Undelivered


class DeliveringConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaConsumer` whose commits, automatic ones too, are of delivered records only.

    It asks for committed offsets as `OffsetFetches` does, and for others as `follow_leaders` does.

    Args:
        undelivered: the records that were fetched and not delivered.
        topics: the topics to subscribe to.
        arguments: of `AIOKafkaConsumer`.

    Raises:
        ConfigurationError: the name of a topic is over its limit.
    """

    def __init__(self, undelivered: Undelivered, topics: Iterable[str], **arguments: object) -> None:
        check_topics(topics)
        super().__init__(**arguments)
        self._undelivered = undelivered
        self._stopped = False
        self._stop_s = float(str(arguments.get("request_timeout_ms", 40_000))) / 1000
        self._controls = ConsumerControls(self)
        Subscriptions.adopt_for(self._controls.subscription, undelivered)
        follow_leaders(self)
        if topics:
            self.subscribe(set(topics))

    @property
    def closed(self) -> bool:
        """True once `stop` has been called."""
        return self._stopped

    async def start(self) -> None:
        """As `AIOKafkaConsumer.start`."""
        await super().start()
        self._controls.coordinator()  # its rebalances go on from now

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`, and in any case: within `request.timeout.ms` and two seconds."""
        if not self.closed:
            self._stopped = True
            await self._controls.stop(super().stop, self._stop_s)

    def may_deliver(self, partition: TopicPartition) -> bool:
        """False while the partition is paused, or not assigned, or may go to another member of the group."""
        if self._controls.rebalancing or (assignment := self._controls.assignment) is None:
            return False
        state = assignment.state_value(partition)
        return state is not None and not state.paused

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """As `AIOKafkaConsumer.subscribe`.

        Raises:
            ConfigurationError: the name of a topic is over its limit.
        """
        check_topics(topics)
        super().subscribe(topics, pattern, listener)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """As `AIOKafkaConsumer.seek_to_beginning`."""
        self._forget(partitions)
        done: bool = await super().seek_to_beginning(*partitions)
        return done

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """As `AIOKafkaConsumer.seek_to_end`."""
        self._forget(partitions)
        done: bool = await super().seek_to_end(*partitions)
        return done

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what was read of partitions whose positions are about to be set; of none, if one is not assigned."""
        chosen = list(partitions or self.assignment())
        if all(isinstance(each, TopicPartition) and each in self.assignment() for each in chosen):
            for each in chosen:
                self._undelivered.moved(each, None)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """As `AIOKafkaConsumer.seek_to_committed`; what the commit notes of delivered records holds, as at a start."""
        offsets: dict[TopicPartition, int | None] = await super().seek_to_committed(*partitions)
        commits = await self._controls.commits(list(offsets))
        for partition, commit in commits.items():
            if partition in self.assignment():
                # Without a turn of the loop between: nothing is delivered that the note does not know of.
                AIOKafkaConsumer.seek(self, partition, commit.offset)
                self._undelivered.moved(partition, commit.metadata)
                offsets[partition] = commit.offset
        return offsets

    def delivered_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` commits.

        Raises:
            IllegalStateError: no partitions are assigned.
        """
        assignment = self._controls.assignment
        if assignment is None:
            raise IllegalStateError("No partitions assigned")
        offsets: dict[TopicPartition, OffsetAndMetadata] = assignment.all_consumed_offsets()
        return offsets
