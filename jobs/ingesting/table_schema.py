"""The schema of the table where values are in a registry's framing: the newest of the subject, or the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from pyspark.sql.types import StructType

from jobs.driver.failures import JobFailedError
from jobs.ingesting.kept_schema import as_wide
from jobs.ingesting.registered import TABLE_FORMATS, RegisteredForm
from jobs.ingesting.registry import OPTION, BadValueError, Registered, Registry, RegistrySettings
from jobs.ingesting.values import ValueForm
from transforms.errors import ConfigurationError

_NEEDED = {
    "avro": ("fastavro", "urllib3"),
    "json": ("jsonschema", "re2", "referencing", "urllib3"),
    "protobuf": ("google.protobuf", "grpc_tools", "urllib3"),
}
_FORMAT = "--value-format"


def check(form: ValueForm, registry: RegistrySettings) -> None:
    """Makes sure that format and registry fit together; makes no request.

    Raises:
        ConfigurationError: they do not, or a package is missing.
    """
    if form.format not in TABLE_FORMATS:
        raise ConfigurationError(OPTION, f"needs {_FORMAT} avro, json or protobuf")
    if form.framing != "none":
        raise ConfigurationError("--avro-framing", f"skips the schema's id, and {OPTION} needs it; leave it out")
    registry.check()
    missing = [name for name in _NEEDED[form.format] if not _installed(name)]
    if missing:
        raise ConfigurationError(OPTION, f"{missing[0]} is not installed; run: pip install 'wideload[schema-registry]'")


def registered(
    form: ValueForm,
    settings: RegistrySettings,
    subject: str | None,
    topics: Sequence[str],
    message: str | None = None,
) -> ValueForm:
    """The form of the values with the schema of the table, which is the newest of the subject if `form` has none.

    Args:
        form: as the user gave it, after `check`.
        settings: of the registry, which is asked now.
        subject: the subject of the table's schema; None for `TOPIC-value`.
        topics: that are read; none for a pattern.
        message: of Protobuf, the full name of the table's message; None for the first of the schema.

    Raises:
        ConfigurationError: the subject is not there, its schema has no columns, or the registry does not answer.
    """
    kind = TABLE_FORMATS[form.format]
    if form.schema is not None and form.format != "protobuf":
        given = Registered(kind, form.schema)
        return replace(form, registered=RegisteredForm(settings, form.format, given))
    if subject is None and len(topics) != 1:
        raise ConfigurationError(
            "--schema-registry-subject",
            "is missing: with several topics, specify the subject whose schema the table has",
        )
    subject = subject or f"{topics[0]}-value"
    where = f"the newest schema of {subject}"
    try:
        table = Registry(settings).schema(subject)
        if table is None:
            raise ConfigurationError(
                "--schema-registry-subject",
                f"the registry at {settings.url} has no subject {subject!r}; specify the subject of the values",
            )
        if table.kind != kind:
            raise ConfigurationError(_FORMAT, f"is {form.format}, and {where} is of the type {table.kind}")
        found = RegisteredForm(settings, form.format, table, message)
        return replace(form, schema=form.schema or found.columns(), registered=found)
    except JobFailedError as exc:
        raise ConfigurationError(OPTION, str(exc)) from exc
    except BadValueError as exc:
        raise ConfigurationError(OPTION, f"{where} is one {exc}; specify the columns with --value-schema") from exc


def as_table(form: ValueForm, table: StructType) -> ValueForm:
    """The form that reads values as the table has them already, where the registry's schema has narrower numbers.

    Avro resolves an int as the table's long, and Protobuf writes both the same way. Other formats stay as they are.
    """
    if form.registered is None or form.schema is None:
        return form
    if form.format == "avro":
        from jobs.ingesting import avro_values

        text = avro_values.columns(form.registered.table, kept=table)
        return replace(form, schema=text, registered=replace(form.registered, table=Registered("AVRO", text)))
    if form.format == "protobuf":
        return replace(form, schema=as_wide(form.json_schema(), table).json())
    return form


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False
