"""For the tests of clients: a store that waits, a way to a server that can be cut, lost payloads, examples."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tests.forks import run
from tests.integration.topics import read_all
from tests.s3_server import S3Server, free_port
from transforms.errors import PayloadNotFoundError

_ROOT = Path(__file__).parents[2]
_LONG_S = 30.0


class GatedStore:
    """Payloads in memory. `open` lets downloads pass, `begun` counts them, `fails` is raised in place of a payload."""

    open: ClassVar[threading.Event] = threading.Event()
    begun: ClassVar[int] = 0
    fails: ClassVar[Exception | None] = None
    payloads: ClassVar[dict[str, bytes]] = {}
    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _counting: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.open.set()
        cls.begun, cls.fails = 0, None
        cls.payloads.clear()

    def configure(self, config: dict[str, object]) -> None:
        pass

    def publish(self, topic: str, data: bytes) -> str:
        path = f"gated://{topic}/{next(self._numbers)}"
        self.payloads[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        with self._counting:
            type(self).begun += 1
        assert self.open.wait(_LONG_S)
        if self.fails is not None:
            raise self.fails
        if full_path not in self.payloads:
            raise PayloadNotFoundError(full_path)
        return self.payloads[full_path]


Gate = type[GatedStore]


class CuttableAddress:
    """A port of 127.0.0.1 that leads to another address, until `cut`, and again from `mend`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self.port = free_port()
        self.mend()

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` would keep the port open
        self._listener.close()
        self._thread.join(_LONG_S)
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
                for source, sink in ((near, far), (far, near)):
                    self._open.add(source)
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        self._open.discard(source)


def delete_payload(server: S3Server, reference: bytes | None) -> None:
    """As a lifecycle rule does; `reference` is the key or the value of a record."""
    assert reference is not None
    bucket, _, key = reference.decode().removeprefix("s3://").partition("/")
    with contextlib.closing(server.client()) as client:
        client.delete_object(Bucket=bucket, Key=key)


def delete_payloads(server: S3Server, broker: str, topic: str, *offsets: int) -> None:
    """Deletes what the values at these offsets of a topic's first partition refer to."""
    records = read_all(broker, topic)[0]
    for offset in offsets:
        delete_payload(server, records[offset].value)


def example_environ(broker: str, server: S3Server) -> dict[str, str]:
    """The environment of a script of docs/examples."""
    return {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "KAFKA_BOOTSTRAP_SERVERS": broker,
        "S3_BUCKET": server.bucket,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_DEFAULT_REGION": server.region,
    }


def run_example(name: str, broker: str, topic: str, server: S3Server) -> str:
    """What a script of docs/examples prints."""
    command = [sys.executable, str(_ROOT / "docs" / "examples" / name), topic]
    done = run(command, environ=example_environ(broker, server), timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
