"""Values in the framing of a schema registry, made plain: which schema they have stands before them, or in a header.

Before the content stand a zero byte and the schema's id in 4 bytes. Newer serializers of Confluent write a header
`__value_schema_id` instead, and leave the value alone: the byte 1 and the schema's GUID in 16 bytes, or as before the
value (`SchemaId` of confluent-kafka 2.12). For Protobuf the message indexes follow in either place.

Each value is read with the schema of its id, and written again with the one schema of the table: Avro as Avro, JSON as
it is, Protobuf as JSON. Spark's own functions then take it apart as any other value. This runs in Python, on executors,
and asks the registry once for each id.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jobs.driver.session import share_code
from jobs.ingesting.codec import BadValueError, Codec
from jobs.ingesting.registry import Registered, Registry, RegistrySettings, SchemaId, SchemaType
from jobs.ingesting.time_limit import TimeIsUpError, within

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HEADER", "PLAIN", "REASON", "TABLE_FORMATS", "Reader", "RegisteredForm", "made_plain"]

PLAIN = "_wideload_plain"
"""The content of a value, without framing, in the schema of the table."""

REASON = "_wideload_reason"
"""Why there is none, as the end of a sentence that begins with the value; else null."""

TABLE_FORMATS: Mapping[str, SchemaType] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}

HEADER = "__value_schema_id"
"""The header that has a value's schema, where the value itself does not."""

_ID, _GUID = 0, 1  # the first byte of the framing
_ID_BYTES, _GUID_BYTES = 4, 16
_MOST_ID = 2**31 - 1
_MOST_KEPT = 256
_MOST_KNOWN = 10_000
_MOST_BYTES = 2**30
_TOGETHER = 2**22
_SCHEMA_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RegisteredForm:
    """What values in a registry's framing become; goes to executors.

    Attributes:
        registry: how to reach the registry.
        format: of the values, as `--value-format`.
        table: the schema of the table as the format takes it; see the modules of the formats.
        message: of Protobuf, the full name of the table's message; None for the first of the schema.
    """

    registry: RegistrySettings
    format: str
    table: Registered = field(repr=False)
    message: str | None = None

    def codec(self, written: Registered) -> Codec:
        """The reader for one schema of the registry.

        Raises:
            BadValueError: values of that schema cannot become values of the table.
        """
        if written.kind != TABLE_FORMATS[self.format]:
            raise BadValueError(f"whose schema is of the type {written.kind}, not {TABLE_FORMATS[self.format]}")
        if self.format == "avro":
            from jobs.ingesting.avro_values import AvroCodec

            return AvroCodec(written, self.table)
        if self.format == "json":
            from jobs.ingesting.json_values import JsonCodec

            return JsonCodec(written)
        from jobs.ingesting.protobuf_values import ProtobufCodec

        return ProtobufCodec(written, self.table, self.message)


def made_plain(rows: DataFrame, form: RegisteredForm) -> DataFrame:
    """`rows` with the columns `PLAIN` and `REASON`; one of the two is null, and for a tombstone both."""
    from jobs.records.arrow import mapped  # needs PyArrow

    share_code(rows.sparkSession)
    more = [StructField(PLAIN, BinaryType()), StructField(REASON, StringType())]
    return mapped(rows, _Plain(form), StructType([*rows.schema.fields, *more]))


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plain:
    """One task: batches of rows in, batches of rows out."""

    form: RegisteredForm

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(self.form, Registry(self.form.registry).schema)
        for batch in batches:
            yield from _read(batch, reader)


# The schema of an id never changes, and a Python process does many tasks.
_kept: dict[tuple[str, str, str, str | None, SchemaId], Codec] = {}


class Reader:
    """Reads values, and keeps what it knows of schemas.

    Args:
        form: what values become.
        schema: gives the schema of an id or a GUID, or None.
    """

    def __init__(self, form: RegisteredForm, schema: Callable[[SchemaId], Registered | None]) -> None:
        self._form = form
        self._schema = schema
        self._codecs: dict[SchemaId, Codec | str] = {}  # or what is wrong with the schema

    def plain(self, value: bytes, header: bytes | None = None) -> bytes:
        """The content of a value, in the schema of the table.

        Args:
            value: of the record.
            header: the value of its last header `HEADER`; None for none, and then the framing is in `value`.

        Raises:
            BadValueError: the value is damaged, or has the id of a schema that is unknown or does not fit.
            ConfigurationError: the registry refuses the credentials.
            JobFailedError: the registry does not answer.
        """
        if header is None:
            found = _framing(value, (_ID,))
            if found is None:
                raise BadValueError("does not begin with the zero byte and the schema's id of a schema registry")
            which, content = found
        else:
            found = _framing(header, (_ID, _GUID))
            if found is None or (found[1] and self._form.format != "protobuf"):
                raise BadValueError(
                    f"has a header {HEADER} of {len(header):,} bytes, which is no id of a schema registry"
                )
            which, content = found[0], found[1] + value
        codec = self._codecs.get(which)
        if codec is None:
            if len(self._codecs) >= _MOST_KNOWN:  # values may name any number of ids
                self._codecs.clear()
            codec = self._codecs[which] = self._codec(which)
        if isinstance(codec, str):
            raise BadValueError(f"has {_named(which)}, {codec}")
        try:
            plain = codec.plain(content)
        except BadValueError as exc:
            raise BadValueError(f"with {_named(which)}, {exc}") from exc
        except Exception as exc:  # a value of anyone does to a library whatever it can
            raise BadValueError(f"with {_named(which)}, cannot be read: {type(exc).__name__}") from exc
        if len(plain) > _MOST_BYTES:
            raise BadValueError(f"with {_named(which)}, is more than {_MOST_BYTES:,} bytes in the table's form")
        return plain

    def _codec(self, which: SchemaId) -> Codec | str:
        form = self._form
        key = (form.registry.url, form.format, form.table.text, form.message, which)
        if key in _kept:
            return _kept[key]
        try:
            # Ids are Java's integers, and what a registry answers to others differs.
            written = None if isinstance(which, int) and which > _MOST_ID else self._schema(which)
            if written is None:
                why = "" if isinstance(which, int) else f" (of header {HEADER}; not each registry knows GUIDs)"
                return f"which the registry does not have{why}"
            found = within(_SCHEMA_SECONDS, lambda: form.codec(written))
        except BadValueError as exc:
            return str(exc)
        except TimeIsUpError:
            return f"whose schema takes more than {_SCHEMA_SECONDS:.0f} seconds of CPU"
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = found
        return found


def _framing(text: bytes, allowed: Container[int]) -> tuple[SchemaId, bytes] | None:
    """The schema that a framing names, and what stands behind it; None if it is no framing."""
    if not text or text[0] not in allowed:
        return None
    end = 1 + (_ID_BYTES if text[0] == _ID else _GUID_BYTES)
    if len(text) < end:
        return None
    which = int.from_bytes(text[1:end], "big") if text[0] == _ID else UUID(bytes=text[1:end])
    return which, text[end:]


def _named(which: SchemaId) -> str:
    return f"schema id {which}" if isinstance(which, int) else f"schema GUID {which}"


def _read(batch: pa.RecordBatch, reader: Reader) -> Iterator[pa.RecordBatch]:
    """The rows with what becomes of their values, in batches of some MB or one larger value.

    Written as JSON, a few values may be more than a batch can hold.
    """
    headers, start, held = batch.column("headers"), 0, 0
    plain: list[bytes | None] = []
    reasons: list[str | None] = []
    for row, value in enumerate(batch.column("value")):
        content, reason, length = None, None, 0
        if value.is_valid:
            length = len(value.as_buffer())
            try:
                content = reader.plain(value.as_py(), _header(headers[row].as_py()))
            except BadValueError as exc:
                reason = str(exc)
        size = length + len(content or b"")
        if held and held + size > _TOGETHER:
            yield _with(batch.slice(start, row - start), plain, reasons)
            start, held, plain, reasons = row, 0, [], []
        plain.append(content)
        reasons.append(reason)
        held += size
    yield _with(batch.slice(start), plain, reasons)


def _with(batch: pa.RecordBatch, plain: Sequence[bytes | None], reasons: Sequence[str | None]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [*batch.columns, pa.array(plain, pa.binary()), pa.array(reasons, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, PLAIN, REASON])


def _header(headers: Sequence[Mapping[str, Any]] | None) -> bytes | None:
    """The last header `HEADER`, as Confluent's Java reads it. A null one is as none."""
    found = (each["value"] for each in reversed(headers or ()) if each["key"] == HEADER)
    return next(found, None)
