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

NEW: Mapping[int, tuple[int, int]] = {1: (4, 17), 3: (0, 13), 8: (2, 9), 9: (1, 9), 23: (2, 4), 28: (0, 5)}
OLD: Mapping[int, tuple[int, int]] = {1: (0, 8), 3: (0, 5), 8: (0, 4), 9: (0, 4), 23: (0, 1), 28: (0, 0)}


class Free:
    """Lets everything be fetched."""

    def fetched(self, size: int) -> None:
        """Counts nothing."""

    async def may_fetch(self) -> None:
        """Waits for nothing."""


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


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """Epoch and end of each batch."""
    return [(struct.unpack_from(">i", batch, 12)[0], end) for batch, end in zip(log.batches, log.ends, strict=True)]


class Leader(Reader):
    """aiokafka's fetcher, at the leader of the partition.

    Attributes:
        epoch: of the leader.
        epochs: watches the client.
        versions: that the broker knows.
        refusal: the error with which it answers for the end of an epoch; 0 for none.
        held: set if it answers at once for the end of an epoch.
        asking: set once it was asked.
        asked: for the ends of these epochs.
        fenced: the epochs of leaders that were in fetches.
        updated: how often metadata was asked for.
    """

    def __init__(self, log: Log, offset: int, epoch: int, versions: Mapping[int, tuple[int, int]] = NEW) -> None:
        super().__init__(log, offset, "read_uncommitted")
        self.epoch = epoch
        self.versions = versions
        self.refusal = 0
        self.held = asyncio.Event()
        self.held.set()
        self.asking = asyncio.Event()
        self.asked: list[int] = []
        self.fenced: list[int] = []
        self.updated = 0
        self.other: Any = None
        self.client.force_metadata_update = self._update
        self.epochs = LeaderEpochs(self.client, lambda: self.controls.assignment, 0.001)
        FetchedBatches(self.controls, Free(), self.epochs.read)

    def _update(self) -> asyncio.Future[None]:
        self.updated += 1
        return asyncio.get_running_loop().create_future()

    async def learn(self) -> None:
        """Metadata comes, as aiokafka asks for it."""
        response = await self.client.send(0, MetadataRequest(["raw"]))
        assert [row[:3] for row in response.topics[0][3]] == [(0, 0, 0)]

    async def told(self, request: Any, response: Any) -> Any:
        """What the consumer gets if the broker answers so."""
        self.other = response
        return await self.client.send(0, request)

    def before(self, offset: int) -> int:
        """The epoch of the last record before an offset; -1 if it is not known."""
        return self.epochs._assigned()[PLACE]._history.before(offset)

    async def _answer(self, call: Any) -> Any:
        request = call.request
        if isinstance(request, OffsetRequest):  # of what the coordinator has, before committed offsets
            return SimpleNamespace(topics=[])
        struct = call.prepare(self.versions)
        if isinstance(request, MetadataRequest):
            epochs = [self.epoch] if struct.API_VERSION >= 7 else []
            return struct.RESPONSE_TYPE(0, [], None, 0, [(0, "raw", False, [(0, 0, 0, *epochs, [0], [0], [])])])
        if isinstance(request, FetchEpochEnds):
            ((topic, ((number, current, epoch),)),) = struct.topics
            assert current == self.epoch
            self.asked.append(epoch)
            self.asking.set()
            await self.held.wait()
            below = [each for each in epochs_of(self.log) if each[0] <= epoch]
            found, end = max(below, default=(-1, -1))
            end = self.log.end if found == self.epoch else end
            return SimpleNamespace(topics=[(topic, [(self.refusal, number, found, end)])])
        if not isinstance(request, FetchRequest):
            return self.other
        self.sent += 1
        await asyncio.sleep(0)
        ((topic, ((number, current, offset, *_),)),) = struct.topics
        if struct.API_VERSION < 9:  # there is no epoch in it
            offset, current = current, -1
        self.fenced.append(current)
        data, aborted = self.log.read(offset, self.most)
        code = 0 if current in (-1, self.epoch) else 74 if current < self.epoch else 75
        code = 1 if not code and offset > self.log.end else code
        if code or not data:
            await asyncio.sleep(0.01)
        end = self.log.end
        preferred = [-1] if struct.API_VERSION >= 11 else []
        rows = (number, code, end, end, 0, aborted, *preferred, b"" if code else data)
        return SimpleNamespace(API_VERSION=struct.API_VERSION, topics=[(topic, [rows])])


@asynccontextmanager
async def reading(
    log: Log, offset: int, epoch: int, versions: Mapping[int, tuple[int, int]] = NEW
) -> AsyncIterator[Leader]:
    """A fetcher at a leader whose epoch the client knows."""
    leader = Leader(log, offset, epoch, versions)
    await leader.learn()
    try:
        yield leader
    finally:
        await leader.close()


async def offsets(leader: Leader) -> list[int]:
    """Of the records up to the end of the log."""
    return [each.offset for batch in await leader.read() for each in batch.records()]


async def polling(leader: Leader) -> None:
    """Until a poll raises something; none gives a record."""
    while True:
        assert not await leader.poll()


async def refused(leader: Leader) -> int:
    """The offset at which a poll is refused."""
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await polling(leader)
    offset: int = caught.value.args[0][PLACE]
    return offset


def go_on(leader: Leader, cut: Cut) -> None:
    """Begins again where the log parts, as `GroupConsumer.begin`."""
    leader.epochs.begin(PLACE, cut)
    leader.fetcher.seek_to(PLACE, cut.offset)


@pytest.mark.parametrize("grown", [0, 2, 5, 9])
async def test_log_that_was_cut_and_grew_again(grown: int) -> None:
    """Whether it is shorter, as long or longer by now: where the logs part is known, before a record is given."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        assert await offsets(leader) == list(range(20))
        leader.log, leader.epoch = filled((5, grown), until=old, cut=10), 5
        await leader.learn()
        assert await refused(leader) == 20
        cut = leader.epochs.cut(PLACE)
        assert cut == Cut(10, 3, 20)
        assert cut is not None
        go_on(leader, cut)
        assert leader.epochs.cut(PLACE) is None
        assert await offsets(leader) == list(range(10, 10 + 2 * grown))
        assert set(leader.asked) == {3}


async def test_leader_is_compared_when_it_has_answered() -> None:
    """Not from the time that metadata names another leader until that one has said where its log parts."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        assert leader.epochs.compared(PLACE, 20)  # nothing is known of what was read
        await offsets(leader)
        assert leader.epochs.compared(PLACE, 20)
        leader.log, leader.epoch, leader.refusal = filled((5, 2), until=old, cut=10), 5, 6
        await leader.learn()
        assert not leader.epochs.compared(PLACE, 20)
        poll = asyncio.ensure_future(refused(leader))
        await leader.asking.wait()
        assert not leader.epochs.compared(PLACE, 20)
        leader.refusal = 0
        assert await poll == 20
        assert leader.epochs.compared(PLACE, 20)


async def test_log_that_has_the_same_records() -> None:
    """A leader that was elected properly is asked once, and reading goes on."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await offsets(leader)
        leader.log, leader.epoch = filled((3, 1), (6, 8), until=old, cut=20), 6
        await leader.learn()
        assert await offsets(leader) == list(range(20, 38))
        assert leader.asked == [3]


async def test_only_the_leader_of_the_known_epoch_answers() -> None:
    """A fetch to another one is refused; then nothing is given, and metadata is asked for."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await offsets(leader)
        leader.log, leader.epoch = filled((5, 9), until=old, cut=10), 5
        sent = leader.sent
        while leader.sent < sent + 3:
            assert not await leader.poll()
        assert leader.updated > 0
        assert set(leader.fenced) <= {-1, 3}
        await leader.learn()
        assert await refused(leader) == 20


async def test_leader_without_records_of_its_epoch() -> None:
    """Where the consumer knows a bound only, logs that are the same do not part, though the bound is in neither."""
    old = filled((3, 10))
    async with reading(old, 20, 7) as leader:
        while leader.sent < 2:
            assert not await leader.poll()
        assert leader.before(20) == 7
        leader.log, leader.epoch = filled((8, 3), until=old, cut=20), 8
        await leader.learn()
        assert await offsets(leader) == list(range(20, 26))
        assert leader.asked == [7]


async def test_log_of_a_new_topic() -> None:
    """A leader of the same epoch cannot have lost records: the log is out of range as a whole, and not cut."""
    async with reading(filled((0, 10)), 0, 0) as leader:
        await offsets(leader)
        request = OffsetFetchRequest("g", [("raw", [0])])
        await leader.told(request, committed(0))
        leader.log = filled((0, 4))
        assert await refused(leader) == 20
        assert leader.epochs.cut(PLACE) is None
        assert leader.asked == []


async def test_leader_that_does_not_say() -> None:
    """Records of a leader that refuses to compare its log are not given; what it refuses for good is raised."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await offsets(leader)
        leader.log, leader.epoch, leader.refusal = filled((5, 9), until=old, cut=20), 5, 78
        await leader.learn()
        while len(leader.asked) < 3:
            assert not await leader.poll()
        leader.refusal = 29
        with pytest.raises(TopicAuthorizationFailedError):
            await polling(leader)
        leader.refusal = 0
        assert await offsets(leader) == list(range(20, 38))


async def test_leader_that_does_not_say_yet_where_its_shorter_log_parts() -> None:
    """That it lacks the offset is not told before: what was lost could not be counted, nor where it is."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await offsets(leader)
        leader.log, leader.epoch, leader.refusal = filled((5, 2), until=old, cut=10), 5, 6
        await leader.learn()
        while len(leader.asked) < 3:
            assert not await leader.poll()
        leader.refusal = 0
        assert await refused(leader) == 20
        assert leader.epochs.cut(PLACE) == Cut(10, 3, 20)


async def test_metadata_that_is_older_than_what_was_read() -> None:
    """Its leader is not asked for an epoch that it cannot know, nor is the fetch held to it."""
    async with reading(filled((3, 10)), 0, 2) as leader:
        assert await offsets(leader) == list(range(20))
        leader.log = filled((3, 2), until=leader.log, cut=20)
        assert await offsets(leader) == list(range(20, 24))
        assert leader.asked == []
        assert leader.fenced[-1] == -1


async def test_former_leader_that_takes_itself_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not have what was read from the next one. Reading waits for newer metadata, and begins nowhere anew."""
    old = filled((3, 5))
    new = filled((4, 5), until=old, cut=10)
    async with reading(new, 0, 4) as leader:
        assert await offsets(leader) == list(range(20))
        leader.log, leader.epoch = old, 3
        await leader.learn()
        before = leader.updated
        while leader.updated < before + 3:
            assert not await leader.poll()
        leader.log, leader.epoch = filled((4, 2), until=new, cut=20), 4
        await leader.learn()
        assert await offsets(leader) == list(range(20, 24))
        # It is no former leader for ever: the topic may be a new one, at brokers that do not tell topics apart.
        monkeypatch.setattr("transforms.epoch_history._OLDER_S", 0.1)
        leader.log, leader.epoch = old, 3
        await leader.learn()
        assert await refused(leader) == 24
        assert leader.epochs.cut(PLACE) is None


async def test_rebalance_while_logs_are_compared() -> None:
    """What a leader says of a former assignment is not taken for the next one, which has other offsets."""
    old = filled((3, 10))
    async with reading(old, 0, 3) as leader:
        await offsets(leader)
        leader.log, leader.epoch = filled((5, 9), until=old, cut=16), 5
        await leader.learn()
        leader.held = asyncio.Event()
        poll = asyncio.ensure_future(leader.poll())
        await leader.asking.wait()
        leader.subscription.unsubscribe()
        leader.subscription.assign_from_user({PLACE})
        leader.subscription.seek(PLACE, 0)
        assert leader.epochs.cut(PLACE) is None
        leader.held.set()
        await asyncio.sleep(0.05)
        assert leader.epochs.cut(PLACE) is None
        poll.cancel()


async def test_old_brokers() -> None:
    """A broker that knows no epochs in these requests is read by offsets alone."""
    async with reading(filled((3, 10)), 0, 3, OLD) as leader:
        await leader.learn()
        assert await offsets(leader) == list(range(20))
        assert (leader.asked, set(leader.fenced)) == ([], {-1})


@pytest.mark.parametrize("newest", [5, 7, 10])
async def test_topics_of_a_broker_that_gives_no_ids(newest: int) -> None:
    """The topic watcher reads the metadata of aiokafka then, and so that from which the epochs were taken."""
    async with reading(filled((3, 10)), 0, 3, {**NEW, 3: (0, newest)}) as leader:

        async def send(request: Any) -> Any:
            return await leader.client.send(0, request)

        found = await identities(send, ["raw"])
    assert found == {"raw": Identity(None, 1, {0: (1, 1)})}


async def test_broker_that_any_leader_may_answer() -> None:
    """Where a fetch has no epoch, its answer says nothing of the leader's, and no bound is taken from it."""
    async with reading(filled((3, 10)), 20, 3, {**NEW, 1: (4, 8)}) as leader:
        while leader.sent < 2:
            assert not await leader.poll()
        assert leader.before(20) == -1


async def test_broker_that_compares_no_logs() -> None:
    """Before Kafka 2.3 brokers let no consumer ask, though they know epochs: a change of leader stops nothing."""
    old = filled((3, 10))
    async with reading(old, 0, 3, {**NEW, 23: (0, 2)}) as leader:
        await offsets(leader)
        leader.log, leader.epoch = filled((5, 2), until=old, cut=20), 5
        await leader.learn()
        assert await offsets(leader) == list(range(20, 24))


async def test_records_without_epochs() -> None:
    """Where the leader has no epoch for what was read, nothing is claimed."""
    old = filled((-1, 5))
    async with reading(old, 10, 3) as leader:
        assert not await leader.poll()
        leader.log, leader.epoch = filled((-1, 3), until=old, cut=10), 4
        await leader.learn()
        leader.refusal = 0
        assert await offsets(leader) == list(range(10, 16))


async def test_end_of_a_log_where_nothing_was_read() -> None:
    """A consumer that has waited at the end from the first finds out as well: the leader's epoch is a bound."""
    old = filled((3, 10))
    async with reading(old, 20, 3) as leader:
        while leader.sent < 2:
            assert not await leader.poll()
        leader.log, leader.epoch = filled((5, 9), until=old, cut=10), 5
        await leader.learn()
        assert await refused(leader) == 20
        assert leader.epochs.cut(PLACE) == Cut(10, 3, 20)


def committed(epoch: int, offset: int = 20, note: str = "m") -> Any:
    """A response with a committed offset."""
    topics: Any = [("raw", [(0, offset, epoch, note, 0, {})], {})]
    return SimpleNamespace(throttle_time_ms=0, error_code=0, topics=topics)


async def committing(client: Any, commit: Any, versions: Any) -> Any:
    """What a client sends."""
    seen: list[Any] = []

    async def answer(call: Any) -> None:
        seen.append(call.prepare(versions))

    client._conns[0, 0] = Wire(answer)
    await client.send(0, commit)
    return seen[0]


@pytest.mark.parametrize("request_", [OffsetFetchRequest("g", [("raw", [0])]), FetchOffsets("g", [PLACE], stable=True)])
async def test_committed_offset_of_a_log_that_was_cut(request_: Any) -> None:
    """The epoch that is committed with it is asked for before the first fetch; aiokafka gets the form that it reads."""
    async with reading(filled((3, 5), (5, 9)), 20, 5) as leader:
        response = await leader.told(request_, committed(3))
        if isinstance(request_, OffsetFetchRequest):
            rows = [{"partition": 0, "offset": 20, "metadata": "m", "error_code": 0}]
            assert response.to_object()["topics"] == [{"topic": "raw", "partitions": rows}]
        assert await refused(leader) == 20
        assert leader.epochs.cut(PLACE) == Cut(10, 3, 20)
        go_on(leader, Cut(10, 3, 20))
        assert leader.before(10) == 3  # which is committed with this offset
        assert await offsets(leader) == list(range(10, 28))


NOTE = "wideload:delivered=20"


@pytest.mark.parametrize("request_", [OffsetFetchRequest("g", [("raw", [0])]), FetchOffsets("g", [PLACE], stable=True)])
async def test_log_that_was_cut_behind_the_committed_offset(request_: Any) -> None:
    """With chunks more was delivered than the offset says. The epoch is that of the last record that was."""
    async with reading(filled((3, 10)), 0, 3) as leader:
        await offsets(leader)
        commit = OffsetCommitRequest("g", 4, "m", -1, [("raw", [(0, 4, NOTE)])])
        seen = await committing(leader.client, commit, NEW)
        assert seen.topics == [("raw", [(0, 4, 3, NOTE)])]
    async with reading(filled((2, 3), (3, 2), (5, 9)), 4, 5) as leader:
        await leader.told(request_, committed(3, 4, NOTE))
        assert await refused(leader) == 4
        assert leader.epochs.cut(PLACE) == Cut(10, 3, 20)
        leader.epochs.begin(PLACE, None)
        assert await offsets(leader) == list(range(4, 28))


async def test_log_with_all_that_was_delivered() -> None:
    """Epochs may have changed between the committed offset and what was delivered: that parts no logs."""
    log = filled((2, 3), (3, 7), (5, 2))
    async with reading(log, 4, 5) as leader:
        request = OffsetFetchRequest("g", [("raw", [0])])
        await leader.told(request, committed(3, 4, NOTE))
        leader.most = 1  # a batch at a time
        while leader.position < 12:
            await leader.poll()
        leader.log, leader.epoch = filled((7, 1), until=log, cut=log.end), 7
        await leader.learn()
        assert await offsets(leader) == list(range(leader.position, 26)) or leader.position == 26
        assert set(leader.asked) <= {3, 5}
        assert leader.epochs.cut(PLACE) is None


async def test_committed_offsets_that_there_are_not() -> None:
    """A partition without one, and one with an error that was the whole response's, say nothing."""
    async with reading(filled((3, 5)), 0, 3) as leader:
        request = OffsetFetchRequest("g", [("raw", [0, 1])])
        found: Any = [("raw", [(0, -1, -1, "", 0, {}), (1, -1, -1, "", 16, {})], {})]
        answered = await leader.told(request, SimpleNamespace(throttle_time_ms=0, error_code=0, topics=found))
        assert answered.topics == [("raw", [(0, -1, "", 0), (1, -1, "", 16)])]
        assert leader.before(0) == -1


async def test_what_another_member_has_committed_is_compared() -> None:
    """A committed offset that comes later than the first records unsettles what was found of the leader."""
    async with reading(filled((3, 10)), 0, 4) as leader:
        request = OffsetFetchRequest("g", [("raw", [0])])
        for count in (1, 2):
            await offsets(leader)
            await leader.told(request, committed(3))
            leader.log = filled((3, 1), until=leader.log, cut=leader.log.end)
            await offsets(leader)
            assert len(leader.asked) == count


async def test_rebalance_forgets() -> None:
    """What was read in a former assignment says nothing: another member may have gone on, in another log."""
    async with reading(filled((3, 10)), 0, 3) as leader:
        await offsets(leader)
        assert leader.before(20) == 3
        leader.subscription.unsubscribe()
        leader.subscription.assign_from_user({PLACE})
        assert leader.before(20) == -1


async def test_commit_behind_a_gap_has_the_epoch_of_the_record_there() -> None:
    """Compaction took what was between two leaders: the end of the first one's epoch is before the offset."""
    async with reading(filled((3, 5)), 0, 3) as leader:
        leader.epochs.read(PLACE, 10, 3)
        leader.epochs.read(PLACE, 18, 4)
        assert [leader.epochs._assigned()[PLACE].epoch_to_commit(offset, "") for offset in (12, 18, 30)] == [3, 4, 4]


COMMIT = OffsetCommitRequest("g", 4, "m", -1, [("raw", [(0, 9, "note")]), ("other", [(1, 7, "")])])
IN_TRANSACTION = TxnOffsetCommitRequest("id", "g", 5, 6, [("raw", [(0, 9, "note")]), ("other", [(1, 7, "")])])
WITH_EPOCHS = [("raw", [(0, 9, 3, "note")]), ("other", [(1, 7, -1, "")])]
WITHOUT = [("raw", [(0, 9, "note")]), ("other", [(1, 7, "")])]


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
        await offsets(leader)
        client = leader.client
        if isinstance(request_, TxnOffsetCommitRequest):
            client = wired()
            leader.epochs.carry(client)
        struct_ = await committing(client, request_, versions)
        assert (struct_.API_VERSION, [getattr(struct_, name) for name in struct_.SCHEMA.names]) == sent
        assert struct_.encode()
