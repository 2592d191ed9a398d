"""The delivery of a flow: writes what leaves the lanes, and commits how far it has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from app.kafka.source_batch import SourceBatch
from app.kafka.structs import TopicPartition
from app.pipeline.committed_offsets import CommittedOffsets
from app.pipeline.lane import Item, Lane
from transforms.record import RecordLike

__all__ = ["Delivery"]


class Delivery(Protocol):
    """At least once, or exactly once. Belongs to one event loop.

    Attributes:
        offsets: the committed offsets from which the flow goes on.
    """

    offsets: CommittedOffsets

    async def start(self) -> None:
        """Reaches the cluster; raises `KafkaError`."""

    def append(self, lane: Lane, record: RecordLike, offset: int, held: int, codec: int) -> None:
        """Puts one record behind the others of its sink partition; `flush` sends them on.

        Args:
            lane: the lane that the record leaves.
            record: what to write.
            offset: the commit of the lane stays at or below it until the record is durable.
            held: bytes of the budget that the record holds until then.
            codec: the number of the codec that the record came with.
        """

    def forward(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        """As `append`, for the records of a batch that all leave as they are, by a lane with a `sink_partition`.

        Raises:
            ClusterError: the batch cannot be read.
        """

    def write(self, lane: Lane, item: Item) -> None:
        """Writes an item that is `ready` to where it belongs; `flush` sends it on."""

    def flush(self) -> None:
        """Sends what has been written, as soon as the client takes it; does not wait."""

    def press(self) -> None:
        """Sends what has been written without lingering; does not wait."""

    async def settled(self) -> None:
        """Waits until no batch is on its way; what waits behind is not sent once a write has failed."""

    def due(self) -> None:
        """Says that there may be something to commit."""

    async def commit(self) -> None:
        """Commits what is durable. A group that moves on meanwhile is no failure: the records are read again.

        Raises:
            KafkaError: the cluster did not take the offsets; a transaction that fails ends the flow instead.
        """

    async def finish(self) -> None:
        """Commits for the last time; see `commit`."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what is not committed of these partitions, whose lanes have been discarded, and all `offsets`."""

    async def stop(self) -> None:
        """Forgets what has not been sent, and stops the clients."""
