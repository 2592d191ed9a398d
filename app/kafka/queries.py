"""Requests to a broker that aiokafka does not have, or has only in versions that say too little.

Schemas are those of Apache Kafka's `clients/src/main/resources/common/message`, as of 4.1. A `Query` goes where one of
aiokafka's requests goes; it takes the newest version that both sides know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.admin import DescribeClientQuotasRequest_v0, DescribeClientQuotasResponse_v0
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

__all__ = [
    "ASKED_OFFSETS",
    "COMMITTED_OFFSETS",
    "OLD_TEXT",
    "TAGS",
    "TEXT",
    "DescribeAcls",
    "DescribeCluster",
    "DescribeQuotas",
    "ListConfigResources",
    "ListTransactions",
    "Query",
    "version",
]

TEXT = CompactString("utf-8")
OLD_TEXT = String("utf-8")
TAGS = ("tags", TaggedFields)
# Of OffsetFetch: which partitions are asked for, and what is committed of them.
ASKED_OFFSETS = ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS))
COMMITTED_OFFSETS = (
    "topics",
    CompactArray(
        ("topic", TEXT),
        (
            "partitions",
            CompactArray(
                ("partition", Int32),
                ("offset", Int64),
                ("leader_epoch", Int32),
                ("metadata", TEXT),
                ("error_code", Int16),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


def version(key: int, number: int, request: Schema, response: Schema, *, flexible: bool = True) -> type[RequestStruct]:
    """A version of a request, with that of its response."""
    answer = type(f"Response{key}v{number}", (Response,), {"API_KEY": key, "API_VERSION": number, "SCHEMA": response})
    fields = {
        "API_KEY": key,
        "API_VERSION": number,
        "SCHEMA": request,
        "RESPONSE_TYPE": answer,
        "FLEXIBLE_VERSION": flexible,
    }
    made: type[RequestStruct] = type(f"Request{key}v{number}", (RequestStruct,), fields)
    return made


class Query:
    """A request, for `AIOKafkaAdminClient` to send; subclasses say in which versions.

    Args:
        values: of the fields, by name; tagged fields are empty. Those that a version does not have are left.
    """

    VERSIONS: Sequence[type[RequestStruct]] = ()

    def __init__(self, **values: object) -> None:
        self._values: Mapping[str, object] = {"tags": {}, **values}

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> RequestStruct:
        """What goes to a broker that knows these versions, by key.

        Raises:
            IncompatibleBrokerVersion: it knows none of ours.
        """
        for each in reversed(self.VERSIONS):
            least, most = versions.get(each.API_KEY, (0, -1))
            if least <= each.API_VERSION <= most:
                return each(*(self._values[name] for name in each.SCHEMA.names))
        raise IncompatibleBrokerVersion(f"the broker is too old or too new for {type(self).__name__}")


class ListTransactions(Query):
    """The transactional ids that a broker coordinates, whatever the state; from Kafka 3.0 on."""

    VERSIONS = (
        version(
            66,
            0,
            Schema(("states", CompactArray(TEXT)), ("producer_ids", CompactArray(Int64)), TAGS),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("unknown_states", CompactArray(TEXT)),
                (
                    "transactions",
                    CompactArray(("transactional_id", TEXT), ("producer_id", Int64), ("state", TEXT), TAGS),
                ),
                TAGS,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(states=[], producer_ids=[])


_ANY = 1


class DescribeAcls(Query):
    """All ACLs of the cluster."""

    VERSIONS = (
        version(
            29,
            1,
            Schema(
                ("resource_type", Int8),
                ("resource_name", OLD_TEXT),
                ("pattern_type", Int8),
                ("principal", OLD_TEXT),
                ("host", OLD_TEXT),
                ("operation", Int8),
                ("permission_type", Int8),
            ),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("error_message", OLD_TEXT),
                (
                    "resources",
                    Array(
                        ("resource_type", Int8),
                        ("resource_name", OLD_TEXT),
                        ("pattern_type", Int8),
                        (
                            "acls",
                            Array(
                                ("principal", OLD_TEXT),
                                ("host", OLD_TEXT),
                                ("operation", Int8),
                                ("permission_type", Int8),
                            ),
                        ),
                    ),
                ),
            ),
            flexible=False,
        ),
        version(
            29,
            3,
            Schema(
                ("resource_type", Int8),
                ("resource_name", TEXT),
                ("pattern_type", Int8),
                ("principal", TEXT),
                ("host", TEXT),
                ("operation", Int8),
                ("permission_type", Int8),
                TAGS,
            ),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("error_message", TEXT),
                (
                    "resources",
                    CompactArray(
                        ("resource_type", Int8),
                        ("resource_name", TEXT),
                        ("pattern_type", Int8),
                        (
                            "acls",
                            CompactArray(
                                ("principal", TEXT),
                                ("host", TEXT),
                                ("operation", Int8),
                                ("permission_type", Int8),
                                TAGS,
                            ),
                        ),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(
            resource_type=_ANY,
            resource_name=None,
            pattern_type=_ANY,
            principal=None,
            host=None,
            operation=_ANY,
            permission_type=_ANY,
        )


class DescribeQuotas(Query):
    """All quotas of users, client ids and addresses; from Kafka 2.6 on."""

    VERSIONS = (
        version(48, 0, DescribeClientQuotasRequest_v0.SCHEMA, DescribeClientQuotasResponse_v0.SCHEMA, flexible=False),
    )

    def __init__(self) -> None:
        super().__init__(components=[], strict=False)


class ListConfigResources(Query):
    """All that configs are set for or could be set for; from Kafka 4.1 on."""

    VERSIONS = (
        version(
            74,
            1,
            Schema(("resource_types", CompactArray(Int8)), TAGS),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("resources", CompactArray(("resource_name", TEXT), ("resource_type", Int8), TAGS)),
                TAGS,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(resource_types=[])


class DescribeCluster(Query):
    """The brokers, and what the user may do with the cluster as such; from Kafka 2.8 on."""

    VERSIONS = (
        version(
            60,
            0,
            Schema(("include_authorized_operations", Boolean), TAGS),
            Schema(
                ("throttle_time_ms", Int32),
                ("error_code", Int16),
                ("error_message", TEXT),
                ("cluster_id", TEXT),
                ("controller_id", Int32),
                (
                    "brokers",
                    CompactArray(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS),
                ),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(include_authorized_operations=True)
