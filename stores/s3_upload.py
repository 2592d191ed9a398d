"""The body of a put to S3."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

__all__ = ["Upload", "checksum"]

_SEND_BYTES = 1 << 20


class Upload:
    """The body of a put, sent in pieces without a copy.

    Because it is a file, botocore asks before it sends (`Expect: 100-continue`) and can read a refusal. If it sent
    bytes, a server that refuses 20 MB would close the connection meanwhile, and the client would see only that. The
    pieces matter because the time-out of a socket is for one whole `sendall`: 256 MB would have 5 seconds.
    """

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int = -1) -> memoryview:
        """The next piece, larger than the 16 KiB that urllib3 asks for, since each call costs."""
        piece = self._view[self._position : self._position + (_SEND_BYTES if size else 0)]
        self._position += len(piece)
        return piece

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, len(self._view))[whence] + offset
        return self._position


def checksum(data: bytes) -> dict[str, Any]:
    """A checksum of a payload that the server compares.

    Made here, it is a header. One that botocore makes stands behind the body over TLS: a signature then does not cover
    the payload, and a server that does not know this form (`aws-chunked`) stores the frames of the body as data.
    """
    return {"ChecksumCRC32": b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()}
