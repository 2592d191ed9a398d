"""What all our producers promise, whatever the client: by strategy, by what the topic takes, and by the store."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack

import pytest
from confluent_kafka.serialization import StringSerializer

from app.chunks import ChunkError
from app.serializers import ConfigurationError, LargeMessageSerializer, SerializationError, WrapperSerializer
from tests.faults.proxy import Down, FaultProxy, Ok
from tests.integration.aiokafka_records import becomes
from tests.integration.chunk_records import value_of
from tests.integration.client_config import LARGE, LIMIT, MIXED, Config, on_s3, through, to_json
from tests.integration.client_writers import (
    BOTH,
    CHUNKS,
    STAGED,
    STORES,
    TRANSACTIONAL,
    Confluent,
    KafkaPython,
    MakeLog,
    RefusedError,
    Writer,
)
from tests.integration.topics import end_offsets
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import PayloadStoreError
from transforms.record import Record
from transforms.wrapper import MessageWrapper

_KAFKAS_OWN: Config = {"max.message.bytes": 1_048_588}
_BELOW: Config = {"large.message.threshold.bytes": 2_000_000}  # so that only what is refused is large


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", STORES)
async def test_references(make_log: MakeLog, versitygw: S3Server, writer: type[Writer]) -> None:
    """Small, large and null keys and values go in order, with their headers; equal keys have equal references."""
    log = make_log(**_KAFKAS_OWN)
    headers = [("a", b"1"), ("b", None if writer.null_headers else b""), ("a", b"2")]
    given = list(headers)
    values, keys = [to_json, LargeMessageSerializer], [StringSerializer(), LargeMessageSerializer]
    stages = {"bootstrap.servers": log.broker, "value.serializers": values, "key.serializers": keys}
    async with writer({**stages, **on_s3(versitygw)}) as producer:
        reported = [await producer.send(log.topic, value, key, headers=given) for value, key in MIXED]
    assert given == headers  # the caller's list is the caller's
    found = await log.written()
    assert [each.form for each in found] == ["plain", "reference", "plain", "plain", "reference", "plain"]
    assert [(each.value and json.loads(each.value), each.key and each.key.decode()) for each in found] == MIXED
    assert [each.headers for each in found] == [headers] * len(MIXED)
    assert [each.outcome for each in found] == reported
    large, equal = (found[number].records[0].key or b"" for number in (3, 4))
    assert large == equal
    assert large.startswith(b"s3://payloads/clients/")


@pytest.mark.matrix
@pytest.mark.parametrize("writer", CHUNKS)
async def test_chunks(make_log: MakeLog, writer: type[Writer]) -> None:
    """What the topic would refuse goes as chunks, all else as it is; the outcome is that of the last chunk."""
    log = make_log()
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

    async with writer(log.chunking(**{"value.serializer": stage})) as producer:
        reported = [
            await producer.send(log.topic, r.value, r.key, headers=r.headers, partition=0, timestamp=r.timestamp)
            for r in sent
        ]
    found = await log.written()
    assert [Record(w.key, w.value and w.value[::-1], w.headers, w.outcome.timestamp) for w in found] == sent
    assert [each.form for each in found] == ["chunks", "plain", "chunks", "plain", "plain", "chunks"]
    assert [each.outcome for each in found] == reported
    assert seen == [record.value for record in sent if record.value is not None]


@pytest.mark.parametrize("writer", CHUNKS)
async def test_the_limit_of_the_topic(make_log: MakeLog, writer: type[Writer]) -> None:
    """A record at the limit goes whole; with one byte more it goes as two chunks; its headers count."""
    log, large = make_log(), make_log(**_KAFKAS_OWN)
    room = LIMIT - batch_of_one_bytes(Record(b"k", bytes(LIMIT // 2))) + LIMIT // 2
    async with writer(log.chunking()) as producer:
        for size in (room, room + 1):
            await producer.send(log.topic, value_of(size))
        await producer.send(log.topic, b"v" * 900, headers=[("h", bytes(LIMIT - 800))])
        await producer.send(large.topic, value_of(20_000_000))
    (found_large,) = await large.written()
    assert found_large.value == value_of(20_000_000)
    assert len(found_large.records) in (20, 21)
    found = await log.written()
    assert [each.form for each in found] == ["plain", "chunks", "chunks"]
    assert [len(each.value or b"") for each in found] == [room, room + 1, 900]
    assert len(found[1].records) == 2


@pytest.mark.parametrize("writer", CHUNKS)
async def test_the_lowest_limit(make_log: MakeLog, writer: type[Writer]) -> None:
    """The lowest of the topic's limit, `chunk.max.bytes` and the client's own holds, and nothing is refused at it."""
    sizes = [50_000, *range(4_870, 4_970, 4)]  # some clients compare an estimate that is a little too high
    for key, given in ("chunk.max.bytes", 5_000), ("chunk.max.bytes", 10**6), (writer.limit, 5_000):
        log, most = make_log(), min(given, LIMIT)
        async with writer(log.chunking(**{key: given})) as producer:
            for size in sizes:
                await producer.send(log.topic, value_of(size))
        found = await log.written()
        assert [len(each.value or b"") for each in found] == sizes
        records = [Record(r.key, r.value, r.headers) for each in found for r in each.records]
        assert most * 0.8 < max(map(batch_of_one_bytes, records)) <= most


# --- where it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", CHUNKS)
async def test_chunks_stay_together(make_log: MakeLog, writer: type[Writer]) -> None:
    """All chunks of a value go to one partition: of its key, at random without one, or the one that is given."""
    log = make_log(6)
    async with writer(log.chunking()) as producer:
        free = [(await producer.send(log.topic, value_of(50_000, seed), None)).partition for seed in range(9)]
        keyed = [(await producer.send(log.topic, value, b"key")).partition for value in (b"small", value_of(50_000, 9))]
        given = await producer.send(log.topic, value_of(50_000, 10), b"key", partition=5)
    assert (len(set(free)) > 1, len(set(keyed)), given.partition) == (True, 1, 5)
    found = await log.written()
    assert {each.value for each in found} == {b"small", *(value_of(50_000, seed) for seed in range(11))}


@pytest.mark.parametrize("writer", CHUNKS)
async def test_senders_at_the_same_time(make_log: MakeLog, writer: type[Writer]) -> None:
    """Several tasks or threads, with two producers: each record comes once, whole, each sender's in order."""
    log = make_log(3)
    values = [
        [b"%d %d " % (sender, turn) + value_of(200_000 if turn % 2 else 100, turn) for turn in range(6)]
        for sender in range(4)
    ]

    async def run(sender: int, producer: Writer) -> None:
        for turn, value in enumerate(values[sender]):
            await producer.send(log.topic, value, None if turn == 3 else b"%d" % sender)

    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(writer(log.chunking())) for _ in range(2)]
        await asyncio.gather(*(run(sender, producers[sender % 2]) for sender in range(4)))
    found = await log.written()
    assert sorted(each.value or b"" for each in found) == sorted(value for each in values for value in each)
    for sender in range(4):
        assert [w.value for w in found if w.key == b"%d" % sender] == values[sender][:3] + values[sender][4:]


@pytest.mark.parametrize("writer", STORES)
async def test_order(make_log: MakeLog, writer: type[Writer]) -> None:
    """Records that are not waited for leave in order, small bytes and large ones; after `flush` all are written."""
    log = make_log(2)
    values = [b"first", b"second", LARGE, b"", LARGE * 2, None, b"last"]
    headers = [("n", b"1"), ("n", b"2")]
    given = list(headers)  # one list, as an application may have it
    places = [(1, number, 1_000 * (number + 1)) for number in range(len(values))]
    async with writer(log.storing()) as producer:
        outcomes = [
            await producer.start(log.topic, value, b"k", headers=given, partition=partition, timestamp=timestamp)
            for value, (partition, _, timestamp) in zip(values, places, strict=True)
        ]
        await producer.flush()
        assert end_offsets(log.broker, log.topic)[1] == len(values)
        # aiokafka gives some records the timestamp of another one in their batch.
        assert [(await outcome())[:2] for outcome in outcomes] == [place[:2] for place in places]
    found = [(each.value, each.headers, each.outcome) for each in await log.written()]
    assert found == [(value, headers, place) for value, place in zip(values, places, strict=True)]


# --- what is too large ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", BOTH)
async def test_what_the_topic_would_refuse_is_offloaded(make_log: MakeLog, writer: type[Writer]) -> None:
    """A value below the threshold that its topic does not take, with its key and headers, goes to the store."""
    log = make_log()
    values = [value_of(size) for size in (19_000, 30_000, 15_000, 15_000)]
    more: list[Config] = [{}, {}, {"key": b"k" * 6_000}, {"headers": [("h", bytes(6_000))]}]
    async with writer(log.storing(**_BELOW)) as producer:
        for value, each in zip(values, more, strict=True):
            await producer.send(log.topic, value, **each)
    found = await log.written()
    assert [each.form for each in found] == ["plain"] + ["reference"] * 3
    assert [each.value for each in found] == values


@pytest.mark.parametrize("writer", STORES)
async def test_what_the_client_would_refuse_is_offloaded(make_log: MakeLog, writer: type[Writer]) -> None:
    """A value below the threshold but over the client's limit, its default included, goes to the store."""
    log = make_log(**_KAFKAS_OWN)
    async with writer(log.storing(**_BELOW)) as producer:
        for size in (990_000, 998_976, 999_100, 999_900, 1_000_000, 1_000_001, 1_048_576):
            await producer.send(log.topic, bytes(size), b"k" * 500)
    async with writer(log.storing(**_BELOW, **{writer.limit: 10_000})) as producer:
        for size in (8_900, 10_000):
            await producer.send(log.topic, bytes(size))
    found = [each.form for each in await log.written()]
    assert [found[0], *found[6:]] == ["plain", "reference", "plain", "reference"]


@pytest.mark.parametrize(("writer", "strategy"), [(w, "auto") for w in BOTH] + [(w, "chunk") for w in CHUNKS])
async def test_a_limit_that_falls_is_followed(make_log: MakeLog, writer: type[Writer], strategy: str) -> None:
    """What the topic begins to refuse fails once with Kafka's error; the next record goes by the new limit."""
    log = make_log()
    config = log.chunking() if strategy == "chunk" else log.storing(**_BELOW, **{"large.message.strategy": strategy})
    if writer is KafkaPython:
        config["enable.idempotence"] = False  # or a refused record is fatal for kafka-python 3.0.12
    async with writer(config) as producer:
        await producer.send(log.topic, value_of(9_000, 1))
        await log.lower_limit(6_000)
        with pytest.raises(RefusedError):
            await producer.send(log.topic, value_of(9_000, 2))
        for seed in (3, 4):
            await producer.send(log.topic, value_of(9_000, seed))
        await producer.send(log.topic, b"end")
    found = await log.written()
    large = "chunks" if strategy == "chunk" else "reference"
    assert [each.form for each in found] == ["plain", large, large, "plain"]
    assert [each.value for each in found] == [*(value_of(9_000, seed) for seed in (1, 3, 4)), b"end"]


@pytest.mark.parametrize("writer", CHUNKS)
async def test_refused(make_log: MakeLog, writer: type[Writer]) -> None:
    """What cannot go as chunks is refused before anything is sent, with the reason."""
    log, compacted = make_log(), make_log(**{"cleanup.policy": "compact"})
    async with writer(log.chunking(**{"chunk.max.message.bytes": 100_000})) as producer:
        with pytest.raises(ChunkError, match=r"chunk\.max\.message\.bytes is 100,000"):
            await producer.start(log.topic, value_of(100_001))
        with pytest.raises(ChunkError, match="key and headers alone take"):
            await producer.start(log.topic, b"x", bytes(LIMIT))
        with pytest.raises(ChunkError, match=r"cleanup\.policy=compact.*compacted away"):
            await producer.start(compacted.topic, value_of(50_000))
        await producer.send(log.topic, value_of(100_000))
    assert [each.form for each in await log.written()] == ["chunks"]
    assert await compacted.written() == []


@pytest.mark.parametrize("writer", STAGED)
async def test_a_wrapped_null_on_a_compacted_topic(make_log: MakeLog, writer: type[Writer]) -> None:
    """It is refused with the reason; a wrapped value and a true null are not."""
    log = make_log(**{"cleanup.policy": "compact"})
    async with writer({"bootstrap.servers": log.broker, "value.serializer": WrapperSerializer}) as producer:
        with pytest.raises(SerializationError, match=r"without a value.*cleanup\.policy=compact.*send None"):
            await producer.start(log.topic, MessageWrapper({}, None))
        await producer.send(log.topic, MessageWrapper({}, b"x"))
        await producer.send(log.topic, None)
    assert [each.value for each in await log.written()] == [MessageWrapper({}, b"x").serialize(), None]


@pytest.mark.parametrize("writer", STORES)
async def test_random_names_on_a_compacted_topic(
    make_log: MakeLog, writer: type[Writer], caplog: pytest.LogCaptureFixture
) -> None:
    """They are warned of: payloads of records that were compacted away would stay."""
    log = make_log(**{"cleanup.policy": "compact"})
    async with writer(log.storing()) as producer:
        await producer.send(log.topic, LARGE)
        await becomes(lambda: f"topic {log.topic} has cleanup.policy=compact" in caplog.text, "the log says so")
    assert {each.levelname for each in caplog.records if "cleanup.policy" in each.getMessage()} == {"WARNING"}


@pytest.mark.parametrize("writer", [Confluent, KafkaPython])
async def test_a_topic_that_does_not_exist(make_log: MakeLog, writer: type[Writer]) -> None:
    """Without a store nobody knows how to split for it; the error names the topic, and the key that helps."""
    async with writer(make_log().chunking()) as producer:
        with pytest.raises(ConfigurationError, match=r"^chunk.max.bytes: is not set, and topic no-such .* not exist"):
            await producer.start("no-such", value_of(50_000))


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", STORES)
async def test_a_store_that_is_down(
    make_log: MakeLog, proxy: FaultProxy, versitygw: S3Server, writer: type[Writer]
) -> None:
    """A large value fails with the cause, and that another try may do; nothing is sent; small ones go on."""
    log = make_log()
    async with writer(log.storing(through(proxy, versitygw))) as producer:
        proxy.switch(Down())
        with pytest.raises(SerializationError) as caught:
            await producer.start(log.topic, LARGE)
        assert isinstance(caught.value.__cause__, PayloadStoreError)
        assert caught.value.retriable
        await producer.send(log.topic, b"small")
        proxy.switch(Ok())
        await producer.send(log.topic, LARGE)
    assert [each.value for each in await log.written()] == [b"small", LARGE]


async def test_auto_while_the_store_is_down(
    make_log: MakeLog, proxy: FaultProxy, versitygw: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Large values go as chunks while the store is down, and to the store when it answers; each is logged once."""
    caplog.set_level(logging.INFO)
    values = [value_of(size, seed) for seed, size in enumerate((50_000, 50_000, 50_000, 2_000, 3_000, 50_000))]
    async with AsyncExitStack() as stack:
        logs = {}
        for writer in BOTH:
            log = make_log()
            more = {"large.message.strategy": "auto", "chunk.max.message.bytes": 100_000}
            logs[await stack.enter_async_context(writer(log.storing(through(proxy, versitygw), **more)))] = log

        async def send(value: bytes) -> list[object]:
            return await asyncio.gather(*(p.send(log.topic, value) for p, log in logs.items()), return_exceptions=True)

        await send(values[0])
        proxy.switch(Down())
        await send(values[1])
        await send(values[2])
        refused = await send(value_of(100_001))  # longer than what goes as chunks
        assert all(isinstance(error, SerializationError) and error.retriable for error in refused)
        await send(values[3])  # over the threshold; the topic takes it
        proxy.switch(Ok())
        async with asyncio.timeout(30):
            while caplog.text.count("answers again") < len(logs):
                await send(values[4])
        await send(values[5])
    assert caplog.text.count("the payload store is down") == len(logs)
    for log in logs.values():
        found = [(each.form, each.value) for each in await log.written()]
        assert found[:4] == [*zip(("reference", "chunks", "chunks", "plain"), values[:4], strict=True)]
        assert found[-2:] == [("reference", value) for value in values[4:]]


# --- the client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", TRANSACTIONAL)
async def test_weaker_acknowledgements(make_log: MakeLog, writer: type[Writer]) -> None:
    """`acks` is the application's choice: no producer is made idempotent against it."""
    log = make_log()
    async with writer(log.chunking(acks=1)) as producer:
        await producer.send(log.topic, value_of(50_000))
    await asyncio.to_thread(until, lambda: end_offsets(log.broker, log.topic) == {0: 3}, "the chunks are there")
    assert [each.form for each in await log.written()] == ["chunks"]


@pytest.mark.parametrize(
    ("writer", "strategy"), [(w, "offload") for w in STAGED] + [(w, "chunk") for w in TRANSACTIONAL]
)
async def test_transactions(make_log: MakeLog, writer: type[Writer], strategy: str) -> None:
    """What is aborted is not seen, chunks and references; outside of a transaction nothing is sent."""
    log = make_log()
    config = log.chunking() if strategy == "chunk" else log.storing()
    async with writer({**config, "transactional.id": log.topic}) as producer:
        with pytest.raises(writer.outside):
            await producer.start(log.topic, b"outside")
        for seed, end in ((1, "abort_transaction"), (2, "commit_transaction")):
            await producer.call("begin_transaction")
            await producer.send(log.topic, value_of(50_000, seed))
            await producer.call(end)
    (found,) = await log.written("read_committed")
    assert (found.value, found.form) == (value_of(50_000, 2), "chunks" if strategy == "chunk" else "reference")


@pytest.mark.parametrize("writer", TRANSACTIONAL)
async def test_a_producer_that_is_closed(make_log: MakeLog, writer: type[Writer]) -> None:
    """A record is refused, small or large; it may be closed again."""
    log = make_log()
    async with writer(log.chunking()) as producer:
        await producer.send(log.topic, b"small")
        await producer.close()
        for size in (10, 50_000):
            with pytest.raises(writer.closed):
                await producer.start(log.topic, value_of(size))
