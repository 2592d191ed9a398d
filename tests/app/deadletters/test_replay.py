"""Which letters a replay may pass over for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.deadletters.reader import FoundLetter
from app.deadletters.replay import Replay
from transforms.errors import (
    DiscardedChunkError,
    MalformedError,
    PayloadNotFoundError,
    PayloadStoreError,
    SignatureError,
)
from transforms.record import Record


@pytest.mark.parametrize(
    ("error", "skipped"),
    [
        (MalformedError("value", "x", "y"), True),
        (DiscardedChunkError("u", "corrupt", ""), True),
        (DiscardedChunkError("u", "expired", ""), False),
        (PayloadNotFoundError("gone"), True),
        (PayloadStoreError("down", retriable=True), False),
        (PayloadStoreError("no store"), False),
        (SignatureError("p", "another key"), False),
        (None, False),
    ],
)
async def test_only_letters_that_nobody_can_read_are_skipped(error: Exception | None, skipped: bool) -> None:  # noqa: FBT001
    """Not those that another key, store or right would open, nor those whose chunks may still come."""

    def opened(_: FoundLetter) -> None:
        if error is not None:
            raise error

    replay = SimpleNamespace(skip_unreadable=True, _unreadable=[])
    found = FoundLetter(0, (3, 4), Record(None, None), 0)
    await Replay._skip_unreadable(cast(Any, replay), cast(Any, SimpleNamespace(open=opened)), found)
    assert replay._unreadable == ([3, 4] if skipped else [])
