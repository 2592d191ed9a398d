"""Requests and responses in words, for the history of a seed: those that change something, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["codes", "exchange", "request_name"]

_NAMES: Mapping[int, str] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    32: "DescribeConfigs",
    60: "DescribeCluster",
    66: "ListTransactions",
}


def request_name(request: Any) -> str:
    """The API of a request; `connect` for none."""
    if request is None:
        return "connect"
    return _NAMES.get(request.API_KEY) or str(request.API_KEY)


def codes(fields: Any) -> Iterator[int]:
    """The error codes in the fields of a response."""
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            if name == "error_code":
                if value:
                    yield value
            elif isinstance(value, list):
                for each in value:
                    yield from codes(each)


def exchange(request: Any, fields: Mapping[str, Any]) -> str | None:
    """A request and its response in words; None for what only asks, and for a heartbeat, unless it is refused."""
    errors = sorted({*codes(fields)})
    words = _WORDS.get(request.API_KEY)
    if words is None and not errors:
        return None
    text = f"{request_name(request)} {'' if words is None else words(request, fields)}".rstrip()
    return f"{text}: error {', '.join(map(str, errors))}" if errors else text


def _produce(request: Any, fields: Mapping[str, Any]) -> str:
    bases = {
        (topic["topic"], row["partition"]): row["offset"] for topic in fields["topics"] for row in topic["partitions"]
    }
    places = [
        f"{topic}-{row[0]} {int.from_bytes(bytes(row[1])[57:61], 'big')} records"
        f" at {bases.get((topic, row[0]), '?')}, producer {int.from_bytes(bytes(row[1])[43:51], 'big', signed=True)}"
        f" epoch {int.from_bytes(bytes(row[1])[51:53], 'big', signed=True)}"
        for topic, rows in request.topics
        for row in rows
    ]
    return "; ".join(places)


def _commit(request: Any, _: Mapping[str, Any]) -> str:
    places = [f"{topic}-{row[0]} at {row[1]}" for topic, rows, *_ in request.topics for row in rows]
    names = request.SCHEMA.names
    generation = next((f", generation {getattr(request, name)}" for name in names if "generation" in name), "")
    return f"{', '.join(places)}{generation}"


def _offsets(_: Any, fields: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{topic['topic']}-{row['partition']} at {row['offset']}"
        for topic in fields["topics"]
        for row in topic["partitions"]
    )


def _producer(request: Any, fields: Mapping[str, Any]) -> str:
    return f"{request.transactional_id}, producer {fields['producer_id']} epoch {fields['producer_epoch']}"


def _add(request: Any, _: Mapping[str, Any]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, numbers in request.topics for number in numbers)


def _ended(request: Any, _: Mapping[str, Any]) -> str:
    return f"{request.transactional_id}, {'commits' if request.transaction_result else 'aborts'}"


def _generation(_: Any, fields: Mapping[str, Any]) -> str:
    return f"generation {fields['generation_id']}, {fields['member_id']}, {len(fields['members'])} members"


_WORDS: Mapping[int, Callable[[Any, Mapping[str, Any]], str]] = {
    0: _produce,
    8: _commit,
    9: _offsets,
    11: _generation,
    13: lambda *_: "",
    22: _producer,
    24: _add,
    25: lambda request, _: str(request.group_id),
    26: _ended,
    28: _commit,
}
