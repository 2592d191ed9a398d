"""Configurations that clients refuse when they are made, before they connect."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaConfigurationError

from app.chunks import ChunkingProducer
from app.serializers import aiokafka, confluent, kafka_python
from tests.integration.client_config import ON_GATE, consuming, producing
from transforms.errors import ConfigurationError

THREE = [aiokafka.SerializingProducer, confluent.SerializingProducer, kafka_python.SerializingProducer]
STRATEGY = "large.message.strategy"
CHUNKS = {STRATEGY: "chunk"}


@pytest.mark.parametrize(
    ("producer", "given", "found"),
    [
        *(
            (each, {**producing("-", ON_GATE), **CHUNKS}, f"{STRATEGY}: found 'chunk' with a LargeMessageSerializer")
            for each in THREE
        ),
        *((each, {STRATEGY: "auto"}, f"{STRATEGY}: found 'auto' without a LargeMessageSerializer") for each in THREE),
        *((each, {STRATEGY: "both"}, f"{STRATEGY}: found 'both', allowed") for each in THREE),
        *((each, {"bootstrap.server": "x"}, "bootstrap.server: .*did you mean bootstrap.servers") for each in THREE),
        *((each, {**CHUNKS, "chunk.max.byte": 5}, "chunk.max.byte: .*did you mean chunk.max.bytes") for each in THREE),
        (kafka_python.SerializingProducer, {"linger.ms": "soon"}, "linger.ms: found 'soon', allowed is a number"),
        (ChunkingProducer, {"chunk.max.byte": 5}, "chunk.max.byte: .*did you mean chunk.max.bytes"),
        (ChunkingProducer, {"chunk.max.bytes": "0"}, "chunk.max.bytes: .*allowed is 1 or more"),
    ],
)
def test_refused(producer: Any, given: dict[str, object], found: str) -> None:
    """The error names the key, and what is allowed or was meant."""
    with pytest.raises(ConfigurationError, match=f"^{found}"):
        producer({"bootstrap.servers": "nowhere:1", **given})


@pytest.mark.parametrize(
    "consumer", [aiokafka.DeserializingConsumer, confluent.DeserializingConsumer, kafka_python.DeserializingConsumer]
)
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"bootstrap.server": "x"}, "bootstrap.server: .*did you mean bootstrap.servers"),
        ({"chunk.lookbak": 1}, ".*did you mean chunk.lookback"),
        ({"chunk.lookback": -1}, "chunk.lookback: .*allowed is 0 or more"),
        ({"max.pending.chunked.message": 0}, "max.pending.chunked.message.*allowed is 1 or more"),
        (
            {"max.pending.chunked.bytes": 1, "chunk.max.message.bytes": 2},
            "chunk.max.message.bytes: found 2, allowed is no more",
        ),
        (
            {"large.message.store.timeout.ms": 30_000, "max.poll.interval.ms": 20_000},
            "large.message.store.timeout.ms: .*30,000 ms.*which is 20,000",
        ),
    ],
)
def test_refused_by_a_consumer(consumer: Any, given: dict[str, object], found: str) -> None:
    """The error names the key, and what is allowed or was meant."""
    with pytest.raises(ConfigurationError, match=f"^{found}"):
        consumer(consuming("nowhere:1", ON_GATE, **{"group.id": "g", **given}))


async def test_an_error_of_the_client_closes_what_was_opened() -> None:
    """The stages and their store; the error is the client's own."""
    with pytest.raises(ValueError, match="Invalid ACKS"):
        aiokafka.SerializingProducer(producing("nowhere:1", ON_GATE, acks=7))
    with pytest.raises(KafkaConfigurationError, match="must be larger"):
        kafka_python.DeserializingConsumer(consuming("nowhere:1", ON_GATE, **{"request.timeout.ms": 1}))


def test_the_question_of_kafka_python_knows_its_own_names() -> None:
    """What a topic takes is asked over a connection that the names of kafka-python's arguments may describe, too."""
    own = {
        "sasl.plain.username": "u",
        "sasl.plain.password": "p",
        "ssl.cafile": "f",
        "bootstrap.servers": ["a:1", "b:2"],
    }
    found = kafka_python._cluster(own)
    assert (found["sasl.username"], found["sasl.password"], found["ssl.ca.location"]) == ("u", "p", "f")
    assert found["bootstrap.servers"] == "a:1,b:2"
