"""The transactions of one source partition, one after the other: each commits results together with their offset.

The next owner of the partition begins with a producer of the same `transactional.id`, which ends the transaction that
this one has left open, and fences it. The producer alone has to do this: the offsets in transactions of aiokafka do
not say of which generation of the group they are. So each source partition has a producer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum

from app.config.guarantee import TIMEOUT
from app.kafka.batches.bounds import Bounds
from app.kafka.clients import translated
from app.kafka.errors import IllegalOperation, KafkaError, KafkaTimeoutError
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import TopicPartition
from app.pipeline.budget import Part, Share
from app.pipeline.lane import Item, Lane, Skipped
from app.pipeline.lanes import Lanes
from app.pipeline.output import Destination, Output
from app.pipeline.pace import Pace
from transforms.identifiers import transactional_id
from transforms.record import RecordLike

__all__ = ["State", "Transaction"]


class State(Enum):
    """How far the transaction of a lane has come."""

    IDLE = "none is open; the next record begins one"
    OPEN = "records are written in it"
    ENDING = "it is being committed; records wait for the next one"
    OVER = "it has failed, or its partition is gone; records wait for nothing"


# For `Transaction.append`: to look a member up in an Enum takes several times as long (Python 3.11).
_IDLE, _OPEN = State.IDLE, State.OPEN


class Transaction:
    """Writes what leaves one lane, in transactions. Belongs to one event loop.

    The first record opens one; so does an offset that can be committed though nothing is written. It ends when it is
    old or large enough (`transaction.boundary.*`), and as soon as something is written and nothing more is at hand.
    While it ends, records wait here for the next one; they hold their bytes of the budget already. So transactions
    grow by themselves with the number of records.

    At hand is what leaves the lane without a record that is still to come: what is read, though not admitted yet, what
    a stage works on, and what the leader of the source partition had when it answered last.

    Args:
        destination: where to write.
        share: of the budget.
        lane: of the source partition.
        lanes: the lanes of the flow.
        bounds: limit the batches on their way in the transactions of all lanes.
        pace: of the transactions that end because nothing more is at hand.
        caught_up: whether a source partition has been read to its end.

    Attributes:
        lane: of the source partition, as it is assigned now.
        id: the `transactional.id`.
        output: writes to the topics.
    """

    # State that changes, on the event loop alone: `_state`, and what follows from it. While OPEN there is a `_timer`,
    # while ENDING there is `_ends`. `_asked` while the pace is to call.

    def __init__(
        self,
        destination: Destination,
        share: Share,
        lane: Lane,
        lanes: Lanes,
        bounds: Bounds,
        pace: Pace,
        caught_up: Callable[[TopicPartition], bool],
    ) -> None:
        self._settings = settings = destination.settings
        self.lane = lane
        self.id = transactional_id(settings.name, lane.partition.topic, lane.partition.partition)
        self._lanes = lanes
        self._stats = destination.stats
        self._termination = destination.termination
        self._part = Part(share)
        self.output = Output(destination, self._part, self.due, transactional_id=self.id, bounds=bounds)
        self._pace = pace
        self._caught_up = caught_up
        self._asked = settings.guarantee.boundary != "poll"
        self._limit = settings.guarantee.size
        self._bytes = 0
        self._state = State.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._ends: asyncio.Task[None] | None = None
        self._backlog: deque[Item | tuple[SourceBatch, int] | tuple[RecordLike, int, int, int]] = deque()

    # --- beginning ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the `transactional.id`: the open transaction of another producer is aborted, or committed to its end.

        If this fails, `stop` lets go of what there is.

        Raises:
            KafkaError: the cluster does not let it.
        """
        await self.output.start()

    @property
    def idle(self) -> bool:
        """True if nothing is open and nothing has gone wrong: the next transaction may begin."""
        return self._state is State.IDLE and not self.output.failed

    def take(self, lane: Lane) -> None:
        """Goes on with a partition that has been assigned again; only if `idle`."""
        self.lane = lane

    # --- writing -----------------------------------------------------------------------------------------------------

    # Each record that passes comes through here: the calls are counted (see `Admission._admit`).
    def append(self, record: RecordLike, offset: int, held: int, codec: int) -> None:
        self._part.used += held
        if self._state is _IDLE:
            self._begin()
        if self._state is not _OPEN:
            self._wait((record, offset, held, codec))
            return
        self.output.append(self.lane, record, offset, held, codec)
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def forward(self, batch: SourceBatch, held: int) -> None:
        """See `Delivery.forward`."""
        self._part.used += held
        if self._state is State.IDLE:
            self._begin()
        if self._state is not State.OPEN:
            self._wait((batch.kept(), held))
            return
        self.output.forward(self.lane, batch, held)
        self._count(held)

    def write(self, item: Item) -> None:
        """See `Delivery.write`: all results of an item go in one transaction."""
        self._part.used += item.held
        if self._state in (State.IDLE, State.OPEN):
            self._write(item)
        else:
            self._wait(item)

    def _write(self, item: Item) -> None:
        if not isinstance(item, Skipped) and self._state is State.IDLE:
            self._begin()
        try:
            self.output.write(self.lane, item)
        except BaseException:
            self._state = State.OVER  # some of its results may be written without the others: never to be committed
            raise
        self._count(item.held)

    def _count(self, held: int) -> None:
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def _wait(self, waiting: Item | tuple[SourceBatch, int] | tuple[RecordLike, int, int, int]) -> None:
        self._backlog.append(waiting)
        self.lane.waiting += 1

    def due(self) -> None:
        """Says that there may be something to commit, though nothing was written."""
        if self._state is State.IDLE and self._lanes.to_commit(self.lane) is not None:
            self._begin()

    def flush(self) -> None:
        """Sends what has been written, and ends the transaction if nothing more is at hand; does not wait."""
        self.output.flush()
        if self._has_all and not self._asked:
            self._asked = True
            self._pace.ask(self._end_early)

    def _end_early(self) -> bool:
        self._asked = False
        if not self._has_all:
            return False  # `flush` asks again
        self.end()
        return True

    @property
    def _has_all(self) -> bool:
        """True if something is written in the transaction, and nothing more is at hand."""
        lane = self.lane
        return (
            self._state is _OPEN
            and self._bytes > 0
            and not lane.read
            and not lane.items
            and self._caught_up(lane.partition)
        )

    def _begin(self) -> None:
        self.output.writer.begin()
        self._state = State.OPEN
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.guarantee.interval_ms / 1000, self.end)

    # --- committing --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Begins to end the transaction, if one is open; does not wait."""
        if self._state is not State.OPEN:
            return
        assert self._timer is not None
        self._timer.cancel()
        self._state = State.ENDING
        self._ends = self._termination.begin(self._end())

    async def finish(self) -> None:
        """Ends what is open, and what waits for the next transaction too; waits until nothing is, or it has failed."""
        while self._state in (State.OPEN, State.ENDING):
            self.end()
            assert self._ends is not None
            await asyncio.wait([self._ends])

    async def _end(self) -> None:
        limit_s = self._settings.guarantee.timeout_ms / 1000
        clock = asyncio.get_running_loop().time
        began_s = clock()
        state = State.OVER
        try:
            async with asyncio.timeout(limit_s) as timeout:
                if not self.output.failed and await self._commit():
                    state = State.IDLE
        except (KafkaError, IllegalOperation, OSError, TimeoutError) as exc:
            error: BaseException = exc
            if isinstance(exc, TimeoutError) and timeout.expired():
                error = KafkaTimeoutError(f"it has not ended in the {limit_s:g} s of {TIMEOUT}")
            self._termination.fail(translated(error, f"committing a transaction of {self.id}"))
        finally:
            self._state = state
        if state is State.IDLE:
            self._pace.took(clock() - began_s)
            self._bytes = 0
            self._write_backlog()

    async def _commit(self) -> bool:
        """False if a write has failed, which ends the flow, or if the partition was given up meanwhile."""
        await self.output.finished()
        if self.output.failed or not self._lanes.holds(self.lane):
            return False
        lane = self.lane
        commit = self._lanes.to_commit(lane)
        await self.output.writer.commit({} if commit is None else {lane.partition: commit})
        self._stats.transactions += 1
        if commit is not None:
            self._stats.commits += 1
            lane.mark_committed(*commit)
        return True

    def _write_backlog(self) -> None:
        """Writes what has waited in the next transaction, or as much of it as fits."""
        while self._backlog and self._state in (State.IDLE, State.OPEN):
            waiting = self._backlog.popleft()
            self.lane.waiting -= 1
            try:
                if isinstance(waiting, Item):
                    self._write(waiting)
                    continue
                if self._state is State.IDLE:
                    self._begin()
                if isinstance(waiting[0], SourceBatch):
                    batch, held = waiting
                    self.output.forward(self.lane, batch, held)
                else:
                    record, offset, held, codec = waiting
                    self.output.append(self.lane, record, offset, held, codec)
                self._count(held)
            except BaseException:
                self._state = State.OVER
                raise  # the task ends the flow
        self.flush()
        self.due()

    # --- giving up ---------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Forgets what is not committed: the lane's partition is another's, or is read again."""
        self._state = State.OVER
        if self._timer is not None:
            self._timer.cancel()
        if self._ends is not None:
            self._ends.cancel()
        self._backlog.clear()
        self.output.discard()
        self._part.close()

    async def stop(self) -> None:
        """Stops the producer; aborts what is open, so that readers need not wait for it. Raises `KafkaError`."""
        self.discard()
        await self.output.stop()
