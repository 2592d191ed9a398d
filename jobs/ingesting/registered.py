"""Values in the framing of a schema registry, made plain: a zero byte, the id of their schema in 4 bytes, the content.

Each value is read with the schema of its id, and written again with the one schema of the table: Avro as Avro, JSON
as it is, Protobuf as JSON. Spark's own functions then take it apart as any other value. This runs in Python, on
executors, and asks the registry once for each id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jobs.driver.failures import JobFailedError
from jobs.driver.jvm import map_in_arrow
from jobs.driver.session import share_code
from jobs.ingesting.codec import BadValueError, Codec
from jobs.ingesting.registry import Registered, Registry, RegistrySettings, SchemaType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PLAIN", "REASON", "TABLE_FORMATS", "Reader", "RegisteredForm", "made_plain"]

PLAIN = "_wideload_plain"
"""The content of a value, without framing, in the schema of the table."""

REASON = "_wideload_reason"
"""Why there is none, as the end of a sentence that begins with the value; else null."""

TABLE_FORMATS: Mapping[str, SchemaType] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}

_FRAME = struct.Struct(">bI")
_MOST_UNKNOWN = 1000
_MOST_KEPT = 256
_TOGETHER = 2**22


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
    from jobs.records.arrow import bound_input  # needs PyArrow

    share_code(rows.sparkSession)
    bound_input(rows)
    more = [StructField(PLAIN, BinaryType()), StructField(REASON, StringType())]
    return map_in_arrow(rows, _Plain(form), StructType([*rows.schema.fields, *more]))


# --- on executors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plain:
    """One task: batches of rows in, batches of rows out."""

    form: RegisteredForm

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(self.form, Registry(self.form.registry).by_id)
        for batch in batches:
            # A large value is a batch of its own: written as JSON, two of them may be more than a batch can hold.
            for part in _parts(batch):
                yield _with(part, reader)


# The schema of an id never changes, and a Python process does many tasks.
_kept: dict[tuple[str, str, str, str | None, int], Codec] = {}


class Reader:
    """Reads values, and keeps what it knows of schemas.

    Args:
        form: what values become.
        by_id: gives the schema of an id, or None.
    """

    def __init__(self, form: RegisteredForm, by_id: Callable[[int], Registered | None]) -> None:
        self._form = form
        self._by_id = by_id
        self._codecs: dict[int, Codec | BadValueError] = {}
        self._unknown = 0

    def plain(self, value: bytes) -> bytes:
        """The content of a value, in the schema of the table.

        Raises:
            BadValueError: the value is damaged, or has the id of a schema that is unknown or does not fit.
            ConfigurationError: the registry refuses the credentials.
            JobFailedError: the registry does not answer, or more than 1,000 different ids were unknown.
        """
        if len(value) < _FRAME.size or value[0] != 0:
            raise BadValueError("does not begin with the zero byte and the schema's id of a schema registry")
        number = _FRAME.unpack_from(value)[1]
        codec = self._codecs.get(number)
        if codec is None:
            codec = self._codecs[number] = self._codec(number)
        if isinstance(codec, BadValueError):
            raise codec
        try:
            return codec.plain(value[_FRAME.size :])
        except BadValueError as exc:
            raise BadValueError(f"with schema id {number}, {exc}") from exc

    def _codec(self, number: int) -> Codec | BadValueError:
        form = self._form
        key = (form.registry.url, form.format, form.table.text, form.message, number)
        if key in _kept:
            return _kept[key]
        written = self._by_id(number)
        if written is None:
            self._unknown += 1
            if self._unknown > _MOST_UNKNOWN:
                raise JobFailedError(
                    f"the values of one task have more than {_MOST_UNKNOWN:,} different schema ids that the registry "
                    "does not have; they are most likely not in its framing"
                )
            return BadValueError(f"has schema id {number}, which the registry does not have")
        try:
            found = self._form.codec(written)
        except BadValueError as exc:
            return BadValueError(f"has schema id {number}, {exc}")
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = found
        return found


def _with(batch: pa.RecordBatch, reader: Reader) -> pa.RecordBatch:
    import pyarrow as pa

    plain: list[bytes | None] = []
    reasons: list[str | None] = []
    for value in batch.column("value"):
        content, reason = None, None
        if value.is_valid:
            try:
                content = reader.plain(value.as_py())
            except BadValueError as exc:
                reason = str(exc)
        plain.append(content)
        reasons.append(reason)
    columns = [*batch.columns, pa.array(plain, pa.binary()), pa.array(reasons, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, PLAIN, REASON])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    start, held = 0, 0
    for row, length in enumerate(pc.binary_length(batch.column("value")).to_pylist()):
        if held and held + (length or 0) > _TOGETHER:
            yield batch.slice(start, row - start)
            start, held = row, 0
        held += length or 0
    yield batch.slice(start)
