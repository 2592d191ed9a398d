"""The worker while its broker goes away: on a broker of the test's own, which it may stop and kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.cluster.preflight import check
from app.config.parsing import parse
from app.local.broker import EmbeddedBroker
from tests.forks import run
from tests.integration.quotas import set_quotas
from tests.integration.switched_store import STUCK
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import PARTITIONS, THRESHOLD, Way, digests, expected, first_occurrences, mixed
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
    if module_broker.pid is not None:
        os.kill(module_broker.pid, signal.SIGCONT)  # a test that failed may have stopped it
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
    """A broker that is stopped or killed, and comes back, costs no record and no order; the worker goes on."""
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
        assert worker.terminate() == 0
        log = worker.log.read_text()
    # That a worker was thrown out of its group is worth a line.
    assert not [line for line in log.splitlines() if " aiokafka" in line and "member_id was not recognized" not in line]
    # The first reason in the log may be another one than the broker that is away.
    assert [log.count(f"pipeline offload {told}") for told in ("waits: ", "has ended after")] == [2, 1]
    assert log.count("pipeline offload: brokers and group answer again, after") == 2


def complete(way: Way, sent: list[Sent]) -> bool:
    """Whether each record has come out at the far end, in order."""
    return first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(sent)


@pytest.mark.chaos
def test_worker_broker_moves(tmp_path: Path) -> None:
    """A cluster that comes back at other addresses is found by bootstrap.servers, though no record is on its way."""
    before, after = (f"127.0.0.1:{free_port()}" for _ in range(2))
    ports = {"CONTROLLER": free_port(), "PLAINTEXT": int(before.rpartition(":")[2])}
    with EmbeddedBroker(ports=ports) as broker:
        way = way_on(broker, tmp_path)
        settings = {**way.settings(), "bootstrap.servers": f"{before},{after}"}
        keys: dict[str, object] = {
            "producer.request.timeout.ms": 1_000,
            "producer.delivery.timeout.ms": 2_000,
            "errors.retry.delay.max.ms": 500,
        }
        with WorkerProcess(way.folder, settings, way.offload(**keys)) as worker:
            worker.wait_ready()
            records: list[Sent] = [(number, b"k", b"v", [], 1_700_000_000_000) for number in range(PARTITIONS)]
            send(before, way.raw, records)
            first = dict.fromkeys(range(PARTITIONS), 1)
            until(lambda: committed(before, way.group("offload"), way.raw) == first, "nothing is on its way")
            broker.kill()
            broker.move(int(after.rpartition(":")[2]))
            broker.start()
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
    assert f"says that the brokers are at {nowhere}, where none can be reached: ConnectionRefused" in str(refused.value)
    assert "correct advertised.listeners" in str(refused.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system takes the right to mount one: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.chaos
def test_worker_broker_disk_full(small_disk: Path, tmp_path: Path) -> None:
    """A broker that ends because its disk is full costs no record; once it has room and runs, the worker goes on."""
    properties = {"log.dirs": str(small_disk / "data"), "metadata.log.dir": str(tmp_path / "metadata")}
    records: list[Sent] = [(0, b"%d" % number, bytes(15_000), [], 1_700_000_000_000) for number in range(400)]
    with EmbeddedBroker(properties) as broker:
        way = way_on(broker, tmp_path)
        with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
            worker.wait_ready()
            send(way.broker, way.raw, records[:1])
            until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "records flow")
            assert worker.process is not None
            os.kill(worker.process.pid, signal.SIGSTOP)
            send(way.broker, way.raw, records[1:])
            filler = small_disk / "filler"
            room = os.statvfs(small_disk)
            filler.write_bytes(bytes(room.f_bavail * room.f_frsize - 2_000_000))
            os.kill(worker.process.pid, signal.SIGCONT)
            until(lambda: "No space left on device" in broker.log_path.read_text(), "the disk is full", 120)
            broker.kill()  # it ends by itself, but takes half a minute
            until(lambda: way.broker in worker.get("/health")[1]["reasons"].get("offload", ""), "it is told")
            filler.unlink()
            broker.start()
            until(
                lambda: first_occurrences(digests(read_all(way.broker, way.orders))) == expected(records),
                "each record has arrived, in order",
                120,
            )
            until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
            assert worker.terminate() == 0


def test_worker_leaves_a_group_that_rebalances(broker: str, make_way: Callable[..., Way]) -> None:
    """SIGTERM ends the worker within seconds, and its membership, though the group waits for another member."""
    way = make_way(partitions=2)
    group = way.group("offload")

    class Slow(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
        def __init__(self) -> None:
            self.asked, self.let = asyncio.Event(), asyncio.Event()

        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if revoked:
                self.asked.set()
                await self.let.wait()

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            pass

    async def members() -> int:
        client = AIOKafkaAdminClient(bootstrap_servers=broker)
        await client.start()
        try:
            (answer,) = await client.describe_consumer_groups([group])
            return len(answer.groups[0][5])
        finally:
            await client.close()

    async def join_and_leave() -> None:
        listener = Slow()
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=group)
        consumer.subscribe([way.raw], listener=listener)
        await consumer.start()
        settings = {**way.settings(), "consumer.session.timeout.ms": 60_000}
        try:
            with WorkerProcess(way.folder, settings, way.offload()) as worker:
                await asyncio.wait_for(listener.asked.wait(), 60)
                assert await members() == 2
                assert await asyncio.to_thread(worker.terminate, 20) == 0
            assert await members() == 1
        finally:
            listener.let.set()
            await consumer.stop()

    asyncio.run(join_and_leave())


def test_worker_sigterm_without_broker(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """SIGTERM ends the worker in bounded time though no broker answers, and without a traceback."""
    way = way_on(own_broker, tmp_path)
    with way.worker() as worker:
        worker.wait_ready()
        own_broker.kill()
        assert worker.terminate(seconds=30) == 0
        assert "Traceback" not in worker.log.read_text()


@pytest.mark.chaos
def test_worker_lets_go_of_a_producer_without_answers(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Where a batch was not acknowledged in time, its producer is stopped at once, and not left to the collector."""
    way = way_on(own_broker, tmp_path)
    root = tmp_path / "switched"
    root.mkdir()
    (root / "publish").touch()
    way.store = {
        "large.message.payload.store.class": "tests.integration.switched_store:SwitchedStore",
        "switched.root": str(root),
    }
    records = mixed(200, seed=8)
    records += [(number, b"stuck", STUCK + bytes(THRESHOLD), [], 1_700_000_000_000) for number in range(PARTITIONS)]
    records += mixed(200, seed=9)
    keys = {"producer.request.timeout.ms": 1_000, "producer.delivery.timeout.ms": 1_500}
    with WorkerProcess(way.folder, way.settings(), way.offload(**keys)) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, records)
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) == 200, "the others wait for the payloads")
        assert own_broker.pid is not None
        os.kill(own_broker.pid, signal.SIGSTOP)
        (root / "publish").unlink()
        until(lambda: "not acknowledged within the 1.5 s" in worker.log.read_text(), "the pipeline begins again")
        os.kill(own_broker.pid, signal.SIGCONT)
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) >= len(records), "all have arrived", 120)
        assert worker.terminate() == 0
        log = worker.log.read_text()
    assert NOT_CLEAN not in log
    assert "Unclosed" not in log


NOT_CLEAN, UNCLOSED = "its producer did not stop cleanly", "Unclosed AIOKafkaProducer"
LEFT = """
import asyncio, gc, sys
from aiokafka import AIOKafkaProducer

async def leave():
    await AIOKafkaProducer(bootstrap_servers=sys.argv[1]).start()
    gc.collect()

asyncio.run(leave())
"""


def test_producer_that_is_left_is_told(make_way: Callable[..., Way], tmp_path: Path) -> None:
    """The log says it where a producer does not stop in time, or is left to the collector."""
    way = make_way(partitions=1)
    worker = WorkerProcess(way.folder, way.settings(), way.offload())
    worker.constants = {"app.pipeline.flow:_STOP_CLIENT_S": 0}
    with worker:
        worker.wait_ready()
        worker.terminate()
        assert NOT_CLEAN in worker.log.read_text()
    (tmp_path / "left.py").write_text(LEFT)
    assert UNCLOSED in run([sys.executable, tmp_path / "left.py", way.broker]).stderr


def test_worker_waits_for_brokers_at_its_start(broker: str, make_way: Callable[..., Way]) -> None:
    """With `startup.wait.ms` it begins as soon as they answer, and says meanwhile what it waits for."""
    way = make_way(1)
    port = free_port()
    settings = {**way.settings(), "bootstrap.servers": f"127.0.0.1:{port}", "startup.wait.ms": 60_000}
    with WorkerProcess(way.folder, settings, way.offload()) as worker:
        until(lambda: "wideload: waits up to" in worker.log.read_text(), "it waits")
        with relay(port, broker):
            worker.wait_ready()
            assert worker.terminate() == 0
    assert "Traceback" not in worker.log.read_text()


@contextmanager
def relay(port: int, broker: str) -> Iterator[None]:
    """Lets a port lead to a broker, which says its own address to those that come."""
    host, _, number = broker.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        others = await asyncio.open_connection(host, int(number))
        with suppress(ConnectionError):
            await asyncio.gather(pump(reader, others[1]), pump(others[0], writer))

    async def serve() -> None:
        async with await asyncio.start_server(accept, "127.0.0.1", port):
            while not ended.is_set():  # noqa: ASYNC110  # of a thread
                await asyncio.sleep(0.05)

    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def test_worker_over_its_quota(broker: str, make_way: Callable[..., Way]) -> None:
    """A producer that the broker lets wait for a quota waits: nothing times out, or begins again; the time is told."""
    way = make_way(1)
    # A broker looks at ten seconds: after the second of three batches the writer has to wait for more than two.
    set_quotas(broker, f"{way.raw}-offload", producer_byte_rate=8_000)
    short = {"producer.request.timeout.ms": 1_000, "producer.delivery.timeout.ms": 1_000}
    pipelines = way.offload(**short, **{"producer.batch.size": 50_000})
    records: list[Sent] = [(0, b"%d" % number, bytes(4_900), [], 1) for number in range(30)]
    with WorkerProcess(way.folder, {**way.settings(), "client.id": way.raw}, pipelines) as worker:
        worker.wait_ready()
        send(broker, way.raw, records)
        until(lambda: end_offsets(broker, way.orders)[0] >= len(records), "all have arrived")
        (page,) = worker.get("/pipelines")[1]
        assert worker.terminate() == 0
    assert (page["restarts"], end_offsets(broker, way.orders)[0]) == (0, len(records))
    assert page["throttled_s"] > 2
    assert "does not answer" not in worker.log.read_text()
    assert digests(read_all(broker, way.orders)) == expected(records)
