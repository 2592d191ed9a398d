"""Large values leave the rows that Spark writes to Kafka: they go to the payload store, and references replace them.

The reverse of `jobs.inflate`; it runs on executors too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from jobs.driver.failures import JobFailedError
from jobs.records.arrow import mapped, record_at, replaced, spliced
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS
from jobs.records.offloader import Offloader, OffloaderSettings
from jobs.records.problems import require_one_of
from jobs.records.schemas import HEADERS
from stores.encryption import keyring_of
from stores.store import check_topic
from transforms.claims import CLAIM_PREFIX, ON_REFERENCE, OnReference
from transforms.compression import CODECS, Codec
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.keyring import TYPE_NAME
from transforms.offload import DEFAULT_THRESHOLD_BYTES, Offload
from transforms.record import RecordLike
from transforms.signing import KEY_NAME, Signing

__all__ = ["offload"]

_Place = tuple[int, str]
"""The number of a row, and the topic that it goes to."""


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
    Kafka sink writes them. Rows stay in their order and their partitions. Lowers
    `spark.sql.execution.arrow.maxBytesPerBatch` of the session to 16 MiB, unless it is lower.

    Args:
        rows: a batch or a stream with the columns of Spark's Kafka sink: `value`, and optionally `key`, `headers`,
            `topic`, `partition`; a string becomes its UTF-8. More columns stay.
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
        raise ValueError("the rows have no column topic; specify the topic of the rows, which is part of the path")
    require_one_of("format", reference_format, FORMATS)
    require_one_of("on_reference", on_reference, ON_REFERENCE)
    if compression is not None:
        require_one_of("compression", compression, CODECS)
    signing, keyring = Signing.of(store), keyring_of(store)
    if reference_format != "wideload" and signing is not None:
        raise ConfigurationError(
            KEY_NAME, f"cannot be combined with format {reference_format!r}, which has no signatures"
        )
    if reference_format != "wideload" and keyring is not None and keyring.writes:
        raise ConfigurationError(
            TYPE_NAME, f"cannot be combined with format {reference_format!r}, whose readers cannot decrypt"
        )
    work = Offload(
        threshold_bytes,
        max_message_bytes,
        compression,
        FORMATS[reference_format],
        signing=signing,
        on_reference=on_reference,
    )
    settings = OffloaderSettings(store, work, max_bytes, threads)
    settings.check()
    conformed = _conformed(rows)
    return mapped(conformed, _Offloading(settings, topic), conformed.schema)


def _conformed(rows: DataFrame) -> DataFrame:
    """The rows with key, value and headers, as Spark's Kafka sink takes them."""
    if "value" not in rows.columns:
        raise ValueError("the rows have no column value")
    for name in ("key", "value"):
        kind = rows.schema[name].dataType if name in rows.columns else BinaryType()
        if not isinstance(kind, BinaryType | StringType):
            raise TypeError(f"column {name} is {kind.simpleString()}; Spark writes only binary and string to Kafka")
    key, headers = (F.col(name) if name in rows.columns else F.lit(None) for name in ("key", "headers"))
    return rows.withColumns(
        {"key": key.cast(BinaryType()), "value": F.col("value").cast(BinaryType()), "headers": headers.cast(HEADERS)}
    )


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Offloading:
    """One task: batches of rows in, batches of rows out."""

    settings: OffloaderSettings
    topic: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(Offloader(self.settings)) as offloader:
            for batch in batches:
                found = offloader.offloaded(self._records(batch), lambda place: f"a row for topic {place[1]}")
                pieces = ((each.place[0], replaced(batch.slice(each.place[0], 1), [each.record])) for each in found)
                yield from spliced(batch, pieces)

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[_Place, RecordLike, str]]:
        """The rows that change, and their topics."""
        for row in self._candidates(batch):
            record = record_at(batch, row)
            if self.settings.work.changes(record):
                topic = self.topic if self.topic is not None else batch.column("topic")[row].as_py()
                if topic is None:
                    raise JobFailedError("a row has no topic, which is part of its payload's path")
                yield (row, topic), record, topic

    def _candidates(self, batch: pa.RecordBatch) -> list[int]:
        """The rows that may change; the others never become Python's objects."""
        work = self.settings.work
        claims = work.on_reference != "pass" and _may_hold_claims(batch.column("headers"))
        if work.format.marks or work.sink_limit_bytes is not None or claims:
            return list(range(batch.num_rows))
        large = pc.greater(pc.binary_length(batch.column("value")), work.threshold_bytes)
        return [row for row, found in enumerate(large.to_pylist()) if found]


def _may_hold_claims(headers: pa.Array) -> bool:
    """Whether one of all headers has the name of a reference's or a chunk's."""
    return bool(pc.any(pc.starts_with(headers.flatten().field("key"), CLAIM_PREFIX)).as_py())
