"""Large values leave the rows that Spark writes to Kafka: they go to the payload store, and references replace them.

The reverse of `jobs.inflate`; it runs on executors too. The SHA-256 of a payload is its name. So if Spark runs a task
again, or twice at a time, the task writes the same objects and makes the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from jobs.driver.failures import JobFailedError
from jobs.records.arrow import Gathering, mapped, record_at, replaced
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS
from jobs.records.schemas import HEADERS
from jobs.records.window import Task, in_order
from stores.encryption import keyring_of
from stores.payload import publish
from stores.registry import open_store
from stores.store import PayloadStore, check_topic
from transforms.claims import CLAIM_PREFIX, ON_REFERENCE, OnReference
from transforms.compression import CODECS, Codec
from transforms.errors import ConfigurationError, MalformedReferenceError, PayloadStoreError, ReferenceClaimedError
from transforms.formats import FORMATS, FormatName
from transforms.keyring import TYPE_NAME, Keyring
from transforms.offload import DEFAULT_THRESHOLD_BYTES, Offload
from transforms.record import RecordLike
from transforms.signing import KEY_NAME, Signing

__all__ = ["offload"]

_GENERATOR = "large.message.id.generator"

_Row = tuple[int, RecordLike]


def offload(
    rows: DataFrame,
    store: Mapping[str, object],
    threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
    *,
    topic: str | None = None,
    max_message_bytes: int | None = None,
    compression: Codec | None = None,
    reference_format: FormatName = "wideload",
    max_bytes: int = DEFAULT_HELD_BYTES,
    threads: int = DEFAULT_THREADS,
    on_reference: OnReference = "offload",
) -> DataFrame:
    """Rows for Spark's Kafka sink, with references in place of large values.

    The columns are those of `rows`, with `key` and `value` as binary, and `headers`, which mark the references; the
    sink writes them. Rows stay in their order and their partitions. Lowers
    `spark.sql.execution.arrow.maxBytesPerBatch` of the session to 16 MiB, unless it is lower.

    Args:
        rows: a batch or a stream with the columns of the sink: `value`, and optionally `key`, `headers`, `topic`,
            `partition`; a string becomes its UTF-8. More columns stay.
        store: the keys of the payload store, as in the worker's file.
        threshold_bytes: a longer value is large.
        topic: the topic that the rows go to; it is part of the payloads' paths. None takes the column `topic`.
        max_message_bytes: `max.message.bytes` of that topic; a record that is larger as a batch of one is large, too.
        compression: how payloads are compressed.
        reference_format: how records refer to payloads, as the worker's `reference.format`.
        max_bytes: the most bytes of values that a task holds in Python, or one record if that alone is larger.
        threads: how many payloads a task uploads at a time.
        on_reference: what becomes of a row that has the headers of a reference already, as the worker's
            `offload.on.reference`; with `fail`, and for a chunk or a key that is a reference, the job fails.

    Raises:
        ConfigurationError: an argument, or a key of the store, is wrong.
        ValueError: a column is missing.
        TypeError: a column has another type.
    """
    if topic is not None:
        check_topic(topic)
    elif "topic" not in rows.columns:
        raise ValueError("the rows have no column topic; give the topic that they go to, for it is part of the path")
    settings = _Offloading(
        store,
        threshold_bytes,
        topic,
        max_message_bytes,
        compression,
        reference_format,
        max_bytes,
        threads,
        on_reference,
    )
    settings.check()
    conformed = _conformed(rows)
    return mapped(conformed, settings, conformed.schema)


def _conformed(rows: DataFrame) -> DataFrame:
    """The rows with key, value and headers, as the sink takes them."""
    if "value" not in rows.columns:
        raise ValueError("the rows have no column value")
    for name in ("key", "value"):
        kind = rows.schema[name].dataType if name in rows.columns else BinaryType()
        if not isinstance(kind, BinaryType | StringType):
            raise TypeError(f"column {name} is {kind.simpleString()}; Spark's Kafka sink takes binary and string")
    key, headers = (F.col(name) if name in rows.columns else F.lit(None) for name in ("key", "headers"))
    return rows.withColumns(
        {"key": key.cast(BinaryType()), "value": F.col("value").cast(BinaryType()), "headers": headers.cast(HEADERS)}
    )


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Publishing:
    """Where payloads go, and what encrypts them; None to store them as they are."""

    store: PayloadStore
    keyring: Keyring | None

    @property
    def encrypts(self) -> bool:
        return self.keyring is not None and self.keyring.writes


@dataclass(frozen=True, slots=True)
class _Offloading:
    """One task: batches of rows in, batches of rows out."""

    store: Mapping[str, object] = field(repr=False)
    threshold_bytes: int
    topic: str | None
    max_message_bytes: int | None
    compression: Codec | None
    reference_format: FormatName
    held_bytes: int
    threads: int
    on_reference: OnReference

    def check(self) -> None:
        if self.reference_format not in FORMATS:
            raise ConfigurationError("format", f"found {self.reference_format!r}, allowed are {', '.join(FORMATS)}")
        if self.on_reference not in ON_REFERENCE:
            allowed = ", ".join(ON_REFERENCE)
            raise ConfigurationError("on_reference", f"found {self.on_reference!r}, allowed are {allowed}")
        if self.compression is not None and self.compression not in CODECS:
            raise ConfigurationError("compression", f"found {self.compression!r}, allowed are {', '.join(CODECS)}")
        for name, number, least in (
            ("threshold_bytes", self.threshold_bytes, 0),
            ("max_bytes", self.held_bytes, 1),
            ("threads", self.threads, 1),
        ):
            if number < least:
                raise ConfigurationError(name, f"found {number}, allowed is {least} or more")
        if self.store.get(_GENERATOR, "sha256") != "sha256":
            raise ConfigurationError(
                _GENERATOR, "must be sha256: Spark runs tasks again, and each try would leave payloads of other names"
            )
        if Signing.of(self.store) is not None and self.reference_format != "wideload":
            raise ConfigurationError(
                KEY_NAME, f"stands beside format {self.reference_format!r}, which has no signatures"
            )
        keyring = keyring_of(self.store)
        if keyring is not None and keyring.writes and self.reference_format != "wideload":
            raise ConfigurationError(
                TYPE_NAME, f"stands beside format {self.reference_format!r}, whose readers cannot decrypt"
            )
        open_store(self.store).close()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = Offload(
            self.threshold_bytes,
            self.max_message_bytes,
            self.compression,
            FORMATS[self.reference_format],
            signing=Signing.of(self.store),
            on_reference=self.on_reference,
        )
        keyring = keyring_of(self.store)
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="wideload-offload")
        with closing(open_store(self.store)) as store, pool:
            try:
                for batch in batches:
                    yield from self._offloaded(_Publishing(store, keyring), pool, work, batch)
            finally:
                pool.shutdown(cancel_futures=True)

    def _offloaded(
        self, place: _Publishing, pool: ThreadPoolExecutor, work: Offload, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        gathering = Gathering()
        done = 0
        for row, record in in_order(self._tasks(place, work, batch), pool, self.held_bytes):
            yield from gathering.add(batch.slice(done, row - done))
            yield from gathering.add(replaced(batch.slice(row, 1), [record]))
            done = row + 1
        yield from gathering.add(batch.slice(done))
        yield from gathering.rest()

    def _tasks(self, place: _Publishing, work: Offload, batch: pa.RecordBatch) -> Iterator[Task[_Row]]:
        """The rows that change, with the bytes that each holds and its work."""
        for row in self._candidates(work, batch):
            record = record_at(batch, row)
            if work.changes(record):
                size = len(record.value or b"")
                topic = self.topic if self.topic is not None else batch.column("topic")[row].as_py()
                held = size * (1 + int(work.codec is not None) + int(place.encrypts))
                yield held, (row, record), partial(_referring, place, work, topic)

    def _candidates(self, work: Offload, batch: pa.RecordBatch) -> list[int]:
        """The rows that may change; the others never become Python's objects."""
        claims = work.on_reference != "pass" and _may_hold_claims(batch.column("headers"))
        if work.format.marks or self.max_message_bytes is not None or claims:
            return list(range(batch.num_rows))
        large = pc.greater(pc.binary_length(batch.column("value")), self.threshold_bytes)
        return [row for row, found in enumerate(large.to_pylist()) if found]


def _may_hold_claims(headers: pa.Array) -> bool:
    """Whether one of all headers has the name of a reference's or a chunk's."""
    return bool(pc.any(pc.starts_with(headers.flatten().field("key"), CLAIM_PREFIX)).as_py())


def _referring(place: _Publishing, work: Offload, topic: str | None, found: _Row) -> _Row:
    row, record = found
    if not work.wants(record):
        return row, work.keep(record)
    try:
        work.check(record)
    except ReferenceClaimedError as exc:
        raise JobFailedError(f"a row for topic {topic}: {exc}") from exc
    assert record.value is not None
    payload = work.payload(record.value, hashed=not place.encrypts)
    try:
        if topic is None:
            raise JobFailedError("a row has no topic, which is part of its payload's path")
        reference = publish(place.store, check_topic(topic), payload, by_digest=True, keyring=place.keyring)
        return row, work.refer(record, reference)
    except (PayloadStoreError, MalformedReferenceError, ConfigurationError) as exc:
        raise JobFailedError(f"a value of {payload.size:,} bytes for topic {topic} cannot be stored: {exc}") from exc
