"""Schemas and values of anyone: each is read or bad, in a bounded time, and none ends the job."""

from __future__ import annotations

import base64
import json
import signal
import time
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("grpc_tools")
pytest.importorskip("jsonschema")
pytest.importorskip("re2")

import pyarrow as pa
from google.protobuf import descriptor_pb2

from jobs.ingesting import json_values, protobuf_values, registered
from jobs.ingesting.registered import PLAIN, REASON, RegisteredForm, Values
from jobs.ingesting.registry import BadValueError, Registered, RegistrySettings
from tests.jobs.ingesting.test_registered import AVRO, PROTO, columns, framed, reader, reason
from transforms.record_format import number_bytes

PROTO2 = """syntax = "proto2";
message M { optional string s = 1; repeated string r = 2; map<string, string> m = 3; optional bytes b = 4; }"""
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "_kept", {})


def strings(expression: str) -> dict[str, Any]:
    return {"properties": {"a": {"pattern": expression}}}


def doubled(levels: int, keyword: str) -> dict[str, Any]:
    """A JSON Schema whose definitions each name the next one twice."""
    parts = [{"$ref": f"#/definitions/d{each + 1}"} for each in range(levels)]
    inside = [{"properties": {"a": each, "b": each}, "type": "object"} if keyword == "properties" else
              {keyword: [each, each]} for each in parts]  # fmt: skip
    definitions = {f"d{number}": each for number, each in enumerate(inside)}
    top = {"type": "object", "properties": {"x": {"$ref": "#/definitions/d0"}}}
    return {**top, "definitions": {**definitions, f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("form", "schema", "content", "said"),
    [
        ("json", {"properties": {"n": {"multipleOf": 0.01}}}, b'{"n": 1e999}', "cannot be read: OverflowError"),
        ("json", {"properties": {"n": {"multipleOf": 0.01}}}, b'{"n": 1%s}' % (b"0" * 400), "cannot be read: Overf"),
        ("json", {"$ref": "http://127.0.0.1:9/else"}, b"{}", "cannot be read: "),  # nobody asks there
        ("json", {}, rb'{"a": "\ud800"}', "is not JSON"),
        ("json", {}, rb'{"\uDFFF": "\ud83d\ude00"}', "is not JSON"),
        ("protobuf", PROTO2, b"\x00\x0a\x01\xff", "cannot be read: UnicodeDecodeError"),
        ("protobuf", PROTO2, b"\x00\x12\x01\xff", "cannot be read: UnicodeDecodeError"),
        ("protobuf", PROTO2, b"\x00\x1a\x03\x0a\x01\xff", "cannot be read: UnicodeDecodeError"),
        ("protobuf", PROTO2, b"\x00\x1a\x03\x12\x01\xff", "cannot be read: UnicodeDecodeError"),
    ],
)
def test_values_that_libraries_cannot_read(form: str, schema: object, content: bytes, said: str) -> None:
    """Whatever a library raises for a value is a bad value; the one behind it is read."""
    found = reader(form, schema, {1: schema, 2: PROTO2 if form == "protobuf" else {}})
    assert reason(found, framed(content)).startswith(f"with schema id 1, {said}")
    good = {"json": rb'{"\\ud800": "\ud83d\uDE00"}', "protobuf": b"\x00\x0a\x01a\x22\x01\xff"}[form]
    assert found.plain(framed(good, 2))


def descriptor(change: str) -> str:
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    kind = file.message_type.add(name="M")
    if change == "map":
        kind.nested_type.add(name="E").options.map_entry = True
    for number in range(1, 18_000 if change == "fields" else 2):
        kind.field.add(name=f"f{number}", number=number, type=9, label=1)
    return base64.b64encode(file.SerializeToString()).decode()


EMPTY = 'syntax = "proto3";'


@pytest.mark.parametrize(
    "schema",
    [
        Registered("PROTOBUF", PROTO, {"x=/etc:y": EMPTY}),
        Registered("PROTOBUF", PROTO, {"é/" * 400: EMPTY}),
        Registered("PROTOBUF", PROTO, {"a\0b": EMPTY}),
        Registered("PROTOBUF", PROTO, {"\ud800": EMPTY}),
        Registered("PROTOBUF", PROTO + "// \ud800"),
        Registered("PROTOBUF", descriptor("map")),  # Google's own library refuses them
        Registered("PROTOBUF", descriptor("fields")),
        Registered("JSON", "5"),
        Registered("JSON", "[" * 100_000),
        Registered("JSON", json.dumps(OBJECT), {"o": '{"$schema": 5}'}),
        Registered("AVRO", json.dumps({"type": "enum", "name": "E", "symbols": 5})),
        Registered("AVRO", "[" * 100_000),
        Registered("AVRO", json.dumps(AVRO), {"o": "{"}),
    ],
    ids=lambda each: f"{each.text[:12]}-{next(iter(each.references), '')[:3]!r}",
)
def test_schemas_that_libraries_cannot_read(schema: Registered) -> None:
    """Whatever a library raises for a schema makes its values bad; for the table's columns it is one sentence."""
    form = schema.kind.lower()
    good = {"avro": AVRO, "json": OBJECT, "protobuf": PROTO}[form]
    values = reader(form, good, {1: good, 2: schema})
    assert reason(values, framed(b"\x00", 2)).startswith("has schema id 2, whose ")
    assert values.plain(framed({"avro": b"\x00\x00", "json": b"{}", "protobuf": b"\x00"}[form]))
    if schema.kind == "PROTOBUF":
        assert columns(schema).startswith("whose P")


def test_faults_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a package that is missing, makes no value bad: the task fails, and its values are read again."""
    for fault in (OSError(28, "no space left"), ModuleNotFoundError("no package")):

        def fail(*_: object, found: Exception = fault, **__: object) -> None:
            raise found

        monkeypatch.setattr("jobs.ingesting.protobuf_values.TemporaryDirectory", fail)
        with pytest.raises(type(fault)):
            reader("protobuf", PROTO, {1: PROTO}).plain(framed(b"\x00"))


def test_types_that_are_shared() -> None:
    """A schema of a few hundred bytes may have 2^16 fields, or 2^200: it is refused before they are made."""
    for levels in (16, 60):
        several = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(levels))
        proto = Registered("PROTOBUF", f'syntax = "proto3"; {several} message M{levels} {{ string s = 1; }}')
        assert columns(proto) == "which has more than 10,000 fields"
    assert columns(Registered("JSON", json.dumps(doubled(16, "properties")))) == "which has more than 10,000 fields"
    for levels in (16, 200):
        kind: Any = "long"
        for n in reversed(range(levels)):
            fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{n + 1}" if n < levels - 1 else "long"}]
            kind = {"type": "record", "name": f"R{n}", "fields": fields}
        said = reason(reader("avro", AVRO, {1: kind}), framed(b""))
        assert said == "has schema id 1, whose Avro schema has more than 10,000 fields"


def test_avro_items_of_few_bytes() -> None:
    """Items with fields without bytes, of which megabytes may be gigabytes, make values bad; others are read."""

    def items(*inside: object) -> dict[str, Any]:
        item = {"type": "record", "name": "I", "fields": [{"name": f"n{n}", "type": k} for n, k in enumerate(inside)]}
        return {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "map", "values": item}}]}

    good = items("boolean", ["null", "long"])
    assert reader("avro", good, {1: good}).plain(framed(b"\x02\x02k\x01\x00\x00")) == b"\x02\x02k\x01\x00\x00"
    for bad in (items("boolean", "null"), items(), items({"type": "fixed", "name": "F", "size": 0})):
        said = reason(reader("avro", bad, {1: bad}), framed(b"\x00"))
        assert said.endswith("items with values without bytes, which no table can hold")


def test_avro_decimals_of_many_bytes() -> None:
    """A decimal of more bytes than any table has is bad before its digits are made, which would take minutes."""
    kind = {"logicalType": "decimal", "precision": 9, "scale": 2}
    for number, (schema, before) in enumerate((
        ({"type": "bytes", **kind}, number_bytes(2**20)),
        ({"type": "fixed", "name": "F", "size": 2**20, **kind}, b""),
    )):  # fmt: skip
        whole = {"type": "record", "name": "R", "fields": [{"name": "d", "type": schema}]}
        found = reader("avro", whole, {number: whole})
        assert reason(found, framed(before + b"\x7f" * 2**20, number)).endswith("fit the table: ValueError")


def test_protobuf_messages_of_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes are a message with all its fields as JSON; how many there may be depends on the bytes."""
    monkeypatch.setattr(protobuf_values, "_FEWEST_FIELDS", 1000)
    fields = "".join(f"int32 f{each} = {each + 1};" for each in range(20))
    proto = f'syntax = "proto3"; message M {{ repeated I i = 1; message I {{ {fields} }} }}'
    found = reader("protobuf", proto, {1: proto})
    assert len(json.loads(found.plain(framed(b"\x00" + b"\x0a\x00" * 50)))["i"]) == 50
    assert reason(found, framed(b"\x00" + b"\x0a\x00" * 100)).endswith("than a table can hold for so few bytes")


def test_regular_expressions_that_backtrack() -> None:
    """An expression that Python's `re` would try for ever takes no time, in values and in names."""
    begin = time.process_time()
    long = "a" * 100_000 + "!"
    found = reader("json", {}, {1: strings("^(a+)+$")})
    assert reason(found, framed(json.dumps({"a": long}).encode())).endswith(
        "is not valid JSON of this schema: properties/a/pattern"
    )
    named = {"patternProperties": {"^(a+)+$": False, "^(b|bb)+$": {}}, "additionalProperties": {"type": "string"}}
    found = reader("json", {}, {2: named})
    assert found.plain(framed(json.dumps({long: "", "bbb": 5}).encode(), 2))
    assert reason(found, framed(json.dumps({long: 5}).encode(), 2)).endswith("additionalProperties/type")
    assert reason(found, framed(b'{"aa": 5}', 2)).endswith("of this schema: patternProperties")
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("expression", "good", "bad"),
    [
        (r"^\p{L}+$", "éa", "5"),
        (r"^[\u00e0-\u00ff]+$", "é", "e"),
        (r"^\\u00e9$", r"\u00e9", "é"),
        ("^a$", "a", "a\n"),
        (r"^\d$", "5", "\u0665"),
        (r"^(?<year>\d{4})$", "2026", "26"),
        ("^(?!b)", "a", "b"),
        (r"^(.)\1$", "aa", "ab"),
        ("^.{0,2000}$", "a" * 2000, "a" * 2001),
    ],
)
def test_regular_expressions_of_json_schema(expression: str, good: str, bad: str) -> None:
    """Expressions are those of ECMA-262, with lookahead and backreferences, too."""
    found = reader("json", {}, {1: strings(expression)})
    assert found.plain(framed(json.dumps({"a": good}).encode()))
    assert reason(found, framed(json.dumps({"a": bad}).encode())).endswith(
        "is not valid JSON of this schema: properties/a/pattern"
    )


def test_schemas_that_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no engine and no bound shortens is interrupted: lookaround that backtracks, and references of references."""
    monkeypatch.setattr(json_values, "_SECONDS", 0.1)
    values = [
        (strings("^(?=a)(a+)+$"), {"a": "a" * 60 + "!"}),
        (strings("["), {"a": ""}),
        (doubled(60, "allOf"), {"x": "a"}),
    ]
    found = reader("json", {}, {number: schema for number, (schema, _) in enumerate(values)})
    said = [reason(found, framed(json.dumps(each).encode(), number)) for number, (_, each) in enumerate(values)]
    assert said[0].endswith("cannot be checked in 0.1 seconds of CPU")
    assert "cannot be read: " in said[1]
    assert said[2].endswith("cannot be checked in 0.1 seconds of CPU")


def test_time_that_is_over() -> None:
    """Python that handles every error is interrupted, and no timer is left: it would kill an interpreter that ends."""

    def endless() -> None:
        while True:
            with suppress(Exception):
                sum(range(1000))

    for work, error in ((endless, BadValueError), (lambda: 1 // 0, ZeroDivisionError)):
        with pytest.raises(error):
            json_values.within(0.05, work)
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    json_values.within(5, lambda: 7)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_schema_that_takes_for_ever_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for one schema is interrupted, too, and its values are bad."""
    monkeypatch.setattr(json_values, "_SCHEMA_SECONDS", 0.01)
    endless = {"properties": {f"p{n}": {"type": "string"} for n in range(5000)}}
    said = reason(reader("json", {}, {1: endless}), framed(b"{}"))
    assert said == "has schema id 1, whose schema cannot be checked in 0.0 seconds of CPU"


def test_batches_of_values_that_grow() -> None:
    """Values that become longer are so many batches that each can hold its own; rows keep their order."""
    table = Registered("JSON", "{}")
    found = Values(RegisteredForm(RegistrySettings("http://r"), "json", table), lambda _: table)
    long = framed(b'{"a": "%s"}' % (b"a" * 3_000_000))
    columns = {"value": [None, long, b"", long, None], "headers": [None] * 5}
    kinds = [pa.binary(), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))]
    arrays = [pa.array(each, kind) for each, kind in zip(columns.values(), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    several = list(registered.with_plain(batch, found))
    assert [each.num_rows for each in several] == [4, 1]
    rows = [row for each in several for row in each.to_pylist()]
    assert [row["value"] for row in rows] == columns["value"]
    assert [row[PLAIN] and len(row[PLAIN]) for row in rows] == [None, len(long) - 5, None, len(long) - 5, None]
    assert [bool(row[REASON]) for row in rows] == [False, False, True, False, False]
