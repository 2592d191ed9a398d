"""Kafka Connect's REST API, at a running worker; nearly all tests share one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.rest import Answer, ask
from tests.integration.topics import send
from tests.integration.way import MakeTopic, Way
from tests.integration.worker_process import WorkerProcess, until

SIGNING = "signing-key-that-nobody-may-see-1"


class Served:
    """The worker of this file: two pipelines, `offload` and `inflate`."""

    def __init__(self, way: Way, worker: WorkerProcess) -> None:
        self.way = way
        self.worker = worker
        self.id = f"{socket.gethostname()}:{worker.port}"

    def get(self, path: str) -> Any:
        """The document at a path that is there."""
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.document

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request; `ask` of `tests.integration.rest`."""
        return ask(
            self.worker.port, method, path, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )


@pytest.fixture(scope="module")
def served(broker: str, make_module_topic: MakeTopic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A worker whose pipelines run, and have moved a record."""
    way = Way(
        broker, make_module_topic, tmp_path_factory.mktemp("rest"), partitions=1, large=2_000_000, session_ms=6_000
    )
    way.store["large.message.signing.key"] = SIGNING
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    with WorkerProcess(way.folder, way.settings(), {**way.offload(**dead), **way.inflate()}) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, [(0, b"k", b"v" * 50_000, [], 1)])
        until(lambda: way.arrived(1), "the record has arrived")
        yield Served(way, worker)


def test_root_says_version_and_cluster(served: Served) -> None:
    """`GET /` has Connect's three fields; the id is that of the cluster."""
    root = served.get("/")
    assert set(root) == {"version", "commit", "kafka_cluster_id"}
    assert isinstance(root["version"], str)
    assert root["kafka_cluster_id"]


def test_connectors_are_the_pipelines(served: Served) -> None:
    """Names alone, or with status and info, as each path of its own gives them; a slash at the end changes nothing."""
    assert served.get("/connectors") == served.get("/connectors/") == ["offload", "inflate"]
    status, info = served.get("/connectors/offload/status"), served.get("/connectors/offload")
    both = served.get("/connectors?expand=status&expand=info")
    assert set(both) == {"offload", "inflate"}
    assert both["offload"] == {"status": status, "info": info}
    assert served.get("/connectors?expand=info")["offload"] == {"info": info}
    assert served.get("/connectors?expand=more")["offload"] == {}


def test_connector_has_connects_fields(served: Served) -> None:
    """Info, config, status, tasks and the status of a task have the fields of Connect's own answers."""
    state = {"state": "RUNNING", "worker_id": served.id}
    config = served.get("/connectors/offload/config")
    assert served.get("/connectors/offload") == {
        "name": "offload",
        "config": config,
        "tasks": [{"connector": "offload", "task": 0}],
        "type": "sink",
    }
    assert served.get("/connectors/offload/status") == {
        "name": "offload",
        "connector": state,
        "tasks": [{"id": 0, **state}],
        "type": "sink",
    }
    assert served.get("/connectors/offload/tasks") == [{"id": {"connector": "offload", "task": 0}, "config": config}]
    assert served.get("/connectors/offload/tasks/0/status") == {"id": 0, **state}


def test_config_is_texts_without_secrets(served: Served) -> None:
    """Each value is a text, defaults included; a secret is `***`, here and wherever the configuration stands."""
    config = served.get("/connectors/offload/config")
    assert all(isinstance(value, str) for value in config.values())
    assert (config["name"], config["connector.class"]) == ("offload", "wideload.Pipeline")
    assert (config["topics"], config["transforms"]) == (served.way.raw, "offload")
    assert (config["filesystem.fsync"], config["large.message.threshold.bytes"]) == ("false", "20000")
    assert config["large.message.signing.key"] == "***"
    for path in ("/connectors?expand=info", "/connectors/offload", "/connectors/offload/tasks"):
        assert SIGNING not in str(served.get(path))


def test_topics_and_offsets(served: Served) -> None:
    """All topics of a pipeline; and the committed offsets in the form of sink connectors."""
    way = served.way
    assert served.get("/connectors/offload/topics") == {"offload": {"topics": [way.raw, way.orders, way.dead]}}
    committed = [
        {"partition": {"kafka_topic": way.raw, "kafka_partition": 0}, "offset": {"kafka_offset": 1}},
    ]
    until(lambda: served.get("/connectors/offload/offsets") == {"offsets": committed}, "the offset is committed")


def test_plugins(served: Served) -> None:
    """There is one plugin; its keys are those of a pipeline and of all stores, with Connect's fields."""
    (plugin,) = served.get("/connector-plugins")
    assert plugin == {"class": "wideload.Pipeline", "type": "sink", "version": served.get("/")["version"]}
    assert [plugin] == served.get("/connector-plugins?connectorsOnly=false")
    keys = {key["name"]: key for key in served.get("/connector-plugins/wideload.Pipeline/config")}
    assert set(keys["topics"]) == {
        *("name", "type", "required", "default_value", "importance", "documentation", "group", "width"),
        *("display_name", "dependents", "order"),
    }
    assert (keys["topics"]["type"], keys["topics"]["required"]) == ("LIST", True)
    assert (keys["s3.secret.key"]["type"], keys["errors.tolerance"]["default_value"]) == ("PASSWORD", "none")
    refused = served.ask("GET", "/connector-plugins/org.example.Sink/config").refusal
    assert refused == (404, "Unknown plugin org.example.Sink. The only one is wideload.Pipeline.")


GOOD = {
    "name": "more",
    "connector.class": "wideload.Pipeline",
    "topics": "a,b",
    "output.topic": "c",
    "transforms": "offload",
    "large.message.payload.store.class": "s3",
    "s3.bucket": "payloads",
    "s3.access.key": "who",
    "s3.secret.key": "a-secret-of-the-request",
    "large.message.threshold.bytes": "1000",
}


def validated(served: Served, document: object, plugin: str = "wideload.Pipeline") -> Answer:
    """The validation of a configuration."""
    return served.ask("PUT", f"/connector-plugins/{plugin}/config/validate", document)


def errors_of(answer: Answer) -> dict[str, list[str]]:
    """The errors by key, each of which is there once."""
    assert answer.status == 200
    found = {each["value"]["name"]: each["value"]["errors"] for each in answer.document["configs"]}
    assert len(found) == len(answer.document["configs"])
    assert answer.document["error_count"] == sum(map(len, found.values()))
    return {name: errors for name, errors in found.items() if errors}


def test_validate_takes_what_a_file_may_say(served: Served) -> None:
    """A configuration that works has no errors; its values are there, and its secrets are not."""
    answer = validated(served, GOOD, "PipelineConnector")
    assert errors_of(answer) == {}
    values = {each["value"]["name"]: each["value"]["value"] for each in answer.document["configs"]}
    assert (values["topics"], values["s3.secret.key"], values["errors.tolerance"]) == ("a,b", "***", "none")
    assert {each["definition"]["name"] for each in answer.document["configs"]} == set(values)
    assert answer.document["groups"] == ["Pipeline", "Store", "Consumer", "Producer"]


@pytest.mark.parametrize(
    ("change", "errors"),
    [
        ({"topics": None, "name": ""}, {"name": "name: is missing; it is the name of the pipeline"}),
        ({"name": "a/b"}, {"name": "pipeline: found the name 'a/b', allowed are 1 to 200 of [a-zA-Z0-9._-]"}),
        (
            {"topics": "c"},
            {"output.topic": "output.topic: found 'c', which is also in topics: the pipeline would feed itself"},
        ),
        ({"s3.buckit": "x"}, {"s3.buckit": "s3.buckit: is not a key that is known here; did you mean s3.bucket?"}),
        (
            {"large.message.threshold.bytes": "many"},
            {
                "large.message.threshold.bytes": "large.message.threshold.bytes: found 'many', allowed is a value of "
                "type int"
            },
        ),
        (
            {"s3.bucket": "${file:/etc/hostname}"},
            {"s3.bucket": "s3.bucket: found ${file:…}, which is filled in from the worker's own file only"},
        ),
        (
            {"large.message.threshold.bytes": "${env:HOME}"},
            {
                "large.message.threshold.bytes": "large.message.threshold.bytes: found ${env:…}, which is filled in "
                "from the worker's own file only"
            },
        ),
    ],
)
def test_validate_has_the_messages_of_check(
    change: dict[str, str | None], errors: dict[str, str], served: Served
) -> None:
    """What `wideload check` says of a file stands at the key; a placeholder reads nothing of the worker's."""
    document = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    assert errors_of(validated(served, document)) == {name: [text] for name, text in errors.items()}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[" * 60_000, 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"", 400, "the body is not JSON"),
        (b"[]", 400, "the body is not a JSON object"),
        ({"topics": None}, 400, "topics: allowed is a text"),
        ({"topics": {"a": "b"}}, 400, "topics: allowed is a text"),
        ({str(number): "" for number in range(301)}, 400, "found 301 keys, allowed are 300"),
        ({"connector.class": "org.example.Sink"}, 400, "Included connector type org.example.Sink does not match"),
        (b" " * 65_537, 413, "the body is over 65,536 bytes"),
    ],
)
def test_validate_refuses_what_is_no_configuration(body: object, status: int, message: str, served: Served) -> None:
    """A body that cannot be a configuration is an error of the request."""
    found = validated(served, body).refusal
    assert (found[0], found[1][: len(message)]) == (status, message)


def test_validate_hides_no_word_of_others(served: Served) -> None:
    """A secret in a request is not taken for one of the worker's: it vanishes from no other answer."""
    assert errors_of(validated(served, {**GOOD, "s3.secret.key": served.way.raw})) == {}
    assert served.way.raw in served.ask("GET", "/connectors/" + served.way.raw).refusal[1]


def test_loggers(served: Served) -> None:
    """Loggers that have a level of their own; one by its name, root in any case; others are not found."""
    levels = served.get("/admin/loggers")
    assert levels["root"] == {"level": "INFO", "last_modified": None}
    assert levels["aiokafka"] == {"level": "WARN", "last_modified": None}
    assert served.get("/admin/loggers/ROOT") == levels["root"]
    assert served.get("/admin/loggers/app.pipeline.flow")["level"] == "INFO"
    assert served.ask("GET", "/admin/loggers/no.such").refusal == (404, "Logger no.such not found.")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/connectors/nobody", "Connector nobody not found"),
        ("/connectors/nobody/status", "Connector nobody not found"),
        ("/connectors/off%2Fload/config", "Connector off/load not found"),
        ("/connectors/%2E%2E%2F%2E%2E%2Fetc%2Fpasswd", "Connector ../../etc/passwd not found"),
        ("/connectors/off%0Aload", "Connector off\\nload not found"),
        ("/connectors/off/load", "HTTP 404 Not Found"),
        ("/connectors/offload/tasks/1/status", "No status found for task offload-1"),
        ("/connectors/offload/tasks/-1/status", "No status found for task offload--1"),
        ("/connectors/offload/tasks/zero/status", "No status found for task offload-zero"),
        ("/connectors/offload/nothing", "HTTP 404 Not Found"),
        ("/admin/metrics", "HTTP 404 Not Found"),
    ],
)
def test_unknown_names_are_not_found(path: str, message: str, served: Served) -> None:
    """Names that are not there, with slashes or control characters too, are 404 in Connect's form."""
    assert served.ask("GET", path).refusal == (404, message)


@pytest.mark.parametrize(
    ("method", "path", "allowed", "reason"),
    [
        ("POST", "/connectors", "GET", "add a table [pipeline.NAME]"),
        ("PUT", "/connectors/offload/config", "GET", "edit [pipeline.offload]"),
        ("PATCH", "/connectors/offload/config", "GET", "edit [pipeline.offload]"),
        ("DELETE", "/connectors/offload", "GET", "take [pipeline.offload] out"),
        ("PUT", "/connectors/offload/topics/reset", "", "they are not tracked"),
        ("PATCH", "/connectors/offload/offsets", "GET", "-offload --reset-offsets"),
        ("DELETE", "/connectors/offload/offsets", "GET", "-offload --reset-offsets"),
        ("DELETE", "/connectors", "GET,HEAD,POST", "HTTP 405 Method Not Allowed"),
        ("OPTIONS", "/connectors/offload", "DELETE,GET,HEAD", "HTTP 405 Method Not Allowed"),
        ("POST", "/connector-plugins", "GET,HEAD", "HTTP 405 Method Not Allowed"),
    ],
)
def test_what_a_file_decides_is_not_allowed(method: str, path: str, allowed: str, reason: str, served: Served) -> None:
    """Nothing is created, changed or deleted: 405 with the reason, and with what is allowed."""
    answer = served.ask(method, path, {"name": "x", "config": {}})
    status, message = answer.refusal
    assert (status, answer.headers["Allow"]) == (405, allowed)
    assert reason in message
    assert served.get("/connectors") == ["offload", "inflate"]
