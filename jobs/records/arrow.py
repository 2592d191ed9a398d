"""Kafka records as rows of Arrow's batches: taken out of a batch, put into one, and gathered into batches.

A large value makes a separate batch, whose bytes are not copied; small values share one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, StructType

from jobs.records.problems import ERROR, Problem
from transforms.errors import ConfigurationError
from transforms.record import Header, Record, RecordLike

_KINDS = MappingProxyType(
    {
        "binary": pa.binary(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)
_PROBLEM = pa.struct([(field.name, pa.string()) for field in ERROR])

INPUT_BYTES = 16 * 2**20
"""The most bytes of one batch on its way to Python. Spark's own limit is 2 GB, or 10,000 rows of any size."""

LAST_MS = (2**63 - 1) // 1_000
"""The last millisecond that a timestamp of Spark, in microseconds, can hold; the first is as far before 1970."""

_INPUT_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_INPUT_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_INPUT_ROWS = 16  # a batch costs some 100 µs; with Spark's own 10,000 rows, values of 200 KB would be 2 GB
_TOGETHER_BYTES = 2**20  # a batch costs some 100 µs, which is little compared with so many bytes
_OFFSET_BYTES = 4


def arrow_schema(columns: StructType) -> pa.Schema:
    """Arrow's schema for columns of the types that rows of Kafka have, as Spark expects it of a data source."""
    return pa.schema([_field(field.name, field.dataType, nullable=field.nullable) for field in columns])


def mapped(
    rows: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """`DataFrame.mapInArrow`, with a limit for a batch on its way to Python.

    Raises:
        ConfigurationError: the driver lacks pandas, or PyArrow is too old; PySpark looks for both.
    """
    _bound_input(rows)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the release of pandas, which is not used
            return rows.mapInArrow(work, schema)
    except ImportError as exc:
        raise ConfigurationError(
            "driver", f"lacks a package that PySpark requires: {exc}; the extra wideload[spark] installs it"
        ) from exc


def _bound_input(rows: DataFrame) -> None:
    """Lowers the session's limit for a batch on its way to Python; a lower one that the user has set stays.

    Spark 3.5 limits only its rows.
    """
    conf = rows.sparkSession.conf
    if rows.sparkSession.version.startswith("3."):
        if not 0 < int(conf.get(_INPUT_ROWS_KEY) or 0) <= _INPUT_ROWS:
            conf.set(_INPUT_ROWS_KEY, str(_INPUT_ROWS))
        return
    found = conf.get(_INPUT_BYTES_KEY) or ""
    if int(found.rstrip("bB") or 2**31) > INPUT_BYTES:
        conf.set(_INPUT_BYTES_KEY, str(INPUT_BYTES))


def record_at(batch: pa.RecordBatch, row: int) -> Record:
    """One row as a record, without a timestamp."""
    found = batch.column("headers")[row].as_py() or ()
    pairs: list[Header] = [(header["key"], header["value"]) for header in found]
    return Record(batch.column("key")[row].as_py(), batch.column("value")[row].as_py(), pairs)


def replaced(batch: pa.RecordBatch, records: Sequence[RecordLike]) -> pa.RecordBatch:
    """The rows with the keys, values and headers of these records; all other columns stay."""
    columns = {
        "key": binary([record.key for record in records], batch.schema.field("key").type),
        "value": binary([record.value for record in records], batch.schema.field("value").type),
        "headers": headers([record.headers for record in records], batch.schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(name, batch.column(name)) for name in batch.schema.names], schema=batch.schema
    )


def with_problem(rows: pa.RecordBatch, name: str, found: Problem | None) -> pa.RecordBatch:
    """The rows with one more column, which has the same problem for each; None if they have none."""
    column = problems([found] * rows.num_rows)
    return pa.RecordBatch.from_arrays([*rows.columns, column], schema=rows.schema.append(pa.field(name, _PROBLEM)))


def problems(found: Sequence[Problem | None]) -> pa.Array:
    """A column of `ERROR`."""
    fields = ERROR.fieldNames()
    return pa.array([each and {field: getattr(each, field) for field in fields} for each in found], _PROBLEM)


def headers(found: Sequence[Sequence[Header]], kind: pa.DataType) -> pa.Array:
    """A column of headers; null for a record without headers."""
    return pa.array([[{"key": name, "value": data} for name, data in each] or None for each in found], kind)


def binary(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """A column of keys or values; a single large one is not copied."""
    kind = kind or pa.binary()
    if len(values) == 1 and values[0] is not None and len(values[0]) >= _TOGETHER_BYTES and kind == pa.binary():
        offsets = b"".join(number.to_bytes(_OFFSET_BYTES, "little") for number in (0, len(values[0])))
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(values[0])])
    return pa.array(values, kind)


def holds(timestamp_ms: int) -> bool:
    """Whether Spark can hold a timestamp of Kafka."""
    return -LAST_MS <= timestamp_ms <= LAST_MS


def bad_timestamp(timestamp_ms: int) -> str:
    """What is wrong with a timestamp that Spark cannot hold."""
    return (
        f"the timestamp is {timestamp_ms} ms, out of Spark's range of {LAST_MS} ms before and after 1970 (is it in "
        "another unit?)"
    )


def timestamps(millis: Sequence[int], kind: pa.DataType) -> pa.Array:
    """A column of timestamps; null where Spark's microseconds cannot hold the milliseconds."""
    return pa.array([each * 1_000 if holds(each) else None for each in millis], kind)


def _field(name: str, kind: DataType, *, nullable: bool) -> pa.Field[Any]:
    if isinstance(kind, ArrayType):
        found: pa.DataType = pa.list_(_field("element", kind.elementType, nullable=kind.containsNull))
    elif isinstance(kind, StructType):
        found = pa.struct(list(arrow_schema(kind)))
    else:
        found = _KINDS[kind.typeName()]
    return pa.field(name, found, nullable=nullable)


class Gathering:
    """Joins small batches into larger ones; large batches pass as they are. Rows keep their order."""

    def __init__(self) -> None:
        self._pieces: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Takes some rows; returns the batches that are ready."""
        if piece.num_rows == 0:
            return
        size = piece.nbytes
        if size >= _TOGETHER_BYTES:
            yield from self.rest()
            yield piece
            return
        self._pieces.append(piece)
        self._bytes += size
        if self._bytes >= _TOGETHER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows that were taken and not returned yet."""
        if self._pieces:
            yield from pa.Table.from_batches(self._pieces).combine_chunks().to_batches()
        self._pieces = []
        self._bytes = 0


def spliced(
    batch: pa.RecordBatch,
    rows: Iterator[tuple[int, pa.RecordBatch]],
    between: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> Iterator[pa.RecordBatch]:
    """The batch with other rows in place of some, gathered into batches.

    Args:
        batch: all rows.
        rows: by number, and in order, the row in place of one.
        between: what becomes of the other rows.
    """
    gathering, done = Gathering(), 0
    for row, piece in rows:
        yield from gathering.add(between(batch.slice(done, row - done)))
        yield from gathering.add(piece)
        done = row + 1
        del piece  # or one more record would be held during the wait for the next
    yield from gathering.add(between(batch.slice(done)))
    yield from gathering.rest()
