"""Guarantees of docs/worker.md and docs/broker-failures.md: Ctrl-C, deleted groups, changed topics, `Retry-After`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import IO

import pytest

from tests.faults.proxy import Error, FaultProxy, Hang, Ok
from tests.integration.limits import alter
from tests.integration.operations import Operations
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeTopic, MakeWay, Way
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from tests.s3_server import S3Server

STAMP = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
FLUSH = {"offset.flush.interval.ms": 100}


class AtATerminal(StartedWorker):
    """The command, alone in a group of processes, as a shell starts it; it logs when it stops what."""

    def command(self) -> list[str]:
        """What is run."""
        return [*super().command(), "--log-level", "DEBUG"]

    def _begin(self, log: IO[bytes], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(), stdout=log, stderr=log, env=environ, start_new_session=True)

    def interrupt(self) -> None:
        """What a terminal does at Ctrl-C: SIGINT to all processes of the group."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)


def numbered(numbers: range, stamp: int = STAMP) -> list[Sent]:
    """Small records of partition 0, whose keys are numbers."""
    return [(0, b"%d" % number, b"v", [], stamp) for number in numbers]


def numbers(broker: str, topic: str) -> list[int]:
    """The numbers in partition 0 of a topic."""
    return [int(record.key or b"-1") for record in read_all(broker, topic).get(0, [])]


def stamps(broker: str, topic: str) -> list[int]:
    """The timestamps in partition 0 of a topic."""
    return [record.timestamp for record in read_all(broker, topic).get(0, [])]


def on_s3(way: Way, server: S3Server, proxy: FaultProxy) -> Way:
    """The same way, with payloads on a server behind a proxy."""
    behind = replace(server, endpoint=proxy.endpoint)
    way.store = {"large.message.payload.store.class": "s3", **behind.config(f"{way.folder.name}/")}
    return way


@pytest.mark.s3
def test_ctrl_c_ends_the_worker(make_way: MakeWay, versitygw: S3Server, proxy: FaultProxy) -> None:
    """Ctrl-C ends the command with status 0 once all that was read is delivered, in order, and committed."""
    way = on_s3(make_way(partitions=1), versitygw, proxy)
    way.session_ms = 60_000  # the group misses no member that does not leave
    sent: list[Sent] = [(0, b"%d" % n, os.urandom(THRESHOLD + 1) if n % 2 else b"small", [], STAMP) for n in range(12)]
    keys = {"s3.retry.attempts": 1, "errors.retry.delay.max.ms": 300}
    with AtATerminal(way.folder, way.settings(), way.offload(**keys)) as worker:
        worker.wait_ready()
        proxy.switch(Hang())
        send(way.broker, way.raw, sent)
        until(lambda: worker.get("/pipelines")[1][0]["records_in"] == len(sent), "all have been read")
        until(lambda: proxy.counts.hung > 0, "they wait for the store")
        worker.interrupt()
        until(lambda: "Pipeline: offload]: Stopping" in worker.log.read_text(), "the pipeline is told to stop")
        proxy.switch(Error(503))
        until(lambda: proxy.counts.errors >= 5, "it reads no more, and still asks the store for what it has read")
        proxy.switch(Ok())
        assert worker.wait() == 0
        log = worker.log.read_text()
    assert numbers(way.broker, way.orders) == list(range(len(sent)))
    assert committed(way.broker, way.group("offload"), way.raw)[0] == len(sent)
    assert Operations(way.broker).members(way.group("offload")) == []
    assert "Traceback" not in log


@pytest.mark.s3
def test_retry_after_is_not_read(make_way: MakeWay, versitygw: S3Server, proxy: FaultProxy) -> None:
    """A store that says `Retry-After: 3600`, with 503 or 429, is asked again after the worker's own pauses."""
    way = on_s3(make_way(partitions=1), versitygw, proxy)
    keys = {"s3.retry.attempts": 2, "errors.retry.delay.max.ms": 100}
    with WorkerProcess(way.folder, way.settings(), way.offload(**keys)) as worker:
        worker.wait_ready()
        for number, status in enumerate((503, 429)):
            # Not `SlowDown`, for which botocore itself waits up to a second.
            proxy.switch(Error(status, code="InternalError", retry_after_s=3_600))
            refused = proxy.counts.errors
            send(way.broker, way.raw, [(0, b"%d" % number, os.urandom(THRESHOLD + 1), [], STAMP)])
            # Two attempts in each call, so both the pause in a call and that between two calls have passed.
            until(lambda: proxy.counts.errors >= refused + 4, "it is asked again and again")  # noqa: B023  # at once
            assert worker.get("/health")[1]["status"] == "degraded"
            proxy.switch(Ok())
            until(lambda: end_offsets(way.broker, way.orders) == {0: number + 1}, "it goes on")  # noqa: B023
        assert worker.terminate() == 0


def test_group_deleted(broker: str, make_way: MakeWay, make_topic: MakeTopic) -> None:
    """A group is deleted while its worker is cut off: it reads on by `consumer.auto.offset.reset`.

    A worker that comes back does not commit its own offsets in place of those that were deleted. While the group has a
    member, brokers refuse to delete it. A start after that asks whether all is to be read again.
    """
    way = make_way(partitions=1)
    way.session_ms = 60_000  # only the operator takes a member out of a group
    copies = make_topic(1, **{"retention.ms": -1})
    operations = Operations(broker)
    keys = {"offset.flush.interval.ms": 600_000}
    pipelines = {**way.offload(**keys), "latest": way.offload(**keys)["offload"]}
    groups = [way.group("offload"), way.group("latest")]
    pipelines["latest"] |= {"output.topic": copies, "group.id": groups[1], "consumer.auto.offset.reset": "latest"}
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:

        def ends() -> list[int]:
            """Where the pipelines have read up to, and committed."""
            return [page["partitions"][0]["committed"] for page in worker.get("/pipelines")[1] if page["partitions"]]

        def arrived(first: list[int], second: list[int]) -> bool:
            return [numbers(broker, topic) for topic in (way.orders, copies)] == [first, second]

        worker.wait_ready()
        until(lambda: ends()[1:] == [0], "the second begins at the end")
        send(broker, way.raw, numbered(range(1)))
        until(lambda: ends() == [1, 1], "the first record is committed, and no other for ten minutes")
        send(broker, way.raw, numbered(range(1, 10)))
        until(lambda: arrived([*range(10)], [*range(10)]), "all have come")
        assert [operations.delete_group(group) for group in groups] == ["NonEmptyGroup"] * 2
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
        for group in groups:
            operations.remove_members(group)
        assert [operations.delete_group(group) for group in groups] == ["NoError"] * 2
        os.kill(worker.process.pid, signal.SIGCONT)
        until(lambda: arrived([*range(10), *range(10)], [*range(10)]), "one reads all again, the other nothing")
        until(lambda: [len(operations.members(group)) for group in groups] == [1, 1], "both are back")
        until(lambda: ends()[1:] == [10], "the second begins at the end again")
        send(broker, way.raw, numbered(range(10, 12)))
        until(lambda: arrived([*range(10), *range(12)], [*range(12)]), "both go on")
        assert worker.terminate() == 0
        assert [committed(broker, group, way.raw)[0] for group in groups] == [12, 12]
        assert [operations.delete_group(group) for group in groups] == ["NoError"] * 2
        worker.start()
        assert worker.wait() == 2
        assert "[pipeline.offload] consumer.auto.offset.reset: is not set; group" in worker.log.read_text()


def test_sink_deleted_and_created_by_the_worker(broker: str, make_way: MakeWay) -> None:
    """With `topic.creation.enable` a sink that is deleted is created again, and the records behind that go there."""
    way = make_way(partitions=2)
    operations = Operations(broker)
    former = operations.topic(way.orders)
    assert former is not None
    keys = {
        "topic.creation.enable": True,
        "producer.request.timeout.ms": 1_000,
        "producer.delivery.timeout.ms": 1_500,
        "errors.retry.delay.max.ms": 500,
        **FLUSH,
    }
    with WorkerProcess(way.folder, way.settings(), way.offload(**keys)) as worker:
        worker.wait_ready()
        send(broker, way.raw, numbered(range(10)))
        until(lambda: committed(broker, way.group("offload"), way.raw)[0] == 10, "ten are delivered")

        def gone() -> bool:
            now = operations.topic(way.orders)
            return now is None or now.id != former.id

        operations.delete_topic(way.orders)
        until(gone, "the former one is gone")
        send(broker, way.raw, numbered(range(10, 20)))
        until(lambda: committed(broker, way.group("offload"), way.raw)[0] == 20, "all are delivered")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again")
        assert worker.terminate() == 0
    created = operations.topic(way.orders)
    assert created is not None
    assert created.partitions == 2, "as many as the source"
    assert created.id != former.id
    assert list(dict.fromkeys(numbers(broker, way.orders))) == list(range(10, 20))


@pytest.mark.needs_kafka((3, 7), "topics bound how far a timestamp may be ahead, or behind, from 3.6 on (KIP-937)")
def test_sink_with_log_append_time(broker: str, make_way: MakeWay) -> None:
    """A sink that gets `LogAppendTime` takes records of any timestamp, and gives them the broker's own."""
    way = make_way(partitions=1)
    appended = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    alter(broker, way.raw, {"message.timestamp.after.max.ms": str(9 * YEAR_MS), "retention.ms": "-1"})
    began_ms = int(time.time() * 1000)
    with WorkerProcess(way.folder, way.settings(), way.offload(**FLUSH)) as worker:
        worker.wait_ready()
        send(broker, way.raw, numbered(range(2)))
        until(lambda: stamps(broker, way.orders) == [STAMP] * 2, "a sink with CreateTime keeps the records' own")
        alter(broker, way.orders, appended)
        send(broker, way.raw, [*numbered(range(2, 3)), *numbered(range(3, 4), began_ms + YEAR_MS)])
        until(lambda: numbers(broker, way.orders) == list(range(4)), "one that is a year ahead passes too")
        (page,) = worker.get("/pipelines")[1]
        assert (page["state"], page["restarts"], page["last_error"]) == ("RUNNING", 0, None)
        assert worker.terminate() == 0
    ended_ms = int(time.time() * 1000)
    found = stamps(broker, way.orders)
    assert found[:2] == [STAMP] * 2, "records that were there keep theirs"
    assert all(began_ms <= stamp <= ended_ms for stamp in found[2:])
