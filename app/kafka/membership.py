"""The membership of an aiokafka consumer in its group: it joins with patience, and leaves in any case."""

from __future__ import annotations

import asyncio
import logging
from itertools import chain, cycle
from typing import Any

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.conn import CloseReason
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    KafkaError,
    NodeNotReadyError,
    NoError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.shielded import heard
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_ANSWER_S = 5.0  # Java's consumer waits so much longer for the answer to JoinGroup than a rebalance may take
_LEAVE_S = 2.0
_PATIENCE_S = 0.5  # so long a broker is asked alone
_LOOK_S, _ELSEWHERE = 5.0, 2  # which broker coordinates the group is asked so often, and believed after so many answers


def join_patiently(client: AIOKafkaClient, group: str, rebalance_s: float) -> None:
    """Lets each JoinGroup of a client that has not been started wait as long as a rebalance may take.

    The coordinator answers when all members have joined again, or are given up. aiokafka waits for `request.timeout.ms`
    and then asks anew, as another member: the former one stays in the group, reads nothing, and gets partitions.

    A coordinator that loses the group answers, or its connection ends, unless its machine is gone. So until it answers,
    brokers are asked which one coordinates the group. If it is another one twice in a row, the member asks that.
    """

    async def joined(call: Call, send: Send) -> Any:
        call.timeout_s = rebalance_s + _ANSWER_S
        looking = asyncio.get_running_loop().create_task(_close_once_elsewhere(client, call.connection, group))
        try:
            return await send()
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    Gate.of(client).set(Place.JOIN, {JoinGroupRequest: joined, SyncGroupRequest: _synced})


async def _synced(_: Call, send: Send) -> Any:
    """The answer to SyncGroup as coordinators before Kafka 4 give it while they load: the member has to join again.

    aiokafka ends by the error that those of Kafka 4 give, as Java's consumer does.
    """
    response = await send()
    if response.error_code == CoordinatorLoadInProgressError.errno:
        response.error_code = RebalanceInProgressError.errno
    return response


async def _close_once_elsewhere(client: AIOKafkaClient, connection: Any, group: str) -> None:
    """Closes the connection to a coordinator once it is that of a group no more, so that its requests fail."""
    elsewhere = 0
    while elsewhere < _ELSEWHERE:
        await asyncio.sleep(_LOOK_S)
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        except (KafkaError, TimeoutError):
            continue
        broker = client.cluster.broker_metadata(node)
        if broker is not None:
            elsewhere = elsewhere + 1 if (broker.host, broker.port) != (connection.host, connection.port) else 0
    connection.close(CloseReason.CONNECTION_TIMEOUT)


def end_heartbeats(coordinator: GroupCoordinator) -> None:
    """Lets a rebalance go on that ends a heartbeat before its first step, of a consumer that has started.

    aiokafka cancels the heartbeat and awaits it. If that has not run yet, its CancelledError ends the rebalance: the
    consumer never reads again, and each call raises it, as if its task had been cancelled.
    """

    async def ended() -> None:
        beating = coordinator._heartbeat_task
        if beating is not None:
            beating.add_done_callback(heard)  # also of one that has failed, which aiokafka may not have seen yet
            beating.cancel()
            await asyncio.wait([beating])
        coordinator._heartbeat_task = None

    coordinator._stop_heartbeat_task = ended


def leave_in_any_case(coordinator: GroupCoordinator, client: AIOKafkaClient, backoff_s: float) -> None:
    """Lets a consumer that has started leave its group as `leave` does, at its end and when it is not polled."""

    async def leaving() -> None:
        try:
            await asyncio.wait_for(leave(coordinator, client, backoff_s), _LEAVE_S)
        except TimeoutError:
            log.warning("group %s has not been left in time: it waits for the session to end", coordinator.group_id)
        coordinator.reset_generation()

    coordinator._maybe_leave_group = leaving


def become_dynamic(coordinator: Any) -> None:
    """Lets a static member leave as others do; nothing if it has not joined a group."""
    if isinstance(coordinator, GroupCoordinator):
        coordinator._group_instance_id = None


async def leave(coordinator: GroupCoordinator, client: AIOKafkaClient, backoff_s: float) -> None:
    """Leaves the group, unless the member is static; tries until the coordinator has answered.

    aiokafka does not try if the coordinator counts as dead, or the first rebalance is not over. The group would wait
    for the end of the session, and the partitions of the member would not be read.

    A machine that is gone refuses nothing, and answers nothing. So while one try waits, the next one asks another
    broker which is the coordinator.
    """
    if not coordinator.member_id or coordinator._group_instance_id is not None:
        return
    group, member_id, known = coordinator.group_id, coordinator.member_id, coordinator.coordinator_id
    nodes = sorted((each.nodeId for each in client.cluster.brokers()), key=lambda node: bool(node == known))
    first = [] if known is None else [(known, True)]
    tries: set[asyncio.Task[bool]] = set()
    try:
        for node, coordinates in chain(first, ((each, False) for each in cycle(nodes))):
            tries.add(asyncio.create_task(_left(client, group, member_id, node, coordinates=coordinates)))
            done, tries = await asyncio.wait(tries, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if any(each.result() for each in done):
                break
            if done:
                await asyncio.sleep(backoff_s)
    finally:
        for each in tries:
            each.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    coordinator.member_id = JoinGroupRequest.UNKNOWN_MEMBER_ID


async def _left(client: AIOKafkaClient, group: str, member_id: str, node: int, *, coordinates: bool) -> bool:
    """Tells the coordinator of a group that a member leaves, on connections of its own.

    Brokers answer the requests of a connection in order. So a member would have to wait for its requests to join and
    to fetch, or for a quota. And a client connects to one broker at a time, which takes long if its machine is gone.

    Args:
        client: of the member.
        group: its id.
        member_id: of the member.
        node: a broker.
        coordinates: whether it is the coordinator; if not, it is asked which one is.

    Returns:
        False if another try may help.
    """
    connections = object()

    async def answer(at: int, request: Any) -> Any:
        connection = await Gate.of(client).apart(at, connections)
        if connection is None:
            raise NodeNotReadyError(at)
        response = await connection.send(request)
        error = for_code(response.error_code)
        if error is not NoError:
            raise error
        return response

    try:
        if not coordinates:
            node = (await answer(node, FindCoordinatorRequest(group, CoordinationType.GROUP))).coordinator_id
        await answer(node, LeaveGroupRequest(group, member_id))
    except TimeoutError:
        return False
    except KafkaError as exc:
        if exc.retriable:
            return False
        if not isinstance(exc, UnknownMemberIdError):
            log.warning("group %s could not be left: %s", group, exc)
    return True
