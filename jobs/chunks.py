"""Chunks in a batch DataFrame: the messages that are whole, and a report of those that are not.

`transforms.reassembly` assembles the chunks, one message at a time, on executors. An executor needs `jobs` and
`transforms` (`--py-files`), but neither pandas nor PyArrow. No more than twice the limit of a message ever reaches
Python, and nothing passes through the driver.

A batch has no clock, so no message expires. Messages do not compete for memory, so none is evicted. A message whose
last chunk lies behind the end of the batch is reported as `incomplete`: with a wider range of offsets it may be whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from jobs.records.schemas import CHUNK_MESSAGE_ID, HEADERS, INCOMPLETE, columns, require_columns
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.reassembly import Event, Reassembly
from transforms.record import Header

__all__ = ["CHUNK_MESSAGE_ID", "INCOMPLETE", "assemble", "incomplete"]

_UUID = "large-message.chunk.uuid"
_UUID_FORM = r"\A[a-zA-Z0-9._-]{1,64}\z"
_NEEDED = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_GROUP = "_wideload_uuid", "_wideload_apart"
_FIRST = "_wideload_first"
_TOO_MUCH = "_wideload_too_much"
_BOUNDLESS = 2**62

_MESSAGE = StructType(  # `index` is that of the first chunk, from 1
    [*columns("index int, value binary"), StructField("headers", HEADERS), StructField("id", CHUNK_MESSAGE_ID)]
)
_REPORT = StructType([field for field in INCOMPLETE.fields if field.name not in ("topic", "partition")])


def assemble(source: DataFrame, limit_bytes: int = Limits().message_bytes) -> DataFrame:
    """The records, each message of chunks as one row.

    A message has the value that was split, the record's own headers (null if it had none), the timestamp of its first
    chunk and the offset of its last one. `chunk_message_id` has both offsets; it is null in ordinary rows. `incomplete`
    reports the messages that are left out.

    Args:
        source: rows of Spark's Kafka source in a batch, read with `includeHeaders`; a message has more columns from its
            first chunk.
        limit_bytes: the largest value of a message.

    Raises:
        ValueError: a column is missing, the rows are a stream, or `limit_bytes` is below 1.
    """
    names = _columns(source, limit_bytes)
    ordinary = source.where(~_is_chunk()).withColumn("chunk_message_id", F.lit(None).cast(CHUNK_MESSAGE_ID))
    assembled = F.udf(lambda rows: _assembled(rows, limit_bytes), ArrayType(_MESSAGE))
    messages = _messages(source, limit_bytes).where(~F.col(_TOO_MUCH))
    whole = messages.select("rows", F.explode(assembled("rows")).alias("message"))
    first = F.element_at("rows", F.col("message.index"))
    changed = {"value": F.col("message.value"), "headers": F.col("message.headers"), "offset": F.col("message.id.last")}
    found = [changed.get(name, first[name]).alias(name) for name in names]
    return ordinary.unionByName(whole.select(*found, F.col("message.id").alias("chunk_message_id")))


def incomplete(source: DataFrame, limit_bytes: int = Limits().message_bytes) -> DataFrame:
    """The messages that `assemble` leaves out, as `INCOMPLETE`; the arguments are the same.

    Raises:
        ValueError: a column is missing, the rows are a stream, or `limit_bytes` is below 1.
    """
    _columns(source, limit_bytes)
    reported = F.udf(lambda rows, too_much: _reports(rows, limit_bytes, too_much), ArrayType(_REPORT))
    reports = _messages(source, limit_bytes).select(
        "topic", "partition", F.explode(reported("rows", _TOO_MUCH)).alias("report")
    )
    return reports.select("topic", "partition", "report.*")


def _columns(source: DataFrame, limit_bytes: int) -> list[str]:
    if source.isStreaming:
        raise ValueError("found a stream, allowed is a batch: use spark.read, or foreachBatch")
    if limit_bytes < 1:
        raise ValueError(f"limit_bytes: found {limit_bytes:,}, allowed is 1 or more")
    require_columns(source, _NEEDED)
    return source.columns


def _is_chunk() -> Column:
    return F.coalesce(F.exists("headers", lambda header: header["key"] == _UUID), F.lit(False))


def _messages(source: DataFrame, limit_bytes: int) -> DataFrame:
    """The chunks of each message, as `rows`; without values if these have too many bytes.

    Equal bytes come twice if a writer was killed and restarted. They are kept once: in the row at the offset in
    `_FIRST`.
    """
    uuid = F.element_at(F.filter("headers", lambda header: header["key"] == _UUID), -1)["value"]
    # A chunk without a uuid is a separate group.
    apart = F.when(F.col(_GROUP[0]).cast("string").rlike(_UUID_FORM), F.lit(-1)).otherwise(F.col("offset"))
    keys = ["topic", "partition", *_GROUP]
    first = F.min("offset").over(Window.partitionBy(*keys, F.length("value"), F.xxhash64("value")))
    is_first = F.col("offset") == F.col(_FIRST)
    found = F.sum(F.when(is_first, F.length("value"))).over(Window.partitionBy(*keys))
    value = F.when(is_first & ~F.col(_TOO_MUCH), F.col("value")).alias("value")
    fields = [value if name == "value" else name for name in source.columns]
    return (
        source.where(_is_chunk())
        .withColumn(_GROUP[0], uuid)
        .withColumn(_GROUP[1], apart)
        .repartition(*keys)  # once for both windows, or values would be shuffled for each
        .withColumn(_FIRST, first)
        .withColumn(_TOO_MUCH, F.coalesce(found > 2 * limit_bytes, F.lit(False)))
        .groupBy(*keys, _TOO_MUCH)
        .agg(F.collect_list(F.struct(*fields, _FIRST)).alias("rows"))
    )


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk for the assembler. Its timestamp is its place, from 1: the message gets the one of its first chunk."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int
    offset: int


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _events(rows: Sequence[Row], limit_bytes: int) -> Iterator[Event]:
    """The events of the chunks of one uuid; a message whose last chunk is missing expires at the end."""
    reassembly = Reassembly(Limits(1, _BOUNDLESS, limit_bytes, expire_ms=1))
    values: dict[int, bytes | None] = {}
    for place, row in sorted(enumerate(rows, 1), key=lambda each: each[1]["offset"]):
        headers = tuple((header["key"], _bytes(header["value"])) for header in row["headers"])
        if row[_FIRST] not in values:
            values[row[_FIRST]] = _bytes(row["value"])
        chunk = _Chunk(_bytes(row["key"]), values[row[_FIRST]], headers, place, row["offset"])
        yield from reassembly.receive(0, chunk)
    yield from reassembly.tick(1)


def _assembled(rows: Sequence[Row], limit_bytes: int) -> list[tuple[object, ...]]:
    """`_MESSAGE` for each whole message."""
    return [
        (
            event.record.timestamp,
            event.record.value,
            list(event.record.headers) or None,
            (event.id.first, event.id.last),
        )
        for event in _events(rows, limit_bytes)
        if isinstance(event, Assembled)
    ]


def _reports(rows: Sequence[Row], limit_bytes: int, too_much: bool) -> list[tuple[object, ...]]:  # noqa: FBT001
    """`_REPORT` for each incomplete attempt to send the message."""
    found: list[tuple[str | None, str, str, list[int]]] = []
    if too_much:
        uuid = next(header["value"] for header in reversed(rows[0]["headers"]) if header["key"] == _UUID)
        detail = f"more than twice the {limit_bytes:,} bytes that are allowed"
        found.append(
            (uuid and uuid.decode(errors="replace"), "oversized", detail, sorted(row["offset"] for row in rows))
        )
    for event in () if too_much else _events(rows, limit_bytes):
        if not isinstance(event, Discarded):
            continue
        offsets = [record.offset for record in event.records]
        if event.late and found:
            found[-1][3].extend(offsets)
        elif event.reason == "expired":
            found.append((event.uuid, "incomplete", "the last chunk is not in this batch", offsets))
        else:
            found.append((event.uuid, event.reason, event.detail, offsets))
    return [(uuid, reason, detail, len(offsets), offsets) for uuid, reason, detail, offsets in found]
