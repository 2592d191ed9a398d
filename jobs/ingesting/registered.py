"""Values in the framing of a schema registry, made plain: which schema they have stands before them, or in a header.

Before the content stand a zero byte and the schema's id in 4 bytes. Newer serializers of Confluent write a header
`__value_schema_id` instead, and leave the value alone: the byte 1 and the schema's GUID in 16 bytes, or as before the
value (`SchemaId` of confluent-kafka 2.12). For Protobuf the message indexes follow in either place.

Each value is read with the schema of its id, and written again with the one schema of the table: Avro as Avro, JSON as
it is, Protobuf as JSON. Spark's own functions then take it apart as any other value. This runs in Python, on executors,
and asks the registry once for each id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jobs.ingesting.registry import BadValueError, Reader, Registered, Registry, RegistrySettings, SchemaId
from transforms.errors import WideloadError
from transforms.text import printable

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = "_wideload_plain"
"""The content of a value, without framing, in the schema of the table."""

REASON = "_wideload_reason"
"""Why there is none, as the end of a sentence that begins with the value; else null."""

TABLE_FORMATS = MappingProxyType({"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"})
"""By value format, what a registry calls its schemas. The module FORMAT_values reads each."""

_HEADER = "__value_schema_id"
_MOST_ID = 2**31 - 1
_MOST_KEPT = 10_000
_MOST_BYTES = 2**30
_TOGETHER = 2**22

# Schemas never change, and a Python process does many tasks.
_kept: dict[tuple[object, ...], Reader] = {}


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

    def columns(self) -> str:
        """The columns of the table's schema, as `--value-schema`; raises `BadValueError` if no table can have them."""
        found: str = self._of("columns", self.table)
        return found

    def reader(self, written: Registered) -> Reader:
        """What reads values of a schema; raises `BadValueError` if they cannot become values of the table."""
        found: Reader = self._of("reader", written, self.table)
        return found

    def _of(self, what: str, schema: Registered, *more: Registered) -> Any:
        """Whatever a schema, which may be anyone's, does to a library makes it a bad one.

        A package that is missing, and an error of the operating system, are not the schema's fault.
        """
        kind = TABLE_FORMATS[self.format]
        if schema.kind != kind:
            raise BadValueError(f"whose schema is of the type {printable(schema.kind, 40)}, not {kind}")
        work = getattr(import_module(f"{__package__}.{self.format}_values"), what)
        try:
            return work(schema, *more, self.message)
        except (WideloadError, ImportError, OSError):
            raise
        except Exception as exc:
            raise BadValueError(f"whose {kind} schema cannot be used: {type(exc).__name__}") from exc


def made_plain(rows: DataFrame, form: RegisteredForm) -> DataFrame:
    """`rows` with the columns `PLAIN` and `REASON`; one of the two is null, and for a tombstone both."""
    from jobs.records.arrow import mapped  # needs PyArrow

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = Values(form, Registry(form.registry).schema)
        for batch in batches:
            yield from with_plain(batch, values)

    more = [StructField(PLAIN, BinaryType()), StructField(REASON, StringType())]
    return mapped(rows, task, StructType([*rows.schema.fields, *more]))


# --- on executors -----------------------------------------------------------------------------------------------------


class Values:
    """Makes the values of one task plain.

    Args:
        form: what they become.
        schema: gives the schema of an id or a GUID, or None.
    """

    def __init__(self, form: RegisteredForm, schema: Callable[[SchemaId], Registered | None]) -> None:
        self._form = form
        self._schema = schema
        self._bad: dict[SchemaId, str] = {}  # an id that is missing now may be there for the next task

    def plain(self, value: bytes, header: bytes | None = None) -> bytes:
        """The content of a value, in the schema of the table.

        Args:
            value: of the record.
            header: the value of its header `__value_schema_id`; None for none: then `value` has the framing.

        Raises:
            BadValueError: the value is damaged, or has the id of a schema that is unknown or does not fit.
            ConfigurationError: the registry refuses the credentials.
            JobFailedError: the registry does not answer.
        """
        which, content = _framing(value, header, indexes=self._form.format == "protobuf")
        name = f"schema {'id' if isinstance(which, int) else 'GUID'} {which}"
        key = (self._form.registry.url, self._form.format, self._form.table.text, self._form.message, which)
        reader = _kept.get(key)
        try:
            if reader is None:
                reader = self._reader(which)
                _keep(_kept, key, reader)
        except BadValueError as exc:
            _keep(self._bad, which, str(exc))
            raise BadValueError(f"has {name}, {exc}") from exc
        try:
            plain = reader(content)
        except Exception as exc:
            reason = exc if isinstance(exc, BadValueError) else f"cannot be read: {type(exc).__name__}"
            raise BadValueError(f"with {name}, {reason}") from exc
        if len(plain) > _MOST_BYTES:
            raise BadValueError(f"with {name}, is more than {_MOST_BYTES:,} bytes in the table's form")
        return plain

    def _reader(self, which: SchemaId) -> Reader:
        if which in self._bad:
            raise BadValueError(self._bad[which])
        # Ids are Java's integers, and what a registry answers to others differs.
        written = None if isinstance(which, int) and which > _MOST_ID else self._schema(which)
        if written is None:
            why = "" if isinstance(which, int) else f" (of header {_HEADER}; not each registry knows GUIDs)"
            raise BadValueError(f"which the registry does not have{why}")
        return self._form.reader(written)


def _keep(kept: dict[Any, Any], key: object, found: object) -> None:
    if len(kept) >= _MOST_KEPT:  # values may name any number of ids
        kept.clear()
    kept[key] = found


def _framing(value: bytes, header: bytes | None, *, indexes: bool) -> tuple[SchemaId, bytes]:
    """The schema that a framing names, and the content, before which the header may have Protobuf's indexes."""
    text = value if header is None else header
    if header is not None and len(text) not in (5, 17) and not indexes:
        text = b""
    if len(text) >= 5 and text[0] == 0:  # noqa: PLR2004  # lengths as above
        which: SchemaId = int.from_bytes(text[1:5], "big")
        rest = text[5:]
    elif header is not None and len(text) >= 17 and text[0] == 1:  # noqa: PLR2004
        which, rest = UUID(bytes=text[1:17]), text[17:]
    elif header is None:
        raise BadValueError("does not begin with the zero byte and the schema's id of a schema registry")
    else:
        raise BadValueError(f"has a header {_HEADER} of {len(header):,} bytes, which is not an id of a schema registry")
    return which, rest if header is None else rest + value


def with_plain(batch: pa.RecordBatch, values: Values) -> Iterator[pa.RecordBatch]:
    """The rows with `PLAIN` and `REASON`, in batches of some MB: written as JSON, a few values may be gigabytes."""
    import pyarrow as pa

    start, held, names = 0, 0, [*batch.schema.names, PLAIN, REASON]
    found: list[tuple[bytes | None, str | None]] = []
    rows = zip(batch.column("value"), batch.column("headers"), strict=True)
    for row, (value, headers) in enumerate(rows, 1):
        plain = reason = None
        if value.is_valid:
            # As Confluent's Java reads it: the last such header counts, and a null one is as none.
            several = [each["value"] for each in headers.as_py() or () if each["key"] == _HEADER]
            try:
                plain = values.plain(value.as_py(), several[-1] if several else None)
            except BadValueError as exc:
                reason = str(exc)
        found.append((plain, reason))
        held += len(plain or b"")
        if held > _TOGETHER or row == batch.num_rows:
            more = (pa.array([each[at] for each in found], kind) for at, kind in enumerate((pa.binary(), pa.string())))
            yield pa.RecordBatch.from_arrays([*batch.slice(start, row - start).columns, *more], names=names)
            start, held, found = row, 0, []
