"""A flow and its sink against a real broker, without the process around them: what they do when things break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata

from app.config.settings import ClientSettings
from app.deadletters.reader import LetterReader
from app.kafka.batches.outbox import Batches
from app.kafka.clients import admin
from app.kafka.queries import Query, version
from tests.built_batches import raw_batch
from tests.integration.line import STAMP, MakeLine, keys
from tests.integration.test_dlq import run as command
from tests.integration.topics import Sent, committed, read_all, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.record import Record, RecordLike, SourceRecord


async def write_raw(broker: str, topic: str, records: Sequence[RecordLike]) -> None:
    """Writes a batch in which header names have the bytes that they have by `surrogateescape`."""
    async with AIOKafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True) as producer:
        await (await producer.send_batch(raw_batch(records), topic, partition=0))


_ENTITY = "[entity_type:text entity_name:text]"


class _AlterClientQuotas(Query):
    VERSION = version(
        f"49.0 entries:[entity:{_ENTITY} ops:[key:text value:float64 remove:boolean]] validate_only:boolean",
        f"throttle_time_ms:int32 entries:[error_code:int16 error_message:text entity:{_ENTITY}]",
        flexible=False,
    )


def set_quotas(broker: str, client_id: str, **rates: float) -> None:
    """Sets `producer_byte_rate`, `consumer_byte_rate` or `request_percentage` of clients that have this id."""
    ops = [(key, value, False) for key, value in rates.items()]

    async def run() -> None:
        async with admin(ClientSettings(broker)) as connection:
            query = _AlterClientQuotas(entries=[([("client-id", client_id)], ops)], validate_only=False)
            answer = await connection.send(query)
            assert [code for code, *_ in answer.entries] == [0], answer

    asyncio.run(run())


LATIN = "\udcfc"  # the byte FC, which is no UTF-8
TIME = 1_700_000_000_000


def test_worker_buries_header_names_not_utf8(make_way: Callable[..., Way]) -> None:
    """Records whose header names are not UTF-8 are dead letters, from which they come back byte for byte.

    All others pass in order, those of the same batch among them, and none is lost or comes twice.
    """
    way = make_way(partitions=1)
    raws = [
        [Record(b"0", b"v", (), TIME), Record(b"1", b"v", ((LATIN, b"x"), ("h", None)), TIME + 5)],
        [Record(b"2", None, (("\udcff" * 3, None),), TIME), Record(b"3", b"v", (("ü", b"y"),), TIME)],
        [Record(b"4", b"large" * THRESHOLD, ((f"a{LATIN}", b"x"),), TIME)],
    ]
    for raw in raws:
        asyncio.run(write_raw(way.broker, way.raw, raw))
        send(way.broker, way.raw, [(0, b"between", b"v", [], TIME)])
    tolerance = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    with WorkerProcess(way.folder, way.settings(), way.offload(**tolerance)) as worker:
        until(lambda: committed(way.broker, way.group("offload"), way.raw) == {0: 8}, "all are committed")
        assert worker.get("/pipelines")[1][0]["failed_records"] == {"header-name": 3}
        assert worker.terminate() == 0
    assert [r.key for r in read_all(way.broker, way.orders)[0]] == [b"0", b"between", b"3", *[b"between"] * 2]
    reader = LetterReader(None, 10_000_000)
    letters = [
        reader.open(found)
        for record in read_all(way.broker, way.dead)[0]
        for found in reader.add(cast(SourceRecord, record))
    ]
    assert [letter.record for letter in letters] == [raws[0][1], raws[1][0], raws[2][0]]
    assert [letter.origin for letter in letters] == [(way.raw, 0, offset) for offset in (1, 3, 6)]
    status, told, _ = command("dlq", "replay", "--yes", "-c", worker.config)
    assert (status, json.loads(told)["replayed"]) == (0, 3)
    _, told, _ = command("consume", way.raw, "--from-beginning", "--until-end", "-c", worker.config)
    shown = [json.loads(line) for line in told.splitlines()]
    names = [[name for name, _ in line["headers"]] for line in shown]
    bad = [[LATIN, "h"], ["\udcff" * 3], [f"a{LATIN}"]]
    assert [each for each in names if each and each[0] != "ü"] == [*bad, *(["wideload.replays", *each] for each in bad)]


@pytest.mark.parametrize(
    ("quota", "rate"), [("producer_byte_rate", 5_000.0), ("consumer_byte_rate", 8_000.0), ("request_percentage", 0.01)]
)
async def test_quota_costs_an_exactly_once_flow_time_alone(make_line: MakeLine, quota: str, rate: float) -> None:
    """Nothing fails while brokers let it wait, and each record is there once when the quota has been raised."""
    line = make_line("offload", 1, **{"producer.batch.size": 15_000, "consumer.max.partition.fetch.bytes": 15_000})
    client = f"{line.settings.client.client_id}-{line.pipeline.name}"
    await asyncio.to_thread(set_quotas, line.broker, client, **{quota: rate})
    written: list[Sent] = [(0, b"%d" % number, bytes(4_900), [], STAMP) for number in range(30)]
    # A broker counts the bytes of ten seconds, and these are more.
    await asyncio.to_thread(send, line.broker, line.source, written[:24], 15_000)
    async with line.life() as life:
        await life.until(lambda: life.stats.throttled_s > 1)
        await line.send(written[24:])
        await asyncio.to_thread(set_quotas, line.broker, client, **{quota: 1_000_000.0})
        await life.until(lambda: life.stats.records_out == len(written))
        await life.stop()
    assert keys(await line.found()) == [*range(len(written))]


async def test_batches_that_wait_when_a_partition_is_lost(make_line: MakeLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that takes nothing for a while, as by a quota, gets from the former owner what is on its way already.

    What waits behind that is the next owner's to write, which may have written it, and more.
    """
    line = make_line("offload", 2, **{"processing.guarantee": "at_least_once", "producer.batch.size": 1_000})
    gate, begun, deliver = asyncio.Event(), list[Batches](), Batches.send

    async def slow(batches: Batches, *sent: Any) -> RecordMetadata:
        begun.append(batches)
        if batches is begun[0]:
            await gate.wait()
        return await deliver(batches, *sent)

    monkeypatch.setattr(Batches, "send", slow)
    await line.send([each for number in range(6) for each in of_both(number, 900)])
    async with line.life() as former:
        former.flow._graceful_timeout_s = 0.1
        await former.until(lambda: len(begun) == 2)
        async with line.life() as latter:
            await latter.until(lambda: latter.stats.records_out == 6)
            await line.send([each for number in range(6, 10) for each in of_both(number, 900)])
            await latter.until(lambda: latter.stats.records_out == 10)
            (partition,) = latter.flow.report.positions
            gate.set()
            await former.until(lambda: former.flow.report.in_flight_bytes == 0 and former.stats.records_out >= 10)
            await former.stop()
            await latter.stop()
    assert former.budget.used == 0
    written = keys((await asyncio.to_thread(read_all, line.broker, line.sink))[partition.partition])
    assert written == [*range(10), 0]


def of_both(number: int, size: int) -> list[Sent]:
    """A record for each of two partitions."""
    return [(partition, b"%d" % number, b"x" * size, [], STAMP) for partition in (0, 1)]
