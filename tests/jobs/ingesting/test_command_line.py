"""What `ingest` says of its options, before Spark starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from app.config.arguments import configure
from jobs import ingest as job
from jobs.driver.failures import JobFailedError
from jobs.driver.identifier_limits import LIMIT_OPTION
from jobs.ingest import IngestSettings, main
from jobs.ingesting.command_line import parser, settings_of
from jobs.ingesting.query_progress import Tally
from transforms.errors import ConfigurationError

FOLDERS = ["--output", "o", "--checkpoint", "c", "--once"]
BASIS = ["--bootstrap-servers", "127.0.0.1:1", *FOLDERS, "--topic", "t"]
REGISTRY = ["--schema-registry-url", "http://127.0.0.1:9"]
AVRO = ["--value-format", "avro"]


def test_source_options() -> None:
    """Whole records from the beginning, only committed ones, and loss is a failure; what the user gives wins."""
    options = IngestSettings("b:9092", "o", "c", topics=("x", "y")).source_options()
    assert options == {
        "kafka.bootstrap.servers": "b:9092",
        "subscribe": "x,y",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.allow.auto.create.topics": "false",
        "maxOffsetsPerTrigger": "100000",
    }
    given = {"kafka.isolation.level": "read_uncommitted", "kafka.sasl.jaas.config": "pass-9"}
    settings = IngestSettings(
        "b:9092",
        "o",
        "c",
        subscribe_pattern="orders-.*",
        max_offsets_per_trigger=0,
        min_partitions=4,
        # Spark, which knows no such option, does not see it.
        kafka_options={**given, LIMIT_OPTION.upper(): "false"},
    )
    options |= {**given, "subscribePattern": "orders-.*", "minPartitions": "4"}
    assert settings.source_options() == {
        n: o for n, o in options.items() if n not in ("subscribe", "maxOffsetsPerTrigger")
    }
    assert "pass-9" not in repr(settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kafka-option", "pass-9-without-equals"], "--kafka-option: must be KEY=VALUE"),
        (["--kafka-config", "/nowhere/client.properties"], "/nowhere/client.properties cannot be read"),
        (["--jars", "/nowhere/connector.jar"], "--jars: /nowhere/connector.jar is neither a file nor a directory"),
        (["--bootstrap-servers", "broker"], "bootstrap.servers: found 'broker', allowed is host:port"),
        ([], "no broker answers: 127.0.0.1:1 ("),
        (["--topic", "x" * 250], "--topic: the topic name has 250 characters, allowed are 249; shorten it\n"),
        (["--max-bytes-per-trigger", "5"], "no option --max-bytes-per-trigger; did you mean --max-offsets-per-trig"),
        (
            ["--partition-by", "value"],
            "value would create a directory for each value; topic, partition, date, hour can be used",
        ),
        (["--partition-by", "offset"], "is one of topic, partition, date, hour, not 'offset'"),
        (["--value-format", "json"], "--value-schema: --value-format json requires the file of its schema"),
        (["--value-schema", "id INT"], "--value-schema: is for --value-format json and avro"),
        ([*AVRO, "--value-schema", '{"type": "string"}'], "--value-schema: is not an Avro schema of a record"),
        ([*AVRO, "--value-schema", "{"], "--value-schema: is not JSON"),
        ([*AVRO, "--value-schema", "/nowhere/a.avsc"], "/nowhere/a.avsc cannot be read"),
        (["--avro-framing", "confluent"], "--avro-framing: is for --value-format avro"),
        (["--on-bad-value", "null"], "--on-bad-value: any value is binary"),
        (["--schema-registry-subject", "s"], "--schema-registry-url: is missing"),
        (["--value-format", "protobuf"], "--value-format: protobuf needs --schema-registry-url"),
        (REGISTRY, "--schema-registry-url: needs --value-format avro, json or protobuf"),
        ([*REGISTRY, *AVRO, "--avro-framing", "confluent"], "--avro-framing: skips the schema's id"),
        ([*REGISTRY, *AVRO, "--protobuf-message", "M"], "--protobuf-message: is for --value-format protobuf"),
        ([*REGISTRY, *AVRO, "--schema-registry-config", "/nowhere"], "-registry-config: /nowhere cannot be read"),
        (["--schema-registry-url", "http://user:pass-9@h", *AVRO], "--schema-registry-url: contains credentials"),
        (
            [*REGISTRY, *AVRO, "--schema-registry-config", "r.properties"],
            "--schema-registry-config: has a basic.auth.credentials.source other than USER_INFO",
        ),
    ],
)
def test_main_bad_option(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong, or does not go together, is one sentence on stderr and exit status 2; it repeats no secret."""
    monkeypatch.chdir(tmp_path)
    Path("r.properties").write_text("basic.auth.user.info=user:pass-9\nbasic.auth.credentials.source=URL\n")
    try:
        status: object = main([*BASIS, *options])
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert message in captured.err
    assert "pass-9" not in captured.err


def test_verbose_shows_the_stack() -> None:
    """Who asks for it gets the error itself."""
    with pytest.raises(ConfigurationError, match="no broker answers"):
        main([*BASIS, "--verbose"])


def test_registry_without_its_packages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that is missing is told."""
    monkeypatch.setattr("jobs.ingesting.table_schema.find_spec", lambda name: None)
    assert main([*BASIS, *REGISTRY, *AVRO]) == 2
    assert "fastavro is not installed; run: pip install 'wideload[schema-registry]'" in capsys.readouterr().err


def test_value_schema_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema may stand on the command line itself; a file of that name wins, and a path that is none is told."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.ddl").write_text("id BIGINT")

    def schema(text: str, form: str = "json") -> str | None:
        arguments = parser().parse_args([*BASIS, "--value-format", form, "--value-schema", text])
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
        assert main([*options, *FOLDERS]) == 2
        assert capsys.readouterr().err == (
            f"ingest: --topic: no-such-topic is not on the broker at {broker}; create it, or check its name\n"
        )


def test_main_report(
    broker: str, make_topic: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before a failure is told, with the failure."""

    def failing(_: object, __: object, tally: Tally, *___: object, **____: object) -> None:
        tally.batches, tally.rows = 1, 2
        raise JobFailedError("broken")

    monkeypatch.setattr(job, "open_session", lambda _: nullcontext(None))
    monkeypatch.setattr(job, "run", failing)
    assert main(["--bootstrap-servers", broker, "--topic", make_topic(), *FOLDERS]) == 1
    captured = capsys.readouterr()
    assert captured.err == "ingest: broken\n"
    summary = json.loads(captured.out)
    assert [summary[name] for name in ("job", "status", "rows", "error")] == ["ingest", "failed", 2, "broken"]
