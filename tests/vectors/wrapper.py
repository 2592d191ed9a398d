"""The test vectors of the message wrapper, which Wrapper.java has written, as they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transforms.record import Record
from transforms.wrapper import HeaderTable, MessageWrapper

VECTORS = Path(__file__).with_name("wrapper.json")


@dataclass(frozen=True)
class WrapperCase:
    """Bytes, and what they hold; None where they are malformed, and `error` is raised."""

    name: str
    bytes: bytes
    content: MessageWrapper | None
    error: str | None


@dataclass(frozen=True)
class RecordCase:
    """A record, and its wrapper; None where there can be none, and `error` is raised."""

    name: str
    record: Record
    wrapped: bytes | None
    error: str | None


def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return found


def table() -> HeaderTable:
    """The table of the records."""
    return HeaderTable({int(number): name for number, name in _file()["table"].items()})


def wrapper_cases() -> list[WrapperCase]:
    """All wrappers, in the order of the file."""
    return [_wrapper(each) for each in _file()["wrappers"]]


def record_cases() -> list[RecordCase]:
    """All records, in the order of the file."""
    return [_record(each) for each in _file()["records"]]


def _wrapper(found: dict[str, Any]) -> WrapperCase:
    content = None
    if "headers" in found:
        headers = {number: bytes.fromhex(data) for number, data in found["headers"]}
        content = MessageWrapper(headers, _bytes(found["value"]))
    return WrapperCase(found["name"], bytes.fromhex(found["bytes"]), content, found.get("error"))


def _record(found: dict[str, Any]) -> RecordCase:
    headers = tuple((name, _bytes(data)) for name, data in found["headers"])
    record = Record(b"k", _bytes(found["value"]), headers, 7)
    return RecordCase(found["name"], record, _bytes(found.get("wrapped")), found.get("error"))


def _bytes(found: str | None) -> bytes | None:
    return None if found is None else bytes.fromhex(found)
