"""Requests about groups, their members and their offsets; see `app.kafka.queries`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactBytes,
    Int16,
    Int32,
    Int64,
    Schema,
)

from app.kafka.queries import ASKED_OFFSETS, COMMITTED_OFFSETS, OLD_TEXT, TAGS, TEXT, Query, version

__all__ = [
    "DescribeConsumerGroups",
    "DescribeGroups",
    "DescribeShareGroups",
    "FetchOffsets",
    "ListGroups",
]

_UUID_BYTES = 16


class _Uuid(Int64):  # type: ignore[misc]  # aiokafka has no types
    """Sixteen bytes that nobody here looks at."""

    @classmethod
    def decode(cls, data: Any) -> bytes:
        found: bytes = data.read(_UUID_BYTES)
        return found


class ListGroups(Query):
    """The groups that a broker coordinates; `type` from Kafka 3.8 on, else all are taken for classic ones."""

    VERSIONS = (
        version(
            16,
            1,
            Schema(),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("groups", Array(("group_id", OLD_TEXT), ("protocol_type", OLD_TEXT))),
            ),
            flexible=False,
        ),
        version(
            16,
            5,
            Schema(("states_filter", CompactArray(TEXT)), ("types_filter", CompactArray(TEXT)), TAGS),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                (
                    "groups",
                    CompactArray(("group_id", TEXT), ("protocol_type", TEXT), ("state", TEXT), ("type", TEXT), TAGS),
                ),
                TAGS,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(states_filter=[], types_filter=[])


class DescribeGroups(Query):
    """The members of classic groups; with instance ids from Kafka 2.3 on.

    Args:
        groups: ids of groups that the broker coordinates.
    """

    VERSIONS = (
        version(
            15,
            4,
            Schema(("groups", Array(OLD_TEXT)), ("include_authorized_operations", Boolean)),
            Schema(
                ("throttle_time_ms", Int32),
                (
                    "groups",
                    Array(
                        ("error_code", Int16),
                        ("group_id", OLD_TEXT),
                        ("state", OLD_TEXT),
                        ("protocol_type", OLD_TEXT),
                        ("protocol", OLD_TEXT),
                        (
                            "members",
                            Array(
                                ("member_id", OLD_TEXT),
                                ("instance_id", OLD_TEXT),
                                ("client_id", OLD_TEXT),
                                ("client_host", OLD_TEXT),
                                ("metadata", Bytes),
                                ("assignment", Bytes),
                            ),
                        ),
                        ("authorized_operations", Int32),
                    ),
                ),
            ),
            flexible=False,
        ),
        version(
            15,
            5,
            Schema(("groups", CompactArray(TEXT)), ("include_authorized_operations", Boolean), TAGS),
            Schema(
                ("throttle_time_ms", Int32),
                (
                    "groups",
                    CompactArray(
                        ("error_code", Int16),
                        ("group_id", TEXT),
                        ("state", TEXT),
                        ("protocol_type", TEXT),
                        ("protocol", TEXT),
                        (
                            "members",
                            CompactArray(
                                ("member_id", TEXT),
                                ("instance_id", TEXT),
                                ("client_id", TEXT),
                                ("client_host", TEXT),
                                ("metadata", CompactBytes),
                                ("assignment", CompactBytes),
                                TAGS,
                            ),
                        ),
                        ("authorized_operations", Int32),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
    )

    def __init__(self, groups: Sequence[str]) -> None:
        super().__init__(groups=groups, include_authorized_operations=False)


_ASSIGNMENT = Schema(
    (
        "topic_partitions",
        CompactArray(("topic_id", _Uuid), ("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS),
    ),
    TAGS,
)


def _described(*member: tuple[str, Any]) -> Schema:
    return Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", TEXT),
                ("group_id", TEXT),
                ("state", TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", TEXT),
                ("members", CompactArray(*member, TAGS)),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
        TAGS,
    )


class _DescribeNewGroups(Query):
    def __init__(self, groups: Sequence[str]) -> None:
        super().__init__(groups=groups, include_authorized_operations=False)


_GROUPS = Schema(("groups", CompactArray(TEXT)), ("include_authorized_operations", Boolean), TAGS)


class DescribeConsumerGroups(_DescribeNewGroups):
    """The members of groups of KIP-848.

    Args:
        groups: ids of groups that the broker coordinates.
    """

    VERSIONS = (
        version(
            69,
            0,
            _GROUPS,
            _described(
                ("member_id", TEXT),
                ("instance_id", TEXT),
                ("rack_id", TEXT),
                ("member_epoch", Int32),
                ("client_id", TEXT),
                ("client_host", TEXT),
                ("topics", CompactArray(TEXT)),
                ("topic_regex", TEXT),
                ("assignment", _ASSIGNMENT),
                ("target_assignment", _ASSIGNMENT),
            ),
        ),
    )


class DescribeShareGroups(_DescribeNewGroups):
    """The members of share groups (KIP-932).

    Args:
        groups: ids of groups that the broker coordinates.
    """

    VERSIONS = (
        version(
            77,
            1,
            _GROUPS,
            _described(
                ("member_id", TEXT),
                ("rack_id", TEXT),
                ("member_epoch", Int32),
                ("client_id", TEXT),
                ("client_host", TEXT),
                ("topics", CompactArray(TEXT)),
                ("assignment", _ASSIGNMENT),
            ),
        ),
    )


class FetchOffsets(Query):
    """The committed offsets of groups, with their metadata; several groups at once from Kafka 3.0 on.

    Args:
        groups: ids of groups that the broker coordinates.
    """

    VERSIONS = (
        version(
            9,
            8,
            Schema(
                ("groups", CompactArray(("group_id", TEXT), ASKED_OFFSETS, TAGS)),
                ("require_stable", Boolean),
                TAGS,
            ),
            Schema(
                ("throttle_time_ms", Int32),
                ("groups", CompactArray(("group_id", TEXT), COMMITTED_OFFSETS, ("error_code", Int16), TAGS)),
                TAGS,
            ),
        ),
    )

    def __init__(self, groups: Sequence[str]) -> None:
        super().__init__(groups=[(group, None, {}) for group in groups], require_stable=False)
