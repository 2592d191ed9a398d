"""The test vectors as they are read; README.md beside this file says what they are."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transforms.record import Header, Record

VECTORS = [Path(__file__).with_name(name) for name in ("reference.json", "encryption.json")]


@dataclass(frozen=True)
class Case:
    """One vector; the names are those of the file."""

    name: str
    about: str
    part: str
    root: str
    topic: str
    threshold: int
    compression: str
    max_bytes: int
    wire: Record
    write: str | None = None
    plain: Record | None = None
    payload: tuple[str, bytes] | None = None
    error: str | None = None
    keys: dict[str, str] = field(default_factory=dict)


def cases() -> list[Case]:
    """All vectors, in the order of the files."""
    wholes = [json.loads(file.read_text(encoding="utf-8")) for file in VECTORS]
    return [_case({**whole["defaults"], **each}) for whole in wholes for each in whole["cases"]]


def _case(found: dict[str, Any]) -> Case:
    if found["wire"] == "plain":
        found["wire"] = found["plain"]
    for name in ("plain", "wire"):
        if name in found:
            found[name] = _record(found[name])
    if "payload" in found:
        found["payload"] = found["payload"]["path"], _some(found["payload"]["bytes"])
    return Case(**found)


def _record(found: dict[str, Any]) -> Record:
    headers: list[Header] = [(name, _bytes(value)) for name, value in found["headers"]]
    return Record(_bytes(found["key"]), _bytes(found["value"]), tuple(headers))


def _bytes(found: Any) -> bytes | None:
    return None if found is None else _some(found)


def _some(found: Any) -> bytes:
    if isinstance(found, str):
        return found.encode()
    if "times" in found:
        return str(found["text"]).encode() * int(found["times"])
    return base64.b64decode(found["base64"], validate=True)
