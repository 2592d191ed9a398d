"""The progress of a streaming query, while it runs and at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TextIO

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from app.payloads.terminal import bar
from transforms.text import bytes_text

_POLL_S = 0.5


def measured(rows: DataFrame) -> DataFrame:
    """`rows`, counted on their way: the progress of a micro-batch then has rows, and bytes of keys and values."""
    length = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    bad = F.col("timestamp").isNull()  # Spark's own Kafka source gives every record a timestamp
    return rows.observe(
        "ingested",
        F.count(F.lit(1)).alias("rows"),
        F.sum(length.cast("long")).alias("bytes"),
        F.count_if(bad).alias("bad_timestamps"),
        F.min(F.when(bad, F.struct("topic", "partition", "offset"))).alias("first_bad_timestamp"),
    )


def counted(rows: DataFrame, column: str) -> DataFrame:
    """`rows`, with those counted that have a bad value, which is in `column`."""
    return rows.observe("ingested_bad", F.count(column).alias("bad_values"))


@dataclass(slots=True)
class Tally:
    """The sum over the batches of a run.

    Attributes:
        batches: micro-batches that wrote rows.
        rows: rows that they wrote.
        bytes: the bytes of the keys and values of these rows.
        bad_values: rows with a bad value; None if a bad value is a failure.
        bad_timestamps: rows without the timestamp of their record; None if such a timestamp is a failure.
        first_bad_timestamp: the place of the first of them.
        end_offsets: by topic and partition, the next offset to read; a restart begins there.
        behind: how many records the source had behind `end_offsets`, when Spark last asked.
        started: `time.monotonic()` of the beginning.
    """

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    bad_values: int | None = None
    bad_timestamps: int | None = None
    first_bad_timestamp: str | None = None
    end_offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    behind: int = 0
    started: float = field(default_factory=time.monotonic)
    _last_batch: int = -1

    def add(self, progress: StreamingQueryProgress | Mapping[str, Any]) -> None:
        """Adds a progress report, if it is of a micro-batch that was not counted before.

        Args:
            progress: of Spark; from `recentProgress`, Spark 3.5 returns what is in its JSON.
        """
        said: Mapping[str, Any] = (
            json.loads(progress.json) if isinstance(progress, StreamingQueryProgress) else progress
        )
        for source in said["sources"]:
            if end := source.get("endOffset"):
                self.end_offsets = end
                latest = source.get("latestOffset")
                self.behind = max(0, _total(latest) - _total(end)) if latest else 0
        # A trigger that found nothing reports with the number of the next micro-batch.
        if said["numInputRows"] == 0 or said["batchId"] <= self._last_batch:
            return
        self._last_batch = said["batchId"]
        observed = {"rows": said["numInputRows"]}
        for metrics in (said.get("observedMetrics") or {}).values():
            observed |= {name: value for name, value in metrics.items() if value is not None}
        self.batches += 1
        self.rows += int(observed["rows"])
        self.bytes += int(observed.get("bytes", 0))
        if self.bad_values is not None:
            self.bad_values += int(observed.get("bad_values", 0))
        if self.bad_timestamps is not None:
            self.bad_timestamps += int(observed.get("bad_timestamps", 0))
        if self.first_bad_timestamp is None and (first := observed.get("first_bad_timestamp")):
            self.first_bad_timestamp = "topic {topic} partition {partition} offset {offset}".format(**first)

    def summary(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        numbers = {
            name: getattr(self, name)
            for name in ("batches", "rows", "bytes", "bad_values", "bad_timestamps", "first_bad_timestamp")
        }
        return {
            **{name: number for name, number in numbers.items() if number is not None},
            "seconds": round(time.monotonic() - self.started, 1),
            "end_offsets": self.end_offsets,
        }

    def __str__(self) -> str:
        """One line for a terminal: how far, how much, how long."""
        seconds = time.monotonic() - self.started
        if self.batches == 0:
            return f"{bar(0, 0)} no batch done yet, {seconds:.0f} s"
        total = self.rows + self.behind
        return (
            f"{bar(self.rows, total)} batch {self.batches}: {self.rows:,} of {total:,} records, "
            f"{bytes_text(self.bytes)}, {seconds:.0f} s"
        )


def follow(query: StreamingQuery, tally: Tally, on_look: Callable[[], None], stop: Event) -> None:
    """Waits until `query` ends, or ends it when `stop` is set; `tally` counts every micro-batch, whatever happens.

    Calls `on_look` twice a second, so that a long micro-batch does not seem to hang. If that raises, the query ends.

    Raises:
        pyspark.errors.StreamingQueryException: the query failed.
    """
    try:
        ended: bool | None = False
        while not ended:
            ended = query.awaitTermination(_POLL_S)  # type: ignore[arg-type]  # takes fractions of a second
            if stop.is_set() and not ended:
                query.stop()
                ended = True
            _count(query, tally)
            on_look()
    except BaseException:
        _count(query, tally)
        query.stop()
        raise


def table(summary: Mapping[str, Any], out: TextIO) -> None:
    """The summary as two columns, offsets last."""
    rows = [(name.replace("_", " "), value) for name, value in summary.items() if name != "end_offsets"]
    for topic, partitions in sorted(summary["end_offsets"].items()):
        by_number = sorted(partitions.items(), key=lambda each: int(each[0]))
        ends = " ".join(f"{partition}:{offset:,}" for partition, offset in by_number)
        rows.append((f"next offset in {topic}", ends))
    width = max(len(name) for name, _ in rows)
    out.writelines(f"{name:<{width}}  {f'{value:,}' if isinstance(value, int) else value}\n" for name, value in rows)


def _count(query: StreamingQuery, tally: Tally) -> None:
    for progress in query.recentProgress:
        tally.add(progress)


def _total(offsets: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(partitions.values()) for partitions in offsets.values())
