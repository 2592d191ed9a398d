"""What all our producers promise, whatever the client: by strategy, by what the topic takes, and by the store."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from confluent_kafka.serialization import StringSerializer

from app.chunks import ChunkError
from app.serializers import (
    ConfigurationError,
    LargeMessageSerializer,
    MessageWrapper,
    SerializationError,
    WrapperSerializer,
)
from tests.integration.chunk_records import value_of
from tests.integration.client_config import (
    LARGE,
    LIMIT,
    MIXED,
    ON_GATE,
    SMALL_TOPIC,
    Config,
    on_s3,
    producing,
    to_json,
)
from tests.integration.client_stores import CuttableWay, GatedStore
from tests.integration.client_writers import (
    BOTH,
    CHUNKS,
    STORES,
    Aiokafka,
    Chunking,
    Confluent,
    KafkaPython,
    RefusedError,
    Writer,
    Written,
    on_server,
    written,
)
from tests.integration.limits import alter_configs
from tests.integration.topics import end_offsets
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import PayloadStoreError
from transforms.record import Record

_BELOW: Config = {"large.message.threshold.bytes": 2_000_000}  # so that only what is refused is large
_THREE = [Aiokafka, Confluent, KafkaPython]  # of one configuration; Faust's is an app
_ATOMIC = [Aiokafka, Chunking, Confluent, KafkaPython]  # with transactions of the application's own


def chunking(broker: str, **more: object) -> Config:
    """The configuration of a producer that needs no store."""
    return {"bootstrap.servers": broker, "large.message.strategy": "chunk", **more}


def forms_of(found: Sequence[Written]) -> list[str]:
    """How they stand in the log."""
    return [each.form for each in found]


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", STORES)
async def test_references(broker: str, make_topic: MakeTopic, versitygw: S3Server, writer: type[Writer]) -> None:
    """Small, large and null keys and values go in order, with their headers; equal keys have equal references."""
    topic = make_topic()
    headers = [("a", b"1"), ("b", None if writer.null_headers else b""), ("a", b"2")]
    given = list(headers)
    stages: Config = {
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializers": [StringSerializer(), LargeMessageSerializer],
    }
    async with writer({"bootstrap.servers": broker, **stages, **on_s3(versitygw)}) as producer:
        told = [await producer.send(topic, value, key, headers=given) for value, key in MIXED]
    assert given == headers  # the caller's list stays his own
    found = await written(broker, topic, on_server(versitygw))
    assert forms_of(found) == ["plain", "reference", "plain", "plain", "reference", "plain"]
    keys = [each.key and each.key.decode() for each in found]
    assert [(each.value and json.loads(each.value), key) for each, key in zip(found, keys, strict=True)] == MIXED
    assert [each.headers for each in found] == [headers] * len(MIXED)
    assert [each.outcome for each in found] == told
    large, also = (found[number].records[0].key or b"" for number in (3, 4))
    assert large == also
    assert large.startswith(b"s3://payloads/clients/")


@pytest.mark.matrix
@pytest.mark.parametrize("writer", CHUNKS)
async def test_chunks(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """What the topic would refuse goes as chunks, all else as it is; the outcome is that of the last chunk.

    The application's own serializer sees whole values, once, and no null.
    """
    topic = make_topic(**SMALL_TOPIC)
    headers = [("a", b"1"), ("b", None if writer.null_headers else b""), ("a", b"")]
    sent = [
        Record(b"k", value_of(100_000), headers, 1_700_000_000_000),
        Record(b"k", b"small", headers, 1_700_000_000_001),
        Record(None, value_of(50_000, 1), [], 1_700_000_000_002),
        Record(b"k", None, [("gone", b"")], 1_700_000_000_003),
        Record(b"", b"", [], 1_700_000_000_004),
        Record(b"k" * 15_000, value_of(30_000, 2), [("big", value_of(2_000))], 1_700_000_000_005),
    ]
    seen: list[bytes] = []

    def stage(value: bytes) -> bytes:
        seen.append(value)
        return value[::-1]

    async with writer(chunking(broker, **{"value.serializer": stage})) as producer:
        told = [
            await producer.send(topic, r.value, r.key, headers=r.headers, partition=0, timestamp=r.timestamp)
            for r in sent
        ]
    found = await written(broker, topic)
    whole = [Record(each.key, each.value and each.value[::-1], each.headers, each.outcome.timestamp) for each in found]
    assert whole == sent
    assert forms_of(found) == ["chunks", "plain", "chunks", "plain", "plain", "chunks"]
    assert [each.outcome for each in found] == told
    assert seen == [record.value for record in sent if record.value is not None]


@pytest.mark.parametrize("writer", CHUNKS)
async def test_the_limit_of_the_topic(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """A record at the limit goes whole; with one byte more it goes as two chunks; its headers count."""
    topic = make_topic(**SMALL_TOPIC)
    room = LIMIT - batch_of_one_bytes(Record(b"k", bytes(LIMIT // 2))) + LIMIT // 2
    async with writer(chunking(broker)) as producer:
        for size in (room, room + 1):
            await producer.send(topic, value_of(size))
        await producer.send(topic, b"v" * 900, headers=[("h", bytes(LIMIT - 800))])
    found = await written(broker, topic)
    assert forms_of(found) == ["plain", "chunks", "chunks"]
    assert [len(each.value or b"") for each in found] == [room, room + 1, 900]
    assert len(found[1].records) == 2


@pytest.mark.parametrize("writer", CHUNKS)
async def test_20_mb(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """20 MB go through a topic with Kafka's own limit, in chunks of about 1 MB."""
    topic = make_topic()
    value = value_of(20_000_000)
    async with writer(chunking(broker)) as producer:
        await producer.send(topic, value)
    (found,) = await written(broker, topic)
    assert found.value == value
    assert len(found.records) in (20, 21)


@pytest.mark.parametrize("writer", CHUNKS)
async def test_the_lowest_limit(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """The lowest of the topic's limit, `chunk.max.bytes` and the client's own holds, and nothing is refused at it."""
    topic = make_topic(**SMALL_TOPIC)
    for more, most in (
        ({"chunk.max.bytes": 5_000}, 5_000),
        ({"chunk.max.bytes": 10**6}, LIMIT),
        ({writer.limit: 5_000}, 5_000),
    ):
        async with writer(chunking(broker, **more)) as producer:
            start = len(await written(broker, topic))
            for size in (50_000, *range(4_870, 4_970, 4)):  # some clients compare an estimate that is a little too high
                await producer.send(topic, value_of(size))
        found = (await written(broker, topic))[start:]
        assert [len(each.value or b"") for each in found] == [50_000, *range(4_870, 4_970, 4)]
        records = [Record(r.key, r.value, r.headers) for each in found for r in each.records]
        assert most * 0.8 < max(map(batch_of_one_bytes, records)) <= most


# --- where it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", CHUNKS)
async def test_chunks_stay_together(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """All chunks of a value go to one partition: of its key, at random without one, or the one that is given."""
    topic = make_topic(6, **SMALL_TOPIC)
    async with writer(chunking(broker)) as producer:
        free = [(await producer.send(topic, value_of(50_000, seed), None)).partition for seed in range(9)]
        keyed = [await producer.send(topic, value, b"key") for value in (b"small", value_of(50_000, 9))]
        given = await producer.send(topic, value_of(50_000, 10), b"key", partition=5)
    assert len(set(free)) > 1
    assert len({each.partition for each in keyed}) == 1
    assert given.partition == 5
    found = await written(broker, topic)
    assert {each.value for each in found} == {b"small", *(value_of(50_000, seed) for seed in range(11))}
    assert all(len({record.partition for record in each.records}) == 1 for each in found)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("writer", CHUNKS)
async def test_senders_at_the_same_time(
    broker: str,
    make_topic: MakeTopic,
    writer: type[Writer],
    shared: bool,  # noqa: FBT001  # a parameter
) -> None:
    """Several tasks or threads, with one producer or several: each record comes once, whole, each sender's in order."""
    topic = make_topic(3, **SMALL_TOPIC)

    async def run(sender: int, producer: Writer) -> None:
        for turn in range(10):
            value = b"%d %d " % (sender, turn) + value_of(200_000 if turn % 2 else 100, turn)
            await producer.send(topic, value, None if turn == 5 else b"%d" % sender)

    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(writer(chunking(broker))) for _ in range(1 if shared else 4)]
        await asyncio.gather(*(run(sender, producers[sender % len(producers)]) for sender in range(4)))
    values = [each.value or b"" for each in await written(broker, topic)]
    assert sorted(values) == sorted(
        b"%d %d " % (sender, turn) + value_of(200_000 if turn % 2 else 100, turn)
        for sender in range(4)
        for turn in range(10)
    )
    for sender in range(4):
        turns = [int(value.split()[1]) for value in values if value.startswith(b"%d " % sender)]
        assert [turn for turn in turns if turn != 5] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("writer", STORES)
async def test_order(broker: str, make_topic: MakeTopic, gate: type[GatedStore], writer: type[Writer]) -> None:
    """Records that are not waited for leave in order, small bytes and large ones; after `flush` all are written."""
    topic = make_topic(2)
    values = [b"first", b"second", LARGE, b"", LARGE * 2, None, b"last"]
    async with writer(producing(broker, ON_GATE)) as producer:
        started = [
            await producer.start(topic, value, b"k" * (number + 1), partition=1, timestamp=1_000 * (number + 1))
            for number, value in enumerate(values)
        ]
        await producer.flush()
        assert end_offsets(broker, topic)[1] == len(values)
        told = [await outcome() for outcome in started]
    found = await written(broker, topic, gate.payloads.__getitem__)
    assert [(each.value, each.key) for each in found] == [(v, b"k" * (n + 1)) for n, v in enumerate(values)]
    assert [each.outcome for each in found] == [(1, number, 1_000 * (number + 1)) for number in range(len(values))]
    assert [each[:2] for each in told] == [(1, number) for number in range(len(values))]


# --- what is too large ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", BOTH)
async def test_what_the_topic_would_refuse_is_offloaded(
    broker: str, make_topic: MakeTopic, writer: type[Writer], gate: type[GatedStore]
) -> None:
    """A value below the threshold that its topic does not take, with its key and headers, goes to the store."""
    topic = make_topic(**SMALL_TOPIC)
    values = [value_of(size) for size in (19_000, 30_000, 15_000, 15_000)]
    async with writer(producing(broker, ON_GATE, **_BELOW)) as producer:
        for value in values[:2]:
            await producer.send(topic, value)
        await producer.send(topic, values[2], b"k" * 6_000)
        await producer.send(topic, values[3], headers=[("h", bytes(6_000))])
    found = await written(broker, topic, gate.payloads.__getitem__)
    assert forms_of(found) == ["plain"] + ["reference"] * 3
    assert [each.value for each in found] == values


@pytest.mark.parametrize("writer", STORES)
async def test_what_the_client_would_refuse_is_offloaded(
    broker: str, make_topic: MakeTopic, writer: type[Writer], gate: type[GatedStore]
) -> None:
    """A value below the threshold but over the client's limit, its default included, goes to the store."""
    topic = make_topic()
    sizes = [990_000, 998_976, 999_100, 999_900, 1_000_000, 1_000_001, 1_048_576]
    async with writer(producing(broker, ON_GATE, **_BELOW)) as producer:
        for size in sizes:
            await producer.send(topic, bytes(size), b"k" * 500)
    async with writer(producing(broker, ON_GATE, **_BELOW, **{writer.limit: 10_000})) as producer:
        for size in (8_900, 10_000):
            await producer.send(topic, bytes(size))
    found = forms_of(await written(broker, topic))
    assert [found[0], found[6:]] == ["plain", ["reference", "plain", "reference"]]


@pytest.mark.parametrize(
    ("writer", "strategy"), [(w, s) for w in BOTH for s in ("offload", "auto")] + [(w, "chunk") for w in CHUNKS]
)
async def test_a_limit_that_falls_is_followed(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], writer: type[Writer], strategy: str
) -> None:
    """What the topic begins to refuse fails once with Kafka's error; the next record goes by the new limit."""
    topic = make_topic(**SMALL_TOPIC)
    # With `enable.idempotence` a refused record is fatal for kafka-python 3.0.12: each later one fails, too.
    more: Config = {"enable.idempotence": False} if writer is KafkaPython else {}
    config = chunking(broker, **more)
    if strategy != "chunk":
        config = producing(broker, ON_GATE, **_BELOW, **more, **{"large.message.strategy": strategy})
    async with writer(config) as producer:
        await producer.send(topic, value_of(9_000, 1))
        await alter_configs(broker, topic, {"max.message.bytes": "6000"})
        with pytest.raises(RefusedError):
            await producer.send(topic, value_of(9_000, 2))
        for seed in (3, 4):
            await producer.send(topic, value_of(9_000, seed))
        await producer.send(topic, b"end")
    found = await written(broker, topic, gate.payloads.__getitem__)
    large = "chunks" if strategy == "chunk" else "reference"
    assert forms_of(found) == ["plain", large, large, "plain"]
    assert [each.value for each in found] == [*(value_of(9_000, seed) for seed in (1, 3, 4)), b"end"]
    assert len(gate.payloads) == 2 * (strategy != "chunk")


@pytest.mark.parametrize("writer", CHUNKS)
async def test_refused(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """What cannot go as chunks is refused before anything is sent, with the reason."""
    topic, compacted = make_topic(**SMALL_TOPIC), make_topic(**{**SMALL_TOPIC, "cleanup.policy": "compact"})
    async with writer(chunking(broker, **{"chunk.max.message.bytes": 100_000})) as producer:
        with pytest.raises(ChunkError, match=r"chunk\.max\.message\.bytes is 100,000"):
            await producer.start(topic, value_of(100_001))
        with pytest.raises(ChunkError, match="key and headers alone take"):
            await producer.start(topic, b"x", bytes(LIMIT))
        with pytest.raises(ChunkError, match=r"cleanup\.policy=compact.*compacted away"):
            await producer.start(compacted, value_of(50_000))
        await producer.send(topic, value_of(100_000))
    assert forms_of(await written(broker, topic)) == ["chunks"]
    assert await written(broker, compacted) == []


@pytest.mark.parametrize("writer", _ATOMIC)
async def test_a_producer_that_is_closed(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """A record is refused, small or large; it may be closed again."""
    topic = make_topic(**SMALL_TOPIC)
    async with writer(chunking(broker)) as producer:
        await producer.send(topic, b"small")
        await producer.close()
        for size in (10, 50_000):
            with pytest.raises(writer.closed):
                await producer.start(topic, value_of(size))


@pytest.mark.parametrize("writer", _THREE)
async def test_a_wrapped_null_on_a_compacted_topic(broker: str, make_topic: MakeTopic, writer: type[Writer]) -> None:
    """It is refused with the reason; a wrapped value and a true null are not."""
    topic = make_topic(**{"cleanup.policy": "compact"})
    async with writer({"bootstrap.servers": broker, "value.serializer": WrapperSerializer}) as producer:
        with pytest.raises(SerializationError, match=r"without a value.*cleanup\.policy=compact.*send None"):
            await producer.start(topic, MessageWrapper({}, None))
        await producer.send(topic, MessageWrapper({}, b"x"))
        await producer.send(topic, None)
    assert [each.value for each in await written(broker, topic)] == [MessageWrapper({}, b"x").serialize(), None]


@pytest.mark.parametrize("writer", [Confluent, KafkaPython])
async def test_a_topic_that_does_not_exist(broker: str, writer: type[Writer]) -> None:
    """Without a store nobody knows how to split for it; the error names the topic, and the key that helps."""
    async with writer(chunking(broker)) as producer:
        with pytest.raises(ConfigurationError, match=r"^chunk.max.bytes: is not set, and topic no-such .* not exist"):
            await producer.start("no-such", value_of(50_000))


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", STORES)
async def test_a_store_that_is_down(
    broker: str, make_topic: MakeTopic, versitygw: S3Server, cuttable: CuttableWay, writer: type[Writer]
) -> None:
    """A large value fails with the cause, and that another try may do; nothing is sent; small ones go on."""
    topic = make_topic()
    async with writer(producing(broker, on_s3(cuttable.server))) as producer:
        cuttable.cut()
        with pytest.raises(SerializationError) as caught:
            await producer.start(topic, LARGE)
        assert isinstance(caught.value.__cause__, PayloadStoreError)
        assert caught.value.retriable
        await producer.send(topic, b"small")
        cuttable.mend()
        await producer.send(topic, LARGE)
    assert [each.value for each in await written(broker, topic, on_server(versitygw))] == [b"small", LARGE]


async def test_auto_while_the_store_is_down(
    broker: str, versitygw: S3Server, cuttable: CuttableWay, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Large values go as chunks while the store is down, and to the store again when it answers; that is logged once.

    All producers at the same time, as each of them asks the store again only every five seconds.
    """
    topics = {writer: make_topic(**SMALL_TOPIC) for writer in BOTH}
    more = {"large.message.strategy": "auto", "chunk.max.message.bytes": 100_000}
    caplog.set_level(logging.INFO, "wideload.serializers")
    async with AsyncExitStack() as stack:
        store = on_s3(cuttable.server)
        producers = [await stack.enter_async_context(writer(producing(broker, store, **more))) for writer in BOTH]

        async def goes(producer: Writer, *values: bytes) -> None:
            for value in values:
                await producer.send(topics[type(producer)], value)

        async def fails(producer: Writer) -> None:
            with pytest.raises(SerializationError) as caught:  # longer than what goes as chunks
                await producer.start(topics[type(producer)], value_of(100_001))
            assert caught.value.retriable

        async def all_of(run: Callable[..., Awaitable[None]], *values: bytes) -> None:
            await asyncio.gather(*(run(producer, *values) for producer in producers))

        await all_of(goes, value_of(50_000, 1))
        cuttable.cut()
        await all_of(goes, value_of(50_000, 2), value_of(50_000, 3))
        await all_of(fails)
        await all_of(goes, value_of(2_000, 4))  # over the threshold; the topic takes it
        cuttable.mend()
        async with asyncio.timeout(30):
            while caplog.text.count("answers again") < len(producers):
                await all_of(goes, value_of(3_000, 5))
        await all_of(goes, value_of(50_000, 6))
    assert caplog.text.count("the payload store is down") == len(producers)
    for topic in topics.values():
        found = await written(broker, topic, on_server(versitygw))
        assert forms_of(found)[:4] == ["reference", "chunks", "chunks", "plain"]
        assert forms_of(found)[-2:] == ["reference", "reference"]
        assert [each.value for each in found[:4]] == [
            *(value_of(50_000, seed) for seed in (1, 2, 3)),
            value_of(2_000, 4),
        ]
        assert found[-1].value == value_of(50_000, 6)


# --- guarantees -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", 1])
@pytest.mark.parametrize("writer", _ATOMIC)
async def test_weaker_acknowledgements(broker: str, make_topic: MakeTopic, writer: type[Writer], acks: object) -> None:
    """`acks` is the application's choice: no producer is made idempotent against it."""
    topic = make_topic(**SMALL_TOPIC)
    async with writer(chunking(broker, acks=acks)) as producer:
        await producer.send(topic, value_of(50_000))
    await asyncio.to_thread(until, lambda: end_offsets(broker, topic) == {0: 3}, "the chunks are there")
    assert forms_of(await written(broker, topic)) == ["chunks"]


@pytest.mark.parametrize(
    ("writer", "strategy"), [(each, "offload") for each in _THREE] + [(each, "chunk") for each in _ATOMIC]
)
async def test_transactions(
    broker: str, make_topic: MakeTopic, gate: type[GatedStore], writer: type[Writer], strategy: str
) -> None:
    """What is aborted is not seen, chunks and references; outside of a transaction nothing is sent."""
    topic = make_topic(**SMALL_TOPIC)
    config = chunking(broker) if strategy == "chunk" else producing(broker, ON_GATE)
    async with writer({**config, "transactional.id": topic}) as producer:
        with pytest.raises(writer.outside):
            await producer.start(topic, b"outside")
        for seed, end in ((1, "abort_transaction"), (2, "commit_transaction")):
            await producer.call("begin_transaction")
            await producer.send(topic, value_of(50_000, seed))
            await producer.call(end)
    (found,) = await written(broker, topic, gate.payloads.__getitem__, "read_committed")
    assert (found.value, found.form) == (value_of(50_000, 2), "chunks" if strategy == "chunk" else "reference")


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "more", "found"),
    [
        ("chunk", ON_GATE, "found 'chunk' beside a LargeMessageSerializer"),
        ("auto", None, "found 'auto' without a LargeMessageSerializer"),
        ("both", None, "found 'both', allowed"),
    ],
)
@pytest.mark.parametrize("writer", _THREE)
async def test_strategies_that_do_not_fit(writer: type[Writer], strategy: str, more: Config | None, found: str) -> None:
    """A strategy that the stages cannot do is refused when the producer is made, with what is allowed."""
    base: Config = {"bootstrap.servers": "-"} if more is None else producing("-", more)
    with pytest.raises(ConfigurationError, match=f"^large.message.strategy: {found}"):
        writer({**base, "large.message.strategy": strategy})


@pytest.mark.parametrize("writer", _ATOMIC)
async def test_a_key_that_is_misspelt(writer: type[Writer]) -> None:
    """It is an error with the nearest name when the producer is made, before it connects."""
    for name, meant in (("bootstrap.server", "bootstrap.servers"), ("chunk.max.byte", "chunk.max.bytes")):
        with pytest.raises(ConfigurationError, match=rf"^{name}: .*did you mean {meant}"):
            writer({**chunking("nowhere:1"), name: 5})
