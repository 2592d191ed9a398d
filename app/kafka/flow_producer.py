"""The producers of a flow: one for all that it writes, or one for each source partition, with transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiokafka.client import AIOKafkaClient

from app.config.settings import ClientSettings, PipelineSettings
from app.kafka import clients
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.producer import Batches
from app.kafka.broker_health import BrokerHealth
from app.kafka.errors import FENCED
from app.kafka.produce_requests import join_once
from app.kafka.structs import OffsetAndMetadata, TopicPartition
from app.kafka.transaction_requests import TransactionRequests
from app.kafka.transactional_start import start_transactional

__all__ = ["FlowProducer"]

_ABORT_S = 3.0


class FlowProducer(Batches):
    """Sends the batches of a flow, none past one that has failed. Belongs to one event loop.

    Args:
        client: how to reach the cluster.
        settings: of the pipeline.
        brokers: watches the producer; one with transactions until it stops, any other as long as the flow lasts.
        numbers, failed, bounds: see `Batches`.
        transactional_id: None for no transactions; with one, each record has to be written in one.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        brokers: BrokerHealth,
        *,
        numbers: BatchNumbers,
        failed: Callable[[BaseException, str], None],
        bounds: Bounds | None = None,
        transactional_id: str | None = None,
    ) -> None:
        super().__init__(
            clients.producer(client, settings, transactional_id),
            clients.batch_settings(settings),
            numbers=numbers,
            halts=True,
            failed=failed,
            bounds=bounds,
        )
        self._group_id = settings.group_id
        self._transactional_id = transactional_id
        self._brokers = brokers
        brokers.watch(self.client, self.hold)
        join_once(self.client)
        self._controls.hear_failures()
        if transactional_id is not None:
            TransactionRequests(self._producer, self._group_id)

    @property
    def client(self) -> AIOKafkaClient:
        """The client that sends the requests of the producer."""
        return self._producer.client

    async def start(self) -> None:
        """Reaches the cluster. What another producer of the `transactional.id` has left open is aborted, or committed.

        If this fails, `stop` lets go of what there is.

        Raises:
            KafkaError: the cluster does not let it.
        """
        if self._transactional_id is None:
            await self._producer.start()
        else:
            await start_transactional(self._producer, self._transactional_id)

    def begin(self) -> None:
        """Begins a transaction at once; none is open."""
        self._controls.begin_transaction()

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits the open transaction, and in it offsets of the group, each with its metadata.

        Raises:
            KafkaError, IllegalOperation: the cluster did not take it, or something in it has failed.
        """
        if offsets:
            commits = {place: OffsetAndMetadata(*commit) for place, commit in offsets.items()}
            await self._producer.send_offsets_to_transaction(commits, self._group_id)
        await self._producer.commit_transaction()

    async def stop(self) -> None:
        """Stops without waiting for batches that the producer still holds; aborts what is open, so that readers go on.

        Raises:
            KafkaError: a request of the end has failed.
        """
        self.discard()
        try:
            if self._transactional_id is not None:
                self._brokers.forget(self.client)  # others take its place while the flow lasts
                await self._controls.release_transaction(_ABORT_S, abort=not isinstance(self.failure, FENCED))
        finally:
            await self._controls.abandon()
