"""Records with a timestamp that Spark cannot hold: how many there are, and where the first one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.reading.ranges import Positions
from jobs.reading.topics import Kafka, Topic, read_between
from jobs.records.timestamps import bad_timestamp

__all__ = ["OddTimestamps", "odd_in_topics", "odd_timestamps"]


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


def odd_in_topics(spark: SparkSession, kafka: Kafka, topics: Sequence[Topic]) -> list[str]:
    """A sentence on such records of whole topics, uncommitted ones too, if there are any."""
    spans = {(topic.name, number): span for topic in topics for number, span in topic.spans.items()}
    ends = {place: span.end for place, span in spans.items()}
    kafka = replace(kafka, options={**kafka.options, "kafka.isolation.level": "read_uncommitted"})
    found = odd_timestamps(spark, kafka, {place: span.start for place, span in spans.items()}, ends)
    return [] if found is None else [f"{found}; it was read with a null timestamp"]
