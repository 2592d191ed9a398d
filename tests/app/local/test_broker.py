"""The embedded broker: it keeps its records, and ends with its parent."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil
import pytest

from app.local import jars
from app.local.broker import BrokerError, EmbeddedBroker, free_ports, main
from tests.integration.topics import read_all, send
from tests.integration.worker_process import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedBroker]:
    """A broker for this module, which tests may stop and kill; with a property that is not ours."""
    with EmbeddedBroker({"auto.create.topics.enable": "true"}) as broker:
        yield broker


def test_broker_runs_as_it_is_told(node: EmbeddedBroker) -> None:
    """Properties of the caller replace ours, of which Kafka removes none; `start` does nothing if it runs."""
    before, log = node.pid, node.log_path.read_text()
    node.start()
    assert node.pid == before is not None
    assert "auto.create.topics.enable = true" in log
    assert [line for line in log.splitlines() if "deprecated" in line] == []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_broker_keeps_its_data(node: EmbeddedBroker, how: str) -> None:
    """After `stop` or `kill`, `start` gives the same address and the same records."""
    address, pid, topic = node.bootstrap_servers, node.pid, f"kept-{how}"
    send(address, topic, [(0, b"k", how.encode(), (), 1_600_000_000_000)])
    getattr(node, how)()
    stopped = node.pid
    assert stopped is None
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    node.start()
    assert node.bootstrap_servers == address
    assert node.pid not in {pid, None}
    assert [record.value for record in read_all(address, topic)[0]] == [how.encode()]


def test_broker_close_leaves_nothing(node: EmbeddedBroker) -> None:
    """`close` ends the process and removes the folder; a second `close` is harmless."""
    pid, folder = node.pid, node.log_path.parent
    assert pid is not None
    node.close()
    node.close()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(BrokerError, match="has not been started"):
        _ = node.bootstrap_servers


def test_broker_port_in_use(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints one line with the port, without a traceback, and its status is 1."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # that of the tests stays
    monkeypatch.setattr("app.local.broker.watched", lambda *_, **__: pytest.fail("Kafka was started"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    said = f"port {port} is in use; stop the process that uses it, or choose another port\n"
    assert capsys.readouterr() == ("", said)


def test_broker_that_cannot_start_says_why() -> None:
    """The error has the message of the broker, and no process is left."""
    broker = EmbeddedBroker({"num.network.threads": "none"})
    with pytest.raises(BrokerError, match=r"Invalid value none for configuration num\.network\.threads"):
        broker.start()
    assert broker.pid is None


def test_broker_formats_the_storage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool that formats the storage runs for the first broker; the next ones get the same files, with own ids."""
    fetched = jars.ensure("kafka")
    folder = tmp_path / "jars" / fetched[0].parent.name
    folder.mkdir(parents=True)
    for jar in fetched:
        (folder / jar.name).symlink_to(jar)
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    run = mock.Mock(side_effect=subprocess.run)
    monkeypatch.setattr("app.local.broker.subprocess.run", run)
    found, ids = [], set()
    for _ in range(2):
        node = {"node.id": "3", "controller.quorum.voters": "3@127.0.0.1:9"}
        with contextlib.closing(EmbeddedBroker(node, cluster_id="-a-cluster-of-the-test")) as broker:
            broker._prepare()
            files = {path.name: path for path in (broker.log_path.parent / "data").rglob("*") if path.is_file()}
            meta = dict(re.findall(r"^(\w[\w.]*)=(.*)$", files.pop("meta.properties").read_text(), re.MULTILINE))
            ids.add(meta.pop("directory.id"))
            found.append((meta, {name: path.read_bytes() for name, path in files.items()}))
    assert run.call_count == 1
    assert found[0] == found[1]
    meta, (checkpoint,) = found[0][0], found[0][1].items()
    assert meta == {"version": "1", "node.id": "3", "cluster.id": "-a-cluster-of-the-test"}
    assert checkpoint[0] == "00000000000000000000-0000000000.checkpoint"
    assert checkpoint[1] != b""
    assert [len(each) for each in ids] == [22, 22]
    with (
        contextlib.closing(EmbeddedBroker(format_arguments=["--add-scram", "nonsense"])) as failing,
        pytest.raises(BrokerError, match="was not formatted"),
    ):
        failing._prepare()
    assert run.call_count == 2


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


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_broker_ends_with_its_parent(number: signal.Signals) -> None:
    """After any end of the parent, the broker ends and its folder is removed."""
    # One compiler is enough for a broker that starts and ends.
    environ = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    command = [sys.executable, "-m", "app.local.broker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stderr is not None
            assert parent.stdout.readline().startswith("bootstrap.servers=127.0.0.1:")
            folder = Path(parent.stderr.readline().removeprefix("log: ").strip()).parent
            assert (folder / "data").is_dir()
            family = psutil.Process(parent.pid).children(recursive=True)
            assert any(process.name() == "java" for process in family)
            os.kill(parent.pid, number)
            status = parent.wait(30)
        finally:
            parent.kill()
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    until(lambda: not any(process.is_running() for process in family) and not folder.exists(), "nothing is left")
