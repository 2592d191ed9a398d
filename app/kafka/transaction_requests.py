"""The requests of an aiokafka producer's transactions: none waits longer for another than the brokers make it wait.

A transaction takes five requests: AddPartitionsToTxn, Produce, AddOffsetsToTxn, TxnOffsetCommit, EndTxn. aiokafka sends
one after the other, AddOffsetsToTxn once there are offsets. But the coordinator takes the group as soon as it knows the
transaction, so here that request goes beside the batches.

The answer to EndTxn comes before the marks of the transaction are in the logs. Until they are, a request of the next
transaction is refused with CONCURRENT_TRANSACTIONS: for a few milliseconds, where brokers are near. aiokafka waits
20 ms before it asks again, or 100 for AddOffsetsToTxn. Here it waits a millisecond at first, and twice as long each
time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.errors import ConcurrentTransactions, GroupAuthorizationFailedError
from aiokafka.producer.sender import AddOffsetsToTxnHandler, AddPartitionsToTxnHandler

from app.kafka.shielded import heard

__all__ = ["TransactionRequests"]

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.02


class TransactionRequests:
    """Sends the requests that begin the transactions of one producer, on its event loop.

    Args:
        producer: transactional, started or not.
        group_id: the group whose offsets are in the transactions.
    """

    # State that changes: `_wait_s`, with each response; `_waits_for_offsets`, with each for a group.

    def __init__(self, producer: AIOKafkaProducer, group_id: str) -> None:
        self._worker: Any = producer._sender
        self._transactions: Any = producer._txn_manager
        self._group_id = group_id
        self._wait_s = _FIRST_WAIT_S
        self._waits_for_offsets = False
        self._asked = self._transactions.consumer_group_to_add
        self._worker._do_add_partitions_to_txn = self._add_partitions
        self._worker._do_add_offsets_to_txn = self._add_offsets
        self._transactions.consumer_group_to_add = self._group_to_add
        for name in ("error_transaction", "fatal_error"):
            setattr(self._transactions, name, self._seen(getattr(self._transactions, name)))

    def _seen(self, fail: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
        """Lets the event loop not log the failure of a transaction that nobody waits for: each write tells it, too."""

        def failing(error: BaseException) -> None:
            for *_, offsets in self._transactions._pending_txn_offsets:
                offsets.add_done_callback(heard)
            fail(error)
            heard(self._transactions.wait_for_transaction_end())

        return failing

    def _group_to_add(self) -> str | None:
        """The group, once the coordinator has a partition of the transaction."""
        manager = self._transactions
        group: str | None = self._asked()
        if group is not None or self._waits_for_offsets or not manager.is_in_transaction():
            return group
        return self._group_id if manager.txn_partitions and manager._txn_consumer_group is None else None

    async def _add_partitions(self, partitions: AbstractSet[TopicPartition]) -> bool:
        added: bool = await _AddPartitions(self, self._worker, partitions).do(await self._coordinator())
        return added

    async def _add_offsets(self, group_id: str) -> bool:
        added: bool = await _AddOffsets(self, self._worker, group_id).do(await self._coordinator())
        return added

    async def _coordinator(self) -> Any:
        return await self._worker._find_coordinator(CoordinationType.TRANSACTION, self._transactions.transactional_id)

    def refuses_early(self, code: int) -> bool:
        """True if the group is refused while it is asked for beside the batches.

        For aiokafka that would end the transaction, and it would send batches of partitions that are not added yet. So
        the group is asked for again with the offsets, when all batches are acknowledged.
        """
        early = not self._transactions._pending_txn_offsets
        self._waits_for_offsets = early and code == GroupAuthorizationFailedError.errno
        return self._waits_for_offsets

    def wait_s(self, codes: AbstractSet[int], otherwise_s: float | None) -> float | None:
        """How long to wait before a request is sent again; None if it need not be.

        Args:
            codes: the error codes of its response.
            otherwise_s: how long aiokafka would wait.
        """
        if otherwise_s is None or ConcurrentTransactions.errno not in codes:
            self._wait_s = _FIRST_WAIT_S
            return otherwise_s
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        return wait_s


class _AddPartitions(AddPartitionsToTxnHandler):  # type: ignore[misc]  # aiokafka has no types here
    def __init__(self, requests: TransactionRequests, sender: Any, partitions: AbstractSet[TopicPartition]) -> None:
        super().__init__(sender, partitions)
        self._requests = requests

    def handle_response(self, resp: Any) -> float | None:
        codes = {code for _, partitions in resp.errors for _, code in partitions}
        return self._requests.wait_s(codes, super().handle_response(resp))


class _AddOffsets(AddOffsetsToTxnHandler):  # type: ignore[misc]  # aiokafka has no types here
    def __init__(self, requests: TransactionRequests, sender: Any, group_id: str) -> None:
        super().__init__(sender, group_id)
        self._requests = requests

    def handle_response(self, resp: Any) -> float | None:
        if self._requests.refuses_early(resp.error_code):
            return None
        return self._requests.wait_s({resp.error_code}, super().handle_response(resp))
