"""The worker while its topics are deleted, created anew, or given more partitions: nothing is lost in silence."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete

from tests.integration.limits import alter
from tests.integration.operations import Operations
from tests.integration.topics import Sent, committed, end_offsets, read_all, send, write_raw
from tests.integration.way import MakeTopic, reason_of
from tests.integration.worker_process import WorkerProcess, until
from transforms.record import Record


def records(numbers: range, partition: int = 0) -> list[Sent]:
    """Records whose values are numbers, one each."""
    return [(partition, b"k", b"%d" % number, (), 1_700_000_000_000) for number in numbers]


class Topics:
    """The topics of two pipelines, from raw to orders and on to copies, and what an operator does to them.

    The worker looks at them ten times as often as it would.
    """

    def __init__(self, broker: str, make_topic: MakeTopic, folder: Path, session_ms: int) -> None:
        self.broker = broker
        self.raw, self.orders, self.copies = (make_topic(2, **{"retention.ms": -1}) for _ in range(3))
        self.group = f"{self.raw}-g"
        self._folder = folder
        self._session_ms = session_ms

    @contextlib.contextmanager
    def worker(self, **more: object) -> Iterator[WorkerProcess]:
        """A worker with both pipelines, the first with more keys."""
        settings = {
            "bootstrap.servers": self.broker,
            "consumer.session.timeout.ms": self._session_ms,
            "consumer.heartbeat.interval.ms": 300,
        }
        ways = {"first": (self.raw, self.orders), "second": (self.orders, self.copies)}
        pipelines = {
            name: {
                "topics": [source],
                "output.topic": sink,
                "transforms": ["offload"],
                "group.id": f"{source}-g",
                "offset.flush.interval.ms": 100,
                "errors.retry.delay.max.ms": 500,
                "large.message.payload.store.class": "memory",
                **(more if name == "first" else {}),
            }
            for name, (source, sink) in ways.items()
        }
        worker = WorkerProcess(self._folder, settings, pipelines)
        worker.constants = {"app.pipeline.topic_watcher:_LOOK_S": 0.25}
        with worker:
            until(lambda: worker.get("/health/live")[0] == 200, "its pages are there")
            yield worker

    def administer(self, what: Callable[[AIOKafkaAdminClient], Awaitable[object]]) -> None:
        """Runs one command of an operator."""

        async def run() -> None:
            client = AIOKafkaAdminClient(bootstrap_servers=self.broker)
            await client.start()
            try:
                await what(client)
            finally:
                await client.close()

        asyncio.run(run())

    def extend(self, topic: str, partitions: int) -> None:
        """Gives a topic so many partitions."""
        self.administer(lambda client: client.create_partitions({topic: NewPartitions(partitions)}))

    def committed(self) -> dict[int, int]:
        """What the first pipeline has committed."""
        return committed(self.broker, self.group, self.raw)

    def values(self, topic: str) -> dict[int, list[int]]:
        """The numbers in a topic, by partition."""
        found = read_all(self.broker, topic)
        return {number: [int(each.value or b"-1") for each in found[number]] for number in sorted(found)}

    def count(self, topic: str) -> int:
        """How many records a topic has."""
        return sum(end_offsets(self.broker, topic).values())


@pytest.fixture
def topics(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Topics:
    """Topics of one test."""
    return Topics(broker, make_topic, tmp_path, least_session_ms)


def state(worker: WorkerProcess, pipeline: int = 0) -> dict[str, Any]:
    """What /pipelines says of a pipeline."""
    page: dict[str, Any] = worker.get("/pipelines")[1][pipeline]
    return page


@pytest.mark.matrix
def test_source_deleted_and_created_anew(topics: Topics) -> None:
    """A pipeline whose source is gone waits and says so, the other goes on; a new topic is read from its beginning."""
    operations = Operations(topics.broker)
    with topics.worker() as worker:
        worker.wait_ready()
        send(topics.broker, topics.raw, records(range(30)))
        until(lambda: topics.count(topics.copies) == 30, "all have gone the whole way")
        until(lambda: topics.committed()[0] == 30, "the offset is committed")
        operations.remove_topic(topics.raw)

        def told() -> str:
            reasons: dict[str, str] = worker.get("/health")[1]["reasons"]
            return reasons.get("first", "")

        until(lambda: f"topic {topics.raw} does not exist; create it" in told(), "it is told what is missing")
        assert "(since " in told()
        assert "did you mean" not in told(), "its name was right"
        send(topics.broker, topics.orders, records(range(30, 40)))
        until(lambda: topics.count(topics.copies) == 40, "the other pipeline goes on")
        status, health = worker.get("/health")
        assert (status, health["status"], list(health["reasons"])) == (503, "restarting", ["first"])
        operations.create_topic(topics.raw, {"retention.ms": -1}, partitions=2)
        send(topics.broker, topics.raw, records(range(40, 60)))
        until(lambda: topics.count(topics.copies) == 60, "the new topic is read from its beginning")
        until(lambda: worker.get("/health")[1] == {"status": "ok", "live": True, "ready": True, "reasons": {}}, "ok")
        until(lambda: topics.committed()[0] == 20, "its own offset is committed")
        assert worker.terminate() == 0
    assert topics.values(topics.copies) == {0: list(range(60))}


def test_committed_offsets_out_of_range(topics: Topics) -> None:
    """Beyond the end of the log, or before its first record: all that is there is read, and what is not is told."""
    for partition in (0, 1):
        send(topics.broker, topics.raw, records(range(30), partition))
    places = [TopicPartition(topics.raw, number) for number in (0, 1)]
    topics.administer(lambda client: client.delete_records({places[1]: RecordsToDelete(before_offset=20)}))

    async def commit() -> None:
        async with AIOKafkaConsumer(
            bootstrap_servers=topics.broker,
            group_id=topics.group,
            enable_auto_commit=False,  # it would commit its own position when it ends
        ) as consumer:
            consumer.assign(places)
            await consumer.commit({places[0]: 1_000, places[1]: 8})

    asyncio.run(commit())
    with topics.worker(**{"consumer.auto.offset.reset": "latest"}) as worker:
        until(lambda: topics.count(topics.orders) == 40, "all that is there is read")
        assert topics.values(topics.orders) == {0: list(range(30)), 1: list(range(20, 30))}
        until(lambda: topics.committed() == {0: 30, 1: 30}, "it is committed")
        assert state(worker)["expired_records"] == 12
        log = worker.log.read_text()
        assert worker.terminate() == 0
    assert "partition 0: offset 1,000 is committed, and there are records from 0 to 30: the topic was created" in log
    assert "from 20 to 30: 12 records were deleted before they were read" in log


@pytest.mark.matrix
@pytest.mark.parametrize("member", [{}, {"consumer.group.instance.id": "pod-0"}], ids=["dynamic", "static"])
def test_partitions_added(topics: Topics, member: Mapping[str, str]) -> None:
    """New partitions of source and sink are used within seconds; `latest` misses none of theirs, and skips old ones."""
    for partition in (0, 1):
        send(topics.broker, topics.raw, records(range(5), partition))
    with topics.worker(**{"consumer.auto.offset.reset": "latest", **member}) as worker:
        worker.wait_ready()
        until(lambda: topics.committed() == {0: 5, 1: 5}, "it begins at the end")
        topics.extend(topics.raw, 4)
        for partition in (2, 3):
            send(topics.broker, topics.raw, records(range(10), partition))
        until(lambda: topics.count(topics.orders) == 20, "the records of the new partitions have come")
        assert [len(numbers) for numbers in topics.values(topics.orders).values()] == [20]  # the key decides
        topics.extend(topics.orders, 4)
        # One pipeline writes the topic, and the other reads it.
        seen = f"topic {topics.orders} has 4 partitions, and had 2"
        until(lambda: worker.log.read_text().count(seen) == 2, "the new ones of the sink are seen by both")
        until(lambda: worker.get("/health")[0] == 200, "both pipelines run again")
        send(topics.broker, topics.raw, records(range(20, 30), 3))
        until(lambda: topics.values(topics.orders).get(3) == list(range(20, 30)), "partition to partition again")
        assert worker.terminate() == 0


@pytest.mark.needs_kafka((3, 7), "topics bound how far a timestamp may be ahead, or behind, from 3.6 on (KIP-937)")
@pytest.mark.parametrize("tolerance", ["all", "none"])
def test_timestamp_that_the_sink_refuses(topics: Topics, make_topic: MakeTopic, tolerance: str) -> None:
    """It is an error of the one record, though the broker refuses the batch: a dead letter, or the pipeline stops.

    The next one is known by its timestamp; and so is a letter that its topic would refuse, whatever it is for.
    """
    dead = make_topic(1, **{"retention.ms": -1})
    year_ms = 365 * 86_400_000
    now_ms = int(time.time() * 1000)
    alter(topics.broker, topics.raw, {"message.timestamp.after.max.ms": str(9 * year_ms), "retention.ms": "-1"})
    alter(topics.broker, topics.orders, {"message.timestamp.before.max.ms": str(9 * year_ms), "retention.ms": "-1"})
    future, past = now_ms + year_ms, now_ms - 10 * year_ms
    stamps = [now_ms, now_ms, future, now_ms, past, now_ms, now_ms]
    send(topics.broker, topics.raw, [(0, b"k", b"%d" % n, (), stamp) for n, stamp in enumerate(stamps)])
    keys = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": dead} if tolerance == "all" else {}
    with topics.worker(**keys) as worker:
        if tolerance == "none":
            until(lambda: state(worker)["state"] == "FAILED", "the pipeline has stopped")
            found = state(worker)["last_error"]
            assert found.startswith(
                f"topic {topics.raw}, partition 0, offset 2: topic {topics.orders} refuses the record"
            )
            assert "message.timestamp.after.max.ms" in found
            assert topics.committed()[0] == 2
            assert topics.values(topics.orders) == {0: [0, 1]}
            assert worker.terminate() == 1
            return
        until(lambda: topics.committed()[0] == 7, "all is committed")
        asyncio.run(write_raw(topics.broker, topics.raw, [Record(b"k", b"7", (("\udcff", b""),), future)]))
        until(lambda: topics.committed()[0] == 8, "that one is committed too")
        assert state(worker)["restarts"] == 1
        assert worker.terminate() == 0
    assert topics.values(topics.orders) == {0: [0, 1, 3, 5, 6]}
    letters = read_all(topics.broker, dead)[0]
    assert [each.value for each in letters[:2]] == [b"2", b"4"]
    assert len(letters) == 3
    assert "INVALID_TIMESTAMP" in reason_of(letters[0])
    assert all(abs(each.timestamp - now_ms) < 600_000 for each in letters)


def test_lag_of_transactions(topics: Topics) -> None:
    """There is no lag where only the marks of transactions are left, nor of records that are not committed yet.

    Neither on the pages nor for others, which compare what the group has committed with the end of the log: what is no
    record is committed too. So retention can take nothing that would count as not read.
    """

    async def write() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=topics.broker, transactional_id=topics.raw)
        await producer.start()
        for number in range(3):
            async with producer.transaction():
                await producer.send_and_wait(topics.raw, b"%d" % number, partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topics.raw, b"3", partition=0)
        return producer

    async def run(worker: WorkerProcess) -> None:
        producer = await write()
        try:
            await asyncio.to_thread(until, lambda: lag(worker) == 0, "there is no lag")
            await asyncio.to_thread(until, lambda: reached(isolation=1), "the marks are committed")
        finally:
            await producer.abort_transaction()
            await producer.stop()
        await asyncio.to_thread(until, lambda: lag(worker) == 0, "there is none of what was aborted")
        await asyncio.to_thread(until, reached, "what was aborted is committed")

    def reached(isolation: int = 0) -> bool:
        found = topics.committed()
        return found[0] == end_offsets(topics.broker, topics.raw, isolation=isolation)[0]

    def lag(worker: WorkerProcess) -> int | None:
        (partition,) = [each for each in state(worker)["partitions"] if each["partition"] == 0]
        found: int | None = partition["lag"]
        return found

    with topics.worker() as worker:
        worker.wait_ready()
        asyncio.run(run(worker))
        assert topics.values(topics.orders) == {0: [0, 1, 2]}
        labels = f'{{partition="0",pipeline="first",topic="{topics.raw}"}}'
        assert f"wideload_lag_records{labels} 0.0" in worker.text("/metrics")
        assert worker.terminate() == 0
