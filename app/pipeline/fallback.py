"""The fallback of a chain: large values go as chunks while the store is down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

from app.pipeline.chain import Chain
from app.pipeline.work import Store, Work
from transforms.errors import PayloadStoreError, PayloadUnfitError, TransformError, ValueTooLargeError

_PROBE_S = 5.0  # how long records go without a store that has failed, before one record asks it again


class Fallback:
    """Continues the work of a chain without its store while that is down: `large.message.strategy` is `auto`.

    Args:
        chain: its steps decide which records may continue without the store.
        failed: called on a thread with the error of the store when a record has gone on without it.
        clock: seconds that do not go back.
        may_pass: called on a thread; whether an error of the store may be temporary.
    """

    # State that changes: `_down_until_s`, by several threads. It is one value, and a reader may see an old one.
    # `_probing` is held by the one record that asks a store that has failed.

    def __init__(
        self,
        chain: Chain,
        failed: Callable[[PayloadStoreError], object],
        *,
        clock: Callable[[], float],
        may_pass: Callable[[PayloadStoreError], bool] = attrgetter("retriable"),
    ) -> None:
        self._chain = chain
        self._failed = failed
        self._may_pass = may_pass
        self._clock = clock
        self._down_until_s: float | None = None
        self._probing = threading.Lock()

    def go_on(self, work: Work) -> Work:
        """As `Chain.go_on`; raises an error of the store that may pass only if the record needs the store."""
        if not isinstance(work.step, Store) or work.step.kept is None:
            return self._chain.go_on(work)
        until_s = self._down_until_s
        probing = until_s is not None and self._clock() >= until_s and self._probing.acquire(blocking=False)
        if until_s is not None and not probing and (done := self._without_store(work, work.step)) is not None:
            return done
        try:
            result = self._chain.go_on(work)
        except (PayloadUnfitError, ValueTooLargeError):
            # The store is not down. What it does not accept, readers of chunks do.
            if (done := self._without_store(work, work.step)) is None:
                raise
            return done
        except PayloadStoreError as exc:
            if not self._may_pass(exc):
                raise
            self._down_until_s = self._clock() + _PROBE_S
            done = self._without_store(work, work.step)
            if done is None:
                raise
            self._failed(exc)
            return done
        finally:
            if probing:
                self._probing.release()
        self._down_until_s = None
        return result

    def _without_store(self, work: Work, step: Store) -> Work | None:
        assert step.kept is not None
        kept = (step.kept,)
        try:
            return self._chain.go_on(replace(work, step=Store(lambda: kept, step.reserve_bytes)))
        except (PayloadStoreError, TransformError):
            return None
