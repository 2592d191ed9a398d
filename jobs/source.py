"""`spark.read.format("wideload")`: reads a topic with references, chunks and wrappers as if it held whole values.

    spark.dataSource.register(WideloadDataSource)
    spark.read.format("wideload").option("kafka.bootstrap.servers", …).option("subscribe", "orders") …

A Python data source, for batches and streams. Options and columns are those of Spark's Kafka source, and the properties
of the payload store are options too (`jobs.reading.options`). Executors read records with aiokafka, in ranges of
offsets. Driver and executors need the code of `jobs.zip`, aiokafka, PyArrow, cramjam and the packages of the store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from jobs.driver.failures import JobFailedError
from jobs.reading.data_source import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition, plain
from jobs.reading.log import Look, look, offsets_at
from jobs.reading.options import Edge, SourceSettings, settings_of
from jobs.reading.ranges import (
    OffsetRange,
    Place,
    Positions,
    advanced,
    between,
    check_forward,
    ids_of,
    noted,
    position,
    positions_json,
    positions_of,
    recreated,
    tasks,
    without,
)
from jobs.reading.rows import read, schema_of
from transforms.errors import ConfigurationError

__all__ = ["WideloadDataSource", "read_available"]

_BEHIND = (
    "wideload: maxOffsetsPerTrigger leaves {:,} offsets for the next micro-batch; with trigger(availableNow=True) "
    "Spark ends before it: wideload.jobs.source.read_available runs one after the other"
)


class WideloadDataSource(DataSource):
    """The source; `jobs.reading.options` has its options.

    Columns are those of Spark's Kafka source, `headers` with `includeHeaders`, and `inflate_error` if `onError` is not
    `fail`. A message of chunks is one row, with the offset of its last chunk and the timestamp of its first.
    """

    @classmethod
    def name(cls) -> str:
        return "wideload"

    @plain()
    def schema(self) -> StructType:
        return schema_of(settings_of(self.options))

    @plain()
    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._settings(schema))

    @plain()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name for it
        return _StreamReader(self._settings(schema))

    def _settings(self, schema: StructType) -> SourceSettings:
        settings = settings_of(self.options)
        if schema.fieldNames() != schema_of(settings).fieldNames():
            raise ConfigurationError("schema", f"is fixed: {', '.join(schema_of(settings).fieldNames())}")
        return settings


def read_available(start: Callable[[], StreamingQuery]) -> int:
    """Reads all available records in micro-batches within `maxOffsetsPerTrigger`; returns the number of micro-batches.

    With `trigger(availableNow=True)` Spark runs one micro-batch of a Python data source, and ends. `read_available`
    starts the query again, on its checkpoint, until it finds nothing new.

    Args:
        start: starts the query with `availableNow` and a checkpoint, the same each time.

    Raises:
        pyspark.errors.StreamingQueryException: the query failed; the micro-batches before are in the checkpoint.
    """
    batches = 0
    while True:
        query = start()
        query.awaitTermination()
        sources = [source for progress in query.recentProgress for source in progress.sources]
        moved = sum(source.startOffset != source.endOffset for source in sources)
        if not moved:
            return batches
        batches += moved


class _Reader:
    """The common part of a batch reader and a stream reader."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings

    def look(self) -> Look:
        return look(self.settings.client, self.settings.topics, committed=self.settings.committed)

    def position(self, edge: Edge, found: Look) -> Positions:
        """The offset of each partition where reading begins or ends."""
        option, at = edge
        if isinstance(at, int):
            at = positions_json(dict.fromkeys(found.bounds, at))
        if edge.by_time:
            at = positions_json(offsets_at(self.settings.client, position(option, at, found.bounds)))
        return position(option, at, found.bounds)

    def tasks(self, ranges: Sequence[OffsetRange], ids: Mapping[str, str]) -> list[InputPartition]:
        known = [replace(each, topic_id=ids.get(each.topic, "")) for each in ranges]
        return [InputPartition(each) for each in tasks(known, self.settings.task_offsets, self.settings.least_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain():
            yield from read(self.settings, partition.value)


class _BatchReader(_Reader, DataSourceReader):
    @plain()
    def partitions(self) -> Sequence[InputPartition]:
        found = self.look()
        edge = self.settings.starting or Edge("startingOffsets", "earliest")
        start = self.position(edge, found)
        end = self.position(self.settings.ending or Edge("endingOffsets", "latest"), found)
        for (topic, number), at in start.items():
            if end[topic, number] < at:
                raise ConfigurationError(
                    edge.option, f"{at} of topic {topic} partition {number} is behind its end {end[topic, number]}"
                )
        # With no partitions Spark makes one, and hands None to `read`.
        return self.tasks(between(start, end, {}), found.ids) or [InputPartition([])]


class _StreamReader(_Reader, DataSourceStreamReader):
    """Lives on the driver as long as the query."""

    # State that changes: `_position`, the end of the last planned micro-batch, with the `_ids` of its topics;
    # `_looked`, the ids at the last look; and `_warned`. Spark makes one call at a time. It calls `partitions` with the
    # last offset of a checkpoint before it asks for the next offset.

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._position: Positions | None = None
        self._ids: Mapping[str, str] = {}
        self._looked: Mapping[str, str] = {}
        self._warned = False

    @plain()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name for it
        if self._position is None:
            found = self.look()
            self._position = self.position(self.settings.starting or Edge("startingOffsets", "latest"), found)
            self._ids = found.ids
        return noted(self._position, self._ids)

    @plain()
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # the same
        if self._position is None:
            self.initialOffset()
        assert self._position is not None
        found = self.look()
        start = without(self._position, self._recreated(self._ids, found))
        if self.settings.fail_on_loss:
            check_forward(start, found.bounds)
        self._looked = {**self._ids, **found.ids}
        until = advanced(start, found.bounds, self.settings.trigger_offsets)
        behind = sum(each.end - until[place] for place, each in found.bounds.items())
        if behind and not self._warned:
            self._warned = True
            print(_BEHIND.format(behind), file=sys.stderr, flush=True)  # Spark's driver passes it on
        return noted(until, self._looked)

    @plain()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until, ids = positions_of(end), ids_of(end)
        self._position, self._ids = until, ids
        # A topic that was created again begins at its first record, like a partition that is new.
        since = without(positions_of(start), recreated(ids_of(start), ids))
        first: Mapping[Place, int] = {}
        if ids != self._looked or any(at < since.get(place, at + 1) for place, at in until.items()):
            found = self.look()
            # What was planned and is not there any more is not part of this micro-batch.
            until = without(until, self._recreated(ids, found))
            first = {place: each.first for place, each in found.bounds.items()}
        return self.tasks(between(since, until, first), ids)

    def _recreated(self, ids: Mapping[str, str], found: Look) -> list[str]:
        """The topics that are others than those with these ids; a failure unless records may be lost."""
        names = recreated(ids, found.ids)
        if names and self.settings.fail_on_loss:
            raise JobFailedError(
                f"topic {names[0]} was deleted and created again since it was read: its offsets are those of the topic "
                "before; use a new checkpoint, or failOnDataLoss=false to read it from its beginning"
            )
        return names
