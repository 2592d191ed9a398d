"""What a job that begins anew will read, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from jobs.ingesting.command_line import IngestSettings
from jobs.reading.ranges import Bounds, Positions, position
from jobs.reading.topics import spans

__all__ = ["anew", "sentence"]

_NAMED = 20


def anew(spark: SparkSession, settings: IngestSettings) -> str:
    """What the job will read from `settings.starting_offsets` on, and what is no longer there.

    Raises:
        ConfigurationError: the starting offsets do not fit the topics.
        py4j.protocol.Py4JError: the topics cannot be described.
    """
    kafka = settings.kafka()
    found = {
        place: Bounds(span.start, span.end)
        for place, span in spans(spark, kafka, settings.topics, settings.subscribe_pattern).items()
    }
    return sentence(position("--starting-offsets", settings.start(), found), found)


def sentence(start: Positions, found: Mapping[tuple[str, int], Bounds]) -> str:
    """The sentence; names 20 partitions at most.

    Args:
        start: where reading begins.
        found: the first offset and the end of each partition.
    """
    count = sum(max(0, bounds.end - start[place]) for place, bounds in found.items())
    places = [
        f"{topic} {number}: {start[topic, number]:,} to {bounds.end:,}"
        for (topic, number), bounds in sorted(found.items())
    ]
    more = f", and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    told = f"begins anew, and reads {count:,} offsets by partition ({', '.join(places[:_NAMED]) or 'none yet'}{more})"
    lost = [f"{topic} {number}" for (topic, number), bounds in sorted(found.items()) if bounds.first > 0]
    if not lost:
        return told
    return (
        f"{told}; the first records of {len(lost)} of {len(found)} partitions are no longer in Kafka, and the new "
        f"output lacks them: {', '.join(lost[:_NAMED])}"
    )
