"""Fixtures of the integration tests."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.integration.client_stores import CuttableWay, GatedStore
from tests.s3_server import S3Server


@pytest.fixture
def rng() -> random.Random:
    """What is random in a test; the seed is told where the test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it
    return random.Random(seed)


@pytest.fixture
def cuttable(versitygw: S3Server) -> Iterator[CuttableWay]:
    """The same server, behind an address that can be closed and opened."""
    way = CuttableWay(versitygw)
    yield way
    way.cut()


@pytest.fixture
def gate() -> Iterator[type[GatedStore]]:
    """A store whose calls are counted, and whose downloads wait while the test says so."""
    GatedStore.reset()
    yield GatedStore
    GatedStore.reset()
