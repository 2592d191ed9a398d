"""A broker that refuses long names, as Kafka 5.0 is to do: a proxy before a real one answers in its place."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from typing import Any

from aiokafka.protocol.admin import CreateTopicsRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.group import JoinGroupRequest_v5
from aiokafka.protocol.transaction import InitProducerIdRequest_v0

from app.local.broker import EmbeddedBroker, free_ports

__all__ = ["CREATE_TOPICS", "FIND_COORDINATOR", "INIT_PRODUCER_ID", "JOIN_GROUP", "EnforcingBroker"]

CREATE_TOPICS, FIND_COORDINATOR, INIT_PRODUCER_ID, JOIN_GROUP = 19, 10, 22, 11

_SIZE, _HEAD = struct.Struct("!i"), struct.Struct("!hhi")
_KEYS = {
    CREATE_TOPICS: CreateTopicsRequest_v3,
    FIND_COORDINATOR: FindCoordinatorRequest_v1,
    INIT_PRODUCER_ID: InitProducerIdRequest_v0,
    JOIN_GROUP: JoinGroupRequest_v5,
}
_LONG = b"n" * 250


class EnforcingBroker:
    """A broker that refuses a name of 250 times `n`, wherever it stands in a request of one kind.

    Attributes:
        address: for clients.
        refuses: the key of the requests; None to let all pass.
        code: the error of the answer.
        refused: how many requests were.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        controller, plain = free_ports(2)
        self.refuses: int | None = None
        self.code = 0
        self.refused = 0
        self._behind = ("127.0.0.1", plain)
        self.address = stack.enter_context(self._door())
        stack.enter_context(
            EmbeddedBroker(
                {"advertised.listeners": f"PLAINTEXT://{self.address}"},
                ports={"CONTROLLER": controller, "PLAINTEXT": plain},
            )
        )

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
        while True:
            request = _frame(client)
            key, version, number = _HEAD.unpack_from(request)
            if key == self.refuses and _LONG in request:
                self.refused += 1
                answer = _SIZE.pack(number) + self._refusal(key, version)
            else:
                behind.sendall(_SIZE.pack(len(request)) + request)
                answer = _frame(behind)
            client.sendall(_SIZE.pack(len(answer)) + answer)

    def _refusal(self, key: int, version: int) -> bytes:
        assert version == _KEYS[key].API_VERSION, f"request {key} has version {version}"
        values: dict[int, tuple[Any, ...]] = {
            CREATE_TOPICS: (0, [("x", self.code, None)]),
            FIND_COORDINATOR: (0, self.code, "", -1, "", -1),
            INIT_PRODUCER_ID: (0, self.code, -1, -1),
            JOIN_GROUP: (0, self.code, -1, "", "", "", []),
        }
        encoded: bytes = _KEYS[key].RESPONSE_TYPE(*values[key]).encode()
        return encoded


def _frame(connection: socket.socket) -> bytes:
    return _read(connection, _SIZE.unpack(_read(connection, _SIZE.size))[0])


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = connection.recv(size - len(data))
        if not some:
            raise ConnectionResetError
        data += some
    return bytes(data)
