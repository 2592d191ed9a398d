"""A query whose records are read in Python: the job asks Kafka for the end of each micro-batch.

The source of `jobs.reading.record_source` cannot ask itself: topics may be named by a pattern, which only Java reads,
and with `once` all micro-batches end where the topics ended when the first of them began.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.driver.jvm import Files
from jobs.ingesting.checkpoint import first_offsets, read_start, write_start
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.query_progress import Tally, follow
from jobs.ingesting.spark_logs import end, planned
from jobs.reading.ranges import Bounds, Positions, advanced, check_forward, position, positions_json, positions_of
from jobs.reading.topics import Kafka, spans

__all__ = ["follow_planned"]


def follow_planned(
    spark: SparkSession,
    settings: IngestSettings,
    start: Callable[[Mapping[str, str]], StreamingQuery],
    tally: Tally,
    on_batch: Callable[[Tally], None],
    stop: Event,
) -> None:
    """Does one micro-batch after another: with `once`, up to the current end of the topics; else until `stop` is set.

    A micro-batch that an earlier run planned and did not finish comes first, as Spark has it in the checkpoint.

    Args:
        spark: the session.
        settings: of the job.
        start: starts a query that does one micro-batch, or one more if there is an unfinished one; takes more options
            of its source.
        tally: counts every micro-batch, whatever happens.
        on_batch: is called after each.
        stop: ends the current micro-batch, and the job.

    Raises:
        ConfigurationError: the starting offsets do not fit the topics, or the checkpoint is damaged.
        JobFailedError: a partition ends before its next offset.
        pyspark.errors.PySparkException: a query failed, or records cannot be read.
        py4j.protocol.Py4JError: the topics cannot be described.
    """
    kafka, files, checkpoint = settings.kafka(), Files(spark), settings.checkpoint
    beginning = read_start(spark, checkpoint) or first_offsets(spark, checkpoint)
    last: Positions | None = None
    while not stop.is_set():
        began = time.monotonic()
        found = _bounds(spark, kafka, settings)
        number, unfinished = planned(files, checkpoint)
        here = end(files, checkpoint, number)
        if here is None:
            here = _first(beginning, found, settings)
            noted, beginning = beginning, json.dumps(positions_json(here))
            if beginning != noted:
                write_start(spark, checkpoint, beginning)
        begin, ends = _begin(here, found, settings)
        if settings.once:
            last = ends = last or ends
        if unfinished or any(begin[place] < at for place, at in ends.items()):
            bounds = {place: Bounds(begin[place], max(at, begin[place])) for place, at in ends.items()}
            until = advanced({**here, **begin}, bounds, settings.max_offsets_per_trigger)
            tally.behind = max(0, sum(ends.values()) - sum(until[place] for place in ends))
            options = {"startingOffsets": beginning} if beginning else {}
            follow(start({**options, "endingOffsets": json.dumps(positions_json(until))}), tally, on_batch, stop)
        elif settings.once:
            return
        else:
            stop.wait(0.1)
        if not settings.once:
            stop.wait(max(0.0, settings.trigger_seconds - (time.monotonic() - began)))


def _bounds(spark: SparkSession, kafka: Kafka, settings: IngestSettings) -> dict[tuple[str, int], Bounds]:
    committed = kafka.options["kafka.isolation.level"] == "read_committed"
    found = spans(spark, kafka, settings.topics, settings.subscribe_pattern)
    return {place: Bounds(span.start, span.stable if committed else span.end) for place, span in found.items()}


def _first(beginning: str | None, found: Mapping[tuple[str, int], Bounds], settings: IngestSettings) -> Positions:
    """Where the first micro-batch begins: as noted, so that `latest` stays the same; a new partition at its first."""
    if beginning is None:
        return position("--starting-offsets", settings.start(), found)
    noted = positions_of(json.loads(beginning))
    return {place: noted.get(place, bounds.first) for place, bounds in found.items()}


def _begin(
    here: Positions, found: Mapping[tuple[str, int], Bounds], settings: IngestSettings
) -> tuple[Positions, Positions]:
    """Where each existing partition goes on, and where it ends; a new one begins at its first record."""
    if settings.fail_on_data_loss:
        check_forward(here, found)
    begin = {
        place: bounds.first if here.get(place, bounds.end + 1) > bounds.end else here[place]
        for place, bounds in found.items()
    }
    return begin, {place: bounds.end for place, bounds in found.items()}
