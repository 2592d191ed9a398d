"""What becomes of a producer of chunks, and of what it sends at the same time, when a broker refuses a batch."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, OutOfOrderSequenceNumber

from app.chunks import AssemblingConsumer, ChunkingProducer
from tests.integration.aiokafka_records import one
from tests.integration.limits import alter_configs
from tests.integration.way import MakeTopic

_LONG_S = 60.0


def value_of(size: int, *name: int) -> bytes:
    """Bytes that begin with a name and do not repeat."""
    return b" ".join(b"%d" % part for part in name) + b" " + random.Random(str(name)).randbytes(size)


def name_of(value: bytes, parts: int) -> tuple[int, ...]:
    """The name, once the bytes are what they should be."""
    name = tuple(int(part) for part in value.split(b" ", parts)[:parts])
    prefix = b" ".join(b"%d" % part for part in name) + b" "
    assert value == value_of(len(value) - len(prefix), *name)
    return name


async def values_up_to(broker: str, topic: str, last: bytes) -> list[bytes]:
    """All that a consumer is given, up to a value."""
    config = {"bootstrap.servers": broker, "auto.offset.reset": "earliest"}
    found: list[bytes] = []
    async with AssemblingConsumer(config, topic, on_discarded=lambda _: None) as consumer:
        while not found or found[-1] != last:
            found.append((await one(consumer)).value)
    return found[:-1]


async def test_concurrent_sends_when_one_is_refused(broker: str, make_topic: MakeTopic) -> None:
    """Eight senders share a producer while the limit falls: what failed and was sent again is in the log once.

    So is all else, and each sender's in its order.
    """
    topic = make_topic(2, **{"max.message.bytes": 20_000})
    errors: Counter[type[KafkaError]] = Counter()
    async with ChunkingProducer({"bootstrap.servers": broker}) as producer:
        lowered = asyncio.Event()

        async def run(number: int) -> None:
            turn = 0
            while turn < 30 or not errors:  # until the broker goes by the new limit
                if turn == 10 and number == 0:
                    await alter_configs(broker, topic, {"max.message.bytes": "9000"})
                    lowered.set()
                size = 60_000 if (turn + number) % 3 == 0 else 100
                value = value_of(size, number, turn)
                try:
                    await producer.send_and_wait(topic, value, b"%d" % number)
                except KafkaError as error:
                    errors[type(error)] += 1
                    continue
                turn += 1

        async with asyncio.timeout(_LONG_S):
            await asyncio.gather(*(run(number) for number in range(8)))
        ends = [await producer.send_and_wait(topic, b"end", partition=partition) for partition in (0, 1)]
    assert lowered.is_set()
    assert errors[MessageSizeTooLargeError] >= 1
    # The batch that is on its way when another is refused may be taken for one behind a gap.
    assert set(errors) <= {MessageSizeTooLargeError, OutOfOrderSequenceNumber}
    assert {end.partition for end in ends} == {0, 1}
    config = {"bootstrap.servers": broker, "auto.offset.reset": "earliest"}
    found: list[bytes] = []
    async with AssemblingConsumer(config, topic, on_discarded=lambda _: None) as consumer:
        while found.count(b"end") < 2:
            found.append((await one(consumer)).value)
    names = [name_of(value, 2) for value in found if value != b"end"]
    for number in range(8):
        turns = [turn for sender, turn in names if sender == number]
        assert turns == list(range(len(turns)))
        assert len(turns) >= 30


async def test_small_records_in_a_refused_batch(broker: str, make_topic: MakeTopic) -> None:
    """A batch of small records that is refused goes in parts: none of them fails, and all are in their order."""
    topic = make_topic(**{"max.message.bytes": 20_000})
    async with ChunkingProducer({"bootstrap.servers": broker, "linger.ms": "50"}) as producer:
        await producer.send_and_wait(topic, b"begin", b"k")  # a broker takes any number from who has sent it nothing
        await alter_configs(broker, topic, {"max.message.bytes": "5000"})
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, value_of(9_000), b"k")
        sent = [await producer.send(topic, value_of(3_000, turn), b"k") for turn in range(4)]
        await asyncio.gather(*sent)
        await producer.send_and_wait(topic, value_of(50_000, 7), b"k")
        await producer.send_and_wait(topic, b"end", b"k")
    found = await values_up_to(broker, topic, b"end")
    assert found[-5:] == [*(value_of(3_000, turn) for turn in range(4)), value_of(50_000, 7)]


async def test_a_transaction_after_a_refused_batch(broker: str, make_topic: MakeTopic) -> None:
    """The transaction in which a chunk was refused is to be aborted; the producer's next one is as any other."""
    topic = make_topic(**{"max.message.bytes": 20_000})
    async with ChunkingProducer({"bootstrap.servers": broker}, transactional_id=topic) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, value_of(50_000, 1), b"k")
        await alter_configs(broker, topic, {"max.message.bytes": "9000"})
        await producer.begin_transaction()
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, value_of(50_000, 2), b"k")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, value_of(50_000, 3), b"k")
            await producer.send_and_wait(topic, b"end", b"k")
    config = {"bootstrap.servers": broker, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    async with AssemblingConsumer(config, topic) as consumer:
        found = [(await one(consumer)).value for _ in range(3)]
    assert found == [value_of(50_000, 1), value_of(50_000, 3), b"end"]


async def test_many_senders_wait_for_their_turn(broker: str, make_topic: MakeTopic) -> None:
    """A send waits for others as long as `request.timeout.ms` says, however many chunks go before it."""
    topic = make_topic(**{"max.message.bytes": 5_000})
    async with ChunkingProducer({"bootstrap.servers": broker, "request.timeout.ms": "20000"}) as producer:
        done = await asyncio.gather(
            *(producer.send_and_wait(topic, value_of(1_000_000, turn), b"k") for turn in range(8)),
            return_exceptions=True,
        )
    assert [each for each in done if isinstance(each, BaseException)] == []
    ids = sorted(each.chunk_message_id for each in done if not isinstance(each, BaseException))
    assert len(ids) == 8
    assert ids[-1].last == pytest.approx(8 * 1_000_000 / 4_700, rel=0.1)
