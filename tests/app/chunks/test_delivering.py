"""A consumer that commits what it has delivered, and tells of every new position, without a broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError
from aiokafka.structs import OffsetAndMetadata

from app.chunks.delivering import DeliveringConsumer
from app.kafka.consumer_controls import count_as_poll
from transforms.errors import ConfigurationError

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Told:
    """Keeps what it is told, and lets one record of each partition stay undelivered."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """One less than was fetched."""
        return {partition: OffsetAndMetadata(given.offset - 1, "noted") for partition, given in offsets.items()}

    def moved(
        self, partition: TopicPartition, metadata: str | None, *, by_client: bool = False, offset: int | None = None
    ) -> None:
        """See `Undelivered`."""
        self.events.append(
            (partition.partition, metadata, *(["by client"] if by_client else []), *filter(None, [offset]))
        )

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Undelivered`."""
        self.events.append({partition.partition for partition in partitions})


@pytest.fixture
def told() -> Told:
    """The records that are not delivered."""
    return Told()


@pytest.fixture
async def consumer(told: Told) -> AsyncIterator[DeliveringConsumer]:
    """A consumer that is not started."""
    made = DeliveringConsumer(told, ())
    yield made
    await made.stop()


async def test_every_new_position_is_told(consumer: DeliveringConsumer, told: Told) -> None:
    """An assignment, a seek, and a reset; the latter with the metadata of the commit at which reading begins."""
    consumer.assign([P0, P1])
    assignment = consumer._subscription.subscription.assignment
    first, second = (assignment.state_value(partition) for partition in (P0, P1))
    second.seek(3)
    for committed, position in ((8, 8), (8, 5)):
        first.update_committed(OffsetAndMetadata(committed, "note"))
        first.await_reset(-1)
        first.reset_to(position)
    assert told.events == [
        {0, 1},
        (1, None, 3),
        *((0, metadata, "by client") for metadata in (None, "note", None, None)),
    ]
    consumer.assign([P0])
    second.seek(4)
    assert told.events[6:] == [{0}]  # a position in an assignment that has gone does not count


async def test_commits_are_of_delivered_records(consumer: DeliveringConsumer) -> None:
    """What aiokafka takes for a commit is what the owner of the records calls safe."""
    with pytest.raises(IllegalStateError):
        consumer.delivered_offsets()
    consumer.assign([P0, P1])
    consumer._subscription.seek(P0, 7)
    assert consumer.delivered_offsets() == {P0: OffsetAndMetadata(6, "noted")}


async def test_a_partition_may_deliver_while_it_is_ours(consumer: DeliveringConsumer) -> None:
    """Not before it is assigned, nor while it is paused, nor during a rebalance."""
    assert not consumer.may_deliver(P0)
    consumer.assign([P0])
    assert consumer.may_deliver(P0)
    assert not consumer.may_deliver(P1)
    consumer.pause(P0)
    assert not consumer.may_deliver(P0)
    consumer.resume(P0)
    assert consumer.may_deliver(P0)


async def test_a_subscription_waits_for_its_assignment(told: Told) -> None:
    """A rebalance is under way until the group has its assignment, and again from its next one on."""
    consumer = DeliveringConsumer(told, ["orders"], group_id="g")
    assert consumer.subscription() == {"orders"}
    consumer._subscription.assign_from_subscribed({P0})
    assert consumer.may_deliver(P0)
    consumer._subscription.begin_reassignment()
    assert not consumer.may_deliver(P0)
    await consumer.stop()
    assert consumer.closed


async def test_names_are_held_to_their_limit(told: Told, consumer: DeliveringConsumer) -> None:
    """When the consumer is made, and when it subscribes."""
    with pytest.raises(ConfigurationError, match="allowed are 249"):
        DeliveringConsumer(told, ["x" * 250])
    with pytest.raises(ConfigurationError, match="allowed are 249"):
        consumer.subscribe(["x" * 250])


async def test_a_poll_is_counted(consumer: AIOKafkaConsumer) -> None:
    """What is idle for aiokafka is so no more."""
    consumer._subscription._last_fetch_ended = time.monotonic() - 60
    before_s = consumer._subscription.fetcher_idle_time
    count_as_poll(consumer)
    assert before_s >= 60 > consumer._subscription.fetcher_idle_time
