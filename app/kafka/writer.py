"""The writer: sends batches, and in transactions commits the offsets of a group with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CommitFailedError, GroupAuthorizationFailedError
from aiokafka.structs import RecordMetadata

from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Batches, BatchSettings
from app.kafka.broker_health import BrokerHealth
from app.kafka.errors import FENCED
from app.kafka.shielded import shielded
from app.kafka.structs import Member, OffsetAndMetadata, TopicPartition
from app.kafka.transactions import TransactionRequests
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch, pack
from transforms.record_format import is_writable

_ABORT_S = 3.0


@dataclass(frozen=True, slots=True)
class _End:
    """A `Load` that notes how far a partition is written."""

    ends: dict[TopicPartition, int]
    place: TopicPartition

    def split(self, count: int) -> _End:  # noqa: ARG002
        return self

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:  # noqa: ARG002
        if metadata.offset >= 0:  # for a batch that it already has, a broker may not know the offset
            self.ends[self.place] = metadata.offset + records

    def failed(self, error: BaseException) -> None:
        pass


class Writer(Batches):
    """Sends batches, none of which overtakes one that has failed. Belongs to one event loop.

    With a `transactional.id` each record is written in a transaction, in which offsets of a group are committed.

    Args:
        producer: not started; it is stopped here.
        settings, numbers, failed, bounds: see `Batches`.
        transactional_id: that of the producer.
        group_id: the group whose offsets are committed.
        member: returns the member of the group that owns the partitions of the offsets; None without a member.
        brokers: watches the client of the producer; with transactions until it stops.

    Attributes:
        ends: by partition that `write` has written to, the offset after the last acknowledged record.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        settings: BatchSettings | None = None,
        *,
        numbers: BatchNumbers | None = None,
        failed: Callable[[BaseException, str], None] | None = None,
        bounds: Bounds | None = None,
        transactional_id: str | None = None,
        group_id: str = "",
        brokers: BrokerHealth | None = None,
        member: Callable[[], Member] | None = None,
    ) -> None:
        super().__init__(producer, settings, numbers=numbers, halts=True, failed=failed, bounds=bounds)
        self.ends: dict[TopicPartition, int] = {}
        self._group_id = group_id
        self._committing: asyncio.Task[None] | None = None
        self._brokers = brokers
        self._member = member
        if brokers is not None:
            brokers.watch(self.client, self.hold)
        self.controls.silence_asyncio_warnings()
        self._requests = None if transactional_id is None else TransactionRequests(producer, transactional_id, group_id)

    @property
    def client(self) -> AIOKafkaClient:
        """The client that sends the requests of the producer."""
        return self.producer.client

    async def start(self) -> None:
        """Connects. An open transaction of another writer with the `transactional.id` is aborted, or committed.

        After that, the other writer can neither write nor commit. After an error, call `stop` to release the producer.

        Raises:
            KafkaError: the cluster refuses.
        """
        await (self.producer if self._requests is None else self._requests).start()

    def begin(self) -> None:
        """Begins a transaction immediately; none is open."""
        self.controls.begin_transaction()

    async def write(self, topic: str, partition: int, records: Sequence[RecordLike], limit_bytes: int) -> None:
        """Starts sending records, with any header names, once earlier records of their partition are acknowledged.

        For callers that keep no data with the records; `deliver` waits for them.

        Args:
            topic: where to write.
            partition: of the topic.
            records: in order.
            limit_bytes: the topic's `max.message.bytes`.

        Raises:
            KafkaError, WideloadError: what ended all sending.
        """
        place = TopicPartition(topic, partition)
        outbox = self.outbox(topic, partition, lambda: _End(self.ends, place), limit_bytes=limit_bytes)
        if outbox.sender is not None:
            await asyncio.wait([outbox.sender])
        for record in records:
            if is_writable(record):
                outbox.append(record)
            else:
                outbox.forward(RecordBatch.read(memoryview(pack([record]))), 0)
        outbox.send()
        self._check()

    async def deliver(self) -> None:
        """Waits until each record is acknowledged.

        Raises:
            KafkaError, WideloadError: what ended all sending.
        """
        await self.flush()
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits the open transaction, of which all records are acknowledged, and in it offsets with their metadata.

        Raises:
            CommitFailedError: the member has lost the partitions.
            KafkaError, IllegalOperation: the cluster did not take it, or something in it has failed.
        """
        if offsets:
            assert self._requests is not None
            # The current one, as the member may have lost the partitions when the request is sent.
            member = self._requests.member = None if self._member is None else self._member()
            if member is not None and member.generation < 0:
                raise CommitFailedError
            commits = {place: OffsetAndMetadata(*commit) for place, commit in offsets.items()}
            sent = self.producer.send_offsets_to_transaction(commits, self._group_id)
            # Kept until the writer stops: asyncio would log an error of aiokafka for which nothing waits any more.
            self._committing = asyncio.get_running_loop().create_task(sent)
            try:
                await shielded(self._committing)
            except GroupAuthorizationFailedError as exc:
                if self._requests.moved_on:
                    raise CommitFailedError from exc
                raise
        await self.producer.commit_transaction()

    async def stop(self) -> None:
        """Stops without waiting for batches that the producer still holds.

        An open transaction is aborted, so that readers can continue.

        Raises:
            KafkaError: a request of the stop has failed.
        """
        self.discard()
        try:
            if self._requests is not None:
                if self._brokers is not None:
                    self._brokers.forget(self.client)  # others take its place while the flow lasts
                if not isinstance(self.failure, FENCED):
                    await self.controls.abort_transaction(_ABORT_S)
        finally:
            await self.controls.abandon()
            if self._committing is not None:
                self._committing.cancel()
