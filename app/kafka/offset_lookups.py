"""Lookups of offsets at a broker that does not lead the partition: the client asks who does."""

from __future__ import annotations

from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.watched_client import Send, watch_requests

__all__ = ["follow_leaders"]

_ELSEWHERE = frozenset({NotLeaderForPartitionError.errno, UnknownTopicOrPartitionError.errno})


def follow_leaders(client: AIOKafkaClient) -> None:
    """Lets a client ask for the leaders again when a broker refuses a lookup of offsets as it leads no such partition.

    Where a consumer has no committed offset, aiokafka asks the same broker again until `metadata.max.age.ms` is over,
    5 minutes by default, and reads nothing until then.

    Args:
        client: of a consumer, started or not.
    """

    async def watched(_: str, request: Any, send: Send) -> Any:
        response = await send()
        if isinstance(request, OffsetRequest) and any(
            code in _ELSEWHERE for _, partitions in response.topics for _, code, *_ in partitions
        ):
            client.force_metadata_update()
        return response

    watch_requests(client, watched)
