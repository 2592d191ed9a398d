"""The engine of Spark: rows are made on executors, also through Spark Connect. See `app.payloads.engine`."""

from __future__ import annotations

import argparse
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from app.config.settings import ClientSettings
from app.kafka.range_reader import RecordsLostError
from app.payloads.engine import Row
from app.payloads.terminal import Steps
from jobs.driver.command_line import session_settings
from jobs.driver.failures import SPARK_ERRORS, explained
from jobs.driver.jvm import Files
from jobs.driver.session import open_session
from jobs.records.arrow import arrow_schema, mapped
from jobs.records.schemas import columns as schema_of
from transforms.errors import ConfigurationError

Item = TypeVar("Item")
Result = TypeVar("Result")
_Batches = Iterable[pa.RecordBatch]

_TOGETHER = 2_000  # rows of a batch
_RESULT = "result binary"
_LOST = re.compile(r"RecordsLostError: topic (\S+) partition (\d+): offset (\d+) is not there, the first one is (\d+)")


class SparkEngine:
    """See `app.payloads.engine.Engine`. Each frame is kept on the disks of executors until the engine ends.

    Args:
        spark: the session.
        screen: a terminal that shows the steps; None for none, as through Spark Connect.
    """

    def __init__(self, spark: SparkSession, screen: TextIO | None = None) -> None:
        self._spark = spark
        self._frames: list[DataFrame] = []
        self._steps = Steps(screen, self._tasks)
        self.seconds, self.step = self._steps.seconds, self._steps.step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(*SPARK_ERRORS):  # another error would hide the first one
            for frame in self._frames:
                frame.unpersist()

    def keep(self, frame: DataFrame) -> DataFrame:
        """A frame that stays after the end of the engine, until its user calls `unpersist`."""
        self._frames.remove(frame)
        return frame

    def spread(self, items: Sequence[Item], work: Callable[[Iterable[Item]], Iterator[Row]], columns: str) -> DataFrame:
        """See `Engine`."""
        numbers = self._spark.range(0, len(items), 1, max(1, len(items)))
        return self._made(numbers, partial(_of_items, tuple(items), work), columns)

    def by_path(
        self, frames: Sequence[DataFrame], work: Callable[[Iterator[tuple[int, Row]]], Iterator[Row]], columns: str
    ) -> DataFrame:
        """See `Engine`."""
        named = [
            frame.select(
                F.col(frame.columns[0]).alias("path"),
                F.lit(number).alias("frame"),
                *(F.col(name).alias(f"{number}_{name}") for name in frame.columns),
            )
            for number, frame in enumerate(frames)
        ]
        rows, *others = named
        for other in others:
            rows = rows.unionByName(other, allowMissingColumns=True)
        second = [name for each in named for name in each.columns[3:4]]
        rows = rows.repartition("path").sortWithinPartitions("path", "frame", *second)
        return self._made(rows, partial(_of_paths, [len(frame.columns) for frame in frames], work), columns)

    def gathered(self, frame: DataFrame, work: Callable[[Iterator[Row]], Result]) -> list[Result]:
        """See `Engine`."""
        schema = schema_of(_RESULT)
        rows = mapped(frame, partial(_gathered, work, schema), schema).collect()
        return [pickle.loads(row["result"]) for row in rows]  # noqa: S301  # executors run the same code

    def check_new(self, path: str) -> None:
        """See `Engine`; the path is a directory, as Hadoop reads it."""
        if Files(self._spark).exists(path):
            raise ConfigurationError("--report", f"{path} already exists; specify a new directory")

    def save(self, frame: DataFrame, path: str) -> None:
        """Writes a directory of Parquet."""
        frame.write.mode("errorifexists").parquet(path)

    def _made(self, rows: DataFrame, work: Callable[[_Batches], Iterator[Row]], columns: str) -> DataFrame:
        schema = schema_of(columns)
        frame = mapped(rows, partial(_batches, work, schema), schema).persist(StorageLevel.DISK_ONLY)
        self._frames.append(frame)
        return frame

    def _tasks(self) -> str:
        """How many tasks of Spark's active queries are done."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
        done, tasks = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
        return f"{done:,} of {tasks:,} tasks"


@contextmanager
def running(
    spark: SparkSession, client: ClientSettings, topics: Iterable[str], screen: TextIO | None = None
) -> Iterator[SparkEngine]:
    """An engine for the length of a block, in which Spark's errors are sentences; the topics are named in some.

    Raises:
        RecordsLostError: an executor raised it.
        ConfigurationError: the user can set it right.
        JobFailedError: any other failure of Spark.
    """
    try:
        with SparkEngine(spark, screen) as engine:
            yield engine
    except SPARK_ERRORS as error:
        if lost := _LOST.search(str(error)):
            raise RecordsLostError(lost[1], *map(int, lost.groups()[1:])) from error
        raise explained(error, servers=client.bootstrap_servers, source=", ".join(topics), options={}) from error


@contextmanager
def session_engine(
    arguments: argparse.Namespace, name: str, client: ClientSettings, topics: Iterable[str]
) -> Iterator[SparkEngine]:
    """An engine on a session of the command line, for the length of a block; see `running`."""
    screen = sys.stderr if sys.stderr.isatty() else None
    with open_session(session_settings(arguments, name)) as spark, running(spark, client, topics, screen) as engine:
        yield engine


# --- on executors -----------------------------------------------------------------------------------------------------


def _of_items(
    items: Sequence[Item], work: Callable[[Iterable[Item]], Iterator[Row]], batches: _Batches
) -> Iterator[Row]:
    return work(items[number] for (number,) in _rows(batches))


def _of_paths(
    widths: Sequence[int], work: Callable[[Iterator[tuple[int, Row]]], Iterator[Row]], batches: _Batches
) -> Iterator[Row]:
    ends = [2 + sum(widths[: number + 1]) for number in range(len(widths))]
    return work((row[1], row[ends[row[1]] - widths[row[1]] : ends[row[1]]]) for row in _rows(batches))


def _gathered(work: Callable[[Iterator[Row]], Any], schema: StructType, batches: _Batches) -> Iterator[pa.RecordBatch]:
    result = pickle.dumps(work(_rows(batches)))
    yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], schema=arrow_schema(schema))


def _batches(
    work: Callable[[_Batches], Iterator[Row]], schema: StructType, batches: _Batches
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in batches."""
    types = arrow_schema(schema)
    rows = work(batches)
    while some := list(islice(rows, _TOGETHER)):
        columns = [pa.array(cells, kind) for cells, kind in zip(zip(*some, strict=True), types.types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=types)


def _rows(batches: _Batches) -> Iterator[Row]:
    """Rows of batches; timestamps are ints, as Python has none behind the year 9999."""
    for batch in batches:
        columns = (
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        )
        yield from zip(*(column.to_pylist() for column in columns), strict=True)
