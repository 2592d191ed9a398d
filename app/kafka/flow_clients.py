"""The clients of a flow: its consumer and its writers."""

from __future__ import annotations

from collections.abc import Callable

from app.config.settings import ClientSettings, PipelineSettings
from app.kafka import clients
from app.kafka.batches.bounds import Bounds
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import GroupConsumer
from app.kafka.fetched import ReadAhead
from app.kafka.produce_requests import join_once
from app.kafka.writer import Writer


class FlowClients:
    """Creates the clients with which one flow accesses a cluster.

    Args:
        client: how to reach the cluster.
        settings: of the pipeline.
    """

    def __init__(self, client: ClientSettings, settings: PipelineSettings) -> None:
        self._client = client
        self._settings = settings
        self._source: GroupConsumer | None = None

    def source(self, brokers: BrokerHealth, read_ahead: ReadAhead) -> GroupConsumer:
        """See `GroupConsumer`. Transactions carry the epochs of what it has read, so it is created before writers."""
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
    ) -> Writer:
        """See `Writer`.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
        """
        source = self._source
        assert source is not None
        made = Writer(
            clients.producer(self._client, self._settings, transactional_id),
            clients.batch_settings(self._settings),
            numbers=numbers,
            failed=failed,
            bounds=bounds,
            transactional_id=transactional_id,
            group_id=self._settings.group_id,
            brokers=brokers,
            member=lambda: source.member,
        )
        join_once(made.client)
        if transactional_id is not None:
            source.carry_epochs(made.client)
        return made
