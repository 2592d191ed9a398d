"""References in a DataFrame: the paths of payloads that records refer to, and which records compaction keeps.

Records that cannot have a reference stay in the JVM. An executor needs `jobs`, `transforms`, PyArrow and cramjam.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobs.records.arrow import arrow_schema, mapped, record_at
from jobs.records.schemas import columns, require_columns
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.claims import CLAIM_PREFIX
from transforms.formats import FormatName
from transforms.found_references import OWN_KEY, ReferenceFinder
from transforms.letter import MARK
from transforms.reference import MAX_PATH_BYTES
from transforms.signing import Signing

__all__ = ["REFERENCE", "newest", "references"]

REFERENCE = columns(
    "topic string, partition int, offset long, timestamp timestamp, key binary, which string, format string, "
    "path string, size long, checksum string, compression string, encryption string, error string"
)
"""One reference: to the record's value, or to its key, as `which` says.

`key` is the record's key as in the log. `size`, `checksum` (64 hex digits), `compression` and `encryption` (the cipher)
are null if the record does not say them; the checksum is that of the stored bytes if they are encrypted. If `error` is
not null, the record says that it is a reference but cannot be read as one; then `format`, `path` and the four are null.
A reference with a missing or wrong signature has both an error and a path.
"""

_NEEDED = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_CUT_BYTES = MAX_PATH_BYTES + 2  # bakdata's flag, and one more byte that shows that a path is too long


def references(
    source: DataFrame,
    reference_format: FormatName = "wideload",
    root: str | None = None,
    signing: Signing | None = None,
) -> DataFrame:
    """Every reference of the records, as `REFERENCE`; a record may have two.

    If headers mark a reference of another format than `reference_format`, it is read in that format. Offloaded keys
    have one format, that of the serializers; bakdata's keys are left alone. These are references with an error, too:
    the first chunk of a message that may be a wrapper with a reference; a dead-letter record whose record is in the
    store or in chunks.

    Args:
        source: rows of Spark's Kafka source, read with `includeHeaders`.
        reference_format: how the topics refer to payloads, as the worker's `reference.format`.
        root: the beginning of all paths in the store. A value or key that begins so, and is not marked as a reference,
            is a reference with an error: it may be one of another format than `reference_format`.
        signing: verifies the references of the project's own format; None for no verification.

    Raises:
        ValueError: a column is missing.
    """
    require_columns(source, _NEEDED)
    rows = source.select(*_NEEDED)
    if reference_format != "bakdata-flag":
        rows = rows.where(_may_refer(root))
    return mapped(rows, partial(_found, ReferenceFinder(reference_format, root, signing)), REFERENCE)


def newest(source: DataFrame, since: datetime | None = None) -> DataFrame:
    """The records that compaction keeps: the last record of each key, and records without a key.

    Columns are those that `references` needs; it does not need the ends of values, so they are cut off.

    Args:
        source: rows of Spark's Kafka source, read with `includeHeaders`; whole partitions.
        since: records that were overwritten at this time or later (with time zone) count too: a reader that lags a
            little still reads them.

    Raises:
        ValueError: a column is missing.
    """
    require_columns(source, _NEEDED)
    whole = _begins("value", b"\x00") | F.exists("headers", lambda each: each["key"] == MARK)
    value = F.when(whole, F.col("value")).otherwise(F.substring("value", 1, _CUT_BYTES))
    # Nothing overwrites a record without a key.
    apart = F.when(F.col("key").isNull(), F.col("offset"))
    window = Window.partitionBy("topic", "partition", "key", apart).orderBy("offset")
    rows = source.select(*_NEEDED).withColumns(
        {
            "value": value,
            "_wideload_at": F.lead("offset").over(window),
            "_wideload_time": F.lead("timestamp").over(window),
        }
    )
    counts = F.col("_wideload_at").isNull()
    if since is not None:
        # A timestamp that Spark cannot hold is null, and may be of any time.
        recent = F.col("_wideload_time") >= F.timestamp_micros(F.lit(round(since.timestamp() * 1_000_000)))
        counts |= F.coalesce(recent, F.lit(True))
    return rows.where(counts).select(*_NEEDED)


def _may_refer(root: str | None) -> Column:
    """True if a finder may find something, in the formats whose references are marked by headers."""
    may = F.exists("headers", lambda each: each["key"].startswith(CLAIM_PREFIX) | each["key"].isin(BAKDATA_FLAG, MARK))
    held = F.contains("value", F.lit(OWN_KEY))
    if root is not None:
        held |= F.contains("value", F.lit(root.encode()))
        for name in ("key", "value"):
            may |= _begins(name, root.encode()) | _begins(name, b"\x01" + root.encode())
    return may | (_begins("value", b"\x00") & held)


def _begins(name: str, start: bytes) -> Column:
    return F.substring(name, 1, len(start)) == F.lit(start)


def _found(finder: ReferenceFinder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On executors: the references of rows."""
    schema = arrow_schema(REFERENCE)
    for batch in batches:
        found = [(row, each) for row in range(batch.num_rows) for each in finder.find(record_at(batch, row))]
        rows = pa.array([row for row, _ in found], pa.int64())
        places = [batch.column(field.name).take(rows).cast(field.type) for field in list(schema)[:5]]
        said = [pa.array([each[at] for _, each in found], field.type) for at, field in enumerate(list(schema)[5:])]
        yield pa.RecordBatch.from_arrays([*places, *said], schema=schema)
