"""Topics as a whole: how the cluster describes them, and their records up to an end that is fixed beforehand.

Spark's Kafka source tells neither the cleanup policy of a topic nor where its partitions began. Kafka's own admin
client, which is in the connector's jars, tells both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from jobs.driver.failures import no_connector
from jobs.driver.jvm import elements, java_packages
from jobs.reading.ranges import Positions, positions_json
from transforms.errors import ConfigurationError
from transforms.retention import FOREVER, Retention

__all__ = [
    "SOURCE_DEFAULTS",
    "Kafka",
    "Listed",
    "Span",
    "Topic",
    "describe",
    "difference",
    "ids",
    "newest_offsets",
    "offsets_since",
    "others",
    "read",
    "read_between",
    "source_format",
    "spans",
    "still_there",
]

SOURCE_DEFAULTS: Mapping[str, str] = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.allow.auto.create.topics": "false",
}
"""Options of Spark's Kafka source that the jobs set.

It asks for offsets behind a fetch that it has sent ahead, and a broker answers the requests of a connection one after
the other. At the end of a partition it keeps the fetch for as long as `fetch.max.wait.ms`, half a second by default; so
a partition with few records would take as long. And a topic that is deleted while it is read shall not come back.
"""

_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Kafka:
    """How to reach the cluster.

    Attributes:
        servers: the bootstrap servers.
        options: more options of Spark's Kafka source; may hold secrets.
        in_python: whether records are read by `jobs.reading.record_source`, which has more of them.
    """

    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    in_python: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets of a partition.

    Attributes:
        start: the offset of the first record.
        stable: the last stable offset: every transaction before it has ended.
        end: the offset of the next record.
    """

    start: int
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it.

    Attributes:
        id: a topic that is deleted and made anew gets another id.
        spans: the offsets, by partition.
        retention: how long its records stay.
    """

    name: str
    id: str
    spans: Mapping[int, Span]
    retention: Retention

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps only the newest record of a key."""
        return "compact" in self.retention.cleanup_policy


@dataclass(frozen=True, slots=True)
class Listed:
    """A topic of the cluster's list.

    Attributes:
        partitions: how many it has.
        readable: whether these credentials may read it, as far as the cluster tells.
    """

    name: str
    partitions: int
    readable: bool


def describe(spark: SparkSession, kafka: Kafka, names: Sequence[str]) -> list[Topic]:
    """The topics as they are now, in the order of `names`.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: a topic does not exist, or may not be described; see `failures.explained`.
    """
    with _admin(spark, kafka) as (jvm, admin):
        found = {
            entry.getKey(): entry.getValue()
            for entry in elements(admin.describeTopics(names).allTopicNames().get().entrySet())
        }
        partitions = {name: [each.partition() for each in elements(found[name].partitions())] for name in names}
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
    """The topics that exist in the cluster.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: the cluster does not answer, or a topic may not be described.
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


def others(spark: SparkSession, kafka: Kafka, known: Iterable[str]) -> list[Listed]:
    """Every topic of the cluster that these credentials may see, but Kafka's own and the known ones, by name.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: the cluster does not answer.
    """
    with _admin(spark, kafka) as (jvm, admin):
        names = sorted({*elements(admin.listTopics().names().get())} - {*known})
        options = jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
        answers = admin.describeTopics(names, options).topicNameValues()
        found = []
        for name in names:
            try:
                topic = answers.get(name).get()
            except Py4JJavaError as error:
                if "UnknownTopicOrPartitionException" not in str(error):  # deleted since
                    raise
                continue
            allowed = topic.authorizedOperations()  # None from brokers that do not tell
            readable = allowed is None or "READ" in allowed.toString()
            found.append(Listed(name, topic.partitions().size(), readable))
        return found


def newest_offsets(
    spark: SparkSession, kafka: Kafka, topics: Sequence[Listed], most: int
) -> tuple[Positions, Positions]:
    """By partition, where the newest `most` offsets begin and end; partitions without records are left out.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: the cluster does not answer, or a topic is gone.
    """
    with _admin(spark, kafka) as (jvm, admin):
        specs, level = (
            jvm.org.apache.kafka.clients.admin.OffsetSpec,
            jvm.org.apache.kafka.common.IsolationLevel.READ_UNCOMMITTED,
        )
        partitions = {topic.name: range(topic.partitions) for topic in topics}
        first = _asked(jvm, admin, partitions, specs.earliest, level)
        end = {
            place: at for place, at in _asked(jvm, admin, partitions, specs.latest, level).items() if first[place] < at
        }
        return {place: max(first[place], at - most) for place, at in end.items()}, end


def offsets_since(
    spark: SparkSession, kafka: Kafka, topics: Sequence[Topic], when: datetime
) -> dict[tuple[str, int], int]:
    """By partition, the first offset whose record has this timestamp or a later one, if there is such a record."""
    since_ms = round(when.timestamp() * 1000)
    with _admin(spark, kafka) as (jvm, admin):
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        partitions = {topic.name: list(topic.spans) for topic in topics}
        level = jvm.org.apache.kafka.common.IsolationLevel.READ_UNCOMMITTED
        found = _asked(jvm, admin, partitions, lambda: spec.forTimestamp(since_ms), level)
    return {place: offset for place, offset in found.items() if offset >= 0}


def spans(spark: SparkSession, kafka: Kafka, names: Sequence[str], pattern: str | None) -> dict[tuple[str, int], Span]:
    """The current offsets of each partition of the topics in `names`, or of the topics that a Java pattern matches.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: a topic does not exist, or may not be described; see `failures.explained`.
    """
    with _admin(spark, kafka) as (jvm, admin):
        found = _described(jvm, admin, names, pattern)
        partitions = {name: [each.partition() for each in elements(found[name].partitions())] for name in found}
        return _offsets(jvm, admin, partitions)


def ids(spark: SparkSession, kafka: Kafka, names: Sequence[str], pattern: str | None) -> dict[str, str]:
    """The ids of the topics in `names`, or of those that a Java pattern matches; see `Topic.id`.

    Topics of brokers before Kafka 2.8 have none: theirs are empty.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: a topic does not exist, or may not be described; see `failures.explained`.
    """
    with _admin(spark, kafka) as (jvm, admin):
        none = jvm.org.apache.kafka.common.Uuid.ZERO_UUID.toString()
        found = {name: each.topicId().toString() for name, each in _described(jvm, admin, names, pattern).items()}
        return {name: "" if each == none else each for name, each in found.items()}


@contextmanager
def _admin(spark: SparkSession, kafka: Kafka) -> Iterator[tuple[Any, Any]]:
    """The root of the Java packages, and Kafka's admin client."""
    jvm = java_packages(spark)
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", kafka.servers)
    for key, value in kafka.options.items():
        if key.startswith(_PREFIX):
            settings.put(key.removeprefix(_PREFIX), value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except TypeError:  # the class does not exist
        raise ConfigurationError("--jars", no_connector()) from None
    try:
        yield jvm, admin
    finally:
        admin.close()


def _described(jvm: Any, admin: Any, names: Sequence[str], pattern: str | None) -> dict[str, Any]:
    if pattern is not None:
        wanted = jvm.java.util.regex.Pattern.compile(pattern)
        names = [name for name in elements(admin.listTopics().names().get()) if wanted.matcher(name).matches()]
    found = admin.describeTopics(list(names)).allTopicNames().get()
    return {name: found.get(name) for name in names}


def _asked(
    jvm: Any, admin: Any, partitions: Mapping[str, Sequence[int]], spec: Callable[[], Any], level: Any
) -> dict[tuple[str, int], int]:
    wanted, partition = jvm.java.util.HashMap(), jvm.org.apache.kafka.common.TopicPartition
    for name, numbers in partitions.items():
        for number in numbers:
            wanted.put(partition(name, number), spec())
    answer = admin.listOffsets(wanted, jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)).all().get()
    return {
        (entry.getKey().topic(), entry.getKey().partition()): entry.getValue().offset()
        for entry in elements(answer.entrySet())
    }


def _offsets(jvm: Any, admin: Any, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], Span]:
    specs, levels = jvm.org.apache.kafka.clients.admin.OffsetSpec, jvm.org.apache.kafka.common.IsolationLevel

    start = _asked(jvm, admin, partitions, specs.earliest, levels.READ_UNCOMMITTED)
    stable = _asked(jvm, admin, partitions, specs.latest, levels.READ_COMMITTED)
    # Asked last, so that it is never before the others.
    end = _asked(jvm, admin, partitions, specs.latest, levels.READ_UNCOMMITTED)
    return {at: Span(start[at], max(stable[at], start[at]), end[at]) for at in end}


def _configs(jvm: Any, admin: Any, names: Sequence[str]) -> dict[str, Retention]:
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    kind = jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
    answer = admin.describeConfigs([resource(kind, name) for name in names]).all().get()
    found = {}
    for entry in elements(answer.entrySet()):
        name, config = entry.getKey().name(), entry.getValue()
        values = {key: config.get(key).value() for key in ("cleanup.policy", "retention.ms", "segment.ms")}
        found[name] = Retention(
            name, int(values["retention.ms"] or FOREVER), values["cleanup.policy"] or "", int(values["segment.ms"] or 0)
        )
    return found


def difference(before: Sequence[Topic], after: Sequence[Topic]) -> str | None:
    """Why the records that were read between two looks may not be all records, in a sentence; None if they are.

    Args:
        before: the topics when the reading began.
        after: the topics when it had ended.
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
    """All records of the topics in a span of offsets; if one of them is gone, reading fails.

    Args:
        spark: the session.
        kafka: the cluster.
        topics: the topics to read.
        first: gives the first offset of a partition.
        end: gives the offset behind the last one.
        committed: whether to leave out records of aborted and open transactions; then records behind `Span.stable`
            cannot be read.

    Returns:
        Rows of Spark's Kafka source with headers; None if there are no offsets to read.
    """
    spans = {(topic.name, number): span for topic in topics for number, span in topic.spans.items()}
    places = [place for place, span in spans.items() if first(span) < end(span)]
    if not places:
        return None
    isolation = {"kafka.isolation.level": "read_committed" if committed else "read_uncommitted"}
    starts, ends = ({place: bound(spans[place]) for place in places} for bound in (first, end))
    return read_between(spark, replace(kafka, options={**kafka.options, **isolation}), starts, ends)


def read_between(
    spark: SparkSession, kafka: Kafka, start: Positions, end: Positions, *, fail_on_loss: bool = True
) -> DataFrame:
    """The records of the partitions in `start` from there up to `end`: rows of Spark's Kafka source, with headers."""
    partitions: dict[str, list[int]] = {}
    for topic, number in sorted(start):
        partitions.setdefault(topic, []).append(number)
    options = {
        **SOURCE_DEFAULTS,
        **kafka.options,
        "kafka.bootstrap.servers": kafka.servers,
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(positions_json(start)),
        "endingOffsets": json.dumps(positions_json(end)),
        "failOnDataLoss": str(fail_on_loss).lower(),
        "includeHeaders": "true",
    }
    return spark.read.format(source_format(spark, in_python=kafka.in_python)).options(**options).load()


def source_format(spark: SparkSession, *, in_python: bool) -> str:
    """The format of a reader of records; see `Kafka.in_python`.

    Raises:
        ConfigurationError: the driver lacks a package for it.
    """
    if not in_python:
        return "kafka"
    try:
        from jobs.reading.record_source import RecordSource  # needs aiokafka and PyArrow
    except ImportError as exc:
        lacks = "PySpark before 4.0" if exc.name == "pyspark.sql.datasource" else f"no {exc.name}"
        raise ConfigurationError(
            "driver",
            f"has {lacks}; records whose timestamps Spark cannot hold are read in Python, with Spark 4.0, aiokafka and "
            "PyArrow",
        ) from exc
    spark.dataSource.register(RecordSource)
    return RecordSource.name()
