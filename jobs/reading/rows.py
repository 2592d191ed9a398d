"""The rows of a task: its ranges read, messages assembled, payloads downloaded, and all put into Arrow's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import starmap

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from app.kafka.range_reader import RangeReader
from jobs.driver.failures import JobFailedError
from jobs.reading.log import Log
from jobs.reading.messages import Message, Messages
from jobs.reading.options import SourceSettings
from jobs.reading.ranges import OffsetRange
from jobs.records.arrow import Gathering, arrow_schema, bad_timestamp, binary, headers, holds, problems, timestamps
from jobs.records.inflater import Inflated, Inflater
from jobs.records.problems import ERROR, ERROR_COLUMN, Problem, failed, named, nulled
from jobs.records.schemas import HEADERS, columns
from transforms.record import RecordLike

_COLUMNS = columns(
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
_ROW_BYTES = 2**18
_ROWS = 1_000

Place = tuple[OffsetRange, Message]


def schema_of(settings: SourceSettings) -> StructType:
    """The columns of the rows; records as they are in the log have their timestamps in milliseconds, too."""
    fields = list(_COLUMNS)
    if settings.include_headers:
        fields.append(StructField("headers", HEADERS))
    if settings.on_error != "fail":
        fields.append(StructField(ERROR_COLUMN, ERROR))
    if settings.raw:
        fields += columns("timestampMillis long")
    return StructType(fields)


def read(settings: SourceSettings, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """The rows of a task, with one client for all its ranges.

    Raises:
        JobFailedError: a record cannot be restored, the store failed, or a timestamp is out of Spark's range.
        ClusterError: the cluster failed, or a topic was created again while it was read.
        RecordsLostError: Kafka has deleted records.
    """
    if not ranges:
        return
    with ExitStack() as stack:
        reader = stack.enter_context(closing(RangeReader(settings.client, **settings.consumer)))
        records = ((place, place[1].record, place[1].problem) for place in _messages(settings, reader, ranges))
        found: Iterator[Inflated[Place]] = starmap(Inflated, records)
        rows = _Rows(settings)
        if not settings.raw:
            inflater = stack.enter_context(closing(Inflater(settings.inflater)))
            found = inflater.inflated(records, _named)
        for result in found:
            yield from rows.add(result)
            del result  # or one more record would be held during the wait for the next
        if settings.fail_on_loss:
            for topic, topic_id in {each.topic: each.topic_id for each in ranges}.items():
                reader.require_topic(topic, topic_id)
        yield from rows.rest()


def _messages(settings: SourceSettings, reader: RangeReader, ranges: Sequence[OffsetRange]) -> Iterator[Place]:
    limits = None if settings.raw else settings.limits
    for each in ranges:
        log, lossless = Log(reader, each), settings.fail_on_loss
        for message in Messages(log, each.start, each.end, limits, settings.lookback, fail_on_loss=lossless):
            yield each, message


def _named(place: Place) -> str:
    return named(place[0].topic, place[0].partition, place[1].offset)


class _Rows:
    """Makes Arrow's batches of messages: each large value alone, small ones together."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._schema: pa.Schema = arrow_schema(schema_of(settings))
        self._gathering = Gathering()
        self._rows: list[tuple[Place, RecordLike, Problem | None]] = []
        self._bytes = 0

    def add(self, result: Inflated[Place]) -> Iterator[pa.RecordBatch]:
        range_, message = result.place
        record, problem, on_error = result.record, result.problem, self._settings.on_error
        if problem is not None:
            if on_error == "fail":
                if message.lost:
                    return
                raise failed(range_.topic, range_.partition, message.offset, problem)
            if on_error == "keep":
                record = message.record
            else:
                record = nulled(record, problem, self._settings.inflater.reference_format)
        if not (self._settings.keep_bad_timestamps or holds(message.timestamp)):
            raise JobFailedError(
                f"topic {range_.topic} partition {range_.partition} offset {message.offset}: "
                f"{bad_timestamp(message.timestamp)}; onBadTimestamp=null keeps such records with a null timestamp"
            )
        size = len(record.key or b"") + len(record.value or b"")
        if self._bytes + size > _ROW_BYTES or len(self._rows) >= _ROWS:
            yield from self._flush()
        self._rows.append((result.place, record, problem))
        self._bytes += size

    def rest(self) -> Iterator[pa.RecordBatch]:
        yield from self._flush()
        yield from self._gathering.rest()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            yield from self._gathering.add(self._batch(rows))

    def _batch(self, rows: Sequence[tuple[Place, RecordLike, Problem | None]]) -> pa.RecordBatch:
        ranges, messages = zip(*(place for place, _, _ in rows), strict=True)
        records, names, millis = [record for _, record, _ in rows], self._schema.names, [m.timestamp for m in messages]
        found = {
            "key": binary([record.key for record in records]),
            "value": binary([record.value for record in records]),
            "topic": pa.array([each.topic for each in ranges]),
            "partition": pa.array([each.partition for each in ranges], pa.int32()),
            "offset": pa.array([message.offset for message in messages], pa.int64()),
            "timestamp": timestamps(millis, self._schema.field("timestamp").type),
            "timestampType": pa.array([message.timestamp_type for message in messages], pa.int32()),
            "timestampMillis": pa.array(millis, pa.int64()),
            ERROR_COLUMN: problems([problem for _, _, problem in rows]),
        }
        if self._settings.include_headers:
            found["headers"] = headers([record.headers for record in records], self._schema.field("headers").type)
        return pa.RecordBatch.from_arrays([found[name] for name in names], schema=self._schema)
