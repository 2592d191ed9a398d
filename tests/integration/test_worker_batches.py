"""The worker whose sink refuses batches, or single records, because its limit sinks while the worker runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest

from app.kafka.batches.batch import sent_bytes
from tests.integration.limits import set_limit
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.batch_size import batch_of_one_bytes
from transforms.record import Record
from transforms.record_batch import CODECS

MakeWay = Callable[..., Way]

STAMP = 1_700_000_000_000
# Commits are rare, so that what is written before a refusal is there once only if it is committed for that reason.
RARELY = {"offset.flush.interval.ms": 60_000}


def records(count: int, size: int, first: int = 0) -> list[Sent]:
    """Records that do not compress, whose keys count up."""
    rng = random.Random(first)
    return [(0, b"%d" % index, rng.randbytes(size), [("h", None)], STAMP) for index in range(first, first + count)]


def chunk_pipeline(way: Way, **more: object) -> dict[str, dict[str, object]]:
    """A pipeline from raw to orders that splits records, and has no store."""
    keys = {"transforms": ["chunk"], "group.id": way.group("chunk"), "producer.batch.size": 10_000}
    return {"chunk": {"topics": [way.raw], "output.topic": way.orders, **keys, **more}}


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
        metrics = worker.text("/metrics")
        assert (
            f'wideload_producer_batch_split_total{{pipeline="offload"}} {producer["batch-split-total"]:.1f}' in metrics
        )
        assert worker.terminate() == 0
    assert values_of(way, way.orders) == [(key, value) for _, key, value, _, _ in sent]


def test_worker_offloads_after_all_what_the_sink_refuses(make_way: MakeWay) -> None:
    """A value below the threshold goes to the store once the sink takes no such record: in order, once.

    Also where the settings would not let the worker start any more: the limit is below threshold and batch size.
    """
    way = make_way(1)
    sent = records(10, THRESHOLD - 5_000) + records(20, 100, 10) + records(3, THRESHOLD - 5_000, 30)
    sent += records(20, 100, 33)
    with WorkerProcess(way.folder, way.settings(), {**way.offload(**RARELY), **way.inflate()}) as worker:
        send(way.broker, way.raw, sent[:10])
        came(way, way.inflated, 10)
        assert pipeline_of(worker)["offloaded_records"] == 0
        asyncio.run(set_limit(way.broker, way.orders, 5_000))
        send(way.broker, way.raw, sent[10:])
        came(way, way.inflated, len(sent))
        page = pipeline_of(worker)
        assert (page["name"], page["state"]) == ("offload", "RUNNING")
        assert page["restarts"] in (1, 2)  # for the refused record, and if that came before the limit was seen, for it
        assert page["offloaded_records"] == 3
        assert worker.terminate() == 0
        log = worker.log.read_text()
    assert "goes on, though it would not start any more" in log
    assert values_of(way, way.inflated) == [(key, value) for _, key, value, _, _ in sent]


@pytest.mark.parametrize(
    ("transforms", "guarantee"),
    [(["offload"], "exactly_once"), (["offload", "wrap"], "at_least_once"), (["chunk"], "exactly_once")],
)
def test_worker_goes_on_where_a_record_is_refused(make_way: MakeWay, transforms: list[str], guarantee: str) -> None:
    """A record between the old limit and the new one is moved by the next flow, in order, once."""
    way = make_way(1)
    named = [("wrapper.header.7", b"7")]
    large, small = records(3, 15_000), records(25, 100, 3)
    sent: list[Sent] = [(*each[:3], named, STAMP) for each in (*large[:2], *small[:20], *large[2:], *small[20:])]
    back = {"offload": ["inflate"], "offload,wrap": ["unwrap", "inflate"], "chunk": ["assemble"]}[",".join(transforms)]
    pipelines = {
        **way.offload(transforms=transforms, **{"processing.guarantee": guarantee}),
        **way.inflate(transforms=back),
    }
    if transforms == ["chunk"]:
        del pipelines["offload"]["large.message.threshold.bytes"]
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        send(way.broker, way.raw, sent[:1])
        came(way, way.inflated, 1)
        asyncio.run(set_limit(way.broker, way.orders, 5_000))
        send(way.broker, way.raw, sent[1:22])
        came(way, way.inflated, 22)
        send(way.broker, way.raw, sent[22:])
        came(way, way.inflated, len(sent))
        page = pipeline_of(worker)
        assert page["state"] == "RUNNING"
        assert page["restarts"] in (1, 2)
        assert page["chunked_messages" if transforms == ["chunk"] else "offloaded_records"] == 2
        assert worker.terminate() == 0
    assert cast("int", page["wrapped_records"]) >= (len(sent) if "wrap" in transforms else 0)
    assert values_of(way, way.inflated) == [(key, value) for _, key, value, _, _ in sent]
    found = [each.headers for each in read_all(way.broker, way.inflated)[0]]
    assert found == [tuple(headers) for _, _, _, headers, _ in sent]


def test_letters_follow_a_limit_that_is_lowered(make_way: MakeWay) -> None:
    """If the dead-letter topic takes less, the pipeline restarts, and letters take the form that it takes."""
    way = make_way(1)
    sent = records(2, 15_000)
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    keys = {
        "topics": [way.raw],
        "output.topic": way.inflated,
        "transforms": ["unwrap"],
        "group.id": way.group("unwrap"),
    }
    worker = WorkerProcess(way.folder, way.settings(), {"unwrap": {**keys, **tolerant}})
    worker.constants = {"app.pipeline.topic_watcher:_LOOK_S": 0.25}
    with worker:
        send(way.broker, way.raw, sent[:1])
        came(way, way.dead, 1)
        asyncio.run(set_limit(way.broker, way.dead, 8_000))
        until(lambda: pipeline_of(worker)["restarts"] == 1, "the worker has seen the new limit")
        send(way.broker, way.raw, sent[1:])
        came(way, way.dead, 3)
        assert worker.terminate() == 0


def test_worker_makes_smaller_chunks_when_the_limit_sinks(make_way: MakeWay) -> None:
    """A chunk that the sink refuses goes as more and smaller ones, though `chunk.max.bytes` is more than it takes."""
    way = make_way(1)
    sent = records(2, 100_000)
    with WorkerProcess(way.folder, way.settings(), chunk_pipeline(way, **{"chunk.max.bytes": 60_000})) as worker:
        send(way.broker, way.raw, sent[:1])
        came(way, way.orders, 2)
        asyncio.run(set_limit(way.broker, way.orders, 20_000))
        send(way.broker, way.raw, sent[1:])
        came(way, way.orders, 8)
        page = pipeline_of(worker)
        assert page["state"] == "RUNNING"
        assert page["restarts"] in (1, 2)
        assert worker.terminate() == 0
    pieces = [value or b"" for _, value in values_of(way, way.orders)]
    assert b"".join(pieces) == b"".join(value or b"" for _, _, value, _, _ in sent)


def test_worker_waits_where_a_limit_lets_no_chunk_pass(make_way: MakeWay) -> None:
    """Below the smallest chunk the pipeline waits, and says why; it goes on once the limit is what it was."""
    way = make_way(1)
    waiting = {name: {**keys, "errors.retry.delay.max.ms": 500} for name, keys in chunk_pipeline(way).items()}
    limit = f"output.topic: max.message.bytes of topic {way.orders} is 200; a chunk takes "
    with WorkerProcess(way.folder, way.settings(), waiting) as worker:
        worker.wait_ready()
        asyncio.run(set_limit(way.broker, way.orders, 200))
        send(way.broker, way.raw, records(1, 10_000))
        until(lambda: limit in str(worker.get("/health")[1]["reasons"]), "the worker says what it waits for")
        assert worker.get("/health")[1]["status"] == "restarting"
        asyncio.run(set_limit(way.broker, way.orders, 2_000))
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) > 5, "the chunks are there")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "all is well again")
        assert worker.terminate() == 0


def test_worker_stops_at_a_record_that_the_sink_refuses(make_way: MakeWay) -> None:
    """Where nothing can be done with the record, its place, the topic and the limit are told, and nothing passes it."""
    way = make_way(1)
    sent = records(2, THRESHOLD + 5_000) + records(5, 100, 2)
    send(way.broker, way.raw, sent[:1])
    with WorkerProcess(way.folder, way.settings(), {**way.inflate(), **way.offload()}) as worker:
        came(way, way.inflated, 1)
        asyncio.run(set_limit(way.broker, way.inflated, 10_000))
        send(way.broker, way.raw, sent[1:])
        until(lambda: pipeline_of(worker)["state"] == "FAILED", "the pipeline has stopped")
        told = str(pipeline_of(worker)["last_error"])
    assert told.startswith(f"topic {way.orders}, partition 0, offset 1: the record takes 25,0")
    assert f"bytes as a batch of one, topic {way.inflated} takes 10,000; raise max.message.bytes of topic" in told
    assert len(values_of(way, way.inflated)) == 1


def test_worker_buries_a_record_that_the_sink_refuses(make_way: MakeWay) -> None:
    """With `errors.tolerance` all it becomes a dead letter, and those behind it arrive, in order and once."""
    way = make_way(1)
    sent = records(3, THRESHOLD + 5_000) + records(5, 100, 3)
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    send(way.broker, way.raw, sent[:1])
    with WorkerProcess(way.folder, way.settings(), {**way.inflate(**tolerant, **RARELY), **way.offload()}) as worker:
        came(way, way.inflated, 1)
        asyncio.run(set_limit(way.broker, way.inflated, 10_000))
        send(way.broker, way.raw, sent[1:])
        came(way, way.inflated, 6)
        came(way, way.dead, 2)
        page = pipeline_of(worker)
        assert (page["restarts"], page["dead_letters"]) == (1, 2)
        assert worker.terminate() == 0
    assert [key for key, _ in values_of(way, way.inflated)] == [b"0", b"3", b"4", b"5", b"6", b"7"]
    letters = read_all(way.broker, way.dead)[0]
    assert [letter.key for letter in letters] == [b"1", b"2"]
    reason = dict(letters[0].headers)["__connect.errors.exception.message"]
    assert reason is not None
    assert f"topic {way.inflated} takes 10,000".encode() in reason


def test_worker_notices_a_limit_that_is_raised(make_way: MakeWay) -> None:
    """What was too large for the sink arrives once the sink takes more, without another start of the worker."""
    way = make_way(1)
    sent = records(2, THRESHOLD + 5_000)
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    asyncio.run(set_limit(way.broker, way.inflated, 10_000))
    send(way.broker, way.raw, sent[:1])
    small = {"producer.batch.size": 10_000}
    worker = WorkerProcess(way.folder, way.settings(), {**way.inflate(**tolerant, **small), **way.offload()})
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


def test_worker_that_stops_does_not_linger(make_way: MakeWay) -> None:
    """At the end batches that are not full go at once; nothing is left to be read again."""
    way = make_way(1)
    sent = records(5, 100)
    with WorkerProcess(way.folder, way.settings(), way.offload(**{"producer.linger.ms": 600_000})) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, sent)
        until(lambda: pipeline_of(worker)["records_in"] == len(sent), "all are read")
        assert values_of(way, way.orders) == []
        assert worker.terminate() == 0
        assert "not all records were finished" not in worker.log.read_text()
    assert values_of(way, way.orders) == [(key, value) for _, key, value, _, _ in sent]


def test_worker_does_not_linger_without_room(make_way: MakeWay) -> None:
    """Where `in.flight.bytes` is spent, batches go though they are not full: nothing could fill them."""
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
