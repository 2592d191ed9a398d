"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import FaultProxy
from tests.integration.aiokafka_records import MakeSource, Source
from tests.integration.client_config import SMALL_TOPIC
from tests.integration.client_stores import GatedStore
from tests.integration.client_writers import Log, MakeLog
from tests.integration.line import Line, MakeLine
from tests.integration.topics import end_offsets
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


@pytest.fixture
def make_source(broker: str, make_topic: MakeTopic, gate: type[GatedStore]) -> MakeSource:
    """Makes a topic that is read: `make_source(partitions=1, **configs)`."""
    del gate  # no payloads and downloads of a test before
    return lambda partitions=1, **configs: Source(broker, make_topic(partitions, **configs))


@pytest.fixture
def source(make_source: MakeSource) -> Source:
    """A topic that is read, of one partition."""
    return make_source()


@pytest.fixture
def wide(make_source: MakeSource) -> Source:
    """The same, of two partitions."""
    return make_source(2)


@pytest.fixture
def make_log(
    broker: str, make_module_topic: MakeTopic, versitygw: S3Server, gate: type[GatedStore]
) -> Iterator[MakeLog]:
    """Makes a topic for producers, which takes 20,000 bytes: `make_log(partitions=1, **configs)`."""
    del gate  # payloads that no test before has stored
    made: list[Log] = []

    def make(partitions: int = 1, **configs: object) -> Log:
        topic = make_module_topic(partitions, **{**SMALL_TOPIC, **configs})
        # Answered once all leaders are at work. If the first batch comes before, and the second behind, a Kafka without
        # a state of this producer takes the second; then librdkafka counts the first as delivered, and it is lost.
        end_offsets(broker, topic)
        made.append(Log(broker, topic, versitygw))
        return made[-1]

    yield make
    for log in made:
        log.close()
