"""docker-compose.yml against the compose specification, the command line, and the settings. Needs no Docker engine."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.cli import cli
from app.config.parsing import parse
from app.config.settings import Settings

ROOT = Path(__file__).parent.parent
CONFIG_FOLDER = "/etc/wideload"
OWN_IMAGE = "wideload"
MIB = 1024 * 1024
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def accepted(arguments: Sequence[str]) -> Mapping[str, object]:
    """The parameters of the command that `wideload` takes with these arguments."""
    with cli.make_context("wideload", list(arguments)) as context:
        name, command, rest = cli.resolve_command(context, list(arguments))
        assert command is not None
        with command.make_context(name, rest, parent=context) as inner:
            return inner.params


def interpolated(node: Any, environ: Mapping[str, str]) -> Any:
    """A node of the file with `${NAME:-default}` replaced, as in compose."""
    if isinstance(node, dict):
        return {key: interpolated(value, environ) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolated(item, environ) for item in node]
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[2] or "", node)
    return node


@pytest.fixture
def document() -> dict[str, Any]:
    """The raw file."""
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture
def services(document: dict[str, Any]) -> dict[str, Any]:
    """The services, with every variable at its default."""
    found = interpolated(document["services"], {})
    assert isinstance(found, dict)
    return found


@pytest.fixture
def toml() -> dict[str, Any]:
    """The raw configuration of the worker."""
    return tomllib.loads((ROOT / "docker" / "wideload.toml").read_text(encoding="utf-8"))


@pytest.fixture
def settings(services: dict[str, Any], toml: dict[str, Any]) -> Settings:
    """The settings of the worker, with the environment of compose."""
    return parse(toml, services["worker"]["environment"])


def test_compose_follows_the_specification(document: dict[str, Any]) -> None:
    """The file is valid by the schema of the compose specification, which knows no other key."""
    (schema,) = (file for file in files("check-jsonschema") or () if file.match("vendor/compose-spec.json"))
    found = json.loads(schema.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(found)(found)
    assert [error.message for error in validator.iter_errors(document)] == []
    document["services"]["worker"]["healthchek"] = {}
    assert not validator.is_valid(document)


def test_compose_worker_commands_are_commands_of_the_program(services: dict[str, Any]) -> None:
    """The command line accepts the command of each service with the entry point of the image."""
    own = [service for service in services.values() if service["image"].startswith(f"{OWN_IMAGE}:")]
    commands = [service["command"] for service in own if "entrypoint" not in service]
    assert commands
    for arguments in commands:
        assert accepted(arguments)


def test_compose_configuration_is_mounted_where_it_is_looked_for(services: dict[str, Any]) -> None:
    """Each path in /etc/wideload in a command is a file of the mounted directory."""
    for name in ("worker", "prepare"):
        service = services[name]
        assert f"./docker:{CONFIG_FOLDER}:ro" in service["volumes"]
        words = " ".join([*service.get("entrypoint", []), *service["command"]])
        paths = re.findall(rf"{CONFIG_FOLDER}/(\S+)", words)
        assert paths
        for path in paths:
            assert (ROOT / "docker" / path).is_file()


def test_compose_addresses_are_those_of_the_services(services: dict[str, Any], settings: Settings) -> None:
    """Broker and S3 server listen where the worker looks; the host's port of Kafka is the one that is advertised."""
    host, _, port = settings.client.bootstrap_servers.partition(":")
    broker = services[host]
    flags = dict(argument.split("=", 1) for argument in broker["command"] if re.match("--.*=", argument))
    assert f"internal://0.0.0.0:{port}" in flags["--kafka-addr"].split(",")
    (published,) = broker["ports"]
    assert published["published"] == str(published["target"])
    assert flags["--advertise-kafka-addr"].split(",") == [
        f"internal://{host}:{port}",
        f"external://localhost:{published['published']}",
    ]
    for pipeline in settings.pipelines:
        match = re.fullmatch(r"http://([\w-]+):(\d+)", str(pipeline.store["s3.endpoint"]))
        assert match is not None
        assert services[match[1]]["environment"]["VGW_PORT"] == f":{match[2]}"


@pytest.mark.parametrize("environ", [{}, {"S3_ACCESS_KEY": "mine", "S3_SECRET_KEY": "my-secret"}])
def test_compose_credentials_are_the_same_on_both_sides(
    document: dict[str, Any], toml: dict[str, Any], environ: Mapping[str, str]
) -> None:
    """The S3 server and the worker get the same keys, from the environment; the configuration has none."""
    services = interpolated(document["services"], environ)
    server = services["s3"]["environment"]
    assert server["ROOT_ACCESS_KEY"] == environ.get("S3_ACCESS_KEY", "wideload-development")
    for pipeline in parse(toml, services["worker"]["environment"]).pipelines:
        assert str(pipeline.store["s3.access.key"]) == server["ROOT_ACCESS_KEY"]
        assert str(pipeline.store["s3.secret.key"]) == server["ROOT_SECRET_KEY"]
        assert toml["pipeline"][pipeline.name]["s3"]["access"]["key"] == "${env:S3_ACCESS_KEY}"
        assert toml["pipeline"][pipeline.name]["s3"]["secret"]["key"] == "${env:S3_SECRET_KEY}"


def test_compose_topics_hold_what_the_pipelines_write(services: dict[str, Any], settings: Settings) -> None:
    """The one-shot service makes the worker's topics alone, each with a limit for what is written to it."""
    prepare = services["prepare"]
    pairs = (argument.rpartition("=") for argument in prepare["command"] if not argument.startswith("--"))
    limits = {name: int(limit) for name, _, limit in pairs}
    assert prepare["environment"] == services["worker"]["environment"]
    used = {topic for each in settings.pipelines for topic in (*each.topics, each.output_topic, each.dead_letter_topic)}
    assert set(limits) == used - {None}
    for pipeline in settings.pipelines:
        assert pipeline.dead_letter_topic is not None
        assert limits[pipeline.dead_letter_topic] > max(limits[topic] for topic in pipeline.topics)
        if "offload" in pipeline.transforms:
            assert pipeline.threshold_bytes <= limits[pipeline.output_topic] <= 1_048_588
            largest = max(limits[topic] for topic in pipeline.topics)
    (inflated,) = (pipeline.output_topic for pipeline in settings.pipelines if "inflate" in pipeline.transforms)
    assert limits[inflated] >= largest
    assert max(limits.values()) <= 100 * MIB  # kafka_max_message_size_upper_limit_bytes of Redpanda, by default


def test_compose_worker_has_what_its_settings_want(services: dict[str, Any], settings: Settings) -> None:
    """The port of its pages, memory for the budget and 250 MiB, and more time to drain than its own limit."""
    worker = services["worker"]
    (port,) = worker["ports"]
    assert port["target"] == settings.web_port
    assert settings.web_bind == "0.0.0.0"  # noqa: S104  # the address of the container
    assert f"'127.0.0.1', {settings.web_port}," in worker["healthcheck"]["test"][-1]
    assert int(worker["mem_limit"].removesuffix("m")) * MIB >= settings.in_flight_bytes + 250 * MIB
    assert int(worker["stop_grace_period"].removesuffix("s")) * 1000 > settings.graceful_timeout_ms


def test_compose_conditions_can_come_true(services: dict[str, Any]) -> None:
    """Each service that others wait for has a health check, or ends and is not restarted."""
    waited = [entry for service in services.values() for entry in service.get("depends_on", {}).items()]
    assert len(waited) == 5
    for name, wanted in waited:
        if wanted["condition"] == "service_healthy":
            assert services[name]["healthcheck"]["test"]
        else:
            assert wanted["condition"] == "service_completed_successfully"
            assert services[name]["restart"] == "no"


def test_compose_containers_have_no_rights_to_spare(services: dict[str, Any]) -> None:
    """Own ones cannot write but to /tmp, and have no capability; ports are this machine's; each image is a version."""
    for name in ("worker", "prepare"):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108  # the container's
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert [port["host_ip"] for port in ports] == ["127.0.0.1"] * 3
    assert all(re.search(r":v?\d+\.\d+\.\d+$", service["image"]) for service in services.values())


def test_deployment_page_s_security_examples_are_understood(toml: dict[str, Any], tmp_path: Path) -> None:
    """The keys of the examples are keys that the worker knows, and their secrets are read from files."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    secret = tmp_path / "secret"
    secret.write_text("from a file", encoding="utf-8")
    environ = {"S3_ENDPOINT": "http://s3:7070", "S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}
    keys = ("sasl.password", "sasl.oauthbearer.client.credentials.client.secret")
    for key, block in zip(keys, re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL), strict=True):
        example = tomllib.loads(re.sub(r"/run/secrets/[\w-]+|/etc/wideload/ca\.pem", str(secret), block))
        example.setdefault("bootstrap", {"servers": "kafka:9094"})
        security = parse({**example, "pipeline": toml["pipeline"]}, environ).client.security
        assert security["security.protocol"] == "SASL_SSL"
        assert str(security[key]) == "from a file"
