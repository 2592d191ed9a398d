"""Records with a timestamp that Spark cannot hold: how many there are, and where the first one is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.driver.failures import SPARK_ERRORS, overflowed
from jobs.reading.ranges import Positions
from jobs.reading.topics import Kafka, Topic, read_between
from jobs.records.arrow import bad_timestamp

__all__ = ["OddTimestamps", "despite_odd_timestamps", "odd_timestamps"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class OddTimestamps:
    """The records of some ranges whose timestamp Spark cannot hold.

    Attributes:
        records: how many there are.
        topic, partition, offset: the first one.
        timestamp_ms: its timestamp, as Kafka has it.
    """

    records: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        """The first record, with what is wrong, and how many more there are."""
        more = f"; {self.records:,} records have such a timestamp" if self.records > 1 else ""
        place = f"topic {self.topic} partition {self.partition} offset {self.offset}"
        return f"{place}: {bad_timestamp(self.timestamp_ms)}{more}"


def odd_timestamps(spark: SparkSession, kafka: Kafka, start: Positions, end: Positions) -> OddTimestamps | None:
    """The records between two positions whose timestamp Spark cannot hold, if there are any. Reads them all.

    Raises:
        pyspark.errors.PySparkException: records cannot be read.
    """
    start = {place: at for place, at in start.items() if at < end[place]}
    if not start:
        return None
    rows = read_between(spark, replace(kafka, in_python=True), start, {place: end[place] for place in start})
    first = F.min(F.struct("topic", "partition", "offset", "timestampMillis")).alias("first")
    found = rows.where(F.col("timestamp").isNull()).agg(F.count(F.lit(1)).alias("records"), first).collect()[0]
    return OddTimestamps(found["records"], *found["first"]) if found["records"] else None


def despite_odd_timestamps(
    spark: SparkSession, kafka: Kafka, topics: Sequence[Topic], read: Callable[[Kafka], Result], notes: list[str]
) -> Result:
    """What `read` returns, called again with `Kafka.in_python` if Spark's own source fails at such a timestamp.

    Args:
        spark: the session.
        kafka: the cluster.
        topics: what is read.
        read: reads them.
        notes: gets a sentence on the records with such timestamps, uncommitted ones too.
    """
    try:
        return read(kafka)
    except SPARK_ERRORS as error:
        if not overflowed(error):
            raise
    kafka = replace(kafka, in_python=True)
    result = read(kafka)
    spans = {(topic.name, number): span for topic in topics for number, span in topic.spans.items()}
    everything = replace(kafka, options={**kafka.options, "kafka.isolation.level": "read_uncommitted"})
    starts, ends = (
        {place: span.start for place, span in spans.items()},
        {place: span.end for place, span in spans.items()},
    )
    found = odd_timestamps(spark, everything, starts, ends)
    if found is not None:
        notes.append(f"{found}; it was read with a null timestamp")
    return result
