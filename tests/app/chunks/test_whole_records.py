"""A consumer that commits what it has delivered, and reports every new position, without a broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata

from app.chunks.consumer import AssemblingConsumer
from transforms.errors import ConfigurationError

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Reported:
    """Keeps what is reported, and lets one record of each partition stay undelivered."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def safe(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {partition: OffsetAndMetadata(given.offset - 1, "noted") for partition, given in offsets.items()}

    def begin(self, place: TopicPartition, offset: int, metadata: str | None = None) -> None:
        self.events.append((place.partition, offset, metadata))

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.events.append((place.partition, offset))

    def assigned(self, places: Collection[TopicPartition]) -> None:
        self.events.append({place.partition for place in places})


@pytest.fixture
async def consumer() -> AsyncIterator[AssemblingConsumer]:
    """A consumer that is not started."""
    made = AssemblingConsumer({})
    yield made
    await made.stop()


@pytest.fixture
def reported(consumer: AssemblingConsumer) -> Reported:
    """What its subscriptions report."""
    found = Reported()
    consumer._subscription.undelivered = found
    return found


async def test_every_new_position_is_reported(consumer: AssemblingConsumer, reported: Reported) -> None:
    """An assignment, a seek, and a reset; the latter with the metadata of the commit at which reading begins."""
    consumer.assign([P0, P1])
    assignment = consumer._subscription.subscription.assignment
    first, second = (assignment.state_value(partition) for partition in (P0, P1))
    second.seek(3)
    for committed, position in ((8, 8), (8, 5), (6, 9)):
        first.update_committed(OffsetAndMetadata(committed, "note"))
        first.await_reset(-1)
        first.reset_to(position)
    assert reported.events == [{0, 1}, (1, 3), (0, 8, "note"), (0, 5, None), (0, 9, None)]
    consumer.assign([P0])
    second.seek(4)
    assert reported.events[5:] == [{0}]  # a position in an assignment that has gone does not count


async def test_note_of_a_commit_that_has_left_the_log(consumer: AssemblingConsumer, reported: Reported) -> None:
    """What was delivered is not delivered again, where retention has removed the records at the committed offset."""
    consumer.assign([P0])
    state = consumer._subscription.subscription.assignment.state_value(P0)
    for read, log_start in ((0, 9), (1, 10), (0, 7)):
        state.seek(0)
        state.await_reset(-1)
        state.update_committed(OffsetAndMetadata(8, "note"))
        state.reset_to(8)
        state.consumed_to(8 + read)
        state.await_reset(-2)
        state.reset_to(log_start)
    assert reported.events[3::3] == [(0, 9, "note"), (0, 10, None), (0, 7, None)]


async def test_reading_again_from_the_beginning(consumer: AssemblingConsumer, reported: Reported) -> None:
    """All comes again, also what the note of a commit there says was delivered."""
    consumer.assign([P0])
    state = consumer._subscription.subscription.assignment.state_value(P0)
    state.update_committed(OffsetAndMetadata(8, "note"))
    with contextlib.suppress(ConsumerStoppedError, AttributeError):  # it was not started
        await consumer.seek_to_beginning(P0)
    state.await_reset(-2)
    state.reset_to(8)
    assert reported.events[-1] == (0, 8, None)


@pytest.mark.usefixtures("reported")
async def test_commits_are_of_delivered_records(consumer: AssemblingConsumer) -> None:
    """What aiokafka takes for a commit is what the owner of the records calls safe."""
    with pytest.raises(IllegalStateError):
        consumer.safe_offsets()
    consumer.assign([P0, P1])
    consumer._subscription.seek(P0, 7)
    assert consumer.safe_offsets() == {P0: OffsetAndMetadata(6, "noted")}


async def test_a_partition_may_deliver_while_it_is_ours(consumer: AssemblingConsumer) -> None:
    """Not before it is assigned, nor while it is paused, nor during a rebalance."""
    record = ConsumerRecord(*P0, 3, 7, 0, b"k", b"v", None, 1, 1, ())

    def heads() -> list[TopicPartition]:
        consumer._inbox.put(P0, [record])
        return consumer._heads(())

    assert heads() == []
    consumer.assign([P1])
    assert heads() == []
    consumer.assign([P0])
    assert heads() == [P0]
    assert consumer._heads((P1,)) == []
    consumer.pause(P0)
    assert heads() == []
    consumer.resume(P0)
    assert heads() == [P0]


async def test_a_subscription_waits_for_its_assignment() -> None:
    """A rebalance is under way until the group has its assignment, and again from its next one on."""
    consumer = AssemblingConsumer({"group.id": "g"}, "orders")
    assert consumer.subscription() == {"orders"}
    consumer._subscription.assign_from_subscribed({P0})
    consumer._inbox.put(P0, [ConsumerRecord(*P0, 3, 7, 0, b"k", b"v", None, 1, 1, ())])
    assert consumer._heads(()) == [P0]
    consumer._subscription.begin_reassignment()
    assert consumer._heads(()) == []
    await consumer.stop()
    assert consumer.closed


async def test_names_are_held_to_their_limit(consumer: AssemblingConsumer) -> None:
    """When the consumer is made, and when it subscribes."""
    with pytest.raises(ConfigurationError, match="allowed are 249"):
        AssemblingConsumer({}, "x" * 250)
    with pytest.raises(ConfigurationError, match="allowed are 249"):
        consumer.subscribe(["x" * 250])
