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

from jobs.driver.progress import bar
from transforms.text import bytes_text

__all__ = ["Tally", "counted", "follow", "line", "measured", "table"]

_OBSERVED = "ingested"
_OBSERVED_BAD = "ingested_bad"


def measured(rows: DataFrame) -> DataFrame:
    """`rows`, counted on their way: the progress of a micro-batch then has rows, and bytes of keys and values."""
    length = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    # Spark's own Kafka source gives every record a timestamp.
    bad = F.col("timestamp").isNull()
    return rows.observe(
        _OBSERVED,
        F.count(F.lit(1)).alias("rows"),
        F.sum(length.cast("long")).alias("bytes"),
        F.count_if(bad).alias("bad_timestamps"),
        F.min(F.when(bad, F.struct("topic", "partition", "offset"))).alias("first_bad_timestamp"),
    )


def counted(rows: DataFrame, column: str) -> DataFrame:
    """`rows`, with those counted that have a bad value, which is in `column`."""
    return rows.observe(_OBSERVED_BAD, F.count(column).alias("values"))


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

    def add(self, progress: StreamingQueryProgress | Mapping[str, Any]) -> bool:
        """Adds a progress report; returns whether it was a micro-batch with rows that was not counted before.

        Args:
            progress: of Spark; from `recentProgress`, Spark 3.5 returns what is in its JSON.
        """
        said: Mapping[str, Any] = (
            json.loads(progress.json) if isinstance(progress, StreamingQueryProgress) else progress
        )
        for source in said["sources"]:
            end = source.get("endOffset")
            if end:
                self.end_offsets = end
                latest = source.get("latestOffset")
                self.behind = max(0, _total(latest) - _total(end)) if latest else 0
        # A trigger that found nothing reports with the number of the next micro-batch.
        if said["numInputRows"] == 0 or said["batchId"] <= self._last_batch:
            return False
        self._last_batch = said["batchId"]
        metrics = said.get("observedMetrics") or {}
        observed = metrics.get(_OBSERVED) or {"rows": said["numInputRows"]}
        self.batches += 1
        self.rows += int(observed["rows"] or 0)
        self.bytes += int(observed.get("bytes") or 0)
        if observed.get("bad_timestamps"):
            self.bad_timestamps = (self.bad_timestamps or 0) + int(observed["bad_timestamps"])
            place = "topic {topic} partition {partition} offset {offset}"
            self.first_bad_timestamp = self.first_bad_timestamp or place.format(**observed["first_bad_timestamp"])
        if bad := metrics.get(_OBSERVED_BAD):
            self.bad_values = (self.bad_values or 0) + int(bad["values"])
        return True

    def summary(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "bytes": self.bytes,
            **({} if self.bad_values is None else {"bad_values": self.bad_values}),
            **({} if self.bad_timestamps is None else {"bad_timestamps": self.bad_timestamps}),
            **({"first_bad_timestamp": self.first_bad_timestamp} if self.first_bad_timestamp else {}),
            "seconds": round(time.monotonic() - self.started, 1),
            "end_offsets": self.end_offsets,
        }


def follow(
    query: StreamingQuery, tally: Tally, on_look: Callable[[Tally], None], stop: Event, poll_seconds: float = 0.5
) -> None:
    """Waits until `query` ends, or ends it when `stop` is set; `tally` counts every micro-batch, whatever happens.

    Calls `on_look` twice a second (`poll_seconds`), so that a long micro-batch does not seem to hang. If that raises,
    the query ends.

    Raises:
        pyspark.errors.StreamingQueryException: the query failed.
    """

    def take_in() -> None:
        for progress in query.recentProgress:
            tally.add(progress)

    ended: bool | None = False
    try:
        while not ended:
            ended = query.awaitTermination(poll_seconds)  # type: ignore[arg-type]  # takes fractions of a second
            if stop.is_set() and not ended:
                query.stop()
                ended = True
            take_in()
            on_look(tally)
    except BaseException:
        take_in()
        query.stop()
        raise


def line(tally: Tally) -> str:
    """One line for a terminal: how far, how much, how long."""
    seconds = time.monotonic() - tally.started
    if tally.batches == 0:
        return f"{bar(0, 0)} no batch done yet, {seconds:.0f} s"
    total = tally.rows + tally.behind
    return (
        f"{bar(tally.rows, total)} batch {tally.batches}: {tally.rows:,} of {total:,} records, "
        f"{bytes_text(tally.bytes)}, {seconds:.0f} s"
    )


def table(summary: Mapping[str, Any], out: TextIO) -> None:
    """The summary as two columns, offsets last."""
    rows = [(name.replace("_", " "), value) for name, value in summary.items() if name != "end_offsets"]
    for topic, partitions in sorted(summary["end_offsets"].items()):
        by_number = sorted(partitions.items(), key=lambda each: int(each[0]))
        ends = " ".join(f"{partition}:{offset:,}" for partition, offset in by_number)
        rows.append((f"next offset in {topic}", ends))
    width = max(len(name) for name, _ in rows)
    out.writelines(f"{name:<{width}}  {f'{value:,}' if isinstance(value, int) else value}\n" for name, value in rows)


def _total(offsets: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(partitions.values()) for partitions in offsets.values())
