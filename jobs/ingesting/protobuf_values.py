"""Protobuf with a schema of a registry, as JSON that Spark takes apart.

A value is read with the table's schema: Protobuf tells fields by number, so that older and newer values fit, and
renamed fields too. The schema of its id says which message it is: the framing has its place in that schema's file.
"""

from __future__ import annotations

import base64
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobs.ingesting.codec import MOST_FIELDS, BadValueError, unusable
from jobs.ingesting.registry import Registered
from transforms.errors import ConfigurationError

__all__ = ["ProtobufCodec", "columns", "described"]

_FILE = "value.proto"
_MOST_DEPTH = 64
_MOST_INDEXES = 32
_FEWEST_FIELDS, _FIELDS_OF_A_BYTE = 1_000_000, 4
_MOST_NAME_BYTES, _MOST_PART_BYTES = 1024, 255
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Mapping[int, DataType] = {
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_FIXED64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_UINT64: DecimalType(20, 0),
}


class ProtobufCodec:
    """Reads values of `written` as a message of `table`: the one with this full name, or the first.

    Raises:
        BadValueError: one of the schemas is wrong.
    """

    @unusable("Protobuf schema")
    def __init__(self, written: Registered, table: Registered, message: str | None) -> None:
        self._names = _messages(_compiled(written))
        self._table = described(table, message)
        self._class = message_factory.GetMessageClass(self._table)

    def plain(self, content: bytes) -> bytes:
        """See `codec.Codec`."""
        indexes, start = _indexes(content)
        name = self._names.get(indexes)
        if name is None:
            raise BadValueError(f"has no message at {list(indexes)} of it")
        if name != self._table.full_name:
            raise BadValueError(f"is a message {name}, and the table has {self._table.full_name}")
        message = self._class()
        try:
            message.ParseFromString(content[start:])
        except DecodeError as exc:
            raise BadValueError(f"is no message {name}") from exc
        # Two bytes are a message, and each has all its fields as JSON.
        most = _FEWEST_FIELDS + _FIELDS_OF_A_BYTE * len(content)
        try:
            found = _Json(most).of(message)
        except UnicodeDecodeError as exc:  # proto2 takes any bytes
            raise BadValueError("has a string that is not UTF-8") from exc
        return json.dumps(found, ensure_ascii=False).encode()


def columns(written: Registered, where: str, message: str | None = None) -> StructType:
    """The type of a table's column for a message of this schema.

    Args:
        written: the schema.
        where: its name, for an error.
        message: the full name of the message; None for the first.

    Raises:
        ConfigurationError: the schema cannot be used, or a message contains itself.
    """
    try:
        return _Types().of(described(written, message), "", 0)
    except BadValueError as exc:
        raise ConfigurationError(
            "--schema-registry-url", f"{where}: {exc}; give the columns with --value-schema"
        ) from exc


def _compiled(schema: Registered) -> descriptor_pb2.FileDescriptorSet:
    """The schema and all files that it imports, by Google's own compiler.

    Confluent's clients register a schema as its text, or as a `FileDescriptorProto` in base64.
    """
    import grpc_tools
    from grpc_tools import protoc

    own = Path(str(grpc_tools.__file__)).parent / "_proto"
    known = descriptor_pb2.FileDescriptorSet()
    texts = {**schema.references, _FILE: schema.text}
    _check_names(texts)
    with tempfile.TemporaryDirectory(prefix="wideload-proto-") as folder:
        root, out, given = Path(folder, "in"), Path(folder, "out"), Path(folder, "given")
        root.mkdir()
        for name, text in texts.items():
            serialized = _serialized(text)
            if serialized is not None:
                serialized.name = name
                known.file.append(serialized)
                continue
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        given.write_bytes(known.SerializeToString())
        arguments = ["protoc", f"-I{root}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}"]
        arguments += [f"--descriptor_set_in={given}"] if known.file else []
        with _silent():
            status = protoc.main([*arguments, _FILE])
        if status != 0:
            raise BadValueError("whose Protobuf schema does not compile")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _check_names(names: Collection[str]) -> None:
    """Makes sure that each is the name of a file, and none the name of a folder of another.

    What an operating system says to other names would be an error of this machine, and end the job.
    """
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for name in names:
        parts = name.split("/")
        if (
            name in folders
            or any(part in ("", ".", "..") or len(part.encode()) > _MOST_PART_BYTES for part in parts)
            or len(name.encode()) > _MOST_NAME_BYTES
            or "\0" in name
        ):
            raise BadValueError(
                "whose Protobuf schema refers to a file outside its own, or to a name that no file can have"
            )


def _serialized(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


@contextmanager
def _silent() -> Iterator[None]:
    """The compiler writes to the process's own stderr; what it says does not tell a user more."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _messages(files: descriptor_pb2.FileDescriptorSet) -> dict[tuple[int, ...], str]:
    """The full names of the messages in the schema itself, by their place: `(1, 0)` is the first inside the second."""
    own = next(each for each in files.file if each.name == _FILE)
    found: dict[tuple[int, ...], str] = {}

    def add(messages: Any, place: tuple[int, ...], space: str) -> None:
        for number, each in enumerate(messages):
            name = f"{space}.{each.name}" if space else each.name
            found[*place, number] = name
            add(each.nested_type, (*place, number), name)

    add(own.message_type, (), own.package)
    return found


@unusable("Protobuf schema")
def described(schema: Registered, message: str | None) -> Descriptor:
    """A message of a schema, by its full name; None for the first.

    Raises:
        BadValueError: the schema does not compile, or has no such message.
    """
    files = _compiled(schema)
    names = _messages(files)
    name = names.get((0,)) if message is None else message
    if name not in names.values():
        raise BadValueError(f"whose Protobuf schema has no message {message or ''}".rstrip())
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:  # in the order of their imports
        pool.Add(each)
    return pool.FindMessageTypeByName(str(name))


def _indexes(content: bytes) -> tuple[tuple[int, ...], int]:
    """The place of the message in its schema, and where its bytes begin: zigzag numbers, of which the first counts."""
    count, at = _zigzag(content, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise BadValueError("has no message indexes behind it")
    found = []
    for _ in range(count):
        index, at = _zigzag(content, at)
        found.append(index)
    return tuple(found), at


def _zigzag(content: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(5):
        if at + place >= len(content):
            break
        byte = content[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004  # the last byte of a number
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise BadValueError("has no message indexes behind it")


class _Types:
    """Finds the types of messages, of which a few that share others can have billions of fields."""

    def __init__(self) -> None:
        self._found = 0

    def of(self, kind: Descriptor, path: str, depth: int) -> StructType:
        """The type of a message, which is at `path` and so many messages deep."""
        if depth > _MOST_DEPTH:
            raise BadValueError(f"{path.lstrip('.')} goes on for more than {_MOST_DEPTH} levels, or contains itself")
        self._found += len(kind.fields)
        if self._found > MOST_FIELDS:
            raise BadValueError(f"has more than {MOST_FIELDS:,} fields")
        return StructType(
            [StructField(each.name, self._type(each, f"{path}.{each.name}", depth)) for each in kind.fields]
        )

    def _type(self, field: FieldDescriptor, path: str, depth: int) -> DataType:
        if _is_map(field):
            value = field.message_type.fields_by_name["value"]
            return MapType(StringType(), self._type(value, f"{path}{{}}", depth + 1))
        found = _TYPES.get(field.type)
        if found is None:
            inner = field.message_type
            found = TimestampType() if inner.full_name == _TIMESTAMP else self.of(inner, path, depth + 1)
        return ArrayType(found) if field.is_repeated else found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


class _Json:
    """Makes JSON of messages that have no more than so many fields together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def of(self, message: Message) -> dict[str, Any]:
        """The fields; one that is not set is left out if Protobuf tells that apart from its default."""
        self._left -= len(message.DESCRIPTOR.fields)
        if self._left < 0:
            raise BadValueError("has more fields than a table can hold for so few bytes")
        found: dict[str, Any] = {}
        for field in message.DESCRIPTOR.fields:
            value = getattr(message, field.name)
            if _is_map(field):
                kind = field.message_type.fields_by_name["value"]
                found[field.name] = {_key(key): self._value(value[key], kind) for key in value}
            elif field.is_repeated:
                found[field.name] = [self._value(each, field) for each in value]
            elif not field.has_presence or message.HasField(field.name):
                found[field.name] = self._value(value, field)
        return found

    def _value(self, value: Any, field: FieldDescriptor) -> Any:
        if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
            return _time(value) if field.message_type.full_name == _TIMESTAMP else self.of(value)
        if field.type == FieldDescriptor.TYPE_ENUM:
            known = field.enum_type.values_by_number.get(value)
            return known.name if known is not None else str(value)
        if isinstance(value, bytes):
            # proto2 takes a string that is no UTF-8, and then gives its bytes.
            return value.decode() if field.type == FieldDescriptor.TYPE_STRING else base64.b64encode(value).decode()
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _time(value: Any) -> str:
    try:
        at = _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError as exc:
        raise BadValueError("has a timestamp outside the years 1 to 9999") from exc
    return at.isoformat(timespec="microseconds")
