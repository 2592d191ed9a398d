"""A partition as tasks read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaProducer

from app.batches.raw import raw_batch
from jobs.failures import JobFailedError
from jobs.log import Client, Log
from transforms.record import Record


async def _write(broker: str, topic: str, record: Record) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True) as producer:
        await (await producer.send_batch(raw_batch([record]), topic, partition=0))


def test_a_header_name_that_is_no_text_is_told(broker: str, make_topic: Callable[..., str]) -> None:
    """A record that clients of Python cannot read ends the task with a sentence that says where it is."""
    topic = make_topic(1)
    asyncio.run(_write(broker, topic, Record(b"k", b"v", (("\udcff", b""),))))
    with closing(Log(Client(broker), topic, 0)) as log, pytest.raises(JobFailedError) as told:
        list(log.records(0, 1))
    assert str(told.value).startswith(
        f"topic {topic} partition 0: at offset 0 or soon behind it is a record with a header"
    )
