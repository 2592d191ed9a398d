"""docker-compose.yml against the compose specification, the command line, and the settings. Needs no Docker engine."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from app.cli import cli
from app.config.parsing import parse
from app.config.settings import PipelineSettings, Settings

ROOT = Path(__file__).parent.parent
CONFIG_FOLDER = "/etc/wideload"
OWN_IMAGE = "wideload"
MIB = 1024 * 1024
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def interpolated(node: Any, environ: Mapping[str, str]) -> Any:
    """A node of the file with `${NAME:-default}` replaced, as in compose."""
    if isinstance(node, dict):
        return {key: interpolated(value, environ) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolated(item, environ) for item in node]
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[2] or "", node)
    return node


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The raw file."""
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> dict[str, Any]:
    """The services, with every variable at its default."""
    found = interpolated(document["services"], {})
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def toml() -> dict[str, Any]:
    """The raw configuration of the worker."""
    return tomllib.loads((ROOT / "docker" / "wideload.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def settings(services: dict[str, Any], toml: dict[str, Any]) -> Settings:
    """The settings of the worker, with the environment of compose."""
    return parse(toml, services["worker"]["environment"])


@pytest.fixture(scope="module")
def validator() -> jsonschema.protocols.Validator:
    """The schema of the compose specification, from check-jsonschema."""
    package = importlib.util.find_spec("check_jsonschema")
    if package is None or package.origin is None:
        pytest.skip("check-jsonschema, which carries the schema of the compose specification, is not installed")
    path = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    return jsonschema.validators.validator_for(schema)(schema)


def named_topics(pipeline: PipelineSettings) -> Iterator[str]:
    """Every topic of a pipeline."""
    yield from pipeline.topics
    yield pipeline.output_topic
    if pipeline.dead_letter_topic is not None:
        yield pipeline.dead_letter_topic


def prepared_topics(services: dict[str, Any]) -> dict[str, int]:
    """The topics of the one-shot service, with their max.message.bytes."""
    pairs = (argument.rpartition("=") for argument in services["prepare"]["command"] if not argument.startswith("--"))
    return {name: int(limit) for name, _, limit in pairs}


def seconds(duration: str) -> int:
    """A duration as the file writes them."""
    assert duration.endswith("s")
    return int(duration[:-1])


def test_compose_follows_the_specification(document: dict[str, Any], validator: jsonschema.protocols.Validator) -> None:
    """The file is valid by the schema of the compose specification."""
    assert [error.message for error in validator.iter_errors(document)] == []


def test_compose_schema_refuses_a_misspelt_key(
    document: dict[str, Any], validator: jsonschema.protocols.Validator
) -> None:
    """The schema refuses an unknown key."""
    broken = copy.deepcopy(document)
    broken["services"]["worker"]["healthchek"] = {}
    assert not validator.is_valid(broken)


def test_compose_worker_commands_are_commands_of_the_program(services: dict[str, Any]) -> None:
    """The command line accepts the command of each service with the entry point of the image."""
    own = [service for service in services.values() if service["image"].startswith(f"{OWN_IMAGE}:")]
    commands = [service["command"] for service in own if "entrypoint" not in service]
    assert commands
    for arguments in commands:
        with cli.make_context("wideload", list(arguments)) as context:
            name, command, rest = cli.resolve_command(context, list(arguments))
            assert isinstance(command, click.Command)
            command.make_context(name, rest, parent=context).close()


def test_compose_configuration_is_mounted_where_it_is_looked_for(services: dict[str, Any]) -> None:
    """Each path in /etc/wideload in a command is a file of the mounted folder."""
    for name in ("worker", "prepare"):
        service = services[name]
        assert f"./docker:{CONFIG_FOLDER}:ro" in service["volumes"]
        words = " ".join([*service.get("entrypoint", []), *service["command"]])
        paths = re.findall(rf"{CONFIG_FOLDER}/(\S+)", words)
        assert paths
        for path in paths:
            assert (ROOT / "docker" / path).is_file()


def test_compose_bootstrap_servers_are_the_broker_s_listener(services: dict[str, Any], settings: Settings) -> None:
    """The broker listens on the worker's address, and advertises it."""
    host, _, port = settings.client.bootstrap_servers.partition(":")
    flags = dict(
        argument.split("=", 1)
        for argument in services[host]["command"]
        if argument.startswith("--") and "=" in argument
    )
    assert f"internal://0.0.0.0:{port}" in flags["--kafka-addr"].split(",")
    assert f"internal://{host}:{port}" in flags["--advertise-kafka-addr"].split(",")


def test_compose_host_s_kafka_port_is_the_one_that_the_broker_gives_out(services: dict[str, Any]) -> None:
    """The broker advertises the published port to clients on the host."""
    (port,) = services["redpanda"]["ports"]
    (advertised,) = (flag for flag in services["redpanda"]["command"] if flag.startswith("--advertise-kafka-addr"))
    assert port["published"] == str(port["target"])
    assert advertised.endswith(f",external://localhost:{port['published']}")


def test_compose_s3_endpoint_is_the_s3_server(services: dict[str, Any], settings: Settings) -> None:
    """Each pipeline's endpoint is a service, on the port that the service listens on."""
    for pipeline in settings.pipelines:
        match = re.fullmatch(r"http://([\w-]+):(\d+)", str(pipeline.store["s3.endpoint"]))
        assert match is not None
        assert services[match[1]]["environment"]["VGW_PORT"] == f":{match[2]}"


@pytest.mark.parametrize("environ", [{}, {"S3_ACCESS_KEY": "mine", "S3_SECRET_KEY": "my-secret"}])
def test_compose_credentials_are_the_same_on_both_sides(
    document: dict[str, Any], toml: dict[str, Any], environ: Mapping[str, str]
) -> None:
    """The S3 server and the worker get the same keys, by default and from the user's environment."""
    services = interpolated(document["services"], environ)
    server = services["s3"]["environment"]
    for pipeline in parse(toml, services["worker"]["environment"]).pipelines:
        assert str(pipeline.store["s3.access.key"]) == server["ROOT_ACCESS_KEY"]
        assert str(pipeline.store["s3.secret.key"]) == server["ROOT_SECRET_KEY"]
        assert server["ROOT_ACCESS_KEY"] == environ.get("S3_ACCESS_KEY", "wideload-development")


def test_compose_configuration_holds_no_credential(toml: dict[str, Any]) -> None:
    """Keys come from the environment; the file has none."""
    for pipeline in toml["pipeline"].values():
        assert pipeline["s3"]["access"]["key"] == "${env:S3_ACCESS_KEY}"
        assert pipeline["s3"]["secret"]["key"] == "${env:S3_SECRET_KEY}"


def test_compose_prepares_the_topics_of_the_configuration(services: dict[str, Any], settings: Settings) -> None:
    """The one-shot service creates each topic that the worker uses, and no other."""
    used = {topic for pipeline in settings.pipelines for topic in named_topics(pipeline)}
    assert set(prepared_topics(services)) == used
    assert services["prepare"]["environment"] == services["worker"]["environment"]


def test_compose_topics_hold_what_the_pipelines_write(services: dict[str, Any], settings: Settings) -> None:
    """Whole values fit into the topics of whole values; the topic of references has Kafka's default limit."""
    limits = prepared_topics(services)
    for pipeline in settings.pipelines:
        assert pipeline.dead_letter_topic is not None
        assert limits[pipeline.dead_letter_topic] > max(limits[topic] for topic in pipeline.topics)
        if "offload" in pipeline.transforms:
            assert pipeline.threshold_bytes <= limits[pipeline.output_topic] <= 1_048_588
            largest = max(limits[topic] for topic in pipeline.topics)
    (inflated,) = (pipeline.output_topic for pipeline in settings.pipelines if "inflate" in pipeline.transforms)
    assert limits[inflated] >= largest
    assert max(limits.values()) <= 100 * MIB  # kafka_max_message_size_upper_limit_bytes of Redpanda, by default


def test_compose_worker_s_port_is_web_port(services: dict[str, Any], settings: Settings) -> None:
    """The published port and the health check are those of the worker's pages."""
    (port,) = services["worker"]["ports"]
    assert port["target"] == settings.web_port
    assert settings.web_bind == "0.0.0.0"  # noqa: S104  # the address of the container
    assert f"'127.0.0.1', {settings.web_port}," in services["worker"]["healthcheck"]["test"][-1]


def test_compose_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    """No port can be reached from another machine."""
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


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


def test_compose_images_are_pinned(services: dict[str, Any]) -> None:
    """Each image has a tag with a full version."""
    for service in services.values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_compose_worker_has_time_to_drain(services: dict[str, Any], settings: Settings) -> None:
    """SIGKILL comes later than the worker's own limit."""
    assert seconds(services["worker"]["stop_grace_period"]) * 1000 > settings.graceful_timeout_ms


def test_compose_worker_has_the_memory_that_it_promises_to_stay_under(
    services: dict[str, Any], settings: Settings
) -> None:
    """The container's limit is above the budget and 250 MiB."""
    limit = services["worker"]["mem_limit"]
    assert limit.endswith("m")
    assert int(limit[:-1]) * MIB >= settings.in_flight_bytes + 250 * MIB


@pytest.mark.parametrize("name", ["worker", "prepare"])
def test_compose_own_containers_have_no_rights_to_spare(services: dict[str, Any], name: str) -> None:
    """Root file system read-only, no capabilities, and a folder for temporary files."""
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108  # the container's


@pytest.mark.parametrize(
    ("number", "key"), [(0, "sasl.password"), (1, "sasl.oauthbearer.client.credentials.client.secret")]
)
def test_deployment_page_s_security_examples_are_understood(
    toml: dict[str, Any], tmp_path: Path, number: int, key: str
) -> None:
    """The keys of the examples are keys that the worker knows."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    secret = tmp_path / "secret"
    secret.write_text("from a file", encoding="utf-8")
    example = tomllib.loads(re.sub(r"/run/secrets/[\w-]+|/etc/wideload/ca\.pem", str(secret), blocks[number]))
    example.setdefault("bootstrap", {"servers": "kafka:9094"})
    environ = {"S3_ENDPOINT": "http://s3:7070", "S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}
    settings = parse({**example, "pipeline": toml["pipeline"]}, environ)
    assert settings.client.security["security.protocol"] == "SASL_SSL"
    assert str(settings.client.security[key]) == "from a file"
