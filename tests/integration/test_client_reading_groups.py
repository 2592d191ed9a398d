"""What every consumer promises of its group: whoever comes and goes, each value comes whole, and none is discarded."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import aiokafka.errors
import kafka.errors
import pytest
from confluent_kafka import KafkaException

from app.chunks import Discarded
from tests.integration.aiokafka_records import Source
from tests.integration.chunk_records import interleaved, pieces, value_of
from tests.integration.client_config import LARGE, REFERENCES, Config
from tests.integration.client_readers import READERS, Client

pytestmark = pytest.mark.parametrize("client", READERS, ids=lambda each: each.__name__)
_REBALANCES = (aiokafka.errors.KafkaError, kafka.errors.KafkaError, KafkaException)


async def test_consumers_come_and_go(wide: Source, least_session_ms: int, client: Client) -> None:
    """Rebalanced and stopped at any time, with room for one message: every value comes, nothing is discarded."""
    found, got = list[Discarded](), set[bytes]()
    expected: set[bytes] = set()
    for partition in (0, 1):
        messages = [pieces(f"p{partition}-{n}", 3_000, 100 * partition + n) for n in range(8)]
        expected |= {value_of(3_000, 100 * partition + n) for n in range(8)}
        log = list(interleaved(messages, partition))
        await wide.write(log[:20], partition)
        references: list[bytes | None] = [LARGE + b"%d %d" % (partition, n) for n in range(3)]
        await wide.produce(references, partition)
        expected |= {each for each in references if each}
        await wide.write(log[20:], partition)
    rng = random.Random(8)
    config: Config = {
        **REFERENCES,
        "max.pending.chunked.message": 1,
        "session.timeout.ms": least_session_ms,
        "heartbeat.interval.ms": 300,
        "enable.auto.commit": True,
    }

    async def run(calls: int) -> None:
        async with client(wide, config, found.append) as reader:
            for _ in range(calls):
                got.update(each.value for each in await reader.poll(1.0, 1))
                if got == expected:
                    return
                if rng.random() < 0.3:
                    with suppress(*_REBALANCES):
                        await reader.commit()

    async with asyncio.timeout(90):
        while got != expected:
            await asyncio.gather(run(rng.randint(3, 7)), run(rng.randint(3, 7)))
    assert found == []
