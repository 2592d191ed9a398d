"""The output of a flow that delivers exactly once: a transactional producer for each lane."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from app.kafka.batches.bounds import Bounds
from app.pipeline.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiokafka import TopicPartition

    from app.cluster.preflight import Plan
    from app.config.settings import ClientSettings, PipelineSettings
    from app.kafka.broker_health import BrokerHealth
    from app.pipeline.budget import Share
    from app.pipeline.commits import Commits
    from app.pipeline.lane import Lane, Slot
    from app.pipeline.lanes import Lanes
    from app.pipeline.stats import PipelineStats
    from app.pipeline.termination import Termination
    from transforms.record import RecordLike

__all__ = ["Transactions"]

log = logging.getLogger(__name__)

_STARTING = 16  # producers at once


class Transactions:
    """As `Output`, in transactions, of which each lane has its own. Belongs to one event loop.

    Args:
        client: how to reach the cluster.
        settings: the pipeline's.
        plan: what the preflight found.
        share: the budget's bytes are given back when records are durable.
        lanes: of the flow.
        brokers: watched as each producer finds them.
        commits: say what may be committed, and hear what was.
        stats: what is counted.
        termination: of the flow, where a transaction fails.
    """

    # State that changes: `_of`, by `assign` and `stop`; a lane has its transaction before its first record.
    # `_stopping`: producers on their way out, whoever waits for that.

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        plan: Plan,
        share: Share,
        lanes: Lanes,
        *,
        brokers: BrokerHealth,
        commits: Commits,
        stats: PipelineStats,
        termination: Termination,
    ) -> None:
        self._client = client
        self._settings = settings
        self._plan = plan
        self._share = share
        self._lanes = lanes
        self._brokers = brokers
        self._commits = commits
        self._stats = stats
        self._termination = termination
        self._bounds = Bounds()
        self._of: dict[TopicPartition, Transaction] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Nothing: there is a producer for each lane, and there are no lanes yet."""

    async def assign(self, lanes: Sequence[Lane]) -> None:
        """Gives these lanes their producers, and stops those of others.

        Behind this nobody else commits offsets of their partitions, and what others had begun is aborted or committed:
        what is committed then is what this flow goes on from.

        Raises:
            KafkaError: a producer could not be started.
        """
        wanted = {lane.partition: lane for lane in lanes}
        going = [each for partition, each in self._of.items() if partition not in wanted or not each.idle]
        for each in going:
            del self._of[each.lane.partition]
        await self._stop(going)
        slots = asyncio.Semaphore(_STARTING)
        starting = []
        for partition, lane in wanted.items():
            found = self._of.get(partition)
            if found is not None:
                found.take(lane)
            else:
                starting.append(asyncio.create_task(self._start(lane, slots)))
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def _start(self, lane: Lane, slots: asyncio.Semaphore) -> None:
        made = Transaction(
            self._client,
            self._settings,
            self._plan,
            self._share,
            lane,
            self._lanes,
            brokers=self._brokers,
            commits=self._commits,
            bounds=self._bounds,
            stats=self._stats,
            termination=self._termination,
        )
        try:
            async with slots:
                await made.start()
        except BaseException:
            await self._stop([made])
            raise
        self._of[lane.partition] = made

    def append(self, lane: Lane, record: RecordLike, offset: int, held: int) -> None:
        """See `Output.append`."""
        self._of[lane.partition].append(record, offset, held)

    def write(self, lane: Lane, slot: Slot) -> None:
        """See `Output.write`."""
        self._of[lane.partition].write(slot)

    def flush(self) -> None:
        """See `Output.flush`."""
        for each in self._of.values():
            each.output.flush()

    def press(self) -> None:
        """See `Output.press`."""
        for each in self._of.values():
            each.output.press()

    async def settled(self) -> None:
        """See `Output.settled`."""
        await asyncio.gather(*(each.output.settled() for each in self._of.values()))

    def due(self) -> None:
        """Says that there may be something to commit in any lane."""
        for each in self._of.values():
            each.due()

    async def commit(self) -> None:
        """Commits what has left the lanes; what cannot be, because a write has failed, is left to be aborted."""
        self.due()
        await asyncio.gather(*(each.ended() for each in list(self._of.values())))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what is not committed of these partitions, whose lanes have been discarded."""
        for partition in partitions:
            each = self._of.get(partition)
            if each is not None and not each.idle:
                each.discard()

    def discard(self) -> None:
        """See `Output.discard`."""
        for each in self._of.values():
            each.discard()

    async def stop(self) -> None:
        """Aborts what is open, and stops the producers; raises nothing of aiokafka's."""
        stopping = list(self._of.values())
        self._of.clear()
        await self._stop(stopping)
        await asyncio.gather(*self._stopping)

    async def _stop(self, stopping: Sequence[Transaction]) -> None:
        """Stops them to the end, also where who waits does no more, as at one rebalance after another.

        One that is stopped by half would be there for good, with its connections.
        """
        task = asyncio.get_running_loop().create_task(self._stop_all(stopping))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        await asyncio.shield(task)

    async def _stop_all(self, stopping: Sequence[Transaction]) -> None:
        results = await asyncio.gather(*(each.stop() for each in stopping), return_exceptions=True)
        for each, result in zip(stopping, results, strict=True):
            if isinstance(result, (KafkaError, OSError)):
                log.info("pipeline %s: producer %s did not stop cleanly: %r", self._settings.name, each.id, result)
            elif isinstance(result, BaseException):
                raise result
