"""`spark.read.format("wideload")`: reads a topic with references, chunks and wrappers as if it held whole values.

    spark.dataSource.register(WideloadDataSource)
    spark.read.format("wideload").option("kafka.bootstrap.servers", …).option("subscribe", "orders") …

A Python data source, for batches and streams. Options and columns are those of Spark's Kafka source, and the keys of
the payload store are options too (`jobs.reading.source_options`). Executors read records with aiokafka, in ranges of
offsets. Driver and executors need `jobs`, `transforms`, `stores`, aiokafka, PyArrow, cramjam and the packages of the
store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from jobs.driver.failures import JobFailedError
from jobs.reading.client import Look, look
from jobs.reading.data_source import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from jobs.reading.messages import Message, Messages
from jobs.reading.partition import PartitionReader
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
    positions_of,
    recreated,
    split,
    without,
)
from jobs.reading.source_options import SourceSettings, settings_of
from jobs.records.arrow import Gathering, arrow_schema, binary, headers, problems, timestamps
from jobs.records.inflater import Inflated, Inflater
from jobs.records.problems import ERROR, ERROR_COLUMN, Problem, failed, kept
from jobs.records.schemas import HEADERS, columns
from jobs.records.timestamps import bad_timestamp, holds
from transforms.errors import ConfigurationError, PayloadStoreError
from transforms.record import RecordLike

__all__ = ["WideloadDataSource", "read_available"]

_COLUMNS = columns(
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
_ROW_BYTES = 2**18
_ROWS = 1_000


class WideloadDataSource(DataSource):
    """The source; `jobs.reading.source_options` has its options.

    Columns are those of Spark's Kafka source, `headers` with `includeHeaders`, and `inflate_error` if `onError` is not
    `fail`. A message of chunks is one row, with the offset of its last chunk and the timestamp of its first.
    """

    @classmethod
    def name(cls) -> str:
        return "wideload"

    def schema(self) -> StructType:
        return _schema(settings_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._settings(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name for it
        return _StreamReader(self._settings(schema))

    def _settings(self, schema: StructType) -> SourceSettings:
        settings = settings_of(self.options)
        settings.inflater.check_signatures()
        if schema.fieldNames() != _schema(settings).fieldNames():
            raise ConfigurationError("schema", f"is fixed: {', '.join(_schema(settings).fieldNames())}")
        return settings


def read_available(start: Callable[[], StreamingQuery]) -> int:
    """Reads all available records in micro-batches within `maxOffsetsPerTrigger`; returns the number of micro-batches.

    With `trigger(availableNow=True)` Spark runs one micro-batch of a Python data source, and ends. So this starts the
    query again, on its checkpoint, until it finds nothing new.

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


def _schema(settings: SourceSettings) -> StructType:
    fields = list(_COLUMNS)
    if settings.include_headers:
        fields.append(StructField("headers", HEADERS))
    if settings.on_error != "fail":
        fields.append(StructField(ERROR_COLUMN, ERROR))
    return StructType(fields)


class _Reader:
    """The common part of a batch reader and a stream reader."""

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings

    def look(self) -> Look:
        return look(self.settings.client, self.settings.topics)

    def tasks(self, ranges: Sequence[OffsetRange], ids: Mapping[str, str]) -> list[InputPartition]:
        known = [replace(each, topic_id=ids.get(each.topic, "")) for each in ranges]
        return [InputPartition(each) for each in split(known, self.settings.task_offsets, self.settings.least_tasks)]


class _BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        found = self.look()
        start = position("startingOffsets", self.settings.starting or "earliest", found.bounds)
        end = position("endingOffsets", self.settings.ending, found.bounds)
        for (topic, number), at in start.items():
            if end[topic, number] < at:
                raise ConfigurationError(
                    "startingOffsets",
                    f"{at} of topic {topic} partition {number} is behind its end {end[topic, number]}",
                )
        # With no partitions Spark makes one, and hands None to `read`.
        nothing = InputPartition(OffsetRange(self.settings.topics[0], 0, 0, 0))
        return self.tasks(between(start, end, {}), found.ids) or [nothing]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.settings, partition.value)


class _StreamReader(_Reader, DataSourceStreamReader):
    """Lives on the driver as long as the query."""

    # State that changes: `_position`, the end of the last planned micro-batch, with the `_ids` of its topics; and
    # `_looked`, the ids at the last look. Spark makes one call at a time. It calls `partitions` with the last offset of
    # a checkpoint before it asks for the next offset.

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._position: Positions | None = None
        self._ids: Mapping[str, str] = {}
        self._looked: Mapping[str, str] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name for it
        if self._position is None:
            found = self.look()
            self._position = position("startingOffsets", self.settings.starting or "latest", found.bounds)
            self._ids = found.ids
        return noted(self._position, self._ids)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # the same
        if self._position is None:
            self.initialOffset()
        assert self._position is not None
        found = self.look()
        start = without(self._position, self._recreated(self._ids, found))
        if self.settings.fail_on_loss:
            check_forward(start, found.bounds)
        self._looked = {**self._ids, **found.ids}
        return noted(advanced(start, found.bounds, self.settings.trigger_offsets), self._looked)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        until, ids = positions_of(end), ids_of(end)
        self._position, self._ids = until, ids
        # A topic that was created again begins at its first record, like a partition that is new.
        since = without(positions_of(start), recreated(ids_of(start), ids))
        first: Mapping[Place, int] = {}
        if ids != self._looked or any(at < since.get(place, at + 1) for place, at in until.items()):
            found = self.look()
            # What was planned and is not there any more is no part of this micro-batch.
            until = without(until, self._recreated(ids, found))
            first = {place: each.first for place, each in found.bounds.items()}
        return self.tasks(between(since, until, first), ids)

    def _recreated(self, ids: Mapping[str, str], found: Look) -> list[str]:
        """The topics that are others than those with these ids; a failure unless records may be lost."""
        names = recreated(ids, found.ids)
        if names and self.settings.fail_on_loss:
            raise JobFailedError(
                f"topic {names[0]} was deleted and created again since it was read: its offsets are those of the topic "
                "before; give a new checkpoint, or failOnDataLoss=false to read it from its beginning"
            )
        return names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.settings, partition.value)


# --- on executors -----------------------------------------------------------------------------------------------------


def _read(settings: SourceSettings, range_: OffsetRange) -> Iterator[pa.RecordBatch]:
    if range_.start == range_.end:
        return
    with (
        closing(PartitionReader(settings.client, range_.topic, range_.partition)) as log,
        closing(Inflater(settings.inflater)) as inflater,
    ):
        messages = Messages(
            log, range_.start, range_.end, settings.limits, settings.lookback, fail_on_loss=settings.fail_on_loss
        )
        rows = _Rows(settings, range_)
        last = range_.start
        inflated = inflater.inflated((message, message.record) for message in messages)
        while True:
            try:
                result = next(inflated, None)
            except PayloadStoreError as exc:
                raise failed(range_.topic, range_.partition, last, exc) from exc
            if result is None:
                break
            yield from rows.add(result)
            last = result.place.offset + 1
            del result  # or one more record would be held during the wait for the next
        if settings.fail_on_loss:
            log.require_topic(range_.topic_id)
        yield from rows.rest()


class _Rows:
    """Makes Arrow's batches of messages: each large value alone, small ones together."""

    def __init__(self, settings: SourceSettings, range_: OffsetRange) -> None:
        self._settings = settings
        self._range = range_
        self._schema: pa.Schema = arrow_schema(_schema(settings))
        self._gathering = Gathering()
        self._rows: list[tuple[Message, RecordLike, Problem | None]] = []
        self._bytes = 0

    def add(self, result: Inflated[Message]) -> Iterator[pa.RecordBatch]:
        message = result.place
        problem = result.problem or message.problem
        record = result.record
        on_error = self._settings.on_error
        if problem is not None:
            if on_error == "fail":
                if message.lost:
                    return
                raise failed(self._range.topic, self._range.partition, message.offset, problem)
            marked = self._settings.inflater.reference_format == "bakdata-flag"
            malformed = (problem.which, problem.state) == ("value", "malformed")
            all_values = marked or malformed or message.problem is not None
            record = kept(record, message.record, on_error, all_values=all_values)
        size = len(record.value or b"")
        if self._bytes + size > _ROW_BYTES or len(self._rows) >= _ROWS:
            yield from self._flush()
        self._rows.append((message, record, problem))
        self._bytes += size

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._flush()
        yield from self._gathering.rest()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            yield from self._gathering.add(self._batch(rows))

    def _timestamps(self, messages: Sequence[Message]) -> pa.Array:
        millis = [message.timestamp for message in messages]
        found = timestamps(millis, self._schema.field("timestamp").type)
        if found.null_count and not self._settings.keep_bad_timestamps:
            bad, timestamp_ms = next(pair for pair in zip(messages, millis, strict=True) if not holds(pair[1]))
            raise JobFailedError(
                f"topic {self._range.topic} partition {self._range.partition} offset {bad.offset}: "
                f"{bad_timestamp(timestamp_ms)}; onBadTimestamp=null keeps such records with a null timestamp"
            )
        return found

    def _batch(self, rows: Sequence[tuple[Message, RecordLike, Problem | None]]) -> pa.RecordBatch:
        found = {
            "key": binary([record.key for _, record, _ in rows]),
            "value": binary([record.value for _, record, _ in rows]),
            "topic": pa.array([self._range.topic] * len(rows)),
            "partition": pa.array([self._range.partition] * len(rows), pa.int32()),
            "offset": pa.array([message.offset for message, _, _ in rows], pa.int64()),
            "timestamp": self._timestamps([message for message, _, _ in rows]),
            "timestampType": pa.array([message.timestamp_type for message, _, _ in rows], pa.int32()),
            ERROR_COLUMN: problems([problem for _, _, problem in rows]),
        }
        if self._settings.include_headers:
            found["headers"] = headers([record.headers for _, record, _ in rows], self._schema.field("headers").type)
        return pa.RecordBatch.from_arrays([found[name] for name in self._schema.names], schema=self._schema)
