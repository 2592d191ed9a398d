"""Payloads that no record refers to any more, and their removal. The command is `jobs.sweep`.

A payload is removed if it was published before the grace began, and no record in the topics refers to it after the
store was listed. A record that refers to it now must have published it anew (see `PayloadStore.publish`). Then it has
another age than in the listing, and the store compares the age right before it removes the payload. Each step may be
broken off: the next run removes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TextIO

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from jobs.driver.failures import SPARK_ERRORS, JobFailedError, explained, records_lost
from jobs.driver.progress import Steps
from jobs.driver.session import fit_shuffles
from jobs.payloads.inventory import listed, removed, require
from jobs.payloads.other_topics import DEFAULT_RECORDS, DEFAULT_TIME, Search, SearchSettings, search
from jobs.payloads.references import HIDDEN, newest, references
from jobs.reading.odd_timestamps import despite_odd_timestamps
from jobs.reading.topics import Kafka, Topic, describe, difference, offsets_since, read, still_there
from stores.registry import open_store
from stores.store import Check, Delete, DeleteUnchanged, List, ListTopics, PayloadStore, Stat, Store
from transforms.errors import ConfigurationError, PayloadStoreError, shown
from transforms.formats import FormatName
from transforms.retention import duration_text
from transforms.text import printable

__all__ = ["DEFAULT_GRACE", "DEFAULT_MAX_DELETE_FRACTION", "Folder", "Sweep", "SweepSettings", "marked", "run"]

DEFAULT_GRACE = timedelta(hours=24)
"""The age that a payload must have: longer than any outage of the brokers that a worker may wait for."""

LEAST_GRACE = timedelta(hours=1)
"""A payload is older than its record: by a send and its retries, or by a worker's wait for a broker. A store call may
take a minute and a delivery two, so an hour covers the restart of a broker."""
_DELIVERY = timedelta(minutes=2)  # Kafka's `delivery.timeout.ms`

DEFAULT_MAX_DELETE_FRACTION = 0.5

_PAYLOADS_A_TASK = 5_000
_DELETING = "deleting"
_TOLD = 1_000  # characters of an error, which may have text of a record
# The names that the stores of this project give to payloads: a SHA-256, or a UUID.
_OWN_NAME = r"/(?:[0-9a-f]{64}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The settings of the job.

    Attributes:
        kafka: the cluster.
        store: the configuration of the store; may hold secrets.
        topics: the topics whose payloads are swept, and whose records are read.
        deleted_topics: topics whose payloads are swept, and which must not exist in the cluster.
        carriers: more topics to read, as they may refer to those payloads: dead letters, copies.
        reference_format: how these topics refer to payloads, if `formats` does not name them.
        formats: the formats of single topics, by name.
        any_name: whether an object is swept even if its name is not one that this project's stores give to payloads.
        grace: how old a payload must be; with `newest_only` an overwritten record counts for as long.
        in_flight: the longest time from a payload to its record, as far as it is known.
        short_grace: whether the grace may be shorter than the time in flight.
        newest_only: whether overwritten records of compacted topics, which are still in the log, count only during the
            grace.
        max_delete_fraction: the largest part of a topic's payloads that may be removed, from 0 to 1.
        other_roots: beginnings of paths to other stores; any other path outside the root is refused.
        delete: whether to delete; else the job only tells what it would delete.
        quarantined: some of the topics that are read. Their payloads are left alone, and those of their records that
            say that they are references, and cannot be read, are no reason to refuse.
        ignored: names of topics, or patterns of them (`team-b-*`), whose references do not count.
        search_records: how many of the newest records of each partition of all other topics are searched for
            references.
        search_time: how long that may last.
    """

    kafka: Kafka
    store: Mapping[str, object] = field(repr=False)
    topics: tuple[str, ...]
    deleted_topics: tuple[str, ...] = ()
    carriers: tuple[str, ...] = ()
    reference_format: FormatName = "wideload"
    formats: Mapping[str, FormatName] = field(default_factory=dict)
    any_name: bool = False
    grace: timedelta = DEFAULT_GRACE
    in_flight: timedelta = timedelta(0)
    short_grace: bool = False
    newest_only: bool = False
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION
    other_roots: tuple[str, ...] = ()
    delete: bool = False
    quarantined: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    search_records: int = DEFAULT_RECORDS
    search_time: timedelta = DEFAULT_TIME

    @property
    def read_topics(self) -> list[str]:
        """Every topic whose records are read, once."""
        return list(dict.fromkeys((*self.topics, *self.carriers)))

    @property
    def swept_topics(self) -> list[str]:
        """Every topic whose payloads are swept."""
        return [name for name in (*self.topics, *self.deleted_topics) if name not in self.quarantined]


@dataclass(frozen=True, slots=True)
class Folder:
    """The payloads of one topic.

    Attributes:
        topic: its name.
        payloads, bytes: all payloads that the store lists.
        live: how many a record refers to.
        young: how many others are not older than the grace.
        foreign: how many more have no name of a payload; they stay.
        orphans, orphan_bytes: the rest: older, and no record refers to them.
        oldest: when the oldest orphan was published; None if there is none.
    """

    topic: str
    payloads: int
    bytes: int
    live: int
    young: int
    foreign: int
    orphans: int
    orphan_bytes: int
    oldest: datetime | None


@dataclass(slots=True)
class Sweep:
    """The result of a run.

    Attributes:
        cutoff: when the grace began.
        references: the references of records that count.
        folders: the payloads, by topic.
        left_alone: topics that have payloads in the store, and were not swept.
        outcomes: number and bytes of payloads by the outcome of their removal; see `stores.store.RemovalOutcome`.
        error: the store's error for a payload that it did not remove.
        refusal: why nothing was deleted, or would be; None if there is no reason.
        quarantined: how many records of each quarantined topic cannot be read.
        search: the other topics whose records refer to the payloads.
        notes: sentences on records that are not as they should be, and do not change the result.
        seconds: how long each step took.
    """

    cutoff: datetime
    references: int = 0
    folders: list[Folder] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    outcomes: dict[str, tuple[int, int]] = field(default_factory=dict)
    error: str | None = None
    refusal: str | None = None
    quarantined: Mapping[str, int] = field(default_factory=dict)
    search: Search = field(default_factory=Search)
    notes: list[str] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def orphans(self) -> int:
        """How many payloads are orphans."""
        return sum(folder.orphans for folder in self.folders)

    @property
    def failed(self) -> int:
        """How many payloads the store did not remove."""
        return self.outcomes.get("failed", (0, 0))[0]


def marked(listing: DataFrame, found: DataFrame, cutoff: datetime, *, any_name: bool = False) -> DataFrame:
    """Payloads with a column `state`: `live`, `young`, `foreign` or `orphan`.

    Args:
        listing: payloads as `jobs.payloads.inventory.LISTED`.
        found: the references that count, as `jobs.payloads.references.REFERENCE`.
        cutoff: a payload of this time or later is not an orphan.
        any_name: whether a payload of any name may be an orphan; else an unusual name makes it `foreign`.
    """
    live = found.where(F.col("path").isNotNull()).select("path").distinct().withColumn("_live", F.lit(True))
    cutoff_us = round(cutoff.timestamp() * 1_000_000)
    state = F.when(F.col("_live").isNotNull(), "live").when(F.col("modified_us") >= cutoff_us, "young")
    if not any_name:
        state = state.when(~F.col("path").rlike(_OWN_NAME), "foreign")
    state = state.otherwise("orphan")
    return listing.join(live, "path", "left").withColumn("state", state).drop("_live")


def run(spark: SparkSession, settings: SweepSettings, *, screen: TextIO | None = None) -> Sweep:
    """Runs the job on a session.

    Raises:
        ConfigurationError: the user can set it right; nothing was deleted.
        JobFailedError: any other failure. If it came during the deletion, the next run goes on.
    """
    steps = Steps(spark, screen)
    try:
        with closing(open_store(settings.store)) as store:
            _check(settings, store)
            describe(spark, settings.kafka, settings.read_topics)  # first of all, to report a wrong name
            there = still_there(spark, settings.kafka, settings.deleted_topics)
            if there:
                raise ConfigurationError(
                    "--deleted-topic", f"topic {there[0]} is on the brokers at {settings.kafka.servers}; give --topic"
                )
            return _sweep(spark, settings, store, steps)
    except SPARK_ERRORS as error:
        if records_lost(error):
            if _DELETING in steps.seconds:
                raise JobFailedError(
                    "records were deleted while payloads were being removed; only orphans were removed, and the next "
                    "run goes on"
                ) from error
            reason = "records were deleted while they were read, so it is not known what is live; run it again"
            return Sweep(datetime.now(UTC) - settings.grace, refusal=reason, seconds=steps.seconds)
        raise explained(
            error,
            servers=settings.kafka.servers,
            source=", ".join([*settings.read_topics, *settings.deleted_topics]),
            options=settings.kafka.options,
        ) from error
    except PayloadStoreError as error:
        raise JobFailedError(str(error)) from error


def _check(settings: SweepSettings, store: PayloadStore) -> None:
    require(store, List)
    if not isinstance(store, DeleteUnchanged):
        require(store, Stat, Delete)
    timeout_ms = settings.store.get("large.message.store.timeout.ms")
    in_flight = _DELIVERY + timedelta(
        milliseconds=store.timeout_ms if isinstance(store, Store) else timeout_ms if isinstance(timeout_ms, int) else 0
    )
    least = max(LEAST_GRACE, in_flight, settings.in_flight)
    if settings.grace < least and not settings.short_grace:
        found, allowed = (duration_text(round(each.total_seconds() * 1000)) for each in (settings.grace, least))
        raise ConfigurationError(
            "--grace",
            f"found {found}, allowed is {allowed} or more: payloads are published before their "
            "records; if nothing is being published, --allow-short-grace takes less",
        )
    if isinstance(store, Check):
        store.check(writing=False)


def _sweep(spark: SparkSession, settings: SweepSettings, store: PayloadStore, steps: Steps) -> Sweep:
    cutoff = datetime.now(UTC) - settings.grace
    sweep = Sweep(cutoff, seconds=steps.seconds)
    sweep.search = search(spark, settings.kafka, _search_settings(settings, store), steps)
    sweep.refusal = sweep.search.refusal
    if sweep.refusal:
        return sweep
    if isinstance(store, ListTopics):
        sweep.left_alone = sorted(set(store.topics()) - set(settings.swept_topics))
    listing = listed(spark, settings.store, settings.swept_topics).persist(StorageLevel.DISK_ONLY)
    kept = [listing]

    def surveyed(kafka: Kafka) -> tuple[DataFrame, Row]:
        found = _references(spark, replace(settings, kafka=kafka), topics, store, cutoff)
        kept.append(found.persist(StorageLevel.DISK_ONLY))
        return found, _survey(found, settings, store)

    try:
        with steps.step("listing the store"):
            payloads_listed = listing.count()
        # After the listing: if a record has begun to refer to a listed payload, it is before these ends.
        topics = describe(spark, settings.kafka, settings.read_topics)
        with steps.step("reading the topics"):
            found, survey = despite_odd_timestamps(spark, settings.kafka, topics, surveyed, sweep.notes)
            sweep.references = survey.references
            fit_shuffles(spark, payloads_listed + sweep.references)
        sweep.refusal = difference(topics, describe(spark, settings.kafka, settings.read_topics))
        for name in still_there(spark, settings.kafka, settings.deleted_topics):
            sweep.refusal = f"topic {name} was created while the others were read, and was given as --deleted-topic"
        sweep.refusal = sweep.refusal or _unreadable(survey, settings, store) or _hidden(survey)
        sweep.quarantined = _quarantined(found, settings, store)
        if sweep.refusal:
            return sweep
        own_names = isinstance(store, Store) and not settings.any_name
        payloads = marked(listing, found, cutoff, any_name=not own_names)
        with steps.step("comparing"):
            sweep.folders = _folders(payloads, settings.swept_topics)
        sweep.refusal = _too_many(sweep.folders, settings.max_delete_fraction)
        if settings.delete and not sweep.refusal and sweep.orphans:
            with steps.step(_DELETING):
                _delete(payloads, settings, sweep)
        return sweep
    finally:
        for frame in kept:
            frame.unpersist()


def _search_settings(settings: SweepSettings, store: PayloadStore) -> SearchSettings:
    return SearchSettings(
        folders=settings.swept_topics,
        known=settings.read_topics,
        ignored=settings.ignored,
        root=store.root.uri if isinstance(store, Store) else None,
        other_roots=settings.other_roots,
        records=settings.search_records,
        limit=settings.search_time,
    )


def _references(
    spark: SparkSession, settings: SweepSettings, topics: Sequence[Topic], store: PayloadStore, since: datetime
) -> DataFrame:
    """The references of the records that count."""
    root = store.root.uri if isinstance(store, Store) else None
    by_format: dict[FormatName, list[Topic]] = {}
    for topic in topics:
        by_format.setdefault(settings.formats.get(topic.name, settings.reference_format), []).append(topic)
    found = [
        references(rows, name, root)
        for name, some in by_format.items()
        for rows in _counting(spark, settings, some, root, since)
    ]
    if not found:
        nothing = spark.createDataFrame(
            [],
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, headers array<struct<key: string, value: binary>>",
        )
        return references(nothing, settings.reference_format)
    return reduce(DataFrame.unionByName, found)


def _counting(
    spark: SparkSession, settings: SweepSettings, topics: Sequence[Topic], root: str | None, since: datetime
) -> list[DataFrame]:
    """The records that count."""
    kafka = settings.kafka
    compacted = [topic for topic in topics if topic.compacted and settings.newest_only]
    whole = read(spark, kafka, [topic for topic in topics if topic not in compacted])
    # A record of an aborted transaction overwrites others for readers with `read_uncommitted` only, so both are read.
    # Records behind the stable offset may turn out to be either.
    stable = [
        read(spark, kafka, compacted, end=lambda span: span.stable, committed=committed) for committed in (True, False)
    ]
    open_ended = read(spark, kafka, compacted, first=lambda span: span.stable)
    late = offsets_since(spark, kafka, compacted, since) if compacted else {}
    last = [newest(each, since, root, late) for each in stable if each is not None]
    rows = [each for each in (whole, open_ended) if each is not None]
    if last:
        rows.append(reduce(DataFrame.unionByName, last).dropDuplicates(["topic", "partition", "offset"]))
    return rows


def _survey(found: DataFrame, settings: SweepSettings, store: PayloadStore) -> Row:
    """What the references come to, in one action: each question of its own would take Spark a second.

    Returns:
        `references`; and of those that are `wrong`, lead `elsewhere`, or are `hidden` in a quarantine, the number and
        the first one of the log.
    """
    apart = F.col("topic").isin(*settings.quarantined)
    elsewhere = _elsewhere(settings, store)
    kinds = {
        "wrong": ~apart & F.col("error").isNotNull(),
        "elsewhere": F.lit(False) if elsewhere is None else ~apart & elsewhere,
        "hidden": apart & reduce(lambda one, other: one | other, [F.col("error").startswith(each) for each in HIDDEN]),
    }
    place = F.struct("topic", "partition", "offset", "error", "path")
    return found.agg(
        F.count(F.lit(1)).alias("references"),
        *(F.count_if(kind).alias(name) for name, kind in kinds.items()),
        *(F.min(F.when(kind, place)).alias(f"first_{name}") for name, kind in kinds.items()),
    ).collect()[0]


def _unreadable(survey: Row, settings: SweepSettings, store: PayloadStore) -> str | None:
    """Why the references do not tell which payloads are live, in a sentence; None if they do."""
    first = survey.first_wrong
    if first is not None:
        name = settings.formats.get(first.topic, settings.reference_format)
        return (
            f"{survey.wrong:,} records say that they are references and cannot be read as {name}, the first in topic "
            f"{first.topic} partition {first.partition} offset {first.offset}: {printable(first.error, _TOLD)}"
            f"{_advice(first.topic, first.error, settings)}"
        )
    first = survey.first_elsewhere
    if first is None or not isinstance(store, Store):
        return None
    return (
        f"{survey.elsewhere:,} references lead elsewhere than to {store.root.uri}, the first in topic {first.topic} "
        f"partition {first.partition} offset {first.offset}: {shown(first.path)}; is it another name of this store? "
        "If it is another store, give --other-root"
    )


def _advice(topic: str, error: str, settings: SweepSettings) -> str:
    if topic not in settings.topics or len(settings.swept_topics) == 1 or error.startswith(HIDDEN):
        return ""
    return (
        f"; if nobody reads such records, --quarantine {topic} leaves the payloads of this topic alone and sweeps the "
        "others"
    )


def _hidden(survey: Row) -> str | None:
    """Why a quarantine cannot be kept, in a sentence; None if it can."""
    first = survey.first_hidden
    if first is None:
        return None
    return (
        f"topic {first.topic} is in quarantine, and its record in partition {first.partition} at offset {first.offset} "
        f"may hold a sound reference: it {printable(first.error, _TOLD)}"
    )


def _elsewhere(settings: SweepSettings, store: PayloadStore) -> Column | None:
    """Whether a reference leads to no known store; None if the root of the store is not known."""
    if not isinstance(store, Store):
        return None
    known = [F.col("path").startswith(root) for root in (store.root.uri, *settings.other_roots)]
    return ~reduce(lambda one, other: one | other, known)


def _quarantined(found: DataFrame, settings: SweepSettings, store: PayloadStore) -> dict[str, int]:
    """How many records of each quarantined topic cannot be read, or lead elsewhere."""
    if not settings.quarantined:
        return {}
    there = found.where(F.col("topic").isin(*settings.quarantined))
    odd = there.where(F.col("error").isNotNull())
    elsewhere = _elsewhere(settings, store)
    rows = (
        (odd if elsewhere is None else odd.unionByName(there.where(F.col("error").isNull()).where(elsewhere)))
        .groupBy("topic")
        .count()
        .collect()
    )
    return dict.fromkeys(settings.quarantined, 0) | {row["topic"]: row["count"] for row in rows}


def _folders(payloads: DataFrame, topics: Sequence[str]) -> list[Folder]:
    orphan = F.col("state") == "orphan"
    rows = (
        payloads.groupBy("topic")
        .agg(
            F.count(F.lit(1)).alias("payloads"),
            F.sum("stored").alias("bytes"),
            F.count_if(F.col("state") == "live").alias("live"),
            F.count_if(F.col("state") == "young").alias("young"),
            F.count_if(F.col("state") == "foreign").alias("foreign"),
            F.count_if(orphan).alias("orphans"),
            F.coalesce(F.sum(F.when(orphan, F.col("stored"))), F.lit(0)).alias("orphan_bytes"),
            F.min(F.when(orphan, F.col("modified_us"))).alias("oldest"),
        )
        .collect()
    )
    by_topic = {row["topic"]: row.asDict() for row in rows}
    nothing = dict.fromkeys(("payloads", "bytes", "live", "young", "foreign", "orphans", "orphan_bytes"), 0)
    folders = []
    for topic in topics:
        values = {"topic": topic, "oldest": None, **nothing} | by_topic.get(topic, {})
        oldest = None if values["oldest"] is None else datetime.fromtimestamp(values["oldest"] / 1_000_000, UTC)
        folders.append(Folder(**values | {"oldest": oldest}))
    return folders


def _too_many(folders: Sequence[Folder], most: float) -> str | None:
    for folder in folders:
        payloads = folder.payloads - folder.foreign
        if folder.orphans > most * payloads:
            return (
                f"{folder.orphans:,} of the {payloads:,} payloads of topic {folder.topic} would go, which is "
                f"more than --max-delete-fraction {most:g}; make sure that every topic that refers to them is given, "
                "then raise it"
            )
    return None


def _delete(payloads: DataFrame, settings: SweepSettings, sweep: Sweep) -> None:
    orphans = payloads.where(F.col("state") == "orphan")
    tasks = max(payloads.sparkSession.sparkContext.defaultParallelism, -(-sweep.orphans // _PAYLOADS_A_TASK))
    rows = (
        # By path: where an executor is lost, its part is listed and divided anew, and by turns an orphan would be of
        # another task than before, which may be done already.
        removed(orphans.repartition(tasks, "path"), settings.store)
        .groupBy("outcome")
        .agg(F.count(F.lit(1)).alias("payloads"), F.sum("stored").alias("bytes"), F.min("error").alias("error"))
        .collect()
    )
    sweep.outcomes = {row["outcome"]: (row["payloads"], row["bytes"]) for row in rows}
    sweep.error = next((row["error"] for row in rows if row["error"] is not None), None)
