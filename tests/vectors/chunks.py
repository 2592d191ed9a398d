"""The test vectors of chunks as they are read; docs/chunk-format.md says what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transforms.record import Record

VECTORS = Path(__file__).with_name("chunks.json")


@dataclass(frozen=True)
class SplitCase:
    """A record, and its chunks; None where there can be none."""

    name: str
    limit: int
    uuid: str
    record: Record
    chunks: list[Record] | None


@dataclass(frozen=True)
class ReadCase:
    """What a partition holds, from offset 0 on, and what is said as it is read."""

    name: str
    log: list[Record]
    events: list[list[Any]]


def split_cases() -> list[SplitCase]:
    """All vectors for writers, in the order of the file."""
    return [_split(found) for found in json.loads(VECTORS.read_text(encoding="utf-8"))["split"]]


def read_cases() -> list[ReadCase]:
    """All vectors for readers, in the order of the file."""
    found = json.loads(VECTORS.read_text(encoding="utf-8"))["read"]
    return [ReadCase(each["name"], [_record(**record) for record in each["log"]], each["events"]) for each in found]


def _split(found: dict[str, Any]) -> SplitCase:
    record = _record(**found["record"])
    chunks = None
    if "chunks" in found:
        chunks = [_record(found["record"]["key"], chunk["value"], chunk["headers"]) for chunk in found["chunks"]]
    return SplitCase(found["name"], found["limit"], found["uuid"], record, chunks)


def _record(key: Any, value: Any, headers: list[list[Any]]) -> Record:
    return Record(_bytes(key), _bytes(value), tuple((name, _bytes(found)) for name, found in headers))


def _bytes(found: Any) -> bytes | None:
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else str(found["text"]).encode() * int(found["times"])
