"""Kafka Connect's REST API, at a running worker; nearly all tests share one."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka_connect.kafka_connect import HTTPError, KafkaConnect
from psutil import Process

from app.local.jars import cache_folder
from tests.integration.rest import Answer, ask
from tests.integration.test_worker_stores import FORGED
from tests.integration.topics import committed, end_offsets, send
from tests.integration.way import MakeTopic, Way
from tests.integration.worker_process import WorkerProcess, until

TOKEN = "token-of-who-may-steer-1"
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

    def change(self, method: str, path: str, body: object = None) -> Answer:
        """One request of somebody who has the token."""
        return self.ask(method, path, body, Authorization=f"Bearer {TOKEN}")

    def state(self, pipeline: str) -> str:
        """The state of a connector."""
        state = self.get(f"/connectors/{pipeline}/status")["connector"]["state"]
        assert isinstance(state, str)
        return state

    def until_state(self, pipeline: str, state: str) -> None:
        """Waits for a state; the page of the pipelines and the health agree with it then."""
        until(lambda: self.state(pipeline) == state, f"{pipeline} is {state}")
        pages = {page["name"]: page for page in self.worker.get("/pipelines")[1]}
        assert pages[pipeline]["state"] == state


@pytest.fixture
def running(served: Served) -> Iterator[Served]:
    """The same worker; whatever the test has done to its pipelines, they run again after it."""
    yield served
    for pipeline in ("offload", "inflate"):
        served.change("PUT", f"/connectors/{pipeline}/resume")
        served.change("POST", f"/connectors/{pipeline}/restart?onlyFailed=true")
        served.until_state(pipeline, "RUNNING")


@pytest.fixture(scope="module")
def served(broker: str, make_module_topic: MakeTopic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A worker whose pipelines run, and have moved a record."""
    way = Way(
        broker, make_module_topic, tmp_path_factory.mktemp("rest"), partitions=2, large=2_000_000, session_ms=6_000
    )
    way.store["large.message.signing.key"] = SIGNING
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    control = {"web.control.enable": True, "web.control.token": TOKEN}
    with WorkerProcess(way.folder, {**way.settings(), **control}, {**way.offload(**dead), **way.inflate()}) as worker:
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
    committed = [  # the beginning too, of a partition without records
        {"partition": {"kafka_topic": way.raw, "kafka_partition": number}, "offset": {"kafka_offset": offset}}
        for number, offset in ((0, 1), (1, 0))
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


# what is changed → the key that the error stands at: its text
MISTAKES = """
{"topics": null, "name": ""} → name: name: is missing; it is the name of the pipeline
{"name": "a/b"} → name: pipeline: found the name 'a/b', allowed are 1 to 200 characters of [a-zA-Z0-9._-]
{"topics": "c"} → output.topic: output.topic: found 'c', which is also in topics: the pipeline would feed itself
{"s3.buckit": "x"} → s3.buckit: s3.buckit: unknown property; did you mean s3.bucket?
{"s3.bucket": "${file:/etc/hostname}"} → s3.bucket: s3.bucket: found ${file:…}, which is replaced only in the worker's \
own file
{"s3.bucket": "${env:HOME}"} → s3.bucket: s3.bucket: found ${env:…}, which is replaced only in the worker's own file
{"large.message.threshold.bytes": "many"} → large.message.threshold.bytes: large.message.threshold.bytes: found 'many',\
 allowed is a number of bytes, or a text such as "1MB" or "64KiB"
"""


@pytest.mark.parametrize("row", MISTAKES.strip().splitlines())
def test_validate_has_the_messages_of_check(row: str, served: Served) -> None:
    """What `wideload check` says of a file stands at the key; a placeholder reads nothing of the worker's."""
    change, _, error = row.partition(" → ")
    key, _, text = error.partition(": ")
    document = {name: value for name, value in {**GOOD, **json.loads(change)}.items() if value is not None}
    assert errors_of(validated(served, document)) == {key: [text]}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[" * 60_000, 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"", 400, "the body is not JSON"),
        (b"[]", 400, "the body is not a JSON object"),
        ({"topics": None}, 400, "topics: allowed are a string"),
        ({"topics": {"a": "b"}}, 400, "topics: allowed are a string"),
        ({str(number): "" for number in range(301)}, 400, "found 301 properties, allowed are 300"),
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
    """All loggers; one by its name, root in any case; others are not found. Ours are below `wideload` alone."""
    levels = served.get("/admin/loggers")
    assert levels["root"] == {"level": "INFO", "last_modified": None}
    assert levels["aiokafka"] == {"level": "WARN", "last_modified": None}
    assert served.get("/admin/loggers/ROOT") == levels["root"]
    assert levels["wideload.pipeline"] == served.get("/admin/loggers/wideload.pipeline.flow") == levels["root"]
    assert {"app", "jobs", "stores", "transforms"}.isdisjoint(name.partition(".")[0] for name in levels)
    assert not [name for name in levels if name.startswith("wideload._")]
    for name in ("no.such", "app.pipeline", "wideload.pipe"):
        assert served.ask("GET", f"/admin/loggers/{name}").refusal == (404, f"Logger {name} not found.")


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
        ("DELETE", "/connectors/offload", "GET", "remove [pipeline.offload] from it"),
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


# --- changing --------------------------------------------------------------------------------------------------------


def basic(user: str, password: str) -> str:
    """The header of HTTP Basic."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


CHANGES = [
    ("PUT", "/connectors/offload/pause"),
    ("PUT", "/connectors/offload/resume"),
    ("PUT", "/connectors/offload/stop"),
    ("POST", "/connectors/offload/restart"),
    ("POST", "/connectors/offload/tasks/0/restart"),
    ("PUT", "/admin/loggers/root"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_need_the_token(method: str, path: str, served: Served) -> None:
    """With a token that is nearly right nothing is changed: 401."""
    answer = served.ask(method, path, {"level": "ERROR"}, Authorization=f"Bearer {TOKEN[:-1]}")
    status, message = answer.refusal
    assert (status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="wideload"')
    assert "web.control.token" in message
    assert TOKEN not in str(answer)
    assert served.state("offload") == "RUNNING"


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_no_page_of_another_origin_changes_anything(method: str, path: str, served: Served) -> None:
    """A browser says where a page comes from; that page may change nothing, with the token neither."""
    for authorization in (f"Bearer {TOKEN}", basic("operator", TOKEN)):
        answer = served.ask(
            method, path, {"level": "ERROR"}, Origin="https://evil.example", Authorization=authorization
        )
        assert answer.refusal == (403, "cross-origin requests cannot make changes")
    assert not [name for name in answer.headers if name.startswith("Access-Control")]
    assert served.state("offload") == "RUNNING"


def test_a_page_of_this_worker_may_change(running: Served) -> None:
    """Its own origin is that of the request."""
    origin = f"http://127.0.0.1:{running.worker.port}"
    path = "/connectors/offload/resume"
    assert running.ask("PUT", path, Origin=origin, Authorization=f"bearer {TOKEN}").status == 202


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("PUT", "/connectors/nobody/pause", "Connector nobody not found"),
        ("PUT", "/connectors/off%2Fload/stop", "Connector off/load not found"),
        ("POST", "/connectors/nobody/restart", "Connector nobody not found"),
        ("POST", "/connectors/offload/tasks/1/restart", "Unknown task: offload-1"),
        ("POST", "/connectors/nobody/tasks/0/restart", "Connector nobody not found"),
    ],
)
def test_changes_of_what_is_not_there(method: str, path: str, message: str, served: Served) -> None:
    """Unknown connectors and tasks are 404."""
    assert served.change(method, path).refusal == (404, message)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_have_one_method(method: str, path: str, served: Served) -> None:
    """Reading changes nothing: a link, or a form in a page, is 405."""
    other = "POST" if method == "PUT" else "PUT"
    assert served.change(other, path).refusal == (405, "HTTP 405 Method Not Allowed")


def passed(way: Way, before: int) -> bool:
    """Whether a record more than `before` has come through."""
    return way.arrived(before + 1)


def count(way: Way, topic: str) -> int:
    """How many records there are."""
    return sum(end_offsets(way.broker, topic).values())


def members(way: Way) -> int:
    """How many members the group of `offload` has."""
    group = way.group("offload")
    client = AdminClient({"bootstrap.servers": way.broker})  # without a name it would end before its answer comes
    return len(client.describe_consumer_groups([group])[group].result(30).members)


def test_pause_and_resume(running: Served) -> None:
    """A paused pipeline commits what it had, stays in its group, reads nothing, and is healthy; the others go on."""
    way = running.way
    orders, inflated, ends = count(way, way.orders), count(way, way.inflated), end_offsets(way.broker, way.raw)
    answer = running.change("PUT", "/connectors/offload/pause")
    assert (answer.status, answer.document) == (202, None)
    assert answer.headers["Warning"] == '299 - "this applies to this worker only, until it ends"'
    running.until_state("offload", "PAUSED")
    send(way.broker, way.raw, [(0, b"paused", b"v", [], 1)])
    assert running.change("PUT", "/connectors/offload/pause").status == 202
    assert running.get("/connectors/offload/tasks/0/status")["state"] == "PAUSED"
    status, health = running.worker.get("/health")
    assert (status, health["status"], health["reasons"]) == (200, "ok", {})
    until(lambda: committed(way.broker, way.group("offload"), way.raw) == ends, "what it had is committed")
    send(way.broker, way.orders, [(1, b"other", b"v", [], 1)])
    until(lambda: passed(way, inflated), "the other pipeline goes on")
    assert count(way, way.orders) == orders + 1
    assert members(way) == 1
    assert running.change("PUT", "/connectors/offload/resume").status == 202
    running.until_state("offload", "RUNNING")
    until(lambda: passed(way, inflated + 1), "the record has arrived")


def test_paused_pipelines_stay_paused_through_rebalances(running: Served) -> None:
    """Another worker takes partitions and reads them; what this one has left, and gets back, it does not read."""
    way = running.way
    running.change("PUT", "/connectors/offload/pause")
    running.until_state("offload", "PAUSED")
    orders = count(way, way.orders)
    dead = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    with WorkerProcess(way.folder, way.settings(), way.offload(**dead)) as other:
        other.wait_ready()
        send(way.broker, way.raw, [(0, b"a", b"v", [], 1), (1, b"b", b"v", [], 1)])
        until(lambda: count(way, way.orders) == orders + 1, "the other worker has read its partition")
        assert other.terminate() == 0
    until(lambda: len(pages(running)["offload"]["partitions"]) == 2, "the partition has come back")
    send(way.broker, way.raw, [(0, b"c", b"v", [], 1), (1, b"d", b"v", [], 1)])
    inflated = count(way, way.inflated)
    send(way.broker, way.orders, [(0, b"other", b"v", [], 1)])
    until(lambda: passed(way, inflated), "the other pipeline goes on")
    assert (running.state("offload"), count(way, way.orders)) == ("PAUSED", orders + 2)
    running.change("PUT", "/connectors/offload/resume")
    until(lambda: count(way, way.orders) == orders + 5, "all has been read, once")


def pages(served: Served) -> dict[str, Any]:
    """The page of each pipeline, by name."""
    return {page["name"]: page for page in served.worker.get("/pipelines")[1]}


def test_stop_and_resume(running: Served) -> None:
    """A stopped pipeline has left its group and has no task; it is healthy, and begins where it was."""
    way = running.way
    answer = running.change("PUT", "/connectors/offload/stop")
    assert (answer.status, answer.document) == (204, None)
    assert "this worker only" in answer.headers["Warning"]
    running.until_state("offload", "STOPPED")
    until(lambda: members(way) == 0, "it has left the group")
    assert running.get("/connectors/offload/tasks") == running.get("/connectors/offload")["tasks"] == []
    assert running.get("/connectors/offload/status")["tasks"] == []
    assert running.ask("GET", "/connectors/offload/tasks/0/status").status == 404
    assert running.change("POST", "/connectors/offload/tasks/0/restart").refusal == (404, "Unknown task: offload-0")
    assert running.worker.get("/health")[0] == 200
    inflated = count(way, way.inflated)
    send(way.broker, way.raw, [(0, b"stopped", b"v", [], 1)])
    assert running.change("POST", "/connectors/offload/restart").status == 204
    assert running.change("POST", "/connectors/offload/restart?includeTasks=true").document["tasks"] == []
    assert running.state("offload") == "STOPPED"
    assert running.change("PUT", "/connectors/offload/pause").status == 202
    running.until_state("offload", "PAUSED")
    assert running.change("PUT", "/connectors/offload/resume").status == 202
    running.until_state("offload", "RUNNING")
    until(lambda: passed(way, inflated), "the record has arrived")


def test_the_last_request_counts(running: Served) -> None:
    """Requests that take each other back leave the pipeline as the last one asks, and nothing is read twice."""
    way = running.way
    orders, before = count(way, way.orders), begun(running)
    for asked in ("stop", "resume", "pause", "stop", "pause", "resume"):
        running.change("PUT", f"/connectors/offload/{asked}")
    until(lambda: begun(running) > before, "the flow that was to stop has made way for the next")
    send(way.broker, way.raw, [(0, b"last", b"v", [], 1)])
    running.until_state("offload", "RUNNING")
    until(lambda: count(way, way.orders) == orders + 1, "the record has arrived")
    assert running.worker.get("/health")[0] == 200


def begun(served: Served) -> int:
    """How many flows of `offload` have had partitions."""
    return served.worker.log.read_text().count("pipeline offload reads")


def test_restart(running: Served) -> None:
    """A restart begins a new flow; `onlyFailed` leaves alone what has not failed, and a pause stays one."""
    way = running.way
    for path, status, restarted in (
        ("restart", 204, True),
        ("tasks/0/restart", 204, True),
        ("restart?includeTasks=true", 202, True),
        ("restart?includeTasks=True&onlyFailed=False", 202, True),
        ("restart?onlyFailed=true", 202, False),
        ("restart?includeTasks=true&onlyFailed=true", 202, False),
    ):
        before = begun(running)
        answer = running.change("POST", f"/connectors/offload/{path}")
        assert answer.status == status, path
        if status == 202:
            state = "RESTARTING" if restarted else "RUNNING"
            assert answer.document["connector"]["state"] == answer.document["tasks"][0]["state"] == state, path
        if restarted:
            until(lambda: begun(running) > before, "a new flow has begun")  # noqa: B023  # it is called at once
        running.until_state("offload", "RUNNING")
        assert begun(running) == before + restarted, path
    running.change("PUT", "/connectors/offload/pause")
    before = begun(running)
    running.change("POST", "/connectors/offload/restart")
    until(lambda: begun(running) > before, "a new flow has begun")
    running.until_state("offload", "PAUSED")
    running.change("PUT", "/connectors/offload/resume")
    inflated = count(way, way.inflated)
    send(way.broker, way.raw, [(0, b"again", b"v", [], 1)])
    until(lambda: passed(way, inflated), "the record has arrived")


def test_restart_of_a_failed_pipeline(running: Served) -> None:
    """What has failed says why; after its cause is gone a restart goes on with the same record, a resume does not."""
    way = running.way
    inflated = count(way, way.inflated)
    running.change("PUT", "/connectors/inflate/pause")
    running.until_state("inflate", "PAUSED")
    orders = count(way, way.orders)
    store = way.folder / "store"
    before = payloads(store)
    send(way.broker, way.raw, [(0, b"failed", b"f" * 60_000, [], 1)])
    until(lambda: count(way, way.orders) > orders, "the reference is there")
    (payload,) = payloads(store) - before
    kept = payload.rename(way.folder / "kept")
    running.change("PUT", "/connectors/inflate/resume")
    until(lambda: running.state("inflate") == "FAILED", "it has failed")
    status = running.get("/connectors/inflate/status")
    assert "offset" in status["connector"]["trace"]
    assert status["tasks"][0]["trace"] == status["connector"]["trace"]
    assert running.worker.get("/health")[0] == 503
    kept.rename(payload)
    assert running.change("PUT", "/connectors/inflate/resume").status == 202
    assert running.state("inflate") == "FAILED"
    answer = running.change("POST", "/connectors/inflate/restart?onlyFailed=true")
    assert (answer.status, answer.document["connector"]["state"]) == (202, "RESTARTING")
    running.until_state("inflate", "RUNNING")
    until(lambda: passed(way, inflated), "the record has arrived")
    assert "trace" not in running.get("/connectors/inflate/status")["connector"]


def test_restart_of_the_only_pipeline(make_way: Callable[..., Way]) -> None:
    """Where requests may restart it, the worker stays when its only pipeline has failed; at its end it has status 1."""
    way = make_way(partitions=1)
    settings = {**way.settings(), "web.control.enable": True, "web.control.token": TOKEN}
    with WorkerProcess(way.folder, settings, way.inflate()) as worker:
        worker.wait_ready()
        only = Served(way, worker)
        send(way.broker, way.orders, [FORGED])
        only.until_state("inflate", "FAILED")
        assert worker.get("/health")[0] == 503
        assert worker.get("/health/live") == (200, {"live": True})
        answer = only.change("POST", "/connectors/inflate/restart?onlyFailed=true")
        assert (answer.status, answer.document["connector"]["state"]) == (202, "RESTARTING")
        until(lambda: worker.log.read_text().count("pipeline inflate has failed:") == 2, "it has failed again")
        assert worker.terminate() == 1


def payloads(store: Path) -> set[Path]:
    """The files of the store."""
    return {path for path in store.rglob("*") if path.is_file()}


def test_levels_of_loggers(served: Served) -> None:
    """A level is set for a logger and those below it, and is seen in the log; secrets are not logged at any."""
    set_level = functools.partial(served.change, "PUT")
    answer = set_level("/admin/loggers/wideload.pipeline", {"level": "warn"})
    assert answer.status == 200
    assert {"wideload.pipeline", "wideload.pipeline.flow", "wideload.pipeline.service"} <= set(answer.document)
    assert served.get("/admin/loggers/wideload.pipeline.flow")["level"] == "WARN"
    assert served.get("/admin/loggers")["wideload.pipeline"]["last_modified"] > 1_700_000_000_000
    assert "wideload.pipeline" in set_level("/admin/loggers/wideload.pipeline", {"level": "INFO"}).document
    assert "botocore" in set_level("/admin/loggers/root", {"level": "DEBUG"}).document
    assert served.get("/admin/loggers/botocore")["level"] == "INFO"
    assert served.get("/admin/loggers/aiokafka.conn")["level"] == "DEBUG"
    assert set_level("/admin/loggers/botocore.auth", {"level": "TRACE"}).document == ["botocore.auth"]
    told = "loggers botocore.auth have the level INFO"
    until(lambda: told in served.worker.log.read_text(), "the log has the level that is in effect")
    assert served.get("/admin/loggers/botocore.auth")["level"] == "INFO"
    set_level("/admin/loggers/root", {"level": "INFO"})
    set_level("/admin/loggers/aiokafka", {"level": "WARN"})
    log = served.worker.log.read_text()
    assert (TOKEN in log, SIGNING in log) == (False, False)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("root", {"level": "LOUD"}, 404, "invalid log level 'LOUD'."),
        ("root", {}, 400, "Desired 'level' parameter was not specified in request."),
        ("root", {"level": 10}, 400, "Desired 'level' parameter was not specified in request."),
        ("root", b"", 400, "the body is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("app.pipeline", {"level": "INFO"}, 404, "Logger app.pipeline not found."),
        ("a%2Fb", {"level": "INFO"}, 404, "Logger a/b not found."),
        ("x" * 201, {"level": "INFO"}, 404, "Logger " + "x" * 199 + "… not found."),
        (
            "root?scope=cluster",
            {"level": "INFO"},
            400,
            "a worker sets only its own levels: send the request to each worker",
        ),
    ],
)
def test_levels_that_cannot_be(path: str, body: object, status: int, message: str, served: Served) -> None:
    """Connect's errors for levels; a logger that is not there is not made."""
    assert served.change("PUT", f"/admin/loggers/{path}", body).refusal == (status, message)
    assert path.startswith("root") or served.ask("GET", f"/admin/loggers/{path}").status == 404


# --- hostile ---------------------------------------------------------------------------------------------------------


def test_bodies_without_end(served: Served) -> None:
    """100 MB, announced or in pieces, are refused before they are kept; the pipelines go on."""
    assert served.worker.process is not None
    memory = Process(served.worker.process.pid)
    before = memory.memory_info().rss
    validate = "/connector-plugins/wideload.Pipeline/config/validate"
    for path in (validate, "/connectors/offload/pause", "/connectors", "/admin/loggers/root"):
        head = f"PUT {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100000000\r\n\r\n"
        assert flooded(served.worker.port, head.encode(), b"x" * 1_000_000).startswith(b"HTTP/1.1 413 "), path
    head = f"PUT {validate} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert flooded(served.worker.port, head.encode(), b"f4240\r\n%b\r\n" % (b"x" * 1_000_000)).startswith(
        b"HTTP/1.1 413 "
    )
    assert memory.memory_info().rss - before < 30_000_000
    assert served.state("offload") == "RUNNING"
    assert served.worker.get("/health")[0] == 200


def flooded(port: int, head: bytes, piece: bytes) -> bytes:
    """The answer to a body of a hundred pieces, of which as many are sent as the other side takes."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(head)
            for _ in range(100):
                if select.select([connection], [], [], 0)[0]:
                    break
                connection.sendall(piece)
        return connection.recv(100)


def test_200_connections(served: Served) -> None:
    """Silent connections, and 200 requests at once, leave an answer for the next one, and the pipelines alone."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.worker.port), 20))
            connection.sendall(b"GET /connectors?expand=info HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: served.state("offload") == "RUNNING" and connections(served) <= 101, "the oldest are closed")
    way = served.way
    inflated = count(way, way.inflated)
    send(way.broker, way.raw, [(0, b"undisturbed", b"v", [], 1)])
    until(lambda: passed(way, inflated), "the record has arrived")


def connections(served: Served) -> int:
    """How many the worker has open at its port."""
    assert served.worker.process is not None
    found = Process(served.worker.process.pid).net_connections("tcp")
    return sum(each.laddr.port == served.worker.port and each.status == "ESTABLISHED" for each in found)


# --- clients of that API, which give the token as the password of HTTP Basic ------------------------------------------

CLIENTS = cache_folder() / "connect-clients"
API = """
import sys
from kafka_connect_api.kafka_connect_api import Api, Cluster
cluster = Cluster(Api("127.0.0.1", int(sys.argv[1]), username="operator", password=sys.argv[2]))
offload = cluster.connectors["offload"]
exec(sys.argv[3])
"""


def run_client(*arguments: str, status: int = 0) -> str:
    """What a client prints that the set-up has put in a folder of its own; it has to end with `status`."""
    if not CLIENTS.is_dir():
        pytest.skip("the clients of Connect's REST API are not there: `make setup-test` fetches them")
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(CLIENTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done
    return done.stdout + done.stderr


def test_kafka_connect_cli(running: Served) -> None:
    """It takes user and password in the URL, and shows what it was refused with."""
    address = f"127.0.0.1:{running.worker.port}"
    command = functools.partial(run_client, "-m", "kafka_connect", "connector")
    url = ("--url", f"http://operator:{TOKEN}@{address}")
    assert json.loads(command("configuration", *url, "--name", "offload"))["topics"] == running.way.raw
    command("pause", *url, "--name", "offload")
    running.until_state("offload", "PAUSED")
    command("resume-all", *url)
    running.until_state("offload", "RUNNING")
    refused = command("pause", "--url", f"http://operator:no-token@{address}", "--name", "offload", status=1)
    assert "the password of Authorization: Basic is not the token of this worker" in refused


def test_kafka_connect_api(running: Served) -> None:
    """It pauses, restarts and resumes, and sets the level of a logger that it finds in the list."""
    api = functools.partial(run_client, "-c", API, str(running.worker.port), TOKEN)
    api("offload.pause()")
    running.until_state("offload", "PAUSED")
    before = begun(running)
    assert "RUNNING" in api(
        "offload.restart(); offload.cycle_connector(); print(cluster.connectors['inflate'].state); "
        "cluster.set_logger_log_level('wideload.pipeline', 'INFO')"
    )
    until(lambda: begun(running) > before, "a new flow has begun")
    running.until_state("offload", "RUNNING")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(running: Served) -> None:
    """`curl -u` gives the token with any name, or none, and reads from the answer what it lacks."""
    for user in ("operator", ""):
        curl = ["curl", "-sS", "-X", "PUT", "-u", f"{user}:{TOKEN}", "-w", "%{http_code}"]
        address = f"http://127.0.0.1:{running.worker.port}/connectors/offload/resume"
        assert subprocess.run([*curl, address], capture_output=True, text=True, check=True, timeout=60).stdout == "202"


def test_kafka_connect_py(running: Served) -> None:
    """The client lists, looks, pauses, resumes, stops, restarts and validates as it does with Connect."""
    client = KafkaConnect(url=f"http://127.0.0.1:{running.worker.port}", auth=f"operator:{TOKEN}")
    assert client.get_cluster_info()["kafka_cluster_id"]
    assert client.list_connectors() == ["offload", "inflate"]
    assert set(client.list_connectors(expand="info", pattern="off")) == {"offload"}
    assert client.list_connectors(state="running") == ["offload", "inflate"]
    assert client.get_connector("offload")["name"] == "offload"
    assert client.get_connector_config("offload")["topics"] == running.way.raw
    assert client.get_connector_status("offload")["connector"]["state"] == "RUNNING"
    assert client.list_connector_tasks("offload")[0]["id"]["task"] == 0
    assert client.get_connector_task_status("offload", 0)["state"] == "RUNNING"
    assert client.list_connector_topics("offload")["offload"]["topics"]
    assert client.list_connector_plugins()[0]["class"] == "wideload.Pipeline"
    assert client.validate_connector_config("wideload.Pipeline", GOOD)["error_count"] == 0
    client.pause_connector("offload")
    running.until_state("offload", "PAUSED")
    client.resume_connector("offload")
    running.until_state("offload", "RUNNING")
    client.stop_connector("offload")
    running.until_state("offload", "STOPPED")
    client.resume_all_connectors(state="stopped")
    running.until_state("offload", "RUNNING")
    client.restart_connector("offload")
    assert client.restart_connector("offload", include_tasks=True)["name"] == "offload"
    client.restart_connector_task("offload", 0)
    for refused, arguments in (
        (client.create_connector, [{"name": "x", "config": {}}]),
        (client.update_connector, ["offload", {}]),
        (client.delete_connector, ["offload"]),
    ):
        with pytest.raises(HTTPError, match="405"):
            refused(*arguments)
    client.auth = None
    with pytest.raises(HTTPError, match="401"):
        client.pause_connector("offload")
