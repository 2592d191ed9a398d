"""The membership of a consumer in its group: it waits long enough when joining, commits as a member, always leaves.

A static member (KIP-345) notices if another consumer has joined with its `group.instance.id`. aiokafka sends the id
when it joins, but not with heartbeats or commits. The coordinator then answers a replaced member as if its session had
expired; the member joins again and replaces the other one, and so on, forever. With the id, the coordinator answers
FENCED_INSTANCE_ID. The fields are those of Apache Kafka's `clients/src/main/resources/common/message`; these requests
have the id from Kafka 2.3 on, like the request to join.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from itertools import chain, cycle
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.conn import CloseReason
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    IllegalGenerationError,
    KafkaError,
    NodeNotReadyError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from aiokafka.structs import OffsetAndMetadata

from app.kafka.gate import Call, Gate, Place, Send, Versions
from app.kafka.queries import check_code, knows, version
from app.kafka.shielded import end_tasks, retrieve_exception
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_ANSWER_S = 5.0  # how much longer than a rebalance Java's consumer waits for the answer to JoinGroup
_ASK_S = 2.0
_BACKOFF_S = 0.1
_LEAVE_S = 2.0
_PATIENCE_S = 0.5  # how long to wait for a broker before asking another one as well
_LOOK_S, _ELSEWHERE = 5.0, 2  # how often to look up the coordinator, and how many equal answers are required
_FENCED_INSTANCE_ID = 82
_HEARTBEAT = version(
    "12.3 group:text generation:int32 member:text instance:text",
    "throttle_time_ms:int32 error_code:int16",
    flexible=False,
)


class Membership:
    """The requests of a consumer as a member of its group. Belongs to its event loop.

    Each JoinGroup waits as long as a rebalance may take: the coordinator answers when all members have joined again, or
    have been removed. aiokafka waits for `request.timeout.ms` and then asks again, as another member: the former one
    stays in the group, reads nothing, and gets partitions.

    A coordinator that loses the group answers, or its connection ends, unless its machine is gone. Until it answers,
    brokers are therefore asked which one coordinates the group. If they name another one twice in a row, the member
    joins there.

    Args:
        client: of the consumer.
        group: the id of the group.
        rebalance_s: how long a rebalance may take.
        instance_id: of a static member; None for others.

    Attributes:
        replaced: set once the coordinator has reported that another consumer has joined with the id.
    """

    def __init__(self, client: AIOKafkaClient, group: str, rebalance_s: float, instance_id: str | None = None) -> None:
        self.replaced = asyncio.Event()
        self._client = client
        self._group = group
        self._patience_s = rebalance_s + _ANSWER_S
        self._instance_id = instance_id
        static = {HeartbeatRequest: self._name, OffsetCommitRequest: self._name} if instance_id is not None else {}
        Gate.of(client).set(Place.MEMBER, {JoinGroupRequest: self._join, SyncGroupRequest: self._sync, **static})

    async def is_replaced(self, coordinator: Coordinator | None) -> bool:
        """Asks whether another consumer has the id; False if no coordinator answers in time."""
        if self._instance_id is not None and coordinator is not None and not self.replaced.is_set():
            node, member_id = coordinator.coordinator_id, coordinator.member_id
            if node is not None and member_id:
                heartbeat = HeartbeatRequest(self._group, coordinator.generation, member_id)
                with contextlib.suppress(KafkaError, TimeoutError):
                    await asyncio.wait_for(self._client.send(node, heartbeat), _ASK_S)
        return self.replaced.is_set()

    async def _join(self, call: Call, send: Send) -> Any:
        call.timeout_s = self._patience_s
        looking = asyncio.get_running_loop().create_task(self._close_once_elsewhere(call.connection))
        try:
            return self._seen(await send())
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _sync(self, _: Call, send: Send) -> Any:
        response = self._seen(await send())
        # aiokafka fails on the error of a loading coordinator of Kafka 4; older ones let the member join again.
        if response.error_code == CoordinatorLoadInProgressError.errno:
            response.error_code = RebalanceInProgressError.errno
        return response

    async def _name(self, call: Call, send: Send) -> Any:
        call.change(self._named)
        return self._seen(await send())

    def _named(self, struct: Any, versions: Versions) -> Any:
        if struct.API_KEY == _HEARTBEAT.API_KEY and knows(versions, _HEARTBEAT):
            return _HEARTBEAT(struct.group, struct.generation_id, struct.member_id, self._instance_id)
        if "instance" in struct.SCHEMA.names:  # a commit with epochs; a broker without these does not know ids either
            struct.instance = self._instance_id
        return struct

    def _seen(self, response: Any) -> Any:
        of_commit = (code for _, partitions in getattr(response, "topics", ()) for _, code in partitions)
        if _FENCED_INSTANCE_ID in (getattr(response, "error_code", 0), *of_commit):
            self.replaced.set()  # aiokafka does not know the error: it gives up, and does not join again
        return response

    async def _close_once_elsewhere(self, connection: Any) -> None:
        """Closes the connection to a broker once it no longer coordinates the group, so that its requests fail."""
        client, elsewhere = self._client, 0
        while elsewhere < _ELSEWHERE:
            await asyncio.sleep(_LOOK_S)
            try:
                node = await client.coordinator_lookup(CoordinationType.GROUP, self._group)
            except (KafkaError, TimeoutError):
                continue
            broker = client.cluster.broker_metadata(node)
            if broker is not None:
                elsewhere = elsewhere + 1 if (broker.host, broker.port) != (connection.host, connection.port) else 0
        connection.close(CloseReason.CONNECTION_TIMEOUT)


class Coordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's coordinator of a consumer that has started, with rebalances that always end, and a reliable leave.

    Attributes:
        gate: of the consumer's client.
        strict: whether commits are sent only during the assignment in which they were made, and only by a member.
    """

    gate: Gate
    _heartbeat_task: asyncio.Task[None] | None
    strict = False

    @classmethod
    def adopted(cls, coordinator: Any, gate: Gate) -> Coordinator | None:
        """The coordinator of a consumer, as this class; None if the consumer has no group, or was not started."""
        if not isinstance(coordinator, GroupCoordinator):
            return None
        coordinator.__class__ = cls
        adopted: Coordinator = coordinator
        adopted.gate = gate
        return adopted

    async def _stop_heartbeat_task(self) -> None:
        # aiokafka cancels the heartbeat and awaits it. If the task has not run yet, its CancelledError ends the
        # rebalance: the consumer never reads again, and each call raises it, as if the caller had been cancelled.
        beating = self._heartbeat_task
        if beating is not None:
            beating.add_done_callback(retrieve_exception)  # it may have failed before, unnoticed by aiokafka
            beating.cancel()
            await asyncio.wait([beating])
        self._heartbeat_task = None

    def _do_commit_offsets(
        self, assignment: Any, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> asyncio.Task[None]:
        # aiokafka retries a commit after a rebalance. If the group does not know the consumer any more, aiokafka
        # commits without a member id, and an empty group accepts this: it would overwrite what another member, or an
        # operator, has committed in the meantime.
        async def committed() -> None:
            if self.strict and not (assignment.active and self.generation >= 0):
                raise IllegalGenerationError(self.group_id)
            await GroupCoordinator._do_commit_offsets(self, assignment, offsets)

        task = asyncio.get_running_loop().create_task(committed())
        task.add_done_callback(
            retrieve_exception
        )  # aiokafka shields it: if its caller is cancelled, nobody retrieves its error
        return task

    async def _maybe_leave_group(self) -> None:
        try:
            await asyncio.wait_for(self._leave(), _LEAVE_S)
        except TimeoutError:
            log.warning("group %s was not left in time: it waits for the session to expire", self.group_id)
        self.reset_generation()

    def become_dynamic(self) -> None:
        """Lets a static member leave the group like others."""
        self._group_instance_id = None

    async def end(self) -> None:
        """Ends its tasks, and leaves the group, unless the member is static."""
        await end_tasks(self._coordination_task, self._heartbeat_task, self._commit_refresh_task)
        await self._maybe_leave_group()

    async def _leave(self) -> None:
        """Leaves the group, unless the member is static; tries until the coordinator has answered.

        aiokafka does not try if it considers the coordinator dead, or the first rebalance is not over. The group would
        wait until the session expires, and the partitions of the member would not be read.
        """
        if not self.member_id or self._group_instance_id is not None:
            return
        known, member_id = self.coordinator_id, self.member_id
        brokers = self.gate.client.cluster.brokers()
        nodes = sorted((each.nodeId for each in brokers), key=lambda node: bool(node == known))
        first = [] if known is None else [(known, True)]
        tries: set[asyncio.Task[bool]] = set()
        try:
            for node, coordinates in chain(first, ((each, False) for each in cycle(nodes))):
                # A machine that is gone neither refuses nor answers: another broker is asked as well.
                tries.add(asyncio.create_task(self._left(member_id, node, coordinates=coordinates)))
                done, tries = await asyncio.wait(tries, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
                if any(each.result() for each in done):
                    break
                if done:
                    await asyncio.sleep(_BACKOFF_S)
        finally:
            for each in tries:
                each.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    async def _left(self, member_id: str, node: int, *, coordinates: bool) -> bool:
        """Leaves through a broker, which is first asked for the coordinator if needed; False if a retry may help.

        Brokers answer the requests of a connection in order. On the client's connections, the member would have to wait
        for its requests to join and to fetch, or for a quota. And a client connects to one broker at a time, which
        takes long if its machine is gone.
        """
        connections = object()

        async def answer(at: int, request: Any) -> Any:
            connection = await self.gate.apart(at, connections)
            if connection is None:
                raise NodeNotReadyError(at)
            response = await connection.send(request)
            check_code(response.error_code)
            return response

        try:
            if not coordinates:
                found = await answer(node, FindCoordinatorRequest(self.group_id, CoordinationType.GROUP))
                node = found.coordinator_id
            await answer(node, LeaveGroupRequest(self.group_id, member_id))
        except TimeoutError:
            return False
        except KafkaError as exc:
            if exc.retriable:
                return False
            if not isinstance(exc, UnknownMemberIdError):
                log.warning("group %s could not be left: %s", self.group_id, exc)
        return True
