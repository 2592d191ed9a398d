"""The worker whose sink refuses batches, or single records, because its limit sinks while the worker runs."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from app.kafka.batches.batch import sent_bytes
from tests.integration.limits import set_limit
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, MakeWay, Way, reason_of
from tests.integration.worker_process import WorkerProcess, until
from transforms.batch_size import batch_of_one_bytes
from transforms.record import Record
from transforms.record_batch import CODECS

STAMP = 1_700_000_000_000
# Commits are rare, so that what is written before a refusal is there once only if it is committed for that reason.
RARELY = {"offset.flush.interval.ms": 60_000}


def records(count: int, size: int, first: int = 0) -> list[Sent]:
    """Records that do not compress, whose keys count up."""
    rng = random.Random(first)
    return [(0, b"%d" % index, rng.randbytes(size), [("h", None)], STAMP) for index in range(first, first + count)]


def came(way: Way, topic: str, count: int) -> None:
    """Waits until so many records are in a topic."""
    until(lambda: sum(end_offsets(way.broker, topic).values()) >= count, f"{count} records are in {topic}")


def values_of(way: Way, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of partition 0 of a topic."""
    return [(found.key, found.value) for found in read_all(way.broker, topic).get(0, [])]


def pipeline_of(worker: WorkerProcess) -> dict[str, object]:
    """What /pipelines says of the first pipeline."""
    page: dict[str, object] = worker.get("/pipelines")[1][0]
    return page


def test_worker_splits_batches_when_the_limit_sinks(make_way: MakeWay) -> None:
    """Batches that the sink refuses go in parts, in order and once, until the pipeline restarts with the new limit."""
    way = make_way(1)
    sent = records(300, 2_000) + records(300, 2_000, 300) + records(300, 2_000, 600)
    keys = {"producer.compression.type": "lz4", "producer.linger.ms": 50}
    with WorkerProcess(way.folder, way.settings(), way.offload(**keys)) as worker:
        send(way.broker, way.raw, sent[:300])
        came(way, way.orders, 300)
        asyncio.run(set_limit(way.broker, way.orders, 10_000))
        send(way.broker, way.raw, sent[300:600])
        came(way, way.orders, 600)
        page = pipeline_of(worker)
        producer = page["producer"]
        assert isinstance(producer, dict)
        assert producer["batch-split-total"] > 0
        assert 0 < producer["topics"][way.orders]["compression-estimates"]["lz4"] <= 1.05
        until(lambda: pipeline_of(worker)["restarts"] == 1, "the worker has seen the new limit")
        send(way.broker, way.raw, sent[600:])
        came(way, way.orders, 900)
        later = pipeline_of(worker)
        assert later["restarts"] == 1
        assert cast("dict[str, int]", later["producer"])["batch-split-total"] == producer["batch-split-total"]
        assert producer["topics"][way.orders]["record-error-total"] == 0
        total = f'wideload_producer_batch_split_total{{pipeline="offload"}} {producer["batch-split-total"]:.1f}'
        assert total in worker.text("/metrics")
        assert worker.terminate() == 0
    assert values_of(way, way.orders) == [(key, value) for _, key, value, _, _ in sent]


@pytest.mark.parametrize(
    ("transforms", "back", "guarantee"),
    [
        (["offload", "wrap"], ["unwrap", "inflate"], "at_least_once"),
        (["chunk"], ["assemble"], "exactly_once"),
    ],
    ids=["offload", "chunk"],
)
def test_worker_goes_on_where_a_record_is_refused(
    make_way: MakeWay, transforms: list[str], back: list[str], guarantee: str
) -> None:
    """A record between the old limit and the new one is moved by the next flow, in order, once.

    So it is where the settings would not let the worker start any more: threshold and batches are over the limit.
    """
    way = make_way(1)
    named = [("wrapper.header.7", b"7")]
    large, small = records(3, 15_000), records(25, 100, 3)
    sent: list[Sent] = [(*each[:3], named, STAMP) for each in (*large[:2], *small[:20], *large[2:], *small[20:])]
    there = way.offload(transforms=transforms, **RARELY, **{"processing.guarantee": guarantee})
    with WorkerProcess(way.folder, way.settings(), {**there, **way.inflate(transforms=back)}) as worker:
        send(way.broker, way.raw, sent[:1])
        came(way, way.inflated, 1)
        asyncio.run(set_limit(way.broker, way.orders, 5_000))
        send(way.broker, way.raw, sent[1:22])
        came(way, way.inflated, 22)
        send(way.broker, way.raw, sent[22:])
        came(way, way.inflated, len(sent))
        page = pipeline_of(worker)
        assert page["state"] == "RUNNING"
        assert page["restarts"] in (1, 2)  # for the refused record, and if that came before the limit was seen, for it
        assert page["chunked_messages" if transforms == ["chunk"] else "offloaded_records"] == 2
        assert worker.terminate() == 0
        assert "continues, although it could not be started now" in worker.log.read_text()
    assert values_of(way, way.inflated) == [(key, value) for _, key, value, _, _ in sent]
    found = [each.headers for each in read_all(way.broker, way.inflated)[0]]
    assert found == [tuple(headers) for _, _, _, headers, _ in sent]


@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_worker_with_a_record_that_the_sink_refuses(make_way: MakeWay, tolerance: str) -> None:
    """Where nothing can be done with it, it stops the pipeline, with its place, the topic and the limit.

    With `errors.tolerance` all it becomes a dead letter, and those behind it arrive, in order and once.
    """
    way = make_way(1)
    sent = records(3, THRESHOLD + 5_000) + records(5, 100, 3)
    tolerant = way.tolerant if tolerance == "all" else {}
    send(way.broker, way.raw, sent[:1])
    with WorkerProcess(way.folder, way.settings(), {**way.inflate(**tolerant, **RARELY), **way.offload()}) as worker:
        came(way, way.inflated, 1)
        asyncio.run(set_limit(way.broker, way.inflated, 10_000))
        send(way.broker, way.raw, sent[1:])
        told = f"bytes as a batch of one, topic {way.inflated} accepts 10,000; raise max.message.bytes of topic"
        if tolerance == "none":
            until(lambda: pipeline_of(worker)["state"] == "FAILED", "the pipeline has stopped")
            error = str(pipeline_of(worker)["last_error"])
            assert error.startswith(f"topic {way.orders}, partition 0, offset 1: the record has 25,0")
            assert told in error
            assert worker.get("/health")[0] == 503
            assert worker.terminate() == 1
            assert len(values_of(way, way.inflated)) == 1
            return
        came(way, way.inflated, 6)
        came(way, way.dead, 2)
        page = pipeline_of(worker)
        assert (page["restarts"], page["dead_letters"]) == (1, 2)
        assert worker.terminate() == 0
    assert [key for key, _ in values_of(way, way.inflated)] == [b"0", b"3", b"4", b"5", b"6", b"7"]
    letters = read_all(way.broker, way.dead)[0]
    assert [letter.key for letter in letters] == [b"1", b"2"]
    assert told in reason_of(letters[0])


def test_worker_notices_a_limit_that_is_raised(make_way: MakeWay) -> None:
    """What was too large for the sink arrives once the sink takes more, without another start of the worker."""
    way = make_way(1)
    sent = records(2, THRESHOLD + 5_000)
    asyncio.run(set_limit(way.broker, way.inflated, 10_000))
    send(way.broker, way.raw, sent[:1])
    small = {"producer.batch.size": 10_000}
    worker = WorkerProcess(way.folder, way.settings(), {**way.inflate(**way.tolerant, **small), **way.offload()})
    worker.constants = {"app.pipeline.topic_watcher:_LOOK_S": 0.25}
    with worker:
        came(way, way.dead, 1)
        asyncio.run(set_limit(way.broker, way.inflated, 100_000))
        until(lambda: pipeline_of(worker)["restarts"] == 1, "the pipeline begins again")
        send(way.broker, way.raw, sent[1:])
        came(way, way.inflated, 1)
        assert pipeline_of(worker)["dead_letters"] == 1
        assert worker.terminate() == 0


def test_worker_believes_a_refusal_that_the_limit_does_not_explain(make_way: MakeWay, make_topic: MakeTopic) -> None:
    """A broker that compresses what does not compress makes it too large: then it is offloaded, not sent for ever."""
    way = make_way(1)
    limit = 10_000
    way.orders = make_topic(1, **{"max.message.bytes": limit, "compression.type": "gzip", "retention.ms": "-1"})
    fits = Record(b"0", random.Random(0).randbytes(limit - 100), [("h", None)], STAMP)
    room = limit - batch_of_one_bytes(fits)
    value = random.Random(0).randbytes(limit - 100 + room)
    assert batch_of_one_bytes(Record(b"0", value, [("h", None)], STAMP)) == limit
    sent: list[Sent] = [(0, b"0", value, [("h", None)], STAMP), *records(3, 100, 1)]
    keys = {"producer.batch.size": 5_000, "large.message.threshold.bytes": limit}
    with WorkerProcess(way.folder, way.settings(), {**way.offload(**keys), **way.inflate()}) as worker:
        send(way.broker, way.raw, sent)
        came(way, way.inflated, 4)
        page = pipeline_of(worker)
        assert (page["restarts"], page["offloaded_records"]) == (1, 1)
        assert worker.terminate() == 0
    assert values_of(way, way.inflated) == [(key, each) for _, key, each, _, _ in sent]


def test_worker_does_not_linger_without_room_or_at_the_end(make_way: MakeWay) -> None:
    """Batches go though they are not full where `in.flight.bytes` is spent, so nothing fills them; and at the end."""
    way = make_way(1)
    sent = records(30, 5_000)
    settings = {**way.settings(), "in.flight.bytes": 50_000}
    with WorkerProcess(way.folder, settings, way.offload(**{"producer.linger.ms": 600_000})) as worker:
        send(way.broker, way.raw, sent)
        came(way, way.orders, 20)
        assert worker.terminate() == 0
    assert values_of(way, way.orders) == [(key, value) for _, key, value, _, _ in sent]


def test_worker_judges_a_record_by_its_compressed_batch(make_way: MakeWay, make_topic: MakeTopic) -> None:
    """A record that the broker takes compressed stays in the log, one byte over the limit it is offloaded.

    The limits are the very sizes, for each codec, and nothing is refused.
    """
    way = make_way(1)
    value = b",".join(b'{"id": %d, "name": "a name that repeats"}' % number for number in range(20_000))
    record = Record(b"text", value, (("h", b"1"),), STAMP)
    noise: Sent = (0, b"noise", random.Random(7).randbytes(400_000), [], STAMP)
    send(way.broker, way.raw, [(0, b"text", value, [("h", b"1")], STAMP), noise])
    pipelines: dict[str, dict[str, object]] = {}
    fits: dict[str, bool] = {}
    for number, codec in enumerate(CODECS[1:], 1):
        size = sent_bytes(record, number)
        assert 10_000 < size < 300_000
        for spare in (0, -1):
            sink = make_topic(1, **{"max.message.bytes": size + spare, "retention.ms": -1})
            fits[sink] = spare == 0
            keys: dict[str, object] = {"producer.compression.type": codec, "large.message.threshold.bytes": 10_000_000}
            keys |= {"producer.batch.size": 10_000, "output.topic": sink, "group.id": sink}
            pipelines |= {sink: way.offload(**keys)["offload"]}
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        for sink in fits:
            came(way, sink, 2)
        pages = {page["name"]: page for page in worker.get("/pipelines")[1]}
        assert worker.terminate() == 0
    for sink, stays in fits.items():
        assert [each == value for _, each in values_of(way, sink)] == [stays, False]
        assert pages[sink]["offloaded_records"] == (1 if stays else 2)
        assert (pages[sink]["restarts"], pages[sink]["producer"]["batch-split-total"]) == (0, 0)
