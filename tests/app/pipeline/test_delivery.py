"""The two guarantees: commits of all lanes one after the other; transactions of a lane, and when one ends early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CorruptRecordException, KafkaConnectionError, KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from app.kafka.batches.bounds import Bounds
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError
from app.kafka.producer import ProducerControls
from app.kafka.source_batch import ReadRecord
from app.kafka.writer import Writer
from app.pipeline.committed_offsets import CommittedOffsets
from app.pipeline.delivery import AtLeastOnce, ExactlyOnce
from app.pipeline.lane import Lane, Skipped, Working
from app.pipeline.pace import Pace
from app.pipeline.parts import Parts
from app.pipeline.termination import DefectError
from app.pipeline.transaction import Transaction
from tests.app.pipeline.hurried import hurried
from tests.app.pipeline.outputs import parts_of
from transforms.record import Record

PARTITION = TopicPartition("raw", 0)
RECORD = Record(b"k", b"v", (), 1)

# --- at least once ---------------------------------------------------------------------------------------------------


class Bench:
    """The delivery of one lane, whose consumer commits when it `may`; `committed` has what the group has taken."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.asked = 0
        self.may = asyncio.Event()
        self.parts = parts_of(SimpleNamespace(commit=self._commit), partitions=[0])
        (self.lane,) = self.parts.lanes
        self.delivery = AtLeastOnce(self.parts)

    async def _commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self.asked += 1
        await self.may.wait()  # as if it were tried again
        self.committed.append(offsets[PARTITION][0])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Reaches no broker."""
    made = Bench()
    yield made
    await made.delivery.stop()


async def test_an_older_commit_does_not_follow(bench: Bench) -> None:
    """A revocation commits while a regular commit is tried again: it waits for that, and its offset is the last."""
    tracker = bench.lane.tracked(0)
    commits = []
    for tracker.released in (100, 200):
        commits.append(asyncio.create_task(bench.delivery.commit()))
        await asyncio.sleep(0)
    assert bench.asked == 1
    bench.may.set()
    await asyncio.gather(*commits)
    assert bench.committed == [100, 200]


def batch(offset: int, rows: Callable[[], object]) -> Any:
    """A batch that does not go whole."""
    return SimpleNamespace(offset=offset, codec=0, batch=None, is_forwarded=lambda *_: False, rows=rows, merged_from=0)


async def test_a_batch_that_cannot_be_read_ends_the_flow(bench: Bench) -> None:
    """Nothing behind it is admitted, and the commit does not pass it: the records are read again."""

    def unreadable() -> object:
        raise CorruptRecordException("broken")

    bench.lane.tracked(7)
    with pytest.raises(ClusterError, match="reading topic raw"):
        bench.delivery.forward(bench.lane, batch(7, unreadable), 10)
    bench.lane.committed, bench.lane.read_to = 7, 9
    assert bench.lane.to_commit() is None
    assert bench.lane.busy


async def test_an_error_of_another_partition_makes_no_gap(bench: Bench) -> None:
    """What leaves in the same turn as the record that ended the flow leaves in order: each batch and each record."""
    first, second = (ReadRecord("raw", 0, offset, 1, b"k", b"v") for offset in (7, 8))
    bench.parts.termination.fail(ValueError("of another partition"))
    bench.delivery.forward(bench.lane, batch(7, lambda: [first]), 10)
    bench.delivery.append(bench.lane, second, 8, 10, 0)
    (outbox,) = bench.delivery._outboxes.values()
    assert outbox._filling is not None
    assert outbox._filling.load.offsets == [7, 8]


# --- exactly once ----------------------------------------------------------------------------------------------------


def exactly_once(
    partitions: int,
    boundary: str = "poll",
    carry_epochs: Callable[[AIOKafkaClient], None] = lambda _: None,
    *,
    caught_up: bool = True,
) -> Parts:
    """The parts of a pipeline whose consumer lets clients carry epochs so, and has read what the leader has."""
    source = SimpleNamespace(carry_epochs=carry_epochs, caught_up=lambda _: caught_up)
    keys: dict[str, Any] = {"processing.guarantee": "exactly_once", "transaction.boundary.type": boundary}
    keys["transaction.boundary.interval.ms"] = 59_000  # none ends by its age, however busy the machine is
    return parts_of(source, partitions=range(partitions), **keys)


@asynccontextmanager
async def made(
    boundary: str = "poll", *, pace: Pace | None = None, caught_up: bool = True
) -> AsyncIterator[tuple[Transaction, Lane]]:
    """The transaction of a lane that no broker hears of; it begins without a coordinator."""
    parts = exactly_once(1, boundary, caught_up=caught_up)
    (lane,) = parts.lanes
    transaction = Transaction(parts, lane, Bounds(), pace or Pace(per_second=1_000, at_once=10, under_way=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerControls, "begin_transaction", lambda _: None)
        try:
            yield transaction, lane
        finally:
            transaction.discard()
            await transaction.output.writer.stop()


@contextmanager
def ends(transaction: Transaction) -> Iterator[list[bool]]:
    """An element for each time that the transaction was asked to end."""
    asked: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "end", lambda: asked.append(True))
        yield asked


async def test_what_it_holds_is_given_back_once() -> None:
    """When it is given up, with what waits; a batch that becomes durable later gives nothing back again."""
    async with made() as (transaction, lane):
        share = transaction._parts.share
        share.take(7)
        for offset in (0, 1):
            transaction.append(lane, RECORD, offset, offset + 1, 0)
        transaction._give(1)
        used = [share.used]
        transaction.discard()
        used.append(share.used)
        transaction._give(2)
        assert [*used, share.used] == [6, 4, 4]


async def test_it_ends_when_nothing_more_is_at_hand() -> None:
    """As soon as what is written goes out; without records there is nothing to end."""
    async with made() as (transaction, lane):
        with ends(transaction) as ended:
            transaction.flush()
            transaction.append(lane, RECORD, 0, 1, 0)
            assert ended == []
            transaction.flush()
            assert ended == [True]


@pytest.mark.parametrize("what", ["read", "slot", "behind", "interval", "offsets"])
async def test_it_waits_for_what_is_at_hand(what: str) -> None:
    """For what waits to be admitted, what a stage works on, what the leader has; or if age and size alone count.

    An offset alone has no reader that waits for it.
    """
    async with made("interval" if what == "interval" else "poll", caught_up=what != "behind") as (transaction, lane):
        with ends(transaction) as ended:
            if what == "offsets":
                transaction.write(lane, Skipped(ReadRecord("raw", 0, 0, 1)))
            else:
                transaction.append(lane, RECORD, 0, 1, 0)
            lane.read = cast(Any, what == "read")
            if what == "slot":
                lane.items.append(Working(ReadRecord("raw", 0, 1, 1), 1))
            transaction.flush()
        assert ended == []


@hurried
async def test_it_waits_for_its_turn_and_looks_again() -> None:
    """What has come while the pace let it wait is waited for, too; then it asks anew."""
    pace = Pace(per_second=100, at_once=1, under_way=1)
    async with made(pace=pace) as (transaction, lane):
        with ends(transaction) as ended:
            transaction.append(lane, RECORD, 0, 1, 0)
            pace.ask(lambda: True)
            transaction.flush()
            lane.read = cast(Any, True)
            await asyncio.sleep(1)
            assert ended == []
            lane.read = cast(Any, False)
            transaction.flush()
            assert ended == [True]


async def test_nothing_is_committed_behind_a_record_that_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the next transaction is not in the lane any more: those behind a gap must not be committed."""
    commits: list[object] = []

    async def flush() -> None:
        commits.append("flushed")

    async def commit(offsets: object) -> None:
        commits.append(offsets)

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    async with made() as (transaction, lane):
        monkeypatch.setattr(transaction.output.writer, "flush", flush)
        monkeypatch.setattr(transaction.output.writer, "commit", commit)
        transaction.append(lane, RECORD, 0, 1, 0)
        transaction.end()
        monkeypatch.setattr(transaction.output, "append", fail)
        for offset in (1, 2):
            transaction.append(lane, RECORD, offset, 1, 0)
        await transaction.finish()
        assert isinstance(transaction._parts.termination.error, DefectError)
        monkeypatch.undo()
        assert (commits[0], len(commits), transaction.idle) == ("flushed", 2, False)


@pytest.mark.parametrize(
    ("failure", "aborts"), [(None, True), (KafkaError("it broke"), True), (ProducerFenced(), False)]
)
async def test_a_fenced_producer_aborts_nothing(
    *, monkeypatch: pytest.MonkeyPatch, failure: KafkaError | None, aborts: bool
) -> None:
    """Its transaction is over; and the brokers of a producer that stops are not watched any more."""
    aborted: list[bool] = []
    forgotten: list[AIOKafkaClient] = []

    async def abort(*_: object) -> None:
        aborted.append(True)

    monkeypatch.setattr(ProducerControls, "abort_transaction", abort)
    monkeypatch.setattr(BrokerHealth, "forget", lambda _, client: forgotten.append(client))
    async with made() as (transaction, _):
        writer = transaction.output.writer
        writer.failure = failure
        await transaction.stop()
        assert (aborted, forgotten) == ([True] * aborts, [writer.client])


async def test_offsets_in_transactions_carry_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's epochs go with what the producer of each lane commits, from its start on."""
    carried: list[object] = []
    started: list[bool] = []

    async def start(producer: Writer) -> None:
        started.append(producer.client in carried)

    monkeypatch.setattr(Writer, "start", start)
    parts = exactly_once(2, carry_epochs=carried.append)
    delivery = ExactlyOnce(parts)
    try:
        await delivery.assign([*parts.lanes])
        assert started == [True, True]
    finally:
        await delivery.stop()


# --- the pace of transactions ----------------------------------------------------------------------------------------


async def ended(pace: Pace, count: int, wait_s: float) -> list[tuple[int, float]]:
    """Who of so many that ask at once has ended by then, and when."""
    clock, found = asyncio.get_running_loop().time, list[tuple[int, float]]()

    def ask(number: int) -> None:
        def end() -> bool:
            found.append((number, clock()))
            return True

        pace.ask(end)

    for number in range(count):
        ask(number)
    await asyncio.sleep(wait_s)
    return found


@hurried
async def test_one_after_the_other() -> None:
    """After a rest some end at once, the others in the order in which they asked, with a time between."""
    pace = Pace(per_second=100, at_once=2, under_way=1)
    await asyncio.sleep(1)
    found = await ended(pace, 6, 0.035)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    assert [at_s for _, at_s in found] == pytest.approx([1, 1, 1.01, 1.02, 1.03])


@hurried
async def test_who_does_not_end_takes_no_time() -> None:
    """A lane that has more at hand by now lets the next one end in its place."""
    pace, asked = Pace(per_second=0.001, at_once=1, under_way=1), list[int]()

    def ask(number: int) -> None:
        def end() -> bool:
            asked.append(number)
            return number == 3

        pace.ask(end)

    for number in range(5):
        ask(number)
    assert asked == [0, 1, 2, 3]


@hurried
async def test_where_ends_take_long_there_are_fewer() -> None:
    """As many as are under way at a time on average, and no more."""
    pace = Pace(per_second=1_000_000, at_once=1, under_way=2)
    for _ in range(100):
        pace.took(0.2)
    (_, (_, second_s)) = await ended(pace, 2, 1)
    assert second_s == pytest.approx(0.1, rel=0.05)


# --- the offsets that are committed ----------------------------------------------------------------------------------


class Look:
    """The offsets of one lane, and the answers of a cluster."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []
        parts = parts_of(partitions=[0])
        (self.lane,), self.termination = parts.lanes, parts.termination
        self.offsets = CommittedOffsets(parts, self._fetch)

    async def _fetch(self, lanes: Sequence[Lane]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self.answers.append(asyncio.get_running_loop().create_future())
        offset = await self.answers[-1]
        return {lane.partition: OffsetAndMetadata(offset, "") for lane in lanes}

    async def asked(self, times: int) -> None:
        """Waits until the cluster has been asked so often."""
        async with asyncio.timeout(10):
            while len(self.answers) < times:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)


async def test_offsets_are_waited_for() -> None:
    """Nothing is read before they are known; a rebalance lets it wait again."""
    bench = Look()
    offsets = bench.offsets
    for times, offset in ((1, 7), (2, 9)):
        offsets.look_up()
        await bench.asked(times)
        assert not offsets.known
        bench.answers[-1].set_result(offset)
        await offsets.known_within(10)
        assert (offsets.known, bench.lane.committed) == (True, offset)
        offsets.forget()
    assert not offsets.known


@pytest.mark.parametrize("defect", [False, True])
async def test_offsets_that_cannot_be_taken_end_the_flow(*, defect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the group; a defect is as loud, as the flow would wait for ever."""
    bench = Look()

    def refuse(*_: object) -> None:
        raise IndexError("a note that nobody has thought of")

    bench.offsets.look_up()
    await bench.asked(1)
    if defect:
        monkeypatch.setattr(Lane, "resume", refuse)
        bench.answers[-1].set_result(7)
    else:
        bench.answers[-1].set_exception(KafkaConnectionError("gone"))
    assert bench.offsets._looking_up is not None
    await asyncio.wait([bench.offsets._looking_up], timeout=10)
    error = bench.termination.error
    assert isinstance(error, DefectError) if defect else "reading offsets of group" in str(error)
    assert not bench.offsets.known


async def test_look_up_that_a_rebalance_overtakes() -> None:
    """Its answer is not taken for that of the next one, which begins when it has ended."""
    bench = Look()
    bench.offsets.look_up()
    await bench.asked(1)
    bench.offsets.forget()
    bench.offsets.look_up()
    await bench.asked(2)
    assert bench.answers[0].cancelled()
    assert (bench.lane.committed, bench.offsets.known) == (None, False)
    bench.answers[1].set_result(3)
    await bench.offsets.known_within(10)
    assert bench.lane.committed == 3
