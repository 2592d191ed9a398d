"""Retries: the work of the chain that takes time, on threads, and again while the store is down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.config.settings import PipelineSettings
from app.kafka.troubles import AT_STORE, STORE, WITHOUT_STORE, Troubles
from app.pipeline.chain import Chain
from app.pipeline.fallback import Fallback
from app.pipeline.lane import Lane
from app.pipeline.runtime import Runtime
from app.pipeline.stats import PipelineStats
from app.pipeline.store_state import StoreState
from app.pipeline.work import Store, Work
from stores.store import PayloadStore
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadUnavailableError,
    PayloadUnfitError,
    ReferenceRefusedError,
)
from transforms.record import RecordLike, SourceRecord


@dataclass(slots=True, eq=False)
class _Trial:
    """One record while the store is called for it, perhaps again and again.

    Attributes:
        lane: of its partition.
        record: as it was read.
        began_s: when the trial began, by the monotonic clock.
        failed_s: when the store failed last, or the trial began.
        called_s: when the call that is under way began; None if none is. A thread writes it.
        tries: how often the store has failed.
        alone_s: since when it fails for this record while it is up; None if it does not.
        refused: whether the store has refused the record, and passed its check right after that.
        timer: stalls the lane; None once it has.
    """

    lane: Lane
    record: SourceRecord
    began_s: float
    failed_s: float
    called_s: float | None = None
    tries: int = 0
    alone_s: float | None = None
    refused: bool = False
    timer: asyncio.TimerHandle | None = None


class Retries:
    """Does the work of the chain that takes time. Belongs to the event loop that runs when it is made.

    `unstalled` is called when a stalled lane may be read again; `store` is asked whether it is up.
    """

    # State that changes: `_answered_s`, on the loop alone.

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
        self._timeout_s = settings.store_timeout_ms / 1000
        self._stats = stats
        self._unstalled = unstalled
        self._loop = asyncio.get_running_loop()
        self._state = StoreState(settings, store, stats, runtime.threads)
        self._chain = Fallback(
            chain,
            lambda error: self._loop.call_soon_threadsafe(self._fell_back, error),
            clock=self._clock,
            may_pass=self._state.may_pass,
        )
        self._answered_s = 0.0
        self._troubles = troubles

    async def apply(self, lane: Lane, record: SourceRecord, work: Work) -> Work:
        """Continues work, up to a step that needs more; calls the store until it succeeds or can never do so.

        A store that is down is not an error of the record: after the time budget of the store the lane is stalled,
        and the calls continue. If the store has worked before, this holds whatever the error is: it has stored or
        returned a payload of this pipeline, or does not pass the check that it has passed at the start. If it passes,
        the record is tried once more.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store has never worked and refuses, or it refuses this record;
                `PayloadUnavailableError` if it has failed for this record alone.
        """
        step = work.step
        if not isinstance(step, Store):
            return await self._threads.compute(self._chain.go_on, work)
        with self.watching(lane, record, called=False) as trial:
            while True:
                try:
                    done = await (self._try_in_turn(trial, work) if step.kept is None else self._try(trial, work))
                except (PayloadNotFoundError, ReferenceRefusedError):
                    raise  # the store is as it should be
                except PayloadStoreError as exc:
                    self._stats.count_store_error(exc)
                    if not self._state.may_pass(exc):
                        if not self._state.may_have_changed(exc):
                            raise
                        # If it passes its check, its trouble may be over, so the record is tried once more.
                        changed = await self._state.has_changed()
                        if trial.refused and not changed:
                            raise
                        trial.refused = not changed
                    self._stats.retries += 1
                    await self._failed(trial, exc)
                else:
                    if done is not None:
                        return done

    @contextlib.contextmanager
    def watching(self, lane: Lane, record: SourceRecord, *, called: bool = True) -> Iterator[_Trial]:
        """Stalls the lane if the body takes longer than the store may: a dead letter may go to the store too.

        `called`: the body is a call of the store.
        """
        now_s = self._clock()
        trial = _Trial(lane, record, now_s, now_s, now_s if called else None)
        self._look_later(trial, self._timeout_s)
        try:
            with self._troubles.lasting(AT_STORE, record):
                yield trial
        finally:
            self._troubles.end(STORE, trial)
            if trial.timer is not None:
                trial.timer.cancel()
            else:
                lane.stalled -= 1
                self._unstalled()

    async def _try(self, trial: _Trial, work: Work) -> Work | None:
        """Calls the store once for a record that may continue without it."""
        await self._state.pause(trial.tries)
        done = await self._threads.call(self._call, trial, work, True)
        self._answered_s = self._clock()
        return done

    async def _try_in_turn(self, trial: _Trial, work: Work) -> Work | None:
        """Calls the store once, when it is the record's turn; None if it has to wait for another turn."""
        async with self._state.turn(trial.tries) as probing:
            asked_s = self._clock()
            try:
                done = await self._threads.call(self._call, trial, work, probing)
            except (PayloadNotFoundError, PayloadUnfitError):
                self._state.answered()
                self._troubles.store_answers(STORE, trial)
                raise
            except PayloadStoreError as exc:
                if self._state.may_pass(exc):
                    self._state.failed(probing=probing)
                raise
            if done is not None:
                self._state.answered(asked_s)
                self._answered_s = self._clock()
                self._troubles.store_answers(STORE, trial)
            return done

    def _call(self, trial: _Trial, work: Work, probing: bool) -> Work | None:  # noqa: FBT001  # of a thread
        if self._state.down and not probing:
            return None  # it has gone down while the record waited for a thread
        trial.called_s = self._clock()
        try:
            return self._chain.go_on(work)
        finally:
            trial.called_s = None

    async def _failed(self, trial: _Trial, error: PayloadStoreError) -> None:
        """Counts a failure, and gives up a record for which the store keeps failing although it is up.

        Raises:
            PayloadUnavailableError: it has.
        """
        trial.tries += 1
        line = f"the store failed, it is tried again: {error}"
        self._troubles.store_fails(STORE, trial, str(error), line, trial.record)
        before_s, trial.failed_s = trial.failed_s, self._clock()
        give_up_ms = self._settings.retry_timeout_ms
        if give_up_ms < 0:
            return
        if not (self._state.up_s > before_s or await self._state.is_up()):
            trial.alone_s = None
        elif trial.alone_s is None:
            trial.alone_s = trial.failed_s
        elif trial.failed_s - trial.alone_s >= give_up_ms / 1000:
            raise PayloadUnavailableError(trial.tries, trial.failed_s - trial.began_s, str(error)) from error

    def _look_later(self, trial: _Trial, seconds: float) -> None:
        trial.timer = self._loop.call_later(seconds, self._look_at, trial)

    def _look_at(self, trial: _Trial) -> None:
        """Stalls the lane if a record has taken as long as the store may, unless it only waits for its turn."""
        called_s, record = trial.called_s, trial.record
        if not trial.tries:
            since_s = max(self._answered_s, trial.began_s) if called_s is None else called_s
            left_s = since_s + self._timeout_s - self._clock()
            if left_s > 0:
                self._look_later(trial, left_s)
                return
            reason = asked = f"the store has not answered for {self._settings.store_timeout_ms:,} ms"
            if called_s is not None:
                place = f"topic {record.topic}, partition {record.partition}, offset {record.offset}"
                asked = f"{reason} what it was asked for {place}"
            if called_s is not None or not self._troubles.has(STORE):
                self._troubles.store_fails(STORE, trial, asked, reason, record)
        trial.timer = None
        trial.lane.stalled += 1

    def _fell_back(self, error: PayloadStoreError) -> None:
        self._stats.count_store_error(error)
        line = f"the store failed, large values go as chunks: {error}"
        self._troubles.store_fails(WITHOUT_STORE, None, str(error), line)

    # --- what was done -----------------------------------------------------------------------------------------------

    def finish(self, record: SourceRecord, work: Work) -> Sequence[RecordLike]:
        """The records to write of work that has no step left, which are counted."""
        results, stats = work.records, self._stats
        for name in work.applied:
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
        if "offload" in work.applied or "inflate" in work.applied:
            self._troubles.store_answers(WITHOUT_STORE, None)
        return results
