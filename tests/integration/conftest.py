"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import FaultProxy
from tests.integration.client_stores import CuttableWay, GatedStore
from tests.integration.line import Line, MakeLine
from tests.integration.way import MakeTopic
from tests.s3_server import S3Server


@pytest.fixture
def make_line(broker: str, make_topic: MakeTopic, tmp_path: Path) -> MakeLine:
    """Makes the topics and the configuration of one test: `make_line(transform, partitions=1, **keys)`."""

    def make(transform: str = "offload", partitions: int = 1, **keys: object) -> Line:
        forever = {"retention.ms": "-1"}  # the records' timestamps are years old
        source, sink = make_topic(partitions, **forever), make_topic(partitions, **forever)
        return Line(broker, tmp_path, source, sink, transform, keys)

    return make


@pytest.fixture
def cuttable(versitygw: S3Server) -> Iterator[CuttableWay]:
    """The same server, behind an address that can be closed and opened."""
    way = CuttableWay(versitygw)
    yield way
    way.cut()


@pytest.fixture
def proxy(versitygw: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the same server, which lets everything pass until it is told otherwise."""
    with FaultProxy(versitygw.endpoint) as proxy:
        yield proxy


@pytest.fixture
def gate() -> Iterator[type[GatedStore]]:
    """A store whose calls are counted, and whose downloads wait while the test says so."""
    GatedStore.reset()
    yield GatedStore
    GatedStore.reset()
