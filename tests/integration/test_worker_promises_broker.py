"""Promises of docs/reliability.md that need a broker of their own: passwords, compaction, and none that answers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.local.broker import EmbeddedBroker, free_ports
from stores.registry import put
from stores.s3 import S3Store
from tests.faults.proxy import FaultProxy, Hang, Ok
from tests.integration.client_stores import CuttableAddress
from tests.integration.forked_worker import ForkedWorker
from tests.integration.operations import Operations
from tests.integration.topics import Sent, alter, committed, end_offsets, read_all, send
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.chunk import Chunking
from transforms.errors import WideloadError
from transforms.offload import Offload
from transforms.record import Record

USER, PASSWORD = "wideload", "of-a-test"
STAMP = 1_700_000_000_000
LIMIT = 20_000
SECRETS = "the brokers do not accept sasl.username and sasl.password"

# Each client gives up within two seconds, and the worker tries again after half a second at most.
IMPATIENT = {
    "producer.request.timeout.ms": 1_000,
    "producer.delivery.timeout.ms": 1_500,
    "errors.retry.delay.max.ms": 500,
    "offset.flush.interval.ms": 100,
}


class OwnBroker:
    """A broker with a user, which workers reach by an address that can be cut; tests reach it by another one.

    It compacts topics at once.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        controller, plain, secured = free_ports(3)
        self.door = CuttableAddress("127.0.0.1", secured)
        stack.callback(self.door.cut)
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        listener = "listener.name.sasl_plaintext"
        self._broker = stack.enter_context(
            EmbeddedBroker(
                {
                    f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-256",
                    f"{listener}.scram-sha-256.sasl.jaas.config": scram,
                    "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},"
                    f"SASL_PLAINTEXT://127.0.0.1:{self.door.port}",
                    "log.cleaner.backoff.ms": "50",
                },
                protocols=["SASL_PLAINTEXT"],
                ports={"CONTROLLER": controller, "PLAINTEXT": plain, "SASL_PLAINTEXT": secured},
                format_arguments=["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"],
            )
        )
        self.address = self._broker.bootstrap_servers
        self.operations = Operations(self.address)
        self.settings: dict[str, object] = {
            "bootstrap.servers": f"127.0.0.1:{self.door.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "consumer.session.timeout.ms": 30_000,
            "consumer.heartbeat.interval.ms": 300,
        }

    def topics(self, test: str, *names: str, **configs: object) -> list[str]:
        """Topics of one partition, of one test."""
        made = [f"{test}-{name}" for name in names]
        for name in made:
            self.operations.create_topic(name, **{"retention.ms": -1, **configs})
        return made

    def numbers(self, topic: str) -> list[int]:
        """The keys of a topic, without what came a second time."""
        return list(dict.fromkeys(int(each.key or b"-1") for each in read_all(self.address, topic).get(0, [])))


@pytest.fixture(scope="module")
def own() -> Iterator[OwnBroker]:
    """A broker for the tests of this file."""
    with contextlib.ExitStack() as stack:
        try:
            made = OwnBroker(stack)
        except WideloadError as exc:
            pytest.fail(f"no broker: {exc}", pytrace=False)
        yield made


def told(worker: ForkedWorker, what: str, pipeline: str) -> bool:
    """Whether /health gives this for the reason of a pipeline."""
    return what in worker.get("/health")[1]["reasons"].get(pipeline, "")


def numbered(numbers: range) -> list[Sent]:
    """Small records whose keys are numbers."""
    return [(0, b"%d" % number, b"v", [], STAMP) for number in numbers]


def test_password_withdrawn(own: OwnBroker, tmp_path: Path) -> None:
    """A password that is withdrawn lets the pipeline wait and say so, until it is back; no record is lost.

    Brokers ask for it when a connection begins: those that there are go on.
    """
    raw, orders = own.topics("password", "raw", "orders")
    pipeline = {"topics": [raw], "output.topic": orders, "transforms": ["offload"], **IMPATIENT}
    store = {"large.message.payload.store.class": "memory"}
    with ForkedWorker(tmp_path, own.settings, {"offload": {**pipeline, **store}}) as worker:
        worker.wait_ready()
        send(own.address, raw, numbered(range(10)))
        until(lambda: committed(own.address, "wideload-offload", raw)[0] == 10, "records flow")
        own.operations.set_password(USER, None)
        try:
            send(own.address, raw, numbered(range(10, 20)))
            until(lambda: own.numbers(orders) == list(range(20)), "those who are in stay in")
            own.door.cut()
            own.door.mend()
            send(own.address, raw, numbered(range(20, 30)))
            until(lambda: told(worker, SECRETS, "offload"), "it is told what the brokers do not accept")
            status, health = worker.get("/health")
            assert (status, health["status"], health["live"]) == (503, "degraded", True)
            assert "(since " in health["reasons"]["offload"]
        finally:
            own.operations.set_password(USER, PASSWORD)
        until(lambda: own.numbers(orders) == list(range(30)), "all have come, in order")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        assert worker.terminate() == 0
        assert PASSWORD not in worker.log.read_text()
