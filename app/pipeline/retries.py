"""Retries: the work of the chain that takes time, on threads, and again while the store is down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from app.config.settings import PipelineSettings
from app.kafka.shielded import shielded
from app.kafka.troubles import STORE, WITHOUT_STORE, Troubles
from app.pipeline.chain import Chain
from app.pipeline.circuit_breaker import CircuitBreaker, pause
from app.pipeline.fallback import Fallback
from app.pipeline.lane import Lane
from app.pipeline.runtime import Runtime
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Work
from stores.registry import check
from stores.store import Check, PayloadStore
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadUnavailableError,
    PayloadUnfitError,
    ReferenceRefusedError,
)
from transforms.record import RecordLike, SourceRecord

# The store is as it should be, and waiting for it would not help.
_OF_THE_RECORD = (PayloadNotFoundError, PayloadUnfitError, ReferenceRefusedError)


@dataclass(slots=True, eq=False)
class _Trial:
    """One record while the store is called for it, perhaps again and again.

    Attributes:
        lane: of its partition.
        record: as it was read.
        began_s: when the trial began, by the monotonic clock.
        called_s: when the call that is under way began; None if none is. A thread writes it.
        tries: how often the store has failed.
        failed_s: when the store failed last, or the trial began.
        alone_s: since when it fails for this record while it is up; None if it does not.
        refused: whether the store has refused the record, and passed its check right after that.
        stalled: whether the trial stalls the lane.
        timer: calls `_look_at`.
    """

    lane: Lane
    record: SourceRecord
    began_s: float
    called_s: float | None = None
    tries: int = 0
    failed_s: float = field(init=False)
    alone_s: float | None = None
    refused: bool = False
    stalled: bool = False
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.failed_s = self.began_s

    def stall(self) -> None:
        """Stalls the lane."""
        if not self.stalled:
            self.stalled = True
            self.lane.stalled += 1


class Retries:
    """Does the work of the chain that takes time. Belongs to the event loop that runs when it is made.

    `unstalled` is called when a stalled lane may be read again; `store` is asked whether it is up.
    """

    # State that changes: `_trials`, `_changed`, `_asking` and the times, on the loop alone.

    def __init__(
        self,
        chain: Chain,
        runtime: Runtime,
        settings: PipelineSettings,
        *,
        stats: PipelineStats,
        troubles: Troubles,
        unstalled: Callable[[], None],
        store: PayloadStore | None = None,
    ) -> None:
        self._threads = runtime.threads
        self._clock = runtime.monotonic
        self._settings = settings
        self._stats = stats
        self._unstalled = unstalled
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._chain = Fallback(chain, self._fell_back_on_thread, clock=self._clock, may_pass=self._may_pass)
        self._breaker = CircuitBreaker(settings.retry_delay_max_ms / 1000)
        self._timeout_s = settings.store_timeout_ms / 1000
        self._answered_at = 0.0
        self._up_at = 0.0  # when a call was made that the store has answered: the latest of them
        self._changed = False  # see `_has_changed`
        self._asking: asyncio.Future[bool] | None = None
        self._trials: dict[_Trial, None] = {}  # the oldest first
        self._troubles = troubles
        troubles.waiting = self._waiting

    async def apply(self, lane: Lane, record: SourceRecord, work: Work) -> Work:
        """Goes on with work, up to a step that needs more; calls the store until it succeeds or can never do so.

        A store that is down is not an error of the record: after the time budget of the store the lane is stalled,
        and the calls go on. If the store has worked before, this holds whatever the error is: it has taken or given a
        payload of this pipeline, or does not pass the check that it has passed at the start. Where it passes, the
        record is tried once more.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store has never worked and refuses, or it refuses this record;
                `PayloadUnavailableError` if it has failed for this record alone.
        """
        if not isinstance(work.step, Store):
            return await self._threads.compute(self._chain.go_on, work)
        with self._trying(_Trial(lane, record, self._clock())) as trial:
            while True:
                try:
                    done = await self._try(trial, work)
                except (PayloadNotFoundError, ReferenceRefusedError):
                    raise  # the store is as it should be
                except PayloadStoreError as exc:
                    self._stats.count_store_error(exc)
                    if not self._may_pass(exc) and not await self._has_changed(trial, exc):
                        raise
                    self._stats.retries += 1
                    await self._failed(trial, exc)
                else:
                    if done is not None:
                        return done

    @contextlib.contextmanager
    def watching(self, lane: Lane, record: SourceRecord) -> Iterator[None]:
        """Stalls the lane if the body takes longer than the store may: a dead letter may go to the store too."""
        began_s = self._clock()
        with self._trying(_Trial(lane, record, began_s, called_s=began_s)):
            yield

    @contextlib.contextmanager
    def _trying(self, trial: _Trial) -> Iterator[_Trial]:
        self._trials[trial] = None
        self._watch(trial, self._timeout_s)
        try:
            yield trial
        finally:
            self._trials.pop(trial)
            if trial.timer is not None:
                trial.timer.cancel()
            self._troubles.end(STORE, trial)
            if trial.stalled:
                trial.lane.stalled -= 1
                self._unstalled()

    async def _try(self, trial: _Trial, work: Work) -> Work | None:
        """Calls the store once, when it is the record's turn; None if it has to wait for another turn."""
        assert isinstance(work.step, Store)
        if work.step.kept is not None:  # it may go on without the store, and waits for no turn
            await pause(trial.tries, self._settings.retry_delay_max_ms / 1000)
            done: Work | None = await self._threads.call(self._call, trial, work)
            self._answered_at = self._clock()
            return done
        async with self._breaker.turn(trial.tries) as probing:
            asked_s = self._clock()
            try:
                done = await self._threads.call(self._call if probing else self._call_if_closed, trial, work)
            except (PayloadNotFoundError, PayloadUnfitError):
                self._breaker.answered()
                self._troubles.store_answers(STORE, trial)
                raise
            except PayloadStoreError as exc:
                if self._may_pass(exc):
                    self._breaker.failed(probing=probing)
                raise
            if done is not None:
                self._breaker.answered()
                self._answered_at = self._clock()
                self._up_at = max(self._up_at, asked_s)
                self._troubles.store_answers(STORE, trial)
            return done

    def _call(self, trial: _Trial, work: Work) -> Work:
        trial.called_s = self._clock()
        try:
            return self._chain.go_on(work)
        finally:
            trial.called_s = None

    def _call_if_closed(self, trial: _Trial, work: Work) -> Work | None:
        # The store may have gone down while the record waited for a thread.
        return None if self._breaker.open else self._call(trial, work)

    # --- a store that fails ------------------------------------------------------------------------------------------

    async def _failed(self, trial: _Trial, error: PayloadStoreError) -> None:
        """Counts a failure, and gives a record up for which the store has failed for long, though it is up.

        Raises:
            PayloadUnavailableError: it has.
        """
        trial.tries += 1
        line = f"the store failed, it is tried again: {error}"
        self._troubles.store_fails(STORE, trial, str(error), line, trial.record)
        before_s, trial.failed_s = trial.failed_s, self._clock()
        lasted_s = trial.failed_s - trial.began_s
        if lasted_s >= self._timeout_s:
            trial.stall()
        give_up_ms = self._settings.retry_timeout_ms
        if give_up_ms < 0:
            return
        if not (self._up_at > before_s or await self._asked_whether_up()):
            trial.alone_s = None
        elif trial.alone_s is None:
            trial.alone_s = trial.failed_s
        elif trial.failed_s - trial.alone_s >= give_up_ms / 1000:
            raise PayloadUnavailableError(trial.tries, lasted_s, str(error)) from error

    def _may_pass(self, error: PayloadStoreError) -> bool:
        """Whether to wait for the store: if it has worked, it may work again; if not, the user must set it right."""
        has_worked = self._changed or self._stats.offloaded_records + self._stats.inflated_records > 0
        return error.retriable or (has_worked and not isinstance(error, _OF_THE_RECORD))

    async def _has_changed(self, trial: _Trial, error: PayloadStoreError) -> bool:
        """Whether the store, which has passed the check of the start, does not pass it now. So it has worked.

        Where it passes, its trouble may be over by then, so the record is tried once more.
        """
        store: object = self._store
        if isinstance(error, _OF_THE_RECORD) or not isinstance(store, Check):
            return False
        self._changed = not await self._asked_whether_up()
        again, trial.refused = self._changed or not trial.refused, not self._changed
        return again

    async def _asked_whether_up(self) -> bool:
        """Asks the store, on one of its own threads: where it hangs, no other waits. All who ask share the answer."""
        if self._asking is None or self._asking.done():
            self._asking = self._threads.call(self._is_up)
        return await shielded(self._asking)

    def _is_up(self) -> bool:
        store, settings = self._store, self._settings
        try:
            return store is not None and check(store, settings.payload_topic, writing=settings.offloads)
        except PayloadStoreError:
            return False

    def _watch(self, trial: _Trial, seconds: float) -> None:
        trial.timer = self._loop.call_later(seconds, self._look_at, trial)

    def _look_at(self, trial: _Trial) -> None:
        """Stalls the lane if a record has taken as long as the store may, unless it only waits for its turn."""
        called_s, record = trial.called_s, trial.record
        since_s = max(self._answered_at, trial.began_s) if called_s is None else called_s
        waited_s = self._clock() - since_s
        if not trial.tries:
            if waited_s < self._timeout_s:
                self._watch(trial, self._timeout_s - waited_s)
                return
            reason = asked = f"the store has not answered for {self._settings.store_timeout_ms:,} ms"
            if called_s is not None:
                place = f"topic {record.topic}, partition {record.partition}, offset {record.offset}"
                asked = f"{reason} what it was asked for {place}"
            if called_s is not None or not self._troubles.has(STORE):
                self._troubles.store_fails(STORE, trial, asked, reason, record)
        trial.stall()

    def _waiting(self) -> tuple[SourceRecord | None, int]:
        return next((trial.record for trial in self._trials), None), len(self._trials)

    def _fell_back_on_thread(self, error: PayloadStoreError) -> None:
        self._loop.call_soon_threadsafe(self._fell_back, error)

    def _fell_back(self, error: PayloadStoreError) -> None:
        self._stats.count_store_error(error)
        line = f"the store failed, large values go as chunks: {error}"
        self._troubles.store_fails(WITHOUT_STORE, None, str(error), line)

    # --- what was done -----------------------------------------------------------------------------------------------

    def finish(self, record: SourceRecord, work: Work) -> Sequence[RecordLike]:
        """The results of work that has no step left, which are counted; raises its `error`."""
        results = work.results()
        self.count(work.applied, record, results)
        return results

    def count(self, applied: Collection[str], record: SourceRecord, results: Sequence[RecordLike]) -> None:
        """Counts what the transforms of these names have made of a record."""
        stats = self._stats
        for name in applied:
            if name == "offload":
                stats.offloaded_records += 1
                stats.offloaded_bytes += len(record.value or b"")
            elif name == "inflate":
                stats.inflated_records += 1
                stats.inflated_bytes += sum(len(result.value or b"") for result in results)
            elif name == "unwrap":
                stats.unwrapped_records += 1
            elif name == "wrap":
                stats.wrapped_records += 1
            elif name == "chunk":
                stats.chunked_messages += 1
                stats.chunks_published += len(results)
                stats.published_rate.add()
        if "offload" in applied or "inflate" in applied:
            self._troubles.store_answers(WITHOUT_STORE, None)
