"""Brokers that enforce the limits of names, and tell nobody that they do: they answer an error without the name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import wideload
from tests.integration.enforcing import (
    CREATE_TOPICS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    EnforcingBroker,
)
from tests.integration.operations import Operations
from tests.integration.rest import ask
from tests.integration.worker_process import WorkerProcess, until
from transforms.errors import WideloadError

LONG = "n" * 250
INVALID_REQUEST, NEW = 42, 150
TOKEN = "token-of-who-may-steer-1"


@pytest.fixture(scope="module")
def enforcing() -> Iterator[EnforcingBroker]:
    """A broker for the tests of this file."""
    with contextlib.ExitStack() as stack:
        try:
            made = EnforcingBroker(stack)
        except WideloadError as exc:
            pytest.fail(f"no broker: {exc}", pytrace=False)
        yield made


@pytest.mark.parametrize("code", [INVALID_REQUEST, NEW])
@pytest.mark.parametrize(
    ("request_key", "key", "name"),
    [
        (FIND_COORDINATOR, "group.id", "group id"),
        (JOIN_GROUP, "consumer.group.instance.id", "group instance id"),
        (INIT_PRODUCER_ID, "client.id", "client id"),
        (CREATE_TOPICS, "client.id", "client id"),
    ],
)
def test_a_refused_name_is_told(
    enforcing: EnforcingBroker, tmp_path: Path, request_key: int, code: int, key: str, name: str
) -> None:
    """The worker ends with the key and the length, at once; it does not try again."""
    prefix = f"{tmp_path.name}-{request_key}-{code}"
    enforcing.refuses = None
    operations = Operations(enforcing.address)
    operations.create_topic(f"{prefix}-raw", {})
    if request_key != CREATE_TOPICS:
        operations.create_topic(f"{prefix}-orders", {})
    head: dict[str, object] = {"bootstrap.servers": enforcing.address, "resource.identifier.limit.enable": False}
    pipeline: dict[str, object] = {
        "topics": [f"{prefix}-raw"],
        "output.topic": f"{prefix}-orders",
        "transforms": ["chunk"],
        "topic.creation.enable": True,
        "processing.guarantee": "exactly_once",
    }
    (head if key == "client.id" else pipeline)[key] = LONG
    enforcing.refuses, enforcing.code, enforcing.refused = request_key, code, 0
    with WorkerProcess(tmp_path, head, {"p": pipeline}) as worker:
        status = worker.wait(30)
        log = worker.log.read_text()
    answer = "INVALID_REQUEST (42)" if code == INVALID_REQUEST else f"error {code}, which is newer than this client"
    length = 252 if key == "client.id" else 250  # of its pipeline's clients
    assert status in (1, 2)
    (told,) = [line for line in log.splitlines() if line.startswith("wideload: [pipeline.p]")]
    assert f"{key}: the brokers enforce the limit: they answer {answer}; the {name}" in told
    assert f"has {length} characters, allowed are 249; shorten" in told
    assert LONG not in told
    assert "restarts in" not in log
    assert enforcing.refused < 4, "it is not tried for ever"
    assert "Traceback" not in log


def test_a_pipeline_that_runs_ends_too(enforcing: EnforcingBroker, tmp_path: Path) -> None:
    """Brokers that enforce the limits one day end a pipeline that begins again: it does not wait for them."""
    prefix = f"{tmp_path.name}-runs"
    enforcing.refuses = None
    for name in ("raw", "orders"):
        Operations(enforcing.address).create_topic(f"{prefix}-{name}", {})
    head = {
        "bootstrap.servers": enforcing.address,
        "resource.identifier.limit.enable": False,
        "client.id": LONG,
        "web.control.enable": True,
        "web.control.token": TOKEN,
    }
    pipeline = {
        "topics": [f"{prefix}-raw"],
        "output.topic": f"{prefix}-orders",
        "transforms": ["chunk"],
        "processing.guarantee": "exactly_once",
    }
    with WorkerProcess(tmp_path, head, {"p": pipeline}) as worker:
        worker.wait_ready()
        enforcing.refuses, enforcing.code, enforcing.refused = FIND_COORDINATOR, NEW, 0
        ask(worker.port, "POST", "/connectors/p/restart", headers={"Authorization": f"Bearer {TOKEN}"})
        # The worker stays: a request may start the pipeline again.
        until(lambda: "pipeline p has failed: client.id: the brokers enforce" in worker.log.read_text(), "it ends", 20)
    assert enforcing.refused < 4, "it is not tried for ever"


@pytest.mark.parametrize("code", [INVALID_REQUEST, NEW])
def test_a_refused_group_of_a_command_is_told(enforcing: EnforcingBroker, tmp_path: Path, code: int) -> None:
    """`consume` and `dlq replay` end with the option and the length."""
    prefix = f"{tmp_path.name}-group-{code}"
    enforcing.refuses = None
    for name in ("raw", "letters"):
        Operations(enforcing.address).create_topic(f"{prefix}-{name}", {})
    head = {"bootstrap.servers": enforcing.address, "resource.identifier.limit.enable": False}
    pipeline: dict[str, object] = {
        "topics": [f"{prefix}-raw"],
        "output.topic": f"{prefix}-orders",
        "transforms": ["chunk"],
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{prefix}-letters",
    }
    config = WorkerProcess(tmp_path, head, {"p": pipeline}).config
    enforcing.refuses, enforcing.code = FIND_COORDINATOR, code
    answer = "INVALID_REQUEST (42)" if code == INVALID_REQUEST else f"error {code}, which is newer than this client"
    told = (
        f"wideload: --group: the brokers enforce the limit: they answer {answer}; the group id has 250 characters, "
        "allowed are 249; shorten it\n"
    )
    for command in (("consume", f"{prefix}-raw", "--until-end"), ("dlq", "replay"), ("dlq", "replay", "--yes")):
        done = wideload(*command, "--group", LONG, "-c", config)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
