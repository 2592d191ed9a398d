"""Leader epochs: a log that was cut and grew again, for aiokafka's own fetcher, at a leader that needs no broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import OffsetOutOfRangeError, TopicAuthorizationFailedError
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import TxnOffsetCommitRequest

from app.kafka.fetched import FetchedBatches
from app.kafka.leader_epochs import FetchEpochEnds, LeaderEpochs
from app.kafka.offset_fetches import FetchOffsets
from app.kafka.topics import Identity, identities
from tests.app.kafka.scripted_log import PLACE, Log, Reader
from tests.app.kafka.wired import Wire, wired
from tests.built_batches import built, record
from transforms.epoch_history import Cut

Versions = Mapping[int, tuple[int, int]]
NEW: Versions = {1: (4, 17), 3: (0, 13), 8: (2, 9), 9: (1, 9), 23: (2, 4), 28: (0, 5)}
OLD: Versions = {1: (0, 8), 3: (0, 5), 8: (0, 4), 9: (0, 4), 23: (0, 1), 28: (0, 0)}
Parts = tuple[tuple[int, int], ...]


def filled(*parts: tuple[int, int], until: Log | None = None, cut: int = 0) -> Log:
    """A log with so many batches of two records of each epoch, behind what another one had up to a cut."""
    log = Log()
    if until is not None:
        for batch, end in zip(until.batches, until.ends, strict=True):
            if end <= cut:
                log.put(batch, end - log.end)
    for epoch, count in parts:
        for _ in range(count):
            data = bytearray(built(0, [record(log.end), record(log.end + 1)], base=log.end))
            struct.pack_into(">i", data, 12, epoch)
            log.put(bytes(data), 2)
    return log


class Leader(Reader):
    """aiokafka's fetcher, at the leader of the partition.

    It was `asked` for the ends of these epochs, answers by `refusal` if that is no 0, and once `held` is set. `fenced`
    are the epochs of leaders that were in fetches; metadata was `updated` so often.
    """

    def __init__(self, log: Log, offset: int, epoch: int, versions: Versions) -> None:
        super().__init__(log, offset, "read_uncommitted")
        self.epoch = epoch
        self._versions = versions
        self.refusal = self.updated = 0
        self.held, self.asking = asyncio.Event(), asyncio.Event()
        self.held.set()
        self.asked: list[int] = []
        self.fenced: list[int] = []
        self._other: Any = None
        self.client.force_metadata_update = self._update
        self.epochs = LeaderEpochs(self.client, lambda: self.controls.assignment, 0.001)
        FetchedBatches(self.controls, None, self.epochs.read)

    def _update(self) -> asyncio.Future[None]:
        self.updated += 1
        return asyncio.get_running_loop().create_future()

    async def lead(self, log: Log, epoch: int) -> None:
        """There is another leader, which metadata names."""
        self.log, self.epoch = log, epoch
        response = await self.client.send(0, MetadataRequest(["raw"]))
        assert [row[:3] for row in response.topics[0][3]] == [(0, 0, 0)]

    async def told(self, request: Any, response: Any) -> Any:
        """What the consumer gets if the broker answers so."""
        self._other = response
        return await self.client.send(0, request)

    def before(self, offset: int) -> int:
        """The epoch of the last record before an offset; -1 if it is not known."""
        return self.epochs._assigned()[PLACE]._history.before(offset)

    async def offsets(self) -> list[int]:
        """Of the records up to the end of the log."""
        return [each.offset for batch in await self.read() for each in batch.records()]

    async def nothing(self, more: int) -> None:
        """So many fetches, or questions for an end, give no record."""
        until = self.sent + len(self.asked) + more
        while self.sent + len(self.asked) < until:
            assert not await self.poll()

    async def refused(self) -> int:
        """The offset at which a poll is refused; none gives a record."""
        found, error = await self.until_error()
        assert not found
        assert isinstance(error, OffsetOutOfRangeError)
        offset: int = error.args[0][PLACE]
        return offset

    async def goes_on(self, cut: Cut) -> list[int]:
        """It begins again where the log parts, as `GroupConsumer.begin`: the offsets that are read then."""
        assert self.epochs.cut(PLACE) == cut
        self.epochs.begin(PLACE, cut)
        self.fetcher.seek_to(PLACE, cut.offset)
        assert self.epochs.cut(PLACE) is None
        assert self.before(cut.offset) == cut.epoch  # which is committed with this offset
        return await self.offsets()

    def assign_anew(self) -> None:
        """A rebalance."""
        self.subscription.unsubscribe()
        self.subscription.assign_from_user({PLACE})

    async def _answer(self, call: Any) -> Any:
        request = call.request
        if isinstance(request, OffsetRequest):  # of what the coordinator has, before committed offsets
            return SimpleNamespace(topics=[])
        struct_ = call.prepare(self._versions)
        if isinstance(request, MetadataRequest):
            epochs = [self.epoch] if struct_.API_VERSION >= 7 else []
            return struct_.RESPONSE_TYPE(0, [], None, 0, [(0, "raw", False, [(0, 0, 0, *epochs, [0], [0], [])])])
        if isinstance(request, FetchEpochEnds):
            ((topic, ((number, current, epoch),)),) = struct_.topics
            assert current == self.epoch
            self.asked.append(epoch)
            self.asking.set()
            await self.held.wait()
            epochs_ = [struct.unpack_from(">i", batch, 12)[0] for batch in self.log.batches]
            below = [each for each in zip(epochs_, self.log.ends, strict=True) if each[0] <= epoch]
            found, end = max(below, default=(-1, -1))
            end = self.log.end if found == self.epoch else end
            return SimpleNamespace(topics=[(topic, [(self.refusal, number, found, end)])])
        if not isinstance(request, FetchRequest):
            return self._other
        self.sent += 1
        await asyncio.sleep(0)
        ((topic, ((number, current, offset, *_),)),) = struct_.topics
        if struct_.API_VERSION < 9:  # there is no epoch in it
            offset, current = current, -1
        self.fenced.append(current)
        data, aborted = self.log.read(offset, self.most)
        code = 0 if current in (-1, self.epoch) else 74 if current < self.epoch else 75
        code = 1 if not code and offset > self.log.end else code
        if code or not data:
            await asyncio.sleep(0.01)
        end = self.log.end
        preferred = [-1] if struct_.API_VERSION >= 11 else []
        rows = (number, code, end, end, 0, aborted, *preferred, b"" if code else data)
        return SimpleNamespace(API_VERSION=struct_.API_VERSION, topics=[(topic, [rows])])


@asynccontextmanager
async def reading(log: Log, offset: int, epoch: int, versions: Versions = NEW) -> AsyncIterator[Leader]:
    """A fetcher at a leader whose epoch the client knows."""
    leader = Leader(log, offset, epoch, versions)
    await leader.lead(log, epoch)
    try:
        yield leader
    finally:
        await leader.close()


LOST = Cut(10, 3, 20)


@pytest.mark.parametrize(
    ("first", "offset", "epoch", "then", "cut", "next_epoch", "expected", "asked"),
    [
        *((((3, 10),), 0, 3, ((5, grown),), 10, 5, LOST, {3}) for grown in (0, 2, 5, 9)),
        (((3, 10),), 0, 3, ((3, 1), (6, 8)), 20, 6, range(20, 38), {3}),  # it has the same records
        (((3, 10),), 20, 7, ((8, 3),), 20, 8, range(20, 26), {7}),  # only a bound is known, which is in neither log
        (((3, 10),), 20, 3, ((5, 9),), 10, 5, LOST, {3}),  # nothing was read: the leader's epoch is a bound
        (((0, 10),), 0, 0, ((0, 4),), 0, 0, None, set()),  # a new topic: out of range as a whole, and not cut
        (((3, 10),), 0, 2, ((3, 2),), 20, 2, range(20, 24), set()),  # metadata is older than what was read
        (((-1, 5),), 10, 3, ((-1, 3),), 10, 4, range(10, 16), {3}),  # records without epochs: nothing is claimed
    ],
)
async def test_the_next_leader(
    first: Parts, offset: int, epoch: int, then: Parts, cut: int, next_epoch: int, expected: Any, asked: set[int]
) -> None:
    """It is asked once where its log parts from what was read, before it gives a record; there reading goes on."""
    old = filled(*first)
    async with reading(old, offset, epoch) as leader:
        if offset == old.end:
            await leader.nothing(2)
            assert leader.before(offset) == epoch
        assert await leader.offsets() == [*range(offset, old.end)]
        leader.log = filled(*then, until=old, cut=cut)
        if next_epoch != epoch:
            await leader.lead(leader.log, next_epoch)
        if isinstance(expected, range):
            assert await leader.offsets() == [*expected]
        else:
            assert await leader.refused() == old.end
            assert leader.epochs.cut(PLACE) == expected
            if expected is not None:
                assert await leader.goes_on(expected) == [*range(10, leader.log.end)]
        assert set(leader.asked) == asked
        assert (leader.fenced[-1] == -1) == (epoch == 2)


@pytest.mark.parametrize(
    ("versions", "bound"), [(OLD, -1), ({**NEW, 1: (4, 8)}, -1), ({**NEW, 23: (0, 2)}, 3)], ids=["all", "fetch", "ends"]
)
async def test_brokers_that_know_no_epochs(versions: Versions, bound: int) -> None:
    """They are read by offsets alone: a change of leader stops nothing, and no bound is taken from such answers."""
    old = filled((3, 10))
    async with reading(old, 20, 3, versions) as leader:
        await leader.nothing(2)
        assert leader.before(20) == bound
        await leader.lead(filled((5, 2), until=old, cut=20), 5)
        assert await leader.offsets() == [*range(20, 24)]
        assert (set(leader.fenced) == {-1}) == (bound == -1)


async def test_leader_is_compared_when_it_has_answered() -> None:
    """Until it has said where its log parts nothing is given; nor is it told that it lacks an offset."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        assert leader.epochs.compared(PLACE, 20)  # nothing is known of what was read
        await leader.offsets()
        assert leader.epochs.compared(PLACE, 20)
        leader.refusal = 6
        await leader.lead(filled((5, 2), until=old, cut=10), 5)
        assert not leader.epochs.compared(PLACE, 20)
        await leader.nothing(3)
        assert not leader.epochs.compared(PLACE, 20)
        leader.refusal = 0
        assert await leader.refused() == 20
        assert leader.epochs.compared(PLACE, 20)
        assert leader.epochs.cut(PLACE) == LOST


async def test_leader_that_does_not_say() -> None:
    """Records of a leader that refuses to compare its log are not given; what it refuses for good is raised."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await leader.offsets()
        leader.refusal = 78
        await leader.lead(filled((5, 9), until=old, cut=20), 5)
        await leader.nothing(3)
        leader.refusal = 29
        with pytest.raises(TopicAuthorizationFailedError):
            await leader.nothing(99)
        leader.refusal = 0
        assert await leader.offsets() == [*range(20, 38)]


async def test_only_the_leader_of_the_known_epoch_answers() -> None:
    """A fetch to another one is refused; then nothing is given, and metadata is asked for."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await leader.offsets()
        leader.log, leader.epoch = filled((5, 9), until=old, cut=10), 5
        await leader.nothing(3)
        assert leader.updated > 0
        assert set(leader.fenced) <= {-1, 3}
        await leader.lead(leader.log, 5)
        assert await leader.refused() == 20


async def test_former_leader_that_takes_itself_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not have what was read from the next one. Reading waits for newer metadata, and begins nowhere anew."""
    old = filled((3, 5))
    new = filled((4, 5), until=old, cut=10)
    async with reading(new, 0, 4) as leader:
        assert await leader.offsets() == [*range(20)]
        await leader.lead(old, 3)
        before = leader.updated
        while leader.updated < before + 3:
            assert not await leader.poll()
        await leader.lead(filled((4, 2), until=new, cut=20), 4)
        assert await leader.offsets() == [*range(20, 24)]
        # It is no former leader for ever: the topic may be a new one, at brokers that do not tell topics apart.
        monkeypatch.setattr("transforms.epoch_history._OLDER_S", 0.1)
        await leader.lead(old, 3)
        assert await leader.refused() == 24
        assert leader.epochs.cut(PLACE) is None


async def test_rebalance_forgets() -> None:
    """What was read, or is said of a former assignment, says nothing of the next one, which has other offsets."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await leader.offsets()
        leader.held.clear()
        await leader.lead(filled((5, 9), until=old, cut=16), 5)
        poll = asyncio.ensure_future(leader.poll())
        await leader.asking.wait()
        assert leader.before(20) == 3
        leader.assign_anew()
        assert leader.before(20) == -1
        leader.subscription.seek(PLACE, 0)
        sent = leader.sent
        leader.held.set()
        async with asyncio.timeout(10):
            while leader.sent == sent:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0)
            await poll
        assert leader.epochs.cut(PLACE) is None


@pytest.mark.parametrize("newest", [5, 7, 10])
async def test_topics_of_a_broker_that_gives_no_ids(newest: int) -> None:
    """The topic watcher reads the metadata of aiokafka then, and so that from which the epochs were taken."""
    async with reading(filled((3, 10)), 0, 3, {**NEW, 3: (0, newest)}) as leader:
        found = await identities(lambda request: leader.client.send(0, request), ["raw"])
    assert found == {"raw": Identity(None, 1, {0: (1, 1)})}


# --- commits ---------------------------------------------------------------------------------------------------------

NOTE = "wideload:delivered=20"
FETCH_OFFSETS = [OffsetFetchRequest("g", [("raw", [0])]), FetchOffsets("g", [PLACE], stable=True)]


def committed(epoch: int, offset: int = 20, note: str = "m", *more: Any) -> Any:
    """A response with a committed offset."""
    topics: Any = [("raw", [(0, offset, epoch, note, 0, {}), *more], {})]
    return SimpleNamespace(throttle_time_ms=0, error_code=0, topics=topics)


async def committing(client: Any, commit: Any, versions: Any) -> Any:
    """What a client sends."""
    seen: list[Any] = []

    async def answer(call: Any) -> None:
        seen.append(call.prepare(versions))

    client._conns[0, 0] = Wire(answer)
    await client.send(0, commit)
    return seen[0]


@pytest.mark.parametrize("request_", FETCH_OFFSETS)
async def test_committed_offset_of_a_log_that_was_cut(request_: Any) -> None:
    """The epoch that is committed with it is asked for before the first fetch; aiokafka gets the form that it reads."""
    async with reading(filled((3, 5), (5, 9)), 20, 5) as leader:
        response = await leader.told(request_, committed(3))
        if isinstance(request_, OffsetFetchRequest):
            rows = [{"partition": 0, "offset": 20, "metadata": "m", "error_code": 0}]
            assert response.to_object()["topics"] == [{"topic": "raw", "partitions": rows}]
        assert await leader.refused() == 20
        assert await leader.goes_on(LOST) == [*range(10, 28)]


@pytest.mark.parametrize("request_", FETCH_OFFSETS)
async def test_log_that_was_cut_behind_the_committed_offset(request_: Any) -> None:
    """With chunks more was delivered than the offset says. The epoch is that of the last record that was."""
    async with reading(filled((3, 10)), 0, 3) as leader:
        await leader.offsets()
        commit = OffsetCommitRequest("g", 4, "m", -1, [("raw", [(0, 4, NOTE)])])
        assert (await committing(leader.client, commit, NEW)).topics == [("raw", [(0, 4, 3, NOTE)])]
    async with reading(filled((2, 3), (3, 2), (5, 9)), 4, 5) as leader:
        await leader.told(request_, committed(3, 4, NOTE))
        assert await leader.refused() == 4
        assert leader.epochs.cut(PLACE) == LOST
        leader.epochs.begin(PLACE, None)
        assert await leader.offsets() == [*range(4, 28)]


async def test_log_with_all_that_was_delivered() -> None:
    """Epochs may have changed between the committed offset and what was delivered: that parts no logs."""
    log = filled((2, 3), (3, 7), (5, 2))
    async with reading(log, 4, 5) as leader:
        await leader.told(FETCH_OFFSETS[0], committed(3, 4, NOTE))
        leader.most = 1  # a batch at a time
        while leader.position < 12:
            await leader.poll()
        await leader.lead(filled((7, 1), until=log, cut=log.end), 7)
        await leader.offsets()
        assert leader.position == 26
        assert set(leader.asked) <= {3, 5}
        assert leader.epochs.cut(PLACE) is None


async def test_committed_offsets_that_there_are_not() -> None:
    """A partition without one, and one with an error that was the whole response's, say nothing."""
    async with reading(filled((3, 5)), 0, 3) as leader:
        request = OffsetFetchRequest("g", [("raw", [0, 1])])
        answered = await leader.told(request, committed(-1, -1, "", (1, -1, -1, "", 16, {})))
        assert answered.topics == [("raw", [(0, -1, "", 0), (1, -1, "", 16)])]
        assert leader.before(0) == -1


async def test_what_another_member_has_committed_is_compared() -> None:
    """A committed offset that comes later than the first records unsettles what was found of the leader."""
    async with reading(filled((3, 10)), 0, 4) as leader:
        for count in (1, 2):
            await leader.offsets()
            await leader.told(FETCH_OFFSETS[0], committed(3))
            leader.log = filled((3, 1), until=leader.log, cut=leader.log.end)
            await leader.offsets()
            assert len(leader.asked) == count


async def test_commit_behind_a_gap_has_the_epoch_of_the_record_there() -> None:
    """Compaction took what was between two leaders: the end of the first one's epoch is before the offset."""
    async with reading(filled((3, 5)), 0, 3) as leader:
        leader.epochs.read(PLACE, 10, 3)
        leader.epochs.read(PLACE, 18, 4)
        assert [leader.epochs._assigned()[PLACE].epoch_to_commit(offset, "") for offset in (12, 18, 30)] == [3, 4, 4]


WITHOUT: Any = [("raw", [(0, 9, "note")]), ("other", [(1, 7, "")])]
WITH_EPOCHS: Any = [("raw", [(0, 9, 3, "note")]), ("other", [(1, 7, -1, "")])]
COMMIT = OffsetCommitRequest("g", 4, "m", -1, WITHOUT)
IN_TRANSACTION = TxnOffsetCommitRequest("id", "g", 5, 6, WITHOUT)


@pytest.mark.parametrize(
    ("request_", "versions", "sent"),
    [
        (COMMIT, NEW, (7, ["g", 4, "m", None, WITH_EPOCHS])),
        (COMMIT, OLD, (3, ["g", 4, "m", -1, WITHOUT])),
        (IN_TRANSACTION, NEW, (2, ["id", "g", 5, 6, WITH_EPOCHS])),
        (IN_TRANSACTION, OLD, (0, ["id", "g", 5, 6, WITHOUT])),
    ],
)
async def test_commits_carry_epochs(request_: Any, versions: Any, sent: tuple[int, list[Any]]) -> None:
    """In a transaction or not, where the broker knows such a version; others get what aiokafka sends."""
    async with reading(filled((3, 10)), 0, 3) as leader:
        await leader.offsets()
        client = leader.client
        if request_ is IN_TRANSACTION:
            client = wired()
            leader.epochs.carry(client)
        found = await committing(client, request_, versions)
        assert (found.API_VERSION, [getattr(found, name) for name in found.SCHEMA.names]) == sent
        assert found.encode()
