"""The body of a put to S3."""

from __future__ import annotations

_SEND_BYTES = 1 << 20


class Upload:
    """The body of a put, sent in pieces without a copy.

    Because it is a file, botocore adds `Expect: 100-continue`, so that a refusal can be read. If it were bytes, a
    server that refuses 20 MB would close the connection while they are sent, and the client would see only that. The
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
