"""The content of values: text, JSON or Avro, parsed by Spark's own functions; a registry's values are made so first.

A value that does not fit its format is a failure, or its bytes are kept in a separate column; no value is lost, and
none is parsed in part. A tombstone stays one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
)

from jobs.driver.installed_spark import release
from jobs.driver.session import require_class
from jobs.ingesting.json_columns import JSON_OPTIONS, bounded, strings_fit
from jobs.ingesting.registered import PLAIN, REASON, RegisteredForm, made_plain
from transforms.errors import ConfigurationError

ValueFormat = Literal["binary", "string", "json", "avro", "protobuf"]
Framing = Literal["none", "confluent"]
OnBad = Literal["fail", "null"]

CORRUPT = "_corrupt_value"
"""The bytes of a value that could not be parsed; null for all others."""

_WHAT = MappingProxyType(
    {"string": "text in UTF-8", "json": "JSON of --value-schema", "avro": "Avro of --value-schema"}
)
_MARK = "_wideload"
_OPTION = "--value-schema"
_CONFLUENT_BYTES = 5
_PARSED = "_parsed"
_TEXT = "_text"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The format of values.

    Attributes:
        format: as `--value-format`.
        schema: for JSON, Spark's own DDL or JSON; for Avro, the content of an .avsc file: the schema of the writer.
        framing: the bytes before the Avro: none, or a zero byte and the 4 bytes of an id in a schema registry.
        on_bad: whether a value that cannot be parsed is a failure.
        registered: for values in the framing of a schema registry; `schema` is then that of the table.
    """

    format: ValueFormat = "binary"
    schema: str | None = None
    framing: Framing = "none"
    on_bad: OnBad = "fail"
    registered: RegisteredForm | None = None

    def check(self, *, registry: bool = False) -> None:
        """Makes sure that the parts fit together, as far as can be checked without Spark.

        Args:
            registry: whether a schema registry will give the schema, if there is none.

        Raises:
            ConfigurationError: they do not, or the schema must be JSON and is not.
        """
        if self.format in ("binary", "string"):
            if self.schema is not None:
                raise ConfigurationError(_OPTION, "is for --value-format json and avro")
        elif self.format == "protobuf" and not registry:
            raise ConfigurationError("--value-format", "protobuf needs --schema-registry-url")
        elif self.schema is None and not registry:
            raise ConfigurationError(_OPTION, f"--value-format {self.format} requires the file of its schema")
        elif self.format == "avro" and self.schema is not None:
            self.avro_schema()
        if self.format in ("json", "protobuf") and not hasattr(F, "schema_of_variant"):
            raise ConfigurationError(
                "--value-format",
                f"{self.format} requires Spark 4.0, whose variants distinguish strings from numbers; this is "
                f"{pyspark.__version__}, which supports binary, string and avro",
            )
        if self.framing != "none" and self.format != "avro":
            raise ConfigurationError("--avro-framing", "is for --value-format avro")
        if self.on_bad != "fail" and self.format == "binary":
            raise ConfigurationError(
                "--on-bad-value", "any value is binary; it is for --value-format string, json, avro"
            )

    def avro_schema(self) -> dict[str, Any]:
        """The schema of an Avro record.

        Raises:
            ConfigurationError: it is not such a schema.
        """
        found = _json(self.schema or "")
        if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
            raise ConfigurationError(
                _OPTION, 'is not an Avro schema of a record: {"type": "record", "fields": [...], ...}'
            )
        return found

    def json_schema(self) -> StructType:
        """The schema of a JSON object; DDL needs a session.

        Raises:
            ConfigurationError: it is not such a schema.
        """
        text = (self.schema or "").strip()
        try:
            if not text.startswith("{"):
                return cast("StructType", StructType.fromDDL(text))
            found = _json(text)
            if found.get("type") == "struct":
                return StructType.fromJson(found)
        except ConfigurationError:
            raise
        except (PySparkException, LookupError, TypeError, ValueError) as exc:
            reason = str(exc).strip().splitlines()[0]
            raise ConfigurationError(_OPTION, f"Spark does not read it as a schema: {reason}") from exc
        raise ConfigurationError(
            _OPTION,
            'is not a Spark schema: specify DDL (id BIGINT, name STRING), or JSON ({"type": "struct", ...})',
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ConfigurationError(_OPTION, f"is not JSON: {exc}") from exc


def parsed(rows: DataFrame, form: ValueForm) -> DataFrame:
    """`rows` with `value` parsed as `form` says, and with the column `CORRUPT` if bad values are not a failure.

    Raises:
        ConfigurationError: the schema is wrong, or Spark cannot read Avro.
    """
    if form.format == "binary":
        return rows
    columns = {name: F.col(name) for name in rows.columns}
    content, known = F.col("value"), F.lit(True)
    message = F.lit(f"is not {_WHAT.get(form.format)}")
    if form.registered is not None:
        rows = made_plain(rows, form.registered)
        content, known = F.col(PLAIN), F.col(PLAIN).isNotNull()
        message = F.coalesce(REASON, F.lit("does not fit the columns of the table"))
    taken, good, value = _PARSERS[form.format](rows, form, content)
    bad = F.col("value").isNotNull() & ~F.coalesce(known & good, F.lit(False))
    failure = F.raise_error(_message(message)) if form.on_bad == "fail" else F.lit(None)
    columns["value"] = F.when(bad, failure).when(F.col("value").isNotNull(), value).alias("value")
    if form.on_bad == "null":
        at = list(columns).index("value") + 1
        corrupt = F.when(bad, F.col("value")).alias(CORRUPT)
        return taken.select(*[*columns.values()][:at], corrupt, *[*columns.values()][at:])
    return taken.select(*columns.values())


def _message(what: Column) -> Column:
    places = ("topic", "partition", "offset", F.octet_length("value"))
    return F.format_string("topic %s partition %d offset %d: the value, %d bytes, %s", *places, what)


def _text(rows: DataFrame, _: ValueForm, content: Column) -> tuple[DataFrame, Column, Column]:
    text = content.cast("string")
    return rows, is_utf8(content), text


def _object(rows: DataFrame, form: ValueForm, content: Column) -> tuple[DataFrame, Column, Column]:
    schema = form.json_schema()
    text = F.col(_TEXT)
    taken = rows.withColumn(_TEXT, bounded(content.cast("string"), schema))
    taken = taken.withColumn(_PARSED, _from_json(text, schema))
    whole = F.col(_PARSED)
    good = is_utf8(content) & whole.isNotNull() & whole.getField(_MARK).isNull() & strings_fit(text, whole, schema)
    return taken, good, F.struct(*(whole.getField(name).alias(name) for name in schema.names))


def is_utf8(content: Column) -> Column:
    """Whether bytes are text in UTF-8."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(content.cast("string"))
    # Spark 3.5 decodes what is not UTF-8 too, to other characters.
    return F.encode(F.decode(content, "UTF-8"), "UTF-8") == content


def fits(text: Column, schema: StructType) -> Column:
    """Whether a text is a JSON object with fields of this schema; fields that the schema does not have may be there."""
    text = bounded(text, schema)
    whole = _from_json(text, schema)
    good = whole.isNotNull() & whole.getField(_MARK).isNull() & strings_fit(text, whole, schema)
    return F.coalesce(good, F.lit(False))


def _from_json(text: Column, schema: StructType) -> Column:
    """The fields; if a value does not fit, those that Spark can read, and the text in the field `_MARK`."""
    marked = StructType([*schema.fields, StructField(_MARK, StringType())])
    return F.from_json(text, marked, {**JSON_OPTIONS, "columnNameOfCorruptRecord": _MARK})


def _record(rows: DataFrame, form: ValueForm, content: Column) -> tuple[DataFrame, Column, Column]:
    from pyspark.sql.avro.functions import from_avro  # its package is not always there

    avro = "org.apache.spark.sql.avro.AvroDataToCatalyst"
    require_class(rows.sparkSession, avro, "--value-format", "Avro", release().avro)
    schema = form.avro_schema()
    # Spark makes a record of nulls of a value that it cannot read; a record whose fields are all null looks the same.
    # One more field, which the reader fills in, distinguishes the two.
    mark = {"name": _MARK, "type": ["boolean", "null"], "default": True}
    reader = json.dumps({**schema, "fields": [*schema["fields"], mark]})
    body, framed = content, F.lit(True)
    if form.framing == "confluent":
        framed = (F.octet_length(body) >= _CONFLUENT_BYTES) & (F.substring(body, 1, 1) == F.lit(bytearray(1)))
        body = F.when(framed, F.substring(body, _CONFLUENT_BYTES + 1, 2**31 - 1 - _CONFLUENT_BYTES))
    writer, options = json.dumps(schema), {"mode": "PERMISSIVE"}
    try:
        if form.registered is None:
            # A value of five bytes may say that a string of a gigabyte follows, and Avro's Java makes room for it
            # before it looks: the whole process ends. To pass over all fields needs no room, and finds where it is cut.
            passed = from_avro(body, writer, {**options, "avroSchema": json.dumps({**schema, "fields": [mark]})})
            body = F.when(passed.getField(_MARK).isNotNull(), body)
        taken = rows.withColumn(_PARSED, from_avro(body, writer, {**options, "avroSchema": reader}))
        whole = F.col(_PARSED)
        names = [field["name"] for field in schema["fields"]]
        found = taken.select(whole)  # Spark reads the schema only now
        assert found.columns
    except (PySparkException, Py4JJavaError) as exc:
        told = re.search(r"SchemaParseException: (.*)", str(exc))
        reason = told[1].strip() if told else str(exc).splitlines()[0]
        raise ConfigurationError(_OPTION, f"Spark does not read it as Avro: {reason}") from exc
    good = framed & whole.getField(_MARK).isNotNull()
    return taken, good, F.struct(*(whole.getField(name).alias(name) for name in names))


_PARSERS = MappingProxyType({"string": _text, "json": _object, "avro": _record, "protobuf": _object})
