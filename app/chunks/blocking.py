"""What a blocking client does before the next record: it re-reads ranges, and passes on discarded messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from app.chunks.inbox import Inbox, Place
from transforms.chunked_message import Discarded, LoggedRecord
from transforms.read_range import ReadRange

_STEP_RECORDS = 500

OnDiscarded = Callable[[Discarded], object]
"""Called with each message that cannot be delivered whole."""


class Log(Protocol):
    """A separate consumer without a group, which reads a partition at any offset."""

    def first(self, place: Place) -> int:
        """The lowest offset that is still in the log."""

    def records(self, place: Place, start: int, end: int) -> Iterator[LoggedRecord | None]:
        """The records of a range that are still in the log; None where it has waited a moment for more."""

    def close(self) -> None:
        """Closes it."""


class Actions:
    """Does the first of the actions of an inbox, in steps that a call can end between. Belongs to one thread.

    Args:
        inbox: with the actions.
        on_discarded: called with each discarded message. If it raises an error, the next call tries again.
        opened: opens the consumer that reads, when the first range is to be read.
    """

    def __init__(self, inbox: Inbox[Any], on_discarded: OnDiscarded, opened: Callable[[], Log]) -> None:
        self._inbox, self._on_discarded, self._opened = inbox, on_discarded, opened
        self._log: Log | None = None
        self._range: ReadRange | None = None
        self._records: Iterator[LoggedRecord | None] | None = None

    def do_first(self, until_s: float) -> None:
        """Does the first action; a range is read, at least one step, until this time of `time.monotonic`."""
        action = self._inbox.actions[0]
        if isinstance(action, Discarded):
            self._on_discarded(action)
            self._inbox.done(action)
        elif self._read(action, until_s):
            self._inbox.resolve(action)

    def close(self) -> None:
        """Closes the consumer."""
        log, self._log, self._range, self._records = self._log, None, None, None  # the last one ends with its reading
        if log is not None:
            log.close()

    def _read(self, range_: ReadRange, until_s: float) -> bool:
        """Whether the range is over."""
        if self._log is None:
            self._log = self._opened()
        place: Any = range_.partition
        if range_ is not self._range:
            range_.begin()
            self._range, self._records = range_, None
        try:
            while True:
                if self._records is None:
                    self._records = self._log.records(place, range_.start, range_.end)
                for number, record in enumerate(self._records, 1):
                    if record is not None:
                        range_.take(record)
                    if (record is None or number % _STEP_RECORDS == 0) and time.monotonic() >= until_s:
                        return False
                self._records = None
                if range_.finish(self._log.first(place) if range_.searches else 0):
                    self._range = None
                    return True
        except BaseException:  # the next call reads it from its start
            self._range = None
            raise
