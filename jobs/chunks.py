"""Chunks in a batch DataFrame: the messages that are whole, and a report of those that are not.

What becomes of each message is what `transforms.assembly` says, for it is that which runs here, on the chunks of one
message at a time; so an executor needs `jobs` and `transforms` (`--py-files`), and neither pandas nor PyArrow. No more
of a message than twice the limit ever reaches Python, and nothing passes through the driver.

A batch has no time, so nothing expires; and messages do not compete for memory, so none is evicted. A message whose
last chunk lies beyond the end of the batch is reported as `incomplete`: with a wider range of offsets it may be whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StructField, StructType

from jobs.records.schemas import CHUNK_MESSAGE_ID, HEADERS, INCOMPLETE
from transforms.assembly import Assembled, Assembler, Discarded, Limits
from transforms.record import Header

__all__ = ["CHUNK_MESSAGE_ID", "INCOMPLETE", "assemble", "incomplete"]

_UUID = "large-message.chunk.uuid"
_UUID_FORM = r"\A[a-zA-Z0-9._-]{1,64}\z"
_NEEDED = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_GROUP = "_wideload_uuid", "_wideload_apart"
_FIRST = "_wideload_first"
_TOO_MUCH = "_wideload_too_much"
_BOUNDLESS = 2**62

_MESSAGE = StructType(
    [
        StructField("index", IntegerType()),  # of its first chunk, from 1
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("id", CHUNK_MESSAGE_ID),
    ]
)
_REPORT = StructType([field for field in INCOMPLETE.fields if field.name not in ("topic", "partition")])


def assemble(source: DataFrame, limit_bytes: int = Limits().message_bytes) -> DataFrame:
    """The records, each message of chunks as one row.

    A message has the value that was split and the record's own headers (null where it had none), the timestamp of its
    first chunk and the offset of its last one; `chunk_message_id` has both offsets, and is null in ordinary rows. What
    is not whole is left out: see `incomplete`.

    Args:
        source: rows of Spark's Kafka source in a batch, read with `includeHeaders`; further columns are those of the
            first chunk.
        limit_bytes: the largest value of a message.

    Raises:
        ValueError: a column is missing, the rows are a stream, or `limit_bytes` is below 1.
    """
    columns = _columns(source, limit_bytes)
    ordinary = source.where(~_is_chunk()).withColumn("chunk_message_id", F.lit(None).cast(CHUNK_MESSAGE_ID))
    assembled = F.udf(lambda rows: _assembled(rows, limit_bytes), ArrayType(_MESSAGE))
    messages = _messages(source, limit_bytes).where(~F.col(_TOO_MUCH))
    whole = messages.select("rows", F.explode(assembled("rows")).alias("message"))
    first = F.element_at("rows", F.col("message.index"))
    changed = {"value": F.col("message.value"), "headers": F.col("message.headers"), "offset": F.col("message.id.last")}
    found = [changed.get(name, first[name]).alias(name) for name in columns]
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
    missing = [name for name in _NEEDED if name not in source.columns]
    if missing:
        hint = "; read with the option includeHeaders" if "headers" in missing else ""
        raise ValueError(f"rows of Spark's Kafka source have {', '.join(_NEEDED)}; missing: {', '.join(missing)}{hint}")
    return source.columns


def _is_chunk() -> Column:
    return F.coalesce(F.exists("headers", lambda header: header["key"] == _UUID), F.lit(False))


def _messages(source: DataFrame, limit_bytes: int) -> DataFrame:
    """The chunks of each message, as `rows`; without their values where there are too many bytes of them.

    Bytes that come twice, as from a writer that was killed and begins again, are there once: in the row that is at the
    offset in `_FIRST`.
    """
    uuid = F.element_at(F.filter("headers", lambda header: header["key"] == _UUID), -1)["value"]
    # Without a uuid each chunk is for itself.
    apart = F.when(F.col(_GROUP[0]).cast("string").rlike(_UUID_FORM), F.lit(-1)).otherwise(F.col("offset"))
    keys = ["topic", "partition", *_GROUP]
    first = F.min("offset").over(Window.partitionBy(*keys, F.length("value"), F.xxhash64("value")))
    is_first = F.col("offset") == F.col(_FIRST)
    found = F.sum(F.when(is_first, F.length("value"))).over(Window.partitionBy(*keys))
    value = F.when(is_first & ~F.col(_TOO_MUCH), F.col("value")).alias("value")
    columns = [value if name == "value" else name for name in source.columns]
    return (
        source.where(_is_chunk())
        .withColumn(_GROUP[0], uuid)
        .withColumn(_GROUP[1], apart)
        .repartition(*keys)  # once for both windows, or values would be shuffled for each
        .withColumn(_FIRST, first)
        .withColumn(_TOO_MUCH, F.coalesce(found > 2 * limit_bytes, F.lit(False)))
        .groupBy(*keys, _TOO_MUCH)
        .agg(F.collect_list(F.struct(*columns, _FIRST)).alias("rows"))
    )


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk as the assembler takes it; its timestamp is its place, from 1, for a message has that of its first."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int
    offset: int


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _events(rows: Sequence[Row], limit_bytes: int) -> Iterator[Assembled | Discarded]:
    """What becomes of the chunks of one uuid; those for which more would have to come expire at the end."""
    assembler = Assembler(Limits(1, _BOUNDLESS, limit_bytes, expire_ms=1))
    values: dict[int, bytes | None] = {}
    for place, row in sorted(enumerate(rows, 1), key=lambda each: each[1]["offset"]):
        headers = tuple((header["key"], _bytes(header["value"])) for header in row["headers"])
        if row[_FIRST] not in values:
            values[row[_FIRST]] = _bytes(row["value"])
        chunk = _Chunk(_bytes(row["key"]), values[row[_FIRST]], headers, place, row["offset"])
        yield from assembler.add(0, chunk, 0)
    yield from assembler.expire(1)


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
    """`_REPORT` for each attempt to send the message that is not whole."""
    found: list[tuple[str | None, str, str, list[int]]] = []
    if too_much:
        uuid = next(header["value"] for header in reversed(rows[0]["headers"]) if header["key"] == _UUID)
        detail = f"more than twice the {limit_bytes:,} bytes that are allowed"
        found.append(
            (uuid and uuid.decode(errors="replace"), "oversized", detail, sorted(row["offset"] for row in rows))
        )
    for event in () if too_much else _events(rows, limit_bytes):
        if isinstance(event, Assembled):
            continue
        offsets = [record.offset for record in event.records]
        if event.late and found:
            found[-1][3].extend(offsets)
        elif event.reason == "expired":
            found.append((event.uuid, "incomplete", "the last chunk is not in this batch", offsets))
        else:
            found.append((event.uuid, event.reason, event.detail, offsets))
    return [(uuid, reason, detail, len(offsets), offsets) for uuid, reason, detail, offsets in found]
