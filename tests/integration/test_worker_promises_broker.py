"""Promises of docs/reliability.md that need a broker of their own: passwords, compaction, and none that answers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.local.broker import EmbeddedBroker, free_ports
from stores.registry import open_store, put
from tests.faults.proxy import FaultProxy, Hang, Ok
from tests.integration.client_stores import CuttableAddress
from tests.integration.limits import alter
from tests.integration.operations import Operations
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import S3Server
from transforms.chunk import Chunking
from transforms.errors import WideloadError
from transforms.offload import Offload
from transforms.record import Record

USER, PASSWORD = "wideload", "of-a-test"
STAMP = 1_700_000_000_000
LIMIT = 20_000
IN_MEMORY = {"large.message.payload.store.class": "memory"}
NOT_ACCEPTED = "the brokers do not accept sasl.username and sasl.password"

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
            "consumer.session.timeout.ms": 2_000,
            "consumer.heartbeat.interval.ms": 300,
        }

    def topics(self, test: str, *names: str, **configs: object) -> list[str]:
        """Topics of one partition, of one test."""
        made = [f"{test}-{name}" for name in names]
        for name in made:
            self.operations.create_topic(name, {"retention.ms": -1, **configs})
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


def keys(own: OwnBroker, topic: str) -> list[int]:
    """The keys of a topic, as often as they are there."""
    return [int(each.key or b"-1") for each in read_all(own.address, topic).get(0, [])]


def told(worker: WorkerProcess, what: str, pipeline: str) -> bool:
    """Whether /health gives this for the reason of a pipeline."""
    return what in worker.get("/health")[1]["reasons"].get(pipeline, "")


def numbered(numbers: range) -> list[Sent]:
    """Small records whose keys are numbers."""
    return [(0, b"%d" % number, b"v", [], STAMP) for number in numbers]


def test_password_withdrawn(own: OwnBroker, tmp_path: Path) -> None:
    """A password that is withdrawn lets pipelines wait and say so, until it is back; no record is lost.

    Brokers ask for it when a connection begins: those that there are go on. A pipeline that has delivered nothing waits
    too.
    """
    raw, orders, nothing, copies = own.topics("password", "raw", "orders", "nothing", "copies")
    pipelines = {
        name: {"topics": [source], "output.topic": sink, "transforms": ["offload"], **IN_MEMORY, **IMPATIENT}
        for name, source, sink in (("busy", raw, orders), ("idle", nothing, copies))
    }
    with WorkerProcess(tmp_path, own.settings, pipelines) as worker:
        worker.wait_ready()
        send(own.address, raw, numbered(range(10)))
        until(lambda: committed(own.address, "wideload-busy", raw)[0] == 10, "records flow")
        own.operations.set_password(USER, None)
        try:
            send(own.address, raw, numbered(range(10, 20)))
            until(lambda: own.numbers(orders) == list(range(20)), "those who are in stay in")
            own.door.cut()
            own.door.mend()
            send(own.address, raw, numbered(range(20, 30)))
            until(lambda: all(told(worker, NOT_ACCEPTED, name) for name in pipelines), "both tell what is refused")
            status, health = worker.get("/health")
            assert (status, health["status"], health["live"]) == (503, "restarting", True)
            assert "(since " in health["reasons"]["busy"]
        finally:
            own.operations.set_password(USER, PASSWORD)
        send(own.address, nothing, numbered(range(1)))
        until(lambda: own.numbers(orders) == list(range(30)), "all have come, in order")
        until(lambda: own.numbers(copies) == [0], "those of the other one too")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        assert worker.terminate() == 0
        assert PASSWORD not in worker.log.read_text()


def pieces(number: int, size: int) -> list[Sent]:
    """The chunks of a record, as `chunk` writes them; the timestamp of each is a second after the one before."""
    record = Record(b"%d" % number, os.urandom(size), (), STAMP)
    split = Chunking(LIMIT).split(record, str(uuid.uuid4()))
    return [(0, each.key, each.value, each.headers, STAMP + 1_000 * n) for n, each in enumerate(split)]


def test_topic_of_chunks_made_compacted(own: OwnBroker, tmp_path: Path) -> None:
    """A topic of chunks that is set to `compact`: the worker runs on, and refuses it when a pipeline begins again.

    Until then compaction deletes chunks. What is left of their messages becomes dead letters, and no part of them is
    delivered. Once the topic is right again, both pipelines go on.
    """
    raw, whole, dead = own.topics("compacted", "raw", "whole", "dead", **{"max.message.bytes": 200_000})
    # A segment is closed by a record whose timestamp is later; only closed ones are compacted.
    soon = {"retention.ms": "-1", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0001"}
    (chunked,) = own.topics("compacted", "chunked", **soon, **{"max.message.bytes": LIMIT})
    fixed = {"producer.batch.size": 16_384, "errors.retry.delay.max.ms": 500, "offset.flush.interval.ms": 100}
    pipelines: dict[str, dict[str, object]] = {
        "split": {"topics": [raw], "output.topic": chunked, "transforms": ["chunk"], **fixed},
        "join": {
            "topics": [chunked],
            "output.topic": whole,
            "transforms": ["assemble"],
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": dead,
            **fixed,
        },
    }
    settings = {**own.settings, "consumer.session.timeout.ms": 60_000}
    with WorkerProcess(tmp_path, settings, pipelines) as worker:
        worker.wait_ready()
        send(own.address, raw, [(0, b"0", os.urandom(50_000), [], STAMP)])
        until(lambda: own.numbers(whole) == [0], "a message goes the whole way")
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
        alter(own.address, chunked, {**soon, "cleanup.policy": "compact", "max.message.bytes": str(LIMIT)})
        for each in [*pieces(1, 70_000), (0, b"2", b"small", [], STAMP + 60_000)]:
            send(own.address, chunked, [each])
        before = end_offsets(own.address, chunked)[0]
        until(lambda: keys(own, chunked) == [0, 1, 2], "one chunk of each message is left")
        os.kill(worker.process.pid, signal.SIGCONT)
        until(lambda: own.numbers(whole) == [0, 2], "the worker reads on, and delivers what is whole")
        until(lambda: committed(own.address, "wideload-join", chunked)[0] == before, "all that is committed")
        letters = read_all(own.address, dead)[0]
        assert {each.key for each in letters} == {b"1"}
        reasons = {dict(each.headers)["__connect.errors.exception.message"] for each in letters}
        assert all(re.search(rb"missing-first|out-of-order", reason or b"") for reason in reasons), reasons
        pages = worker.get("/pipelines")[1]
        assert [(page["state"], page["restarts"]) for page in pages] == [("RUNNING", 0)] * 2

        # A limit that is lower lets a pipeline begin again, with the first record that is refused.
        alter(own.address, chunked, {**soon, "cleanup.policy": "compact", "max.message.bytes": "17000"})
        alter(own.address, whole, {"retention.ms": "-1", "max.message.bytes": "2000"})
        send(own.address, raw, [(0, b"3", os.urandom(50_000), [], STAMP)])
        send(own.address, chunked, [(0, b"4", bytes(5_000), [], STAMP + 120_000)])
        for name, key in (("split", "output.topic"), ("join", "topics")):
            reason = f"{key}: topic {chunked} has cleanup.policy compact; the chunks of a value have one key"
            until(partial(told, worker, reason, name), "it is told why the topic is refused")
        assert worker.get("/health")[0] == 503
        alter(own.address, whole, {"retention.ms": "-1", "max.message.bytes": "200000"})
        alter(own.address, chunked, {"retention.ms": "-1", "max.message.bytes": str(LIMIT)})
        until(lambda: sorted(own.numbers(whole)) == [0, 2, 3, 4], "all others have come")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        assert worker.terminate() == 0
    assert {each.key for each in read_all(own.address, dead)[0]} == {b"1"}


def references(server: S3Server, topic: str, count: int, size: int) -> list[Sent]:
    """References to random payloads of this size, which are put into the store, and numbered in their keys."""
    offload = Offload()
    sent: list[Sent] = []
    with contextlib.closing(
        open_store({"large.message.payload.store.class": "s3", **server.config("budget/")})
    ) as store:
        for number in range(count):
            value = os.urandom(size)
            payload = offload.payload(value)
            path = put(store, topic, payload.checksum, payload.data)
            record = offload.refer(Record(b"%d" % number, value, (), STAMP), payload.reference(path))
            sent.append((0, record.key, record.value, record.headers, STAMP))
    return sent


@pytest.mark.s3
def test_budget_without_broker(own: OwnBroker, versitygw: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """While no broker answers, for longer than all time-outs, records hold no more than `in.flight.bytes`.

    They cannot be delivered, and so no payload is downloaded beyond that. The pipeline keeps trying, and goes on.
    """
    refs, inflated = own.topics("budget", "refs", "inflated", **{"max.message.bytes": 1_000_000})
    count, size, budget = 40, 200_000, 1_000_000
    sent = references(versitygw, refs, count, size)
    behind = replace(versitygw, endpoint=proxy.endpoint).config("budget/")
    store = {"large.message.payload.store.class": "s3", "s3.retry.attempts": 1, **behind}
    pipeline = {"topics": [refs], "output.topic": inflated, "transforms": ["inflate"], **store, **IMPATIENT}
    pipeline["producer.delivery.timeout.ms"] = 2_500  # time for all payloads, if they were asked for
    held: list[int] = []

    with WorkerProcess(tmp_path, {**own.settings, "in.flight.bytes": budget}, {"inflate": pipeline}) as worker:

        def page() -> Any:
            found = worker.get("/pipelines")[1][0]
            held.append(found["in_flight_bytes"])
            return found

        worker.wait_ready()
        proxy.switch(Hang())
        send(own.address, refs, sent)
        until(lambda: proxy.counts.hung > 0, "all references have been read, in one batch, and payloads are asked for")
        own.door.cut()
        try:
            proxy.switch(Ok())
            until(lambda: page()["restarts"] > 2, "it tries again and again")
            assert page()["inflated_records"] <= budget // size
            assert max(held) <= budget + size + 1_000  # one record of each pipeline may go over it
            assert worker.get("/health")[0] == 503
        finally:
            own.door.mend()
        until(lambda: end_offsets(own.address, inflated)[0] >= count, "all have come")
        assert own.numbers(inflated) == list(range(count))
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        assert worker.terminate() == 0
