"""The records of `control.topic`: what the pipelines of a group are to be, and requests to begin anew.

Keys and values are like those of Kafka Connect's topic of configurations (`KafkaConfigBackingStore`; KIP-745), with the
consumer group in the place of the connector: `target-state-GROUP` with `{"state": "PAUSED"}`, and
`restart-connector-GROUP` with `{"include-tasks": true, "only-failed": false}`. A field of our own, `id`, tells requests
apart: an offset does not, once a topic was deleted and made again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from transforms.errors import MalformedError

TargetState = Literal["STARTED", "PAUSED", "STOPPED"]
"""What a pipeline is asked to be; the names are Connect's."""

MAX_VALUE_BYTES = 4_096
"""The longest value that is read."""

_TARGET, _RESTART = "target-state-", "restart-connector-"
_STATE, _ONLY_FAILED, _TASKS, _ID = "state", "only-failed", "include-tasks", "id"
_MAX_ID = 64


@dataclass(frozen=True, slots=True)
class TargetStateRequest:
    """The pipelines of a group are to be in a state until somebody says otherwise.

    Attributes:
        id: no other request has it; empty if who asked has set none.
    """

    group: str
    state: TargetState
    id: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """The pipelines of a group are to begin anew, once.

    Attributes:
        only_failed: those alone that have failed.
        id: no other request has it; empty if who asked has set none.
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
    """Reads the records that concern some groups.

    Args:
        groups: their ids. The records of all others are those of other workers.
    """

    def __init__(self, groups: Collection[str]) -> None:
        self._groups = {(kind + group).encode(): (kind, group) for group in groups for kind in (_TARGET, _RESTART)}

    def concerns(self, key: bytes | None) -> bool:
        """Whether a record with this key is for one of the groups."""
        return key in self._groups

    def read(self, key: bytes | None, value: bytes | None) -> Request | None:
        """The request; None if it is for other groups. A record without value takes back what was asked before it.

        Raises:
            MalformedError: the record is for one of the groups, and is none that is known here.
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
