"""An admin client with the requests that aiokafka's admin client lacks."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.gate import create_no_topics
from app.kafka.offset_fetches import OffsetFetches
from app.kafka.queries import check_code
from app.kafka.refusals import Refusals
from app.kafka.structs import by_topic

ADMIN_ARGUMENTS = frozenset(inspect.signature(AIOKafkaAdminClient).parameters)
"""The names of the arguments that an `AdminClient` takes."""

_AGAIN_S = 0.1
_CONSUMER = -1
EARLIEST, LATEST = -2, -1

Send = Callable[[Any], Awaitable[Any]]
"""Sends a request of aiokafka or a `Query` to any broker, and returns the response, or raises KafkaError."""


class AdminClient(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaAdminClient` whose methods raise KafkaError.

    Attributes:
        refusals: answers that may mean a name over its limit.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.refusals = Refusals(self)
        create_no_topics(self)

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Sends a request of aiokafka or a `Query` to a broker, None for any, and returns the response."""
        return await self._send_request(request, node)

    async def broker_configs(self, broker: int, names: Iterable[str]) -> Mapping[str, str]:
        """The values of a broker's properties, as far as it has them."""
        send = partial(self.send, node=broker)
        (found,) = (await configs(send, [str(broker)], names, ConfigResourceType.BROKER)).values()
        if isinstance(found, KafkaError):
            raise found
        return found

    async def committed_offsets(
        self, group: str, places: Iterable[TopicPartition], within_s: float
    ) -> Mapping[TopicPartition, int]:
        """The committed offsets of the partitions that have one.

        The coordinator is asked again until it has them all, for at most `within_s`; after that its error is raised.
        """
        OffsetFetches(self, _AGAIN_S)
        until_s = time.monotonic() + within_s
        while True:
            try:
                node = await self.find_coordinator(group)
                response = await self.send(OffsetFetchRequest(group, by_topic(places)), node)
                rows = [(topic, *row) for topic, partitions in response.topics for row in partitions]
                for *_, code in rows:
                    check_code(code)
            except KafkaError as exc:
                if not exc.retriable or time.monotonic() + _AGAIN_S > until_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return {TopicPartition(topic, number): offset for topic, number, offset, *_ in rows if offset >= 0}

    async def log_bounds(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """The offset of the first record of each partition, and the one after the last record that can be read."""
        first, last = [await self.offsets(places, which, committed=True) for which in (EARLIEST, LATEST)]
        return {place: (first[place], last[place]) for place in first}

    async def offsets(
        self, places: Iterable[TopicPartition], when: int, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The offset of each partition at `EARLIEST`, at `LATEST`, or that of the first record of a time or later.

        Args:
            places: the partitions.
            when: one of the two, or milliseconds since 1970. In the latter case the offset of a partition without such
                a record is -1.
            committed: whether `LATEST` stops at the first record of an open transaction, if there is one.
        """
        asked = {*places}
        response = await self.send(
            MetadataRequest(sorted({each.topic for each in asked}), allow_auto_topic_creation=False)
        )
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic in response.to_object()["topics"]:
            check_code(topic["error_code"])
            for row in topic["partitions"]:
                place = TopicPartition(topic["topic"], row["partition"])
                if place in asked:
                    check_code(row["error_code"])
                    led[row["leader"]].append(place)
        found = {}
        for leader, those in led.items():
            wanted = [(topic, [(number, when) for number in numbers]) for topic, numbers in by_topic(those)]
            response = await self.send(OffsetRequest(_CONSUMER, int(committed), wanted), leader)
            for topic, partitions in response.topics:
                for number, code, _, offset, *_ in partitions:
                    check_code(code)
                    found[TopicPartition(topic, number)] = offset
        return found


async def configs(
    send: Send, resources: Iterable[str], names: Iterable[str], kind: int = ConfigResourceType.TOPIC
) -> Mapping[str, Mapping[str, str] | KafkaError]:
    """The values of these properties of resources, or the error with which a resource refuses them."""
    response = await send(DescribeConfigsRequest([(kind, resource, [*names]) for resource in resources]))
    return {
        found["resource_name"]: for_code(found["error_code"])(found["error_message"] or "")
        if found["error_code"]
        else {entry["config_names"]: entry["config_value"] for entry in found["config_entries"]}
        for found in response.to_object()["resources"]
    }
