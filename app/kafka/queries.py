"""Requests to a broker that aiokafka does not have, or has only in versions that lack a field.

The fields are as in Apache Kafka's `clients/src/main/resources/common/message`, as of 4.1. `AdminClient.send`
sends a `Query` as it sends requests of aiokafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactBytes,
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
    "METADATA_PARTITIONS",
    "TEXT",
    "DescribeCluster",
    "DescribeScramUsers",
    "ListConfigResources",
    "ListTransactions",
    "Nullable",
    "Query",
    "fields",
    "metadata_answer",
    "rows",
    "version",
]

TEXT = String("utf-8")
_TAGS = ("tags", TaggedFields)


def fields(**kinds: Any) -> Schema:
    """The fields of a request, a response or a row, in order."""
    return Schema(*kinds.items())


def rows(**kinds: Any) -> Array:
    """An array of rows with these fields."""
    return Array(fields(**kinds))


class Nullable:
    """A group of fields that may be missing: a byte before it says whether it is there."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def encode(self, item: Sequence[Any] | None) -> bytes:
        """The bytes of the fields, or of none."""
        data: bytes = Int8.encode(-1) if item is None else Int8.encode(1) + self.schema.encode(item)
        return data

    def decode(self, data: BytesIO) -> Any:
        """The fields; None if they are missing."""
        return None if Int8.decode(data) < 0 else self.schema.decode(data)

    def repr(self, value: Any) -> str:
        """For logs of aiokafka."""
        return repr(value)


METADATA_PARTITIONS = rows(
    error_code=Int16,
    partition=Int32,
    leader=Int32,
    leader_epoch=Int32,
    replicas=Array(Int32),
    isr=Array(Int32),
    offline_replicas=Array(Int32),
)
"""The partitions of a topic in an answer with metadata, from version 7 on."""


def metadata_answer(**topic: Any) -> Schema:
    """An answer with metadata, from version 7 on; `topic` has the fields of its rows of topics."""
    return fields(
        throttle_time_ms=Int32,
        brokers=rows(node_id=Int32, host=TEXT, port=Int32, rack=TEXT),
        cluster_id=TEXT,
        controller_id=Int32,
        topics=rows(**topic),
    )


def version(key: int, number: int, request: Schema, response: Schema, *, flexible: bool = True) -> type[RequestStruct]:
    """A version of a request, with its response.

    Args:
        key: of the API.
        number: of the version.
        request: its fields.
        response: its fields; fields at the end that nobody reads may be left out.
        flexible: whether the version has compact types and tagged fields (KIP-482). They are put into the schemas here:
            each row of an array ends with its tagged fields, and so does the request.
    """
    if flexible:
        request = Schema(*_compact_fields(request), _TAGS)
        response = Schema(*_compact_fields(response))
    answer = type(f"Response{key}v{number}", (Response,), {"API_KEY": key, "API_VERSION": number, "SCHEMA": response})
    members: dict[str, Any] = {"API_KEY": key, "API_VERSION": number, "FLEXIBLE_VERSION": flexible}
    members |= {"SCHEMA": request, "RESPONSE_TYPE": answer}
    made: type[RequestStruct] = type(f"Request{key}v{number}", (RequestStruct,), members)
    return made


def _compact_fields(schema: Schema) -> list[tuple[str, Any]]:
    return [(name, _compact(kind)) for name, kind in zip(schema.names, schema.fields, strict=True)]


def _compact(kind: Any) -> Any:
    if isinstance(kind, Schema):
        return Schema(*_compact_fields(kind), _TAGS)
    if isinstance(kind, Nullable):
        return Nullable(_compact(kind.schema))
    if isinstance(kind, Array):
        return CompactArray(_compact(kind.array_of))
    if isinstance(kind, String):
        return CompactString(kind.encoding)
    return CompactBytes if kind is Bytes else kind


class Query:
    """A request for `AdminClient.send`, in the newest version that the broker knows too.

    Args:
        values: of the fields, by name. A version takes the fields that it has. Tagged fields of the request are empty.
    """

    VERSIONS: Sequence[type[RequestStruct]] = ()  # the newest last

    def __init__(self, **values: object) -> None:
        self._values: Mapping[str, object] = {"tags": {}, **values}

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> RequestStruct:
        """The request for a broker that knows these versions, by key.

        Raises:
            IncompatibleBrokerVersion: it knows none of ours.
        """
        for each in reversed(self.VERSIONS):
            least, most = versions.get(each.API_KEY, (0, -1))
            if least <= each.API_VERSION <= most:
                return each(*(self._values[name] for name in each.SCHEMA.names))
        raise IncompatibleBrokerVersion(f"the broker is too old or too new for {type(self).__name__}")


class ListTransactions(Query):
    """The transactional ids that a broker coordinates, in every state; from Kafka 3.0 on."""

    VERSIONS = (
        version(
            66,
            0,
            fields(states=Array(TEXT), producer_ids=Array(Int64)),
            fields(
                throttle_time_ms=Int32,
                error_code=Int16,
                unknown_states=Array(TEXT),
                transactions=rows(transactional_id=TEXT, producer_id=Int64, state=TEXT),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(states=[], producer_ids=[])


class ListConfigResources(Query):
    """All resources that have configs or could have some; from Kafka 4.1 on."""

    VERSIONS = (
        version(
            74,
            1,
            fields(resource_types=Array(Int8)),
            fields(throttle_time_ms=Int32, error_code=Int16, resources=rows(resource_name=TEXT, resource_type=Int8)),
        ),
    )

    def __init__(self) -> None:
        super().__init__(resource_types=[])


class DescribeScramUsers(Query):
    """The users that have a SCRAM credential (KIP-554); from Kafka 2.7 on."""

    VERSIONS = (
        version(
            50,
            0,
            fields(users=rows(name=TEXT)),
            fields(
                throttle_time_ms=Int32,
                error_code=Int16,
                error_message=TEXT,
                results=rows(
                    user=TEXT, error_code=Int16, error_message=TEXT, credentials=rows(mechanism=Int8, iterations=Int32)
                ),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(users=[])  # all


class DescribeCluster(Query):
    """The brokers, and the operations on the cluster that the user may do; from Kafka 2.8 on."""

    VERSIONS = (
        version(
            60,
            0,
            fields(include_authorized_operations=Boolean),
            fields(
                throttle_time_ms=Int32,
                error_code=Int16,
                error_message=TEXT,
                cluster_id=TEXT,
                controller_id=Int32,
                brokers=rows(node_id=Int32, host=TEXT, port=Int32, rack=TEXT),
                authorized_operations=Int32,
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__(include_authorized_operations=True)
