"""Which record of a micro-batch has a timestamp that Spark cannot hold: Spark's Kafka source ends, and does not say."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from jobs.driver.failures import SPARK_ERRORS, JobFailedError
from jobs.driver.jvm import Files
from jobs.ingesting.checkpoint import first_offsets, read_start
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.spark_logs import end, planned
from jobs.reading.odd_timestamps import odd_timestamps
from jobs.reading.ranges import Positions, positions_of
from jobs.reading.topics import spans
from transforms.errors import WideloadError

__all__ = ["timestamp_fault"]

_ADVICE = "--on-bad-timestamp null keeps such records with a null timestamp"


def timestamp_fault(spark: SparkSession, settings: IngestSettings) -> WideloadError:
    """The error for a micro-batch that Spark could not read because of a timestamp; reads it once more, in Python."""
    try:
        found = odd_timestamps(spark, settings.kafka(), *_range(spark, settings))
    except (*SPARK_ERRORS, WideloadError):  # as where executors have no aiokafka
        found = None
    if found is not None:
        return JobFailedError(f"{found}; {_ADVICE}")
    return JobFailedError(
        f"a record of {settings.source} has a timestamp out of Spark's range (is it in another unit than "
        f"milliseconds?); {_ADVICE}"
    )


def _range(spark: SparkSession, settings: IngestSettings) -> tuple[Positions, Positions]:
    """Where the micro-batch begins and ends that is planned, or would be planned next."""
    files, checkpoint = Files(spark), settings.checkpoint
    number, unfinished = planned(files, checkpoint)
    there = spans(spark, settings.kafka(), settings.topics, settings.subscribe_pattern)
    noted = read_start(spark, settings.checkpoint) or first_offsets(spark, settings.checkpoint)
    first = positions_of(json.loads(noted)) if noted else {}
    begins, ends = end(files, checkpoint, number) or {}, {place: span.stable for place, span in there.items()}
    if unfinished:
        begins, ends = end(files, checkpoint, number - 1) or {}, begins
    start = {
        place: max(begins.get(place, first.get(place, span.start)), span.start)
        for place, span in there.items()
        if place in ends
    }
    return start, ends
