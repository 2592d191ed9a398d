"""What the event loop would log."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture
async def unlogged() -> AsyncIterator[None]:
    """Fails if the event loop would log an error that nobody has looked at, or a task that never ended."""
    gc.collect()  # what other tests have left
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    yield
    await asyncio.sleep(0)
    gc.collect()
    assert told == []
