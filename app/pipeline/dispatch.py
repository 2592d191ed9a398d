"""The dispatcher: brings records with work through the chain, and lets their results leave in source order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from app.kafka.clients import ClusterError
from app.kafka.shielded import retrieve_exception
from app.kafka.structs import TopicPartition
from app.pipeline.delivery import Delivery
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.lane import Lane, Letter, Working
from app.pipeline.lane_assembler import chunks_of
from app.pipeline.parts import Parts
from app.pipeline.retries import Retries
from app.pipeline.termination import RecordError
from app.pipeline.work import Work
from transforms.chunked_message import Discarded
from transforms.letter import Cause
from transforms.record import RecordLike, SourceRecord
from transforms.retention import LONGEST_HOLD_S, duration_text

_PART = 250  # the most dead letters of one message that are written in one go


class Dispatcher:
    """Puts records with work into the lanes. Belongs to one event loop.

    A record takes its bytes of the share when it enters, and then holds those of its result.

    A record may wait for hours behind one for which the store is down. As no record refers to its payload yet, a
    sweep could delete it. A result with a payload that is `LONGEST_HOLD_S` old is therefore not written: the flow
    restarts, and stores it again.

    `clock` are seconds that do not go back.
    """

    def __init__(
        self,
        parts: Parts,
        retries: Retries,
        error_policy: ErrorPolicy,
        delivery: Delivery,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._parts = parts
        self._retries = retries
        self._error_policy = error_policy
        self._delivery = delivery
        self._clock = clock

    def enter(self, lane: Lane, record: SourceRecord, work: Work | None, held: int) -> None:
        """Puts a record at the end of the lane, and continues the work on it.

        Without work, it only waits for the records before it. `held` are the bytes that the share is to hold for it.
        """
        item = Working(record, held, lane.codec)
        lane.append(item)
        if work is None:
            item.result = (record,)
        elif work.step is not None:
            self._begin(lane, self._transform(lane, item, work))
        else:
            self._finish(lane, item, self._retries.finish(record, work))

    def fail(self, lane: Lane, record: SourceRecord, error: BaseException, held: int) -> None:
        """Lets the error policy decide on a record, or several that are not read, at the end of its lane."""
        item = Working(record, held, lane.codec)
        lane.append(item)
        self._fail(lane, item, error)

    def _finish(self, lane: Lane, item: Working, result: Sequence[RecordLike]) -> None:
        lane.finish(item, result)
        self.release(lane)

    def measured(self, lane: Lane, record: SourceRecord, work: Work) -> Work | None:
        """The work on a record with the size that it lacks, which the store is asked for; None until it has answered.

        Call it in each turn: the first call asks, later ones return the answer. The record is not admitted yet.
        Raises what `Retries.apply` raises.
        """
        if lane.measuring is None or lane.measuring[0] != record.offset:
            task = asyncio.get_running_loop().create_task(self._retries.apply(lane, record, work))
            lane.measuring = record.offset, task
            lane.keep(task)
            # If the lane is given up, it is never awaited, and the loop would log its error.
            task.add_done_callback(retrieve_exception)
            task.add_done_callback(lambda _: self._parts.share.budget.wake())
        asked = lane.measuring[1]
        return asked.result() if asked.done() else None

    def _fail(self, lane: Lane, item: Working, error: BaseException) -> None:
        verdict = self._error_policy.verdict(item.source, error)
        if verdict is not None:
            self._bury(lane, verdict, [(lane.fail(item), [item.source])])

    def _bury(
        self, lane: Lane, verdict: Cause | RecordError, letters: Sequence[tuple[Letter, Sequence[SourceRecord]]]
    ) -> None:
        """Writes dead letters of records, on a thread if they are many or large; or lets the first one end the flow."""
        letter, sources = letters[0]
        if isinstance(verdict, RecordError):
            self._settle(lane, letter, verdict)
            return
        found = None if len(letters) > 1 else self._error_policy.letters(sources, verdict)
        if found is None:
            self._begin(lane, self._write_letters(lane, letters, verdict))
        else:
            self._settle(lane, letter, found)

    def _settle(self, lane: Lane, letter: Letter, found: Sequence[RecordLike] | RecordError) -> None:
        if isinstance(found, RecordError):
            letter.failure = found
            self.release(lane)
        else:
            self._finish(lane, letter, found)

    def _begin(self, lane: Lane, work: Coroutine[None, None, None]) -> None:
        task = self._parts.termination.begin(work)
        lane.keep(task)

    def give_up(self, event: Discarded) -> None:
        """Lets the error policy decide on the chunks of a message that will not be whole, at the end of their lane."""
        verdict = self._error_policy.discarded(event)
        if verdict is None:
            return
        chunks = chunks_of(event)
        lane = self._parts.lanes.get(TopicPartition(chunks[0].topic, chunks[0].partition))
        assert lane is not None, "the assembler forgets the chunks of a lane that is discarded"
        parts = [chunks[start : start + _PART] for start in range(0, len(chunks), _PART)]
        letters = [Letter(part[-1], codec=lane.codec, first=part[-1].offset) for part in parts]
        # No chunk of the message is done before all of them are.
        letters[-1].commit_limit = chunks[0].offset
        lane.blocking.append(letters[-1])
        lane.items.extend(letters)
        self._bury(lane, verdict, list(zip(letters, parts, strict=True)))

    async def _write_letters(
        self, lane: Lane, letters: Iterable[tuple[Letter, Sequence[SourceRecord]]], cause: Cause
    ) -> None:
        """Part by part: a message may have a hundred thousand chunks, and other tasks must have their turn."""
        for letter, sources in letters:
            with self._retries.watching(lane, letter.source):
                found = await self._error_policy.write_letters(sources, cause)
            letter.stored_s = self._clock()
            self._settle(lane, letter, found)
            if letter.failure is not None:
                return  # the flow ends

    async def _transform(self, lane: Lane, item: Working, work: Work) -> None:
        try:
            while work.step is not None:
                reserved = work.reserve_bytes
                work = await self._retries.apply(lane, item.source, work)
                lane.reserve(item, work.reserve_bytes - reserved)
            result = self._retries.finish(item.source, work)
        except Exception as exc:  # noqa: BLE001  # the error policy decides
            self._fail(lane, item, exc)
        else:
            item.stored_s = self._clock() if self._parts.settings.offloads else None
            self._finish(lane, item, result)

    def release(self, lane: Lane) -> None:
        """Delivers the results at the front of the lane, up to a record that is not finished, or that ends the flow."""
        if not self._may_write(lane):
            return
        while lane.items and lane.items[0].result is not None:
            item = lane.items[0]
            if item.stored_s is not None and self._clock() - item.stored_s > LONGEST_HOLD_S:
                # What is before it is written and committed: if that has waited for long, it would do so each time.
                self._delivery.flush()
                self._parts.termination.fail(PayloadAgedError(item.source))
                return
            lane.pop()
            tracker = lane.tracked(item.source.offset)
            released = tracker.released
            try:
                self._delivery.output_of(lane).write(lane, item)
            except Exception as exc:  # noqa: BLE001  # raised in a separate task, it would be lost
                # One of several results may be written. A dead letter blocks the commit until its last record is safe.
                tracker.keep(released - 1 if item in lane.blocking else released)
                lane.items.appendleft(Working(item.source))  # nothing of the lane passes it
                if isinstance(exc, ClusterError):
                    self._parts.termination.fail(exc)
                else:
                    self._parts.termination.fail_by_defect(exc, item.source)
            if not self._may_write(lane):
                break
        if lane.items and (failure := lane.items[0].failure) is not None:
            self._error_policy.end(failure)
        self._delivery.flush()

    def _may_write(self, lane: Lane) -> bool:
        return self._parts.termination.error is None and self._parts.lanes.has(lane)


class PayloadAgedError(ClusterError):
    """A payload was stored so long ago that it must be stored again before its reference is written."""

    def __init__(self, record: SourceRecord) -> None:
        super().__init__(
            f"topic {record.topic}, partition {record.partition}, offset {record.offset}: its payload was stored more "
            f"than {duration_text(int(LONGEST_HOLD_S * 1000))} ago, and a sweep may have removed it; the records that "
            "waited are read again, and their payloads are stored again",
            retriable=True,
        )
