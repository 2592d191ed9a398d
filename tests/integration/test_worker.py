"""The worker against a real broker: what it promises when all goes well, and when it is stopped, killed or joined."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import PARTITIONS, THRESHOLD, MakeTopic, Way, digests, expected, first_occurrences, mixed
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from transforms.reference import VALUE


@pytest.mark.matrix
def test_worker_record_survives_whole(make_way: Callable[..., Way]) -> None:
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


def test_worker_order_mixed_records(make_way: Callable[..., Way]) -> None:
    """10,000 small and large records over 6 partitions leave in their order, partition by partition, each once."""
    way = make_way()
    records = mixed(10_000, seed=1)
    send(way.broker, way.raw, records)
    with way.worker() as worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        until(lambda: lags(worker) == {0}, "lag is 0")
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(records)
    assert committed(way.broker, way.group("offload"), way.raw) == end_offsets(way.broker, way.raw)


def flows(way: Way, before: int) -> bool:
    """Whether more than `before` records are in the topic of references."""
    return sum(end_offsets(way.broker, way.orders).values()) > before


def lags(worker: WorkerProcess) -> set[int | None]:
    """The different lags of all partitions of all pipelines."""
    return {partition["lag"] for page in worker.get("/pipelines")[1] for partition in page["partitions"]}


@pytest.mark.chaos
def test_worker_killed_loses_nothing(make_way: Callable[..., Way]) -> None:
    """A worker killed with -9 at random moments, and started again, loses nothing and keeps the order."""
    way = make_way()
    records = mixed(10_000, seed=2)
    rng = random.Random(3)
    worker = way.worker()
    send(way.broker, way.raw, records[:2_000])
    for part in range(2, 7):
        before = sum(end_offsets(way.broker, way.orders).values())
        with worker:  # which kills it
            send(way.broker, way.raw, records[part * 1_000 : (part + 1) * 1_000])
            until(partial(flows, way, before), "records flow")
            time.sleep(rng.random() / 2)  # not a wait for a condition: the moment of the kill is to be random
    send(way.broker, way.raw, records[7_000:])
    with worker:
        sent = end_offsets(way.broker, way.raw)
        until(lambda: committed(way.broker, way.group("offload"), way.raw) == sent, "all is offloaded", 120)
        offloaded = end_offsets(way.broker, way.orders)
        until(lambda: committed(way.broker, way.group("inflate"), way.orders) == offloaded, "all is inflated", 120)
    assert first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(records)


@pytest.mark.chaos
def test_worker_shares_partitions(make_way: Callable[..., Way]) -> None:
    """A second worker that joins and leaves while records flow costs no record and no order."""
    way = make_way()
    records = mixed(10_000, seed=4)
    with way.worker() as first:
        first.wait_ready()
        send(way.broker, way.raw, records[:4_000])
        with way.worker() as second:
            send(way.broker, way.raw, records[4_000:5_000])
            second.wait_ready()
            send(way.broker, way.raw, records[5_000:8_000])
            until(
                lambda: all(0 < count < PARTITIONS for each in (first, second) for count in shares(each)[0]),
                "each has a part of each topic",
            )
            assert second.terminate() == 0
        send(way.broker, way.raw, records[8_000:])
        until(lambda: way.arrived(len(records)), "all records have arrived")
        assert first.terminate() == 0
    found = digests(read_all(way.broker, way.inflated))
    assert first_occurrences(found) == expected(records)
    # Both drained and committed what they held before they gave it up.
    assert found == expected(records)


def test_worker_sigterm_drains(make_way: Callable[..., Way]) -> None:
    """SIGTERM finishes what is held and commits it: the next worker repeats nothing."""
    way = make_way()
    records = mixed(8_000, seed=5)
    worker = StartedWorker(way.folder, way.settings(), {**way.offload(), **way.inflate()})
    with worker:
        worker.wait_ready()
        send(way.broker, way.raw, records)
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) > 100, "records flow")
        assert worker.terminate() == 0
    with worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(records)


def test_worker_forged_reference_stops(make_way: Callable[..., Way]) -> None:
    """A reference outside the store's root stops the pipeline; the log says where it is, and it is not committed."""
    way = make_way(partitions=1)
    header = [(VALUE.flag, b"true")]
    send(way.broker, way.orders, [(0, b"a", b"small", [], 1), (0, b"b", b"file:///etc/passwd", header, 2)])
    with StartedWorker(way.folder, way.settings(), way.inflate()) as worker:
        assert worker.wait() == 1
    log = worker.log.read_text()
    assert f"topic {way.orders}, partition 0, offset 1: reference 'file:///etc/passwd' is refused" in log
    assert "Traceback" not in log
    assert committed(way.broker, way.group("inflate"), way.orders) == {0: 1}
    assert [r.key for r in read_all(way.broker, way.inflated)[0]] == [b"a"]


@pytest.mark.matrix
def test_worker_tolerance_all_buries(make_way: Callable[..., Way]) -> None:
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
    tolerant = way.inflate(**{"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead})
    with WorkerProcess(way.folder, way.settings(), tolerant) as worker:
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
    assert b"checksum" in (dict(letters[b"changed"].headers)["__connect.errors.exception.message"] or b"")
    assert b"size" in (dict(letters[b"cut"].headers)["__connect.errors.exception.message"] or b"")


def test_worker_signed_references(make_way: Callable[..., Way]) -> None:
    """With a key, a payload below the root is given out only for a reference that was signed; a key can be changed."""
    way = make_way(partitions=1)
    old, new = {"large.message.signing.key": "o" * 32}, {"large.message.signing.key": "n" * 32}
    values = {key: os.urandom(THRESHOLD + 1) for key in (b"old", b"new", b"unsigned")}
    for key, more in ((b"old", old), (b"new", new), (b"unsigned", {})):
        send(way.broker, way.raw, [(0, key, values[key], [], 5)])
        with WorkerProcess(way.folder, way.settings(), way.offload(**more)) as worker:
            until(lambda: not lag(way), "it is offloaded")
            assert worker.terminate() == 0
    by_key = {record.key: record for record in read_all(way.broker, way.orders)[0]}
    unsigned, signed = by_key[b"unsigned"], by_key[b"new"]
    # The signature of one reference does not do for another.
    send(way.broker, way.orders, [(0, b"moved", unsigned.value, list(signed.headers), 6)])
    tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": way.dead}
    rotated = {**new, "large.message.signing.previous.keys": ["o" * 32]}
    with WorkerProcess(way.folder, way.settings(), way.inflate(**rotated, **tolerant)) as worker:
        until(lambda: end_offsets(way.broker, way.dead) == {0: 2}, "two are dead letters")
        until(lambda: end_offsets(way.broker, way.inflated) == {0: 2}, "two have passed")
        assert worker.terminate() == 0
        assert not any(key * 32 in worker.log.read_text() for key in "on")
    assert {r.key: r.value for r in read_all(way.broker, way.inflated)[0]} == {k: values[k] for k in (b"old", b"new")}
    letters = {record.key: dict(record.headers) for record in read_all(way.broker, way.dead)[0]}
    reasons = {key: headers["__connect.errors.exception.message"] or b"" for key, headers in letters.items()}
    assert b"it has no signature" in reasons[b"unsigned"]
    assert b"is not right" in reasons[b"moved"]


def lag(way: Way) -> bool:
    """Whether something is left to offload."""
    return committed(way.broker, way.group("offload"), way.raw) != end_offsets(way.broker, way.raw)


def test_worker_key_decides_where_counts_differ(make_way: Callable[..., Way], make_topic: MakeTopic) -> None:
    """With another number of partitions in the sink, equal keys stay together and in order."""
    way = make_way(partitions=3)
    way.orders = make_topic(5)
    records: list[Sent] = [(n % 3, b"key-%d" % (n % 3 + 3 * (n % 7)), b"%d" % n, [], 1) for n in range(600)]
    send(way.broker, way.raw, records)
    with WorkerProcess(way.folder, way.settings(), way.offload()):
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) == 600, "all have arrived")
    found = read_all(way.broker, way.orders)
    assert len(found) > 1
    where: dict[bytes | None, set[int]] = {}
    order: dict[bytes | None, list[int]] = {}
    for partition, rows in found.items():
        for row in rows:
            where.setdefault(row.key, set()).add(partition)
            order.setdefault(row.key, []).append(int(row.value or b""))
    assert all(len(partitions) == 1 for partitions in where.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_worker_record_over_sink_limit(make_way: Callable[..., Way]) -> None:
    """A value below the threshold is offloaded all the same where the sink would refuse the record."""
    way = make_way(partitions=1)
    value = os.urandom(1_048_450)
    send(way.broker, way.raw, [(0, b"k" * 200, value, [], 1), (0, b"k" * 20, value, [], 1)])
    with way.worker(**{"large.message.threshold.bytes": 1_048_576}):
        until(lambda: way.arrived(2), "both have arrived")
    sizes = [len(record.value or b"") for record in read_all(way.broker, way.orders)[0]]
    assert sizes[0] < 1_000
    assert sizes[1] == len(value)
    assert [record.value for record in read_all(way.broker, way.inflated)[0]] == [value, value]


def test_worker_inflated_record_over_sink_limit(make_way: Callable[..., Way], make_topic: MakeTopic) -> None:
    """A value that the inflated topic would refuse stops the pipeline with both numbers."""
    way = make_way(partitions=1)
    send(way.broker, way.raw, [(0, b"k", os.urandom(1_500_000), [], 1)])
    way.inflated = make_topic(1)
    with way.worker() as worker:
        until(lambda: "inflate has failed" in worker.log.read_text(), "the pipeline has stopped")
        status, health = worker.get("/health")
        assert (status, health["status"], health["ready"]) == (503, "failed", False)
        assert f"topic {way.inflated} takes 1,048,588" in health["reasons"]["inflate"]
        assert worker.terminate() == 1


def test_worker_without_partitions_is_ready(make_way: Callable[..., Way]) -> None:
    """A worker to which the group gives no partition is ready all the same, and takes over when the other one goes."""
    way = make_way(partitions=1)
    with way.worker() as first:
        first.wait_ready()
        with way.worker() as second:
            until(lambda: second.get("/health")[0] == 200, "the second worker is ready")
            until(lambda: shares(first, second) == ([0, 1], [0, 1]), "each partition has one reader")
            first.terminate()
            until(lambda: shares(second) == ([1, 1],), "the second worker has them")
            send(way.broker, way.raw, [(0, b"k", b"v", [], 1)])
            until(lambda: way.arrived(1), "the record has arrived")
    assert [record.value for record in read_all(way.broker, way.inflated)[0]] == [b"v"]


def shares(*workers: WorkerProcess) -> tuple[list[int], ...]:
    """For each pipeline, how many partitions each worker has, in rising order; by worker where there is one."""
    counts = [[len(page["partitions"]) for page in worker.get("/pipelines")[1]] for worker in workers]
    return (counts[0],) if len(counts) == 1 else tuple(sorted(column) for column in zip(*counts, strict=True))
