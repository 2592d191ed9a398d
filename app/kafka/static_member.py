"""The static member of a group (KIP-345): it notices that another consumer has joined with its `group.instance.id`.

aiokafka says the id when it joins, and not when it sends heartbeats or commits. The coordinator then answers a member
that was replaced as one whose session is over. That member joins again, and so replaces the other one: for ever. With
the id the coordinator answers FENCED_INSTANCE_ID. The fields are as in Apache Kafka's
`clients/src/main/resources/common/message`; they have the id from Kafka 2.3 on, as has the request to join.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from app.kafka.epoch_requests import COMMIT_RESULTS, OFFSETS, knows
from app.kafka.queries import version
from app.kafka.watched_client import Send, Versions, remade, watch_requests

__all__ = ["StaticMember"]

_FENCED_INSTANCE_ID = 82
_ASK_S = 2.0

_HEARTBEAT = version(
    12,
    3,
    "group:text generation:int32 member:text instance:text",
    "throttle_time_ms:int32 error_code:int16",
    flexible=False,
)
_COMMIT = version(
    8,
    7,
    f"group:text generation:int32 member:text instance:text topics:{OFFSETS}",
    f"throttle_time_ms:int32 topics:{COMMIT_RESULTS}",
    flexible=False,
)


class StaticMember:
    """A consumer that has a `group.instance.id`. Belongs to its event loop.

    Args:
        client: of a consumer that has not been started; `LeaderEpochs` watches it later.
        instance_id: the id.

    Attributes:
        replaced: set once the coordinator has said that another consumer has joined with the id.
    """

    def __init__(self, client: AIOKafkaClient, instance_id: str) -> None:
        self.replaced = asyncio.Event()
        self._client = client
        self._instance_id = instance_id
        watch_requests(client, self._watched)

    async def ask(self, coordinator: GroupCoordinator) -> None:
        """Looks whether another has the id by now; it is not known if the coordinator does not answer in time."""
        node, member_id = coordinator.coordinator_id, coordinator.member_id
        if node is not None and member_id:
            heartbeat = HeartbeatRequest(coordinator.group_id, coordinator.generation, member_id)
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._client.send(node, heartbeat), _ASK_S)

    async def _watched(self, _: str, request: Any, send: Send) -> Any:
        if isinstance(request, (HeartbeatRequest, OffsetCommitRequest)):
            with remade(request, self._naming_instance):
                response = await send()
        else:
            response = await send()
        if isinstance(request, (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest)):
            codes = {response.error_code}
        elif isinstance(request, OffsetCommitRequest):
            codes = {code for _, partitions in response.topics for _, code in partitions}
        else:
            return response
        if _FENCED_INSTANCE_ID in codes:  # which aiokafka does not know: it gives up, and joins no more
            self.replaced.set()
        return response

    def _naming_instance(self, struct: Any, versions: Versions) -> Any:
        made = _HEARTBEAT if struct.API_KEY == _HEARTBEAT.API_KEY else _COMMIT
        if not knows(versions, made):
            return struct
        if made is _HEARTBEAT:
            return made(struct.group, struct.generation_id, struct.member_id, self._instance_id)
        if struct.API_VERSION != _COMMIT.API_VERSION - 1:  # without epochs; brokers that know the id know them
            return struct
        return made(struct.group, struct.generation, struct.member, self._instance_id, struct.topics)
