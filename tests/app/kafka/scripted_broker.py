"""A broker that gives the answers of a test, and servers that are none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.protocol.admin import ApiVersionResponse_v0, SaslAuthenticateResponse_v0, SaslHandShakeResponse_v1
from aiokafka.protocol.metadata import MetadataResponse_v1

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

LOGIN = 36
"""The key of a request with a password."""

_METADATA, _HANDSHAKE, _VERSIONS = 3, 17, 18
_KNOWN = [(_METADATA, 1, 1), (_HANDSHAKE, 1, 1), (LOGIN, 0, 0)]
_LOGIN_REFUSED, _NO_LOGIN_HERE = 58, 34


@asynccontextmanager
async def server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a free port."""
    listening = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await listening.wait_closed()


async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greets and hangs up."""
    writer.write(b"hello")
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads until the other side gives up."""
    while await reader.read(1_000):
        pass
    writer.close()


class Broker:
    """A handler: it knows itself and no topic, and takes no password.

    Args:
        asks: whether it asks for a password at all.

    Attributes:
        asked: the key of each request.
    """

    def __init__(self, *, asks: bool = False) -> None:
        self.asked: list[int] = []
        handshake = (0, ["PLAIN"]) if asks else (_NO_LOGIN_HERE, [])
        self._answers: dict[int, Any] = {
            _VERSIONS: ApiVersionResponse_v0(0, _KNOWN),
            _HANDSHAKE: SaslHandShakeResponse_v1(*handshake),
            LOGIN: SaslAuthenticateResponse_v0(_LOGIN_REFUSED, "Authentication failed", b""),
        }

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        answers = {**self._answers, _METADATA: MetadataResponse_v1([(1, "127.0.0.1", port, None)], 1, [])}
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.asked.append(key)
                answer = struct.pack(">i", number) + answers[key].encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        writer.close()
