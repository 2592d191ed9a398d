"""The topics of a run as the cluster has them: whether they are those of the checkpoint, and what a rebuild reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from app.kafka.clients import ClusterError
from app.kafka.spans import Span, listed, required, spans
from app.kafka.topics import Identity
from jobs.driver.jvm import java_packages
from jobs.ingesting.checkpoint import Checkpoint
from jobs.reading.ranges import Bounds, Positions, parse_offsets, position
from transforms.errors import ConfigurationError

_NAMED = 20
_INTERNAL = ("__consumer_offsets", "__share_group_state", "__transaction_state")


class Topics:
    """The topics of a run, checked when it begins and while it runs. Where only Java can log in, there are none.

    Spark continues in a topic that was created again. Micro-batches since the last look may have records of both,
    but no run ends without a word on it.

    Args:
        spark: the session.
        checkpoint: has their ids.
        pause_s: the least time from one look to the next.

    Raises:
        ConfigurationError: a topic does not exist, or was created again; the pattern is wrong, or no broker answers.
        ClusterError: the cluster did not answer.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, pause_s: float = 30.0) -> None:
        self._spark, self._checkpoint, self._pause_s = spark, checkpoint, pause_s
        self._batches, self._looked = 0, time.monotonic()
        settings = checkpoint.settings
        found = self._look()
        checkpoint.bind_topics(_ids(found))
        if settings.client is not None and not found:
            print(
                f"ingest: no topic on the broker at {settings.bootstrap_servers} matches --subscribe-pattern "
                f"{settings.subscribe_pattern!r}; topics that are created later will be read",
                file=sys.stderr,
            )

    def watch(self, batches: int) -> None:
        """Looks again, if there is a new micro-batch, and the last look is old enough.

        Args:
            batches: how many micro-batches are done.

        Raises:
            ConfigurationError: a topic was created again.
        """
        if batches == self._batches or time.monotonic() - self._looked < self._pause_s:
            return
        found: Mapping[str, Identity] = {}
        with suppress(ClusterError, ConfigurationError):  # the query itself says what is wrong with the brokers
            found = self._look()
        self._checkpoint.bind_topics(_ids(found))
        self._batches, self._looked = batches, time.monotonic()

    def ends(self) -> Positions:
        """Where the partitions end now, for a reader with the isolation level of the job.

        Raises:
            ConfigurationError: no broker answers.
            ClusterError: the cluster did not answer, or a topic is gone.
        """
        committed = self._checkpoint.settings.source_options()["kafka.isolation.level"] == "read_committed"
        return {place: span.stable if committed else span.end for place, span in self._spans().items()}

    def rebuilt(self) -> str:
        """What the job reads from its starting offsets on, and what is no longer there, as a sentence.

        Raises:
            ConfigurationError: the starting offsets do not fit the topics, or no broker answers.
            ClusterError: the cluster did not answer, or a topic is gone.
        """
        option = "--starting-offsets"
        start = parse_offsets(option, self._checkpoint.settings.starting_offsets)
        bounds = {place: Bounds(span.start, span.end) for place, span in self._spans().items()}
        return sentence(position(option, start, bounds), bounds)

    def _look(self) -> dict[str, Identity]:
        """The topics that the user named, or those that a Java regular expression matches."""
        settings = self._checkpoint.settings
        if settings.client is None:
            return {}
        if settings.subscribe_pattern is None:
            return required(settings.client, {"--topic": settings.topics})
        try:
            pattern = java_packages(self._spark).java.util.regex.Pattern.compile(settings.subscribe_pattern)
        except IllegalArgumentException as exc:
            reason = str(exc).partition("\n")[0]
            raise ConfigurationError("--subscribe-pattern", f"is not a Java regular expression: {reason}") from exc
        there = listed(settings.client)
        return {name: there[name] for name in there if name not in _INTERNAL and pattern.matcher(name).matches()}

    def _spans(self) -> dict[tuple[str, int], Span]:
        client = self._checkpoint.settings.client
        found = {} if client is None else spans(client, self._look())
        return {(name, number): span for name, topic in found.items() for number, span in topic.items()}


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
    said = f"starts over, and reads {count:,} offsets by partition ({', '.join(places[:_NAMED]) or 'none yet'}{more})"
    lost = [f"{topic} {number}" for (topic, number), bounds in sorted(found.items()) if bounds.first > 0]
    if not lost:
        return said
    return (
        f"{said}; the first records of {len(lost)} of {len(found)} partitions are no longer in Kafka, and the new "
        f"output lacks them: {', '.join(lost[:_NAMED])}"
    )


def _ids(found: Mapping[str, Identity]) -> dict[str, str]:
    """By topic, its id; brokers before Kafka 2.8 give none."""
    return {name: each.id for name, each in found.items() if each.id}
