"""The check of the transaction coordinator: whether a pipeline can have transactions, before it reads a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)

from app.config.guarantee import TIMEOUT
from app.config.naming import check_name
from app.config.settings import PipelineSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import ClusterError, describe
from app.kafka.refusals import newer_text
from transforms.errors import ConfigurationError
from transforms.identifiers import transactional_id

_GUARANTEE = "processing.guarantee"
_MAX_TIMEOUT = "transaction.max.timeout.ms"
_PATIENCE_S = 15.0  # the first request makes the brokers create the topic __transaction_state
_PAUSE_S = 0.1
_TRANSACTION = 1  # the type of coordinator, in Kafka's protocol
_NOT_YET = (CoordinatorNotAvailableError, GroupCoordinatorNotAvailableError, CoordinatorLoadInProgressError)


async def check_transactions(connection: AdminClient, pipeline: PipelineSettings) -> None:
    """Refuses a cluster on which an exactly-once pipeline cannot use transactions.

    No producer is fenced: whether the user may write with the ids is only known when a transaction begins.

    Args:
        connection: to the cluster.
        pipeline: nothing is checked if it delivers at least once.

    Raises:
        ConfigurationError: the user may not see the ids, there is no coordinator, or the time-out is too long.
        ClusterError: the cluster did not answer.
    """
    if pipeline.guarantee.exactly_once:
        names = [transactional_id(pipeline.name, topic, 0) for topic in pipeline.topics]
        await check_transactional_ids(connection, names, pipeline.guarantee.timeout_ms, _GUARANTEE)


async def check_transactional_ids(
    connection: AdminClient, names: Sequence[str], timeout_ms: int, key: str, otherwise: str = ""
) -> None:
    """As `check_transactions`, for these ids.

    Args:
        connection: to the cluster.
        names: of transactions.
        timeout_ms: of these.
        key: what the user has set to "exactly_once".
        otherwise: what else the user may do.

    Raises:
        ConfigurationError: as `check_transactions`.
        ClusterError: as `check_transactions`.
    """
    try:
        for name in names:
            check_name("transactional-id", name, "topics")
            await _find_coordinator(connection, name, key, otherwise)
        longest_ms = await _longest_ms(connection)
    except KafkaError as exc:
        more = newer_text(connection.refusals.code)
        message = f"the transaction coordinator cannot be found: {describe(exc)}{more}"
        raise ClusterError(message, retriable=bool(exc.retriable)) from exc
    if longest_ms is not None and timeout_ms > longest_ms:
        raise ConfigurationError(
            TIMEOUT,
            f"found {timeout_ms:,}, allowed is at most {_MAX_TIMEOUT} of the brokers, which is {longest_ms:,}",
        )


async def _find_coordinator(connection: AdminClient, name: str, key: str, otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            await connection.find_coordinator(name, _TRANSACTION)
        except TransactionalIdAuthorizationFailed as exc:
            message = f'found "exactly_once", and the brokers refuse transactional.id {name}: {describe(type(exc)())}'
            raise ConfigurationError(key, message + otherwise) from exc
        except _NOT_YET as exc:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    key,
                    f'found "exactly_once", and the brokers have had no transaction coordinator for {_PATIENCE_S:.0f} '
                    "s; if there are fewer brokers than their transaction.state.log.replication.factor (default 3), "
                    f"lower that and transaction.state.log.min.isr{otherwise}",
                ) from exc
            await asyncio.sleep(_PAUSE_S)
        else:
            return


async def _longest_ms(connection: AdminClient) -> int | None:
    """The brokers' `transaction.max.timeout.ms`; None if the user may not see it."""
    broker, *_ = (await connection.describe_cluster())["brokers"]
    with suppress(ClusterAuthorizationFailedError):
        values = await connection.broker_configs(broker["node_id"], [_MAX_TIMEOUT])
        return int(values[_MAX_TIMEOUT]) if values.get(_MAX_TIMEOUT) else None
    return None
