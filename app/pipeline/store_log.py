"""What the log says of a pipeline's store: that it fails, since when, what waits for it; that it answers again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.kafka.broker_health import ago
from transforms.logger_name import logger_name
from transforms.record import SourceRecord

__all__ = ["StoreLog"]

log = logging.getLogger(logger_name(__name__))

_AGAIN_S = 30.0


class StoreLog:
    """The log of one pipeline's store. Belongs to the event loop that runs when it is made.

    A line when the store begins to fail, one each 30 s while it does, and one when it answers again. A store that fails
    now and then gets one line in 30 s.

    Args:
        pipeline: its name.
        waiting: the record that waits longest for the store, and how many wait; None and 0 if none does.
        clock: seconds that do not go back.
    """

    def __init__(
        self,
        pipeline: str,
        waiting: Callable[[], tuple[SourceRecord | None, int]],
        clock: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._waiting = waiting
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._told_s = -_AGAIN_S
        self._failures = 0
        self._reason = ""
        self._told = False
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, reason: str, record: SourceRecord | None = None) -> None:
        """Takes in that the store has failed, or has not answered in time.

        Args:
            reason: what has happened; part of a sentence.
            record: the one for which the store was called; None if that is not known.
        """
        now_s = self._clock()
        self._failures += 1
        self._reason = reason
        if self._since_s is not None:
            return
        self._since_s, self._told = now_s, False
        wait_s = self._told_s + _AGAIN_S - now_s
        if wait_s <= 0:
            if self._failures > 1:
                reason = f"{reason} (and {self._failures - 1} more failures since the last line)"
            self._told, self._told_s, self._failures, wait_s = True, now_s, 0, _AGAIN_S
            if record is None:
                log.warning("pipeline %s: %s", self._pipeline, reason)
            else:
                place = record.topic, record.partition, record.offset
                log.warning("pipeline %s: topic %s, partition %d, offset %d waits: %s", self._pipeline, *place, reason)
        self._timer = self._loop.call_later(wait_s, self._remind)

    def answered(self) -> None:
        """Takes in that the store answers, and that no record waits because it failed."""
        since_s, told = self._since_s, self._told
        self.end()
        if since_s is not None and told:
            lasted_s = self._clock() - since_s
            log.info("pipeline %s: the store answers again, after %.1f s", self._pipeline, lasted_s)

    def end(self) -> None:
        """Takes in that no record waits any more, for whatever reason."""
        self._since_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remind(self) -> None:
        assert self._since_s is not None
        self._told, self._told_s = True, self._clock()
        since = ago(self._told_s - self._since_s)
        oldest, count = self._waiting()
        failures, self._failures = self._failures, 0
        if oldest is None:
            told = "pipeline %s: the store fails since %s, %d times since the last line: %s"
            log.warning(told, self._pipeline, since, failures, self._reason)
        else:
            log.warning(
                "pipeline %s: the store fails since %s, %d times since the last line; %d records wait for it, the "
                "first is topic %s, partition %d, offset %d: %s",
                self._pipeline,
                since,
                failures,
                count,
                oldest.topic,
                oldest.partition,
                oldest.offset,
                self._reason,
            )
        self._timer = self._loop.call_later(_AGAIN_S, self._remind)
