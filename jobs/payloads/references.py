"""References in a DataFrame: the paths of payloads that records refer to, and which records still count.

`transforms.formats` reads the references on executors, from the records that may be one; Spark's own expressions leave
the other records, and all but the beginning of a value, in the JVM. So an executor needs `jobs`, `transforms` and
cramjam, but neither pandas nor PyArrow.

A value may be a wrapper (seed 002) whose headers mark the wrapped value as a reference, as behind `["offload",
"wrap"]`. It is unwrapped here as `unwrap` does; that needs no table, since the headers of references have fixed keys.
A value may also be a dead letter that holds a whole record (`transforms/letter.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from jobs.records.schemas import columns, conform, require_columns
from transforms import record_format
from transforms.bakdata import COMPRESSION, COMPRESSION_ONE_DOT
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.chunk import Chunk, is_chunk
from transforms.errors import MalformedChunkError, MalformedError, MalformedReferenceError, SignatureError
from transforms.formats import FORMATS, FormatName
from transforms.keyring import CIPHER
from transforms.letter import MARK, RECORD_FORMS, has_backed_value, has_record
from transforms.record import Header, Record
from transforms.reference import KEY, MAX_PATH_BYTES, VALUE, Reference, is_reference
from transforms.signing import Signing
from transforms.wrapper import OWN_KEYS, MessageWrapper, Unwrap

__all__ = ["BEGINS", "HIDDEN", "REFERENCE", "newest", "references"]

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

_CHUNK = tuple(name for name, _ in Chunk("-", 0, 1, 1, "-").headers())
_HEADERS = (
    *(name for part in (VALUE, KEY) for name in (part.flag, *part.details)),
    *(BAKDATA_FLAG, COMPRESSION, COMPRESSION_ONE_DOT, *_CHUNK),
    MARK,
)
_DATA_KEY = VALUE.encryption[-1]
# More than the longest value of a header, so that a signature can be verified, and what is too long is seen to be so: a
# data key has up to 12,544 bytes (AWS KMS), and of the others the id of a key is the longest, with 256.
_DATA_KEY_BYTES = 12_545
_HEADER_BYTES = 300
_CUT_BYTES = MAX_PATH_BYTES + 2  # bakdata's flag, and one more byte that shows that it is too long
_BACKED = b"\x01"
# Of a wrapper: its first byte, and the int keys of the headers that mark references. Each wrapper with a reference in
# this project's or bakdata's headers has one of them; in the format bakdata-flag there is only the path.
_MAGIC = b"\x00"
_MARKS = tuple(key.to_bytes(4) for key, name in OWN_KEYS.items() if name in (VALUE.flag, KEY.flag, BAKDATA_FLAG))
_WHOLE_BYTES = 2**20  # the longest value that is parsed; a path and the headers of a reference are some hundred
_TOO_LONG = b"\x00what may hold a reference, and is too long to be looked into"
_DEEPEST = 8
_HEAD_BYTES = 9  # of a wrapper, without headers and value
_UNWRAP = Unwrap()
_LARGEST = 2**63 - 1
_NEEDED = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")

HIDDEN = ("is a dead letter", "is a wrapper", "is a chunk of a wrapper")
"""So the errors begin of records in which there may be a sound reference."""

BEGINS = "begins with "
"""So the error begins of a path that is not marked as a reference; the folder of its payload comes next, and a `/`."""

_PARSED = ArrayType(StructType(list(REFERENCE.fields[5:])))
_Parsed = tuple[str, str | None, str | None, int | None, str | None, str | None, str | None, str | None]
_Found = tuple[_Parsed, Reference | None]


def references(
    source: DataFrame,
    reference_format: FormatName = "wideload",
    root: str | None = None,
    signing: Signing | None = None,
) -> DataFrame:
    """Every reference of the records, as `REFERENCE`; a record may have two.

    If headers mark a reference of another format than `reference_format`, it is read in that format: its payload is
    live too. Offloaded keys have one format, that of the serializers; bakdata's keys are left alone.

    Args:
        source: rows of Spark's Kafka source, read with `includeHeaders`.
        reference_format: how the topics refer to payloads, as the worker's `reference.format`.
        root: the beginning of all paths in the store. A value or key that begins so, and is not marked as a reference,
            is a reference with an error: it may be one of another format than `reference_format`.
        signing: verifies the references of the project's own format; None for no verification.

    These are references with an error, too: a wrapper of more than 1 MiB that may hold a reference; the first chunk of
    a message that may be such a wrapper; a dead letter whose whole record is in the store or in chunks.

    Raises:
        ValueError: a column is missing.
    """
    parse = F.udf(
        lambda key, value, headers: [
            _judged(each, signing) for each in _parsed(key, value, headers, reference_format, root)
        ],
        _PARSED,
        useArrow=False,
    )
    found = (
        _slim(source, root)
        .where(_may_refer(reference_format, root))
        .withColumn("found", F.explode(parse(F.substring("key", 1, _CUT_BYTES), "value", "headers")))
    )
    return conform(found.select(*REFERENCE.fieldNames()[:5], "found.*"), REFERENCE)


def newest(
    source: DataFrame,
    since: datetime | None = None,
    root: str | None = None,
    late: Mapping[tuple[str, int], int] | None = None,
) -> DataFrame:
    """The records that compaction keeps: the last record of each key, and records without a key.

    Columns are those that `references` needs; it does not need the ends of values, so they are cut off.

    Args:
        source: rows of Spark's Kafka source, read with `includeHeaders`; whole partitions.
        since: records that were overwritten at this time or later (with time zone) count too: a reader that lags a
            little still reads them.
        root: the same as for `references`.
        late: by topic and partition, the offset of the first record with the timestamp `since` or a later one. A record
            at this offset or behind it has overwritten others since then, whatever its timestamp.

    Raises:
        ValueError: a column is missing.
    """
    # Nothing overwrites a record without a key.
    apart = F.when(F.col("key").isNull(), F.col("offset"))
    window = Window.partitionBy("topic", "partition", "key", apart).orderBy("offset")
    next_at, next_time = F.col("_wideload_at"), F.col("_wideload_time")
    counts = next_at.isNull()
    if since is not None:
        # A timestamp that Spark cannot hold is null, and may be of any time.
        recent = next_time >= F.timestamp_micros(F.lit(round(since.timestamp() * 1_000_000)))
        counts |= F.coalesce(recent, F.lit(True))
    rows = _slim(source, root).withColumns(
        {"_wideload_at": F.lead("offset").over(window), "_wideload_time": F.lead("timestamp").over(window)}
    )
    if late:
        offsets = F.create_map(*chain.from_iterable((F.lit(f"{t}/{p}"), F.lit(at)) for (t, p), at in late.items()))
        first = F.try_element_at(offsets, F.concat_ws("/", "topic", F.col("partition").cast("string")))
        counts |= F.coalesce(next_at >= first, F.lit(False))
    return rows.where(counts).drop("_wideload_at", "_wideload_time")


def _slim(source: DataFrame, root: str | None) -> DataFrame:
    """The needed columns and the needed beginnings of values; a wrapper that may hold a reference stays whole."""
    require_columns(source, _NEEDED)
    # Headers of other names stay, without their values, as it matters whether ours stand side by side.
    headers = F.transform(
        "headers",
        lambda header: F.struct(
            header["key"].alias("key"),
            F.when(header["key"] == _DATA_KEY, F.substring(header["value"], 1, _DATA_KEY_BYTES))
            .when(header["key"].isin(*_HEADERS), F.substring(header["value"], 1, _HEADER_BYTES))
            .alias("value"),
        ),
    )
    within = F.octet_length("value") <= _WHOLE_BYTES
    may_hold = _may_hold(root)
    value = (
        F.when(may_hold & within, F.col("value"))
        .when(may_hold, F.lit(_TOO_LONG))
        .otherwise(F.substring("value", 1, _CUT_BYTES))
    )
    changed = {"value": value, "headers": headers}
    return source.select(*(changed.get(name, F.col(name)).alias(name) for name in _NEEDED))


def _may_hold(root: str | None) -> Column:
    """Whether the value may be a wrapper that holds a reference, or the whole record of a dead letter."""
    letter = F.exists("headers", lambda each: (each["key"] == MARK) & each["value"].isin(*map(F.lit, RECORD_FORMS)))
    marked = F.lit(False)
    for mark in (*_MARKS, *(() if root is None else (root.encode(),))):
        marked |= F.contains("value", F.lit(mark))
    wrapper = (F.substring("value", 1, 1) == F.lit(_MAGIC)) & marked
    return F.coalesce(wrapper, F.lit(False)) | F.coalesce(letter, F.lit(False))


def _may_refer(reference_format: FormatName, root: str | None) -> Column:
    """False only if `_parsed` would find nothing."""
    value, key = F.col("value").isNotNull(), F.col("key").isNotNull()
    may = (value & _has(VALUE.flag, BAKDATA_FLAG)) | (key & _has(KEY.flag))
    if reference_format == "bakdata-flag":
        may |= value & (F.substring("value", 1, 1) != F.lit(b"\x00"))
    may |= value & (_may_hold(root) | (F.col("value") == F.lit(_TOO_LONG)))
    may |= value & _has(_CHUNK[0]) & (F.substring("value", 1, 1) == F.lit(_MAGIC))
    for name in ("value", "key") if root is not None else ():
        assert root is not None
        for start in (root.encode(), _BACKED + root.encode()):
            may |= F.coalesce(F.substring(name, 1, len(start)) == F.lit(start), F.lit(False))
    return may


def _has(*names: str) -> Column:
    return F.coalesce(F.exists("headers", lambda header: header["key"].isin(*names)), F.lit(False))


# --- on executors -----------------------------------------------------------------------------------------------------


def _parsed(
    key: bytearray | None,
    value: bytearray | None,
    headers: Sequence[Row] | None,
    reference_format: FormatName,
    root: str | None,
) -> Iterator[_Found]:
    """For each reference of a record: the fields of `REFERENCE` from `which` on, and the reference itself."""
    listed: list[Header] = [
        (header["key"], None if header["value"] is None else bytes(header["value"])) for header in headers or ()
    ]
    record = Record(None if key is None else bytes(key), None if value is None else bytes(value), listed)
    for _ in range(_DEEPEST):
        try:
            held = _held(record)
        except MalformedError as exc:
            yield _wrong("value", str(exc))
            return
        if held is None:
            break
        record = held
    else:
        yield _wrong("value", f"is a wrapper in a wrapper, more than {_DEEPEST} times")
        return
    yield from _parsed_key(record, root)
    yield from _parsed_value(record, reference_format, root)


def _held(record: Record) -> Record | None:
    """The record in a dead letter or in a wrapper; None if the record is neither.

    Raises:
        MalformedError: the dead letter cannot be read.
    """
    # A chunk alone is neither; `_begins_wrapped_reference` looks at the first chunk of a message.
    if record.value in (None, _TOO_LONG) or is_chunk(record.headers):
        return None
    assert record.value is not None
    if has_record(record.headers) and not is_reference(record.headers):
        return record_format.parse(record.value)
    return _UNWRAP.unwrap(record) if MessageWrapper.check(record.value) else None


def _parsed_key(record: Record, root: str | None) -> Iterator[_Found]:
    if record.key is None:
        return
    if is_reference(record.headers, KEY):
        try:
            yield _fields("key", "wideload", Reference.read(record.key, record.headers, KEY)[0])
        except MalformedReferenceError as exc:
            yield _wrong("key", str(exc))
    elif _leads(record.key, root):
        yield _wrong("key", f"{BEGINS}{_folder(record.key)}/ and is not marked as a reference")


def _parsed_value(record: Record, reference_format: FormatName, root: str | None) -> Iterator[_Found]:
    if record.value is None:
        return
    if record.value == _TOO_LONG:
        what = "a dead letter" if has_record(record.headers) else "a wrapper"
        yield _wrong("value", f"is {what} of more than {_WHOLE_BYTES:,} bytes that may hold a reference")
        return
    if has_record(record.headers) or has_backed_value(record.headers):
        yield _wrong("value", "is a dead letter whose record is elsewhere, and may be a reference: replay or drop it")
    if _begins_wrapped_reference(record):
        yield _wrong("value", "is a chunk of a wrapper that may hold a reference: assemble it")
        return
    # Headers mark a reference in every topic; a flag before the value counts only if the format has it.
    names: list[FormatName] = [reference_format]
    names += [name for name in ("wideload", "bakdata-headers") if name != reference_format]
    errors = []
    for name in names:
        form = FORMATS[name]
        if form.refers(record):
            try:
                fields = _fields("value", name, form.read_reference(record)[0])
            except MalformedReferenceError as exc:
                errors.append(str(exc))
                continue
            yield fields if not is_chunk(record.headers) else _wrong("value", "is a chunk of a reference: assemble it")
            return
    if errors:
        yield _wrong("value", errors[0])
    elif _leads(record.value, root) and not FORMATS[reference_format].wants(record):
        yield _wrong(
            "value", f"{BEGINS}{_folder(record.value)}/ and is not marked as a reference: not {reference_format}?"
        )


def _fields(which: str, name: FormatName, reference: Reference) -> _Found:
    # No payload has a size that is too large for Spark's numbers.
    size = None if reference.size is None else min(reference.size, _LARGEST)
    cipher = None if reference.encryption is None else CIPHER
    return (which, name, reference.path, size, reference.checksum, reference.codec, cipher, None), reference


def _wrong(which: str, error: str) -> _Found:
    return (which, None, None, None, None, None, None, error), None


def _judged(found: _Found, signing: Signing | None) -> _Parsed:
    parsed, reference = found
    if signing is not None and reference is not None and parsed[1] == "wideload":
        try:
            signing.verify(reference, KEY if parsed[0] == "key" else VALUE)
        except SignatureError as exc:
            return *parsed[:-1], str(exc)
    return parsed


def _begins_wrapped_reference(record: Record) -> bool:
    """Whether it is the first chunk of a message that may be a wrapper with a value as short as a path."""
    if record.value is None or not record.value.startswith(_MAGIC) or not is_chunk(record.headers):
        return False
    try:
        chunk = Chunk.parse(record)[0]
    except MalformedChunkError:
        return False
    rest = chunk.size - _HEAD_BYTES - int.from_bytes(record.value[1:5], signed=True)
    return chunk.id == 0 and 0 <= rest <= _CUT_BYTES


def _folder(path: bytes) -> str:
    return path.removeprefix(_BACKED).rpartition(b"/")[0].decode(errors="replace")


def _leads(data: bytes, root: str | None) -> bool:
    """Whether it is the path of a payload, with or without bakdata's flag.

    Payloads of bakdata's own writers are one folder deeper; nothing here lists or deletes them.
    """
    data = data.removeprefix(_BACKED)
    return root is not None and data.startswith(root.encode()) and data.count(b"/") == root.encode().count(b"/") + 1
