"""Brokers that enforce the limits of names, as Kafka 5.0 is to do, and tell nobody: their errors have no name."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.protocol.admin import CreateTopicsRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.group import JoinGroupRequest_v5
from aiokafka.protocol.transaction import InitProducerIdRequest_v0

from app.local.broker import EmbeddedBroker, free_ports
from tests.integration.command_line import wideload
from tests.integration.operations import Operations
from tests.integration.rest import ask
from tests.integration.worker_process import WorkerProcess, until
from transforms.errors import WideloadError

LONG = "n" * 250
INVALID_REQUEST, NEW = 42, 150
ANSWERS = {INVALID_REQUEST: "INVALID_REQUEST (42)", NEW: f"error {NEW}, which is newer than this client"}
TOKEN = "token-of-who-may-steer-1"
CREATE_TOPICS, FIND_COORDINATOR, INIT_PRODUCER_ID, JOIN_GROUP = 19, 10, 22, 11

_SIZE, _HEAD = struct.Struct("!i"), struct.Struct("!hhi")


def refusal(key: int, version: int, code: int) -> bytes:
    """An answer with an error."""
    request, values = {
        CREATE_TOPICS: (CreateTopicsRequest_v3, (0, [("x", code, None)])),
        FIND_COORDINATOR: (FindCoordinatorRequest_v1, (0, code, "", -1, "", -1)),
        INIT_PRODUCER_ID: (InitProducerIdRequest_v0, (0, code, -1, -1)),
        JOIN_GROUP: (JoinGroupRequest_v5, (0, code, -1, "", "", "", [])),
    }[key]
    assert version == request.API_VERSION, f"request {key} has version {version}"
    encoded: bytes = request.RESPONSE_TYPE(*values).encode()
    return encoded


class EnforcingBroker:
    """A broker behind a proxy that refuses the long name, wherever it stands in a request of one kind.

    Attributes:
        address: for clients.
        refuses: the key of the requests; None to let all pass.
        code: the error of the answer.
        refused: how many requests were.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        controller, plain = free_ports(2)
        self.refuses: int | None = None
        self.code = self.refused = 0
        self._behind = ("127.0.0.1", plain)
        self.address = stack.enter_context(self._door())
        listeners = {"advertised.listeners": f"PLAINTEXT://{self.address}"}
        stack.enter_context(EmbeddedBroker(listeners, ports={"CONTROLLER": controller, "PLAINTEXT": plain}))

    def refuse(self, key: int, code: int) -> None:
        """Begins to refuse requests."""
        self.refuses, self.code, self.refused = key, code, 0

    def topics(self, prefix: str, *names: str) -> None:
        """Lets all pass, and makes topics."""
        self.refuses = None
        for name in names:
            Operations(self.address).create_topic(f"{prefix}-{name}", {})

    @contextlib.contextmanager
    def _door(self) -> Iterator[str]:
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                """Passes what one client sends."""
                with contextlib.suppress(OSError), socket.create_connection(broker._behind) as behind:
                    broker._pass(self.request, behind)

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()

    def _pass(self, client: socket.socket, behind: socket.socket) -> None:
        """Requests in turn, each with its answer: brokers answer a connection in order."""
        with client.makefile("rb") as requests, behind.makefile("rb") as answers:
            while size := requests.read(_SIZE.size):
                request = requests.read(*_SIZE.unpack(size))
                key, version, number = _HEAD.unpack_from(request)
                if key == self.refuses and LONG.encode() in request:
                    self.refused += 1
                    answer = _SIZE.pack(number) + refusal(key, version, self.code)
                else:
                    behind.sendall(size + request)
                    answer = answers.read(*_SIZE.unpack(answers.read(_SIZE.size)))
                client.sendall(_SIZE.pack(len(answer)) + answer)


@pytest.fixture(scope="module")
def enforcing() -> Iterator[EnforcingBroker]:
    """A broker for the tests of this file."""
    with contextlib.ExitStack() as stack:
        try:
            made = EnforcingBroker(stack)
        except WideloadError as exc:
            pytest.fail(f"no broker: {exc}", pytrace=False)
        yield made


def configuration(enforcing: EnforcingBroker, prefix: str) -> tuple[dict[str, object], dict[str, object]]:
    """The keys of a worker, and of its pipeline."""
    head: dict[str, object] = {"bootstrap.servers": enforcing.address, "resource.identifier.limit.enable": False}
    topics: dict[str, object] = {"topics": [f"{prefix}-raw"], "output.topic": f"{prefix}-orders"}
    return head, {**topics, "transforms": ["chunk"], "processing.guarantee": "exactly_once"}


@pytest.mark.parametrize(
    ("request_key", "code", "key", "name"),
    [
        (FIND_COORDINATOR, INVALID_REQUEST, "group.id", "group id"),
        (JOIN_GROUP, NEW, "consumer.group.instance.id", "group instance id"),
        (INIT_PRODUCER_ID, INVALID_REQUEST, "client.id", "client id"),
        (CREATE_TOPICS, NEW, "client.id", "client id"),
    ],
)
def test_a_refused_name_is_told(
    enforcing: EnforcingBroker, tmp_path: Path, request_key: int, code: int, key: str, name: str
) -> None:
    """The worker ends with the key and the length, at once; it does not try again."""
    enforcing.topics(tmp_path.name, "raw", *(["orders"] if request_key != CREATE_TOPICS else []))
    head, pipeline = configuration(enforcing, tmp_path.name)
    pipeline["topic.creation.enable"] = True
    (head if key == "client.id" else pipeline)[key] = LONG
    enforcing.refuse(request_key, code)
    with WorkerProcess(tmp_path, head, {"p": pipeline}) as worker:
        assert worker.wait(30) in (1, 2)
        log = worker.log.read_text()
    length = 252 if key == "client.id" else 250  # of its pipeline's clients
    (told,) = [line for line in log.splitlines() if line.startswith("wideload: [pipeline.p]")]
    assert f"{key}: the brokers enforce the limit: they answer {ANSWERS[code]}; the {name}" in told
    assert f"has {length} characters, allowed are 249; shorten" in told
    assert LONG not in told
    assert "restarts in" not in log
    assert enforcing.refused < 4, "it is not tried for ever"
    assert "Traceback" not in log


def test_a_pipeline_that_runs_ends_too(enforcing: EnforcingBroker, tmp_path: Path) -> None:
    """Brokers that enforce the limits one day end a pipeline that begins again: it does not wait for them."""
    enforcing.topics(tmp_path.name, "raw", "orders")
    head, pipeline = configuration(enforcing, tmp_path.name)
    head |= {"client.id": LONG, "web.control.enable": True, "web.control.token": TOKEN}
    with WorkerProcess(tmp_path, head, {"p": pipeline}) as worker:
        worker.wait_ready()
        enforcing.refuse(FIND_COORDINATOR, NEW)
        ask(worker.port, "POST", "/connectors/p/restart", headers={"Authorization": f"Bearer {TOKEN}"})
        # The worker stays: a request may start the pipeline again.
        until(lambda: "pipeline p has failed: client.id: the brokers enforce" in worker.log.read_text(), "it ends", 20)
    assert enforcing.refused < 4, "it is not tried for ever"


@pytest.mark.parametrize("code", [INVALID_REQUEST, NEW])
def test_a_refused_group_of_a_command_is_told(enforcing: EnforcingBroker, tmp_path: Path, code: int) -> None:
    """`consume` and `dlq replay` end with the option and the length."""
    prefix = tmp_path.name
    enforcing.topics(prefix, "raw", "letters")
    head, pipeline = configuration(enforcing, prefix)
    pipeline |= {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": f"{prefix}-letters"}
    config = WorkerProcess(tmp_path, head, {"p": pipeline}).config
    enforcing.refuse(FIND_COORDINATOR, code)
    told = (
        f"wideload: --group: the brokers enforce the limit: they answer {ANSWERS[code]}; the group id has 250 "
        "characters, allowed are 249; shorten it\n"
    )
    for command in (("consume", f"{prefix}-raw", "--until-end"), ("dlq", "replay", "--yes")):
        done = wideload(*command, "--group", LONG, "-c", config)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
