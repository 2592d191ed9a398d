"""Micro-batches with a limit in bytes: how far each may read, found by measuring the records that come next.

Kafka tells how many records wait, but not how large they are; so Spark's source limits a micro-batch in records alone.
Here a short job on executors measures the next records, read with Spark's own source; it returns only their lengths. A
task ends as soon as it has seen its share, so it reads little beyond the next micro-batch, and lengths that were
measured for later are kept. The end goes into the checkpoint before the micro-batch begins, in Spark's own form: for
Spark it is a micro-batch that was planned and not done yet.

So each record is read twice from Kafka; the second time it mostly comes from the broker's page cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from jobs.driver.failures import TWO_RUNS
from jobs.driver.jvm import java_packages, java_session, map_in_arrow
from jobs.reading.ranges import Bounds, Place, Positions, advanced, positions_json, positions_of
from jobs.reading.topics import Kafka, read_between
from jobs.records.schemas import columns
from transforms.errors import ConfigurationError

__all__ = ["Measured", "OffsetLog", "Planner", "lengths", "limited"]

_PAD = 4 * 2**20
"""Spark reads on while the socket to Python takes its rows, some MiB, even before Python has started or caught up."""

_PIECES = 16
_STRIDE = 256 * 2**20
"""The least number of bytes to measure at a time: a job takes a second, even if it reads little."""

_SET_HERE = {
    "assign",
    "endingoffsets",
    "failondataloss",
    "includeheaders",
    "kafka.bootstrap.servers",
    "maxoffsetspertrigger",
    "maxrecordsperpartition",
    "minpartitions",
    "startingoffsets",
    "subscribe",
    "subscribepattern",
}
_LONGS = ArrayType(LongType())
_MEASURED = StructType(
    [*columns("topic string, partition int"), StructField("offsets", _LONGS), StructField("lengths", _LONGS)]
)
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_SMALL = "65536"
_LENGTH = (
    "cast(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS bigint) + coalesce(aggregate(headers, "
    "0L, (sum, header) -> sum + octet_length(header.key) + coalesce(octet_length(header.value), 0)), 0L)"
)


@dataclass(slots=True)
class Measured:
    """The measured records of a partition that no micro-batch has read yet.

    Attributes:
        until: the first offset that was not measured.
        offsets: the offsets of the measured records.
        lengths: the bytes of key, value and headers of each.
    """

    until: int
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def drop(self, start: int) -> None:
        """Forgets the records before offset `start`."""
        count = sum(1 for offset in self.offsets if offset < start)
        del self.offsets[:count], self.lengths[:count]
        self.until = max(self.until, start)


def limited(measured: Mapping[Place, Measured], order: Iterable[Place], max_bytes: int) -> Positions:
    """The end of a micro-batch whose records have `max_bytes` at most, or of one with a single larger record.

    Args:
        measured: the next records, by partition.
        order: the partitions; the first ones are filled first.
        max_bytes: the limit.
    """
    ends, total, count = {}, 0, 0
    for place in order:
        known = measured[place]
        end = known.until
        for offset, length in zip(known.offsets, known.lengths, strict=True):
            if count and total + length > max_bytes:
                end = offset
                break
            total, count = total + length, count + 1
        ends[place] = end
    return ends


class Planner:
    """Plans one micro-batch after the other.

    Args:
        spark: the session.
        kafka: the cluster.
        most_bytes: the most bytes of keys, values and headers in a micro-batch; None for no limit.
        most_records: the most records in a micro-batch; None for no limit.
        fail_on_loss: whether it is a failure if Kafka has deleted records.
    """

    # State that changes: `_measured`, the records that were measured and not yet planned; and `_turn`, which partition
    # comes first, so that large records of one partition do not keep those of another back for ever.

    def __init__(
        self, spark: SparkSession, kafka: Kafka, most_bytes: int | None, most_records: int | None, *, fail_on_loss: bool
    ) -> None:
        self._spark = spark
        options = {name: value for name, value in kafka.options.items() if name.lower() not in _SET_HERE}
        self._kafka = replace(kafka, options=options)
        self._bytes = most_bytes
        self._records = most_records
        self._fail_on_loss = fail_on_loss
        self._measured: dict[Place, Measured] = {}
        self._turn = 0

    def next(self, start: Positions, end: Positions) -> Positions | None:
        """The end of the micro-batch that begins at `start`; None if there is nothing between that and `end`.

        Raises:
            pyspark.errors.PySparkException: records cannot be read.
            py4j.protocol.Py4JError: the same.
        """
        places = [place for place in sorted(end) if start[place] < end[place]]
        if not places:
            return None
        if self._bytes is None:
            return advanced(start, {place: Bounds(start[place], end[place]) for place in places}, self._records)
        for place, at in end.items():
            known = self._measured.setdefault(place, Measured(start[place]))
            known.drop(start[place])
            known.until = min(known.until, max(at, start[place]))
        self._measure_enough(places, end)
        self._turn += 1
        first = self._turn % len(places)
        ends = limited(self._measured, places[first:] + places[:first], self._bytes)
        if self._records:
            ends = self._fewer(start, ends)
        return {**start, **ends}

    def _measure_enough(self, places: Sequence[Place], end: Positions) -> None:
        assert self._bytes is not None
        while True:
            until = {place: self._measured[place].until for place in places}
            waiting = {place: at for place, at in until.items() if at < end[place]}
            measured = sum(sum(self._measured[place].lengths) for place in places)
            count = sum(len(self._measured[place].lengths) for place in places)
            if not waiting or measured >= self._bytes or (self._records and count >= self._records):
                return
            share = max(1, (max(self._bytes, _STRIDE) - measured) // len(waiting))
            offsets = max(1, (self._records - count) // len(waiting)) if self._records else None
            ends = {place: min(end[place], at + offsets) if offsets else end[place] for place, at in waiting.items()}
            self._measure(waiting, ends, share)

    def _measure(self, start: Positions, end: Positions, share: int) -> None:
        rows = lengths(read_between(self._spark, self._kafka, start, end, fail_on_loss=self._fail_on_loss), share)
        found = {(row.topic, row.partition): row for row in rows}
        for place, at in end.items():
            known, row = self._measured[place], found.get(place)
            if row is None:
                known.until = at
                continue
            known.offsets += row.offsets
            known.lengths += row.lengths
            known.until = row.offsets[-1] + 1 if sum(row.lengths) >= share else at

    def _fewer(self, start: Positions, ends: Positions) -> Positions:
        """`ends`, or less far, so that the micro-batch has no more offsets than it may have."""
        assert self._records is not None
        left, fewer = self._records, {}
        for place, at in ends.items():
            fewer[place] = min(at, start[place] + left)
            left -= fewer[place] - start[place]
        return fewer


def lengths(rows: DataFrame, share: int) -> list[Row]:
    """One row for each task: the offsets and the lengths of its records, until the lengths come to `share`."""
    # Each row is padded by its share of what the socket holds: a few large records fill it, and Spark waits.
    piece = max(1, share // _PIECES)
    measured = rows.select("topic", "partition", "offset", F.expr(_LENGTH).alias("length")).withColumn(
        "pad", F.expr(f"repeat('-', cast(least({_PAD}L, length * {_PAD}L DIV {piece}L) AS int))")
    )
    conf = rows.sparkSession.conf
    former = conf.get(_BATCH_BYTES)
    conf.set(_BATCH_BYTES, _SMALL)
    try:
        return map_in_arrow(measured, _taking(share), _MEASURED).collect()
    finally:
        conf.set(_BATCH_BYTES, str(former))


def _taking(share: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    # Inside another function, so that executors get its code, and not the name of a module that they may not have.
    def taken(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # on executors

        place, offsets, found, total = None, [], [], 0
        for batch in batches:
            place = (batch.column(0)[0], batch.column(1)[0]) if batch.num_rows else place
            for offset, length in zip(batch.column(2).to_pylist(), batch.column(3).to_pylist(), strict=True):
                offsets.append(offset)
                found.append(length)
                total += length
                if total >= share:
                    break
            if total >= share:
                break
        if place is not None:
            named = [pa.array([each.as_py()], each.type) for each in place]
            longs = pa.list_(pa.int64())
            yield pa.RecordBatch.from_arrays(
                [*named, pa.array([offsets], longs), pa.array([found], longs)],
                names=["topic", "partition", "offsets", "lengths"],
            )

    return taken


class OffsetLog:
    """The logs of a checkpoint, of planned and of finished micro-batches; Spark's own code reads and writes them."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._jvm = java_packages(spark)
        self._session = java_session(spark)
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        self._streaming = streaming
        self._offsets = streaming.OffsetSeqLog(self._session, f"{checkpoint}/offsets")
        self._commits = streaming.CommitLog(self._session, f"{checkpoint}/commits")

    def pending(self) -> bool:
        """Whether there is a planned micro-batch that is not done."""
        return self._last(self._offsets) != self._last(self._commits)

    def position(self) -> Positions | None:
        """The end of the last planned micro-batch; None before the first."""
        return self._end(self._last(self._offsets))

    def former(self) -> Positions | None:
        """The end of the micro-batch before that; None before the second."""
        return self._end(self._last(self._offsets) - 1)

    def plan(self, end: Positions, now_ms: int) -> None:
        """Notes that the next micro-batch ends at `end`.

        Raises:
            ConfigurationError: another run has planned it in the meantime.
        """
        offset = self._streaming.SerializedOffset(json.dumps(positions_json(end)))
        metadata = self._streaming.OffsetSeqMetadata.apply(0, now_ms, self._session.conf())
        options = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(
            self._jvm.java.util.List.of(self._jvm.scala.Option.apply(offset))
        ).toSeq()
        number = self._last(self._offsets) + 1
        if not self._offsets.add(number, self._streaming.OffsetSeq(options, self._jvm.scala.Option.apply(metadata))):
            raise ConfigurationError("--checkpoint", TWO_RUNS)

    def _end(self, number: int) -> Positions | None:
        found = self._offsets.get(number)
        return None if found.isEmpty() else positions_of(json.loads(found.get().offsets().head().get().json()))

    @staticmethod
    def _last(log: Any) -> int:
        latest = log.getLatestBatchId()
        return -1 if latest.isEmpty() else int(latest.get())
