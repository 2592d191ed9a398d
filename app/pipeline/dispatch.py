"""The dispatcher: brings records with work through the chain, and lets their results leave in source order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from app.kafka.clients import ClusterError
from app.kafka.shielded import heard
from app.kafka.source_batch import SourceBatch, Unopened
from app.kafka.structs import TopicPartition
from app.pipeline.budget import Share
from app.pipeline.chain import Work
from app.pipeline.delivery import Delivery
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.lane import Hold, Lane, PlacedRecord, Slot
from app.pipeline.lane_assembler import chunks_of
from app.pipeline.lanes import Lanes
from app.pipeline.retries import Retries
from app.pipeline.termination import Termination
from transforms.assembly import Discarded
from transforms.errors import PayloadTooLargeError
from transforms.letter import Cause
from transforms.record import RecordLike, SourceRecord
from transforms.retention import LONGEST_HOLD_S, duration_text

__all__ = ["Dispatcher", "PayloadAgedError"]

_PART = 250  # the most dead letters of one message that are written in one go


class Dispatcher:
    """Gives records with work their slots in the lanes. Belongs to one event loop.

    A record takes its bytes of the share when it enters, and then holds those of its result.

    A record may wait for hours behind one for which the store is down. A sweep would take its payload meanwhile, as no
    record refers to it yet. So a result with a payload that is `LONGEST_HOLD_S` old is not written: the flow begins
    again, and stores it anew.

    `clock` are seconds that do not go back. `publishes` says whether results may refer to payloads that were stored for
    them. Dead letters always may.
    """

    def __init__(
        self,
        lanes: Lanes,
        share: Share,
        *,
        retries: Retries,
        error_policy: ErrorPolicy,
        delivery: Delivery,
        termination: Termination,
        clock: Callable[[], float],
        publishes: bool = False,
    ) -> None:
        self._lanes = lanes
        self._publishes = publishes
        self._share = share
        self._retries = retries
        self._error_policy = error_policy
        self._delivery = delivery
        self._termination = termination
        self._clock = clock

    def follow(self, lane: Lane, batch: SourceBatch, held: int) -> None:
        """Lets the records of a batch, which leave as they are, wait for the records before them in the lane."""
        place = PlacedRecord(batch.partition.topic, batch.partition.partition, batch.offset, -1)
        lane.work += held
        lane.slots.append(Slot(place, held, (), admitted=held, codec=batch.codec, batch=batch.kept()))
        self._share.take_work(held)

    def enter(self, lane: Lane, record: SourceRecord, work: Work | None, held: int) -> None:
        """Gives a record its slot at the end of the lane, and goes on with the work on it.

        Without work, it only waits for the records before it. `held` are the bytes that the share is to hold for it.
        """
        lane.tracked(record.offset)
        slot = Slot(record, held, admitted=held, codec=lane.codec)
        lane.work += held
        lane.slots.append(slot)
        self._share.take_work(held)
        if work is None:
            slot.result = (record,)
        elif work.blocks:
            self._begin(lane, self._transform(lane, slot, work))
        else:
            with self._error_policy.of(slot):
                self._share.give_work(slot.finish(self._retries.apply_now(record, work)))
            if slot.cause is None:
                self.release(lane)
            else:
                self._begin(lane, self._bury(lane, slot))

    def refuse(self, lane: Lane, unopened: Unopened, held: int) -> None:
        """Lets the error policy decide on records that are not read, at the end of their lane; else as `enter`."""
        lane.tracked(unopened.first)
        slot = Slot(unopened, held, admitted=held, codec=lane.codec, first=unopened.first)
        lane.work += held
        lane.slots.append(slot)
        self._share.take_work(held)
        self._fail(lane, slot, unopened.error)

    def measure(self, lane: Lane, record: SourceRecord, work: Work) -> None:
        """Asks the store for the size that the work lacks; see `Lane.measuring`. The record is not admitted yet."""
        task = asyncio.get_running_loop().create_task(self._retries.measure(lane, record, work))
        lane.measuring = record.offset, task
        lane.keep(task)
        # Nobody looks at it where the lane is given up meanwhile, and the loop would log its error.
        task.add_done_callback(heard)
        task.add_done_callback(lambda _: self._share.budget.wake())

    def fail(self, lane: Lane, record: SourceRecord, error: BaseException, held: int) -> None:
        """Lets the error policy decide on a record that failed before it was admitted; else as `enter`."""
        lane.tracked(record.offset)
        slot = Slot(record, held, admitted=held, codec=lane.codec)
        lane.work += held
        lane.slots.append(slot)
        self._share.take_work(held)
        self._fail(lane, slot, error)

    def _fail(self, lane: Lane, slot: Slot, error: BaseException) -> None:
        with self._error_policy.of(slot):
            _raise(error)
        if slot.cause is not None:
            self._begin(lane, self._bury(lane, slot))
        else:
            self.release(lane)

    def _begin(self, lane: Lane, work: Coroutine[None, None, None]) -> None:
        task = self._termination.begin(work)
        lane.keep(task)

    def give_up(self, event: Discarded) -> None:
        """Lets the error policy decide on the chunks of a message that will not be whole, at the end of their lane."""
        if self._error_policy.drops(event):
            return
        chunks = chunks_of(event)
        lane = self._lanes.get(TopicPartition(chunks[0].topic, chunks[0].partition))
        assert lane is not None, "the assembler forgets the chunks of a lane that is discarded"
        parts = [chunks[start : start + _PART] for start in range(0, len(chunks), _PART)]
        slots = [Slot(part[-1], 0, codec=lane.codec) for part in parts]
        # No chunk of the message is done before all of them are.
        slots[-1].hold = Hold(chunks[0].offset)
        lane.holds.append(slots[-1].hold)
        lane.slots.extend(slots)
        cause = self._error_policy.condemn(event, slots)
        if cause is None or (len(parts) == 1 and self._error_policy.discard(slots[0], parts[0], cause)):
            self.release(lane)
        else:
            self._begin(lane, self._discard(lane, zip(slots, parts, strict=True), cause))

    async def _discard(self, lane: Lane, parts: Iterable[tuple[Slot, Sequence[SourceRecord]]], cause: Cause) -> None:
        """Part by part: a message may have a hundred thousand chunks, and other tasks must have their turn."""
        for slot, part in parts:
            await self._error_policy.bury_chunks(slot, part, cause)
            slot.stored_s = self._clock()
            self.release(lane)
            if slot.result is None:
                return  # the flow ends

    async def _bury(self, lane: Lane, slot: Slot) -> None:
        with self._retries.watching(lane, slot.source):
            await self._error_policy.bury(slot)
        slot.stored_s = self._clock()
        self.release(lane)

    async def _transform(self, lane: Lane, slot: Slot, work: Work) -> None:
        with self._error_policy.of(slot):
            results = await self._results(lane, slot, work)
            self._share.give_work(slot.finish(results))
            slot.stored_s = self._clock() if self._publishes else None
        if slot.cause is not None:
            await self._bury(lane, slot)
        else:
            self.release(lane)

    async def _results(self, lane: Lane, slot: Slot, work: Work) -> Sequence[RecordLike]:
        """What the work makes of the record; raises what `Retries.apply` raises.

        A payload that was measured may be replaced by a longer one before it is read. Then it is measured again. The
        slot takes the bytes that it needs in addition at once: records behind it may hold the room that it would need.
        """
        while True:
            try:
                return await self._retries.apply(lane, slot.source, work)
            except PayloadTooLargeError:
                if not work.is_measured:
                    raise
                again = await self._retries.measure(lane, slot.source, work)
                if again.records == work.records:
                    raise  # it is as long as before
                more = max(0, again.reserve_bytes - work.reserve_bytes)
                slot.held += more
                self._share.take_work(more)
                work = again

    def release(self, lane: Lane) -> None:
        """Delivers the results at the front of the lane, up to a record that is not finished, or that ends the flow."""
        if not self._may_write(lane):
            return
        while lane.slots and lane.slots[0].result is not None:
            slot = lane.slots[0]
            if slot.stored_s is not None and self._clock() - slot.stored_s > LONGEST_HOLD_S:
                # What is before it is written and committed: if that has waited for long, it would do so each time.
                self._delivery.flush()
                self._termination.fail(_aged(slot.source))
                return
            lane.slots.popleft()
            lane.work -= slot.admitted
            self._share.pass_on(slot.held)
            tracker = lane.tracked(slot.source.offset)
            released = tracker.released
            try:
                self._delivery.write(lane, slot)
            except Exception as exc:  # noqa: BLE001  # in a task of its own: raised, it would be seen by nobody
                # One of several results may be written. A hold ends once its last record is safe.
                tracker.keep(released if slot.hold is None else released - 1)
                slot.result, slot.held = None, 0
                lane.slots.appendleft(slot)  # nothing of the lane passes it
                if isinstance(exc, ClusterError):
                    self._termination.fail(exc)
                else:
                    self._termination.fail_by_defect(exc, slot.source)
            if not self._may_write(lane):
                break
        if lane.slots and lane.slots[0].failure is not None:
            self._error_policy.end(lane.slots[0])
        self._delivery.flush()

    def _may_write(self, lane: Lane) -> bool:
        return self._termination.error is None and self._lanes.holds(lane)


class PayloadAgedError(ClusterError):
    """A payload was stored so long ago that it must be stored anew, before its reference is written."""


def _aged(record: SourceRecord) -> PayloadAgedError:
    return PayloadAgedError(
        f"topic {record.topic}, partition {record.partition}, offset {record.offset}: its payload was stored more than "
        f"{duration_text(int(LONGEST_HOLD_S * 1000))} ago, and a sweep may have removed it; the records that waited "
        "are read again, and their payloads are stored again",
        retriable=True,
    )


def _raise(error: BaseException) -> None:
    raise error
