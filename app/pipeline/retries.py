"""Attempts at a record: the chain, on a thread where it blocks, again while the store is down; how the store fares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from app.config.settings import PipelineSettings
from app.pipeline.circuit_breaker import CircuitBreaker, pause
from app.pipeline.lane import Lane
from app.pipeline.stages import Chain, Fallback
from app.pipeline.stats import PipelineStats
from transforms.errors import (
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
    PayloadUnfitError,
    ReferenceRefusedError,
)
from transforms.record import RecordLike, SourceRecord

__all__ = ["Retries"]

log = logging.getLogger(__name__)

_LOG_S = 10.0  # a store that fails now and then is one line in so long


class _LaterError(Exception):
    """The outage began while the record waited for a thread: it has not asked."""


@dataclass(slots=True, eq=False)
class _Trial:
    """One record while it is tried.

    Attributes:
        lane: of its partition.
        record: which is tried.
        began: when, by the monotonic clock.
        called: when its call began on a thread; None where none is under way. Written by that thread.
        tries: how often the store has failed.
        stalled: whether it stalls the lane.
        timer: when it is to be looked at.
    """

    lane: Lane
    record: SourceRecord
    began: float
    called: float | None = None
    tries: int = 0
    stalled: bool = False
    timer: asyncio.TimerHandle | None = None


class Retries:
    """Applies the chain to records that do not pass. Belongs to the event loop that runs when it is made.

    Args:
        chain: the transforms.
        executor: where they run.
        settings: the pipeline's.
        stats: what is counted.
        unstalled: called when a lane is to be read on again.
    """

    # State that changes: `_reasons`, `_fallen_back` and the times, on the loop alone.

    def __init__(
        self,
        chain: Chain,
        executor: Executor,
        settings: PipelineSettings,
        *,
        stats: PipelineStats,
        unstalled: Callable[[], None],
    ) -> None:
        self._chain = chain
        self._executor = executor
        self._settings = settings
        self._stats = stats
        self._unstalled = unstalled
        self._loop = asyncio.get_running_loop()
        fallback = Fallback(chain, self._fell_back_on_thread, may_pass=self._may_pass)
        self._apply = fallback.apply if chain.falls_back else chain.apply
        self._outage = CircuitBreaker(settings.retry_delay_max_ms / 1000)
        self._timeout_s = settings.store_timeout_ms / 1000
        self._reasons: dict[_Trial, str] = {}
        self._fallen_back: str | None = None
        self._answered_at = 0.0
        self._logged_at = -_LOG_S

    @property
    def degraded(self) -> str | None:
        """Why records wait, or go without the store; None where they do not."""
        return next(reversed(self._reasons.values()), self._fallen_back)

    def apply_now(self, record: SourceRecord) -> Sequence[RecordLike]:
        """What the chain makes of a record of which it says that it does not block.

        Raises:
            TransformError: this record can never succeed.
        """
        results, applied = self._chain.apply(record)
        self._count(applied, record, results)
        return results

    async def apply(self, lane: Lane, record: SourceRecord) -> Sequence[RecordLike]:
        """What the chain makes of a record; tries until it succeeds or can never do so.

        A store that is down is not an error of the record: beyond the store's time budget the lane is stalled, and it
        is tried on. Nor is one that lets nobody in, where it has done so before.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store, for good.
        """
        trial = _Trial(lane, record, time.monotonic())
        if self._chain.asks_store(record):
            self._watch(trial, self._timeout_s)
        try:
            while True:
                try:
                    return await self._try(trial)
                except _LaterError:
                    continue
                except (PayloadNotFoundError, ReferenceRefusedError):
                    raise  # the store is as it should be
                except PayloadStoreError as exc:
                    self._stats.store_errors += 1
                    if not self._may_pass(exc):
                        raise
                    self._stats.retries += 1
                    self._failed(trial, exc)
        finally:
            self._end(trial)

    @contextlib.contextmanager
    def watching(self, lane: Lane, record: SourceRecord) -> Iterator[None]:
        """Notices where what is awaited in here takes longer than the store may: a dead letter goes there too."""
        began = time.monotonic()
        trial = _Trial(lane, record, began, called=began)
        self._watch(trial, self._timeout_s)
        try:
            yield
        finally:
            self._end(trial)

    async def _try(self, trial: _Trial) -> Sequence[RecordLike]:
        record = trial.record
        if not self._chain.asks_store(record):
            # It waits for no store, nor for a thread that waits for one, and says nothing of it.
            await pause(trial.tries, self._settings.retry_delay_max_ms / 1000)
            return self._done(record, await self._loop.run_in_executor(None, self._apply, record))
        if self._chain.falls_back:
            await pause(trial.tries, self._settings.retry_delay_max_ms / 1000)
            return self._answered(record, await self._loop.run_in_executor(self._executor, self._call, trial))
        outage = self._outage
        async with outage.turn(trial.tries) as probing:
            call = self._call if probing else self._call_unless_down
            try:
                made = await self._loop.run_in_executor(self._executor, call, trial)
            except (PayloadNotFoundError, PayloadUnfitError):
                outage.answered()
                raise
            except PayloadStoreError as exc:
                if self._may_pass(exc):
                    outage.failed(probing=probing)
                raise
            if outage.lasts:
                log.info("pipeline %s: the store answers again", self._settings.name)
            outage.answered()
        return self._answered(record, made)

    def _call(self, trial: _Trial) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        trial.called = time.monotonic()
        try:
            return self._apply(trial.record)
        finally:
            trial.called = None

    def _call_unless_down(self, trial: _Trial) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        if self._outage.lasts:
            raise _LaterError
        return self._call(trial)

    def _answered(
        self, record: SourceRecord, made: tuple[Sequence[RecordLike], tuple[str, ...]]
    ) -> Sequence[RecordLike]:
        self._answered_at = time.monotonic()
        return self._done(record, made)

    def _done(self, record: SourceRecord, made: tuple[Sequence[RecordLike], tuple[str, ...]]) -> Sequence[RecordLike]:
        results, applied = made
        self._count(applied, record, results)
        return results

    def _watch(self, trial: _Trial, seconds: float) -> None:
        trial.timer = self._loop.call_later(seconds, self._look_at, trial)

    def _look_at(self, trial: _Trial) -> None:
        """A record has taken as long as the store may: it waits for its turn where others were answered meanwhile."""
        called_s, record = trial.called, trial.record
        since_s = max(self._answered_at, trial.began) if called_s is None else called_s
        waited_s = time.monotonic() - since_s
        if not trial.tries:
            if waited_s < self._timeout_s:
                self._watch(trial, self._timeout_s - waited_s)
                return
            reason = f"the store has not answered for {self._settings.store_timeout_ms:,} ms"
            if called_s is not None:
                place = f"topic {record.topic}, partition {record.partition}, offset {record.offset}"
                reason = f"{reason} what it was asked for {place}"
            if called_s is not None or not self._reasons:
                self._reasons[trial] = reason
                self._log(reason)
        self._stall(trial)

    def _failed(self, trial: _Trial, error: PayloadStoreError) -> None:
        trial.tries += 1
        self._reasons[trial] = str(error)
        self._log(f"the store failed, it is tried again: {error}")
        if time.monotonic() - trial.began >= self._timeout_s:
            self._stall(trial)

    def _stall(self, trial: _Trial) -> None:
        if not trial.stalled:
            trial.stalled = True
            trial.lane.stalled += 1

    def _end(self, trial: _Trial) -> None:
        if trial.timer is not None:
            trial.timer.cancel()
        self._reasons.pop(trial, None)
        if trial.stalled:
            trial.lane.stalled -= 1
            self._unstalled()

    def _may_pass(self, error: PayloadStoreError) -> bool:
        """What was withdrawn may be given back; what was never given is for the user to mend."""
        was_let_in = self._stats.offloaded_records or self._stats.inflated_records
        return error.retriable or (isinstance(error, PayloadStoreAccessError) and was_let_in > 0)

    def _log(self, text: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_S:
            self._logged_at = now
            log.warning("pipeline %s: %s", self._settings.name, text)

    def _fell_back_on_thread(self, error: PayloadStoreError) -> None:
        self._loop.call_soon_threadsafe(self._fell_back, error)

    def _fell_back(self, error: PayloadStoreError) -> None:
        self._stats.store_errors += 1
        self._fallen_back = str(error)
        self._log(f"the store failed, large values go as chunks: {error}")

    def _count(self, applied: Collection[str], record: SourceRecord, results: Sequence[RecordLike]) -> None:
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
            else:
                stats.chunked_messages += 1
                stats.chunks_published += len(results)
                stats.published_rate.add()
        if "offload" in applied or "inflate" in applied:
            self._fallen_back = None
