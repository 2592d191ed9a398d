"""Receives the responses of brokers with one copy: from the socket into the bytes of the response.

Long records of a fetch are views of these bytes, not a second copy.

aiokafka reads through an `asyncio.StreamReader`: each piece of a response is copied into a buffer, and the whole
response out of it; the socket is paused and resumed in between. For a response of 4 MB this is a quarter of the CPU
time.
"""

from __future__ import annotations

import asyncio
import io
import logging
import struct
import weakref
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import CloseReason

from app.kafka.gate import Call, Connect, Gate, Place, Send
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_SIZE = struct.Struct(">i")
_SMALL_BYTES = 65_536  # enough for most responses; several may arrive together
_MOST_AT_ONCE_BYTES = 64 * 1_048_576  # the most that is allocated before the bytes have arrived
_VIEWED_BYTES = 65_536  # copying less is cheap; no text of the protocol is as long
_HEADER_BYTES = 4_096  # more than the header of a response
_MOST_PARTS, _PARTS = 3, 4  # a view keeps the whole response alive, so it must be at least 3/4 of it


def receive_at_once(client: AIOKafkaClient) -> None:
    """Makes a client, which has not been started, receive in this way on each connection that it opens."""
    Gate.of(client).set(Place.RECEIVE, {Connect: _opened})


async def _opened(_: Call, send: Send) -> Any:
    connection = await send()
    if connection is not None:
        _take_over(connection)
    return connection


def _take_over(connection: Any) -> None:
    """Replaces the protocol of a connection that has only exchanged versions and the login, with no answer pending."""
    if connection._writer is None or connection._requests:
        return
    transport = connection._writer.transport
    own = transport.get_protocol()
    if not isinstance(own, _Receiver):  # several tasks may have waited for the connection
        transport.set_protocol(_Receiver(connection, own))


class _Receiver(asyncio.BufferedProtocol):
    """Replaces the protocol of a connection, which still gets all events but the bytes.

    Args:
        connection: of aiokafka; it handles each response. It may be gone before the transport is.
        own: its protocol.
    """

    def __init__(self, connection: Any, own: Any) -> None:
        self._connection = weakref.ref(connection)
        self._own = own
        self._small = memoryview(bytearray(_SMALL_BYTES))
        self._held = 0  # bytes in `_small` that are not a complete response yet
        self._large: bytearray | None = None  # the buffer of a longer response
        self._size = 0  # of that response
        self._received = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._large is None:
            return self._small[self._held :]
        return memoryview(self._large)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._large is None:
                self._held += nbytes
                self._take_small()
            else:
                self._received += nbytes
                self._take_large(self._large)
        except Exception as exc:
            log.exception("the response of a broker cannot be read")
            self._close(exc)

    def _take_small(self) -> None:
        at = 0
        while self._held - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._small, at)
            if size < 0:
                raise ValueError(f"a response of {size} bytes")
            begin, end = at + _SIZE.size, at + _SIZE.size + size
            if end > self._held:
                if _SIZE.size + size > _SMALL_BYTES:
                    self._begin_large(size, self._small[begin : self._held])
                    self._held = 0
                    return
                break
            self._handle(None, self._small[begin:end])
            at = end
        rest = self._held - at
        if at and rest:
            self._small[:rest] = bytes(self._small[at : self._held])
        self._held = rest

    def _begin_large(self, size: int, first: memoryview) -> None:
        self._large, self._size, self._received = bytearray(min(size, _MOST_AT_ONCE_BYTES)), size, len(first)
        self._large[: len(first)] = first

    def _take_large(self, large: bytearray) -> None:
        if self._received < len(large):
            return
        if self._received < self._size:
            # The caller still has a view of the old buffer, which therefore cannot grow.
            self._large = bytearray(min(self._size, 2 * self._received))
            self._large[: self._received] = large
            return
        self._large = None
        connection = self._connection()
        asked = connection._requests if connection is not None else ()
        self._handle(asked[0][1] if asked else None, memoryview(large).toreadonly())

    def _handle(self, request: Any, response: memoryview) -> None:
        """Hands a response over. `request` is set if the response may be viewed, as nothing overwrites its bytes."""
        connection = self._connection()
        if connection is not None and connection._writer is not None:
            connection._handle_frame(handed_over(request, response))

    def _close(self, error: Exception) -> None:
        connection = self._connection()
        if connection is not None:
            connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)

    def eof_received(self) -> Any:
        return self._own.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._own.connection_lost(exc)

    def pause_writing(self) -> None:
        self._own.pause_writing()

    def resume_writing(self) -> None:
        self._own.resume_writing()


# --- without a copy ---------------------------------------------------------------------------------------------------


def viewed(struct: Any, _: object) -> Any:
    """A request whose response is decoded with `memoryview`s for long records. For `Call.change`."""
    struct.RESPONSE_TYPE = _Views(struct.RESPONSE_TYPE)
    return struct


def handed_over(request: Any, response: memoryview) -> bytes:
    """The bytes that aiokafka's connection handles, and copies: only the first ones if the request is `viewed`.

    Args:
        request: of aiokafka, as it was sent; None if its response must be copied.
        response: the whole response, which nothing overwrites.
    """
    kind = getattr(request, "RESPONSE_TYPE", None)
    if not isinstance(kind, _Views):
        return bytes(response)
    kind.response = response
    return bytes(response[:_HEADER_BYTES])


class _Views:
    """A type of response that decodes like another one.

    `response` is the whole response; None if the data to decode has all of it.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.response: memoryview | None = None

    def decode(self, data: io.BytesIO) -> Any:
        response, self.response = self.response, None
        return self._kind.decode(_Response(memoryview(data.getvalue()) if response is None else response, data.tell()))


class _Response:
    """Reads like `BytesIO`, except that a long part which is most of the response is returned as a view."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def read(self, size: int) -> bytes | memoryview:
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        alone = size >= _VIEWED_BYTES and size * _PARTS >= len(self._data) * _MOST_PARTS
        return piece if alone else bytes(piece)
