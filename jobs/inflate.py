"""References become values inside Spark, so that no inflated topic is needed.

`inflate` takes a batch or a stream of Spark's Kafka source. Executors download the payloads, which never pass through
the driver. An executor needs `jobs`, `transforms`, `stores`, PyArrow, cramjam and the packages of the store (boto3),
but no pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from jobs.records.arrow import mapped, record_at, replaced, spliced, with_problem
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS, Inflated, Inflater, InflaterSettings
from jobs.records.problems import ERROR, ERROR_COLUMN, OnError, Problem, failed, named, nulled, require_one_of
from jobs.records.schemas import require_columns
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.formats import FormatName
from transforms.reference import KEY, VALUE
from transforms.wrapper import Unwrap

__all__ = ["ERROR_COLUMN", "OnError", "inflate", "split"]

_NEEDED = ("key", "value", "headers", "topic", "partition", "offset")
_MARKS = (VALUE.flag, KEY.flag, BAKDATA_FLAG)
_WRAPPER_BEGIN = b"\x00"
_PREFIX = "__connect.errors."


def inflate(
    source: DataFrame,
    store: Mapping[str, object],
    *,
    reference_format: FormatName = "wideload",
    on_error: OnError = "fail",
    max_bytes: int = DEFAULT_HELD_BYTES,
    threads: int = DEFAULT_THREADS,
    unwrap: Unwrap | None = None,
) -> DataFrame:
    """The records with their payloads in place of references, in keys and values; all else stays.

    Rows stay in their order and their partitions. A payload is requested only below the store's own root, and compared
    with the size and checksum of its reference. With `on_error` other than `fail` there is one more column,
    `inflate_error`, of type `jobs.records.problems.ERROR`; it is null if nothing is wrong. Chunks are left alone:
    assemble them first (`jobs.chunks.assemble`). Lowers `spark.sql.execution.arrow.maxBytesPerBatch` of the session to
    16 MiB, unless it is lower.

    Args:
        source: rows of Spark's Kafka source, a batch or a stream, read with `includeHeaders`; more columns stay.
        store: the keys of the payload store, as in the worker's file; its `large.message.max.bytes` limits one payload.
        reference_format: how the topics refer to payloads, as the worker's `reference.format`.
        on_error: what happens to a record that cannot be restored; see `jobs.records.problems.OnError`.
        max_bytes: the most bytes of payloads that a task holds in Python, or one record if that alone is larger.
        threads: how many payloads a task downloads at a time.
        unwrap: takes each value out of its wrapper first, as the worker's `unwrap`; None if values have no wrappers.

    Raises:
        ConfigurationError: an argument, or a key of the store, is wrong.
        ValueError: a column is missing, or there is a column `inflate_error` already.
    """
    require_columns(source, _NEEDED)
    require_one_of("on_error", on_error, get_args(OnError))
    if on_error != "fail" and ERROR_COLUMN in source.columns:
        raise ValueError(
            f"the rows have a column {ERROR_COLUMN} already; drop it, or call split on rows that were inflated before"
        )
    settings = InflaterSettings(store, reference_format, max_bytes, threads, unwrap)
    settings.check()
    settings.check_signatures()
    fields = list(source.schema.fields)
    if on_error != "fail":
        fields.append(StructField(ERROR_COLUMN, ERROR))
    return mapped(source, _Inflation(settings, on_error), StructType(fields))


def split(inflated: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The records that were restored; and dead letters, rows for Spark's Kafka sink, of the others.

    A dead letter has key, value and headers of the row in `inflated`; with `on_error="keep"` they are as in the log.
    It has Kafka Connect's headers `__connect.errors.*` too, as the worker adds them. Persist `inflated`, or each of the
    two downloads the payloads for itself; in a stream, do so inside `foreachBatch`.

    Raises:
        ValueError: `inflated` was made with `on_error="fail"`.
    """
    if ERROR_COLUMN not in inflated.columns:
        raise ValueError(f"there is no column {ERROR_COLUMN}; inflate with on_error='keep'")
    error = F.col(ERROR_COLUMN)
    context = {
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
        "stage": F.lit("TRANSFORMATION"),
        "class.name": F.lit("jobs.inflate"),
        "exception.class.name": F.concat(error["which"], F.lit(" "), error["state"]),
        "exception.message": error["detail"],
    }
    added = F.array(
        *(
            F.struct(F.lit(_PREFIX + name).alias("key"), F.encode(value, "UTF-8").alias("value"))
            for name, value in context.items()
        )
    )
    headers = F.concat(F.coalesce("headers", F.array().cast(inflated.schema["headers"].dataType)), added)
    whole = inflated.where(error.isNull()).drop(ERROR_COLUMN)
    return whole, inflated.where(error.isNotNull()).select("key", "value", headers.alias("headers"))


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Inflation:
    """One task: batches of rows in, batches of rows out."""

    settings: InflaterSettings
    on_error: OnError

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(Inflater(self.settings)) as inflater:
            for batch in batches:
                yield from self._inflated(inflater, batch)

    def _inflated(self, inflater: Inflater, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        records = ((row, record_at(batch, row), None) for row in self._candidates(batch))
        found = inflater.inflated(records, lambda row: named(*_place(batch, row)))
        return spliced(batch, map(partial(self._row, batch), found), self._noted)

    def _candidates(self, batch: pa.RecordBatch) -> list[int]:
        """The rows that may change; the others never become Python's objects."""
        unwrap = self.settings.unwrap
        if self.settings.reference_format == "bakdata-flag" or (unwrap is not None and unwrap.plain == "fail"):
            return list(range(batch.num_rows))
        headers = batch.column("headers")
        marked = pc.is_in(headers.flatten().field("key"), value_set=pa.array(_MARKS))
        rows: set[int] = set(pc.list_parent_indices(headers).filter(marked).to_pylist())
        if unwrap is not None:
            wrapped = pc.starts_with(batch.column("value"), _WRAPPER_BEGIN).to_pylist()
            rows.update(row for row, found in enumerate(wrapped) if found)
        return sorted(rows)

    def _row(self, batch: pa.RecordBatch, found: Inflated[int]) -> tuple[int, pa.RecordBatch]:
        row, record, problem = found.place, found.record, found.problem
        piece = batch.slice(row, 1)
        if problem is not None and self.on_error == "fail":
            raise failed(*_place(batch, row), problem)
        if problem is not None and self.on_error == "null":
            record = nulled(record, problem, self.settings.reference_format)
        if problem is None or self.on_error == "null":
            piece = replaced(piece, [record])
        return row, self._noted(piece, problem)

    def _noted(self, rows: pa.RecordBatch, problem: Problem | None = None) -> pa.RecordBatch:
        return rows if self.on_error == "fail" else with_problem(rows, ERROR_COLUMN, problem)


def _place(batch: pa.RecordBatch, row: int) -> tuple[str, int, int]:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return topic, partition, offset
