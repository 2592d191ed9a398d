"""Leader epochs of a consumer (KIP-320): they tell when a log is not the one any more that was read.

After an unclean election, or if a broker has lost what it had not flushed, the end of a log is gone, and others may
write other records at the same offsets. The offset alone does not show that, however long the new log is; the epoch of
the last record that was read does. So:

- metadata says which epoch the leader of a partition has, and a fetch goes to the leader of that epoch only: any other
  one refuses it;
- before the first fetch from the leader of another epoch, it is asked where its log has the end of the epoch that was
  read last. If that is before the offset from which reading goes on, the logs part there;
- a committed offset carries the epoch of the record before it, so that the next consumer can ask as well.

aiokafka has none of this. What it asks and answers is changed on its way. A log that was cut is an offset out of range
for it; `LeaderEpochs.cut` says more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import TxnOffsetCommitRequest

from app.kafka.epoch_requests import (
    CommittedEpoch,
    EpochEnd,
    FetchEpochEnds,
    asking_for_epochs,
    committing_epochs,
    fetching_from,
    take_committed_epochs,
    take_leader_epochs,
)
from app.kafka.stable_offsets import FetchStableOffsets
from app.kafka.watched_client import Send, prepared, remade, watch_requests, watch_sends
from transforms.commit_metadata import noted
from transforms.epoch_history import NO_EPOCH, EpochHistory

__all__ = ["Cut", "LeaderEpochs"]

_NONE = 0
_OLDER_S = 10.0  # metadata is not older for so long; and a topic that was created anew is noticed before
_FENCED, _UNKNOWN = 74, 75  # FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH, which aiokafka does not know


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log of a partition parts from the one that was read.

    Attributes:
        offset: up to which both are the same.
        epoch: of the last record before it.
        read: up to which the other one was read, or delivered.
    """

    offset: int
    epoch: int
    read: int


@dataclass(slots=True)
class _Partition:
    """What is known of an assigned partition.

    Attributes:
        history: the epochs of what was read.
        delivered: behind the last record that was delivered before the assignment, and its epoch: a commit cannot pass
            a message whose chunks are not all there.
        leader: the epoch of the leader whose log was found to be the one that was read; None if none was asked yet.
        cut: what was found instead.
        older_s: since when metadata names a leader that is older than what was read; None if it does not.
    """

    history: EpochHistory = field(default_factory=EpochHistory)
    delivered: tuple[int, int] = 0, NO_EPOCH
    leader: int | None = None
    cut: Cut | None = None
    older_s: float | None = None

    def waits(self, leader: int, now_s: float) -> bool:
        """Whether newer metadata is waited for, if what was read is newer than a leader; True for `_OLDER_S`."""
        if leader == NO_EPOCH:
            return False
        if self.older_s is None:
            self.older_s = now_s
        return now_s - self.older_s < _OLDER_S


class LeaderEpochs:
    """Watches one consumer. Belongs to its event loop.

    Brokers before Kafka 2.3 have not all that is needed; the consumer then reads by offsets alone.

    Args:
        client: of a consumer that has not been started.
        assignment: gives aiokafka's state of the assigned partitions, another object after each rebalance.
        pause_s: how long a response is held back if a leader does not say where its log has the end of an epoch.
    """

    # State that changes: `_leaders`, with metadata; `_partitions`, with each assignment.

    def __init__(self, client: AIOKafkaClient, assignment: Callable[[], object], pause_s: float) -> None:
        self._client = client
        self._assignment = assignment
        self._pause_s = pause_s
        self._leaders: dict[TopicPartition, int] = {}
        self._of: object = None
        self._partitions: defaultdict[TopicPartition, _Partition] = defaultdict(_Partition)
        watch_sends(client, self._sent)
        watch_requests(client, self._watched)
        self.carry(client)

    # --- what the consumer does --------------------------------------------------------------------------------------

    def carry(self, client: AIOKafkaClient) -> None:
        """Lets the offsets that a client commits carry their epochs, in transactions too."""
        watch_requests(client, self._commit)

    def read(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        """Takes in that a batch was read, which begins at an offset; -1 for an epoch that is not known."""
        self._at(partition).history.read(offset, epoch)

    def cut(self, partition: TopicPartition) -> Cut | None:
        """Where the log was cut below the offset from which reading was to go on; None if it was not."""
        return self._at(partition).cut

    def compared(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the leader that metadata names has said where its log parts from what was read up to an offset."""
        found, leader = self._at(partition), self._leaders.get(partition, NO_EPOCH)
        epoch = found.history.before(offset)
        return found.cut is not None or NO_EPOCH in (epoch, leader) or leader in (epoch, found.leader)

    def begin(self, partition: TopicPartition, at: Cut | None) -> None:
        """Takes in that a partition is read again, in a log that is another one altogether, or was cut."""
        found = self._at(partition)
        found.leader, found.cut, found.delivered = None, None, (0, NO_EPOCH)
        if at is None:
            found.history = EpochHistory()
        else:
            found.history.reached(at.offset, at.epoch)

    def before(self, partition: TopicPartition, offset: int) -> int:
        """The epoch of the last record before an offset of a partition; -1 if it is not known."""
        return self._at(partition).history.before(offset)

    def _at(self, partition: TopicPartition) -> _Partition:
        return self._assigned()[partition]

    def _assigned(self) -> defaultdict[TopicPartition, _Partition]:
        of = self._assignment()
        if of is not self._of:
            self._of, self._partitions = of, defaultdict(_Partition)
        return self._partitions

    # --- commits and metadata ----------------------------------------------------------------------------------------

    async def _commit(self, _: str, request: Any, send: Send) -> Any:
        if not isinstance(request, (OffsetCommitRequest, TxnOffsetCommitRequest)):
            return await send()
        with remade(request, lambda struct, versions: committing_epochs(struct, versions, self._committed)):
            return await send()

    def _committed(self, partition: TopicPartition, offset: int, metadata: str) -> int:
        """The epoch that goes with an offset: that of the last record that was delivered, if that is behind it.

        If the record at the offset was read, it is that record's. Compaction may have taken those before it: the epoch
        of the last one ends before the offset, as if the log had been cut there.
        """
        found, end = self._at(partition), _delivered(offset, metadata)
        found.history.settle(offset)
        return found.delivered[1] if end == found.delivered[0] else found.history.before(end + 1)

    def _note_committed(self, epochs: Iterable[CommittedEpoch]) -> None:
        for partition, offset, epoch, metadata in epochs:
            found = self._at(partition)
            found.history.reached(offset, epoch)
            found.delivered = _delivered(offset, metadata), epoch
            found.leader = None  # another member may have committed it

    def _sent(self, _: object, request: Any, send: Send) -> Awaitable[Any]:
        # Metadata is asked for past the client's own `send`.
        return self._asked_for_leaders(request, send) if isinstance(request, MetadataRequest) else send()

    async def _asked_for_leaders(self, request: MetadataRequest, send: Send) -> Any:
        with remade(request, asking_for_epochs):
            response, epochs = take_leader_epochs(await send())
        self._leaders.update(epochs)
        return response

    # --- fetches -----------------------------------------------------------------------------------------------------

    async def _watched(self, _: str, request: Any, send: Send) -> Any:
        if isinstance(request, FetchRequest):
            return await self._fetch(request, send)
        if isinstance(request, OffsetFetchRequest):
            with remade(request, asking_for_epochs):
                response, epochs = take_committed_epochs(await send())
            self._note_committed(epochs)
            return response
        response = await send()
        if isinstance(request, FetchStableOffsets):
            self._note_committed(FetchStableOffsets.epochs(response))
        return response

    async def _fetch(self, request: FetchRequest, send: Send) -> Any:
        # Each fetch comes through here, with all partitions of a broker.
        of, assigned, held = self._assignment(), self._assigned(), False
        offsets = {
            TopicPartition(topic, number): offset for topic, wanted in request.topics for number, offset, _ in wanted
        }
        leaders: dict[TopicPartition, int] = {}
        changed: list[tuple[TopicPartition, int, int]] = []
        unknown: list[TopicPartition] = []
        older: list[TopicPartition] = []
        now_s = asyncio.get_running_loop().time()
        for partition, offset in offsets.items():
            found, leader = assigned[partition], self._leaders.get(partition, NO_EPOCH)
            end, epoch = found.delivered
            if offset < end:
                offsets[partition] = end
            else:
                epoch = found.history.before(offset)
            if leader < epoch:
                # Metadata is older than what was read; or the topic is another one, which a `TopicWatcher` finds out.
                older += [partition] if found.waits(leader, now_s) else []
                leader = NO_EPOCH
            else:
                found.older_s = None
            leaders[partition] = leader
            if epoch == NO_EPOCH:
                unknown.append(partition)
            elif epoch < leader != found.leader:
                # A leader loses nothing without another epoch: if its log ends before, it is that of a new topic.
                changed.append((partition, leader, epoch))
        refused = await self._compare(assigned, changed, offsets) if changed else {}
        fenced: list[bool] = []
        with prepared(request, lambda struct: fenced.append(fetching_from(struct, leaders.values()))):
            response = await send()
        if of is self._assignment():  # else it is of no use any more
            answered = _answered(response, refused, unknown)
            held = _held(response, older)
            for partition in unknown if fenced[-1:] == [True] else ():
                # The epoch of the last record is not known, but it is not above that of the leader which has it.
                if partition in answered and assigned[partition].history.before(offsets[partition]) == NO_EPOCH:
                    assigned[partition].history.reached(offsets[partition], leaders[partition])
                    assigned[partition].leader = leaders[partition]
        if held or NotLeaderForPartitionError.errno in refused.values():
            await asyncio.sleep(self._pause_s)
        return response

    async def _compare(
        self,
        assigned: Mapping[TopicPartition, _Partition],
        changed: Iterable[tuple[TopicPartition, int, int]],
        offsets: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Compares the logs of leaders with what was read; returns the errors of partitions that must not be read.

        Args:
            assigned: what is known of the partitions; it is not that of the next assignment, if that comes meanwhile.
            changed: of each partition the epoch of its leader, and that of the last record.
            offsets: behind that record.

        Raises:
            KafkaError: a leader does not answer.
        """
        asked: dict[int, list[tuple[TopicPartition, int, int]]] = defaultdict(list)
        for each in changed:
            node = self._client.cluster.leader_for_partition(each[0])
            asked[-1 if node is None else node].append(each)
        refused = {partition: NotLeaderForPartitionError.errno for partition, _, _ in asked.pop(-1, ())}
        for node, wanted in asked.items():
            try:
                ends = FetchEpochEnds.ends(await self._client.send(node, FetchEpochEnds(wanted)))
            except IncompatibleBrokerVersion:
                ends = {partition: EpochEnd(_NONE, NO_EPOCH, -1) for partition, _, _ in wanted}
            for partition, leader, _ in wanted:
                end = ends.get(partition)
                if end is None or end.code != _NONE:
                    forbidden = end is not None and end.code == TopicAuthorizationFailedError.errno
                    error = TopicAuthorizationFailedError if forbidden else NotLeaderForPartitionError
                    refused[partition] = error.errno
                    continue
                found = assigned[partition]
                found.cut = _parting(offsets[partition], end)
                if found.cut is None:
                    found.leader = leader
                else:
                    refused[partition] = OffsetOutOfRangeError.errno
        return refused


def _answered(
    response: Any, refused: Mapping[TopicPartition, int], unknown: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    """Puts errors in the place of records, and those that aiokafka knows in the place of others.

    Returns:
        The partitions that were answered without an error; perhaps none of those that are not `unknown`.
    """
    answered: set[TopicPartition] = set()
    looks = bool(refused or unknown)
    for topic, partitions in response.topics:
        for at, row in enumerate(partitions):
            number, code, *_ = row
            if code in (_FENCED, _UNKNOWN):
                partitions[at] = number, NotLeaderForPartitionError.errno, *row[2:]
            elif looks and code in (_NONE, OffsetOutOfRangeError.errno):
                partition = TopicPartition(topic, number)
                if partition in refused:
                    # A shorter log lacks the offset. That may be said only with the cut, which is not known yet.
                    partitions[at] = number, refused[partition], *row[2:]
                elif code == _NONE:
                    answered.add(partition)
    return answered


def _held(response: Any, older: Collection[TopicPartition]) -> bool:
    """Takes back what a former leader says of offsets that it has not: another one may have them. True if it does."""
    held = False
    for topic, partitions in response.topics if older else ():
        for at, row in enumerate(partitions):
            if row[1] == OffsetOutOfRangeError.errno and TopicPartition(topic, row[0]) in older:
                partitions[at] = row[0], NotLeaderForPartitionError.errno, *row[2:]
                held = True
    return held


def _parting(offset: int, end: EpochEnd) -> Cut | None:
    """Where a log parts from the one that was read up to an offset; None if it does not, or that is not known."""
    if NO_EPOCH in (end.epoch, end.offset):
        return None  # its records are of an old format, without epochs
    return Cut(end.offset, end.epoch, offset) if end.offset < offset else None


def _delivered(offset: int, metadata: str) -> int:
    """Behind the last record that was delivered: the committed offset, or what its metadata says."""
    note = noted(metadata) if metadata else None
    return offset if note is None else max(offset, note.delivered)
