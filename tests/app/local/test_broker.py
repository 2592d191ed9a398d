"""The embedded broker: it keeps its records, and ends with its parent."""

from __future__ import annotations

import asyncio
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

from app.local.broker import BrokerError, EmbeddedBroker

pytestmark = pytest.mark.integration

TOPIC = "kept"
DEADLINE_SECONDS = 30


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedBroker]:
    """A broker for this module, which tests may stop and kill."""
    with EmbeddedBroker() as broker:
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
    address, topic = node.bootstrap_servers, f"{TOPIC}-{how}"
    write(address, topic, how.encode())
    getattr(node, how)()
    assert node.pid is None
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    node.start()
    assert node.bootstrap_servers == address
    assert first_value(address, topic) == how.encode()


def test_broker_restart_is_another_process(node: EmbeddedBroker) -> None:
    """`restart` ends the process and starts a new one at the same address."""
    before = (node.bootstrap_servers, node.pid)
    node.restart()
    assert node.bootstrap_servers == before[0]
    assert node.pid not in {before[1], None}


def test_broker_start_twice(node: EmbeddedBroker) -> None:
    """`start` does nothing if the broker runs."""
    before = node.pid
    node.start()
    assert node.pid == before


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


def test_broker_takes_properties() -> None:
    """Properties of the caller replace ours."""
    with EmbeddedBroker({"auto.create.topics.enable": "true"}) as broker:
        assert "auto.create.topics.enable = true" in broker.log_path.read_text()


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


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app.local.broker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
