"""The store of a pipeline, open from its first flow until a restart that was asked for, or the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from app.cluster.expiry_watch import ExpiryWatch
from app.cluster.preflight import Plan
from app.config.secret import renewed
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.clients import ClusterError
from app.pipeline import background
from app.pipeline.runtime import Threads
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from stores.store import PayloadStore
from transforms.errors import WideloadError
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_OPEN_S = 60.0  # a class of a user may ask its service then
_CLOSE_S = 10.0


class PipelineStore:
    """Opens and closes the store, on threads, and watches how long it keeps payloads. Belongs to one event loop.

    Attributes:
        store: None while it is not open, or if the pipeline has none.
    """

    def __init__(
        self, client: ClientSettings, settings: PipelineSettings, threads: Threads, stats: PipelineStats
    ) -> None:
        self.store: PayloadStore | None = None
        self._client = client
        self._settings = settings
        self._threads = threads
        self._stats = stats
        self._has_been_open = False
        self._watching: asyncio.Task[None] | None = None

    async def open(self, plan: Plan) -> None:
        """Opens it, if the pipeline has one and it is not open.

        Raises:
            WideloadError: it cannot be opened.
            ClusterError: it cannot be opened again, as the files that it reads may be being replaced; or not yet.
        """
        if self.store is not None or not self._settings.store:
            return
        # On a thread, as this loop is that of all pipelines.
        opening = self._threads.call(lambda: open_store(renewed(self._settings.store)))
        try:
            self.store = await asyncio.wait_for(opening, _OPEN_S)
        except (WideloadError, TimeoutError) as exc:
            reason = str(exc) or f"that has not ended within {_OPEN_S:.0f} s"
            if self._has_been_open or isinstance(exc, TimeoutError):
                raise ClusterError(f"the store cannot be opened: {reason}", retriable=True) from exc
            raise
        self._has_been_open = True
        watch = ExpiryWatch(self._client, self._settings, self._note_margins)
        self._watching = background.begin(watch.follow(plan, self.store), self._log_defect, lasting=True)

    def _note_margins(self, margins_s: Mapping[str, float]) -> None:
        self._stats.expiry_margins_s = margins_s

    def _log_defect(self, error: BaseException) -> None:
        name = self._settings.name
        log.error("pipeline %s: unexpected error, the store is no longer watched", name, exc_info=error)

    async def close(self) -> None:
        """Closes it, if it is open; the next flow opens it again, with the credentials and certificates of then."""
        await background.end(self._watching)
        store, self.store, self._watching = self.store, None, None
        if store is None:
            return

        def close() -> None:
            with contextlib.suppress(WideloadError):
                store.close()

        # A store that hangs may hang in this call too.
        closed = self._threads.call_apart(close, f"close-{self._settings.name}")
        try:
            await asyncio.wait_for(closed, _CLOSE_S)
        except TimeoutError:
            log.warning("pipeline %s: its store was not closed within %.0f s", self._settings.name, _CLOSE_S)
