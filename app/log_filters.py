"""Log lines that repeat: said once, then counted.

With its broker away aiokafka logs each try of each connection, some thirty lines a second, in which all else drowns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["RepeatFilter"]

_SECONDS = 30.0
_REMEMBERED = 1_000


class RepeatFilter(logging.Filter):
    """Lets a line pass once in `seconds`; the next one that passes says how many were left out.

    Lines are the same where logger, level and message before its arguments are the same. Put it on a handler.

    Args:
        prefix: loggers below this name are filtered, others pass.
        seconds: how long a line keeps quiet.
        clock: seconds, rising.
    """

    def __init__(self, prefix: str, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._prefix = prefix
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See the class."""
        if record.name != self._prefix and not record.name.startswith(f"{self._prefix}."):
            return True
        now = self._clock()
        line = (record.name, record.levelno, str(record.msg))
        since, left_out = self._seen.get(line, (now - self._seconds, 0))
        if now - since < self._seconds:
            self._seen[line] = (since, left_out + 1)
            return False
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[line] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it)"
            record.args = None
        return True
