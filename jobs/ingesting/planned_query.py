"""A query whose micro-batches the job plans itself; see `jobs.ingesting.micro_batches`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from threading import Event

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobs.ingesting.checkpoint import first_offsets, read_start, write_start
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.micro_batches import OffsetLog, Planner
from jobs.ingesting.query_progress import Tally, follow
from jobs.reading.ranges import Bounds, Positions, check_forward, position, positions_json, positions_of
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

    A micro-batch that an earlier run planned and did not finish comes first, as it was planned.

    Args:
        spark: the session.
        settings: of the job.
        start: starts a query that does the one planned micro-batch; takes more options of its source.
        tally: counts every micro-batch, whatever happens.
        on_batch: is called after each.
        stop: ends the current micro-batch, and the job.

    Raises:
        ConfigurationError: the starting offsets do not fit the topics, or another run works with the checkpoint.
        JobFailedError: a partition ends before its next offset.
        pyspark.errors.PySparkException: a query failed, or records cannot be read.
        py4j.protocol.Py4JError: the topics cannot be described.
    """
    kafka = settings.kafka()
    planner = Planner(
        spark,
        kafka,
        settings.max_bytes_per_trigger,
        settings.max_offsets_per_trigger,
        fail_on_loss=settings.fail_on_data_loss,
    )
    log = OffsetLog(spark, settings.checkpoint)
    beginning = read_start(spark, settings.checkpoint) or first_offsets(spark, settings.checkpoint)
    if log.pending():
        follow(start({"startingOffsets": beginning} if beginning else {}), tally, on_batch, stop)
    last: Positions | None = None
    while not stop.is_set():
        began = time.monotonic()
        found = _bounds(spark, kafka, settings)
        here = log.position()
        if here is None:
            here = _first(beginning, found, settings)
            noted, beginning = beginning, json.dumps(positions_json(here))
            # Spark itself finds where its first micro-batch begins, later than this; only the end is planned here.
            if beginning != noted:
                write_start(spark, settings.checkpoint, beginning)
        begin, ends = _begin(here, found, settings)
        if settings.once:
            last = ends = last or ends
        end = planner.next(begin, ends)
        if end is None and settings.once:
            return
        if end is not None:
            log.plan({**here, **end}, round(time.time() * 1000))
            tally.behind = max(0, sum(ends.values()) - sum(end[place] for place in ends))
            follow(start({"startingOffsets": beginning} if beginning else {}), tally, on_batch, stop)
        if not settings.once:
            stop.wait(max(0.0 if end else 0.1, settings.trigger_seconds - (time.monotonic() - began)))


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
