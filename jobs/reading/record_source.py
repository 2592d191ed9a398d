"""The data source `wideload-records`: rows of Spark's Kafka source, also of records with timestamps that it refuses.

Kafka takes any number for the milliseconds of a timestamp. Spark's timestamps have microseconds, and at a number that
is too large its Kafka source ends with `long overflow`, and does not name the record. Here that timestamp is null. The
source is for the jobs, where Spark's own has failed, or where the user wants it: records come through Python, which
takes several times as long, and executors need this code, aiokafka and PyArrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from jobs.reading.client import Client, client_of_java, look
from jobs.reading.data_source import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from jobs.reading.partition import PartitionReader, PartitionRecord
from jobs.reading.ranges import OffsetRange, Place, between, positions_of, split
from jobs.records.arrow import Gathering, arrow_schema, binary, headers, timestamps
from jobs.records.problems import failed
from jobs.records.schemas import HEADERS, columns

__all__ = ["RecordSource"]

_SCHEMA = StructType(
    [
        *columns("key binary, value binary, topic string, partition int, offset long, timestamp timestamp"),
        *columns("timestampType int"),
        StructField("headers", HEADERS),
        *columns("timestampMillis long"),
    ]
)
_BATCH_BYTES = 2**18
_BATCH_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class _Settings:
    """The options, named as those of Spark's Kafka source; goes to executors."""

    client: Client
    starting: str
    ending: str
    fail_on_loss: bool
    task_offsets: int | None
    least_tasks: int | None

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        return [InputPartition(each) for each in split(ranges, self.task_offsets, self.least_tasks)]


class RecordSource(DataSource):
    """Rows of Spark's Kafka source with headers, and the column `timestampMillis`, the timestamp as Kafka has it.

    `startingOffsets` and `endingOffsets` are JSON of numbers. A stream does one micro-batch, up to `endingOffsets`, and
    before it that which its checkpoint has and which is not done.
    """

    @classmethod
    def name(cls) -> str:
        return "wideload-records"

    def schema(self) -> StructType:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        assert schema == _SCHEMA
        return _BatchReader(self._settings())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name for it
        assert schema == _SCHEMA
        return _StreamReader(self._settings())

    def _settings(self) -> _Settings:
        given = {name.lower(): text for name, text in self.options.items()}
        most, least = given.get("maxrecordsperpartition"), given.get("minpartitions")
        return _Settings(
            client_of_java({"kafka.isolation.level": "read_uncommitted", **given}),  # as Kafka's own default
            given["startingoffsets"],
            given["endingoffsets"],
            given.get("failondataloss", "true").lower() == "true",
            None if most is None else int(most),
            None if least is None else int(least),
        )


class _BatchReader(DataSourceReader):
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        start, end = (positions_of(json.loads(text)) for text in (self._settings.starting, self._settings.ending))
        # With no partitions Spark makes one, and hands None to `read`.
        return self._settings.tasks(between(start, end, {})) or [InputPartition(OffsetRange("", 0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._settings, partition.value)


class _StreamReader(DataSourceStreamReader):
    """Lives on the driver as long as the query."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name for it
        return dict(json.loads(self._settings.starting))

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # the same
        return dict(json.loads(self._settings.ending))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        since, until = positions_of(start), positions_of(end)
        first: Mapping[Place, int] = {}
        fresh = [place for place, at in until.items() if at < since.get(place, at + 1)]
        if fresh:
            found = look(self._settings.client, sorted({topic for topic, _ in fresh}))
            first = {place: each.first for place, each in found.bounds.items()}
        return self._settings.tasks(between(since, until, first))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._settings, partition.value)


# --- on executors -----------------------------------------------------------------------------------------------------


def _read(settings: _Settings, range_: OffsetRange) -> Iterator[pa.RecordBatch]:
    if range_.start == range_.end:
        return
    gathering = Gathering()
    with closing(PartitionReader(settings.client, range_.topic, range_.partition)) as log:
        rows: list[PartitionRecord] = []
        held = 0
        for record in log.records(range_.start, range_.end, fail_on_loss=settings.fail_on_loss):
            if record.problem is not None:
                raise failed(range_.topic, range_.partition, record.offset, record.problem)
            size = len(record.key or b"") + len(record.value or b"")
            if rows and (held + size > _BATCH_BYTES or len(rows) >= _BATCH_ROWS):
                yield from gathering.add(_batch(range_, rows))
                rows, held = [], 0
            rows.append(record)
            held += size
        if rows:
            yield from gathering.add(_batch(range_, rows))
        yield from gathering.rest()


def _batch(range_: OffsetRange, rows: Sequence[PartitionRecord]) -> pa.RecordBatch:
    schema = arrow_schema(_SCHEMA)
    millis = [record.timestamp for record in rows]
    return pa.RecordBatch.from_arrays(
        [
            binary([record.key for record in rows]),
            binary([record.value for record in rows]),
            pa.array([range_.topic] * len(rows)),
            pa.array([range_.partition] * len(rows), pa.int32()),
            pa.array([record.offset for record in rows], pa.int64()),
            timestamps(millis, schema.field("timestamp").type),
            pa.array([record.timestamp_type for record in rows], pa.int32()),
            headers([record.headers for record in rows], schema.field("headers").type),
            pa.array(millis, pa.int64()),
        ],
        schema=schema,
    )
