"""Requests about groups and their members; see `app.kafka.queries`."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.admin import ListGroupsRequest_v1
from aiokafka.protocol.types import Array, Boolean, Bytes, Int16, Int32, Int64, Schema

from app.kafka.queries import TEXT, Nullable, Query, fields, rows, version

__all__ = [
    "DescribeConsumerGroups",
    "DescribeGroups",
    "DescribeShareGroups",
    "DescribeStreamsGroups",
    "ListGroups",
    "rack_of",
]

_ANOTHER_TRY = {14, 15, 16}  # the coordinator loads, is not available, is another one
_RACKS_SINCE = 3  # the version of a subscription
_SUBSCRIPTION = fields(
    topics=Array(TEXT),
    user_data=Bytes,
    owned_partitions=rows(topic=TEXT, partitions=Array(Int32)),
    generation=Int32,
    rack_id=TEXT,
)
_GROUPS = fields(groups=Array(TEXT), include_authorized_operations=Boolean)
_CLASSIC = fields(
    throttle_time_ms=Int32,
    groups=rows(
        error_code=Int16,
        group_id=TEXT,
        state=TEXT,
        protocol_type=TEXT,
        protocol=TEXT,
        members=rows(
            member_id=TEXT, instance_id=TEXT, client_id=TEXT, client_host=TEXT, metadata=Bytes, assignment=Bytes
        ),
        authorized_operations=Int32,
    ),
)
_ASSIGNMENT = fields(partitions=rows(id_high=Int64, id_low=Int64, topic=TEXT, partitions=Array(Int32)))


def _described(**member: Any) -> Schema:
    """The response about groups of the newer protocols, whose members have these fields."""
    return fields(
        throttle_time_ms=Int32,
        groups=rows(
            error_code=Int16,
            error_message=TEXT,
            group_id=TEXT,
            state=TEXT,
            group_epoch=Int32,
            assignment_epoch=Int32,
            assignor=TEXT,
            members=rows(**member),
            authorized_operations=Int32,
        ),
    )


class ListGroups(Query):
    """The groups that a broker coordinates, with their `type` from Kafka 3.8 on; older brokers have classic groups."""

    VERSIONS = (
        ListGroupsRequest_v1,
        version(
            16,
            5,
            fields(states_filter=Array(TEXT), types_filter=Array(TEXT)),
            fields(
                throttle_time_ms=Int32,
                error_code=Int16,
                groups=rows(group_id=TEXT, protocol_type=TEXT, state=TEXT, type=TEXT),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(states_filter=[], types_filter=[])


class DescribeGroups(Query):
    """The members of classic groups, with their instance ids; from Kafka 2.3 on.

    Args:
        groups: ids of groups that the broker coordinates.
    """

    VERSIONS: Sequence[Any] = (version(15, 4, _GROUPS, _CLASSIC, flexible=False), version(15, 5, _GROUPS, _CLASSIC))

    _MEMBERS = 5  # the place of this field in a group

    def __init__(self, groups: Sequence[str]) -> None:
        super().__init__(groups=groups, include_authorized_operations=False)

    @classmethod
    def members(cls, response: Any) -> int:
        """How many members the groups of a response have; a group that is not there, or is of another type, has none.

        Raises:
            KafkaError: the broker does not coordinate them, or is not ready.
        """
        count = 0
        for code, *rest in response.groups:
            if code in _ANOTHER_TRY:
                raise for_code(code)
            count += len(rest[cls._MEMBERS - 1])
        return count


class DescribeConsumerGroups(DescribeGroups):
    """The members of consumer groups (KIP-848); from Kafka 4.0 on."""

    _MEMBERS = 7

    VERSIONS = (
        version(
            69,
            0,
            _GROUPS,
            _described(
                member_id=TEXT,
                instance_id=TEXT,
                rack_id=TEXT,
                member_epoch=Int32,
                client_id=TEXT,
                client_host=TEXT,
                topics=Array(TEXT),
                topic_regex=TEXT,
                assignment=_ASSIGNMENT,
                target_assignment=_ASSIGNMENT,
            ),
        ),
    )


_TEXTS = rows(key=TEXT, value=TEXT)
_TOPICS = rows(name=TEXT, partitions=Int32, replication_factor=Int16, configs=_TEXTS)
_TASKS = rows(subtopology=TEXT, partitions=Array(Int32))
_TASK_OFFSETS = rows(subtopology=TEXT, partition=Int32, offset=Int64)
_STREAMS_ASSIGNMENT = fields(active=_TASKS, standby=_TASKS, warmup=_TASKS)
_TOPOLOGY = fields(
    epoch=Int32,
    subtopologies=rows(
        subtopology=TEXT,
        source_topics=Array(TEXT),
        repartition_sinks=Array(TEXT),
        changelogs=_TOPICS,
        repartition_sources=_TOPICS,
    ),
)


class DescribeStreamsGroups(DescribeGroups):
    """The members of streams groups (KIP-1071); from Kafka 4.2 on, and 4.1 where it is switched on."""

    _MEMBERS = 7

    VERSIONS = (
        version(
            89,
            0,
            _GROUPS,
            fields(
                throttle_time_ms=Int32,
                groups=rows(
                    error_code=Int16,
                    error_message=TEXT,
                    group_id=TEXT,
                    state=TEXT,
                    group_epoch=Int32,
                    assignment_epoch=Int32,
                    topology=Nullable(_TOPOLOGY),
                    members=rows(
                        member_id=TEXT,
                        member_epoch=Int32,
                        instance_id=TEXT,
                        rack_id=TEXT,
                        client_id=TEXT,
                        client_host=TEXT,
                        topology_epoch=Int32,
                        process_id=TEXT,
                        user_endpoint=Nullable(fields(host=TEXT, port=Int16)),
                        client_tags=_TEXTS,
                        task_offsets=_TASK_OFFSETS,
                        task_end_offsets=_TASK_OFFSETS,
                        assignment=_STREAMS_ASSIGNMENT,
                        target_assignment=_STREAMS_ASSIGNMENT,
                        is_classic=Boolean,
                    ),
                    authorized_operations=Int32,
                ),
            ),
        ),
    )


class DescribeShareGroups(DescribeGroups):
    """The members of share groups (KIP-932); from Kafka 4.1 on."""

    _MEMBERS = 7

    VERSIONS = (
        version(
            77,
            1,
            _GROUPS,
            _described(
                member_id=TEXT,
                rack_id=TEXT,
                member_epoch=Int32,
                client_id=TEXT,
                client_host=TEXT,
                topics=Array(TEXT),
                assignment=_ASSIGNMENT,
            ),
        ),
    )


def rack_of(subscription: bytes) -> str | None:
    """The rack in the subscription of a member of a classic group; None if it has none that can be read."""
    data = BytesIO(subscription)
    try:
        if Int16.decode(data) < _RACKS_SINCE:
            return None
        rack: str | None = _SUBSCRIPTION.decode(data)[-1]
    except (ValueError, TypeError):  # of a client with a format of its own
        return None
    return rack
