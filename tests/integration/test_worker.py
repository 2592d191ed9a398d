"""The worker against a real broker: what it promises when all goes well, and when it is stopped, killed or joined."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.integration.chunk_records import pieces
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeWay, digests, expected, first_occurrences, mixed, reason_of
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from transforms.reference import VALUE


@pytest.mark.matrix
def test_worker_record_survives_whole(make_way: MakeWay) -> None:
    """A value of 20 MB and every odd record come out exactly as they went in."""
    way = make_way(partitions=2, large=20_000_000)
    stamp = 1_699_999_999_123
    records: list[Sent] = [
        (0, b"big", os.urandom(20_000_000), [("trace", b"1"), ("trace", b"2"), ("none", None)], stamp),
        (0, b"tomb", None, [], stamp + 1),
        (0, b"empty", b"", [("large-message", b"false")], stamp + 2),
        (0, None, b"no key", [], stamp + 3),
        (0, None, None, [("only", b"headers")], stamp + 4),
        (1, b"at", os.urandom(THRESHOLD), [("ü", b"\xff\x00")], stamp),
        (1, b"over", os.urandom(THRESHOLD + 1), [("large-message", b"true")], stamp),
        (1, b"\x00\xff", b"binary key", [], stamp),
    ]
    send(way.broker, way.raw, records)
    with way.worker():
        until(lambda: way.arrived(len(records)), "all records have arrived")
    sent = {p: [(k, v, tuple(h), t) for q, k, v, h, t in records if q == p] for p in (0, 1)}
    arrived = read_all(way.broker, way.inflated)
    found = {p: [(r.key, r.value, r.headers, r.timestamp) for r in rs] for p, rs in arrived.items()}
    assert found == sent
    references = read_all(way.broker, way.orders)
    large = [r.key for rs in references.values() for r in rs if (VALUE.flag, b"true") in r.headers]
    assert sorted(large, key=str) == [b"big", b"over"]
    assert max(len(r.value or b"") for rs in references.values() for r in rs) <= THRESHOLD


@pytest.mark.chaos
def test_worker_killed_loses_nothing(make_way: MakeWay) -> None:
    """A worker killed with -9 at random moments, and started again, loses nothing and keeps the order."""
    way = make_way()
    records = mixed(4_000, seed=2)
    rng = random.Random(3)
    worker = way.worker()
    for part in range(3):
        before = sum(end_offsets(way.broker, way.orders).values())
        with worker:  # which kills it
            send(way.broker, way.raw, records[part * 1_000 : (part + 1) * 1_000])
            until(lambda least=before: sum(end_offsets(way.broker, way.orders).values()) > least, "records flow")  # type: ignore[misc]
            time.sleep(rng.random() / 2)  # not a wait for a condition: the moment of the kill is to be random
    send(way.broker, way.raw, records[3_000:])
    with worker:
        until(lambda: way.all_read("offload"), "all is offloaded", 120)
        until(lambda: way.all_read("inflate"), "all is inflated", 120)
    assert first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(records)


@pytest.mark.chaos
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_worker_shares_partitions(make_way: MakeWay, guarantee: str) -> None:
    """A second worker that joins, and leaves by SIGTERM, while records flow: none is lost, twice, or aborted."""
    way = make_way()
    records = mixed(6_000, seed=4)
    keys = {"processing.guarantee": guarantee, "consumer.session.timeout.ms": 10_000}
    with way.worker(**keys) as first:
        first.wait_ready()
        send(way.broker, way.raw, records[:2_000])
        with way.worker(**keys) as second:
            send(way.broker, way.raw, records[2_000:3_000])
            second.wait_ready()
            until(lambda: shares(first, second) == ([3, 3], [3, 3]), "each has a part of each topic")
            send(way.broker, way.raw, records[3_000:5_000])
            until(lambda: lags(first) != {0}, "records flow")
            assert second.terminate() == 0
        send(way.broker, way.raw, records[5_000:])
        until(lambda: way.arrived(len(records)) and lags(first) == {0}, "all records have arrived")
        assert first.terminate() == 0
        assert "restarts in" not in first.log.read_text() + second.log.read_text()
    assert digests(read_all(way.broker, way.inflated)) == expected(records)
    assert way.all_read("offload")


def lags(worker: WorkerProcess) -> set[int | None]:
    """The different lags of all partitions of all pipelines."""
    return {partition["lag"] for page in worker.get("/pipelines")[1] for partition in page["partitions"]}


def test_worker_stops_at_what_is_wrong(make_way: MakeWay) -> None:
    """Without tolerance a reference outside the store's root, or a gap in chunks, stops a pipeline, with its place.

    Nothing passes it, nor is it committed; if no pipeline is left the worker ends with status 1.
    """
    way = make_way(partitions=1)
    chunks = [(0, b"chunk", each.value, each.headers, 1) for each in pieces("uuid", 3_000)]
    forged: Sent = (0, b"b", b"file:///etc/passwd", [(VALUE.flag, b"true")], 2)
    send(way.broker, way.orders, [(0, b"a", b"small", [], 1), forged, (0, b"c", b"small", [], 3)])
    send(way.broker, way.raw, [chunks[0], chunks[2], (0, b"c", b"small", [], 3)])
    pipelines = {**way.inflate(), **way.offload(transforms=["assemble"], **{"output.topic": way.dead})}
    with StartedWorker(way.folder, way.settings(), pipelines) as worker:
        assert worker.wait() == 1
    log = worker.log.read_text()
    assert f"topic {way.orders}, partition 0, offset 1: reference 'file:///etc/passwd' is refused" in log
    assert f"topic {way.raw}, partition 0, offset 0: the chunked message" in log
    assert "out-of-order: chunk 2 arrived, expected 1" in log
    assert "Traceback" not in log
    assert committed(way.broker, way.group("inflate"), way.orders) == {0: 1}
    assert committed(way.broker, way.group("offload"), way.raw) == {0: 0}
    assert [r.key for r in read_all(way.broker, way.inflated)[0]] == [b"a"]
    assert end_offsets(way.broker, way.dead) == {0: 0}


@pytest.mark.matrix
def test_worker_tolerance_all_buries(make_way: MakeWay) -> None:
    """Forged, missing and changed payloads go to the dead-letter topic, whole; the records around them pass."""
    way = make_way(partitions=1)
    values = {key: os.urandom(THRESHOLD + 1) for key in (b"missing", b"changed", b"cut", b"good")}
    send(way.broker, way.raw, [(0, key, value, [("own", key)], 5) for key, value in values.items()])
    with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
        until(lambda: end_offsets(way.broker, way.orders) == {0: 4}, "all are offloaded")
        assert worker.terminate() == 0
    references = {record.key: record for record in read_all(way.broker, way.orders)[0]}
    files = {key: Path((record.value or b"").decode().removeprefix("file://")) for key, record in references.items()}
    files[b"missing"].unlink()
    files[b"changed"].write_bytes(os.urandom(THRESHOLD + 1))
    files[b"cut"].write_bytes(values[b"cut"][:-1])
    header = [(VALUE.flag, b"true")]
    traversal = f"file://{way.folder}/store/{way.orders}/../x".encode()
    forged: list[Sent] = [
        (0, b"traversal", traversal, header, 6),
        (0, b"binary", b"\xff\xfe", header, 6),
        (0, b"last", b"small", [], 7),
    ]
    send(way.broker, way.orders, forged)
    with WorkerProcess(way.folder, way.settings(), way.inflate(**way.tolerant)) as worker:
        until(lambda: end_offsets(way.broker, way.dead) == {0: 5}, "the five bad ones are dead letters")
        until(lambda: end_offsets(way.broker, way.inflated) == {0: 2}, "the two good ones have passed")
        until(lambda: committed(way.broker, way.group("inflate"), way.orders) == {0: 7}, "all are committed")
        assert worker.get("/pipelines")[1][0]["dead_letters"] == 5
        assert worker.terminate() == 0
    assert [(r.key, r.value) for r in read_all(way.broker, way.inflated)[0]] == [
        (b"good", values[b"good"]),
        (b"last", b"small"),
    ]
    letters = {record.key: record for record in read_all(way.broker, way.dead)[0]}
    assert set(letters) == {b"missing", b"changed", b"cut", b"traversal", b"binary"}
    missing = letters[b"missing"]
    original = references[b"missing"]
    assert (missing.value, missing.timestamp) == (original.value, original.timestamp)
    assert missing.headers[: len(original.headers)] == original.headers
    context = dict(missing.headers)
    assert context["__connect.errors.topic"] == way.orders.encode()
    assert context["__connect.errors.offset"] == b"0"
    assert context["__connect.errors.exception.class.name"] == b"transforms.errors.PayloadNotFoundError"
    assert "checksum" in reason_of(letters[b"changed"])
    assert "size" in reason_of(letters[b"cut"])


def test_worker_signed_references(make_way: MakeWay) -> None:
    """With a key, a payload below the root is given out only for a reference that was signed; a key can be changed."""
    way = make_way(partitions=1)
    old, new = {"large.message.signing.key": "o" * 32}, {"large.message.signing.key": "n" * 32}
    values = {key: os.urandom(THRESHOLD + 1) for key in (b"old", b"new", b"unsigned")}
    sources = {b"old": way.raw, b"new": way.dead, b"unsigned": way.inflated}
    pipelines: dict[str, dict[str, object]] = {}
    for key, more in ((b"old", old), (b"new", new), (b"unsigned", {})):
        send(way.broker, sources[key], [(0, key, values[key], [], 5)])
        pipelines[key.decode()] = {**way.offload(**more)["offload"], "topics": [sources[key]], "group.id": sources[key]}
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        until(lambda: end_offsets(way.broker, way.orders) == {0: 3}, "all are offloaded")
        assert worker.terminate() == 0
    by_key = {record.key: record for record in read_all(way.broker, way.orders)[0]}
    # The signature of one reference does not do for another.
    moved: Sent = (0, b"moved", by_key[b"unsigned"].value, by_key[b"new"].headers, 6)
    send(way.broker, way.orders, [moved])
    rotated = {**new, "consumer.auto.offset.reset": "earliest", "large.message.signing.previous.keys": ["o" * 32]}
    with WorkerProcess(way.folder, way.settings(), way.inflate(**rotated, **way.tolerant)) as worker:
        until(lambda: end_offsets(way.broker, way.dead) == {0: 3}, "two are dead letters, behind one of the sources")
        until(lambda: end_offsets(way.broker, way.inflated) == {0: 3}, "two have passed")
        assert worker.terminate() == 0
        assert not any(key * 32 in worker.log.read_text() for key in "on")
    passed = {r.key: r.value for r in read_all(way.broker, way.inflated)[0][1:]}
    assert passed == {key: values[key] for key in (b"old", b"new")}
    reasons = {record.key: reason_of(record) for record in read_all(way.broker, way.dead)[0][1:]}
    assert "it has no signature" in reasons[b"unsigned"]
    assert "is wrong" in reasons[b"moved"]


def test_worker_without_partitions_is_ready(make_way: MakeWay) -> None:
    """A worker to which the group gives no partition is ready all the same, and takes over when the other one goes."""
    way = make_way(partitions=1)
    with way.worker() as first:
        first.wait_ready()
        with way.worker() as second:
            until(lambda: second.get("/health")[0] == 200, "the second worker is ready")
            until(lambda: shares(first, second) == ([0, 1], [0, 1]), "each partition has one reader")
            first.terminate()
            until(lambda: shares(second) == ([1], [1]), "the second worker has them")
            send(way.broker, way.raw, [(0, b"k", b"v", [], 1)])
            until(lambda: way.arrived(1), "the record has arrived")
    assert [record.value for record in read_all(way.broker, way.inflated)[0]] == [b"v"]


def shares(*workers: WorkerProcess) -> tuple[list[int], ...]:
    """For each pipeline, how many partitions each worker has, in rising order."""
    counts = [[len(page["partitions"]) for page in worker.get("/pipelines")[1]] for worker in workers]
    return tuple(sorted(column) for column in zip(*counts, strict=True))
