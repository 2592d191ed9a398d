"""The worker while its broker goes away: on a broker of the test's own, which it may stop and kill."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.cluster.preflight import check
from app.config.parsing import parse
from app.local.broker import EmbeddedBroker
from tests.integration.client_stores import CuttableAddress
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import PARTITIONS, MakeWay, Way, digests, expected, first_occurrences, mixed
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import free_port
from transforms.errors import ConfigurationError


@pytest.fixture(scope="module")
def module_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this file; its ports stay its own while it does not run."""
    with EmbeddedBroker(ports={"CONTROLLER": free_port(), "PLAINTEXT": free_port()}) as broker:
        yield broker


@pytest.fixture
def own_broker(module_broker: EmbeddedBroker) -> EmbeddedBroker:
    """A broker that a test may stop and kill; it runs."""
    module_broker.start()
    return module_broker


def way_on(broker: EmbeddedBroker, folder: Path) -> Way:
    """Topics and configuration on one broker."""

    def make_topic(partitions: int, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"

        async def create() -> None:
            client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
            await client.start()
            await client.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
            await client.close()

        asyncio.run(create())
        until(lambda: len(end_offsets(broker.bootstrap_servers, name)) == partitions, "the topic is there")
        return name

    return Way(broker.bootstrap_servers, make_topic, folder, partitions=PARTITIONS, large=2_000_000, session_ms=2_000)


@pytest.mark.chaos
def test_worker_broker_restarts(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A broker that is stopped or killed, and comes back, costs no record and no order; the worker goes on.

    SIGTERM ends it in bounded time, also while no broker answers.
    """
    way = way_on(own_broker, tmp_path)
    records = mixed(6_000, seed=7)
    parts = {
        own_broker.stop: (records[:2_000], records[2_000:3_000]),
        own_broker.kill: (records[3_000:5_000], records[5_000:]),
    }
    address = f"broker {own_broker.bootstrap_servers} does not answer since 20"
    with way.worker() as worker:
        worker.wait_ready()
        for end, (before, after) in parts.items():
            there = sum(end_offsets(way.broker, way.orders).values())
            send(way.broker, way.raw, before)
            until(lambda least=there + 500: sum(end_offsets(way.broker, way.orders).values()) > least, "records flow")  # type: ignore[misc]
            end()
            until(lambda: address in worker.get("/health")[1]["reasons"].get("offload", ""), "it is told which is away")
            assert worker.get("/health")[1]["status"] == "degraded"
            assert worker.get("/health/live")[0] == 200
            own_broker.start()
            send(way.broker, way.raw, after)
            sent = records[: records.index(after[-1]) + 1]
            until(partial(way.arrived, len(sent)), "at least as many have arrived", 120)
            until(partial(complete, way, sent), "each record has arrived, in order")
            until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        own_broker.kill()
        assert worker.terminate(seconds=30) == 0
        log = worker.log.read_text()
    # That a worker was thrown out of its group is worth a line.
    lines = log.partition("wideload stops")[0].splitlines()
    assert not [line for line in lines if " aiokafka" in line and "member_id was not recognized" not in line]
    # The first reason in the log may be another one than the broker that is away.
    assert log.count("pipeline offload waits: ") >= 2
    assert log.count("pipeline offload: brokers and group answer again, after") == 2
    assert log.count("pipeline offload has ended after") == 1
    assert "Traceback" not in log


def complete(way: Way, sent: list[Sent]) -> bool:
    """Whether each record has come out at the far end, in order."""
    return first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(sent)


@pytest.mark.chaos
def test_worker_broker_moves(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A cluster that comes back at other addresses is found by bootstrap.servers, though no record is on its way."""
    way = way_on(own_broker, tmp_path)
    before, port = way.broker, free_port()
    after = f"127.0.0.1:{port}"
    keys: dict[str, object] = {
        "producer.request.timeout.ms": 1_000,
        "producer.delivery.timeout.ms": 2_000,
        "errors.retry.delay.max.ms": 500,
    }
    records: list[Sent] = [(number, b"k", b"v", [], 1_700_000_000_000) for number in range(PARTITIONS)]
    settings = {**way.settings(), "bootstrap.servers": f"{before},{after}"}
    with WorkerProcess(way.folder, settings, way.offload(**keys)) as worker:
        worker.wait_ready()
        send(before, way.raw, records)
        until(lambda: way.all_read("offload"), "nothing is on its way")
        own_broker.kill()
        own_broker.move(port)
        own_broker.start()
        send(after, way.raw, records)
        until(lambda: sum(end_offsets(after, way.orders).values()) == 2 * PARTITIONS, "the records have come", 120)
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again")
        assert worker.terminate() == 0


def test_broker_that_is_not_where_it_says() -> None:
    """A wrong advertised.listeners is told with the address that brokers give, and why nobody is there."""
    nowhere = f"127.0.0.1:{free_port()}"
    with EmbeddedBroker({"advertised.listeners": f"PLAINTEXT://{nowhere}"}) as broker:
        memory = {"large.message.payload.store.class": "memory"}
        pipeline = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"], **memory}
        document = {"bootstrap.servers": broker.bootstrap_servers, "pipeline": {"offload": pipeline}}
        with pytest.raises(ConfigurationError) as refused:
            asyncio.run(check(parse(document, {})))
    found = str(refused.value)
    assert f"reports that the brokers are at {nowhere}, where none can be reached: ConnectionRefused" in found
    assert "correct advertised.listeners" in found


def test_worker_waits_for_brokers_at_its_start(broker: str, make_way: MakeWay) -> None:
    """With `startup.wait.ms` it begins as soon as they answer, and says meanwhile what it waits for."""
    way = make_way(1)
    host, _, port = broker.rpartition(":")
    door = CuttableAddress(host, int(port))  # the broker says its own address to those that come
    door.cut()
    settings = {**way.settings(), "bootstrap.servers": f"127.0.0.1:{door.port}", "startup.wait.ms": 60_000}
    with WorkerProcess(way.folder, settings, way.offload()) as worker:
        until(lambda: "wideload: waits up to" in worker.log.read_text(), "it waits")
        door.mend()
        worker.wait_ready()
        assert worker.terminate() == 0
    door.cut()
    assert "Traceback" not in worker.log.read_text()
