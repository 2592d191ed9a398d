"""Values in a registry's framing, as one schema reads another's; without Spark, and without a registry."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("grpc_tools")
pytest.importorskip("jsonschema")

from google.protobuf import descriptor_pb2
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

from jobs.ingesting import avro_values, registered
from jobs.ingesting.registered import RegisteredForm, Values
from jobs.ingesting.registry import BadValueError, Registered, RegistrySettings, SchemaId

AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "s", "type": "string"}]}
TABLE = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
PROTO = 'syntax = "proto3"; message M { int64 a = 1; string s = 2; M inner = 3; }'


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "_kept", {})


def reader(form: str, table: object, schemas: Mapping[SchemaId, object]) -> Values:
    kinds = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}

    def schema(each: object) -> Registered:
        return each if isinstance(each, Registered) else Registered(kinds[form], _text(each))

    found: dict[SchemaId, Registered] = {number: schema(each) for number, each in schemas.items()}
    return Values(RegisteredForm(RegistrySettings("http://r"), form, schema(table)), found.get)


def _text(schema: object) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def columns(schema: Registered, message: str | None = None) -> str:
    """The columns of a schema, or why there are none."""
    kind = schema.kind.lower()
    try:
        return RegisteredForm(RegistrySettings("http://r"), kind, schema, message).columns()
    except BadValueError as exc:
        return str(exc)


def framed(content: bytes, number: int = 1) -> bytes:
    return struct.pack(">bI", 0, number) + content


def reason(found: Values, value: bytes, header: bytes | None = None) -> str:
    with pytest.raises(BadValueError) as failed:
        found.plain(value, header)
    return str(failed.value)


def test_avro_that_is_cut() -> None:
    """A value that is cut is bad, also where it is cut in a field that the table does not have; so is one with more."""
    found = reader("avro", TABLE, {1: AVRO})
    whole = b"\x0e\x06abc"
    assert found.plain(framed(whole)) == b"\x0e"
    for length in range(len(whole)):
        assert "is not valid Avro of this schema" in reason(found, framed(whole[:length]))
    assert "is truncated, or other bytes follow" in reason(found, framed(whole + b"x"))
    assert "is not valid Avro of this schema" in reason(found, framed(b"\x0e\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))


def test_schema_in_a_header() -> None:
    """A header `__value_schema_id` names the schema by GUID or id, and the value is content alone; it wins."""
    guid = UUID(bytes=bytes(range(16)))
    by_guid, by_id = b"\x01" + guid.bytes, b"\x00" + struct.pack(">I", 7)
    found = reader("avro", TABLE, {guid: AVRO, 7: TABLE})
    assert found.plain(b"\x0e\x06abc", by_guid) == b"\x0e"
    assert found.plain(b"\x0e", by_id) == b"\x0e"
    nested = 'syntax = "proto3"; message Other {} message M { int64 a = 1; }'
    written = Registered("PROTOBUF", nested)
    protobuf = Values(RegisteredForm(RegistrySettings("http://r"), "protobuf", written, "M"), lambda _: written)
    assert protobuf.plain(b"\x08\x05", by_guid + b"\x02\x02") == b'{"a": 5}'

    for header in (b"", b"\x01", by_guid[:-1], by_guid + b"x", by_id + b"x", b"\x02" + guid.bytes):
        said = f"has a header __value_schema_id of {len(header)} bytes, which is not an id of a schema registry"
        assert reason(found, b"\x0e", header) == said
    assert reason(found, b"\x0e", by_guid).startswith(f"with schema GUID {guid}, is not valid Avro of this schema")
    unknown = reason(found, b"\x0e", b"\x01" + bytes(16))
    assert unknown.startswith(f"has schema GUID {UUID(int=0)}, which the registry does not have (")


def test_avro_as_the_table_has_it() -> None:
    """A schema with narrower numbers than the table is read as the table's, at any depth; all else stays."""
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "int"}]}
    longs, cents = ArrayType(LongType()), MapType(StringType(), StructType().add("cents", "long"))
    wider = {**money, "fields": [{"name": "cents", "type": "long"}]}
    date, either = {"type": "int", "logicalType": "date"}, ["int", "long"]
    rows: dict[str, tuple[object, DataType | str | None, object]] = {
        "i": ("int", "long", "long"),
        "maybe": (["null", {"type": "int"}], "long", ["null", {"type": "long"}]),
        "f": ("float", "double", "double"),
        "d": ("int", "double", "double"),
        "many": ({"type": "array", "items": ["null", "int"]}, longs, {"type": "array", "items": ["null", "long"]}),
        "by": ({"type": "map", "values": money}, cents, {"type": "map", "values": wider}),
        "day": (date, "long", date),
        "either": (either, "long", either),
        "s": ("string", "long", "string"),
        "long": ("long", "double", "long"),
        "new": ("int", None, "int"),
    }
    table = StructType()
    for name, (_, kept, _) in rows.items():
        if kept is not None:
            table.add(name, kept)
    fields = [{"name": name, "type": kind} for name, (kind, _, _) in rows.items()]
    fields[0] |= {"default": 1}
    schema = Registered("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    found = json.loads(avro_values.columns(schema, kept=table))
    assert {each["name"]: each["type"] for each in found["fields"]} == {name: now for name, (_, _, now) in rows.items()}
    assert found["fields"][0]["default"] == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Registered("PROTOBUF", "message {"), "does not compile"),
        (Registered("PROTOBUF", PROTO + 'import "../../x.proto";', {"../../x.proto": 'syntax = "proto3";'}),
            "does not compile: ../../x.proto: Backslashes"),
        ({"type": "record", "name": "L", "fields": [{"name": "up", "type": ["null", "L"]}]}, "a record inside itself"),
        (
            {"type": "record", "name": "N", "namespace": "x", "fields": [
                {"name": "l", "type": {"type": "array", "items": {"type": "record", "name": "I", "fields": [
                    {"name": "up", "type": "x.N"}]}}}]},
            "a record inside itself",
        ),
        ({"type": "record", "name": "E", "fields": [{"name": "l", "type": {"type": "array", "items": "null"}}]},
            "items with values without bytes"),
        ({"type": "record", "name": "T", "fields": [{"name": "a", "type": "no.Type"}]}, "cannot be used: UnknownType"),
        ("{", "cannot be used: JSONDecodeError"),
        ({"type": "record"}, "cannot be used: "),
        (Registered("PROTOBUF", PROTO), "whose schema is of the type PROTOBUF, not AVRO"),
    ],
)  # fmt: skip
def test_schemas_that_no_table_can_hold(schema: object, message: str) -> None:
    """A schema that does not compile, reaches elsewhere, or could take all memory for some bytes makes values bad.

    Each has an error of its own: none keeps those before it in memory.
    """
    protobuf = isinstance(schema, Registered) and "whose" not in message
    found = reader("protobuf", PROTO, {1: schema}) if protobuf else reader("avro", TABLE, {1: schema})
    errors = []
    for _ in range(2):
        with pytest.raises(BadValueError) as failed:
            found.plain(framed(b"\x02" * 100_000))
        errors.append(failed.value)
    assert str(errors[0]).startswith("has schema id 1, whose ")
    assert message in str(errors[0])
    assert errors[0] is not errors[1]


def test_avro_with_references() -> None:
    """A schema may refer to named schemas of other subjects, which may refer to others."""
    inner = {"type": "enum", "name": "x.E", "symbols": ["A", "B"]}
    middle = {"type": "record", "name": "M", "namespace": "x", "fields": [{"name": "e", "type": "E"}]}
    top = {"type": "record", "name": "T", "fields": [{"name": "m", "type": "x.M"}, {"name": "n", "type": "x.M"}]}
    schema = Registered("AVRO", json.dumps(top), {"x.E": json.dumps(inner), "x.M": json.dumps(middle)})
    assert reader("avro", schema, {1: schema}).plain(framed(b"\x02\x00")) == b"\x02\x00"


def test_ids_that_are_unknown() -> None:
    """A value with an unknown id is bad, however many of them there are; one that no registry can have is not asked."""
    asked: list[SchemaId] = []
    written = Registered("AVRO", json.dumps(AVRO))

    def schema(which: SchemaId) -> Registered | None:
        asked.append(which)
        return written if which == 20_000 else None

    found = Values(RegisteredForm(RegistrySettings("http://r"), "avro", written), schema)
    for number in range(11_000):
        assert reason(found, framed(b"", number)) == f"has schema id {number}, which the registry does not have"
    assert "id 10999," in reason(found, framed(b"", 10_999))
    assert len(asked) == 11_000
    assert found.plain(framed(b"\x0e\x06abc", 20_000)) == b"\x0e\x06abc"
    for number in (2**31, 2**32 - 1):
        assert reason(found, framed(b"", number)) == f"has schema id {number}, which the registry does not have"
    assert asked[-1] == 20_000


def test_protobuf_with_imports() -> None:
    """A schema may import other subjects' files."""
    imported = Registered("PROTOBUF", 'syntax = "proto3"; import "o/x.proto"; message M { O o = 1; }',
        {"o/x.proto": 'syntax = "proto3"; message O { int32 a = 1; }'})  # fmt: skip
    found = reader("protobuf", imported, {1: imported})
    assert found.plain(framed(b"\x00\x0a\x02\x08\x05")) == b'{"o": {"a": 5}}'


def test_protobuf_as_descriptors() -> None:
    """A schema may be a descriptor in base64, as Confluent's clients for Python and .NET register it; imports too."""
    inner = descriptor_pb2.FileDescriptorProto(name="elsewhere.proto", syntax="proto3")
    inner.message_type.add(name="O").field.add(name="a", number=1, type=5, label=1)
    outer = descriptor_pb2.FileDescriptorProto(name="orders.proto", syntax="proto3", package="shop")
    outer.dependency.append("o.proto")
    outer.message_type.add(name="Other")
    kind = outer.message_type.add(name="M").nested_type.add(name="N")
    kind.field.add(name="o", number=1, type=11, label=1, type_name=".O")
    texts = [base64.b64encode(each.SerializeToString()).decode() for each in (inner, outer)]
    for reference in (texts[0], 'syntax = "proto3"; message O { int32 a = 1; }'):
        schema = Registered("PROTOBUF", texts[1], {"o.proto": reference})
        form = RegisteredForm(RegistrySettings("http://r"), "protobuf", schema, "shop.M.N")
        found = Values(form, lambda _, schema=schema: schema)  # type: ignore[misc]  # its default is its type
        assert found.plain(framed(b"\x04\x02\x00\x0a\x02\x08\x05")) == b'{"o": {"a": 5}}'
        assert "is a message shop.Other, and the table has shop.M.N" in reason(found, framed(b"\x00"))
    assert columns(schema, "shop.X") == "whose Protobuf schema has no message shop.X"


def test_json_reasons_are_safe_for_a_terminal() -> None:
    """A schema of the registry, which a record names, may have any name in it."""
    found = reader("json", {}, {1: {"properties": {"\x1b[2J\nall is well" + "x" * 500: {"type": "string"}}}})
    name = json.dumps("\x1b[2J\nall is well" + "x" * 500).encode()
    said = reason(found, framed(b"{%b: 1}" % name))
    assert r"is not valid JSON of this schema: properties/\x1b[2J\nall is well" in said
    assert said.isprintable()
    assert len(said) < 200


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "has more than 64 levels"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "a does not have a single type"),
        ({"type": "object", "properties": {"l": {"type": "array", "items": {"$ref": "#/no"}}}}, "l[] refers to '#/no'"),
        ({"type": "string"}, "is not an object with properties"),
        ("[", "whose JSON schema cannot be used: JSONDecodeError"),
        ({"type": "object", "properties": {"a": {"enum": 5}}}, "whose JSON schema cannot be used: TypeError"),
    ],
)
def test_json_columns_refused(schema: object, said: str) -> None:
    """A schema whose parts have no one type in a table is told, with the part."""
    assert said in columns(Registered("JSON", _text(schema)))


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_mutated_values(form: str) -> None:
    """Whatever the bytes are, a value is read or bad, and nothing else happens."""
    schemas: dict[str, Any] = {"avro": AVRO, "json": {"type": "object"}, "protobuf": PROTO}
    seeds = {
        "avro": b"\x0e\x06abc",
        "json": b'{"a": [1, "x"]}',
        "protobuf": b"\x02\x00\x08\x05\x12\x01x\x1a\x02\x08\x01",
    }
    found = reader(form, schemas[form], {1: schemas[form]})
    chance = random.Random(1)
    read = 0
    for _ in range(3000):
        content = bytearray(framed(seeds[form]))
        for _ in range(chance.randrange(4)):
            content[chance.randrange(5, len(content))] = chance.randrange(256)
        del content[len(content) - chance.randrange(3) :]
        try:
            found.plain(bytes(content))
            read += 1
        except BadValueError:
            pass
    assert 0 < read < 3000
