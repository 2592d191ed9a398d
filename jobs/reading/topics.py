"""Topics as a whole: what the cluster says of them, and their records up to an end that is fixed beforehand.

Spark's Kafka source says neither what a topic's cleanup policy is, nor where its partitions began when it looked. Both
come from Kafka's own admin client, which is among the connector's jars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from jobs.driver.jvm import java_packages
from transforms.errors import ConfigurationError
from transforms.retention import FOREVER, Retention

__all__ = ["Kafka", "Span", "Topic", "describe", "difference", "offsets_since", "read", "spans", "still_there"]

_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the cluster is.

    Attributes:
        servers: the bootstrap servers.
        options: further options of Spark's Kafka source, as it takes them; may hold secrets.
    """

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of a partition.

    Attributes:
        start: of the first record that is there.
        stable: up to here, exclusive, every transaction has ended.
        end: of the next record that comes.
    """

    start: int
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """What the cluster says of a topic.

    Attributes:
        id: a topic that is deleted and made anew gets another one.
        spans: by partition.
        retention: how long its records stay.
    """

    name: str
    id: str
    spans: Mapping[int, Span]
    retention: Retention

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps no more than the newest record of a key."""
        return "compact" in self.retention.cleanup_policy


def describe(spark: SparkSession, kafka: Kafka, names: Sequence[str]) -> list[Topic]:
    """The topics as they are now, in the order of `names`.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: a topic does not exist, or may not be described; see `failures.explained`.
    """
    with _admin(spark, kafka) as (jvm, admin):
        found = {
            entry.getKey(): entry.getValue() for entry in admin.describeTopics(names).allTopicNames().get().entrySet()
        }
        partitions = {name: [each.partition() for each in found[name].partitions()] for name in names}
        offsets = _offsets(jvm, admin, partitions)
        configs = _configs(jvm, admin, names)
        return [
            Topic(
                name,
                found[name].topicId().toString(),
                {partition: offsets[name, partition] for partition in partitions[name]},
                configs[name],
            )
            for name in names
        ]


def still_there(spark: SparkSession, kafka: Kafka, names: Sequence[str]) -> list[str]:
    """Those of the topics that the cluster has.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: the cluster does not say, for instance as one may not be looked at.
    """
    there = []
    with _admin(spark, kafka) as (_, admin):
        for name in names:
            try:
                admin.describeTopics([name]).allTopicNames().get()
            except Py4JJavaError as error:
                if "UnknownTopicOrPartitionException" not in str(error):
                    raise
            else:
                there.append(name)
    return there


def offsets_since(
    spark: SparkSession, kafka: Kafka, topics: Sequence[Topic], when: datetime
) -> dict[tuple[str, int], int]:
    """Of each partition, the first offset whose record has this timestamp or a later one; none where none has."""
    since_ms = round(when.timestamp() * 1000)
    with _admin(spark, kafka) as (jvm, admin):
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        partitions = {topic.name: list(topic.spans) for topic in topics}
        level = jvm.org.apache.kafka.common.IsolationLevel.READ_UNCOMMITTED
        found = _asked(jvm, admin, partitions, lambda: spec.forTimestamp(since_ms), level)
    return {place: offset for place, offset in found.items() if offset >= 0}


def spans(spark: SparkSession, kafka: Kafka, names: Sequence[str], pattern: str | None) -> dict[tuple[str, int], Span]:
    """The offsets, as they are now, of each partition of the topics `names`, or of those that a Java pattern matches.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: a topic does not exist, or may not be described; see `failures.explained`.
    """
    with _admin(spark, kafka) as (jvm, admin):
        if pattern is not None:
            wanted = jvm.java.util.regex.Pattern.compile(pattern)
            names = [name for name in admin.listTopics().names().get() if wanted.matcher(name).matches()]
        found = admin.describeTopics(list(names)).allTopicNames().get()
        partitions = {name: [each.partition() for each in found.get(name).partitions()] for name in names}
        return _offsets(jvm, admin, partitions)


@contextmanager
def _admin(spark: SparkSession, kafka: Kafka) -> Iterator[tuple[Any, Any]]:
    """The JVM, and Kafka's admin client in it."""
    jvm = java_packages(spark)
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", kafka.servers)
    for key, value in kafka.options.items():
        if key.startswith(_PREFIX):
            settings.put(key.removeprefix(_PREFIX), value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except TypeError:  # what a class that is not there comes to
        raise ConfigurationError(
            "--jars",
            "Spark has no Kafka connector; give its jars, or to spark-submit: "
            "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        ) from None
    try:
        yield jvm, admin
    finally:
        admin.close()


def _asked(
    jvm: Any, admin: Any, partitions: Mapping[str, Sequence[int]], spec: Callable[[], Any], level: Any
) -> dict[tuple[str, int], int]:
    wanted = jvm.java.util.HashMap()
    for name, numbers in partitions.items():
        for number in numbers:
            wanted.put(jvm.org.apache.kafka.common.TopicPartition(name, number), spec())
    answer = admin.listOffsets(wanted, jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)).all().get()
    return {
        (entry.getKey().topic(), entry.getKey().partition()): entry.getValue().offset() for entry in answer.entrySet()
    }


def _offsets(jvm: Any, admin: Any, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], Span]:
    specs, levels = jvm.org.apache.kafka.clients.admin.OffsetSpec, jvm.org.apache.kafka.common.IsolationLevel

    start = _asked(jvm, admin, partitions, specs.earliest, levels.READ_UNCOMMITTED)
    stable = _asked(jvm, admin, partitions, specs.latest, levels.READ_COMMITTED)
    # Last, so that it is never before the others.
    end = _asked(jvm, admin, partitions, specs.latest, levels.READ_UNCOMMITTED)
    return {at: Span(start[at], max(stable[at], start[at]), end[at]) for at in end}


def _configs(jvm: Any, admin: Any, names: Sequence[str]) -> dict[str, Retention]:
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    kind = jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
    answer = admin.describeConfigs([resource(kind, name) for name in names]).all().get()
    found = {}
    for entry in answer.entrySet():
        name, config = entry.getKey().name(), entry.getValue()
        values = {key: config.get(key).value() for key in ("cleanup.policy", "retention.ms", "segment.ms")}
        found[name] = Retention(
            name, int(values["retention.ms"] or FOREVER), values["cleanup.policy"] or "", int(values["segment.ms"] or 0)
        )
    return found


def difference(before: Sequence[Topic], after: Sequence[Topic]) -> str | None:
    """Why what was read between two looks may not be all that there was, in a sentence; None where it is.

    Args:
        before: when the reading began.
        after: once it was done.
    """
    for first, then in zip(before, after, strict=True):
        if first.id != then.id:
            return f"topic {first.name} was deleted and made anew while it was read"
        if set(first.spans) != set(then.spans):
            return f"topic {first.name} had {len(first.spans)} partitions and has {len(then.spans)} now"
        if first.compacted != then.compacted:
            return f"cleanup.policy of topic {first.name} was changed while it was read"
        for number, span in first.spans.items():
            now = then.spans[number]
            if now.start > span.start:
                return (
                    f"topic {first.name} partition {number} began at offset {span.start:,} and begins at {now.start:,} "
                    "now: records were deleted while they were read"
                )
            if now.end < span.end:
                return (
                    f"topic {first.name} partition {number} ended at offset {span.end:,} and ends at {now.end:,} now: "
                    "its log was cut, as by a leader that lacked records"
                )
    return None


def read(
    spark: SparkSession,
    kafka: Kafka,
    topics: Iterable[Topic],
    *,
    first: Callable[[Span], int] = lambda span: span.start,
    end: Callable[[Span], int] = lambda span: span.end,
    committed: bool = False,
) -> DataFrame | None:
    """The records of the topics in a span of offsets, all of them: one that is gone by then is a failure.

    Args:
        spark: the session.
        kafka: the cluster.
        topics: what to read.
        first: of a partition, the first offset.
        end: the offset behind the last one.
        committed: whether to leave out what was, or may yet be, aborted; what is behind `Span.stable` then cannot be
            read.

    Returns:
        Rows of Spark's Kafka source with headers; None where there are no offsets to read.
    """
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for topic in topics:
        for number, span in topic.spans.items():
            if first(span) < end(span):
                starts.setdefault(topic.name, {})[str(number)] = first(span)
                ends.setdefault(topic.name, {})[str(number)] = end(span)
    if not starts:
        return None
    partitions = {name: sorted(map(int, numbers)) for name, numbers in starts.items()}
    options = dict(kafka.options) | {
        "kafka.bootstrap.servers": kafka.servers,
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    return spark.read.format("kafka").options(**options).load()
