"""Fixtures of the tests with faults: one S3 server, and a proxy before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import FaultProxy
from tests.integration.way import PARTITIONS, MakeTopic, Way
from tests.s3_server import S3Server, S3UnavailableError, s3_server


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the tests of a file."""
    try:
        with s3_server("versitygw", tmp_path_factory.mktemp("s3")) as server:
            yield server
    except S3UnavailableError as exc:
        pytest.skip(str(exc))


@pytest.fixture
def proxy(versitygw: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the server, which lets everything pass until it is told otherwise."""
    with FaultProxy(versitygw.endpoint) as proxy:
        yield proxy


@pytest.fixture
def make_way(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Callable[..., Way]:
    """Makes the topics and the configuration of one test."""

    def make(partitions: int = PARTITIONS, large: int = 2_000_000) -> Way:
        return Way(broker, make_topic, tmp_path, partitions=partitions, large=large, session_ms=least_session_ms)

    return make
