"""Responses of brokers as aiokafka has them decoded; what they refuse, and which versions they know."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.protocol.types import Array, Schema

_FILLED: Mapping[str, Any] = {
    "throttle_time_ms": 0,
    "error_code": 0,
    "error_message": None,
    "tags": {},
    "record_errors": [],
    "log_start_offset": 0,
    "preferred_read_replica": -1,
    "session_id": 0,
    "aborted_transactions": [],
    "cluster_id": "simulated",
    "is_internal": False,
    "offline_replicas": [],
    "authorized_operations": -2147483648,
    "rack": "a",  # not None, whose hash differs between processes until Python 3.12
    "config_synonyms": [],
    "group_instance_id": None,
    "instance_id": None,
    "read_only": False,
    "is_sensitive": False,
    "config_source": 1,
}
"""The values of fields that a handler leaves out."""

_Make = Callable[[Any], Any]
_makers: dict[int, tuple[Any, _Make]] = {}


def answer(request: Any, **values: Any) -> Any:
    """The response to a request, in its version. Rows are mappings; a field that is left out has its usual value."""
    kind = request.RESPONSE_TYPE
    kind = getattr(kind, "_kind", kind)  # `fetch_responses` stands in for it
    return kind(*_maker(kind.SCHEMA)(values))


def _maker(schema: Any) -> _Make:
    """Kept by the schema: as aiokafka's are, it lives as long as the process."""
    found = _makers.get(id(schema))
    if found is None:
        found = _makers[id(schema)] = schema, _made(schema)
    return found[1]


def _made(kind: Any) -> _Make:
    if isinstance(kind, Schema):
        names = [name for name, _ in _fields(kind)]
        usual = {name: _FILLED[name] for name in names if name in _FILLED}
        nested = [(name, _maker(each)) for name, each in _fields(kind) if isinstance(each, (Schema, Array))]
        picked = operator.itemgetter(*names) if len(names) > 1 else lambda row: tuple(row[name] for name in names)

        def row(given: Any) -> Any:
            filled = {**usual, **given}
            for name, make in nested:
                filled[name] = make(filled[name])
            return picked(filled)

        return row
    if isinstance(kind, Array) and isinstance(kind.array_of, (Schema, Array)):
        inner = _maker(kind.array_of)
        return lambda given: None if given is None else [inner(each) for each in given]
    return lambda given: given


def _fields(schema: Any) -> Any:
    return zip(schema.names, schema.fields, strict=True)


# By request, the fields of the row of a partition. FETCH names the list of topics, and the topic, in its own way.
_PARTITIONS: Mapping[int, Mapping[str, Any]] = {
    0: {"offset": -1, "timestamp": -1},
    1: {"highwater_offset": -1, "last_stable_offset": -1, "message_set": b""},
    2: {"timestamp": -1, "offset": -1, "leader_epoch": -1},
    8: {},
    23: {"leader_epoch": -1, "end_offset": -1},
    24: {},
    28: {},
}
_WHOLE: Mapping[int, Mapping[str, Any]] = {
    9: {"topics": []},
    10: {"coordinator_id": -1, "host": "", "port": -1},
    11: {"generation_id": -1, "group_protocol": "", "leader_id": "", "members": []},
    14: {"member_assignment": b""},
    22: {"producer_id": -1, "producer_epoch": -1},
}
_WITH_ERROR = {0, 8, 13, 22, 24, 25, 26, 28}


def refused(struct: Any, code: int) -> dict[str, Any]:
    """The fields of a response that only has an error."""
    filled = _PARTITIONS.get(struct.API_KEY)
    if filled is None:
        fields = {**_WHOLE.get(struct.API_KEY, {}), "error_code": code}
        return fields | {"member_id": struct.member_id} if struct.API_KEY == 11 else fields
    rows = []
    for topic, partitions, *_ in struct.topics:
        numbers = partitions if struct.API_KEY == 24 else [row[0] for row in partitions]
        parts = [{**filled, "partition": number, "error_code": code} for number in numbers]
        rows.append({"topic": topic, "topics": topic, "partitions": parts, "partition_errors": parts})
    return {"topics": rows, "errors": rows}


def with_error(struct: Any, fields: dict[str, Any], code: int) -> dict[str, Any]:
    """The fields of a response whose request was processed, though it says otherwise."""
    return refused(struct, code) if struct.API_KEY in _WITH_ERROR else fields


# What brokers of some releases of Kafka answer to ApiVersions: for each API the lowest and the highest version.
_2_8 = {
    0: (0, 9), 1: (0, 12), 2: (0, 6), 3: (0, 11), 8: (0, 8), 9: (0, 7), 10: (0, 3), 11: (0, 7), 12: (0, 4),
    13: (0, 4), 14: (0, 5), 15: (0, 5), 16: (0, 4), 17: (0, 1), 18: (0, 3), 19: (0, 7), 20: (0, 6), 21: (0, 2),
    22: (0, 4), 23: (0, 4), 24: (0, 3), 25: (0, 3), 26: (0, 3), 28: (0, 3), 32: (0, 4), 60: (0, 0),
}  # fmt: skip
_3_3 = _2_8 | {1: (0, 13), 2: (0, 7), 3: (0, 12), 9: (0, 8), 10: (0, 4), 11: (0, 9), 13: (0, 5), 66: (0, 0)}
_3_9 = _3_3 | {
    0: (0, 11), 1: (0, 17), 2: (0, 9), 8: (0, 9), 9: (0, 9), 10: (0, 6), 16: (0, 5), 18: (0, 4), 22: (0, 5),
    24: (0, 5), 25: (0, 4), 26: (0, 4), 28: (0, 4), 60: (0, 1), 66: (0, 1),
}  # fmt: skip
_4_1 = {
    0: (3, 12), 1: (4, 17), 2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 28: (0, 5), 32: (1, 4), 60: (0, 2), 66: (0, 1),
}  # fmt: skip

RELEASES: Mapping[str, Mapping[int, tuple[int, int]]] = {"2.8": _2_8, "3.3": _3_3, "3.9": _3_9, "4.1": _4_1}
