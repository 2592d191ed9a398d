"""Filters for the logs of the client libraries: no secrets, and no flood of repeated lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiokafka.protocol.admin import SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1

from app.config.secret import without_secrets

__all__ = ["LEAST_LEVELS", "RepeatFilter", "SecretFormatter", "hide_secrets", "keep_secrets"]

LEAST_LEVELS = {"botocore": logging.INFO}
"""Levels below which no logger may be set: at DEBUG, botocore logs each request, with the session token."""

_LOGINS = (SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1)
_SECONDS = 30.0
_REMEMBERED = 1_000


def keep_secrets() -> None:
    """Keeps passwords and tokens out of the clients' logs, at any log level. May be called again."""
    for name, level in LEAST_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    # At DEBUG, aiokafka logs each request, and the login request has the password.
    logger = logging.getLogger("aiokafka.conn")
    if _is_no_login not in logger.filters:
        logger.addFilter(_is_no_login)


def _is_no_login(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(each, _LOGINS) for each in record.args))


class SecretFormatter(logging.Formatter):
    """Formats as another formatter, and hides the secrets in the line, and in the stacks behind it."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return without_secrets(self._inner.format(record))


def hide_secrets(logger: logging.Logger) -> None:
    """Lets the handlers of a logger format with a `SecretFormatter`. May be called again."""
    for handler in logger.handlers:
        inner = handler.formatter or logging.Formatter()
        if not isinstance(inner, SecretFormatter):
            handler.setFormatter(SecretFormatter(inner))


class RepeatFilter(logging.Filter):
    """Passes a log line once in `seconds`; the next one that passes says how many were left out.

    Two lines are the same if logger, level and message template are the same. For a handler. Without it, aiokafka logs
    each connection attempt to a broker that is down, about thirty lines a second, and hides all other lines.

    Args:
        prefix: the filter applies to this logger and the loggers below it.
        seconds: how long a repeated line is left out.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, prefix: str, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._prefix = prefix
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
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
