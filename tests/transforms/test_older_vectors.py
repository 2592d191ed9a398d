"""What an earlier version wrote is read, and what has one form is still written so: the earlier version reads it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.older import Payloads, requests
from transforms.chunk import Chunk, Chunking, is_chunk
from transforms.commit_metadata import Noted, note, noted
from transforms.control_record import ControlRecords, record_of
from transforms.record import Record
from wideload import LargeMessageDeserializer

OLDER: Mapping[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "older.json").read_text("utf-8"))


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def pairs(found: list[list[Any]]) -> list[tuple[str, bytes | None]]:
    return [(name, data(value)) for name, value in found]


VALUE = data(OLDER["value"]) or b""


@pytest.mark.parametrize("case", OLDER["references"], ids=lambda case: case["name"])
def test_references_are_read(case: Mapping[str, Any]) -> None:
    """Plain, compressed, signed and encrypted ones, of values and keys, and those of bakdata; other headers stay."""

    class Kept(Payloads):
        def configure(self, _: Mapping[str, object]) -> None:
            self.found = {case["path"]: data(case["payload"]) or b""}

    config = {"large.message.payload.store.class": Kept, **case["config"]}
    config.pop("large.message.compression.type", None)
    config.pop("large.message.encryption.type", None)
    deserializer = LargeMessageDeserializer(config, is_key=case["is_key"])
    assert deserializer.deserialize("orders", pairs(case["headers"]), data(case["reference"])) == VALUE
    deserializer.close()


def test_chunks_are_read_and_written() -> None:
    """The parts make the value, and are those that are written now."""
    records = [Record(data(key), data(value), tuple(pairs(headers))) for key, value, headers in OLDER["chunks"]]
    assert all(is_chunk(each.headers) for each in records)
    parsed = [Chunk.parse(each) for each in records]
    assert ([each.id for each, _ in parsed], {own for _, own in parsed}) == (
        [*range(len(records))],
        {(("trace", b"1"),)},
    )
    assert b"".join(each.value or b"" for each in records) == VALUE
    written = Chunking(1_000).split(Record(b"k", VALUE, (("trace", b"1"),), 1_700_000_000_000), "a" * 36)
    assert [(each.key, each.value, each.headers) for each in written] == [(r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize(("metadata", "delivered", "torn"), OLDER["commits"])
def test_commits_are_read_and_written(metadata: str, delivered: int, torn: list[str]) -> None:
    """What was delivered above the committed offset. Earlier versions write no NUL at the end, and accept one."""
    assert noted(metadata) == Noted(delivered, tuple(torn))
    assert note(5, delivered, torn).removesuffix("\0") == metadata


def test_requests_are_read_and_written() -> None:
    """The records of `control.topic`."""
    control = ControlRecords(["orders"])
    frozen = [(data(key), data(value)) for key, value in OLDER["control"]]
    assert [control.read(key, value) for key, value in frozen] == requests()
    assert [record_of(each) for each in requests()] == frozen
