"""The delivery of a flow: writes what leaves the lanes, and commits how far it has come, by its guarantee."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from app.kafka.batches.bounds import Bounds
from app.kafka.clients import describe, translated
from app.kafka.errors import GroupMovedOnError, KafkaError
from app.kafka.shielded import shielded
from app.kafka.structs import OffsetAndMetadata, TopicPartition
from app.pipeline.committed_offsets import CommittedOffsets
from app.pipeline.lane import Lane
from app.pipeline.output import Output
from app.pipeline.pace import Pace
from app.pipeline.parts import Parts
from app.pipeline.transaction import Transaction
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_STARTING = 16  # producers that start at the same time

# Of transactions that end because nothing more is available. Fifteen partitions with records, and an interval of
# 100 ms, make as many a second all the time.
_PER_SECOND = 150
_AT_ONCE = 16
_UNDER_WAY = 2.0


class AtLeastOnce(Output):
    """One output for all lanes, which commits what is durable.

    Attributes:
        offsets: the committed offsets from which the flow continues.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, parts.share.give, self.due)
        self.offsets = CommittedOffsets(parts, self._fetch)
        self._is_due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._committing: asyncio.Task[None] | None = None

    async def _fetch(self, lanes: Sequence[Lane]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await self._parts.source.commits([lane.partition for lane in lanes])

    async def start(self) -> None:
        """Reaches the cluster; raises `KafkaError`."""
        await self.writer.start()
        self._committing = self._parts.termination.begin(self._commit_regularly(), lasting=True)

    def output_of(self, lane: Lane) -> AtLeastOnce:  # noqa: ARG002  # it is that of all lanes
        """What writes the records of a lane."""
        return self

    def due(self) -> None:
        """Notes that there may be something to commit."""
        self._is_due.set()

    async def _commit_regularly(self) -> None:
        while True:
            # As soon as something is durable, then at most once an interval: a worker that is killed soon after its
            # start has committed what it had done.
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self.commit()
            except KafkaError as exc:
                what = f"committing offsets of group {self._parts.settings.group_id}"
                self._parts.termination.fail(translated(exc, what))
                return
            await asyncio.sleep(self._parts.settings.flush_interval_ms / 1000)

    async def commit(self) -> None:
        """Commits what is durable. If the group has moved on, that is not a failure: the records are read again.

        Raises:
            KafkaError: the cluster did not take the offsets.
        """
        # aiokafka tries a commit again: an older one could follow that of a revocation.
        async with self._turn:
            commits = {lane: commit for lane in self._parts.lanes if (commit := lane.to_commit())}
            if not commits:
                return
            try:
                await self._parts.source.commit({lane.partition: commit for lane, commit in commits.items()})
            except GroupMovedOnError as exc:
                log.info(
                    "pipeline %s: offsets not committed, the group has moved on: %s", self._parts.settings.name, exc
                )
                return
            self._parts.stats.commits += 1
            for lane, commit in commits.items():
                lane.mark_committed(*commit)

    def press(self) -> None:
        """Sends what has been written without lingering; does not wait."""
        self.writer.press()

    async def settled(self) -> None:
        """Waits until no batch is on its way; what waits behind is not sent once a write has failed."""
        await self.writer.settled()

    def forget(self) -> None:
        """Forgets what is not committed of lanes that have been discarded, and all `offsets`."""
        self.offsets.forget()
        if not len(self._parts.lanes):
            # The next owners write it, and may have written more by the time it went out from here. What is on its way
            # already may still be written.
            for origins in self.writer.drop():
                self._give(origins.held)

    async def stop(self) -> None:
        """Forgets what was not sent, and stops the producer without waiting for batches that it still holds.

        An old batch must not be sent once the next flow has begun. Drained flows hold none.
        """
        if self._committing is not None:
            self._committing.cancel()
        await self.writer.stop()


class ExactlyOnce:
    """Gives each lane a separate transactional producer, whose transactions commit the offsets too.

    Attributes:
        offsets: the committed offsets from which the flow continues.
    """

    # State that changes: `_of`, by `assign` and `stop`; a lane has its transaction before its first record.
    # `_stopping`: stops of producers, which continue although their caller may have been cancelled.

    def __init__(self, parts: Parts) -> None:
        self.offsets = CommittedOffsets(parts, self._take_over)
        self._parts = parts
        self._bounds = Bounds()
        self._pace = Pace(_PER_SECOND, _AT_ONCE, _UNDER_WAY)
        self._of: dict[TopicPartition, Transaction] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    # --- partitions --------------------------------------------------------------------------------------------------

    async def _take_over(self, lanes: Sequence[Lane]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Takes the partitions over from their last owners, and lets the client read from the committed offsets."""
        # In this order: until a partition has a producer of this flow, another one may commit.
        try:
            await self.assign(lanes)
        except KafkaError as exc:
            raise translated(exc, "starting a transactional producer") from exc
        commits = await self._parts.source.commits([lane.partition for lane in lanes], stable=True)
        # The client may have begun to read where the group was before.
        for partition, commit in commits.items():
            self._parts.source.seek(partition, commit.offset)
        return commits

    async def assign(self, lanes: Sequence[Lane]) -> None:
        """Gives these lanes their producers, and stops the producers of other lanes.

        Afterwards no other producer commits offsets of their partitions, and their open transactions are aborted or
        committed. The flow can therefore continue from the offsets that are committed then.

        Raises:
            KafkaError: a producer could not be started.
        """
        wanted = {lane.partition: lane for lane in lanes}
        going = [place for place, each in self._of.items() if place not in wanted or not each.idle]
        await self._stop([self._of.pop(place) for place in going])
        for place, each in self._of.items():
            each.lane = wanted.pop(place)
        slots = asyncio.Semaphore(_STARTING)
        starting = [asyncio.create_task(self._start(lane, slots)) for lane in wanted.values()]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def _start(self, lane: Lane, slots: asyncio.Semaphore) -> None:
        made = Transaction(self._parts, lane, self._bounds, self._pace)
        try:
            async with slots:
                await made.start()
        except BaseException:
            await self._stop([made])
            raise
        self._of[lane.partition] = made

    def forget(self) -> None:
        """See `AtLeastOnce.forget`."""
        self.offsets.forget()
        for each in self._of.values():
            if not each.idle and not self._parts.lanes.has(each.lane):
                each.discard()

    # --- records -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Nothing: each lane has a producer, and there are no lanes yet."""

    def output_of(self, lane: Lane) -> Transaction:
        """See `AtLeastOnce.output_of`; so with the others."""
        return self._of[lane.partition]

    def flush(self) -> None:
        for each in self._of.values():
            each.flush()

    def press(self) -> None:
        for each in self._of.values():
            each.output.writer.press()

    async def settled(self) -> None:
        await asyncio.gather(*(each.output.writer.settled() for each in self._of.values()))

    def due(self) -> None:
        for each in self._of.values():
            each.due()

    async def commit(self) -> None:
        """Ends all transactions. One in which a write has failed is left to be aborted; if it fails, the flow ends."""
        self.due()
        await asyncio.gather(*(each.finish() for each in list(self._of.values())))

    # --- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Forgets what is not committed, aborts what is open, and stops the producers; raises no `KafkaError`."""
        stopping, self._of = self._of, {}
        await self._stop(stopping.values())
        await asyncio.gather(*self._stopping)

    async def _stop(self, stopping: Iterable[Transaction]) -> None:
        """Stops producers to the end, even if the caller is cancelled, as by one rebalance after another.

        A producer that is half stopped would stay for good, with its connections.
        """
        tasks = {asyncio.create_task(self._stop_one(each)) for each in stopping}
        self._stopping |= tasks
        for task in tasks:
            task.add_done_callback(self._stopping.discard)
        await shielded(asyncio.gather(*tasks))

    async def _stop_one(self, each: Transaction) -> None:
        try:
            await each.stop()
        except (KafkaError, OSError) as exc:
            name = self._parts.settings.name
            log.info("pipeline %s: producer %s did not stop cleanly: %s", name, each.id, describe(exc))


Delivery = AtLeastOnce | ExactlyOnce
