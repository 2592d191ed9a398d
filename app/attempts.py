"""Attempts at a record: the chain, on a thread where it blocks, again while the store is down; how the store fares."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from app.stages import Fallback
from transforms.errors import PayloadStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Executor

    from app.lane import Lane, SourceRecord
    from app.settings import PipelineSettings
    from app.stages import Chain
    from app.stats import PipelineStats
    from transforms.record import RecordLike

__all__ = ["Attempts"]

log = logging.getLogger(__name__)

_RETRY_DELAY_S = 0.2


class Attempts:
    """Applies the chain to records that do not pass. Belongs to the event loop that runs when it is made.

    Args:
        chain: the transforms.
        executor: where they run.
        settings: the pipeline's.
        stats: what is counted.
        unstalled: called when a lane is to be read on again.

    Attributes:
        degraded: why records wait, or go without the store; None where they do not.
    """

    def __init__(
        self,
        chain: Chain,
        executor: Executor,
        settings: PipelineSettings,
        *,
        stats: PipelineStats,
        unstalled: Callable[[], None],
    ) -> None:
        self.degraded: str | None = None
        self._chain = chain
        self._executor = executor
        self._settings = settings
        self._stats = stats
        self._unstalled = unstalled
        self._loop = asyncio.get_running_loop()
        self._apply_on_thread = Fallback(chain, self._fell_back_on_thread).apply if chain.falls_back else chain.apply

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
        is tried on.

        Raises:
            TransformError: this record can never succeed.
            PayloadStoreError: the store, for good.
        """
        started = time.monotonic()
        delay = _RETRY_DELAY_S
        stalled = False
        try:
            while True:
                try:
                    results, applied = await self._loop.run_in_executor(self._executor, self._apply_on_thread, record)
                except PayloadStoreError as exc:
                    self._stats.store_errors += 1
                    if not exc.retriable:
                        raise
                    self._stats.retries += 1
                    if not stalled and time.monotonic() - started > self._settings.store_timeout_ms / 1000:
                        stalled = True
                        lane.stalled += 1
                        log.warning("pipeline %s waits for its store: %s", self._settings.name, exc)
                    self._degrade(exc, "it is tried again")
                else:
                    self._count(applied, record, results)
                    return results
                await asyncio.sleep(delay)
                delay = min(delay * 2, self._settings.retry_delay_max_ms / 1000)
        finally:
            if stalled:
                lane.stalled -= 1
                self._unstalled()

    def _degrade(self, error: PayloadStoreError, then: str) -> None:
        if self.degraded is None:
            log.warning("pipeline %s: the store failed, %s: %s", self._settings.name, then, error)
        self.degraded = str(error)

    def _fell_back_on_thread(self, error: PayloadStoreError) -> None:
        self._loop.call_soon_threadsafe(self._fell_back, error)

    def _fell_back(self, error: PayloadStoreError) -> None:
        self._stats.store_errors += 1
        self._degrade(error, "large values go as chunks")

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
                stats.published_rate.count()
        if "offload" in applied or "inflate" in applied:
            self.degraded = None
