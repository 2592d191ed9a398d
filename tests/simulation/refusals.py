"""Responses of brokers to requests that they refuse as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["refused", "with_error"]

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
