"""Responses of brokers as aiokafka has them decoded: made of names and values, in the order of their schema."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.protocol.types import Array, Schema

__all__ = ["answer", "values"]

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


def values(request: Any) -> Mapping[str, Any]:
    """The fields of a request, by name."""
    return {name: getattr(request, name) for name in request.SCHEMA.names}


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
