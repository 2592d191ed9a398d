"""Protobuf with a schema of a registry, as JSON that Spark parses.

A value is read with the table's schema: Protobuf identifies fields by number, so that older and newer values fit, and
renamed fields too. The schema of its id says which message it is: the framing has its place in that schema's file.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from pyspark.sql import types as T

from jobs.ingesting.registry import MOST_FIELDS, BadValueError, Reader, Registered
from transforms.text import printable

_FILE = "value.proto"
_NAME = re.compile(r"[\w./+-]{1,1000}", re.ASCII)
_MOST_DEPTH = 64
_MOST_INDEX_BYTES = 64
_FEWEST_FIELDS, _FIELDS_OF_A_BYTE = 1_000_000, 4
_TIMESTAMP = "google.protobuf.Timestamp"
_TYPES: Mapping[int, T.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: T.BooleanType(),
    FieldDescriptor.CPPTYPE_DOUBLE: T.DoubleType(),
    FieldDescriptor.CPPTYPE_ENUM: T.StringType(),
    FieldDescriptor.CPPTYPE_FLOAT: T.FloatType(),
    FieldDescriptor.CPPTYPE_INT32: T.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: T.LongType(),
    FieldDescriptor.CPPTYPE_STRING: T.StringType(),
    FieldDescriptor.CPPTYPE_UINT32: T.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: T.DecimalType(20, 0),
}


def reader(written: Registered, table: Registered, message: str | None) -> Reader:
    """What reads values of `written` as a message of `table`: the one with this full name, or the first."""
    theirs, ours = _compiled(written), _described(table, message)
    kind = message_factory.GetMessageClass(ours)

    def read(content: bytes) -> bytes:
        indexes, start = _indexes(content)
        name = _message(theirs, indexes).full_name
        if name != ours.full_name:
            raise BadValueError(f"is a message {name}, and the table has {ours.full_name}")
        try:
            found = kind.FromString(content[start:])
        except DecodeError as exc:
            raise BadValueError(f"is not a message {name}") from exc
        # Two bytes are a message, and each has all its fields as JSON.
        return json.dumps(_json(found, [_FEWEST_FIELDS + _FIELDS_OF_A_BYTE * len(content)])).encode()

    return read


def columns(table: Registered, message: str | None) -> str:
    """The type of a table's column for a message of this schema: the one with this full name, or the first.

    Raises:
        BadValueError: the schema does not compile, has no such message, or one that contains itself.
    """
    left = MOST_FIELDS  # a few messages that share others can have billions of fields

    def struct(kind: Descriptor, path: str, depth: int) -> T.StructType:
        nonlocal left
        if depth > _MOST_DEPTH:
            raise BadValueError(f"whose {path[1:]} has more than {_MOST_DEPTH} levels, or contains itself")
        left -= len(kind.fields)
        if left < 0:
            raise BadValueError(f"which has more than {MOST_FIELDS:,} fields")
        return T.StructType([T.StructField(each.name, of(each, f"{path}.{each.name}", depth)) for each in kind.fields])

    def of(field: FieldDescriptor, path: str, depth: int) -> T.DataType:
        inner = field.message_type
        if _is_map(field):
            return T.MapType(T.StringType(), of(inner.fields_by_name["value"], f"{path}{{}}", depth + 1))
        if inner is not None:
            found: T.DataType = T.TimestampType() if inner.full_name == _TIMESTAMP else struct(inner, path, depth + 1)
        else:
            found = T.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]
        return T.ArrayType(found) if field.is_repeated else found

    return struct(_described(table, message), "", 0).json()


def _compiled(schema: Registered) -> FileDescriptor:
    """The schema, and all files that it imports, by Google's own compiler, which runs in this process.

    A registry has a schema as its text: not each can answer with what the compiler makes of it. Confluent's clients for
    Python and .NET register that themselves, a `FileDescriptorProto` in base64, which some registries keep.
    """
    import grpc_tools
    from grpc_tools import protoc

    serialized = FileDescriptorSet()
    with TemporaryDirectory(prefix="wideload-proto-") as folder:
        root = Path(folder)
        arguments = [f"--descriptor_set_in={root}/given", "--include_imports", f"-o{root}/out"]
        for number, (name, text) in enumerate({**schema.references, _FILE: schema.text}.items()):
            if not _NAME.fullmatch(name):  # another one could name any file of this machine
                raise BadValueError("whose Protobuf schema refers to a name that no file of Protobuf has")
            try:
                found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            except (ValueError, DecodeError):
                (root / str(number)).write_text(text, encoding="utf-8")
                arguments.append(f"-I{name}={root}/{number}")
            else:
                found.name = name
                serialized.file.append(found)
        (root / "given").write_bytes(serialized.SerializeToString())
        arguments.append(f"-I{Path(str(grpc_tools.__file__)).parent}/_proto")
        # The compiler writes to the process's own stderr.
        kept, fault = os.dup(2), os.open(root / "fault", os.O_CREAT | os.O_WRONLY)
        os.dup2(fault, 2)
        try:
            status = protoc.main(["protoc", *arguments, _FILE])
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(fault)
        if status != 0:
            first = (root / "fault").read_text(errors="replace").partition("\n")[0]
            raise BadValueError(f"whose Protobuf schema does not compile: {printable(first, 200)}")
        pool = DescriptorPool()
        for each in FileDescriptorSet.FromString((root / "out").read_bytes()).file:  # in the order of their imports
            pool.Add(each)
    return pool.FindFileByName(_FILE)


def _described(schema: Registered, message: str | None) -> Descriptor:
    """The message of a schema with this full name; None for the first."""
    file = _compiled(schema)
    try:
        return _message(file, (0,)) if message is None else file.pool.FindMessageTypeByName(message)
    except KeyError:
        raise BadValueError(f"whose Protobuf schema has no message {message}") from None


def _message(file: FileDescriptor, place: tuple[int, ...]) -> Descriptor:
    """The message at a place in its file: `(1, 0)` is the first one inside the second."""
    found, inside = None, list(file.message_types_by_name.values())
    for index in place:
        if not 0 <= index < len(inside):
            raise BadValueError(f"has no message with the indexes {list(place)}")
        found = inside[index]
        inside = found.nested_types
    assert found is not None
    return found


def _indexes(content: bytes) -> tuple[tuple[int, ...], int]:
    """The place of the message in its schema, and where its bytes begin: zigzag numbers, of which the first counts."""
    numbers: list[int] = []
    number = shift = 0
    for at, byte in enumerate(content[:_MOST_INDEX_BYTES], 1):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004  # the last byte of a number
            numbers.append((number >> 1) ^ -(number & 1))
            number = shift = 0
            if numbers[0] == 0:
                return (0,), at
            if len(numbers) > numbers[0] > 0:
                return tuple(numbers[1:]), at
    raise BadValueError("has no message indexes behind it")


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _json(message: Any, left: list[int]) -> dict[str, Any]:
    """The fields for JSON; one that is not set is left out if Protobuf distinguishes that from its default."""
    fields = message.DESCRIPTOR.fields
    left[0] -= len(fields)
    if left[0] < 0:
        raise BadValueError("has more fields than a table can hold for so few bytes")

    def of(value: Any, field: FieldDescriptor) -> Any:
        if field.message_type is not None:
            return value.ToJsonString() if field.message_type.full_name == _TIMESTAMP else _json(value, left)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return known.name if known is not None else str(value)
        if isinstance(value, bytes):
            # proto2 accepts a string that is not UTF-8, and then returns its bytes.
            return value.decode() if field.type == FieldDescriptor.TYPE_STRING else base64.b64encode(value).decode()
        return value

    found: dict[str, Any] = {}
    for field in fields:
        value = getattr(message, field.name)
        if _is_map(field):
            found[field.name] = {key: of(value[key], field.message_type.fields_by_name["value"]) for key in value}
        elif field.is_repeated:
            found[field.name] = [of(each, field) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = of(value, field)
    return found
