"""What `ingest` does with values over time: schemas that change, values that do not fit, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.types import DecimalType, StructField, StructType

from app.config.arguments import configure
from jobs import ingest as job
from jobs.ingesting.command_line import parser, settings_of
from jobs.ingesting.json_fault import fault
from jobs.ingesting.kept_schema import changes, check
from jobs.ingesting.values import CORRUPT, ValueForm, fits, parsed
from tests.jobs.test_ingest import Settings, ingest, produce, settings
from tests.jobs.test_ingest_formats import rows_of, table
from transforms.errors import ConfigurationError
from transforms.record import Record
from transforms.record_format import number_bytes

__all__ = ["settings"]  # the fixture

BASIS = ["--bootstrap-servers", "127.0.0.1:1", "--output", "o", "--checkpoint", "c", "--once"]


# --- schemas


def test_schema_of_values_may_grow(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """New fields are added, and can be read with the old ones; any other change is refused before a write."""
    topic = make_topic(partitions=1)
    value = b'{"i": 1, "n": [{"a": 2, "b": "x"}], "more": "m"}'
    produce(broker, topic, {0: [Record(None, value)]})
    with pytest.raises(ConfigurationError, match="Spark does not read it"):
        ingest(spark, settings(topic, value=ValueForm("json", "i INTEGR")))
    ingest(spark, settings(topic, value=ValueForm("json", "i INT, n ARRAY<STRUCT<a: INT>>")))
    produce(broker, topic, {0: [Record(None, value)]})
    wrong = settings(topic, value=ValueForm("json", "i STRING, n ARRAY<STRUCT<b: STRING>>, more STRING"))
    with pytest.raises(ConfigurationError) as refused:
        ingest(spark, wrong)
    assert str(refused.value) == (
        f"--value-schema: does not fit what checkpoint {wrong.checkpoint} has written: field i was INT and is STRING "
        "now, field n[].a is missing; new fields may be added, and in a Delta table with "
        "delta.enableTypeWidening=true integers may get longer (INT to BIGINT) and FLOAT may become DOUBLE; for "
        f"anything else give the former schema, or move {wrong.output} away and give --rebuild, which reads again what "
        "the topics still have"
    )
    with pytest.raises(ConfigurationError, match="field i was INT and is BIGINT now; new fields"):
        ingest(spark, settings(topic, value=ValueForm("json", "i BIGINT, n ARRAY<STRUCT<a: INT>>")))
    chosen = settings(topic, value=ValueForm("json", "more STRING, n ARRAY<STRUCT<a: INT, b: STRING>>, i INT"))
    assert ingest(spark, chosen).rows == 1
    rows = spark.read.option("mergeSchema", "true").parquet(chosen.output).orderBy("offset").collect()
    assert [(row.value.i, row.value.more, row.value.n[0].asDict()) for row in rows] == [
        (1, None, {"a": 2, "b": None}),
        (1, "m", {"a": 2, "b": "x"}),
    ]
    with pytest.raises(ConfigurationError, match="field more is missing"):
        ingest(spark, settings(topic, value=ValueForm("json", "i INT, n ARRAY<STRUCT<a: INT, b: STRING>>")))
    note = Path(chosen.checkpoint, "wideload.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "values": {"type": "struct"}}))
    note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
    with pytest.raises(ConfigurationError, match=r"wideload\.json is damaged; it has the schema of the values"):
        ingest(spark, chosen)


def test_wider_numbers_in_delta(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A Delta table whose owner allows it gets wider numbers, at any depth, and can be read as a whole."""
    topic = make_topic(partitions=1)
    narrow, wide = ("i {0}, s SMALLINT, f {1}, n ARRAY<STRUCT<a: {0}>>, m MAP<STRING, {1}>".format(*each)
                    for each in (("INT", "FLOAT"), ("BIGINT", "DOUBLE")))  # fmt: skip
    produce(broker, topic, {0: [Record(None, b'{"i": 1, "s": 2, "f": 0.1, "n": [{"a": 3}], "m": {"k": 0.5}}')]})
    ingest(spark, settings(topic, format="delta", value=ValueForm("json", narrow)))
    big = b'{"i": 1099511627776, "s": 70000, "f": 0.1, "n": [{"a": 1099511627776}], "m": {"k": 0.1}, "new": 1}'
    produce(broker, topic, {0: [Record(None, big)]})
    chosen = settings(topic, format="delta", value=ValueForm("json", wide.replace("SMALLINT", "INT") + ", new INT"))
    with pytest.raises(ConfigurationError, match=r"field i was INT and is BIGINT now, .* field m\{\} was FLOAT"):
        ingest(spark, chosen)
    spark.sql(f"ALTER TABLE delta.`{chosen.output}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    with pytest.raises(ConfigurationError, match="field i was INT and is STRING now"):
        ingest(spark, settings(topic, format="delta", value=ValueForm("json", wide.replace("i BIGINT", "i STRING"))))
    ingest(spark, chosen)
    rows = [row.value.asDict(recursive=True) for row in table(spark, chosen)]
    assert rows[1] == json.loads(big)
    assert rows[0] == {
        "i": 1,
        "s": 2,
        "f": pytest.approx(0.1),
        "n": [{"a": 3}],
        "m": {"k": 0.5},
        "new": None,
    }
    with pytest.raises(ConfigurationError, match="field i was BIGINT and is INT now"):
        ingest(spark, settings(topic, format="delta", value=ValueForm("json", narrow)))


def test_wider_numbers_in_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """Why Parquet files take no wider numbers: Spark does not read one with INT and one with BIGINT as one table."""
    for number, kind in enumerate(("INT", "BIGINT")):
        spark.sql(f"SELECT named_struct('i', {kind}(1)) AS value").write.parquet(f"{tmp_path}/out/part={number}")
    with pytest.raises((PySparkException, Py4JJavaError), match="CANNOT_MERGE"):
        spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/out").collect()


def test_changes(spark: SparkSession) -> None:
    """Types are compared at any depth; whether a field may be null, and the order of fields, do not count."""
    before = StructType.fromDDL("a INT NOT NULL, m MAP<STRING, DATE>, d DECIMAL(5,2), s STRUCT<x: INT>, f FLOAT")
    same = StructType.fromDDL("s STRUCT<y: INT, x: INT>, d DECIMAL(5,2), m MAP<STRING, DATE>, a INT, b INT, f FLOAT")
    assert not list(changes(before, same))
    now = StructType.fromDDL("a BIGINT, m MAP<STRING, STRING>, d DECIMAL(6,2), s ARRAY<INT>")
    assert [(path, then and then.simpleString()) for path, _, then in changes(before, now)] == [
        ("a", "bigint"),
        ("m{}", "string"),
        ("d", "decimal(6,2)"),
        ("s", "array<int>"),
        ("f", None),
    ]


def test_wider_types(spark: SparkSession) -> None:
    """A wider number is refused, unless the table takes it; a narrower one, and a field that is missing, always."""
    for before, now in (("a INT", "a BIGINT"), ("a FLOAT", "a DOUBLE"), ("a BIGINT", "a INT"), ("a INT", "b INT")):
        types = StructType.fromDDL(before), StructType.fromDDL(now)
        for allowed in (False, True):
            fits = allowed and now in ("a BIGINT", "a DOUBLE")
            with nullcontext() if fits else pytest.raises(ConfigurationError, match="--value-schema: does not fit"):
                check("--value-schema", *types, widens=allowed, checkpoint="c", output="o")
    with pytest.raises(ConfigurationError, match="field a was INT and is STRING now; new"):
        check("x", StructType.fromDDL("a INT"), StructType.fromDDL("a STRING"), widens=True, checkpoint="c", output="o")


# --- values


def test_strings_are_strings(spark: SparkSession) -> None:
    """In a field of strings, at any depth, a number, a boolean, an object or an array is a bad value."""
    form = ValueForm(
        "json", "s STRING, l ARRAY<STRING>, m MAP<STRING, STRING>, n STRUCT<s: STRING, i: INT>", on_bad="null"
    )
    good = [
        b'{"s": "x", "l": ["a", ""], "m": {"k": "5"}, "n": {"s": "1 day", "i": 1}}',
        b'{"s": null, "l": [null], "m": {"k": null}, "n": null}',
    ]
    bad = [
        b'{"s": 5}',
        b'{"s": true}',
        b'{"s": {"a": "b"}}',
        b'{"s": ["a"]}',
        b'{"l": ["a", 5]}',
        b'{"m": {"k": 1.5}}',
        b'{"n": {"s": 0}}',
    ]
    rows = parsed(rows_of(spark, *good, *bad), form).collect()
    assert [row[CORRUPT] for row in rows] == [None, None, *map(bytearray, bad)]
    assert rows[0].value.asDict(recursive=True) == {
        "s": "x",
        "l": ["a", ""],
        "m": {"k": "5"},
        "n": {"s": "1 day", "i": 1},
    }


def test_decimals_without_end(spark: SparkSession) -> None:
    """A decimal with a long exponent or thousands of digits is a bad value; Spark would calculate with it for hours."""
    form = ValueForm(
        "json", "d DECIMAL(9,2), s STRING, n ARRAY<STRUCT<d: DECIMAL(9,2)>>, m MAP<STRING, DECIMAL(9,2)>", on_bad="null"
    )
    endless = b"1e99999999"
    good = [
        b'{"d": 1.5e3, "s": ": 1e99999999, \\" 1e99999", "n": [{"d": 1e-9999}], "m": {"1e99999999": 1e0000000001}}',
        b'{"d": "1,000.5", "s": "%b"}' % (b"5" * 20_000),
    ]
    bad = [
        b'{"d": %b}' % endless,
        b'{"d": 1.5E-099999999}',
        b'{"d": "%b"}' % endless,
        b'{"n": [null, {"d": 1e+99999}]}',
        b'{"n": [{"d": "%b"}]}' % endless,
        b'{"m": {"k": "%b"}}' % endless,
        b'{"d": "%b"}' % (b"5" * 20_000),
    ]
    rows = parsed(rows_of(spark, *good, *bad), form).collect()
    assert [row[CORRUPT] for row in rows] == [None, None, *map(bytearray, bad)]
    assert rows[0].value.asDict(recursive=True) == {
        "d": Decimal("1500.00"),
        "s": ': 1e99999999, " 1e99999',
        "n": [{"d": Decimal("0.00")}],
        "m": {"1e99999999": Decimal("10.00")},
    }
    text = F.col("value").cast("string")
    field = StructType([StructField("d", DecimalType(9, 2))])
    assert [row[0] for row in rows_of(spark, *good, *bad[:3]).select(fits(text, field)).collect()] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_avro_lengths_that_are_claimed(spark: SparkSession) -> None:
    """A value of a few bytes that says it has a gigabyte is bad; Spark's Java process would end, and any retry too."""
    fields = {
        "s": "string",
        "b": "bytes",
        "l": {"type": "array", "items": "long"},
        "m": {"type": "map", "values": "string"},
    }
    several = [{"name": name, "type": ["null", kind]} for name, kind in fields.items()]
    schema = json.dumps({"type": "record", "name": "R", "fields": several})
    good = b"\x02\x02a" + b"\x02\x02b" + b"\x02\x02\x0a\x00" + b"\x02\x02\x02k\x02v\x00"
    for framing, before in (("none", b""), ("confluent", bytes(5))):
        bad = [
            before + b"\x00" * place + b"\x02" + number_bytes(claimed)
            for place in range(4)
            for claimed in (2**31 - 9, 2**28)
        ]
        rows = parsed(rows_of(spark, before + good, *bad), ValueForm("avro", schema, framing, on_bad="null"))  # type: ignore[arg-type]  # a literal
        first, *others = rows.collect()
        assert first.value.asDict() == {"s": "a", "b": bytearray(b"b"), "l": [5], "m": {"k": "v"}}
        assert [row[CORRUPT] for row in others] == [*map(bytearray, bad)]


def test_bad_json_names_its_field(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """What does not fit is named with its path and its type, and not with what stands in it."""
    topic = make_topic(partitions=1)
    cases = {
        b'{"id": "secret"}': "its field id is no BIGINT",
        b'{"id": 1, "note": 5}': "its field note is no STRING",
        b'{"id": 1, "lines": [{"price": 1}, {"price": "secret"}]}': "its field lines[].price is no DECIMAL(9,2)",
        b'{"id": 1, "lines": [5]}': "its field lines[] is no object",
        b'{"tags": {"a": true}}': "its field tags{} is no STRING",
        b"[1]": "it is no JSON object",
        b'{"note": "\xff"}': "it is no UTF-8",
        b'{"id": 1}': None,
    }
    produce(broker, topic, {0: [Record(None, value) for value in cases]})
    schema = "id BIGINT, note STRING, lines ARRAY<STRUCT<price: DECIMAL(9,2)>>, tags MAP<STRING, STRING>"
    chosen = settings(topic, value=ValueForm("json", schema))
    for offset, (value, said) in enumerate(cases.items()):
        error = ValueError(f"x: topic {topic} partition 0 offset {offset}: the value, {len(value)} bytes, is not …")
        assert fault(spark, chosen, error) == said
    assert fault(spark, chosen, ValueError("something else")) is None


# --- the command line


def test_value_schema_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema may stand on the command line itself; a file of that name wins, and a path that is none is told."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.ddl").write_text("id BIGINT")

    def schema(text: str, form: str = "json") -> str | None:
        arguments = parser().parse_args([*BASIS, "--topic", "t", "--value-format", form, "--value-schema", text])
        configure(arguments)
        return settings_of(arguments).value.schema

    avro = '{"type": "record", "name": "R", "fields": []}'
    for text in ("id BIGINT, note STRING", "`a b` INT", "id:BIGINT", '{"type": "struct", "fields": []}'):
        assert schema(text) == text
    assert schema(avro, "avro") == avro
    assert schema("order.ddl") == "id BIGINT"
    for wrong in ("ordr.ddl", "/no/such folder/order.ddl", "x" * 5000):
        with pytest.raises(ConfigurationError, match=r"--value-schema: .* cannot be read: (No such|File name)"):
            schema(wrong)


def test_wrong_topic_before_java(
    broker: str, make_topic: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is not there is told before a session begins, and is not created by asking."""
    monkeypatch.setattr(job, "open_session", None)
    options = ["--bootstrap-servers", broker, "--topic", make_topic(), "--topic", "no-such-topic", "--topic", "a b"]
    for _ in range(2):
        assert job.main([*options, "--output", "o", "--checkpoint", "c", "--once"]) == 2
        assert capsys.readouterr().err == (
            f"ingest: --topic: no-such-topic is not on the broker at {broker}; create it, or check its name\n"
        )


def test_registry_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of a registry that do not go together are told before anything is asked; no secret is repeated."""
    config = tmp_path / "registry.properties"
    config.write_text("basic.auth.user.info=user:pass-9\nbasic.auth.credentials.source=URL\n")
    url = ["--schema-registry-url", "http://127.0.0.1:9"]
    for options, message in (
        (["--schema-registry-subject", "s"], "--schema-registry-url: is missing"),
        (["--value-format", "protobuf"], "--value-format: protobuf needs --schema-registry-url"),
        (url, "--schema-registry-url: needs --value-format avro, json or protobuf"),
        ([*url, "--value-format", "avro", "--avro-framing", "confluent"], "--avro-framing: skips the schema's id"),
        (
            [*url, "--value-format", "avro", "--schema-registry-config", "/nowhere"],
            "--schema-registry-config: /nowhere cannot be read",
        ),
        (
            ["--schema-registry-url", "http://user:pass-9@h", "--value-format", "avro"],
            "--schema-registry-url: holds credentials",
        ),
        (
            [*url, "--value-format", "avro", "--schema-registry-config", str(config)],
            "--schema-registry-config: has another basic.auth.credentials.source than USER_INFO",
        ),
    ):
        assert job.main([*BASIS, "--topic", "t", *options]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
        assert "pass-9" not in err
    monkeypatch.setattr("jobs.ingesting.table_schema.find_spec", lambda name: None)
    assert job.main([*BASIS, "--topic", "t", *url, "--value-format", "avro"]) == 2
    assert "fastavro is not installed; run: pip install 'wideload[schema-registry]'" in capsys.readouterr().err
