"""The records of `control.topic`: the target states of the pipelines of a group, and requests to restart them.

Keys and values are like those of Kafka Connect's config topic (`KafkaConfigBackingStore`; KIP-745), with the consumer
group in place of the connector: `target-state-GROUP` with `{"state": "PAUSED"}`, and `restart-connector-GROUP` with
`{"include-tasks": true, "only-failed": false}`. The additional field `id` distinguishes requests: offsets do not, if a
topic was deleted and recreated.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from transforms.errors import MalformedError

TargetState = Literal["STARTED", "PAUSED", "STOPPED"]
"""The state that is requested for a pipeline; the names are Connect's."""

MAX_VALUE_BYTES = 4_096
"""The longest value that is read."""

_TARGET, _RESTART = "target-state-", "restart-connector-"
_STATE, _ONLY_FAILED, _TASKS, _ID = "state", "only-failed", "include-tasks", "id"
_MAX_ID = 64


@dataclass(frozen=True, slots=True)
class TargetStateRequest:
    """Requests a state for the pipelines of a group, until the next such request.

    Attributes:
        id: unique among requests; empty if the sender has set none.
    """

    group: str
    state: TargetState
    id: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """Requests that the pipelines of a group restart once.

    Attributes:
        only_failed: only those that have failed.
        id: unique among requests; empty if the sender has set none.
    """

    group: str
    only_failed: bool = False
    id: str = ""


Request = TargetStateRequest | Restart


def record_of(request: Request) -> tuple[bytes, bytes]:
    """Key and value of a request."""
    value: dict[str, object]
    if isinstance(request, Restart):
        key, value = _RESTART + request.group, {_TASKS: True, _ONLY_FAILED: request.only_failed}
    else:
        key, value = _TARGET + request.group, {_STATE: request.state}
    if request.id:
        value[_ID] = request.id
    return key.encode(), json.dumps(value).encode()


class ControlRecords:
    """Reads the records for certain groups.

    Args:
        groups: the ids of the groups. Records for all others are ignored: they are for other workers.
    """

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = {(kind + group).encode(): (kind, group) for group in groups for kind in (_TARGET, _RESTART)}

    def concerns(self, key: bytes | None) -> bool:
        """Whether a record with this key is for one of the groups."""
        return key in self._groups

    def read(self, key: bytes | None, value: bytes | None) -> Request | None:
        """The request; None if it is for other groups. A record without a value revokes the request before it.

        Raises:
            MalformedError: the record is for one of the groups, but not a valid request.
        """
        if key is None or key not in self._groups:
            return None
        kind, group = self._groups[key]
        if value is None:
            return TargetStateRequest(group, "STARTED") if kind == _TARGET else None
        fields = _fields(value)
        identity = _identity(fields.get(_ID, ""))
        if kind == _RESTART:
            return Restart(group, _flag(fields.get(_ONLY_FAILED, False)), identity)
        for state in get_args(TargetState):
            if fields.get(_STATE) == state:
                return TargetStateRequest(group, state, identity)
        raise MalformedError(_STATE, repr(fields.get(_STATE)), ", ".join(get_args(TargetState)))


def _fields(value: bytes) -> dict[str, object]:
    if len(value) > MAX_VALUE_BYTES:
        raise MalformedError("value", f"{len(value):,} bytes", f"{MAX_VALUE_BYTES:,} bytes")
    try:
        found = json.loads(value.decode())
    except (ValueError, RecursionError) as exc:
        raise MalformedError("value", repr(value[:40]), "a JSON object") from exc
    if not isinstance(found, dict):
        raise MalformedError("value", repr(value[:40]), "a JSON object")
    return found


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise MalformedError(_ONLY_FAILED, repr(value), "true or false")
    return value


def _identity(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_ID:
        raise MalformedError(_ID, repr(value)[:_MAX_ID], f"a string of up to {_MAX_ID} characters")
    return value
