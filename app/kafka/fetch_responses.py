"""Responses to a fetch, decoded without a copy of long records: they are a view of the response."""

from __future__ import annotations

import io
from typing import Any

_VIEWED_BYTES = 65_536  # to copy less costs nothing; no text of the protocol is as long
_HEADER_BYTES = 4_096  # more than the header of a response
_MOST_PARTS, _PARTS = 3, 4  # a view holds all of the response: it must be so much of it


def viewed(struct: Any, _: object) -> Any:
    """A request whose response is decoded so: long records are a `memoryview`. For `Call.change`."""
    struct.RESPONSE_TYPE = _Views(struct.RESPONSE_TYPE)
    return struct


def handed_over(request: Any, response: memoryview) -> bytes:
    """The bytes that a connection of aiokafka handles: it copies them. If the request is `viewed`, they are a few.

    Args:
        request: of aiokafka, as it was sent; None for one without a header.
        response: all of it; nobody changes it.
    """
    kind = getattr(request, "RESPONSE_TYPE", None)
    if not isinstance(kind, _Views):
        return bytes(response)
    kind.response = response
    return bytes(response[:_HEADER_BYTES])


class _Views:
    """A type of response that decodes as another one does.

    `response` is all of it; None if all of it is in what is to be decoded.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.response: memoryview | None = None

    def decode(self, data: io.BytesIO) -> Any:
        response, self.response = self.response, None
        return self._kind.decode(_Response(memoryview(data.getvalue()) if response is None else response, data.tell()))


class _Response:
    """Reads as `BytesIO` does, except that a long part which is most of the response is a view of it."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def read(self, size: int) -> bytes | memoryview:
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        alone = size >= _VIEWED_BYTES and size * _PARTS >= len(self._data) * _MOST_PARTS
        return piece if alone else bytes(piece)
