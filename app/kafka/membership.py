"""The membership of an aiokafka consumer in its group: it joins with patience, and leaves in any case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError, NoError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest

from app.kafka.watched_client import Send, watch_sends

__all__ = ["join_patiently", "leave", "leave_in_any_case"]

log = logging.getLogger(__name__)

_ANSWER_S = 5.0  # Java's consumer waits so much longer for the answer to JoinGroup than a rebalance may take
_LEAVE_S = 2.0
# The name of a connection of its own: brokers answer the requests of a connection in order, and so a member would have
# to wait for its requests to join and to fetch, or for a quota.
_LEAVING = "leaving"


def join_patiently(client: AIOKafkaClient, rebalance_s: float) -> None:
    """Lets each JoinGroup of a client that has not been started wait as long as a rebalance may take.

    The coordinator answers when all members have joined again, or are given up. aiokafka waits for `request.timeout.ms`
    and then asks anew, as another member: the former one stays in the group, reads nothing, and gets partitions.
    """
    patience_s = rebalance_s + _ANSWER_S

    def patient(connection: Any, request: Any, send: Send) -> Awaitable[Any]:
        if not isinstance(request, JoinGroupRequest):
            return send()
        usual_s = connection._request_timeout
        connection._request_timeout = max(usual_s, patience_s)
        try:
            return send()  # the connection's own, which looks at the time-out before the first await
        finally:
            connection._request_timeout = usual_s

    watch_sends(client, patient, innermost=True)


def leave_in_any_case(coordinator: GroupCoordinator, client: AIOKafkaClient, backoff_s: float) -> None:
    """Lets a consumer that has started leave its group as `leave` does, at its end and when it is not polled."""

    async def leaving() -> None:
        try:
            await asyncio.wait_for(leave(coordinator, client, backoff_s), _LEAVE_S)
        except TimeoutError:
            log.warning("group %s has not been left in time: it waits for the session to end", coordinator.group_id)
        coordinator.reset_generation()

    coordinator._maybe_leave_group = leaving


async def leave(coordinator: GroupCoordinator, client: AIOKafkaClient, backoff_s: float) -> None:
    """Leaves the group, unless the member is static; tries until the coordinator has answered.

    aiokafka does not try if the coordinator counts as dead, or the first rebalance is not over. The group would wait
    for the end of the session, and the partitions of the member would not be read.
    """
    if not coordinator.member_id or coordinator._group_instance_id is not None:
        return
    member_id, node = coordinator.member_id, coordinator.coordinator_id
    while True:
        try:
            if node is None:
                node = await client.coordinator_lookup(CoordinationType.GROUP, coordinator.group_id)
            response = await client.send(node, LeaveGroupRequest(coordinator.group_id, member_id), group=_LEAVING)
            error = for_code(response.error_code)
            if error in (NoError, UnknownMemberIdError):
                coordinator.member_id = JoinGroupRequest.UNKNOWN_MEMBER_ID
                return
            if not error.retriable:
                log.warning("group %s could not be left: %s", coordinator.group_id, error.__name__)
                return
        except KafkaError as exc:
            if not exc.retriable:
                log.warning("group %s could not be left: %s", coordinator.group_id, exc)
                return
        node = None  # it may have moved; any broker knows
        await asyncio.sleep(backoff_s)
