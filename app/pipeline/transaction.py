"""The transactions of one source partition, one after the other: each commits results together with their offset.

The next owner of the partition begins with a producer of the same `transactional.id`, which ends the transaction that
this one has left open, and fences it; each source partition therefore has a separate producer. Brokers from Kafka 2.5
on also refuse offsets of a member that has lost the partition (KIP-447); with older ones only the producer does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from app.config.guarantee import TIMEOUT
from app.kafka.batches.bounds import Bounds
from app.kafka.clients import translated
from app.kafka.errors import IllegalOperation, KafkaError, KafkaTimeoutError
from app.kafka.source_batch import SourceBatch
from app.pipeline.lane import Item, Lane
from app.pipeline.output import Output
from app.pipeline.pace import Pace
from app.pipeline.parts import Parts
from transforms.identifiers import transactional_id
from transforms.record import RecordLike


class Transaction:
    """Writes what leaves one lane, in transactions. Belongs to one event loop.

    The first record opens one; so does an offset that can be committed though nothing is written. It ends when it is
    old or large enough (`transaction.boundary.*`), and as soon as something is written and nothing more is available.
    While it ends, records wait here for the next one; they hold their bytes of the budget already.
    Transactions therefore grow with the number of records.

    Available is what leaves the lane without a record that is still to come: what is read, though not admitted yet,
    what a transform works on, and what the leader of the source partition had when it answered last.

    `bounds` limit the batches on their way in the transactions of all lanes; `pace` is that of the transactions that
    end because nothing more is available.

    Attributes:
        lane: of the source partition, as it is assigned now; it may be replaced while this is `idle`.
        id: the `transactional.id`.
        output: writes to the topics.
    """

    # State that changes, on the event loop alone: `_state`, and what follows from it. While it is open there is a
    # `_timer`, while it is ending there is `_ends`. `_asked` while the pace is to call: always, if it is never to.

    _state: Literal["idle", "open", "ending", "over"]
    """None is open, and the next record begins one; or records are written in it; or it is being committed, and records
    wait for the next one; or it has failed, or its partition is gone, and records wait for nothing."""

    def __init__(self, parts: Parts, lane: Lane, bounds: Bounds, pace: Pace) -> None:
        settings = parts.settings
        self.lane = lane
        self.id = transactional_id(settings.name, lane.partition.topic, lane.partition.partition)
        self.output = Output(parts, self._give, self.due, transactional_id=self.id, bounds=bounds)
        self._parts = parts
        self._guarantee = settings.guarantee
        self._held = 0  # bytes of the share
        self._pace = pace
        self._asked = self._guarantee.boundary != "poll"
        self._bytes = 0  # that are written in the transaction
        self._limit = self._guarantee.size
        self._state = "idle"
        self._timer: asyncio.TimerHandle | None = None
        self._ends: asyncio.Task[None] | None = None
        self._backlog: deque[tuple[int, Callable[[], None]]] = deque()  # see `_write`

    async def start(self) -> None:
        """Takes the `transactional.id`: the open transaction of another producer is aborted, or committed to its end.

        Raises:
            KafkaError: the cluster refuses it; `stop` then releases what there is.
        """
        await self.output.writer.start()

    @property
    def idle(self) -> bool:
        """True if nothing is open and nothing has gone wrong: the next transaction may begin."""
        return self._state == "idle" and self.output.writer.failure is None

    # --- writing -----------------------------------------------------------------------------------------------------

    # Each record that passes comes through here: the calls are counted (see `Admission._admit_records`).
    def append(self, lane: Lane, record: RecordLike, offset: int, held: int, codec: int) -> None:
        """See `Output.append`."""
        if self._state != "open":
            self._write(held, partial(self.output.append, lane, record, offset, held, codec))
            return
        self._held += held
        self.output.append(lane, record, offset, held, codec)
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def forward(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        """See `Output.forward`."""
        waits = self._state in {"ending", "over"}
        self._write(held, partial(self.output.forward, lane, batch.kept() if waits else batch, held))

    def write(self, lane: Lane, item: Item) -> None:
        """See `Output.write`: all results of an item go in one transaction."""
        self._write(item.held, partial(self.output.write, lane, item))

    def _write(self, held: int, write: Callable[[], None]) -> None:
        """Writes records that hold `held` bytes, or lets them wait for the next transaction."""
        self._held += held
        if self._state in {"ending", "over"}:
            self._backlog.append((held, write))
            self.lane.waiting += 1
        else:
            self._write_now(held, write)

    def _write_now(self, held: int, write: Callable[[], None]) -> None:
        if held and self._state == "idle":
            self._begin()
        try:
            write()
        except BaseException:
            self._state = "over"  # some of its results may be written without the others: never to be committed
            raise
        self._bytes += held
        if self._bytes >= self._limit:
            self.end()

    def due(self) -> None:
        """Notes that there may be something to commit, though nothing was written."""
        if self._state == "idle" and self.lane.to_commit() is not None:
            self._begin()

    def flush(self) -> None:
        """Sends what has been written, and ends the transaction if nothing more is available; does not wait."""
        self.output.flush()
        if self._has_all and not self._asked:
            self._asked = True
            self._pace.ask(self._end_early)

    def _end_early(self) -> bool:
        self._asked = False
        if not self._has_all:
            return False  # `flush` calls this again
        self.end()
        return True

    @property
    def _has_all(self) -> bool:
        """True if something is written in the transaction, and nothing more is available."""
        lane = self.lane
        written = self._state == "open" and self._bytes > 0
        return written and not lane.read and not lane.items and self._parts.source.caught_up(lane.partition)

    # --- beginning and ending ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.output.writer.begin()
        self._state = "open"
        self._timer = asyncio.get_running_loop().call_later(self._guarantee.interval_ms / 1000, self.end)

    def end(self) -> None:
        """Begins to end the transaction, if one is open; does not wait."""
        if self._state == "open":
            assert self._timer is not None
            self._timer.cancel()
            self._state = "ending"
            self._ends = self._parts.termination.begin(self._end())

    async def finish(self) -> None:
        """Ends what is open, and what waits for the next transaction too; waits until nothing is, or it has failed."""
        while self._state in {"open", "ending"}:
            self.end()
            assert self._ends is not None
            await asyncio.wait([self._ends])

    async def _end(self) -> None:
        writer, lane, lanes, stats = self.output.writer, self.lane, self._parts.lanes, self._parts.stats
        limit_s = self._guarantee.timeout_ms / 1000
        clock = asyncio.get_running_loop().time
        began_s = clock()
        committed = False
        try:
            async with asyncio.timeout(limit_s) as timeout:
                if writer.failure is None:
                    await writer.flush()
                # A write that has failed ends the flow; and the partition may have been given up since.
                if writer.failure is None and lanes.has(lane):
                    commit = lane.to_commit()
                    await writer.commit({} if commit is None else {lane.partition: commit})
                    committed = True
                    stats.transactions += 1
                    if commit is not None:
                        stats.commits += 1
                        lane.mark_committed(*commit)
        except (KafkaError, IllegalOperation, OSError, TimeoutError) as exc:
            error: BaseException = exc
            if isinstance(exc, TimeoutError) and timeout.expired():
                error = KafkaTimeoutError(f"it has not ended in the {limit_s:g} s of {TIMEOUT}")
            self._parts.termination.fail(translated(error, f"committing a transaction of {self.id}"))
        finally:
            self._state = "idle" if committed else "over"
        if committed:
            self._pace.took(clock() - began_s)
            self._bytes = 0
            while self._backlog and self._state in {"idle", "open"}:  # as much of it as fits
                lane.waiting -= 1
                self._write_now(*self._backlog.popleft())
            self.flush()
            self.due()

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _give(self, held: int) -> None:
        if self._held:  # else it was discarded, and has given all back
            self._held -= held
            self._parts.share.give(held)

    def discard(self) -> None:
        """Forgets what is not committed: the lane's partition is another's, or is read again."""
        self._state = "over"
        if self._timer is not None:
            self._timer.cancel()
        if self._ends is not None:
            self._ends.cancel()
        self._backlog.clear()
        self.output.writer.discard()
        self._parts.share.give(self._held)
        self._held = 0

    async def stop(self) -> None:
        """Stops the producer; aborts what is open, so that readers need not wait for it. Raises `KafkaError`."""
        self.discard()
        await self.output.writer.stop()
