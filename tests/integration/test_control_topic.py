"""`control.topic`: what is asked of one worker reaches all workers of the group, and outlives them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer

from app.cluster.control_topic import check_control_topic
from app.config.parsing import parse
from app.config.settings import Settings
from app.kafka.clients import ClusterError
from app.kafka.topic_log import TopicLog
from app.pipeline.control_topic import ControlTopic
from app.pipeline.steering import GroupSteering
from tests.integration.limits import alter
from tests.integration.operations import Operations
from tests.integration.rest import Answer, ask
from tests.integration.topics import end_offsets, read_all, send
from tests.integration.way import MakeTopic, MakeWay, Way
from tests.integration.worker_process import WorkerProcess, until
from transforms.control_record import Restart
from transforms.errors import ConfigurationError

TOKEN = "token-of-who-may-steer-1"
STAMP = 1_700_000_000_000


class Group:
    """Workers of one group, with the pipeline `offload`, and the topic that steers them."""

    def __init__(self, way: Way, topic: str, stack: ExitStack) -> None:
        self.way = way
        self.topic = topic
        self._stack = stack

    def worker(self) -> WorkerProcess:
        """A worker that has started; it is not waited for."""
        control = {"web.control.enable": True, "web.control.token": TOKEN, "control.topic": self.topic}
        worker = WorkerProcess(self.way.folder, {**self.way.settings(), **control}, self.way.offload())
        return self._stack.enter_context(worker)

    def write(self, key: bytes | None, value: bytes | None) -> None:
        """Writes a record to the topic, as anybody may who has the right."""
        send(self.way.broker, self.topic, [(0, key, value, [], STAMP)])

    @property
    def key(self) -> bytes:
        """The key of the state of the pipeline."""
        return f"target-state-{self.way.group('offload')}".encode()

    def moved(self) -> int:
        """How many records have come through the pipeline."""
        return sum(end_offsets(self.way.broker, self.way.orders).values())

    def feed(self, *partitions: int) -> None:
        """Sends a record to each of these partitions."""
        send(self.way.broker, self.way.raw, [(number, b"k", b"v", [], STAMP) for number in partitions])


@pytest.fixture
def group(make_way: MakeWay, make_topic: MakeTopic) -> Iterator[Group]:
    """The group of a test, whose topic is there."""
    with ExitStack() as stack:
        yield Group(make_way(2), make_topic(1, **{"cleanup.policy": "compact"}), stack)


def change(worker: WorkerProcess, method: str, path: str) -> Answer:
    """One request of somebody who has the token."""
    return ask(worker.port, method, f"/connectors/offload/{path}", headers={"Authorization": f"Bearer {TOKEN}"})


def state(worker: WorkerProcess) -> str:
    """The state of the pipeline; empty while the worker does not answer."""
    status, pages = worker.get("/pipelines")
    return str(pages[0]["state"]) if status == 200 else ""


def until_state(wanted: str, *workers: WorkerProcess) -> None:
    """Waits until the pipeline has a state in all of these workers."""
    for worker in workers:
        until(lambda: state(worker) == wanted, f"the pipeline is {wanted}")  # noqa: B023  # it is called at once


def begun(worker: WorkerProcess) -> int:
    """How often the pipeline has begun anew because somebody has asked for it."""
    return worker.log.read_text().count("pipeline offload is asked to restart")


def settings_of(group: Group, **more: object) -> Settings:
    """The settings of a worker of the group."""
    return parse({**group.way.settings(), "control.topic": group.topic, "pipeline": group.way.offload(), **more}, {})


def test_all_workers_obey_and_remember(group: Group) -> None:
    """Requests reach both workers; a pause outlives `kill -9` of both, and no restart is repeated."""
    first, second = group.worker(), group.worker()
    until_state("RUNNING", first, second)
    answer = change(first, "PUT", "pause")
    assert (answer.status, answer.document, "Warning" in answer.headers) == (202, None, False)
    until_state("PAUSED", first, second)
    assert change(second, "POST", "restart").status == 204
    until(lambda: begun(first) == begun(second) == 1, "both begin anew")
    until_state("PAUSED", first, second)
    for worker in (first, second):
        worker.kill()
    group.feed(0, 1)
    third = group.worker()
    until_state("PAUSED", third)
    assert (third.get("/health")[0], group.moved(), begun(third)) == (200, 0, 0)
    second.start()
    until_state("PAUSED", second)
    assert change(third, "PUT", "resume").status == 202
    until(lambda: group.moved() == 2, "the records have come through")
    assert change(second, "PUT", "stop").status == 204
    until_state("STOPPED", second, third)
    assert change(third, "POST", "restart?includeTasks=true").document["tasks"] == []
    assert change(third, "PUT", "resume").status == 202
    until_state("RUNNING", second, third)
    found = read_all(group.way.broker, group.topic)[0]
    states = [json.loads(each.value or b"")["state"] for each in found if each.key == group.key]
    assert states == ["PAUSED", "STARTED", "STOPPED", "STARTED"]
    assert third.terminate() == 0


@pytest.mark.parametrize(
    ("partitions", "policy", "told"),
    [
        (0, "", ""),  # it is made
        (1, "delete", "has cleanup.policy=delete, allowed is compact"),
        (1, "compact,delete", "has cleanup.policy=compact,delete, allowed is compact"),
        (2, "compact", "has 2 partitions, allowed is 1"),
    ],
)
def test_a_topic_that_would_forget_is_refused(
    partitions: int, policy: str, told: str, group: Group, make_topic: MakeTopic
) -> None:
    """Records that are deleted by age would end a pause; those of several partitions have no order.

    Where the topic is missing it gets one partition, and is compacted.
    """
    if partitions:
        group.topic = make_topic(partitions, **{"cleanup.policy": policy})
        with pytest.raises(ConfigurationError, match=told) as refused:
            asyncio.run(check_control_topic(settings_of(group)))
        assert refused.value.key == "control.topic"
        return
    operations = Operations(group.way.broker)
    operations.remove_topic(group.topic)
    for _ in range(2):
        asyncio.run(check_control_topic(settings_of(group)))
    made = operations.topic(group.topic)
    assert made is not None
    assert (made.partitions, made.cleanup_policy) == (1, "compact")


def test_records_of_others_and_broken_ones(group: Group) -> None:
    """They are skipped, with one warning for each key of this group; the last good one holds."""
    group.write(group.key, b'{"state": "PAUSED"}')
    group.write(b"restart-connector-" + group.way.group("offload").encode(), b"{}")
    broken = (b"no JSON", b'{"state": "FASTER"}', b"[" * 3_000, b"x" * 900_000, b'{"state": 1e999}')
    for value in broken:
        group.write(group.key, value)
    for key in (b"\xff", b"target-state-other", b"session-key", b"k" * 100_000):
        group.write(key, b'{"state": "STOPPED"}')
    worker = group.worker()
    until_state("PAUSED", worker)
    for value in broken:
        group.write(group.key, value)
    assert change(worker, "PUT", "resume").status == 202
    until_state("RUNNING", worker)
    group.write(group.key, None)
    group.write(group.key, b'{"state": "STOPPED"}')
    until_state("STOPPED", worker)
    group.write(group.key, None)
    until_state("RUNNING", worker)
    log = worker.log.read_text()
    assert log.count("has a record that is skipped") == 1
    assert "malformed record: value is" in log
    assert begun(worker) == 0


def test_a_request_that_kafka_does_not_take(group: Group) -> None:
    """500, with the reason; nothing changes, and the next one is taken."""
    worker = group.worker()
    until_state("RUNNING", worker)
    compact = {"cleanup.policy": "compact"}
    alter(group.way.broker, group.topic, {**compact, "max.message.bytes": "10"})
    refused = change(worker, "PUT", "pause")
    assert refused.status == 500
    assert refused.refusal[1].startswith(f"control.topic {group.topic}: the request was not written: topic ")
    assert state(worker) == "RUNNING"
    alter(group.way.broker, group.topic, compact)
    assert change(worker, "PUT", "pause").status == 202
    until_state("PAUSED", worker)


class Steered:
    """A pipeline that notes what is asked of it."""

    def __init__(self, group_id: str) -> None:
        self.settings = SimpleNamespace(group_id=group_id)
        self.status = "RUNNING"
        self.asked: list[str] = []
        self.steered = asyncio.Event()

    def steer(self, target: str) -> None:
        """Notes the state."""
        self.asked.append(target)
        self.steered.set()

    def request_restart(self) -> None:
        """Notes the restart."""
        self.asked.append("RESTART")


@asynccontextmanager
async def steered(group: Group) -> AsyncIterator[tuple[Steered, GroupSteering, ControlTopic]]:
    """A worker's side of the topic, with a pipeline, in this process."""
    settings = settings_of(group)
    topic = ControlTopic(group.topic, settings)
    await topic.read()
    pipeline = Steered(settings.pipelines[0].group_id)
    steering = GroupSteering(topic, [cast(Any, pipeline)])
    await steering.on_start()
    try:
        yield pipeline, steering, topic
    finally:
        await steering.on_stop()


async def make_again(group: Group) -> None:
    """Deletes the topic, and makes it."""
    operations = Operations(group.way.broker)
    await asyncio.to_thread(operations.remove_topic, group.topic)
    await asyncio.to_thread(operations.create_topic, group.topic, {"cleanup.policy": "compact"})


async def test_requests_after_the_topic_was_made_again(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Each is obeyed before it is answered, though the topic begins at offset 0 again; the log says what happened."""
    async with steered(group) as (pipeline, steering, _), asyncio.timeout(60):
        for state in ("PAUSED", "STARTED", "PAUSED"):
            await steering.steer(cast(Any, pipeline), cast(Any, state))
        await make_again(group)
        await steering.request_restart(cast(Any, pipeline), only_failed=False)
        assert pipeline.asked == ["PAUSED", "STARTED", "PAUSED", "RESTART"]
        await steering.steer(cast(Any, pipeline), "STOPPED")
        assert pipeline.asked[4:] == ["STOPPED"]
    assert f"topic {group.topic} was recreated or cut: it has no record at offset 3" in caplog.text


async def test_a_topic_that_was_made_again_and_has_grown(group: Group) -> None:
    """Its id tells, though it has a record at the position: what stands before that is obeyed too, once."""
    async with steered(group) as (pipeline, steering, topic), asyncio.timeout(90):
        for state in ("PAUSED", "STARTED"):
            await steering.steer(cast(Any, pipeline), cast(Any, state))
        await steering.on_stop()
        await make_again(group)
        await asyncio.to_thread(group.write, group.key, b'{"state": "PAUSED"}')
        for number in range(3):
            await asyncio.to_thread(group.write, b"of another group", b"%d" % number)
        pipeline.asked.clear()
        again = GroupSteering(topic, [cast(Any, pipeline)])
        pipeline.asked.clear()
        await again.on_start()
        assert pipeline.asked == ["PAUSED"]
        assert topic._log.position == 4

        await make_again(group)  # while it is followed
        await asyncio.to_thread(group.write, group.key, b'{"state": "STOPPED"}')
        for number in range(5):
            await asyncio.to_thread(group.write, b"of another group", b"%d" % number)
        while pipeline.asked[-1] != "STOPPED":
            pipeline.steered.clear()
            await pipeline.steered.wait()
        await again.on_stop()


async def test_a_topic_that_was_cut(group: Group) -> None:
    """What it says last is obeyed once; restarts that were obeyed are not obeyed again, but one that is new is."""
    ask: Any
    async with steered(group) as (pipeline, steering, topic), asyncio.timeout(60):
        ask = cast(Any, pipeline)
        for state in ("PAUSED", "STARTED", "STOPPED", "STARTED"):
            await steering.steer(ask, cast(Any, state))
        await steering.request_restart(ask, only_failed=False)
        await steering.on_stop()
        assert pipeline.asked.count("RESTART") == 1

        async def anew() -> list[str]:
            pipeline.asked.clear()
            topic._log.position = 1_000  # the log was longer
            again = GroupSteering(topic, [ask])
            pipeline.asked.clear()  # the state at the beginning
            await again.on_start()
            await again.on_stop()
            return pipeline.asked

        assert await anew() == ["STARTED"]
        await topic.write(Restart(pipeline.settings.group_id))
        assert await anew() == ["STARTED", "RESTART"]
        assert await anew() == ["STARTED"]


async def test_records_that_would_fill_the_memory(group: Group) -> None:
    """A batch of a kilobyte with megabytes in it is not opened, and the log goes on behind it."""
    skipped: list[str] = []
    taken: list[bytes | None] = []
    async with AIOKafkaProducer(
        bootstrap_servers=group.way.broker, compression_type="gzip", max_request_size=10_000_000
    ) as producer:
        await producer.send_and_wait(group.topic, b"x" * 5_000_000, key=b"large")
    log = TopicLog(settings_of(group).client, group.topic, lambda record, _: taken.append(record.key), skipped.append)
    await log.append(b"a", b"1")
    await log.read(30)
    assert taken == [b"a"]
    assert len(skipped) == 1


async def test_a_topic_that_is_gone_is_told(group: Group) -> None:
    """While it cannot be read, who asks for the health of the worker learns it, until it is made again."""
    async with steered(group) as (pipeline, steering, _), asyncio.timeout(90):
        assert steering.trouble is None
        await asyncio.to_thread(Operations(group.way.broker).delete_topic, group.topic)
        told = f"control.topic {group.topic} cannot be read, so no request arrives: topic {group.topic} does not exist"
        await asyncio.to_thread(until, lambda: str(steering.trouble).startswith(told), "the topic is missed")
        await make_again(group)
        await steering.request_restart(cast(Any, pipeline), only_failed=False)
        assert steering.trouble is None


async def test_a_log_that_takes_too_long(group: Group) -> None:
    """The error says which topic, and after how long."""
    log = TopicLog(settings_of(group).client, group.topic, lambda *_: None, lambda _: None)
    with pytest.raises(ClusterError, match=f"topic {group.topic} was not read to its end within 0 s"):
        await log.read(0.0)
