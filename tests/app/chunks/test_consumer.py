"""`AssemblingConsumer` on a log that a test gives, without a broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from app.chunks.consumer import AssemblingConsumer
from transforms.errors import SerializationError

P3 = TopicPartition("t", 3)


class Fetches:
    """What a consumer fetches, in place of a broker: one batch a call, then nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Sequence[ConsumerRecord]] = []
        monkeypatch.setattr(AIOKafkaConsumer, "getmany", self._getmany)

    async def _getmany(self, *_: TopicPartition, **__: object) -> dict[TopicPartition, Sequence[ConsumerRecord]]:
        return {P3: self.batches.pop(0)} if self.batches else {}


def fetched(offset: int, value: bytes) -> ConsumerRecord:
    """A record as aiokafka gives it."""
    return ConsumerRecord(*P3, offset, 7, 0, b"k", value, None, 1, len(value), ())


def consuming(**options: Any) -> AssemblingConsumer:
    """A consumer of the partition that has not been started."""
    consumer = AssemblingConsumer({"bootstrap.servers": "127.0.0.1:1"}, **options)
    consumer.assign([P3])
    return consumer


@pytest.mark.parametrize("field", ["key", "value"])
async def test_deserializer_that_fails(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error says which record it was; the record keeps its place."""
    fetches = Fetches(monkeypatch)
    fetches.batches = [[fetched(16, b"1"), fetched(17, b"no json")]]

    def parsed(data: bytes) -> Any:
        return None if data == b"k" else json.loads(data)

    def refused(_: bytes) -> None:
        raise ValueError("not mine")

    consumer = consuming(**{f"{field}_deserializer": parsed if field == "value" else refused})
    if field == "value":
        assert [each.value for each in (await consumer.getmany())[P3]] == [1]
    bad = 17 if field == "value" else 16
    for _ in range(2):
        with pytest.raises(SerializationError) as caught:
            await consumer.getmany()
        error = caught.value
        assert (error.topic, error.field, error.partition, error.offset) == ("t", field, 3, bad)
        assert isinstance(error.__cause__, ValueError)
        assert str(error.__cause__) in error.reason
    await consumer.stop()
