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

from app.kafka.gate import Call, Gate, Place, Send, Versions
from app.kafka.queries import knows, version

_FENCED_INSTANCE_ID = 82
_ASK_S = 2.0

_HEARTBEAT = version(
    "12.3 group:text generation:int32 member:text instance:text",
    "throttle_time_ms:int32 error_code:int16",
    flexible=False,
)


class StaticMember:
    """A consumer that has a `group.instance.id`. Belongs to its event loop.

    Args:
        client: of a consumer that has not been started.
        instance_id: the id.

    Attributes:
        replaced: set once the coordinator has said that another consumer has joined with the id.
    """

    def __init__(self, client: AIOKafkaClient, instance_id: str) -> None:
        self.replaced = asyncio.Event()
        self._client = client
        self._instance_id = instance_id
        kinds = (HeartbeatRequest, OffsetCommitRequest, JoinGroupRequest, SyncGroupRequest)
        Gate.of(client).set(Place.MEMBER, dict.fromkeys(kinds, self._seen))

    async def ask(self, coordinator: GroupCoordinator) -> None:
        """Looks whether another has the id by now; it is not known if the coordinator does not answer in time."""
        node, member_id = coordinator.coordinator_id, coordinator.member_id
        if node is not None and member_id:
            heartbeat = HeartbeatRequest(coordinator.group_id, coordinator.generation, member_id)
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._client.send(node, heartbeat), _ASK_S)

    async def _seen(self, call: Call, send: Send) -> Any:
        if isinstance(call.request, (HeartbeatRequest, OffsetCommitRequest)):
            call.change(self._naming_instance)
        response = await send()
        if isinstance(call.request, OffsetCommitRequest):
            codes = {code for _, partitions in response.topics for _, code in partitions}
        else:
            codes = {response.error_code}
        if _FENCED_INSTANCE_ID in codes:  # which aiokafka does not know: it gives up, and joins no more
            self.replaced.set()
        return response

    def _naming_instance(self, struct: Any, versions: Versions) -> Any:
        if struct.API_KEY != _HEARTBEAT.API_KEY:
            if "instance" in struct.SCHEMA.names:  # else it is a broker that knows no epochs, and no ids
                struct.instance = self._instance_id
        elif knows(versions, _HEARTBEAT):
            return _HEARTBEAT(struct.group, struct.generation_id, struct.member_id, self._instance_id)
        return struct
