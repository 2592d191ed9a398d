"""The state of a pipeline's store: whether it is up, has worked, and which record calls it while it is down.

A circuit breaker: a thousand records may wait for one store. If each retried, the store would recover into a storm of
requests, and the threads of all pipelines would be spent on calls that fail. Only one record at a time calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from app.config.settings import PipelineSettings
from app.kafka.shielded import shielded
from app.pipeline.runtime import Threads
from app.pipeline.stats import PipelineStats
from stores.registry import check
from stores.store import Check, PayloadStore
from transforms.errors import PayloadNotFoundError, PayloadStoreError, PayloadUnfitError, ReferenceRefusedError

# The store is as it should be, and waiting for it would not help.
_OF_THE_RECORD = (PayloadNotFoundError, PayloadUnfitError, ReferenceRefusedError)
_FIRST_DELAY_S = 0.2
_NEWCOMER_DELAY_S = 1.0
_OPENS_AFTER = 5  # failures with no success between them; a server that fails half the time does so now and then


class StoreState:
    """What is known of a store. Belongs to one event loop; any thread may read `down`, and call `may_pass`.

    Attributes:
        down: True while one record at a time calls it: the probe.
        up_s: when a call was made that the store has answered: the latest of them.
    """

    def __init__(
        self, settings: PipelineSettings, store: PayloadStore | None, stats: PipelineStats, threads: Threads
    ) -> None:
        self.down = False
        self.up_s = 0.0
        self._settings = settings
        self._store = store
        self._stats = stats
        self._threads = threads
        self._delay_max_s = settings.retry_delay_max_ms / 1000
        self._failures = 0
        self._delay_s = 0.0
        self._failed_at = 0.0
        self._probe = asyncio.Lock()
        self._newcomers = 0
        self._changed = False  # see `has_changed`
        self._asking: asyncio.Future[bool] | None = None

    # --- whether it is up, and has worked ----------------------------------------------------------------------------

    def may_pass(self, error: PayloadStoreError) -> bool:
        """Whether to wait for the store: if it has worked, it may work again; if not, the user must set it right."""
        has_worked = self._changed or self._stats.offloaded_records + self._stats.inflated_records > 0
        return error.retriable or (has_worked and not isinstance(error, _OF_THE_RECORD))

    def may_have_changed(self, error: PayloadStoreError) -> bool:
        """Whether `has_changed` can explain an error."""
        store: object = self._store
        return isinstance(store, Check) and not isinstance(error, _OF_THE_RECORD)

    async def has_changed(self) -> bool:
        """Whether the store no longer passes the check that it passed at the start, so that it must have worked."""
        self._changed = not await self.is_up()
        return self._changed

    async def is_up(self) -> bool:
        """Asks the store, on one of its threads: if it hangs, no other store waits. All callers share the answer."""
        if self._asking is None or self._asking.done():
            self._asking = self._threads.call(self._check)
        return await shielded(self._asking)

    def _check(self) -> bool:
        store, settings = self._store, self._settings
        try:
            return store is not None and check(store, settings.payload_topic, writing=settings.offloads)
        except PayloadStoreError:
            return False

    # --- who calls it ------------------------------------------------------------------------------------------------

    def failed(self, *, probing: bool) -> None:
        """Counts a call that has failed in a way that may pass; `probing` if it was the probe."""
        self._failures += 1
        if not self.down and self._failures >= _OPENS_AFTER:
            self.down = True
            self._delay(_FIRST_DELAY_S)
        elif probing:
            self._delay(self._delay_s * 2)

    def answered(self, asked_s: float = 0.0) -> None:
        """Counts a call that was answered, and was made then: all records that wait may call."""
        self.up_s = max(self.up_s, asked_s)
        self._failures = 0
        self.down = False

    async def pause(self, tries: int) -> None:
        """Waits before another try of a record: twice as long each time, and not before the first."""
        if tries:
            await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** min(tries - 1, 30), self._delay_max_s))

    @contextlib.asynccontextmanager
    async def turn(self, tries: int) -> AsyncIterator[bool]:
        """Waits until a record may call the store, and lasts for the time of one call.

        A newcomer, which has not called yet, makes the wait shorter. For the payloads of others may be all that the
        store does not return, and they would delay it for minutes.

        Args:
            tries: how often the record has called in vain.

        Returns:
            Whether the call is the probe.
        """
        if not self.down:
            await self.pause(tries)
        if self.down:
            self._newcomers += not tries
            try:
                # In the order of arrival: a record whose call always fails must not be the probe each time.
                async with self._probe:
                    while (left_s := self._left_s()) > 0:  # noqa: ASYNC110  # a newcomer may come, and time goes by
                        await asyncio.sleep(min(left_s, _NEWCOMER_DELAY_S))
                    if self.down:
                        yield True
                        return
            finally:
                self._newcomers -= not tries
        yield False

    def _left_s(self) -> float:
        if not self.down:
            return 0.0
        delay_s = min(self._delay_s, _NEWCOMER_DELAY_S) if self._newcomers else self._delay_s
        return self._failed_at + delay_s - asyncio.get_running_loop().time()

    def _delay(self, delay_s: float) -> None:
        self._delay_s = min(delay_s, self._delay_max_s)
        self._failed_at = asyncio.get_running_loop().time()
