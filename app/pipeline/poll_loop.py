"""The poll loop of a flow: what is read next, and what is dropped because too much was read ahead.

The budget bounds the records that were admitted. What waits to be admitted comes in addition: up to two responses of
the broker for each partition, which remain while records wait for a store that is down or slower than Kafka. Of many
partitions with large values most are therefore paused: what was read of them is dropped, and read again later. Their
records could not be admitted anyway. No other partition is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from app.kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from app.kafka.structs import TopicPartition
from app.pipeline.admission import Admission
from app.pipeline.delivery import Delivery
from app.pipeline.lane import Lane
from app.pipeline.parts import Parts

_POLL_MS = 200
_PEEK_S = 0.05
_PART_OF_BUDGET = 4  # what is read ahead may take so small a part of the budget, in addition to it
_LEAST_BYTES = 64 * 2**20  # while the store answers, it may take this where that is less
_TURN_S = 2.0  # a paused partition waits so long for its turn, if others can continue
_ARRIVES_S = 0.2


class _Pause(NamedTuple):
    """A partition that is paused."""

    since_s: float
    size: int
    """Bytes that were dropped; about as many arrive when it is read again."""
    for_room: bool
    """Whether its next record waits for room alone, and not behind others of its partition."""


class PollLoop:
    """Reads, and lets records be admitted. Belongs to the event loop of the flow.

    Each `offset.flush.interval.ms` by `clock`, which does not go back, it looks how far partitions were read behind
    their last records; see `look`.

    Attributes:
        pause_asked: whether to read nothing, from the next turn on. What was admitted is finished and committed; what
            was read ahead is dropped.
        all_paused: whether that turn has come.
    """

    def __init__(self, parts: Parts, admission: Admission, delivery: Delivery, *, clock: Callable[[], float]) -> None:
        self._source = parts.source
        self._lanes = parts.lanes
        self._share = parts.share
        self._admission = admission
        self._delivery = delivery
        self._offset_reset = parts.offset_reset
        self._termination = parts.termination
        self._look_s = parts.settings.flush_interval_ms / 1000
        self._clock = clock
        self._looked_s = clock()
        self.pause_asked = False
        self.all_paused = False
        self._part_bytes = parts.share.budget.limit // _PART_OF_BUDGET
        self._pauses: dict[Lane, _Pause] = {}  # the longest first
        self._arrived_s = 0.0
        """When what was resumed last has arrived."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        """The partitions that are not read: they wait for the store, or for memory."""
        return {
            lane.partition for lane in self._lanes if lane.stalled or (lane in self._pauses and not self.all_paused)
        }

    async def turn(self) -> None:
        """Reads once, or waits a while, and admits what has room.

        Raises:
            KafkaError: the client failed, or the cluster did not answer.
            ClusterError: see `OffsetReset.find`.
        """
        offsets = self._delivery.offsets
        reads_all = False
        if self.all_paused and not self.pause_asked:
            for lane in tuple(self._pauses):
                self._resume(lane)
            self.all_paused = False
        if not offsets.known:
            await offsets.known_within(_POLL_MS / 1000)
            await self._source.keep_membership()
        elif self.pause_asked:
            await self._hold()
        else:
            reads_all = await self._read()
        self._termination.raise_error()  # what is admitted now could pass a record that is not written
        if offsets.known:
            self._admission.admit()
        if not self.pause_asked:  # else it would let partitions be read again
            self._bound()
        self._admission.expire(reading=reads_all and not self._pauses)
        if self._clock() - self._looked_s >= self._look_s:
            self._looked_s = self._clock()
            self.look()
            self._delivery.due()
        self._delivery.flush()
        # A poll with available data returns without a pause; senders and acknowledgements need their turn.
        await asyncio.sleep(0)

    def look(self) -> None:
        """Notes how far the partitions were read of which no record waits.

        What is read behind the last record is not a record, and is not polled: marks of transactions, records of those
        that were aborted, gaps that compaction left. It counts as read, or the group would never reach the end.
        """
        # During a rebalance what was polled and not admitted is forgotten, though the position is behind it.
        if not self._delivery.offsets.known or self._source.rebalancing:
            return
        for lane in self._lanes:
            if not lane.read:
                lane.read_to = self._source.position(lane.partition) or 0

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> bool:
        """Reads the partitions of which no record waits for room or for the store; True if none waits for room."""
        waits = self._lanes.waits
        if self._admission.in_turn:  # after other tasks have had their turn, records are admitted
            await self._source.keep_membership()
            return False
        wanted = [lane.partition for lane in self._lanes if not (lane.stalled or lane.read)]
        if not wanted and len(self._lanes):
            await self._await_room()
        elif not waits:
            await self._poll(wanted if len(wanted) < len(self._lanes) else [], _POLL_MS)
        # Records that have found room must not wait for this poll.
        elif not await self._poll(wanted, 0):
            self._delivery.press()
            await self._share.freed(_PEEK_S)
        return not waits

    async def _poll(self, partitions: Sequence[TopicPartition], timeout_ms: int) -> bool:
        """Reads some partitions, or all if none are named; True if there was something."""
        try:
            polled = await self._source.poll(partitions, timeout_ms)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as exc:
            # Else a look-up that has begun before could bring back what was delivered of a log that is lost.
            if self._delivery.offsets.known:
                await self._termination.unless_ended(self._offset_reset.find(exc))
            return False
        # No await from here on: after a rebalance there would be records of lost partitions.
        if not self._delivery.offsets.known:
            # A rebalance during the poll: this was read before it was known from where on.
            self._source.unread(polled)
            return False
        for partition, batches in polled.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                lane.add(batches, self._source.position(partition) or 0)
        return bool(polled)

    async def _await_room(self) -> None:
        """Waits for bytes to come free, or the store to answer.

        The client is not polled, so it reads no further and keeps what it has read.
        """
        self._delivery.press()  # nothing comes in that could fill batches
        await self._share.freed(_POLL_MS / 1000)
        await self._source.keep_membership()

    # --- a pause that was asked for ----------------------------------------------------------------------------------

    async def _hold(self) -> None:
        self.all_paused = True
        for lane in self._lanes:
            if lane not in self._pauses:
                self._pause(lane)
        if not self._lanes.busy:
            await self._termination.unless_ended(self._delivery.commit())
        await self._await_room()

    # --- what was read ahead -----------------------------------------------------------------------------------------

    def _bound(self) -> None:
        """Pauses partitions if too much was read ahead, and resumes those that may be read again."""
        budget, pauses = self._share.budget, self._pauses
        if budget.ahead <= self._part_bytes and not pauses:
            return
        now_s = self._clock()
        for lane in [lane for lane in pauses if not self._lanes.has(lane)]:
            del pauses[lane]
        most = self._part_bytes if self._lanes.stalled else max(self._part_bytes, _LEAST_BYTES)
        if budget.ahead > most:
            self._let_go(budget.ahead - most // 2)
        for lane in [lane for lane, pause in pauses.items() if not lane.items and not pause.for_room]:
            self._resume(lane)  # its next record may pass, whatever others wait for
        ready = [lane for lane in pauses if not lane.stalled]
        if not ready or now_s < self._arrived_s:
            return
        room = most // 2 - budget.ahead
        if room <= 0 and now_s - pauses[ready[0]].since_s > _TURN_S:
            room = self._let_go(pauses[ready[0]].size, in_turn=True)
        for lane in ready:
            if room > 0:
                room -= self._resume(lane)

    def _let_go(self, size: int, *, in_turn: bool = False) -> int:
        """Pauses partitions that wait for work, until `size` bytes are let go; returns how many were.

        Those first that the store has stalled, then those that had their turn, the latest first. With `in_turn` no
        others.
        """
        latest, found = [*self._lanes][::-1], 0
        for lane in sorted(latest, key=lambda lane: (not lane.stalled, not lane.had_turn)):
            # What waits only because the turn has ended may pass.
            waits = lane.stalled or (lane.read.for_work and not self._admission.in_turn)
            if found < size and waits and lane not in self._pauses and (lane.had_turn or not in_turn):
                found += self._pause(lane)
        return found

    def _pause(self, lane: Lane) -> int:
        """Pauses a partition, and drops what was read of it; returns how many bytes that was."""
        before, for_room = self._share.ahead, bool(lane.read) and not lane.items
        self._source.pause(lane.partition, lane.read.first)
        lane.let_go()
        size = before - self._share.ahead
        self._pauses[lane] = _Pause(self._clock(), size, for_room)
        return size

    def _resume(self, lane: Lane) -> int:
        """Reads a paused partition again; returns how many bytes are expected of it."""
        self._source.resume(lane.partition)
        lane.had_turn = False
        self._arrived_s = self._clock() + _ARRIVES_S
        return self._pauses.pop(lane).size
