"""The state of every reference of topics. The command is `jobs.audit`.

The ends of the topics are fixed before the store is listed. A payload is published before its record, so if a payload
is not in the listing, the store is asked for its path; only if that fails too, the payload is missing. Payloads in
folders of other topics are asked for one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TextIO

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.driver.failures import SPARK_ERRORS, JobFailedError, explained, records_lost
from jobs.driver.jvm import Files
from jobs.driver.progress import Steps
from jobs.driver.session import fit_shuffles
from jobs.payloads.inventory import STATED, listed, on_executors, stated
from jobs.payloads.references import REFERENCE, newest, references
from jobs.reading.odd_timestamps import despite_odd_timestamps
from jobs.reading.topics import Kafka, Topic, describe, read
from jobs.records.schemas import columns, conform, few
from jobs.records.timestamps import LAST_MS
from stores.payload import verify
from stores.registry import open_store
from stores.store import Check, Lifecycle, List, PayloadStore, Store
from transforms.errors import (
    ConfigurationError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    TransformError,
)
from transforms.formats import FORMATS, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate
from transforms.keyring import TAG_BYTES
from transforms.reference import Encryption, Reference
from transforms.signing import Signing

__all__ = ["EXAMPLE", "FINDING", "STATES", "Audit", "AuditSettings", "findings", "run"]

STATES = ("ok", "malformed", "refused", "missing", "size", "checksum", "compression", "expiring", "unknown")
"""The states of a reference.

`ok`: its payload is there. `malformed`: it cannot be read. `refused`: its path is not below the store's root, or its
signature is missing or wrong. `missing`: there is no payload. `size`, `checksum`, `compression`: the payload differs
from the reference; the last two show only if payloads are read. `expiring`: a rule of the store deletes the payload
before Kafka deletes the record. `unknown`: the store failed.
"""

FINDING = StructType(
    [
        *REFERENCE,
        *columns(
            "state string, detail string, stored long, published timestamp, expires timestamp, record_until timestamp"
        ),
    ]
)
"""A reference with its state.

`stored` are the bytes in the store and `published` is when they were stored; null if not known. `expires` is when a
rule of the store deletes the payload, null for never. `record_until` is when Kafka may delete the record, null for
never.
"""

EXAMPLE = ("topic", "partition", "offset", "which", "state", "path", "size", "stored", "detail")
"""The columns of an example of `FINDING`."""

EXPIRY = columns("folder string, days long, date string, rule string")
"""The first rule to delete a folder's payloads: at an age in days, or on a date."""

RETAINED = columns("topic string, retention_ms long")
"""How long a topic keeps its records; null for ever."""

_VERIFIED = StructType([*REFERENCE.fields[6:12], *columns("wrong string, why string")])
_VERIFIED_BY = [field.name for field in _VERIFIED.fields[:6]]
_MAX_BYTES = "large.message.max.bytes"
_EXAMPLES = 10
_LONGEST_DAYS = 1_000_000  # Spark's timestamps do not go much further than 290,000 years
_LONGEST_MS = _LONGEST_DAYS * 86_400_000


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of the job.

    Attributes:
        kafka: the cluster.
        store: the configuration of the store; may hold secrets.
        topics: the topics whose references are checked.
        reference_format: how these topics refer to payloads, if `formats` does not name them.
        formats: the formats of single topics, by name.
        signing: verifies the references of single topics, by name; None for no verification. Other topics have the keys
            of `store`.
        newest_only: whether to leave out the records of compacted topics that a later one has overwritten; a new
            group reads those that are still in the log.
        verify: whether to read every payload.
        report: a folder for the result, as Parquet; None for none.
    """

    kafka: Kafka
    store: Mapping[str, object] = field(repr=False)
    topics: tuple[str, ...]
    reference_format: FormatName = "wideload"
    formats: Mapping[str, FormatName] = field(default_factory=dict)
    signing: Mapping[str, Signing | None] = field(default_factory=dict, repr=False)
    newest_only: bool = False
    verify: bool = False
    report: str | None = None


@dataclass(slots=True)
class Audit:
    """The result of a run.

    Attributes:
        states: by topic, how many references have which state; see `STATES`.
        stored: the bytes of all payloads that were found, each counted once.
        examples: some references with a state other than `ok`, in the order of the log.
        notes: sentences on what could not be checked.
        seconds: how long each step took.
    """

    states: dict[str, dict[str, int]] = field(default_factory=dict)
    stored: int = 0
    examples: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """How many references have a state other than `ok`."""
        return sum(count for states in self.states.values() for state, count in states.items() if state != "ok")


def findings(
    found: DataFrame,
    payloads: DataFrame,
    expiry: DataFrame,
    retained: DataFrame,
    verified: DataFrame | None = None,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> DataFrame:
    """Each reference with its state, as `FINDING`.

    Args:
        found: references as `REFERENCE`.
        payloads: the store's answer for each of their paths, as `jobs.payloads.inventory.STATED`.
        expiry: the rules of the store, as `EXPIRY`; at most one for a folder.
        retained: how long the topics keep records, as `RETAINED`.
        verified: the faults of payloads that were read, by `_VERIFIED_BY`; None if none were read.
        max_bytes: `large.message.max.bytes` of the readers, which take no larger payload.
    """
    rows = (
        found.withColumn("folder", F.regexp_extract("path", r"([^/]+)/(?:(?:values|keys)/)?[^/]+$", 1))
        .join(payloads.withColumnsRenamed({"state": "_state", "detail": "_detail"}), "path", "left")
        .join(F.broadcast(expiry), "folder", "left")
        .join(F.broadcast(retained), "topic", "left")
    )
    if verified is None:
        rows = rows.withColumn("wrong", F.lit(None).cast("string")).withColumn("why", F.lit(None).cast("string"))
    else:
        alike = [rows[name].eqNullSafe(verified[name]) for name in _VERIFIED_BY]
        rows = rows.join(verified, alike, "left").drop(*(verified[name] for name in _VERIFIED_BY))
    published = F.timestamp_micros("modified_us")
    until = F.unix_millis("timestamp") + F.col("retention_ms")
    by_age = published + F.make_dt_interval(days=F.col("days").cast("int"))
    rows = (
        rows.withColumn("published", published)
        .withColumn("expires", F.when(F.col("rule").isNotNull(), F.coalesce(by_age, F.to_timestamp("date"))))
        .withColumn("record_until", F.when(until <= LAST_MS, F.timestamp_millis(until)))
    )
    compressed = F.col("compression").isNotNull()
    tag = F.when(F.col("encryption").isNotNull(), TAG_BYTES).otherwise(0)
    said = F.col("size") + tag
    wrong_size = F.when(compressed, F.col("stored") > said).otherwise(F.col("stored") != said)
    early = F.col("expires").isNotNull() & (F.col("record_until").isNull() | (F.col("expires") < F.col("record_until")))
    size_detail = F.format_string("the store has %d bytes, the reference says %d", F.col("stored"), said)
    largest = F.greatest(F.col("stored") - tag, F.col("size"))  # ignores null
    limit_detail = F.concat(
        F.format_string("%d bytes are more", largest), F.lit(f" than {_MAX_BYTES} allows readers, which is {max_bytes}")
    )
    verdicts = [
        (F.col("error").isNotNull() & F.col("path").isNotNull(), F.lit("refused"), F.col("error")),
        (F.col("error").isNotNull(), F.lit("malformed"), F.col("error")),
        (
            F.coalesce(F.col("_state"), F.lit("unknown")) != "there",
            F.coalesce("_state", F.lit("unknown")),
            F.col("_detail"),
        ),
        (F.col("wrong").isNotNull(), F.col("wrong"), F.col("why")),
        (F.coalesce(wrong_size, F.lit(False)), F.lit("size"), size_detail),
        (F.coalesce(largest > max_bytes, F.lit(False)), F.lit("size"), limit_detail),
        (early, F.lit("expiring"), F.col("rule")),
    ]
    state, detail = F.lit("ok"), F.lit(None).cast("string")
    for condition, then, why in reversed(verdicts):
        state, detail = F.when(condition, then).otherwise(state), F.when(condition, why).otherwise(detail)
    return conform(rows.withColumn("state", state).withColumn("detail", detail), FINDING)


def run(spark: SparkSession, settings: AuditSettings, *, screen: TextIO | None = None) -> Audit:
    """Runs the job on a session.

    Raises:
        ConfigurationError: the user can set it right.
        JobFailedError: any other failure.
    """
    steps = Steps(spark, screen)
    try:
        with closing(open_store(settings.store)) as store:
            if isinstance(store, Check):
                store.check(writing=False)
            if settings.report is not None and Files(spark).exists(settings.report):
                raise ConfigurationError("--report", f"{settings.report} is there already; give a new folder")
            return _audit(spark, settings, store, steps)
    except SPARK_ERRORS as error:
        if records_lost(error):
            raise JobFailedError("records were deleted while they were read; run it again") from error
        raise explained(
            error, servers=settings.kafka.servers, source=", ".join(settings.topics), options=settings.kafka.options
        ) from error
    except PayloadStoreError as error:
        raise JobFailedError(str(error)) from error


def _audit(spark: SparkSession, settings: AuditSettings, store: PayloadStore, steps: Steps) -> Audit:
    audit = Audit(seconds=steps.seconds)
    topics = describe(spark, settings.kafka, settings.topics)
    kept: list[DataFrame] = []

    def counted(kafka: Kafka) -> tuple[DataFrame, int]:
        found = _references(spark, replace(settings, kafka=kafka), topics, store).persist(StorageLevel.DISK_ONLY)
        kept.append(found)
        return found, found.count()

    try:
        with steps.step("reading the topics"):
            found, references_found = despite_odd_timestamps(spark, settings.kafka, topics, counted, audit.notes)
            fit_shuffles(spark, references_found)
        _check_same(topics, describe(spark, settings.kafka, settings.topics))
        with steps.step("asking the store"):
            payloads, audit.stored = _payloads(found, settings, store, kept)
        expiry = few(spark, _expiry(found, store, audit), EXPIRY)
        retained = [
            (topic.name, None if topic.retention.forever else min(topic.retention.retention_ms, _LONGEST_MS))
            for topic in topics
        ]
        verified = None
        if settings.verify:
            with steps.step("reading the payloads"):
                verified = _verified(found, payloads, settings, store).persist(StorageLevel.DISK_ONLY)
                kept.append(verified)
                verified.count()
        known = few(spark, retained, RETAINED)
        result = findings(found, payloads, expiry, known, verified, max_bytes=_max_bytes(store))
        with steps.step("comparing"):
            if settings.report is not None:  # else it is read once, and a second time if there are examples to show
                kept.append(result.persist(StorageLevel.DISK_ONLY))
            _tell(result, settings, audit)
        _note_overwritten(topics, settings, audit)
        return audit
    finally:
        for frame in kept:
            frame.unpersist()


def _check_same(before: Sequence[Topic], after: Sequence[Topic]) -> None:
    """Makes sure that no topic was created again while it was read."""
    for first, then in zip(before, after, strict=True):
        if first.id != then.id:
            raise JobFailedError(f"topic {first.name} was deleted and created again while it was read; run it again")


def _references(
    spark: SparkSession, settings: AuditSettings, topics: Sequence[Topic], store: PayloadStore
) -> DataFrame:
    root = store.root.uri if isinstance(store, Store) else None
    signing = Signing.of(settings.store)
    frames = []
    for topic in topics:
        rows = read(spark, settings.kafka, [topic], end=lambda span: span.stable, committed=True)
        if rows is not None:
            rows = newest(rows, root=root) if topic.compacted and settings.newest_only else rows
            name = settings.formats.get(topic.name, settings.reference_format)
            frames.append(references(rows, name, root, settings.signing.get(topic.name, signing)))
    return reduce(DataFrame.unionByName, frames) if frames else few(spark, (), REFERENCE)


def _payloads(
    found: DataFrame, settings: AuditSettings, store: PayloadStore, kept: list[DataFrame]
) -> tuple[DataFrame, int]:
    """The store's answer for each path, as `STATED`, and the bytes of what is there.

    Adds to `kept` the frames to unpersist at the end.
    """
    spark = found.sparkSession
    paths = found.where(F.col("path").isNotNull()).select("path").distinct()
    if isinstance(store, List):
        listing = listed(spark, settings.store, settings.topics).drop("topic")
        looked = paths.join(listing, "path", "left").persist(StorageLevel.DISK_ONLY)
        kept.append(looked)
        there = looked.where(F.col("stored").isNotNull()).withColumn("state", F.lit("there"))
        answers = conform(there.withColumn("detail", F.lit(None).cast("string")), STATED)
        total, wanted, listed_too = looked.agg(F.sum("stored"), F.count("path"), F.count("stored")).collect()[0]
        if wanted == listed_too:
            return answers, total or 0
        answers = answers.unionByName(stated(looked.where(F.col("stored").isNull()), settings.store))
    else:
        answers = stated(paths, settings.store)
    kept.append(answers.persist(StorageLevel.DISK_ONLY))
    return answers, answers.agg(F.sum("stored")).collect()[0][0] or 0


def _expiry(found: DataFrame, store: PayloadStore, audit: Audit) -> list[tuple[str, int | None, str | None, str]]:
    """For each folder with referenced payloads, the first rule to delete them."""
    if not isinstance(store, Lifecycle) or not isinstance(store, Store):
        return []
    root = store.root.uri
    folder = F.substring_index(F.substring(F.col("path"), len(root) + 1, 300), "/", 1)
    rows = found.where(F.col("path").startswith(root)).select(folder.alias("folder")).distinct().collect()
    earliest = []
    for name in sorted(row.folder for row in rows if store.root.holds(f"{root}{row.folder}/any")):
        try:
            rules = [rule for rule in store.expiry_rules(name) if not rule.tagged]
        except PayloadStoreError as exc:
            audit.notes.append(f"it is not known whether payloads expire: {exc}")
            return []
        if rules:
            # A rule with a date deletes all payloads that are there on that day, however young they are.
            first = min(rules, key=lambda rule: -1 if rule.days is None else rule.days)
            when = f"after {first.days} d" if first.days is not None else f"from {first.date} on"
            days = None if first.days is None else min(first.days, _LONGEST_DAYS)
            earliest.append((name, days, first.date, f"rule {first.id!r} ({first.scope}) deletes it {when}"))
    return earliest


def _verified(found: DataFrame, payloads: DataFrame, settings: AuditSettings, store: PayloadStore) -> DataFrame:
    """The faults of payloads, by `_VERIFIED_BY`; a payload is read once for all references that say the same."""
    there = payloads.where(F.col("state") == "there").select("path")
    rows = found.join(there, "path").select(*_VERIFIED_BY).distinct()
    max_bytes = _max_bytes(store)
    return on_executors(rows, partial(_verify, settings.store, max_bytes), _VERIFIED)


def _max_bytes(store: PayloadStore) -> int:
    return store.max_bytes if isinstance(store, Store) else DEFAULT_MAX_BYTES


def _tell(result: DataFrame, settings: AuditSettings, audit: Audit) -> None:
    audit.states = {topic: {} for topic in settings.topics}
    for row in result.groupBy("topic", "state").count().collect():
        audit.states[row["topic"]][row["state"]] = row["count"]
    # Without the timestamps: Python has none behind the year 9999.
    wrong = result.where(F.col("state") != "ok").select(*EXAMPLE)
    audit.examples = wrong.orderBy("topic", "partition", "offset").limit(_EXAMPLES).collect() if audit.wrong else []
    if settings.report is not None:
        result.write.mode("errorifexists").parquet(settings.report)


def _note_overwritten(topics: Sequence[Topic], settings: AuditSettings, audit: Audit) -> None:
    for topic in topics:
        missing = audit.states[topic.name].get("missing", 0)
        if topic.compacted and missing and not settings.newest_only:
            audit.notes.append(
                f"topic {topic.name} is compacted, and a reader that begins at the beginning meets {missing:,} records "
                "without a payload; those that were overwritten go when Kafka compacts the log, and --newest-only "
                "leaves them out"
            )


# --- on executors -----------------------------------------------------------------------------------------------------


def _verify(config: Mapping[str, object], max_bytes: int, rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    """Holds one payload at a time, and its value too if it is compressed."""
    with closing(open_store(config)) as store:
        for row in rows:
            wrong, why = _wrong(store, Inflate(max_bytes, FORMATS[row.format]), row)
            if wrong is not None:
                yield *(row[name] for name in _VERIFIED_BY), wrong, why


def _wrong(store: PayloadStore, inflate: Inflate, row: Row) -> tuple[str | None, str | None]:
    encryption = None if row.encryption is None else Encryption("-", b"", b"")  # stored bytes are verified without it
    reference = Reference(row.path, row["size"], row.checksum, row.compression, encryption=encryption)
    try:
        verify(store, reference, inflate)
    except PayloadCorruptError as exc:
        return exc.what, str(exc)
    except PayloadTooLargeError as exc:
        return "size", str(exc)
    except PayloadNotFoundError as exc:
        return "missing", str(exc)
    except ReferenceRefusedError as exc:
        return "refused", str(exc)
    except (PayloadStoreError, TransformError) as exc:
        return "unknown", str(exc)
    return None, None
