"""Rows of Spark's Kafka source that are read in Python, without Spark and brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="sources in Python need Spark 4.0")


from jobs.driver.failures import JobFailedError
from jobs.reading import rows as rows_of_tasks
from jobs.reading.ranges import OffsetRange
from jobs.reading.record_source import RecordSource
from jobs.records.arrow import LAST_MS
from jobs.records.problems import Problem
from transforms.errors import ConfigurationError
from transforms.record import Header

START = {"t": {"0": 1, "1": 5}}
OPTIONS = {"kafka.bootstrap.servers": "b:1", "startingOffsets": json.dumps(START), "endingOffsets": json.dumps(START)}


@dataclass(frozen=True, slots=True)
class Logged:
    """A record as a task reads it."""

    offset: int
    timestamp: int = 5
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Sequence[Header] = ()
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """A partition of these records."""

    listed: list[Logged] = field(default_factory=list)

    def records(self, start: int, end: int, **_: bool) -> Iterator[Logged]:
        return (each for each in self.listed if start <= each.offset < end)

    def require_topic(self, *_: str) -> None:
        """It is the same topic."""

    def close(self) -> None:
        """It has no connection."""


def rows(monkeypatch: pytest.MonkeyPatch, *listed: Logged) -> list[dict[str, Any]]:
    monkeypatch.setattr(rows_of_tasks, "RangeReader", lambda *_, **__: Log())
    monkeypatch.setattr(rows_of_tasks, "Log", lambda *_: Log([*listed]))
    own = RecordSource({**OPTIONS, "endingOffsets": json.dumps({"t": {"0": 9, "1": 5}})})
    reader = cast("Any", own.streamReader(own.schema()))
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    assert task.value == [OffsetRange("t", 0, 1, 9)]
    found = reader.read(task)
    return [row for batch in found for row in batch.to_pylist()]


def test_rows_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of the range has its row; a timestamp that Spark cannot hold is null, and in milliseconds there."""
    bare = Logged(1, -1, -1, None, None)
    found = rows(monkeypatch, bare, Logged(2, LAST_MS + 1, 1, headers=[("h", None)]), Logged(9))
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in found] == [
        (1, None, None, None),
        (2, b"k", b"v", [{"key": "h", "value": None}]),
    ]
    assert [(row["timestampMillis"], row["timestampType"]) for row in found] == [(-1, -1), (LAST_MS + 1, 1)]
    assert found[0]["timestamp"].timestamp() == -0.001
    assert found[1]["timestamp"] is None
    assert {(row["topic"], row["partition"]) for row in found} == {("t", 0)}


def test_a_record_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row takes its place."""
    with pytest.raises(JobFailedError, match="topic t partition 0 offset 1: the value cannot be restored: broken"):
        rows(monkeypatch, Logged(1, problem=Problem("value", "malformed", "broken")))


def test_options_that_only_java_can_use() -> None:
    """A Java key store is refused with the way that Python has."""
    own = RecordSource({**OPTIONS, "kafka.ssl.truststore.location": "/x.jks"})
    with pytest.raises(
        ConfigurationError, match=r"kafka\.ssl\.truststore\.location: is supported by Java clients only"
    ):
        own.streamReader(own.schema())


def test_a_stream_of_one_micro_batch() -> None:
    """It begins and ends where the options say, and its ranges are those of the checkpoint."""
    own = RecordSource({**OPTIONS, "maxRecordsPerPartition": "2", "endingOffsets": json.dumps({"t": {"0": 4, "1": 5}})})
    reader = cast("Any", own.streamReader(own.schema()))
    start = reader.initialOffset()
    assert start == {"t": {"0": 1, "1": 5}}
    end = reader.latestOffset()
    assert end == {"t": {"0": 4, "1": 5}}
    found = [each.value for each in reader.partitions(start, end)]
    assert found == [[OffsetRange("t", 0, 1, 2)], [OffsetRange("t", 0, 2, 4)]]
