"""Configurations of serializers on the store for tests, each a store of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import pytest

from stores.memory import MemoryStore

Config = Callable[..., dict[str, object]]

_names = itertools.count()


def to_json(value: object) -> bytes:
    """As applications write it."""
    return json.dumps(value).encode()


@pytest.fixture
def config_of() -> Iterator[Config]:
    """Makes a configuration with a threshold of 100 bytes: `config_of(**{"max.block.ms": 5000})`."""
    made = {
        "large.message.payload.store.class": "memory",
        "memory.name": f"serializers-{next(_names)}",
        "large.message.threshold.bytes": 100,
    }

    def make(**more: object) -> dict[str, object]:
        return {**made, **more}

    yield make
    MemoryStore.clear()
