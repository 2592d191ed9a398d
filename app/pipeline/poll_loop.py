"""The poll loop of a flow: what is read next, and what waits meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

from app.kafka.consumer import GroupConsumer
from app.kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from app.kafka.source_batch import SourceBatch
from app.kafka.structs import TopicPartition
from app.pipeline.admission import Admission
from app.pipeline.budget import Share
from app.pipeline.delivery import Delivery
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.paused_partitions import PausedPartitions
from app.pipeline.termination import Termination

__all__ = ["Mode", "PollLoop"]

_POLL_MS = 200
_PEEK_S = 0.05


class Mode(Enum):
    """What a turn of the loop does."""

    RENEW = "begins partitions of topics that were created anew at their first record"
    READ = "reads all partitions, but for those whose records have waited too long for the store"
    HOLD = "reads nothing, and stays in the group: the pipeline is paused"
    AWAIT_OFFSETS = "waits for the committed offsets; no record may be admitted before they are known"
    GO_ON = "goes on with records that were read, after other tasks have had their turn"
    READ_OTHERS = "waits for room in the budget, and reads the partitions of which no record waits for it"


class PollLoop:
    """Reads, and lets records be admitted. Belongs to the event loop of the flow.

    `changed` is set when the termination comes, and when a stalled lane may be read again. Each `look_s` seconds by
    `clock` it looks how far partitions were read behind their last records; see `look`.

    Attributes:
        held: whether to read nothing, from the next turn on. What was admitted is finished and committed; what was read
            ahead is let go.
        holding: whether that turn has come.
    """

    def __init__(
        self,
        source: GroupConsumer,
        lanes: Lanes,
        share: Share,
        *,
        admission: Admission,
        delivery: Delivery,
        offset_reset: OffsetReset,
        termination: Termination,
        changed: asyncio.Event,
        look_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._lanes = lanes
        self._share = share
        self._admission = admission
        self._paused = PausedPartitions(source, lanes, share, admission, clock)
        self._delivery = delivery
        self._offset_reset = offset_reset
        self._termination = termination
        self._changed = changed
        self._look_s = look_s
        self._clock = clock
        self._looked_s = clock()
        self.held = False
        self.holding = False
        self._let_go: set[Lane] = set()
        self._committed = False

    @property
    def paused(self) -> Collection[TopicPartition]:
        """The partitions that are not read: they wait for the store, or for memory."""
        paused = {lane.partition for lane in self._paused if self._lanes.holds(lane)}
        return paused | {lane.partition for lane in self._lanes if lane.stalled}

    @property
    def mode(self) -> Mode:
        """What the next turn does."""
        offsets = self._delivery.offsets
        if self._offset_reset.fresh:
            return Mode.RENEW
        if self.held:
            return Mode.HOLD if offsets.may_admit else Mode.AWAIT_OFFSETS
        if offsets.may_read and not self._admission.waits:
            return Mode.READ
        if offsets.may_admit and self._admission.in_turn:
            return Mode.GO_ON
        return Mode.READ_OTHERS if offsets.may_admit else Mode.AWAIT_OFFSETS

    async def turn(self) -> None:
        """Reads once, or waits a while, and lets go on what may.

        Raises:
            KafkaError: the client failed, or the cluster did not answer.
            ClusterError: see `OffsetReset.find`.
        """
        mode = self.mode
        self._end_pause()
        match mode:
            case Mode.RENEW:
                await self._renew()
            case Mode.READ:
                await self._poll()
            case Mode.HOLD:
                await self._hold()
            case Mode.AWAIT_OFFSETS:
                await self._await_offsets()
            case Mode.READ_OTHERS:
                await self._poll_others()
            case Mode.GO_ON:
                await self._source.keep_membership()
        self._termination.raise_error()  # what is admitted now could pass a record that is not written
        if self._delivery.offsets.may_admit:
            self._admission.admit()
        if not self.held:  # else it would let partitions be read again
            self._paused.adjust()
        if self._admission.expire(reading=mode is Mode.READ and not self._paused):
            self._delivery.due()
        self._look_in_time()
        self._delivery.flush()
        # A poll with data at hand returns without a pause; senders and acknowledgements need their turn.
        await asyncio.sleep(0)

    def _look_in_time(self) -> None:
        if self._clock() - self._looked_s >= self._look_s:
            self._looked_s = self._clock()
            self.look()
            self._delivery.due()

    def look(self) -> None:
        """Notes how far the partitions were read of which no record waits.

        What is read behind the last record is no record, and is not polled: marks of transactions, records of those
        that were aborted, gaps that compaction left. It counts as read, or the group would never reach the end.
        """
        offsets = self._delivery.offsets
        # During a rebalance what was polled and not admitted is forgotten, though the position is behind it.
        if not (offsets.may_read and offsets.may_admit) or self._offset_reset.fresh or self._source.rebalancing:
            return
        for lane in self._lanes:
            if not self._admission.holds(lane):
                lane.read_to = self._source.position(lane.partition) or 0

    async def _renew(self) -> None:
        await self._termination.unless_ended(self._offset_reset.renew())
        if not self._offset_reset.fresh:
            self._delivery.offsets.look_up()

    async def _poll(self) -> None:
        wanted = [lane.partition for lane in self._lanes if not lane.stalled] if self._lanes.stalled else []
        if self._lanes.stalled and not wanted:
            await self._await_change()
            return
        await self._read(wanted, _POLL_MS)

    async def _poll_others(self) -> None:
        wanted = [lane.partition for lane in self._lanes if not lane.stalled and not self._admission.holds(lane)]
        if not wanted:
            await self._await_room()
        # Records that have found room by now must not wait for this poll.
        elif not await self._read(wanted, 0):
            self._delivery.press()
            await self._share.freed(_PEEK_S)

    async def _read(self, partitions: Sequence[TopicPartition], timeout_ms: int) -> bool:
        """Reads some partitions, or all if none are named; True if there was something."""
        try:
            polled = await self._source.poll(partitions, timeout_ms)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as exc:
            # Else a look-up that has begun before could bring back what was delivered of a log that is lost.
            if self._delivery.offsets.may_admit:
                await self._termination.unless_ended(self._offset_reset.find(exc))
            return False
        return self._take(polled)

    def _take(self, polled: Mapping[TopicPartition, Sequence[SourceBatch]]) -> bool:
        # No coroutine: a rebalance between the poll and the admission would leave records of lost partitions.
        if not self._delivery.offsets.may_read:
            # A rebalance during the poll: this was read before it was known from where on.
            self._source.unread(polled)
            return False
        self._admission.add(polled)
        for partition in polled:
            lane = self._lanes.get(partition)
            if lane is not None:
                lane.read_to = self._source.position(partition) or 0
        return bool(polled)

    # --- a pause -----------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        self.holding = True
        self._let_go &= {*self._lanes}
        for lane in self._lanes:
            if lane not in self._let_go:
                self._source.pause(lane.partition, self._admission.let_go(lane))
                self._let_go.add(lane)
                self._committed = False
        self._delivery.press()  # nothing comes in that could fill batches
        if not self._committed and not self._lanes.busy:
            self._committed = True
            await self._termination.unless_ended(self._delivery.commit())
        await self._await_change()

    def _end_pause(self) -> None:
        if self.held:
            return
        for lane in self._lanes:
            if lane in self._let_go and lane not in self._paused:
                self._source.resume(lane.partition)
        self._let_go.clear()
        self._committed = self.holding = False

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def _await_room(self) -> None:
        """Waits for bytes to come free. The client is not polled, so it reads no further and keeps what it has read."""
        self._delivery.press()  # nothing comes in that could fill batches
        await self._share.freed(_POLL_MS / 1000)
        await self._source.keep_membership()

    async def _await_offsets(self) -> None:
        await self._delivery.offsets.known_within(_POLL_MS / 1000)
        await self._source.keep_membership()

    async def _await_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _POLL_MS / 1000)
        await self._source.keep_membership()
