"""The transactions of one source partition, one after the other: its results, and how far it has come, go together.

Whoever has the partition next begins with a producer of the same `transactional.id`, which ends what this one has left,
and lets no more of it pass (fencing). That holds by the producer alone: aiokafka's offsets in transactions do not say
of which generation of the group they are, so each source partition has a producer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from aiokafka.errors import IllegalOperation, InvalidProducerEpoch, KafkaError, KafkaTimeoutError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from app.config.guarantee import TIMEOUT
from app.kafka.clients import translated
from app.kafka.producer import ProducerControls
from app.pipeline.budget import Part
from app.pipeline.lane import Slot, held_bytes
from app.pipeline.output import Output
from transforms.identifiers import transactional_id

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

    from app.cluster.preflight import Plan
    from app.config.settings import ClientSettings, PipelineSettings
    from app.kafka.batches.bounds import Bounds
    from app.kafka.broker_health import BrokerHealth
    from app.pipeline.budget import Share
    from app.pipeline.commits import Commits
    from app.pipeline.lane import Lane
    from app.pipeline.lanes import Lanes
    from app.pipeline.stats import PipelineStats
    from app.pipeline.termination import Termination
    from transforms.record import RecordLike

__all__ = ["Transaction"]

log = logging.getLogger(__name__)

_START_S = 60.0
_ABORT_S = 3.0


class Transaction:
    """Writes what leaves one lane, in transactions. Belongs to one event loop.

    The first record opens one; so does an offset that can be committed though nothing is written. It ends when it is
    old or large enough (`transaction.boundary.*`). While it ends, records wait here for the next one; they hold their
    bytes of the budget already.

    Args:
        client: how to reach the cluster.
        settings: the pipeline's.
        plan: what the preflight found.
        share: the budget's bytes are given back when records are durable.
        lane: of the source partition.
        lanes: of the flow; for one that is no longer among them nothing is committed.
        brokers: watched as the producer finds them.
        commits: say what may be committed.
        bounds: of what is on its way, in the transactions of all lanes.
        stats: what is counted.
        termination: of the flow, where a transaction fails.

    Attributes:
        lane: of the source partition, as it is assigned now.
        id: the `transactional.id`.
    """

    # State that changes, on the event loop alone. Nothing is open: no `_timer`. Open: a `_timer`. Ending: `_shut` too,
    # and `_ends`. Failed, or of no use any more: `_over` too, and records wait here for nothing.

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        plan: Plan,
        share: Share,
        lane: Lane,
        lanes: Lanes,
        *,
        brokers: BrokerHealth,
        commits: Commits,
        bounds: Bounds,
        stats: PipelineStats,
        termination: Termination,
    ) -> None:
        self.lane = lane
        self.id = transactional_id(settings.name, lane.partition.topic, lane.partition.partition)
        self._settings = settings
        self._lanes = lanes
        self._brokers = brokers
        self._commits = commits
        self._stats = stats
        self._termination = termination
        self._part = Part(share)
        self.output = Output(
            client,
            settings,
            plan,
            self._part,
            brokers=brokers,
            stats=stats,
            termination=termination,
            durable=self.due,
            transactional_id=self.id,
            bounds=bounds,
        )
        self._producer: AIOKafkaProducer = self.output.producer
        self._controls = ProducerControls(self._producer)
        self._limit = settings.guarantee.size
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ends: asyncio.Task[None] | None = None
        self._shut = False
        self._over = False
        self._backlog: deque[Slot | tuple[RecordLike, int, int]] = deque()

    # --- beginning ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the `transactional.id`: what another producer had begun with it is aborted, or committed to its end.

        Where this fails, `stop` lets go of what there is.

        Raises:
            KafkaError: the cluster does not let it.
        """
        try:
            async with asyncio.timeout(_START_S) as timeout:
                await self.output.start()
        except TimeoutError as exc:
            if not timeout.expired():
                raise
            raise KafkaTimeoutError(
                f"transactional.id {self.id}: no coordinator in {_START_S:g} s; its log takes as many brokers in sync "
                "as transaction.state.log.min.isr says"
            ) from exc

    @property
    def idle(self) -> bool:
        """True where nothing is open, and nothing has gone wrong: the next transaction may begin."""
        return self._timer is None and not self._shut and not self.output.failed

    def take(self, lane: Lane) -> None:
        """Goes on with a partition that has been assigned again; only where `idle`."""
        self.lane = lane

    # --- writing -----------------------------------------------------------------------------------------------------

    def append(self, record: RecordLike, offset: int, held: int) -> None:
        """See `Output.append`."""
        self._part.used += held
        if self._shut:
            self._wait((record, offset, held))
            return
        if self._timer is None:
            self._begin()
        self.output.append(self.lane, record, offset, held)
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def write(self, slot: Slot) -> None:
        """See `Output.write`: all of a slot's results go in one transaction."""
        assert slot.result is not None
        held = sum(map(held_bytes, slot.result))
        self._part.used += held
        if self._shut:
            self._wait(slot)
            return
        self._write(slot, held)

    def _write(self, slot: Slot, held: int) -> None:
        if slot.result and self._timer is None:
            self._begin()
        try:
            self.output.write(self.lane, slot)
        except BaseException:
            self._over = True  # some of its results may be there, and others never come: this is not to be committed
            raise
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def _wait(self, left: Slot | tuple[RecordLike, int, int]) -> None:
        self._backlog.append(left)
        self.lane.waiting += 1

    def due(self) -> None:
        """Says that there may be something to commit, though nothing was written."""
        if self._timer is None and not self._shut and self._commits.of(self.lane) is not None:
            self._begin()

    def _begin(self) -> None:
        self._controls.begin_transaction()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.guarantee.interval_ms / 1000, self.end)

    # --- ending ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Begins to end the transaction, if one is open; does not wait."""
        if self._shut or self._timer is None:
            return
        self._timer.cancel()
        self._shut = True
        self._ends = asyncio.get_running_loop().create_task(self._end())

    async def ended(self) -> None:
        """Ends what is open, and what waits for the next transaction too; waits until nothing is, or it has failed."""
        while not self._over:
            self.end()
            if self._ends is None:
                return
            await asyncio.wait([self._ends])

    async def _end(self) -> None:
        limit_s = self._settings.guarantee.timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s) as timeout:
                if self.output.failed or self._over or not await self._commit():
                    self._over = True
                    return
        except (KafkaError, IllegalOperation, OSError, TimeoutError) as exc:
            self._over = True
            told: BaseException = exc
            if isinstance(exc, TimeoutError) and timeout.expired():
                told = KafkaTimeoutError(f"it has not ended in the {limit_s:g} s of {TIMEOUT}")
            self._termination.fail(translated(told, f"committing a transaction of {self.id}"))
            return
        except Exception as exc:  # noqa: BLE001  # or the lane would wait for ever
            self._over = True
            self._termination.fail_by_defect(exc)
            return
        self._timer, self._ends, self._shut, self._bytes = None, None, False, 0
        self._go_on()

    async def _commit(self) -> bool:
        """False where a write has failed, which ends the flow, or the partition was given up meanwhile."""
        await self.output.finished()
        if self.output.failed or not self._lanes.holds(self.lane):
            return False
        lane = self.lane
        commit = self._commits.of(lane)
        if commit is not None:
            offsets = {lane.partition: OffsetAndMetadata(*commit)}
            await self._producer.send_offsets_to_transaction(offsets, self._settings.group_id)
        await self._producer.commit_transaction()
        self._stats.transactions += 1
        if commit is not None:
            self._stats.commits += 1
            self._commits.made(lane, *commit)
        return True

    def _go_on(self) -> None:
        """Lets what has waited into the next transaction, or as much of it as fits."""
        while self._backlog and not self._shut:
            left = self._backlog.popleft()
            self.lane.waiting -= 1
            try:
                if isinstance(left, Slot):
                    assert left.result is not None
                    self._write(left, sum(map(held_bytes, left.result)))
                else:
                    self._part.used -= left[2]
                    self.append(*left)
            except Exception as exc:  # noqa: BLE001  # in a task of its own: raised, it would be seen by nobody
                self._over = self._shut = True
                self._termination.fail_by_defect(exc)
                return
        self.output.flush()
        self.due()

    # --- giving up ---------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Forgets what is not committed: the lane's partition is another's, or is read again."""
        self._over = self._shut = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ends is not None:
            self._ends.cancel()
        self._backlog.clear()
        self.output.discard()
        self._part.close()

    async def stop(self) -> None:
        """Stops the producer; aborts what is open, so that readers need not wait for it. Raises aiokafka's errors."""
        self.discard()
        self._brokers.forget(self._producer.client)
        try:
            fenced = isinstance(self.output.failure, (ProducerFenced, InvalidProducerEpoch))
            await self._controls.release_transaction(_ABORT_S, abort=not fenced)
        finally:
            await self.output.stop()
