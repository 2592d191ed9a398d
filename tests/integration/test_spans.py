"""Topics with the offsets of their partitions, of a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from app.config.settings import ClientSettings
from app.kafka.spans import Span, blocking, described, listed, since
from app.kafka.topics import Operation
from tests.integration.topics import send
from transforms.errors import ConfigurationError


def test_spans_of_a_topic(broker: str, make_topic: Callable[..., str]) -> None:
    """An open transaction holds the stable offset back; a partition without records begins and ends at 0."""
    topic, other = make_topic(2), make_topic(1)
    send(broker, topic, [(0, b"k", b"v", [], 1_000), (0, b"k", b"v", [], 3_000)])
    client = ClientSettings(broker)

    async def look() -> tuple[Span, Span]:
        producer = AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{topic}-open")
        async with producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=5_000)
            found = described(client, {"--topic": [other, topic]})  # a loop runs here, as in a notebook
            assert [*found] == [other, topic]
            assert found[topic].topic.partitions == 2
            await producer.abort_transaction()
        after = described(client, {"--topic": [topic]})[topic]
        assert found[topic].difference(after) is None
        return found[topic].spans[0], found[topic].spans[1]

    assert asyncio.run(look()) == (Span(0, 2, 3), Span(0, 0, 0))
    whole = described(client, {"--topic": [topic]})
    places = [TopicPartition(topic, 0)]
    assert since(client, whole.values(), 1_001) == {places[0]: 1}
    assert since(client, whole.values(), round(time.time() * 1000)) == {}


def test_differences_between_two_looks(broker: str, make_topic: Callable[..., str]) -> None:
    """A topic that was created again, has more partitions, lost records or was cut is not the one that was read."""
    topic = make_topic(1)
    first = described(ClientSettings(broker), {"--topic": [topic]})[topic]
    for changed, said in (
        (replace(first, topic=replace(first.topic, id="0")), "was deleted and created again"),
        (replace(first, spans={**first.spans, 1: Span(0, 0, 0)}), "had 1 partitions and has 2 now"),
        (replace(first, topic=replace(first.topic, cleanup_policy="compact")), "cleanup.policy of topic"),
        (replace(first, spans={0: Span(1, 1, 1)}), "records were deleted"),
    ):
        assert said in (first.difference(changed) or "")
    assert "its log was cut" in (replace(first, spans={0: Span(0, 1, 1)}).difference(first) or "")


def test_topics_that_are_not_there(broker: str, make_topic: Callable[..., str]) -> None:
    """The option is named, and a topic of nearly this name; the list has what the user may do."""
    topic = make_topic(1)
    client = ClientSettings(broker)
    with pytest.raises(ConfigurationError, match=rf"--carrier: {topic}x is not on the broker at .*; did you mean"):
        described(client, {"--topic": [topic], "--carrier": [f"{topic}x"]})
    found = listed(client)
    assert found[topic].partitions == 1
    assert Operation.READ in (found[topic].operations or ())
    assert f"{topic}x" not in found


def test_a_cluster_that_is_not_there() -> None:
    """One sentence, with the address."""
    with pytest.raises(ConfigurationError, match=r"bootstrap.servers: no broker answers at 127\.0\.0\.1:1 "):
        listed(ClientSettings("127.0.0.1:1"))
    assert blocking(asyncio.sleep(0, 7)) == 7
