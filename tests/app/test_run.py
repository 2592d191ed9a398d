"""The checks before the worker runs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.cli import main
from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.run import _Worker, run_worker
from app.web.address import listening, runs_already
from tests.forks import run
from tests.s3_server import free_port
from transforms.errors import ConfigurationError

ORDERS = {
    "topics": ["raw"],
    "output.topic": "orders",
    "transforms": ["offload"],
    "large.message.payload.store.class": "memory",
}


@pytest.mark.parametrize("address", ["203.0.113.7", "no.such.host.invalid", "x" * 70])
def test_address_of_the_pages_is_not_ours(address: str) -> None:
    """An address of another machine is reported under its key."""
    settings = parse({"bootstrap.servers": "localhost:1", "web.bind": address, "pipeline": {"p": ORDERS}}, {})
    with pytest.raises(ConfigurationError) as refused:
        run_worker(settings, "INFO")
    (told,) = [each for each in refused.value.each if each.key == "web.bind"]
    assert told.reason.startswith(f"found '{address}', which is not an address of this machine")


async def test_what_was_cancelled_ends_before_the_loop_does() -> None:
    """The worker's loop runs on until tasks that were cancelled have done what they do at their end."""
    ended = list[str]()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            ended.append("in order")

    task = asyncio.create_task(long())
    await asyncio.sleep(0)
    task.cancel()
    await _Worker._sentinel_task(Mock())
    assert ended == ["in order"]


def test_the_end_is_logged_when_the_event_loop_has_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time that the worker took to stop is that of all of it, with the web server and what the loop waits for."""
    port = free_port()
    settings = parse({"bootstrap.servers": "localhost:1", "web.port": port, "pipeline": {"p": ORDERS}}, {})
    before: list[str] = []

    async def checked(*_: object) -> tuple[list[Plan], None]:
        return [], None

    def execute(worker: Any) -> None:
        worker.loop.run_until_complete(worker._application.stop())
        worker.loop.close()
        before.extend(record.getMessage() for record in caplog.records)
        raise SystemExit(0)

    monkeypatch.setattr("app.run.check_patiently", checked)
    monkeypatch.setattr("app.run.listening", lambda _: ())
    monkeypatch.setattr("app.run.set_up_logging", lambda *_: lambda: None)
    monkeypatch.setattr(_Worker, "execute_from_commandline", execute)
    with caplog.at_level("INFO", "wideload.application"):
        assert run_worker(settings, "INFO") == 0
    (behind,) = [message for record in caplog.records if (message := record.getMessage()) not in before]
    assert behind.startswith("wideload has ended after ")


def test_port_that_is_taken_while_the_cluster_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again before the worker begins, and is the worker's from then on: one sentence, no traceback."""
    port = free_port()
    settings = parse({"bootstrap.servers": "localhost:1", "web.port": port, "pipeline": {"p": ORDERS}}, {})
    taken: list[socket.socket] = []

    async def waited(*_: object) -> tuple[list[Plan], None]:
        taken.append(socket.create_server(("127.0.0.1", port)))
        return [], None

    monkeypatch.setattr("app.run.check_patiently", waited)
    with pytest.raises(ConfigurationError, match=f"web.port: 127.0.0.1:{port} cannot be used"):
        run_worker(settings, "INFO")
    taken[0].close()
    (mine,) = listening(settings)
    with closing(mine), pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))


def test_all_addresses_of_a_name() -> None:
    """A name that has several is served at each that this machine has, and takes the port at none if one is in use."""
    port = free_port()
    settings = parse(
        {"bootstrap.servers": "b:1", "web.bind": "localhost", "web.port": port, "pipeline": {"p": ORDERS}}, {}
    )
    sockets = listening(settings)
    addresses = [(each.family, each.getsockname()[:2]) for each in sockets]
    for each, (_, address) in zip(sockets, addresses, strict=True):
        with socket.create_connection(address, timeout=5):
            pass
        each.close()
    family, address = addresses[-1]
    told = f"web.port: localhost:{port} cannot be used"
    with socket.create_server(address, family=family), pytest.raises(ConfigurationError, match=told):
        listening(settings)


def test_name_whose_first_address_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localhost` on a machine that has no IPv6: it is served at the other address."""
    port = free_port()
    name = {"web.bind": "name.of.two", "web.port": port}
    settings = parse({"bootstrap.servers": "b:1", **name, "pipeline": {"p": ORDERS}}, {})
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("203.0.113.7", "127.0.0.1")]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    (mine,) = listening(settings)
    with closing(mine):
        assert mine.getsockname() == ("127.0.0.1", port)


@pytest.mark.parametrize("command", ["check", "worker"])
def test_all_that_is_wrong_is_told_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of the pages, a store and the brokers: a line for each, in the order of the file, and status 2."""
    path = tmp_path / "wideload.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(
            f"bootstrap.servers = '127.0.0.1:1'\nweb.port = {port}\n[pipeline.p]\ntopics = ['raw']\n"
            "output.topic = 'orders'\ntransforms = ['inflate']\nlarge.message.payload.store.class = 'filesystem'\n"
            f"filesystem.root = '{tmp_path}/none'\n"
        )
        with pytest.raises(SystemExit) as ended:
            main([command, "-c", str(path)])
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert [line.partition(": ")[2].partition(": ")[0] for line in told] == [
        "bootstrap.servers",
        "web.port",
        "[pipeline.p] filesystem.root",
    ]
    assert all(line.startswith("wideload: ") for line in told)


@pytest.mark.parametrize("taken", [True, False], ids=["port taken", "brokers alone"])
def test_fausts_own_command_looks_at_the_same(taken: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """It tells the same as `wideload worker`, a line for each error, without a traceback; and waits as that does."""
    path = tmp_path / "wideload.toml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if taken else free_port()
        path.write_text(
            f"bootstrap.servers = '127.0.0.1:1'\nweb.port = {port}\nstartup.wait.ms = 1200\n[pipeline.p]\n"
            "topics = ['raw']\noutput.topic = 'orders'\ntransforms = ['offload']\n"
            "large.message.payload.store.class = 'memory'\n"
        )
        command = [sys.executable, "-m", "faust", "-A", "app.worker", "worker"]
        done = run(command, environ={**os.environ, "WIDELOAD_CONFIG": str(path)})
    told = done.stderr.splitlines()
    assert done.returncode == 2
    if not taken:
        assert told.pop(0).startswith("wideload: waits up to 1.")
    expected = ["bootstrap.servers", *(["web.port"] if taken else [])]
    assert [line.partition(": ")[2].partition(": ")[0] for line in told] == expected


def test_errors_come_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only the cluster and the stores show stands where its key does; a key that is not there comes last."""
    path = tmp_path / "wideload.toml"
    table = "topics = ['raw']\noutput.topic = 'orders'\ntransforms = ['inflate']\n"
    store = f"large.message.payload.store.class = 'filesystem'\nfilesystem.root = '{tmp_path}/none'\n"
    text = f"[pipeline.b]\n{store}{table}group.id = 'b'\n[pipeline.a]\n{table}{store}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path.write_text(f"web.port = {taken.getsockname()[1]}\nbootstrap.servers = '127.0.0.1:1'\n{text}")
        with pytest.raises(SystemExit):
            main(["check", "-c", str(path)])
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in told] == [
        "web.port",
        "bootstrap.servers",
        "[pipeline.b] filesystem.root",
        "[pipeline.a] filesystem.root",
    ]


@contextmanager
def answering(body: bytes) -> Iterator[int]:
    """A server that gives this to each request; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (json.dumps([{"name": "p", "group_id": "wideload-p"}]).encode(), True),
        (json.dumps([{"name": "q", "group_id": "wideload-q"}]).encode(), False),
        (b"<html>", False),
        (b"null", False),
        (b'{"name": 1}', False),
        (b"[" * 100_000, False),
        (b'[{"name": [], "group_id": {}}]', False),
    ],
)
def test_the_worker_of_the_file_may_be_on_the_port(body: bytes, *, same: bool) -> None:
    """`check` beside a running worker is no error; whatever else answers there is."""
    with answering(body) as port:
        settings = parse({"bootstrap.servers": "b:1", "web.port": port, "pipeline": {"p": ORDERS}}, {})
        assert runs_already(settings) is same


@pytest.mark.parametrize("taken", [False, True], ids=["brokers alone", "port too"])
def test_a_start_waits_for_what_may_come(taken: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: FBT001
    """For `startup.wait.ms` it asks brokers again that do not answer; not if anything else is wrong."""
    path = tmp_path / "wideload.toml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if taken else free_port()
        path.write_text(
            f"bootstrap.servers = '127.0.0.1:1'\nweb.port = {port}\nstartup.wait.ms = 1200\n[pipeline.p]\n"
            "topics = ['raw']\noutput.topic = 'orders'\ntransforms = ['inflate']\n"
            "large.message.payload.store.class = 'memory'\n"
        )
        began_s = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            main(["worker", "-c", str(path)])
        took_s = time.monotonic() - began_s
    told = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(told)) == (2, 2)
    assert told[0].startswith("wideload: waits up to 1.2 s (startup.wait.ms): ") is not taken
    assert taken or took_s > 1.2
