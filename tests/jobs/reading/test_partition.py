"""A partition as tasks read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest

from jobs.driver.failures import JobFailedError
from jobs.reading.client import KAFKA_KEYS, Client
from jobs.reading.partition import PartitionReader
from stores.keys import read
from tests.integration.topics import write_raw
from transforms.record import Record


def test_a_header_name_that_is_no_text_is_told(broker: str, make_topic: Callable[..., str]) -> None:
    """A record that clients of Python cannot read ends the task with a sentence that says where it is."""
    topic = make_topic(1)
    asyncio.run(write_raw(broker, topic, [Record(b"k", b"v", (("\udcff", b""),))]))
    with (
        closing(PartitionReader(Client(read(KAFKA_KEYS, {"kafka.bootstrap.servers": broker})), topic, 0)) as log,
        pytest.raises(JobFailedError) as told,
    ):
        list(log.records(0, 1))
    assert str(told.value).startswith(
        f"topic {topic} partition 0: at offset 0 or soon behind it is a record with a header"
    )
