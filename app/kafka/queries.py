"""Queries: requests to a broker that aiokafka lacks, or has only in versions without a required field.

Their fields are those of Apache Kafka's `clients/src/main/resources/common/message`, as of 4.1, written as a list of
`name:kind`: `[kind]` and `[fields]` are arrays, `(fields)` is a group of fields, and `{fields}` a group that may be
missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, for_code
from aiokafka.protocol.admin import ListGroupsRequest_v1
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactBytes,
    CompactString,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from app.kafka.gate import Versions

_NUMBERS = {"int8": Int8, "int16": Int16, "int32": Int32, "int64": Int64, "float64": Float64, "boolean": Boolean}
_KINDS = {**_NUMBERS, "text": String("utf-8"), "bytes": Bytes}
_COMPACT_KINDS = {**_NUMBERS, "text": CompactString("utf-8"), "bytes": CompactBytes}
_TAGS = ("tags", TaggedFields)


class _Nullable:
    """A group of fields that may be missing: a byte before it shows whether it is present."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def encode(self, item: Sequence[Any] | None) -> bytes:
        data: bytes = Int8.encode(-1) if item is None else Int8.encode(1) + self._schema.encode(item)
        return data

    def decode(self, data: BytesIO) -> Any:
        return None if Int8.decode(data) < 0 else self._schema.decode(data)

    def repr(self, value: Any) -> str:
        return repr(value)


def schema(text: str, *, flexible: bool = False, tagged: bool = False) -> Schema:
    """The fields that a text describes; `flexible` adds compact types, and tagged fields after groups (KIP-482)."""
    words = re.findall(r"\w+|[^\w\s:]", text)
    return _fields(words[::-1], flexible=flexible, tagged=tagged)  # read from the end of the list


def _fields(words: list[str], *, flexible: bool, tagged: bool) -> Schema:
    found = []
    while words and words[-1] not in "])}":
        found.append((words.pop(), _kind(words, flexible=flexible)))
    return Schema(*found, *([_TAGS] if flexible and tagged else []))


def _kind(words: list[str], *, flexible: bool) -> Any:
    kinds = _COMPACT_KINDS if flexible else _KINDS
    word = words.pop()
    if word in kinds:
        return kinds[word]
    alone = words[-1] in kinds
    inner = _kind(words, flexible=flexible) if alone else _fields(words, flexible=flexible, tagged=True)
    words.pop()  # the closing bracket
    if word == "[":
        return (CompactArray if flexible else Array)(inner)
    return _Nullable(inner) if word == "{" else inner


def version(request: str, response: str, *, flexible: bool = True) -> type[RequestStruct]:
    """A version of a request.

    Args:
        request: the key of its API, a dot, the number of the version, and the fields.
        response: the fields of the response. Fields at its end that nobody reads may be omitted.
        flexible: see `schema`.
    """
    numbers, _, text = request.partition(" ")
    key, number = map(int, numbers.split("."))
    asked, found = schema(text, flexible=flexible, tagged=True), schema(response, flexible=flexible)
    members: dict[str, Any] = {"API_KEY": key, "API_VERSION": number}
    answer = type(f"Response{key}v{number}", (Response,), {**members, "SCHEMA": found})
    members |= {"FLEXIBLE_VERSION": flexible, "SCHEMA": asked, "RESPONSE_TYPE": answer}
    made: type[RequestStruct] = type(f"Request{key}v{number}", (RequestStruct,), members)
    return made


def knows(versions: Versions, made: type[RequestStruct]) -> bool:
    """Whether a broker with these versions supports this version of a request."""
    least, most = versions.get(made.API_KEY, (0, -1))
    number: int = made.API_VERSION
    return least <= number <= most


class Query:
    """A request that is sent in the newest version that the broker supports as well, like requests of aiokafka.

    Args:
        values: of the fields, by name; an empty list for those that are missing. A version may have only some of them.
    """

    VERSION: type[RequestStruct]
    FORMER: type[RequestStruct] | None = None  # for brokers that do not support `VERSION` yet

    def __init__(self, **values: object) -> None:
        self._values = defaultdict[str, object](list, tags={}, **values)

    def prepare(self, versions: Versions) -> RequestStruct:
        """The request for a broker that supports these versions, by API key.

        Raises:
            IncompatibleBrokerVersion: it supports none of ours.
        """
        for each in (self.VERSION, self.FORMER):
            if each is not None and knows(versions, each):
                return each(*(self._values[name] for name in each.SCHEMA.names))
        raise IncompatibleBrokerVersion(f"the broker is too old or too new for {type(self).__name__}")


def check_code(code: int) -> None:
    """Raises the KafkaError of an error code in a response; 0 means no error."""
    error = for_code(code)
    if error.errno != 0:
        raise error


# --- metadata ---------------------------------------------------------------------------------------------------------


def metadata_answer(topic: str, more: str = "") -> str:
    """The fields of a metadata response, from version 7 on: `topic` before a topic's partitions, `more` after them."""
    return (
        "throttle_time_ms:int32 brokers:[node_id:int32 host:text port:int32 rack:text] cluster_id:text "
        f"controller_id:int32 topics:[{topic} partitions:[error_code:int16 partition:int32 leader:int32 "
        f"leader_epoch:int32 replicas:[int32] isr:[int32] offline_replicas:[int32]] {more}]"
    )


# --- the whole cluster ------------------------------------------------------------------------------------------------


class ListTransactions(Query):
    """The transactional ids that a broker coordinates, in every state; from Kafka 3.0 on."""

    VERSION = version(
        "66.0 states:[text] producer_ids:[int64]",
        "throttle_time_ms:int32 error_code:int16 unknown_states:[text] "
        "transactions:[transactional_id:text producer_id:int64 state:text]",
    )


class ListConfigResources(Query):
    """All resources that have configs or could have some; from Kafka 4.1 on."""

    VERSION = version(
        "74.1 resource_types:[int8]",
        "throttle_time_ms:int32 error_code:int16 resources:[resource_name:text resource_type:int8]",
    )


class DescribeScramUsers(Query):
    """The users that have a SCRAM credential (KIP-554); from Kafka 2.7 on."""

    VERSION = version(
        "50.0 users:[name:text]",
        "throttle_time_ms:int32 error_code:int16 error_message:text results:[user:text error_code:int16 "
        "error_message:text credentials:[mechanism:int8 iterations:int32]]",
    )


class DescribeCluster(Query):
    """The brokers, and with `include_authorized_operations` what the user may do; from Kafka 2.8 on."""

    VERSION = version(
        "60.0 include_authorized_operations:boolean",
        "throttle_time_ms:int32 error_code:int16 error_message:text cluster_id:text controller_id:int32 "
        "brokers:[node_id:int32 host:text port:int32 rack:text] authorized_operations:int32",
    )


# --- groups and their members -----------------------------------------------------------------------------------------


class ListGroups(Query):
    """The groups that a broker coordinates, with their `type` from Kafka 3.8 on; older brokers have classic groups."""

    VERSION = version(
        "16.5 states_filter:[text] types_filter:[text]",
        "throttle_time_ms:int32 error_code:int16 groups:[group_id:text protocol_type:text state:text type:text]",
    )
    FORMER = ListGroupsRequest_v1


_GROUPS = "groups:[text] include_authorized_operations:boolean"
_ANOTHER_TRY = {14, 15, 16}  # the coordinator is loading, is not available, is another broker


def _described(numbers: str, assigned: str, members: str) -> type[RequestStruct]:
    """The version that describes groups of a newer protocol: the fields after the epochs, and those of members."""
    return version(
        f"{numbers} {_GROUPS}",
        "throttle_time_ms:int32 groups:[error_code:int16 error_message:text group_id:text state:text group_epoch:int32 "
        f"assignment_epoch:int32 {assigned} members:[{members}] authorized_operations:int32]",
    )


_ASSIGNMENT = "(partitions:[id_high:int64 id_low:int64 topic:text partitions:[int32]])"
_TEXTS = "[key:text value:text]"
_TOPICS = f"[name:text partitions:int32 replication_factor:int16 configs:{_TEXTS}]"
_TASKS = "[subtopology:text partitions:[int32]]"
_TASK_OFFSETS = "[subtopology:text partition:int32 offset:int64]"
_STREAMS_ASSIGNMENT = f"(active:{_TASKS} standby:{_TASKS} warmup:{_TASKS})"

GROUP_TYPES: Mapping[str, type[RequestStruct]] = {
    "classic": version(
        f"15.4 {_GROUPS}",
        "throttle_time_ms:int32 groups:[error_code:int16 group_id:text state:text protocol_type:text protocol:text "
        "members:[member_id:text instance_id:text client_id:text client_host:text metadata:bytes assignment:bytes] "
        "authorized_operations:int32]",
        flexible=False,
    ),
    "consumer": _described(
        "69.0",
        "assignor:text",
        "member_id:text instance_id:text rack_id:text member_epoch:int32 client_id:text client_host:text topics:[text] "
        f"topic_regex:text assignment:{_ASSIGNMENT} target_assignment:{_ASSIGNMENT}",
    ),
    "share": _described(
        "77.1",
        "assignor:text",
        "member_id:text rack_id:text member_epoch:int32 client_id:text client_host:text topics:[text] "
        f"assignment:{_ASSIGNMENT}",
    ),
    "streams": _described(
        "89.0",
        "topology:{epoch:int32 subtopologies:[subtopology:text source_topics:[text] repartition_sinks:[text] "
        f"changelogs:{_TOPICS} repartition_sources:{_TOPICS}]}}",
        "member_id:text member_epoch:int32 instance_id:text rack_id:text client_id:text client_host:text "
        f"topology_epoch:int32 process_id:text user_endpoint:{{host:text port:int16}} client_tags:{_TEXTS} "
        f"task_offsets:{_TASK_OFFSETS} task_end_offsets:{_TASK_OFFSETS} assignment:{_STREAMS_ASSIGNMENT} "
        f"target_assignment:{_STREAMS_ASSIGNMENT} is_classic:boolean",
    ),
}
"""The requests for groups by their type: from Kafka 2.3, 4.0 (KIP-848), 4.1 (KIP-932) and 4.2 on (KIP-1071)."""


class DescribeGroups(Query):
    """The members of groups of one type that the broker coordinates, with their instance ids."""

    def __init__(self, groups: Sequence[str], group_type: str = "classic") -> None:
        super().__init__(groups=groups, include_authorized_operations=False)
        self.VERSION = GROUP_TYPES[group_type]

    @staticmethod
    def members(response: Any) -> int:
        """The number of members of the groups in a response; a group that is missing, or of another type, has none.

        Raises:
            KafkaError: the broker does not coordinate them, or is not ready.
        """
        groups = response.to_object()["groups"]
        for group in groups:
            if group["error_code"] in _ANOTHER_TRY:
                raise for_code(group["error_code"])
        return sum(len(group["members"]) for group in groups)


_RACKS_SINCE = 3  # the version of a subscription
_SUBSCRIPTION = schema(
    "topics:[text] user_data:bytes owned_partitions:[topic:text partitions:[int32]] generation:int32 rack_id:text"
)


def rack_of(subscription: bytes) -> str | None:
    """The rack in the subscription of a member of a classic group; None if no rack can be read."""
    data = BytesIO(subscription)
    try:
        if Int16.decode(data) < _RACKS_SINCE:
            return None
        rack: str | None = _SUBSCRIPTION.decode(data)[-1]
    except (ValueError, TypeError):  # of a client with a custom format
        return None
    return rack
