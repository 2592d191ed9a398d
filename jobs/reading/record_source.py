"""The data source `wideload-records`: rows of Spark's Kafka source, also of records with timestamps that it refuses.

Kafka takes any number for the milliseconds of a timestamp. Spark's timestamps have microseconds, and at a number that
is too large its Kafka source ends with `long overflow`, and does not name the record. Here that timestamp is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from jobs.reading.data_source import DataSource, DataSourceStreamReader, InputPartition, plain
from jobs.reading.log import look
from jobs.reading.options import SourceSettings, settings_of
from jobs.reading.ranges import Place, between, positions_of, tasks
from jobs.reading.rows import read, schema_of


class RecordSource(DataSource):
    """Rows of Spark's Kafka source with headers, and the column `timestampMillis`, the timestamp as Kafka has it.

    A stream does one micro-batch, from `startingOffsets` up to `endingOffsets`, which are JSON of numbers; and before
    it that which its checkpoint has and which is not done.
    """

    @classmethod
    def name(cls) -> str:
        return "wideload-records"

    @plain()
    def schema(self) -> StructType:
        return schema_of(self._settings())

    @plain()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's names
        return _Reader(self.options, self._settings())

    def _settings(self) -> SourceSettings:
        given = {"kafka.isolation.level": "read_uncommitted", **self.options}  # as Kafka's own default
        return settings_of({**given, "includeheaders": "true"}, raw=True)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str], settings: SourceSettings) -> None:
        self._settings = settings
        self._start, self._end = (json.loads(options[name]) for name in ("startingOffsets", "endingOffsets"))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name for it
        return dict(self._start)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # the same
        return dict(self._end)

    @plain()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        since, until = positions_of(start), positions_of(end)
        first: Mapping[Place, int] = {}
        if any(at < since.get(place, at + 1) for place, at in until.items()):
            found = look(self._settings.client, self._settings.topics)
            first = {place: each.first for place, each in found.bounds.items()}
        ranges = between(since, until, first)
        return [InputPartition(each) for each in tasks(ranges, self._settings.task_offsets, self._settings.least_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain():
            yield from read(self._settings, partition.value)
