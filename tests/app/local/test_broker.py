"""The embedded broker: it keeps its records, and ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.local import jars
from app.local.broker import BrokerError, EmbeddedBroker, free_ports

pytestmark = pytest.mark.integration

TOPIC = "kept"
DEADLINE_SECONDS = 30


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedBroker]:
    """A broker for this module, which tests may stop and kill; with a property that is not ours."""
    with EmbeddedBroker({"auto.create.topics.enable": "true"}) as broker:
        yield broker


def until(condition: Callable[[], bool]) -> bool:
    """Whether the condition came true before the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def write(bootstrap: str, topic: str, value: bytes) -> None:
    async def send() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            await producer.send_and_wait(topic, value)

    asyncio.run(send())


def first_value(bootstrap: str, topic: str) -> bytes:
    async def read() -> bytes:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            value = (await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)).value
            assert isinstance(value, bytes)
            return value

    return asyncio.run(read())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_broker_keeps_its_data(node: EmbeddedBroker, how: str) -> None:
    """After `stop` or `kill`, `start` gives the same address and the same records."""
    address, pid, topic = node.bootstrap_servers, node.pid, f"{TOPIC}-{how}"
    write(address, topic, how.encode())
    getattr(node, how)()
    stopped = node.pid
    assert stopped is None
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    node.start()
    assert node.bootstrap_servers == address
    assert node.pid not in {pid, None}
    assert first_value(address, topic) == how.encode()


def test_broker_takes_properties(node: EmbeddedBroker) -> None:
    """Properties of the caller replace ours."""
    assert "auto.create.topics.enable = true" in node.log_path.read_text()


def test_broker_has_no_property_that_kafka_removes(node: EmbeddedBroker) -> None:
    """Each property of ours stays in the next release of Kafka."""
    assert [line for line in node.log_path.read_text().splitlines() if "deprecated" in line] == []


def test_broker_start_twice(node: EmbeddedBroker) -> None:
    """`start` does nothing if the broker runs."""
    before = node.pid
    node.start()
    assert node.pid == before


def test_broker_restart() -> None:
    """`restart` is `stop` and then `start`, each of which has its tests."""
    called: list[str] = []

    class Told(EmbeddedBroker):
        def stop(self) -> None:
            called.append("stop")

        def start(self) -> None:
            called.append("start")

    Told().restart()
    assert called == ["stop", "start"]


def test_broker_close_leaves_nothing() -> None:
    """`close` ends the process and removes the folder; a second `close` is harmless."""
    broker = EmbeddedBroker()
    broker.start()
    pid, folder = broker.pid, broker.log_path.parent
    assert pid is not None
    broker.close()
    broker.close()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(BrokerError, match="has not been started"):
        _ = broker.bootstrap_servers


def test_broker_that_cannot_start_says_why() -> None:
    """The error has the message of the broker, and no process is left."""
    broker = EmbeddedBroker({"num.network.threads": "none"})
    with pytest.raises(BrokerError, match=r"Invalid value none for configuration num\.network\.threads"):
        broker.start()
    assert broker.pid is None


def test_broker_port_in_use() -> None:
    """A port in use gives one sentence with the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=rf"^port {port} is in use"):
            EmbeddedBroker(port=port).start()


def test_broker_formats_the_storage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool that formats the storage runs for the first broker; the next ones get the same files, with own ids."""
    folder = tmp_path / "jars" / jars.ensure("kafka")[0].parent.name
    folder.mkdir(parents=True)
    for jar in jars.ensure("kafka"):
        (folder / jar.name).symlink_to(jar)
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    runs: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        runs.append(list(map(str, command)))
        return run(command, **options)  # type: ignore[call-overload] # handed on

    monkeypatch.setattr("app.local.broker.subprocess.run", counted)
    found = []
    node = {"node.id": "3", "controller.quorum.voters": "3@127.0.0.1:9"}
    for _ in range(2):
        broker = EmbeddedBroker(node, cluster_id="-a-cluster-of-the-test")
        broker._prepare()
        data = broker.log_path.parent / "data"
        lines = [line for line in (data / "meta.properties").read_text().splitlines() if line[0] != "#"]
        found.append(
            (
                {path.name for path in data.rglob("*") if path.is_file()},
                dict(line.split("=") for line in lines),
                next(data.rglob("*.checkpoint")).read_bytes(),
            )
        )
        broker.close()
    assert len(runs) == 1
    (files, first, checkpoint), (files_again, second, checkpoint_again) = found
    assert files == files_again == {"00000000000000000000-0000000000.checkpoint", "meta.properties"}
    assert checkpoint == checkpoint_again != b""
    assert first.keys() == second.keys()
    ids = [meta.pop("directory.id") for meta in (first, second)]
    assert first == second == {"version": "1", "node.id": "3", "cluster.id": "-a-cluster-of-the-test"}
    assert [len(each) for each in {*ids}] == [22, 22]
    failing = EmbeddedBroker(format_arguments=["--add-scram", "nonsense"])
    with pytest.raises(BrokerError, match="was not formatted"):
        failing._prepare()
    failing.close()
    assert len(runs) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port that is held is closed to servers, too")
def test_free_ports_are_held() -> None:
    """A free port is given to nobody else, and a server can listen on it, again and again."""
    ports = free_ports(3)
    assert len({*ports}) == 3
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port)):
                socket.create_connection(("127.0.0.1", port)).close()


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, which is killed at the end at the latest; then the broker ends, too."""
    with subprocess.Popen(
        [sys.executable, "-m", "app.local.broker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # One compiler is enough for a broker that starts and ends.
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_broker_ends_with_its_parent(number: signal.Signals) -> None:
    """After any end of the parent, the broker ends and its folder is removed."""
    with command() as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline().startswith("bootstrap.servers=127.0.0.1:")
        folder = Path(parent.stderr.readline().removeprefix("log: ").strip()).parent
        assert (folder / "data").is_dir()
        family = psutil.Process(parent.pid).children(recursive=True)
        assert any(process.name() == "java" for process in family)
        os.kill(parent.pid, number)
        status = parent.wait(DEADLINE_SECONDS)
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert until(lambda: not any(process.is_running() for process in family))
    assert until(lambda: not folder.exists())


def test_broker_command_port_in_use() -> None:
    """The command prints one line, without a traceback, and its status is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command("--port", str(port)) as parent:
            _, said = parent.communicate(timeout=DEADLINE_SECONDS)
    assert said == f"port {port} is in use; stop the process that uses it, or choose another port\n"
    assert parent.returncode == 1
