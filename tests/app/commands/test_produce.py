"""`produce` with a message that cannot be read, without a broker."""

from __future__ import annotations

import pytest

from app.commands.produce import _records
from app.commands.source import Source
from app.kafka.sender import SendError


@pytest.mark.parametrize("size", [1, None])
async def test_error_names_what_cannot_be_read(size: int | None) -> None:
    """If a file cannot be read, here or on a thread, the error names it, and nothing is sent for it."""

    def read(_: int) -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(SendError, match=r"^photo\.jpg: it cannot be read: Input/output error$"):
        await anext(_records(iter([Source("photo.jpg", None, size, read)]), (), 10))
