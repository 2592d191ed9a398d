"""Dead letters of every kind through the worker, shown and replayed by `wideload dlq`, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from app.cli import main
from app.cluster.enforced_limits import CommitLimits
from app.config.parsing import load
from app.deadletters.log import Commit, Filters, ReplayTakenOverError, open_log
from app.deadletters.record_writer import OpenWriter, RecordWriter, open_writer
from app.deadletters.replay import Replay
from app.kafka.clients import ClusterError
from app.kafka.sender import find_topic
from app.kafka.topics import Topic
from tests.forks import fork
from tests.integration.limits import alter
from tests.integration.topics import Found, Sent, committed, end_offsets, read_all, send, write_raw
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess, until
from transforms import record_format
from transforms.letter import MARK
from transforms.record import Header, Record, RecordLike
from transforms.reference import VALUE, Reference

STAMP = 1_700_000_000_123
FOREVER = {"retention.ms": "-1"}
BRIEF = {"retention.ms": "3600000", "segment.ms": "3600000"}  # less than brokers remember a commit
LARGE = os.urandom(1_500_000)
Guarantee = Literal["exactly_once", "at_least_once"]
MANY: list[Header] = [(f"h{number}", b"%d" % number) for number in range(10_000)]


def run(*arguments: object) -> tuple[int, str, str]:
    """Status and output of a command, in this process: a new one for each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


class Desk:
    """A source, its dead letters, and a pipeline that takes wrappers and nothing else; with a store or without."""

    def __init__(self, broker: str, make_topic: MakeTopic, folder: Path, *, store: bool) -> None:
        self.broker = broker
        self.folder = folder
        self.raw = make_topic(2, **FOREVER, **{"max.message.bytes": "3000000"})
        self.orders = make_topic(2, **FOREVER)
        self.dead = make_topic(2, **FOREVER, **{"max.message.bytes": "100000"})
        self.keys: dict[str, object] = {
            "topics": [self.raw],
            "output.topic": self.orders,
            "transforms": ["unwrap", "offload"] if store else ["unwrap"],
            "group.id": f"{self.raw}-group",
            "offset.flush.interval.ms": 100,
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": self.dead,
        }
        if store:
            self.keys |= {"large.message.payload.store.class": "filesystem", "filesystem.root": str(folder / "store")}
        folder.mkdir(exist_ok=True)
        self.config = str(WorkerProcess(folder, {"bootstrap.servers": broker}, {"p": self.keys}).config)

    def dlq(self, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
        """Lines of a command."""
        found, told, _ = run("dlq", *arguments, "-c", self.config)
        assert found == status, told
        return [json.loads(line) for line in told.splitlines()]

    def replay(self, *arguments: object, status: int = 0) -> dict[str, Any]:
        """What a replay says."""
        (summary,) = self.dlq("replay", *arguments, status=status)
        return summary


def tails(found: Sequence[Found], skip: int) -> list[tuple[Any, ...]]:
    """Records behind the first ones, without the header of the replay, which they must have."""
    assert all(record.headers[0][0] == "wideload.replays" for record in found[skip:])
    return [(r.partition, r.key, r.value, r.headers[1:], r.timestamp) for r in found[skip:]]


def bury(folder: Path, desks: Sequence[Desk]) -> None:
    """Runs one worker for all desks until it has read all their records."""
    broker = desks[0].broker
    ends = {desk.raw: end_offsets(broker, desk.raw) for desk in desks}
    pipelines = {f"p{number}": desk.keys for number, desk in enumerate(desks)}
    with WorkerProcess(folder, {"bootstrap.servers": broker}, pipelines) as worker:
        until(lambda: ends == {raw: committed(broker, f"{raw}-group", raw) for raw in ends}, "all are committed")
        for page in worker.get("/pipelines")[1]:
            assert page["failed_records"]["malformed-wrapper"] == page["dead_letters"]
        assert worker.terminate() == 0


ODD: list[Header] = [("x", b"1"), ("x", None), ("__connect.errors.topic", b"y"), (VALUE.flag, b"true")]
FIRST: list[Sent] = [(0, b"k", b"no wrapper", ODD, STAMP), (0, None, LARGE, [("own", b"1")], STAMP + 1)]
SECOND: list[Sent] = [
    (1, b"k2", b"file:///etc/passwd", [(VALUE.flag, b"true")], STAMP + 2),
    (1, b"many", b"no wrapper either", MANY, STAMP + 3),
    (1, b"large", LARGE, ODD, STAMP + 4),
    (1, b"last", b"x", [], STAMP + 5),
]


@pytest.mark.matrix
def test_dead_letters_are_shown_and_replayed(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Letters small and large, of whatever record, are listed, and come back exactly, in order, once.

    What is large is in the store, or in chunks where the pipeline has no store.
    """
    forms = {"store": True, "chunks": False}
    desks = {form: Desk(broker, make_topic, tmp_path / form, store=store) for form, store in forms.items()}
    for desk in desks.values():
        send(broker, desk.raw, [*FIRST, *SECOND])
    bury(tmp_path, list(desks.values()))
    for large, desk in desks.items():
        check_shown_and_replayed(desk, large)
    bury(tmp_path, list(desks.values()))
    for desk in desks.values():
        check_replayed_again(desk)


def check_shown_and_replayed(desk: Desk, large: str) -> None:
    """The letters of FIRST and SECOND, the first time."""
    before = end_offsets(desk.broker, desk.dead)
    shown = desk.dlq("list")
    assert [(line["topic"], line["original_partition"], line["original_offset"]) for line in shown] == [
        *((desk.raw, 0, offset) for offset in range(2)),
        *((desk.raw, 1, offset) for offset in range(4)),
    ]
    assert [line["form"] for line in shown] == ["whole", large, "whole", large, large, "whole"]
    assert (shown[0]["key"], shown[0]["timestamp"], shown[1]["size"], shown[1]["replays"]) == ("k", STAMP, 1_500_000, 0)
    assert {line["error"] for line in shown} == {"transforms.errors.MalformedWrapperError"}
    assert [line["key"] for line in desk.dlq("list", "--partition", 1, "--limit", 2)] == ["k2", "many"]
    assert desk.dlq("list", "--error", "ChunkError") == desk.dlq("list", "--since", "1h") == []

    planned = desk.replay("--error", "MalformedWrapperError")
    assert (planned["dry_run"], planned["would_replay"], planned["errors"]) == (True, 6, {"MalformedWrapperError": 6})
    assert end_offsets(desk.broker, desk.raw) == {0: 2, 1: 4}
    one = desk.replay("--partition", 1, "--from-offset", shown[3]["offset"], "--to-offset", shown[3]["offset"], "--yes")
    assert one["replayed"] == 1
    rest = desk.replay("--yes")
    assert (rest["replayed"], rest["skipped"]) == (5, {"replayed before": 1})
    assert desk.replay("--yes")["replayed"] == 0
    found = read_all(desk.broker, desk.raw)
    expected = [(p, key, value, tuple(headers), stamp) for p, key, value, headers, stamp in [*FIRST, *SECOND]]
    assert tails(found[0], 2) == expected[:2]
    # The one that was asked for went first, the others in their order.
    assert tails(found[1], 4) == [expected[3], expected[2], *expected[4:]]
    assert end_offsets(desk.broker, desk.dead) == before


def check_replayed_again(desk: Desk) -> None:
    """The same letters, when the worker has refused what was replayed."""
    again = [line for line in desk.dlq("list") if line["replays"]]
    assert [line["replays"] for line in again] == [1] * 6
    left = desk.replay("--max-replays", 1, "--yes")
    assert (left["replayed"], sum(left["skipped"].values())) == (0, 6)
    told = run("dlq", "replay", "--max-replays", 1, "-c", desk.config)[2]
    assert told.startswith("wideload: nothing would be replayed: all 6 records were skipped: replayed 1 times already")
    to = desk.replay("--max-replays", 2, "--to", desk.orders, "--partition", 0, "--limit", 1, "--yes")
    assert (to["replayed"], to["targets"]) == (1, [{"topic": desk.orders, "partition": 0, "records": 1}])
    (record,) = read_all(desk.broker, desk.orders)[0]
    assert (record.key, record.headers) == (b"k", (("wideload.replays", b"2"), *ODD))


def test_replay_tells_of_letters_that_cannot_be(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """A payload that is gone, a topic that is none of the pipeline's: each is said, and the others are replayed."""
    desk = Desk(broker, make_topic, tmp_path, store=True)
    send(broker, desk.raw, [(0, b"k", LARGE, [], STAMP), (1, b"a", b"x", [], STAMP), (1, b"b", b"x", [], STAMP)])
    bury(tmp_path, [desk])
    (payload,) = (path for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert payload.parent.name == desk.dead
    payload.unlink()
    prefix = "__connect.errors."
    foreign: list[Header] = [(prefix + "topic", b"payroll"), (prefix + "partition", b"0"), (prefix + "offset", b"1")]
    send(broker, desk.dead, [(0, b"forged", b"x", foreign, STAMP)])
    done = desk.replay("--yes", status=1)
    assert (done["replayed"], done["failed"]) == (2, 1)
    assert "there is no payload" in done["failures"][0]["reason"]
    assert done["skipped"] == {"of topic payroll, which this pipeline does not read (--to)": 1}
    assert "there is no payload" not in json.dumps(desk.dlq("list")), "what went wrong is told without the payload"


def letter(offset: int, topic: str, partition: int, error: str = "PayloadNotFoundError") -> Sent:
    """A letter as the worker writes it, in partition 0."""
    context = {"topic": topic, "partition": partition, "offset": offset, "exception.class.name": f"x.{error}"}
    headers: list[Header] = [("__connect.errors." + name, str(value).encode()) for name, value in context.items()]
    return (0, b"%d" % offset, b"v", headers, STAMP + offset)


def test_pipelines_of_one_dead_letter_topic(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """All their letters are listed; with a pipeline only its own, and only these are replayed."""
    desk = Desk(broker, make_topic, tmp_path, store=True)
    other = make_topic(1, **FOREVER)
    pipelines = {
        "a": desk.keys,
        "b": {**desk.keys, "topics": [other], "output.topic": f"{desk.orders}-b", "group.id": f"{other}-group"},
        "c": {**desk.keys, "output.topic": f"{desk.orders}-c", "group.id": f"{other}-group-c"},
    }
    desk.config = str(WorkerProcess(tmp_path, {"bootstrap.servers": broker}, pipelines).config)
    letters = [(letter(0, desk.raw, 0), b"a"), (letter(1, other, 0), b"b"), (letter(2, desk.raw, 0), b"before")]
    send(
        broker,
        desk.dead,
        [(*each[:3], [*each[3], ("__connect.errors.connector.name", name)], each[4]) for each, name in letters],
    )
    assert [line["pipeline"] for line in desk.dlq("list")] == ["a", "b", "before"]
    assert [line["pipeline"] for line in desk.dlq("list", "--pipeline", "a")] == ["a", "before"]
    assert [line["pipeline"] for line in desk.dlq("list", "--pipeline", "b")] == ["b"]
    for option in ("--group", "--limit"):
        status, _, err = run("dlq", "replay", option, "7", "-c", desk.config)
        several = "applies to one pipeline, but several share the dead letter queue; add --pipeline"
        assert (status, err) == (2, f"wideload: {option}: {several}\n")
    status, out, err = run("dlq", "replay", "-c", desk.config)
    summaries = [json.loads(line) for line in out.splitlines()]
    would = {each["pipeline"]: (each["would_replay"], each["skipped"]) for each in summaries}
    unknown = "of pipeline before, whose it is not known (--pipeline)"
    assert would == {"a": (1, {unknown: 1}), "b": (1, {}), "c": (0, {})}
    assert (status, err) == (0, "")
    done = desk.replay("--pipeline", "b", "--yes")
    assert (done["replayed"], done["targets"][0]["topic"]) == (1, other)
    assert done["skipped"] == {"of pipeline a (--pipeline)": 1, "of pipeline before (--pipeline)": 1}
    assert desk.replay("--pipeline", "b", "--yes")["skipped"]["replayed before"] == 1
    status, _, err = run("dlq", "replay", "--pipeline", "c", "--error", "PayloadNotFoundError", "--to-offset", 1,
                         "--partition", 0, "-c", desk.config)  # fmt: skip
    assert (status, err) == (
        1,
        (
            "wideload: nothing would be replayed: all 2 records were skipped: of pipeline a (--pipeline); of pipeline "
            "b (--pipeline)\n"
        ),
    )
    for replayed in (1, 0):
        status, out, err = run("dlq", "replay", "-c", desk.config, "--yes")
        counts = {each["pipeline"]: each["replayed"] for each in map(json.loads, out.splitlines())}
        assert (status, counts) == (1 - replayed, {"a": replayed, "b": 0, "c": 0})  # one letter is left, of nobody
    assert len(read_all(broker, other)[0]) == 1


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_replay_that_is_cut_short_goes_on(
    broker: str, make_topic: MakeTopic, tmp_path: Path, guarantee: Guarantee
) -> None:
    """What was written is committed, slice by slice; the next run repeats nothing, leaves nothing out, in order."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    errors = ("PayloadNotFoundError", "PayloadCorruptError")
    letters = [letter(n, desk.raw, 7 if n == 0 else n % 2, errors[n % 3 == 0]) for n in range(700)]
    send(broker, desk.dead, letters, 50_000)
    alter(broker, desk.raw, {**FOREVER, "max.message.bytes": "2000"})  # batches must be small, too
    group = f"{desk.keys['group.id']}-dlq-replay"

    async def gone() -> None:
        raise ClusterError("gone", retriable=True)

    async def cut_short() -> int:
        async with replaying(desk, Filters(error="payloadnotfounderror"), guarantee) as (replay, writers):
            with pytest.raises(ClusterError):
                await replay.run(interrupted(writers, gone))
            return replay.tally.replayed

    assert asyncio.run(cut_short()) == 200
    chosen = ("--processing-guarantee", guarantee)
    assert desk.replay("--error", "x.PayloadNotFoundError", *chosen, "--yes")["replayed"] == 466 - 200
    done = desk.replay("--yes", *chosen)
    assert (done["replayed"], done["skipped"]) == (234, {"replayed before": 466})
    assert desk.replay("--yes", *chosen)["skipped"] == {}
    found = read_all(broker, desk.raw)
    for partition in (0, 1):
        offsets = [int(record.key or b"") for record in found[partition] if record.key != b"0"]
        expected = [offset for offset in range(1, 700) if offset % 2 == partition]
        assert offsets == [n for n in expected if n % 3] + [n for n in expected if not n % 3]
    assert sum(record.key == b"0" for each in found.values() for record in each) == 1, "by its key, as there is no 7"
    assert committed(broker, group, desk.dead)[0] == 700


@asynccontextmanager
async def replaying(
    desk: Desk, filters: Filters | None = None, guarantee: Guarantee = "exactly_once"
) -> AsyncIterator[tuple[Replay, OpenWriter]]:
    """A replay, which has not begun, and what opens its writers."""
    settings = load(desk.config)
    (pipeline,) = settings.pipelines
    topic = await find_topic(settings.client, desk.dead)
    group = f"{pipeline.group_id}-dlq-replay"
    timeout_ms = pipeline.guarantee.timeout_ms if guarantee == "exactly_once" else None
    async with open_log(settings.client, topic, group) as log:
        yield (
            Replay(
                settings.client,
                pipeline,
                log,
                None,
                filters or Filters(),
                to=None,
                max_replays=3,
                done=lambda _: None,
            ),
            partial(open_writer, settings.client, log, timeout_ms),
        )


def interrupted(writers: OpenWriter, act: Callable[[], Awaitable[object]]) -> OpenWriter:
    """Writers of which the first does something at its second call, before it writes."""
    calls = 0

    class Writer:
        def __init__(self, writer: RecordWriter) -> None:
            self._writer = writer

        async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                await act()
            await self._writer.write(records, commit)

    @asynccontextmanager
    async def opened(partition: int) -> AsyncIterator[RecordWriter]:
        async with writers(partition) as writer:
            yield cast(Any, Writer(writer))

    return opened


def keys(desk: Desk) -> list[int]:
    """Of the records that were replayed to partition 0, as readers of committed records see them."""
    return [int(record.key or b"") for record in read_all(desk.broker, desk.raw, "read_committed")[0]]


def test_replay_that_is_interrupted_repeats_nothing(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a write lets that be committed: the next run goes on behind it.

    Behind the last letter there is one that was aborted.
    """
    desk = Desk(broker, make_topic, tmp_path, store=False)
    send(broker, desk.dead, [letter(n, desk.raw, 0) for n in range(700)], 50_000)

    async def aborted() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=desk.dead) as producer:
            await producer.begin_transaction()
            _, key, value, headers, _ = letter(700, desk.raw, 0)
            await producer.send_and_wait(desk.dead, value, key, partition=0, headers=headers)
            await producer.abort_transaction()

    asyncio.run(aborted())

    async def cancelled() -> int:
        async with replaying(desk) as (replay, writers):

            async def interrupt() -> None:
                task.cancel()  # as asyncio does on SIGINT
                await asyncio.sleep(0)

            task = asyncio.ensure_future(replay.run(interrupted(writers, interrupt)))
            with pytest.raises(asyncio.CancelledError):
                await task
            return replay.tally.replayed

    async def opened() -> list[int]:
        partitions: list[int] = []
        async with replaying(desk) as (replay, writers):

            def counted(partition: int) -> AbstractAsyncContextManager[RecordWriter]:
                partitions.append(partition)
                return writers(partition)

            await replay.run(counted)
        return partitions

    assert asyncio.run(cancelled()) == 400
    assert asyncio.run(opened()) == [0]
    assert keys(desk) == list(range(700))
    alter(broker, desk.dead, BRIEF)
    assert asyncio.run(opened()) == [], "where nothing is left or forgotten, no transactional.id is taken"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_replay_without_new_letters_lets_the_group_live_on(
    broker: str, make_topic: MakeTopic, tmp_path: Path, guarantee: Guarantee
) -> None:
    """Where letters stay for longer than brokers remember a commit, it commits again, and the user is told."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    send(broker, desk.dead, [letter(n, desk.raw, 0) for n in range(3)])
    command = ("dlq", "replay", "--processing-guarantee", guarantee, "-c", desk.config)
    assert run(*command)[::2] == (0, ""), "it writes nothing, so it has nothing to remember"
    group = f"{desk.keys['group.id']}-dlq-replay"
    told = (
        f"wideload: topic {desk.dead} keeps records forever, and the brokers forget 7 d after the last replay what "
        f"group {group} has replayed (offsets.retention.minutes): a later replay writes all of them again; run it more "
        "often than that, or lower retention.ms and segment.ms of the topic\n"
    )
    assert run(*command, "--yes")[::2] == (0, told)
    written: list[tuple[int, list[int]]] = []

    class Writer:
        def __init__(self, writer: RecordWriter) -> None:
            self._writer = writer

        async def write(self, records: Sequence[tuple[Topic, int, RecordLike]], commit: Commit) -> None:
            await self._writer.write(records, commit)
            written.append((len(records), [each.offset for each in commit.values()]))

    async def again() -> None:
        async with replaying(desk, guarantee=guarantee) as (replay, writers):

            @asynccontextmanager
            async def opened(partition: int) -> AsyncIterator[RecordWriter]:
                async with writers(partition) as writer:
                    yield cast(Any, Writer(writer))

            await replay.run(opened)

    asyncio.run(again())
    assert written == [(0, [3])]
    alter(broker, desk.dead, BRIEF)
    asyncio.run(again())
    assert written == [(0, [3])]
    assert run(*command, "--yes")[::2] == (0, "")
    assert len(read_all(broker, desk.raw)[0]) == 3


def test_replay_refuses_a_log_that_was_cut(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Behind a commit that is beyond the end, nobody knows what was replayed: nothing is, of no partition.

    An end that is beyond what was known a moment ago is none of these: another replay has gone on.
    """
    desk = Desk(broker, make_topic, tmp_path, store=False)
    send(broker, desk.dead, [letter(n, desk.raw, 0) for n in range(3)])
    assert desk.replay("--yes")["replayed"] == 3
    send(broker, desk.dead, [letter(3, desk.raw, 0)])

    async def commit() -> int:
        async with replaying(desk) as (replay, _):
            await replay.log.commit({TopicPartition(desk.dead, 1): OffsetAndMetadata(1_005, "")})
            return (await replay.log.replayed(0, 0, 2, stable=False)).offset

    assert asyncio.run(commit()) == 3
    ends = end_offsets(broker, desk.raw)
    told = (
        f"wideload: --group: group {desk.keys['group.id']}-dlq-replay has replayed topic {desk.dead}, partition 1, "
        "up to offset 1,005, and the partition ends at 0: its log was cut, as by an unclean election, or it is another "
        "topic of this name; it is not known which records were replayed; another --group begins with nothing "
        "replayed\n"
    )
    for more in ((), ("--yes",), ("--yes", "--processing-guarantee", "at_least_once")):
        assert run("dlq", "replay", *more, "-c", desk.config) == (2, "", told)
    assert end_offsets(broker, desk.raw) == ends
    assert desk.replay("--partition", 0, "--yes")["replayed"] == 1
    assert desk.replay("--group", f"{desk.dead}-anew", "--yes")["replayed"] == 4


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_replay_that_could_not_remember_its_gaps_writes_nothing(
    broker: str, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: Guarantee
) -> None:
    """Brokers that take less metadata than Kafka's default are heard before anything is written."""

    async def little(_: object) -> CommitLimits:
        return CommitLimits(metadata_bytes=40)

    monkeypatch.setattr("app.deadletters.log.commit_limits", little)
    desk = Desk(broker, make_topic, tmp_path, store=False)
    squares = {n * n for n in range(10)}
    errors = ("PayloadNotFoundError", "PayloadCorruptError")
    send(broker, desk.dead, [letter(n, desk.raw, 0, errors[n in squares]) for n in range(100)], 50_000)
    chosen = ("--processing-guarantee", guarantee)
    status, out, err = run("dlq", "replay", "--error", errors[1], *chosen, "-c", desk.config, "--yes")
    assert (status, out) == (1, "")
    assert "too many gaps between the records that were replayed: the metadata of a commit (40 bytes) has no" in err
    assert end_offsets(broker, desk.raw) == {0: 0, 1: 0}
    assert desk.replay(*chosen, "--yes")["replayed"] == 100


_FORGOTTEN = (
    "an older coordinator forgets the offsets of a transaction that has ended, but for its marks, when the producer "
    "that was overtaken sends offsets"
)


@pytest.mark.parametrize(
    "step",
    [
        None,
        pytest.param("send_offsets_to_transaction", marks=pytest.mark.needs_kafka((4, 0), _FORGOTTEN)),
        "commit_transaction",
    ],
)
def test_replay_ends_where_another_begins(
    broker: str, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    """Of two replays at once the one that began last goes on, and each record is written once.

    The other one begins between two transactions, or within one: before its offsets, or its end.
    """
    desk = Desk(broker, make_topic, tmp_path, store=False)
    send(broker, desk.dead, [letter(n, desk.raw, 0) for n in range(700)], 50_000)

    async def overtaken() -> tuple[int, int, str]:
        async with replaying(desk) as (first, writers), replaying(desk) as (second, others):
            calls = 0

            async def overtake() -> None:
                await second.run(others)

            if step is not None:
                goes_on = getattr(AIOKafkaProducer, step)

                async def late(*arguments: Any) -> None:
                    nonlocal calls
                    calls += 1
                    if calls == 2:
                        await overtake()
                    await goes_on(*arguments)

                monkeypatch.setattr(AIOKafkaProducer, step, late)
            with pytest.raises(ReplayTakenOverError) as told:
                await first.run(interrupted(writers, overtake) if step is None else writers)
            return first.tally.replayed, second.tally.replayed, str(told.value)

    done, others, told = asyncio.run(overtaken())
    assert (done, others) == (200, 500)
    assert told == (
        f"topic {desk.dead}, partition 0: another replay with group {desk.keys['group.id']}-dlq-replay has "
        "started and continues; this one ends, and nothing is written twice"
    )
    assert keys(desk) == list(range(700))
    assert desk.replay("--yes")["replayed"] == 0


def test_replay_that_is_killed_writes_nothing_twice(
    broker: str, make_topic: MakeTopic, tmp_path: Path, rng: random.Random
) -> None:
    """After `kill -9` with records written and not committed, and at any moment then, each is there once, in order."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    count, kills = 3_000, 6  # many more than are written before the kills, also where this process stalls for a moment
    send(broker, desk.dead, [letter(n, desk.raw, 0) for n in range(count)], 50_000)
    command = [sys.executable, "-m", "app.cli", "dlq", "replay", "-c", desk.config, "--yes"]

    def written() -> tuple[int, int]:
        group = f"{desk.keys['group.id']}-dlq-replay"
        return end_offsets(broker, desk.raw)[0], committed(broker, group, desk.dead)[0]

    with (tmp_path / "replay.log").open("wb") as log:
        for number in range(kills):
            process = fork(command, stdout=log, stderr=log, constants={"app.deadletters.replay:_BATCH": 10})
            left = rng.randrange(1, 4)  # writes
            end, done = written()
            while left > 0 and process.poll() is None:
                before, (end, done) = (end, done), written()
                left -= end > before[0] and done == before[1]
            if number % 2:
                time.sleep(rng.random() / 100)
            process.kill()
            assert process.wait() != 0, (tmp_path / "replay.log").read_text()
    assert desk.replay("--yes")["replayed"] > 0
    assert keys(desk) == list(range(count))


def test_a_forged_letter_in_a_store_keeps_no_other_back(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """A pipeline without a store cannot read it, and replays the letters around it."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    context = letter(0, desk.raw, 0)[3]
    path = "s3://b/dead/1"
    forged = Record(b"forged", path.encode(), (*context, (MARK, b"value"), *Reference(path).headers()), STAMP)
    sound = [Record(*letter(n, desk.raw, 0)[1:]) for n in range(3)]
    asyncio.run(write_raw(broker, desk.dead, [sound[0], forged, *sound[1:]]))
    told = desk.replay("--yes", status=1)
    assert (told["replayed"], told["failed"]) == (3, 1)
    assert len(read_all(broker, desk.raw)[0]) == 3


@pytest.mark.needs_kafka((3, 7), "topics bound how far a timestamp may be ahead from 3.6 on (KIP-937)")
def test_forged_letters_keep_no_other_back(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Whatever anybody writes to the topic, the letters around it are shown and replayed, and each is told of once."""
    desk = Desk(broker, make_topic, tmp_path, store=True)
    near = {**FOREVER, "message.timestamp.after.max.ms": "3600000"}  # the default from 4.0 on
    alter(broker, desk.raw, {**near, "max.message.bytes": "2000"})
    alter(broker, desk.orders, near)
    salaries = tmp_path / "store" / "salaries" / "id"
    salaries.parent.mkdir(parents=True)
    salaries.write_bytes(b"secret")
    path = salaries.as_uri()
    context = letter(0, desk.raw, 0)[3]

    def forged(record: Record) -> Record:
        data = record_format.serialize(Record(record.key, record.value, (*record.headers, *context), record.timestamp))
        return Record(b"forged", data, ((MARK, b"record"),), STAMP)

    place = [(name, b"9" * 5_000 if name.endswith("partition") else value) for name, value in context]
    ahead = time.time_ns() // 1_000_000 + 90_000_000
    bad: list[Record] = [
        Record(b"forged", b"digits", place, STAMP),
        forged(Record(b"forged", b"ahead", (), ahead)),
        forged(Record(b"forged", b"beyond", (), 2**63)),
        forged(Record(b"forged", b"x" * 3_000, (("\udcff", b""),), STAMP)),
        Record(b"forged", path.encode(), (*context, (MARK, b"value"), *Reference(path).headers()), STAMP),
        Record(b"forged", b"no number", ((MARK, b"record"),), STAMP),
    ]
    odd = Record(b"odd", b"v", (("\udcff", b"name"), *context), STAMP)
    sound = [Record(*letter(n, desk.raw, 0)[1:]) for n in range(10)]
    asyncio.run(write_raw(broker, desk.dead, [sound[0], *bad, sound[1], odd, *sound[2:]]))

    shown = desk.dlq("list", status=1)
    assert len(shown) == len(bad) + 11
    assert desk.replay("--to", desk.orders, status=1)["would_replay"] == 14, "that topic takes the large one, too"
    done = desk.replay("--yes", status=1)
    # One that does not say where it came from goes to the one topic that the pipeline reads.
    assert (done["replayed"], done["failed"], done["skipped"]) == (13, 4, {})
    reasons = "\n".join(each["reason"] for each in done["failures"])
    for told in (
        f"topic {desk.raw} refuses the record: its timestamp is {ahead}, further from now than",
        f"topic {desk.raw} accepts 2,000",
        f"the payload of a dead-letter record is below 'file://{tmp_path}/store/{desk.dead}/'",
    ):
        assert told in reasons
    assert desk.replay("--yes", status=1)["replayed"] == 0
    for flags in (("--skip-unreadable",), ("--yes", "--skip-unreadable")):  # the first one writes nothing
        assert desk.replay(*flags, status=1)["failed"] == 4
    left = desk.replay("--yes", status=1)
    # What the topic of the records may take one day stays.
    assert (left["replayed"], left["failed"], left["skipped"]["replayed before"]) == (0, 2, 13)
    assert all(f"topic {desk.raw}" in each["reason"] for each in left["failures"])
    status, _, err = run("dlq", "replay", "--to", desk.dead, "-c", desk.config)
    assert (status, err) == (
        2,
        f"wideload: --to: found {desk.dead}, the topic of the dead letters itself; use another topic\n",
    )


@pytest.mark.parametrize(
    "protocol",
    [
        "classic",
        pytest.param("consumer", marks=pytest.mark.needs_kafka((4, 0), "groups of the protocol `consumer` (KIP-848)")),
    ],
)
def test_replay_refuses_a_group_with_members(broker: str, make_topic: MakeTopic, tmp_path: Path, protocol: str) -> None:
    """A member would commit over what a replay commits: nothing is written while a group has one."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    send(broker, desk.dead, [letter(0, desk.raw, 0)])
    group = f"{desk.raw}-members-{protocol}"
    options = {"bootstrap.servers": broker, "group.id": group, "group.protocol": protocol}
    member = confluent_kafka.Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        member.subscribe([desk.dead])
        until(lambda: member.poll(0.1), "it is a member")
        told = run("dlq", "replay", "--group", group, "-c", desk.config, "--yes")
        why = "such as a worker that runs, and only they may commit; use another"
        assert told == (2, "", f"wideload: --group: group {group} has members, {why}\n")
    finally:
        member.close()
    assert desk.replay("--group", group, "--yes")["replayed"] == 1


def test_dlq_refuses(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """What cannot be is one sentence with the option, and status 2."""
    desk = Desk(broker, make_topic, tmp_path, store=False)
    wrong: list[tuple[list[object], str]] = [
        (
            ["list", "--from-offset", 3],
            "--from-offset: found 3, which is an offset of one partition; add --partition",
        ),
        (["list", "--since", "yesterday"], "--since: found 'yesterday', allowed is a time such as"),
        (["replay", "--partition", 9], "--partition: found 9, topic "),
        (["replay", "--pipeline", "x"], "--pipeline: found 'x', the pipelines with a dead letter queue are: p"),
        (["replay", "--group", "g" * 300], "--group: the group id has 300"),
        (["replay", "--to", "nowhere"], "--to: topic nowhere does not exist at "),
    ]
    for arguments, told in wrong:
        status, out, err = run("dlq", *arguments, "-c", desk.config)
        assert (status, out) == (2, "")
        assert err.startswith(f"wideload: {told}")
        assert err.count("\n") == 1
