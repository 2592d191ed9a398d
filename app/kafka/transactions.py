"""The requests of an aiokafka producer's transactions, and its start.

A transaction needs five requests: AddPartitionsToTxn, Produce, AddOffsetsToTxn, TxnOffsetCommit, EndTxn. aiokafka sends
one after the other, and AddOffsetsToTxn only once there are offsets. But the coordinator can add the group as soon as
it knows the transaction, so here this request is sent while the batches are in flight, and aiokafka gets the response
later.

Offsets name the member of the group that commits them (KIP-447, from Kafka 2.5 on), so that the coordinator refuses
those of a former owner. With the producer epoch alone, only the log would refuse them, and before Kafka 4.0 the
coordinator would then also drop the offsets that the next owner has sent, as both have one producer id.

The response to EndTxn arrives before the markers of the transaction are in the logs. Until they are, a request of the
next transaction is refused with CONCURRENT_TRANSACTIONS: for a few milliseconds, if brokers are near. aiokafka waits
20 ms before it retries, or 100 for AddOffsetsToTxn. Here it waits a millisecond at first, and twice as long each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
)
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from app.kafka.gate import Call, Gate, Place, Send, Versions
from app.kafka.queries import knows, version
from app.kafka.shielded import retrieve_exception
from app.kafka.structs import Member

_START_S = 60.0  # aiokafka would try forever
_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.02

_FORBIDDEN = GroupAuthorizationFailedError.errno
_MOVED_ON = (22, 25, 82)  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
_OFFSETS_OF_MEMBER = version(
    "28.3 transactional_id:text group:text producer_id:int64 producer_epoch:int16 generation:int32 member:text "
    "instance:text topics:[topic:text "
    "partitions:[partition:int32 offset:int64 leader_epoch:int32 metadata:text]]",
    "throttle_time_ms:int32 errors:[topic:text partitions:[partition:int32 error_code:int16]]",
)


class TransactionRequests:
    """Starts a producer, and sends the requests that begin its transactions.

    Args:
        producer: transactional, not started.
        name: its `transactional.id`.
        group_id: the group whose offsets are in the transactions.

    Attributes:
        member: the member of the group that commits the offsets from now on; None for none.
        moved_on: whether the group has refused offsets because this is not a member any more. aiokafka does not know
            such errors: it gets GROUP_AUTHORIZATION_FAILED instead, which ends the transaction. The next owner aborts
            it.
    """

    # State that changes: `_refusal`, with each InitProducerId; `_group`, from the first AddPartitionsToTxn of a
    # transaction to its EndTxn.

    def __init__(self, producer: AIOKafkaProducer, name: str, group_id: str) -> None:
        self._producer = producer
        self._name = name
        self._group_id = group_id
        self.member: Member | None = None
        self.moved_on = False
        self._refusal = 0
        self._group: asyncio.Task[Any] | None = None
        self._ids: tuple[str, int, int] = "", -1, -1
        handlers = {
            InitProducerIdRequest: self._init,
            AddPartitionsToTxnRequest: self._add_partitions,
            AddOffsetsToTxnRequest: self._add_group,
            EndTxnRequest: self._end,
        }
        Gate.of(producer).set(Place.TRANSACTIONS, handlers)
        Gate.of(producer).set(Place.MEMBER, {TxnOffsetCommitRequest: self._commit_offsets})
        _look_up_again(producer.client)

    async def start(self) -> None:
        """Starts the producer within a minute. An open transaction of its predecessor is aborted, or committed.

        Raises:
            KafkaTimeoutError: it was not started in time; the error depends on the answers of the coordinator.
            KafkaError: the cluster refuses.
        """
        try:
            async with asyncio.timeout(_START_S) as timeout:
                await self._producer.start()
        except TimeoutError as exc:
            if not timeout.expired():
                raise
            reason = f"transactional.id {self._name}: "
            if self._refusal == ConcurrentTransactions.errno:
                reason += (
                    f"the brokers have not ended its last transaction in {_START_S:g} s. They write the end of a "
                    "transaction to each of its partitions, and cannot while one of them has no leader, or fewer "
                    "replicas in sync than min.insync.replicas"
                )
            else:
                reason += (
                    f"no coordinator in {_START_S:g} s; its log requires as many brokers in sync as "
                    "transaction.state.log.min.isr"
                )
            raise KafkaTimeoutError(reason) from exc

    async def _init(self, _: Call, send: Send) -> Any:
        response = await send()
        self._refusal = response.error_code
        return response

    async def _add_partitions(self, call: Call, send: Send) -> Any:
        call.change(self._note_ids)
        response = await _begun(send, _codes_of_partitions)
        if self._group is None and not any(_codes_of_partitions(response)):
            adding = AddOffsetsToTxnRequest(*self._ids, self._group_id)
            self._group = asyncio.get_running_loop().create_task(call.ask(adding))
            self._group.add_done_callback(retrieve_exception)
        return response

    def _note_ids(self, struct: Any, _: Versions) -> Any:
        self._ids = struct.transactional_id, struct.producer_id, struct.producer_epoch
        return struct

    async def _add_group(self, _: Call, send: Send) -> Any:
        # After an error, aiokafka's own request reports it, once all batches are acknowledged: an earlier error would
        # end the transaction, and aiokafka would send batches of partitions that have not been added.
        if self._group is not None:
            await asyncio.wait([self._group])
            if self._group.exception() is None and not self._group.result().error_code:
                return self._group.result()
        return await _begun(send, lambda response: [response.error_code])

    async def _commit_offsets(self, call: Call, send: Send) -> Any:
        call.change(partial(_of_member, self.member))
        response = await send()
        rows = []
        for topic, partitions, *_ in response.errors:
            self.moved_on |= any(code in _MOVED_ON for _, code, *_ in partitions)
            results = [(at, _FORBIDDEN if code in _MOVED_ON else code) for at, code, *_ in partitions]
            rows.append((topic, results))
        response.errors = rows
        return response

    async def _end(self, _: Call, send: Send) -> Any:
        if self._group is not None:
            await asyncio.wait([self._group])  # after the end it would begin another transaction
            self._group = None
        return await send()


def _of_member(member: Member | None, struct: Any, versions: Versions) -> Any:
    """Offsets with the epochs of their records, and with the member that commits them, if the broker supports this."""
    if member is None or not knows(versions, _OFFSETS_OF_MEMBER):
        return struct
    topics: list[Any] = [(topic, [(*row, {}) for row in partitions], {}) for topic, partitions in struct.topics]
    ids = struct.transactional_id, struct.group, struct.producer_id, struct.producer_epoch
    return _OFFSETS_OF_MEMBER(*ids, *member, topics, {})


def _codes_of_partitions(response: Any) -> list[int]:
    return [code for _, partitions in response.errors for _, code in partitions]


async def _begun(send: Send, codes: Callable[[Any], list[int]]) -> Any:
    """The response to a request that begins a transaction, once the last one is over."""
    wait_s = _FIRST_WAIT_S
    while ConcurrentTransactions.errno in codes(response := await send()):
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    return response


def _look_up_again(client: Any) -> None:
    """Makes a client search for coordinators until it finds them.

    aiokafka's sender retries after some errors, and ends with a traceback on all others, though most of these are
    temporary as well: a connection that breaks, a coordinator that is loading.
    """
    look_up = client.coordinator_lookup

    async def looked_up(kind: Any, name: str) -> Any:
        try:
            return await look_up(kind, name)
        except KafkaError as exc:
            if not exc.retriable:
                raise
            raise CoordinatorNotAvailableError from exc

    client.coordinator_lookup = looked_up
