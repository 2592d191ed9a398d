"""What `ingest` makes of values: fields of what fits, the bytes of what does not; and schemas that change."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.types import DecimalType, StructField, StructType

from jobs.ingesting.json_fault import fault
from jobs.ingesting.kept_schema import changes, check
from jobs.ingesting.values import CORRUPT, Framing, ValueForm, ValueFormat, fits, parsed
from jobs.records.schemas import RECORD
from tests.app.payloads.swept import write
from tests.jobs.ingests import Settings, ingest, require_delta, rows_of, written
from transforms.errors import ConfigurationError
from transforms.record import Record
from transforms.record_format import number_bytes

BAD = object()
FIVES = b"5" * 20_000
ENDLESS = b"1e99999999"
FRAME = struct.pack(">bI", 0, 300)


def avro(**fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": k} for n, k in fields.items()]})


ORDER = avro(id="long", note=["null", "string"])
NULLABLE = avro(
    s=["null", "string"],
    b=["null", "bytes"],
    l=["null", {"type": "array", "items": "long"}],
    m=["null", {"type": "map", "values": "string"}],
)
ALL = b"\x02\x02a" + b"\x02\x02b" + b"\x02\x02\x0a\x00" + b"\x02\x02\x02k\x02v\x00"
# Values of a few bytes that say they have a gigabyte: Spark's Java process would end, and any retry too.
CLAIMS = [b"\x00" * place + b"\x02" + number_bytes(size) for place in range(4) for size in (2**31 - 9, 2**28)]
STRINGS = "s STRING, l ARRAY<STRING>, m MAP<STRING, STRING>, n STRUCT<s: STRING, i: INT>"
IN_STRINGS = [
    '{"s": "x", "l": ["a", ""], "m": {"k": "5"}, "n": {"s": "1 day", "i": 1}}',
    '{"s": null, "l": [null], "m": {"k": null}, "n": null}',
]
DECIMALS = "d DECIMAL(9,2), s STRING, n ARRAY<STRUCT<d: DECIMAL(9,2)>>, m MAP<STRING, DECIMAL(9,2)>"
IN_DECIMALS = (
    b'{"d": 1.5e3, "s": ": 1e99999999, \\" 1e99999", "n": [{"d": 1e-9999}], "m": {"1e99999999": 1e0000000001}}'
)
NO_DECIMALS = [
    b'{"d": %b}' % ENDLESS,
    b'{"d": 1.5E-099999999}',
    b'{"d": "%b"}' % ENDLESS,
    b'{"n": [null, {"d": 1e+99999}]}',
    b'{"n": [{"d": "%b"}]}' % ENDLESS,
    b'{"m": {"k": "%b"}}' % ENDLESS,
    b'{"d": "%b"}' % FIVES,
]


def bad(*values: bytes) -> dict[bytes, Any]:
    return dict.fromkeys(values, BAD)


@pytest.mark.parametrize(
    ("form", "schema", "framing", "values"),
    [
        pytest.param("string", None, "none", {"ü".encode(): "ü", b"": "", b"\xff": BAD}, id="text"),
        pytest.param(
            "json",
            "id BIGINT, note STRING",
            "none",
            {
                b'{"id": 7, "note": "n", "more": 1}': {"id": 7, "note": "n"},
                b"{}": {"id": None, "note": None},
                **bad(b"", b"{", b"null", b'"text"', b'{"id": "seven"}', b'{"id": 1} \xff'),
                **bad(b'{"id": 1, "note": "\xff"}'),
            },
            id="json",
        ),
        # In a field of strings, at any depth, a number, a boolean, an object or an array is bad.
        pytest.param(
            "json",
            STRINGS,
            "none",
            {
                **{text.encode(): json.loads(text) for text in IN_STRINGS},
                **bad(b'{"s": 5}', b'{"s": true}', b'{"s": {"a": "b"}}', b'{"s": ["a"]}', b'{"l": ["a", 5]}'),
                **bad(b'{"m": {"k": 1.5}}', b'{"n": {"s": 0}}'),
            },
            id="json-strings",
        ),
        # With a long exponent or thousands of digits Spark would calculate for hours.
        pytest.param(
            "json",
            DECIMALS,
            "none",
            {
                IN_DECIMALS: {
                    "d": Decimal("1500.00"),
                    "s": ': 1e99999999, " 1e99999',
                    "n": [{"d": Decimal("0.00")}],
                    "m": {"1e99999999": Decimal("10.00")},
                },
                b'{"d": "1,000.5", "s": "%b"}' % FIVES: {
                    "d": Decimal("1000.50"),
                    "s": FIVES.decode(),
                    "n": None,
                    "m": None,
                },
                **bad(*NO_DECIMALS),
            },
            id="json-decimals",
        ),
        pytest.param(
            "avro",
            ORDER,
            "none",
            {
                b"\x0e\x02\x02n": {"id": 7, "note": "n"},
                b"\x00\x00": {"id": 0, "note": None},
                **bad(b"", b"\x0e", b"\x0e\x02\x7fn"),
            },
            id="avro",
        ),
        pytest.param(
            "avro",
            ORDER,
            "confluent",
            {
                FRAME + b"\x0e\x02\x02n": {"id": 7, "note": "n"},
                **bad(b"\x0e\x02\x02n", FRAME[:4], FRAME, b"\x01" + FRAME[1:] + b"\x0e\x02\x02n"),
            },
            id="avro-framed",
        ),
        # A record whose fields are all null is a record, and none that could not be read.
        pytest.param("avro", avro(a=["null", "long"]), "none", {b"\x00": {"a": None}, b"\x04": BAD}, id="avro-nulls"),
        *(
            pytest.param(
                "avro",
                NULLABLE,
                framing,
                {
                    before + ALL: {"s": "a", "b": bytearray(b"b"), "l": [5], "m": {"k": "v"}},
                    **bad(*(before + claim for claim in CLAIMS)),
                },
                id=f"avro-claims-{framing}",
            )
            for framing, before in (("none", b""), ("confluent", bytes(5)))
        ),
    ],
)
def test_parsed(
    spark: SparkSession, form: ValueFormat, schema: str | None, framing: Framing, values: dict[bytes, Any]
) -> None:
    """What fits becomes text or fields; what is none keeps its bytes, and nothing else does; a tombstone stays one."""
    rows = parsed(rows_of(spark, *values, None), ValueForm(form, schema, framing, on_bad="null")).collect()
    found = [row.value.asDict(recursive=True) if hasattr(row.value, "asDict") else row.value for row in rows]
    assert found == [*(None if each is BAD else each for each in values.values()), None]
    kept = [bytearray(value) if each is BAD else None for value, each in values.items()]
    assert [row[CORRUPT] for row in rows] == [*kept, None]
    assert rows[0].__fields__ == ["key", "value", CORRUPT, *RECORD.fieldNames()[2:]]


def test_fits(spark: SparkSession) -> None:
    """A text is held against one field as the whole value is."""
    field = StructType([StructField("d", DecimalType(9, 2))])
    rows = rows_of(spark, IN_DECIMALS, *NO_DECIMALS[:3]).select(fits(F.col("value").cast("string"), field)).collect()
    assert [row[0] for row in rows] == [True, False, False, False]


def test_parsed_json_of_large_values(spark: SparkSession) -> None:
    """A string of 21 million characters, more than Spark's parser and variants take by themselves, is no bad value."""
    row = rows_of(spark, b"x").withColumn(
        "value", F.expr("cast(concat('{\"a\": \"{', repeat('b', 20999999), '\"}') as binary)")
    )
    found = parsed(row, ValueForm("json", "a STRING")).select(F.length("value.a").alias("length")).first()
    assert found is not None
    assert found.length == 21_000_000


@pytest.mark.parametrize(
    ("form", "schema", "message"),
    [
        ("json", "id BIGINT name", "Spark does not read it as a schema: "),
        ("json", '{"type": "object", "properties": {}}', "is not a Spark schema: specify DDL"),
        ("json", "{", "is not JSON"),
        ("avro", avro(a="integer"), "Spark does not read it as Avro: "),
    ],
)
def test_parsed_bad_schema(spark: SparkSession, form: ValueFormat, schema: str, message: str) -> None:
    """A schema that is none of Spark's, or names a type that is not there, is told in a sentence."""
    with pytest.raises(ConfigurationError, match=f"--value-schema: {message}"):
        parsed(rows_of(spark, b"{}"), ValueForm(form, schema))


def test_bad_json_names_its_field(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """What does not fit is named with its path and its type, and not with what stands in it."""
    topic = make_topic(partitions=1)
    cases = {
        b'{"id": "secret"}': "its field id is not BIGINT",
        b'{"id": 1, "note": 5}': "its field note is not STRING",
        b'{"id": 1, "lines": [{"price": 1}, {"price": "secret"}]}': "its field lines[].price is not DECIMAL(9,2)",
        b'{"id": 1, "lines": [5]}': "its field lines[] is not an object",
        b'{"tags": {"a": true}}': "its field tags{} is not STRING",
        b"[1]": "it is not a JSON object",
        b'{"note": "\xff"}': "it is not UTF-8",
        b'{"id": 1}': None,
    }
    write(broker, topic, *(Record(None, value) for value in cases))
    schema = "id BIGINT, note STRING, lines ARRAY<STRUCT<price: DECIMAL(9,2)>>, tags MAP<STRING, STRING>"
    chosen = settings(topic, value=ValueForm("json", schema))
    for offset, (value, said) in enumerate(cases.items()):
        error = ValueError(f"x: topic {topic} partition 0 offset {offset}: the value, {len(value)} bytes, is not …")
        assert fault(spark, chosen, error) == said
    assert fault(spark, chosen, ValueError("something else")) is None


# --- schemas that change


def test_schema_of_values_may_grow(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """New fields are added, and can be read with the old ones; any other change is refused before a write."""
    topic = make_topic(partitions=1)
    value = Record(None, b'{"i": 1, "n": [{"a": 2, "b": "x"}], "more": "m"}')

    def of(schema: str) -> Any:
        return settings(topic, value=ValueForm("json", schema))

    write(broker, topic, value)
    with pytest.raises(ConfigurationError, match="Spark does not read it"):
        ingest(spark, of("i INTEGR"))
    chosen = of("i INT, n ARRAY<STRUCT<a: INT>>")
    ingest(spark, chosen)
    write(broker, topic, value)
    with pytest.raises(ConfigurationError) as refused:
        ingest(spark, of("i STRING, n ARRAY<STRUCT<b: STRING>>, more STRING"))
    assert str(refused.value) == (
        f"--value-schema: does not fit what checkpoint {chosen.checkpoint} has written: field i was INT and is STRING "
        "now, field n[].a is missing; new fields may be added, and in a Delta table with "
        "delta.enableTypeWidening=true integers may get longer (INT to BIGINT) and FLOAT may become DOUBLE; for "
        f"any other change use the former schema, or move {chosen.output} away and use --rebuild, which reads again "
        "what the topics still contain"
    )
    with pytest.raises(ConfigurationError, match="field i was INT and is BIGINT now; new fields"):
        ingest(spark, of("i BIGINT, n ARRAY<STRUCT<a: INT>>"))
    grown = of("more STRING, n ARRAY<STRUCT<a: INT, b: STRING>>, i INT")
    assert ingest(spark, grown).rows == 1
    assert [(row.value.i, row.value.more, row.value.n[0].asDict()) for row in written(spark, grown)] == [
        (1, None, {"a": 2, "b": None}),
        (1, "m", {"a": 2, "b": "x"}),
    ]
    with pytest.raises(ConfigurationError, match="field more is missing"):
        ingest(spark, of("i INT, n ARRAY<STRUCT<a: INT, b: STRING>>"))
    note = Path(chosen.checkpoint, "wideload.json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "values": {"type": "struct"}}))
    note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
    with pytest.raises(ConfigurationError, match=r"wideload\.json is damaged; it contains the schema of the values"):
        ingest(spark, grown)


def test_wider_numbers_in_delta(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], settings: Settings
) -> None:
    """A Delta table whose owner allows it gets wider numbers, at any depth, and can be read as a whole."""
    require_delta(spark)
    topic = make_topic(partitions=1)
    narrow, wide = ("i {0}, s SMALLINT, f {1}, n ARRAY<STRUCT<a: {0}>>, m MAP<STRING, {1}>".format(*each)
                    for each in (("INT", "FLOAT"), ("BIGINT", "DOUBLE")))  # fmt: skip

    def of(schema: str) -> Any:
        return settings(topic, format="delta", value=ValueForm("json", schema))

    write(broker, topic, Record(None, b'{"i": 1, "s": 2, "f": 0.1, "n": [{"a": 3}], "m": {"k": 0.5}}'))
    ingest(spark, of(narrow))
    big = b'{"i": 1099511627776, "s": 70000, "f": 0.1, "n": [{"a": 1099511627776}], "m": {"k": 0.1}, "new": 1}'
    write(broker, topic, Record(None, big))
    chosen = of(wide.replace("SMALLINT", "INT") + ", new INT")
    with pytest.raises(ConfigurationError, match=r"field i was INT and is BIGINT now, .* field m\{\} was FLOAT"):
        ingest(spark, chosen)
    spark.sql(f"ALTER TABLE delta.`{chosen.output}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    ingest(spark, chosen)
    rows = [row.value.asDict(recursive=True) for row in written(spark, chosen)]
    assert rows[1] == json.loads(big)
    assert rows[0] == {"i": 1, "s": 2, "f": pytest.approx(0.1), "n": [{"a": 3}], "m": {"k": 0.5}, "new": None}
    with pytest.raises(ConfigurationError, match="field i was BIGINT and is INT now"):
        ingest(spark, of(narrow))


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


@pytest.mark.parametrize(
    ("before", "now", "widens"),
    [
        ("INT", "BIGINT", True),
        ("FLOAT", "DOUBLE", True),
        ("BIGINT", "INT", False),
        ("INT", "STRING", False),
    ],
)
def test_wider_types(spark: SparkSession, before: str, now: str, *, widens: bool) -> None:
    """A wider number is refused, unless the table takes it; any other type always."""
    types = [StructType.fromDDL(f"a {kind}") for kind in (before, now)]
    for allowed in (False, True):
        refused = pytest.raises(ConfigurationError, match=f"x: does not fit .* field a was {before} and is {now} now;")
        with nullcontext() if widens and allowed else refused:
            check("x", types[0], types[1], widens=allowed, checkpoint="c", output="o")
