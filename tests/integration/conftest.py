"""Fixtures of the integration tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.client_stores import CuttableWay, GatedStore
from tests.integration.way import PARTITIONS, MakeTopic, Way
from tests.s3_server import S3Server, s3_server


@pytest.fixture
def make_way(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Callable[..., Way]:
    """Makes the topics and the configuration of one test."""

    def make(partitions: int = PARTITIONS, large: int = 2_000_000) -> Way:
        return Way(broker, make_topic, tmp_path, partitions=partitions, large=large, session_ms=least_session_ms)

    return make


@pytest.fixture
def rng() -> random.Random:
    """What is random in a test; the seed is told where the test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it
    return random.Random(seed)


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the tests of a file."""
    with s3_server("versitygw", tmp_path_factory.mktemp("s3")) as server:
        yield server


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
