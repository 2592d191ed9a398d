"""Topics that nobody has named, and whose records refer to payloads all the same: the carriers that were forgotten.

Only the newest records of each partition are read, and for a limited time. So a topic that is not found here may still
refer to a payload; one that is found does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import reduce
from threading import Timer

from py4j.protocol import Py4JNetworkError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from jobs.driver.failures import SPARK_ERRORS, overflowed
from jobs.driver.progress import Steps
from jobs.payloads.references import BEGINS, references
from jobs.reading.topics import Kafka, Listed, newest_offsets, others, read_between

__all__ = ["DEFAULT_RECORDS", "DEFAULT_TIME", "Found", "Search", "SearchSettings", "search"]

DEFAULT_RECORDS = 1_000
DEFAULT_TIME = timedelta(minutes=10)

STEP = "searching other topics"

_BATCH_PARTITIONS = 500  # of one job of Spark; the clock is looked at between two
_TAG = "wideload-search"
# The topic in a path: the folder of the payload, or the one above bakdata's two. A topic may be named as those are.
_FOLDERS = (r"([^/]+)/[^/]+$", r"([^/]+)/(?:values|keys)/[^/]+$")
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is searched, and for how long.

    Attributes:
        folders: the topics whose payloads are looked for.
        known: the topics that are read anyway.
        ignored: names of topics that are not searched, or patterns of `fnmatch`.
        root: the beginning of all paths in the store; None if a path does not tell its topic.
        other_roots: beginnings of paths to other stores.
        records: how many of the newest offsets of a partition are read; markers of transactions, and records that
            compaction removed, have offsets too.
        limit: how long the search may last.
    """

    folders: Sequence[str]
    known: Sequence[str]
    ignored: Sequence[str] = ()
    root: str | None = None
    other_roots: Sequence[str] = ()
    records: int = DEFAULT_RECORDS
    limit: timedelta = DEFAULT_TIME


@dataclass(frozen=True, slots=True)
class Found:
    """What the newest records of a topic say.

    Attributes:
        references: how many lead to the payloads that are looked for.
        unclear: how many may be references, and do not tell where they lead.
        partition, offset: the first of either.
    """

    references: int
    unclear: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Search:
    """The result.

    Attributes:
        found: the topics with references, by name.
        unread: the topics that were not searched, with the reason.
        searched: how many topics were searched, those with references too.
    """

    found: dict[str, Found] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    searched: int = 0

    @property
    def refusal(self) -> str | None:
        """Why it is not known what is live, in a sentence; None if nothing was found and all was searched."""
        parts = []
        if self.found:
            told = [
                f"{name} ({each.references + each.unclear:,} of its newest, the first in partition {each.partition} "
                f"offset {each.offset}{'' if each.references else ', which does not tell where it leads'})"
                for name, each in self.found.items()
            ]
            parts.append(f"records of topics that are not given refer to these payloads: {_some(told)}")
        if self.unread:
            told = [f"{name} ({reason})" for name, reason in self.unread.items()]
            parts.append(f"it is not known whether records of these topics refer to them: {_some(told)}")
        if not parts:
            return None
        return f"{'; '.join(parts)}; give each with --carrier, or with --ignore-topic if what it refers to may go"


def search(spark: SparkSession, kafka: Kafka, settings: SearchSettings, steps: Steps) -> Search:
    """Looks for references in the newest records of each topic that is neither known nor ignored.

    Raises:
        ConfigurationError: there is no Kafka connector.
        py4j.protocol.Py4JError: the cluster does not answer.
    """
    result = Search()
    deadline = time.monotonic() + settings.limit.total_seconds()
    with steps.step(STEP):
        topics = [
            topic
            for topic in others(spark, kafka, settings.known)
            if not any(fnmatchcase(topic.name, pattern) for pattern in settings.ignored)
        ]
        result.unread.update({topic.name: "may not be read" for topic in topics if not topic.readable})
        topics = [topic for topic in topics if topic.readable]
        total, done = sum(topic.partitions for topic in topics), 0
        for batch in _batches(topics):
            steps.note = f"{done:,} of {total:,} partitions"
            _search(spark, kafka, settings, batch, deadline, result)
            done += sum(topic.partitions for topic in batch)
    return replace(result, searched=sum(topic.name not in result.unread for topic in topics))


def _batches(topics: Sequence[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    size = 0
    for topic in topics:
        if batch and size + topic.partitions > _BATCH_PARTITIONS:
            yield batch
            batch, size = [], 0
        batch.append(topic)
        size += topic.partitions
    if batch:
        yield batch


def _search(
    spark: SparkSession,
    kafka: Kafka,
    settings: SearchSettings,
    batch: Sequence[Listed],
    deadline: float,
    result: Search,
) -> None:
    """Adds to the result what a batch of topics has; after a failure, what each has alone."""
    try:
        left = deadline - time.monotonic()
        if left > 0:
            result.found.update(_found(spark, kafka, settings, batch, left))
            return
    except SPARK_ERRORS as error:
        if isinstance(error, Py4JNetworkError | ConnectionError):
            raise
        if time.monotonic() < deadline:
            if overflowed(error) and not kafka.in_python:
                _search(spark, replace(kafka, in_python=True), settings, batch, deadline, result)
            elif len(batch) > 1:
                for topic in batch:
                    _search(spark, kafka, settings, [topic], deadline, result)
            elif "UnknownTopicOrPartitionException" not in str(error):  # or it was deleted since
                refused = "AuthorizationException" in str(error)
                result.unread[batch[0].name] = "may not be read" if refused else "cannot be read"
            return
    result.unread.update({topic.name: "no time was left; --search-time gives more" for topic in batch})


def _found(
    spark: SparkSession, kafka: Kafka, settings: SearchSettings, topics: Sequence[Listed], left: float
) -> dict[str, Found]:
    start, end = newest_offsets(spark, kafka, topics, settings.records)
    if not start:
        return {}
    isolation = {"kafka.isolation.level": "read_uncommitted"}
    kafka = replace(kafka, options={**kafka.options, **isolation})
    rows = read_between(spark, kafka, start, end, fail_on_loss=False)
    refers, unclear = _conditions(settings)
    found = (
        # Topics of other formats are found by their headers, or by the root before their paths.
        references(rows, "wideload", settings.root)
        .select("topic", "partition", "offset", refers.alias("refers"), unclear.alias("unclear"))
        .where("refers or unclear")
        .groupBy("topic")
        .agg(
            F.count_if("refers").alias("references"),
            F.count_if("unclear").alias("unclear"),
            # One that leads to a payload is shown before one that may.
            F.min(F.struct(~F.col("refers"), "partition", "offset")).alias("first"),
        )
        .orderBy("topic")
    )
    with _limited(spark, left):
        return {
            row["topic"]: Found(row["references"], row["unclear"], row["first"]["partition"], row["first"]["offset"])
            for row in found.collect()
        }


def _conditions(settings: SearchSettings) -> tuple[Column, Column]:
    """Whether a reference leads to one of the payloads; whether it is not known."""
    path, error = F.col("path"), F.col("error")
    refers = path.isNotNull()
    leads = F.lit(False)
    if settings.root is not None:
        # Whatever the root before it: it may be another name of this store.
        one, other = (F.regexp_extract(path, folder, 1).isin(*settings.folders) for folder in _FOLDERS)
        refers &= one | other
        starts = [error.startswith(f"{BEGINS}{settings.root}{folder}/") for folder in settings.folders]
        leads = reduce(lambda one, other: one | other, starts, leads)
    for root in settings.other_roots:
        refers &= ~path.startswith(root)
    nothing = F.lit(False)
    unclear = path.isNull() & error.isNotNull() & ~error.startswith(BEGINS)
    return F.coalesce(refers | leads, nothing), F.coalesce(unclear, nothing)


@contextmanager
def _limited(spark: SparkSession, seconds: float) -> Iterator[None]:
    """Ends Spark's jobs of a `with` block after some seconds; they then fail with an error of Spark."""
    context = spark.sparkContext
    context.addJobTag(_TAG)
    timer = Timer(seconds, context.cancelJobsWithTag, (_TAG,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        context.removeJobTag(_TAG)


def _some(told: Sequence[str]) -> str:
    more = f" and {len(told) - _SHOWN:,} more" if len(told) > _SHOWN else ""
    return f"{', '.join(told[:_SHOWN])}{more}"
