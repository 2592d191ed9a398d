"""Workers in a group: static members with one id, a group of the newer protocol, a member that is gone."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from tests.integration.operations import Operations
from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import MakeWay, Way, digests, expected, first_occurrences
from tests.integration.worker_process import WorkerProcess, until


def numbered(begin: int, end: int, partitions: int = 2) -> list[Sent]:
    """Small records, so many for each partition."""
    return [(at, b"%d" % number, b"v", [], 1) for number in range(begin, end) for at in range(partitions)]


def test_workers_with_one_instance_id(make_way: MakeWay) -> None:
    """The first of two workers with one `consumer.group.instance.id` says so and stops; the second one works."""
    way = make_way(partitions=2)
    static = {"consumer.group.instance.id": "pod-0", "processing.guarantee": "exactly_once"}
    first, second = (WorkerProcess(way.folder, way.settings(), way.offload(**static)) for _ in range(2))
    with first:
        first.wait_ready()
        send(way.broker, way.raw, numbered(0, 50))
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) >= 100, "records flow")
        with second:
            assert first.wait() == 1
            second.wait_ready()
            send(way.broker, way.raw, numbered(50, 100))
            records = expected(numbered(0, 100))
            until(lambda: complete(way, records), "each record has arrived, in order")
            assert second.get("/pipelines")[1][0]["restarts"] == 0
            assert second.terminate() == 0
    log = first.log.read_text()
    assert (
        f"another worker has joined group {way.group('offload')} with consumer.group.instance.id = 'pod-0', and this "
        "one is out of it: give each worker a different consumer.group.instance.id, or none" in log
    )
    assert "Traceback" not in log
    assert "restarts in" not in log


@pytest.mark.needs_kafka((4, 0), "groups of the protocol `consumer` (KIP-848)")
def test_worker_in_a_group_of_the_newer_protocol(make_way: MakeWay) -> None:
    """A worker shares the partitions with a member of the protocol `consumer` (KIP-848), and has all when that is gone.

    So a group can be moved to the newer protocol and back while a worker is in it.
    """
    way = make_way(partitions=2)
    newer = Consumer({"bootstrap.servers": way.broker, "group.id": way.group("offload"), "group.protocol": "consumer"})
    newer.subscribe([way.raw])
    try:
        until(lambda: held(newer) == 2, "the other has all")
        with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
            until(lambda: (held(newer), partitions_of(worker)) == (1, 1), "each has one")
            newer.close()
            until(lambda: partitions_of(worker) == 2, "the worker has all")
            send(way.broker, way.raw, numbered(0, 50))
            until(lambda: complete(way, expected(numbered(0, 50))), "each record has arrived, in order")
            assert worker.terminate() == 0
        assert "restarts in" not in worker.log.read_text()
    finally:
        newer.close()


def test_worker_in_a_group_with_another_strategy(make_way: MakeWay) -> None:
    """A worker that cannot join, as the group goes by another assignment strategy, says so and ends."""
    way = make_way(partitions=2)
    strategy = {"partition.assignment.strategy": "range"}
    other = Consumer({"bootstrap.servers": way.broker, "group.id": way.group("offload"), **strategy})
    other.subscribe([way.raw])
    try:
        until(lambda: held(other) == 2, "the other has all")
        with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
            assert worker.wait() == 1
    finally:
        other.close()
    log = worker.log.read_text()
    assert "the group has members with another partition.assignment.strategy than roundrobin" in log
    assert "set a group.id that nothing else uses" in log
    assert "Traceback" not in log


def test_worker_that_waits_to_join_and_ends(make_way: MakeWay) -> None:
    """It leaves no ghost in the group, which the others would wait for, or share partitions with.

    As it was seen: one worker is killed, the second one waits for that one's session to end, longer than its own
    requests may take, the third one joins, and the second one is stopped before they have been given partitions.
    """
    way = make_way(partitions=4)
    settings = {**way.settings(), "consumer.session.timeout.ms": 10_000}  # two workers start meanwhile
    pipelines = way.offload(**{"consumer.request.timeout.ms": 1_000})
    killed, ended, last = (WorkerProcess(way.folder, settings, pipelines) for _ in range(3))
    ended.constants["app.kafka.troubles:_JOINS_S"] = 1.5
    with killed:
        killed.wait_ready()
    with ended:
        until(lambda: "waits since" in health(ended), "it waits longer than its requests may take")
        with last:
            until(lambda: "group" in health(last), "the last one joins")
            assert ended.terminate() == 0
            assert members(way) == 2, "the last one, and the one that was killed"
            until(lambda: partitions_of(last) == 4, "it has all partitions")
            send(way.broker, way.raw, numbered(0, 10, 4))
            until(lambda: complete(way, expected(numbered(0, 10, 4))), "each record has arrived, in order")
            assert last.terminate() == 0
    assert last.log.read_text().count("pipeline offload reads") == 1
    assert "pipeline offload reads" not in ended.log.read_text()


def test_worker_leaves_beside_a_fetch_that_waits(make_way: MakeWay) -> None:
    """A worker leaves its group at once, though its broker answers the last fetch only much later."""
    way = make_way(partitions=1)
    with WorkerProcess(way.folder, way.settings(), way.offload(**{"consumer.fetch.max.wait.ms": 20_000})) as worker:
        worker.wait_ready()
        send(way.broker, way.raw, numbered(0, 1, 1))
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) >= 1, "records flow")
        assert members(way) == 1
        assert worker.terminate() == 0
        assert members(way) == 0
    assert "was not left in time" not in worker.log.read_text()


def members(way: Way) -> int:
    """How many members the group of the first pipeline has."""
    return len(Operations(way.broker).members(way.group("offload")))


def health(worker: WorkerProcess) -> str:
    """Why the one pipeline of a worker does not run yet."""
    return str((worker.get("/health")[1] or {}).get("reasons"))


def held(consumer: Consumer) -> int:
    """How many partitions a consumer has been given."""
    consumer.poll(0.05)
    return len(consumer.assignment())


def partitions_of(worker: WorkerProcess) -> int:
    """How many partitions the one pipeline of a worker has been given."""
    status, pipelines = worker.get("/pipelines")
    return len(pipelines[0]["partitions"]) if status == 200 else 0


def complete(way: Way, records: dict[int, list[tuple[bytes | None, str]]]) -> bool:
    """Whether each record has come out of the first pipeline, in order."""
    return first_occurrences(digests(read_all(way.broker, way.orders, "read_committed"))) == records
