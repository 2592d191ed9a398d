"""The clients of a flow: its consumer, and what it writes with."""

from __future__ import annotations

from collections.abc import Callable

from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import GroupConsumer
from app.kafka.fetched import ReadAhead
from app.kafka.flow_producer import FlowProducer

__all__ = ["FlowClients"]


class FlowClients:
    """Opens the clients of one flow, by which it reaches a cluster.

    Args:
        client: how to reach the cluster.
        settings: of the pipeline.
    """

    def __init__(self, client: ClientSettings, settings: PipelineSettings) -> None:
        self._client = client
        self._settings = settings
        self._source: GroupConsumer | None = None

    def source(self, brokers: BrokerHealth, read_ahead: ReadAhead) -> GroupConsumer:
        """See `GroupConsumer`. Transactions carry the epochs of what it has read, so it is opened before them."""
        self._source = GroupConsumer(self._client, self._settings, brokers, read_ahead)
        return self._source

    def writer(
        self,
        brokers: BrokerHealth,
        *,
        numbers: BatchNumbers,
        failed: Callable[[BaseException, str], None],
        bounds: Bounds | None = None,
        transactional_id: str | None = None,
    ) -> FlowProducer:
        """See `FlowProducer`."""
        made = FlowProducer(
            self._client,
            self._settings,
            brokers,
            numbers=numbers,
            failed=failed,
            bounds=bounds,
            transactional_id=transactional_id,
        )
        if transactional_id is not None:
            assert self._source is not None
            self._source.carry_epochs(made.client)
        return made
