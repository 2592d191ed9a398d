"""What a flow asks of its clients: a source to read from, writers, and who opens them.

`app.kafka.flow_clients` opens those of a cluster. A test may hand in others, and so another cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from app.kafka.batches.batch import Load
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Outbox
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import Rebalances
from app.kafka.fetched import ReadAhead
from app.kafka.leader_epochs import Cut
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = ["Clients", "Source", "Writer"]

L = TypeVar("L", bound=Load)


class Source(Protocol):
    """Reads the topics of a pipeline as a member of its group. The promises are those of `GroupConsumer`."""

    # --- membership --------------------------------------------------------------------------------------------------

    async def start(self, listener: Rebalances) -> None:
        """Joins the group."""

    async def keep_membership(self) -> None:
        """Stays a member though nothing is read."""

    async def replaced(self) -> None:
        """Waits until another member has taken its place."""

    async def is_replaced(self) -> bool:
        """Whether another member has taken its place."""

    def give_up_place(self) -> None:
        """Lets `stop` leave the group even if the member is static."""

    async def stop(self) -> None:
        """Leaves the group, unless the member is static."""

    @property
    def rebalancing(self) -> bool:
        """Whether the group assigns its partitions again."""

    @property
    def trouble(self) -> str | None:
        """What group or leaders do not do, and since when."""

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, Sequence[SourceBatch]]:
        """The next batches."""

    def interrupt(self) -> None:
        """Ends the poll; from now on each has no records."""

    def unread(self, polled: Mapping[TopicPartition, Sequence[SourceBatch]]) -> None:
        """Takes back a poll."""

    def pause(self, partition: TopicPartition, offset: int | None) -> None:
        """Reads a partition no further."""

    def resume(self, partition: TopicPartition) -> None:
        """Reads a paused partition again."""

    def position(self, partition: TopicPartition) -> int | None:
        """The offset from which the next poll reads."""

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Lets the next poll read from an offset."""

    def begin(self, partition: TopicPartition, offset: int) -> bool:
        """As `seek`, in a log that may be another one."""

    # --- the logs ----------------------------------------------------------------------------------------------------

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The offset of the first record, and the one behind the last that can be read."""

    def ends(self) -> Mapping[TopicPartition, int | None]:
        """For each assigned partition the end of what can be read."""

    def caught_up(self, partition: TopicPartition) -> bool:
        """Whether the next poll reads from the end of the partition."""

    def cut(self, partition: TopicPartition) -> Cut | None:
        """Where the cluster has lost the end of the log that was read."""

    async def compare(self, offsets: Mapping[TopicPartition, int], within_s: float) -> None:
        """Waits until `cut` holds for the leaders of now."""

    async def send(self, request: Any) -> Any:
        """The answer of any broker to a request of Kafka's protocol."""

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits offsets, each with its metadata."""

    async def commits(
        self, partitions: Collection[TopicPartition], *, stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets, with their metadata."""

    async def known(self, topic: str) -> bool:
        """Whether the group has committed an offset of the topic."""


class Writer(Protocol):
    """Sends batches in order, partition by partition. The promises are those of `FlowProducer`.

    Attributes:
        failure: the error that ended all sending; None if none has.
    """

    failure: BaseException | None

    async def start(self) -> None:
        """Reaches the cluster."""

    def outbox(
        self, topic: str, partition: int, make_load: Callable[[], L], *, limit_bytes: int | None = None
    ) -> Outbox[L]:
        """Takes the records of a partition."""

    def press(self) -> None:
        """Sends all records without lingering."""

    async def flush(self) -> None:
        """Sends all records, and waits until each is durable, or a write has failed."""

    async def settled(self) -> None:
        """Waits until no batch is on its way."""

    def drop(self) -> Sequence[Any]:
        """Drops the batches that wait; returns their loads."""

    def discard(self) -> None:
        """Stops sending."""

    def begin(self) -> None:
        """Begins a transaction."""

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits the transaction, and offsets in it."""

    async def stop(self) -> None:
        """Forgets what was not sent, and aborts what is open."""


class Clients(Protocol):
    """Opens the clients of one flow: its source first. `brokers` watches each of them."""

    def source(self, brokers: BrokerHealth, read_ahead: ReadAhead) -> Source:
        """The source; `read_ahead` counts and limits what is fetched."""

    def writer(
        self,
        brokers: BrokerHealth,
        *,
        numbers: BatchNumbers,
        failed: Callable[[BaseException, str], None],
        bounds: Bounds | None = None,
        transactional_id: str | None = None,
    ) -> Writer:
        """A writer; with a `transactional_id`, one that writes in transactions."""
