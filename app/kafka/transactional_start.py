"""The start of a transactional producer, which ends what the last producer of its `transactional.id` has left open.

From then on it looks for its coordinators until it finds them. aiokafka's sender asks again after some errors, and ends
with a traceback by all others, though most of these pass as well: a connection that breaks, a coordinator that loads.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import ConcurrentTransactions, CoordinatorNotAvailableError, KafkaError, KafkaTimeoutError
from aiokafka.protocol.transaction import InitProducerIdRequest

from app.kafka.gate import Call, Gate, Place, Send

__all__ = ["start_transactional"]

_START_S = 60.0  # aiokafka would try for ever


async def start_transactional(producer: AIOKafkaProducer, name: str) -> None:
    """Starts a producer that has not been started, whose `transactional.id` is `name`, within a minute.

    Raises:
        KafkaTimeoutError: it was not started in time; the error depends on what the coordinator has answered.
        KafkaError: the cluster does not let it.
    """
    code = 0

    async def answered(_: Call, send: Send) -> Any:
        nonlocal code
        answer = await send()
        code = answer.error_code
        return answer

    Gate.of(producer).set(Place.START, {InitProducerIdRequest: answered})
    _look_up_again(producer.client)
    try:
        async with asyncio.timeout(_START_S) as timeout:
            await producer.start()
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        told = f"transactional.id {name}: "
        if code == ConcurrentTransactions.errno:
            told += (
                f"the brokers have not ended its last transaction in {_START_S:g} s. They write the end of a "
                "transaction to each of its partitions, and cannot while one of them has no leader, or fewer replicas "
                "in sync than min.insync.replicas"
            )
        else:
            told += (
                f"no coordinator in {_START_S:g} s; its log requires as many brokers in sync as "
                "transaction.state.log.min.isr"
            )
        raise KafkaTimeoutError(told) from exc


def _look_up_again(client: AIOKafkaClient) -> None:
    """Gives each passing error of a search for a coordinator as one after which aiokafka searches again."""
    look_up = client.coordinator_lookup

    async def looked_up(kind: Any, name: str) -> Any:
        try:
            return await look_up(kind, name)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            raise CoordinatorNotAvailableError from exc

    client.coordinator_lookup = looked_up
