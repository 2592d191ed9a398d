"""`ingest` with a real schema registry, Apicurio: values in Confluent's framing, in Avro, JSON and Protobuf."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

pytest.importorskip("fastavro")
pytest.importorskip("grpc_tools")
pytest.importorskip("jsonschema")

import fastavro
from google.protobuf import message_factory

from jobs.driver.failures import JobFailedError, explained
from jobs.ingest import IngestSettings
from jobs.ingesting.protobuf_values import _described
from jobs.ingesting.registry import Registered, RegistrySettings
from jobs.ingesting.table_schema import registered
from jobs.ingesting.values import CORRUPT, ValueForm, ValueFormat, parsed
from tests.app.payloads.swept import write
from tests.jobs.ingesting.test_registry import Certificates
from tests.jobs.ingesting.test_registry import said as answered
from tests.jobs.ingests import Settings, ingest, rows_of, written
from tests.registry_server import RegistryServer, registry_server_or_skip
from transforms.errors import ConfigurationError
from transforms.record import Record

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "old", "type": "string"}],
}
MONEY = {"type": "record", "namespace": "shop", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
NEWEST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "total", "type": ["null", "shop.Money"], "default": None},
    ],
}
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Note { string text = 1; }
message Order {
  message Line { string name = 1; }
  enum State { OPEN = 0; PAID = 1; }
  int64 id = 1; google.protobuf.Timestamp at = 2; uint64 big = 3; bytes raw = 4; State state = 5;
  map<int32, Line> by_number = 6; repeated Line lines = 7; optional int32 maybe = 8; double ratio = 9;
}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server_or_skip(tmp_path_factory.mktemp("registry")) as server:
        yield server


def framed(number: int, content: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + content


def avro(schema: Any, value: Any, *referred: Any) -> bytes:
    found = io.BytesIO()
    named: dict[str, Any] = {}
    for each in referred:
        fastavro.parse_schema(each, named)
    fastavro.schemaless_writer(found, fastavro.parse_schema(schema, named), value)
    return found.getvalue()


def with_registry(
    chosen: IngestSettings, registry: RegistryServer, form: ValueForm, subject: str | None = None
) -> IngestSettings:
    """The settings, after the registry was asked for the schema of the table."""
    return replace(chosen, value=registered(form, RegistrySettings(registry.url), subject, chosen.topics))


def taken(spark: SparkSession, registry: RegistryServer, topic: str, form: str, *values: bytes | None) -> list[Row]:
    """What becomes of the values."""
    chosen = IngestSettings("b:1", "o", "c", topics=(topic,))
    found = with_registry(chosen, registry, ValueForm(form, on_bad="null"))  # type: ignore[arg-type]  # a literal
    return parsed(rows_of(spark, *values), found.value).collect()


def test_avro_of_all_versions(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings, registry: RegistryServer
) -> None:
    """Values of older and newer schemas become rows of the newest; what cannot be read keeps its bytes, or fails.

    A schema that is registered later adds its fields to the same table.
    """
    topic = make_topic(partitions=1)
    first = registry.register(f"{topic}-value", FIRST)
    old = avro(FIRST, {"id": 1, "old": "gone"})
    cut = [framed(first, content) for content in (old[:-1], old + b"x", b"")]
    bad = [*cut, framed(99_999, old), old, b"", b"\x00\x00"]
    write(broker, topic, Record(None, framed(first, old)), Record(b"k", None))
    plain = ValueForm("avro")
    ingest(spark, with_registry(settings(topic), registry, plain))

    registry.register("money", MONEY)
    reference = [{"name": "shop.Money", "subject": "money", "version": 1}]
    grown = {**NEWEST, "fields": [FIRST["fields"][1], *NEWEST["fields"]]}
    second = registry.register(f"{topic}-value", grown, references=reference)
    write(broker, topic, Record(None, framed(99_999, old)))
    with pytest.raises(JobFailedError) as failed:
        ingest(spark, with_registry(settings(topic), registry, plain))
    assert str(failed.value).startswith(
        f"topic {topic} partition 0 offset 2: the value, {len(old) + 5} bytes, has schema id 99999, which the registry "
        "does not have; --on-bad-value null continues"
    )
    lenient = with_registry(settings(topic), registry, ValueForm("avro", on_bad="null"))
    new = avro(grown, {"old": "o", "id": 2**40, "note": "n", "total": {"cents": 5}}, MONEY)
    write(broker, topic, *(Record(None, each) for each in (framed(second, new), *bad)))
    ingest(spark, lenient)
    rows = written(spark, lenient)
    assert [row.value and row.value.asDict(recursive=True) for row in rows[:4]] == [
        {"old": "gone", "id": 1, "note": None, "total": None},
        None,
        None,
        {"old": "o", "id": 2**40, "note": "n", "total": {"cents": 5}},
    ]
    assert [row[CORRUPT] for row in rows] == [None, None, bytearray(framed(99_999, old)), None, *map(bytearray, bad)]

    third = registry.register(f"{topic}-value", NEWEST, references=reference)
    assert third != second
    with pytest.raises(ConfigurationError, match=r"--schema-registry-url: does not fit .* field old is missing"):
        ingest(spark, with_registry(settings(topic), registry, plain))


def test_narrower_schema_by_tls(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings, tmp_path: Path
) -> None:
    """A newest schema with int where the table has long is read as the table's, by Avro's rules; so is an older id.

    The registry is a stand-in by TLS with credentials, that knows a GUID too: Apicurio knows none.
    """
    topic, made = make_topic(partitions=1), Certificates.made(tmp_path)
    long, narrow = ({**FIRST, "fields": [{"name": "id", "type": kind}]} for kind in ("long", "int"))
    guid = bytes(range(16))
    with made.server() as server, server.serving():
        found: dict[str, Any] = {"subjects": long, "ids/1": long, "ids/2": narrow, f"guids/{UUID(bytes=guid)}": narrow}

        def answer(path: str) -> Any:
            name = "subjects" if "/subjects/" in path else path.removeprefix("/api/schemas/")
            return answered(schema=json.dumps(found[name])) if name in found else (404, b"", {})

        server.answer = answer
        reached = RegistrySettings(server.url, {"basic.auth.user.info": "user:pass-9", **made.trusting})

        def run(*records: Record) -> IngestSettings:
            write(broker, topic, *records)
            chosen = replace(settings(topic), value=registered(ValueForm("avro"), reached, None, (topic,)))
            ingest(spark, chosen)
            return chosen

        run(Record(None, framed(1, avro(long, {"id": 2**40}))), Record(None, framed(2, avro(narrow, {"id": 5}))))
        found["subjects"] = narrow
        header = [("__value_schema_id", b"\x01" + guid)]
        chosen = run(
            Record(None, framed(1, avro(long, {"id": -(2**40)}))),
            Record(None, framed(2, avro(narrow, {"id": 6}))),
            Record(None, avro(narrow, {"id": 7}), header),
        )
        assert [row.value.id for row in written(spark, chosen)] == [2**40, 5, -(2**40), 6, 7]
        assert {authorization for _, authorization in server.asked} == {"Basic dXNlcjpwYXNzLTk="}
        unknown = b"\x01" + bytes(16)
        with pytest.raises(JobFailedError) as failed:
            run(Record(None, avro(narrow, {"id": 7}), [("__value_schema_id", unknown)]))
        assert str(failed.value).startswith(
            f"topic {topic} partition 0 offset 5: the value, 1 bytes, has schema GUID {UUID(int=0)}, which the "
            "registry does not have (of header __value_schema_id; not each registry knows GUIDs); --on-bad-value null "
            "continues"
        )
        assert "pass-9" not in str(failed.value)


def test_protobuf(spark: SparkSession, registry: RegistryServer) -> None:
    """A message becomes fields, found by its indexes; another message of the schema, and a cut one, are bad values."""
    alone = PROTO.replace("message Note { string text = 1; }\n", "")
    number, older = (registry.register(*each, "PROTOBUF") for each in (("p-value", alone), ("older", PROTO)))
    kind = message_factory.GetMessageClass(_described(Registered("PROTOBUF", alone), None))
    message: Any = kind(id=7, big=2**63 + 1, raw=b"\xff\x00", state=1, ratio=float("inf"))
    message.at.FromJsonString("2026-01-02T03:04:05.678901Z")
    message.by_number[-3].name = "three"
    message.lines.add(name="ü")
    raw = message.SerializeToString()
    good = [framed(number, b"\x00" + raw), framed(number, b"\x02\x00" + raw), framed(older, b"\x02\x02" + raw)]
    bad = [
        framed(older, b"\x00" + raw),
        framed(number, b"\x04\x00\x00"),
        framed(number, b"\x00" + raw[:-1]),
        framed(number, b""),
    ]
    rows = taken(spark, registry, "p", "protobuf", *good, framed(number, b"\x00"), None, *bad)
    assert [row.value.asDict(recursive=True) for row in rows[:3]] == [
        {
            "id": 7,
            "at": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001  # as Spark gives it, in the session's zone
            "big": Decimal(2**63 + 1),
            "raw": bytearray(b"\xff\x00"),
            "state": "PAID",
            "by_number": {"-3": {"name": "three"}},
            "lines": [{"name": "ü"}],
            "maybe": None,
            "ratio": float("inf"),
        }
    ] * 3
    assert (rows[3].value.id, rows[3].value["at"], rows[3].value.state, rows[3].value.lines) == (0, None, "OPEN", [])
    assert rows[4].value is None
    assert [row[CORRUPT] for row in rows] == [*[None] * 5, *map(bytearray, bad)]


def test_json_schema(spark: SparkSession, registry: RegistryServer) -> None:
    """JSON is checked with the schema of its id, and has the columns of the newest; one that does not fit is bad."""
    strict = {"type": "object", "properties": {"id": {"type": "integer"}}, "additionalProperties": False}
    older = registry.register("older-json", strict, "JSON")
    newest = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
            "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "required": ["id"],
        "definitions": {"line": {"type": "object", "properties": {"paid": {"type": "boolean"}}}},
    }
    number = registry.register("j-value", newest, "JSON")
    good = [
        framed(number, b'{"id": 1, "note": "n", "lines": [{"paid": true}], "by_name": {"a": 0.5}, "more": 1}'),
        framed(older, b'{"id": 2}'),
    ]
    bad = [
        framed(number, b'{"note": "n"}'),
        framed(number, b'{"id": "secret"}'),
        framed(older, b'{"id": 2, "note": "n"}'),
        framed(number, b'{"id": 1}x'),
        framed(number, b'{"id": 99999999999999999999}'),
    ]
    rows = taken(spark, registry, "j", "json", *good, *bad)
    assert [row.value.asDict(recursive=True) for row in rows[:2]] == [
        {"id": 1, "note": "n", "lines": [{"paid": True}], "by_name": {"a": 0.5}},
        {"id": 2, "note": None, "lines": None, "by_name": None},
    ]
    assert [row[CORRUPT] for row in rows] == [None, None, *map(bytearray, bad)]


def test_registry_goes_away(spark: SparkSession) -> None:
    """A registry that does not answer is a failure that names it; no value counts as bad."""
    away = RegistrySettings("http://127.0.0.1:9", {"basic.auth.user.info": "user:pass-9"})
    form = registered(ValueForm("avro", json.dumps(FIRST), on_bad="null"), away, None, ())
    rows = parsed(rows_of(spark, framed(1, avro(FIRST, {"id": 1, "old": ""}))), form)
    with pytest.raises(PySparkException) as failed:
        rows.collect()
    said = explained(failed.value, servers="b:1", source="t", options={})
    assert str(said).startswith("the schema registry at http://127.0.0.1:9 does not answer: ")
    assert str(said).endswith("; 4 tries")
    for text in (str(failed.value), repr(form)):
        assert "pass-9" not in text


def test_what_the_registry_has_not(registry: RegistryServer) -> None:
    """A subject that is not there, of another type, or without columns, is told before Spark starts."""
    registry.register("text-value", {"type": "object", "properties": {"a": {}}}, "JSON")
    registry.register("self-value", 'syntax = "proto3"; message A { A a = 1; }', "PROTOBUF")
    chosen = IngestSettings("b:1", "o", "c", topics=("text",))
    changes: list[tuple[tuple[str, ...], str | None, ValueFormat, str]] = [
        (("no such",), None, "avro", "has no subject 'no such-value'"),
        (("text",), None, "avro", "--value-format: is avro, and the newest schema of text-value is of the type JSON"),
        (
            ("text",),
            None,
            "json",
            "the newest schema of text-value is one whose a does not have a single type; specify the columns",
        ),
        (("text",), "self-value", "protobuf", "has more than 64 levels, or contains itself"),
        (("a", "b"), None, "avro", "--schema-registry-subject: is missing"),
    ]
    for topics, subject, form, said in changes:
        with pytest.raises(ConfigurationError, match=said):
            with_registry(replace(chosen, topics=topics), registry, ValueForm(form), subject)
    given = with_registry(chosen, registry, ValueForm("avro", json.dumps(FIRST)))
    assert given.value.schema == json.dumps(FIRST)
