"""What the tests of the pipeline share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def _forget_payloads() -> Iterator[None]:
    yield
    MemoryStore.clear()
