"""`produce` with a message that cannot be read, without a broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

from app.commands.produce import Source, _feed, _Job
from app.kafka.sender import SendError
from app.kafka.topics import Topic


@pytest.mark.parametrize("size", [1, None])
async def test_feed_names_what_cannot_be_read(size: int | None) -> None:
    """If a file cannot be read, here or on a thread, the error names it, and nothing is sent for it."""

    def read(_: int) -> bytes:
        raise OSError(5, "Input/output error")

    job = _Job(Topic("raw", 1, 1_000, "delete"), (), None, "none")
    with pytest.raises(SendError, match=r"^photo\.jpg: it cannot be read: Input/output error$"):
        await _feed(cast("Any", None), job, iter([Source("photo.jpg", None, size, read)]), 10)
