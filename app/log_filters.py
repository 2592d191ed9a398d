"""Filters for the log: no secrets, no flood of repeated lines, and no errors of the Kafka client that are none."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiokafka.errors import IllegalGenerationError, KafkaError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.protocol.admin import SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1

from app.config.secret import without_secrets
from transforms.logger_name import ROOT

LEAST_LEVELS: Mapping[str, int] = {"botocore": logging.INFO}
"""Levels below which no logger may be set: at DEBUG, botocore logs each request, with the session token."""

_LOGINS = (SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1)
_SECONDS = 30.0
_REMEMBERED = 1_000
_MOST: Mapping[str, int] = {"aiokafka": 1, ROOT: 10}
_OF_A_REBALANCE = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
_DIGITS = re.compile("[0-9]+")

_CREDENTIALS = ("botocore.credentials", "botocore.configprovider")
_first: dict[str, logging.LogRecord] = {}

_CLIENTS: Mapping[str, int] = dict.fromkeys(("aiokafka", "faust", "mode"), logging.WARNING)  # at INFO: each step
_OF_THE_PROCESS: Mapping[str, int] = {
    "asyncio": logging.WARNING,
    "aiohttp.server": logging.CRITICAL,  # a traceback for each malformed request: anyone could fill the log
}

_REPORTED_BY_US = (
    "aiokafka",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.sender",
)
"""Loggers of what aiokafka tries again. Some of their warnings and errors come with each healthy start or rebalance;
the others a pipeline reports itself, by `app.kafka.troubles` or as the reason of a restart."""


def keep_secrets() -> None:
    """Keeps passwords and tokens out of the clients' logs, at any log level. Is called again if that changes."""
    _set_levels(LEAST_LEVELS)
    # At DEBUG, aiokafka logs each request, and the login request has the password.
    logging.getLogger("aiokafka.conn").addFilter(_is_no_login)


def _is_no_login(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(each, _LOGINS) for each in record.args))


def calm_clients(*, whole: bool = False) -> None:
    """Lets the client libraries log warnings and errors only, and those of `_REPORTED_BY_US` at DEBUG.

    They log everything if the root logger is at DEBUG, and never more than the root logger does; so this is called
    again if its level changes. The source of the store's credentials is logged once, not for the store of each
    pipeline; and once, without a traceback, why they are not renewed.

    Args:
        whole: whether the process has no code of users, whose own pages and tasks may fail.
    """
    calm = {**_CLIENTS, **_OF_THE_PROCESS} if whole else _CLIENTS
    _set_levels(dict.fromkeys(calm, logging.NOTSET) if logging.getLogger().level <= logging.DEBUG else calm)
    keep_secrets()
    if whole:
        logging.getLogger("asyncio").addFilter(_is_awaited)
    for name in _REPORTED_BY_US:
        logging.getLogger(name).addFilter(_calmed)
    for name in _CREDENTIALS:
        logging.getLogger(name).addFilter(_is_first)


def _set_levels(levels: Mapping[str, int]) -> None:
    """Sets levels; that of the root logger counts where it is higher, or a line that it leaves out would pass."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(max(level, logging.getLogger().level))


def _is_first(record: logging.LogRecord) -> bool:
    """Whether no line before has had this text, and this class of error; several threads may ask."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        text = f"{text} {type(error).__name__}"
        record.msg, record.args, record.exc_info = f"{text}: {error}", (), None
    return _first.setdefault(text, record) is record


def _calmed(record: logging.LogRecord) -> bool:
    """Whether a line names an error that is not temporary, or a defect; any other passes at DEBUG.

    Of a login that is refused, a certificate, or a name that is not found, the reason is in no other line.
    """
    args = record.args if isinstance(record.args, tuple) else ()
    # An error of Kafka that ends a task of aiokafka ends the flow, which reports it. One of our listener, which the
    # line names, aiokafka only logs.
    if record.exc_info and (args or not isinstance(record.exc_info[1], KafkaError)):
        return True
    return not all(map(_passes_by_itself, args)) or _lowered(record)


def _is_awaited(record: logging.LogRecord) -> bool:
    """Whether a line is not that of an error behind `asyncio.shield`, whose caller was cancelled: at DEBUG it passes.

    Python logs these since 3.14. Whatever cancels a call of the Kafka client has reported why.
    """
    return "exception in shielded future" not in str(record.msg) or _lowered(record)


def _lowered(record: logging.LogRecord) -> bool:
    """Takes a line down to DEBUG; whether it passes there."""
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _passes_by_itself(arg: object) -> bool:
    """Whether an argument of a line is not an error, or a temporary one."""
    kind = arg if isinstance(arg, type) else type(arg)
    if issubclass(kind, KafkaError):
        foreseen = getattr(kind, "retriable", False) and kind.__module__ == KafkaError.__module__
        return foreseen or issubclass(kind, _OF_A_REBALANCE)
    return not issubclass(kind, BaseException) or issubclass(kind, (ConnectionError, TimeoutError))


class LineFormatter(logging.Formatter):
    """Formats a message on one line: what it quotes may have line breaks, or control sequences of terminals.

    The traceback of an unexpected error follows in separate lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """See `logging.Formatter.formatMessage`."""
        text = super().formatMessage(record)
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


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


def bound_repeats(logger: logging.Logger) -> Callable[[], None]:
    """Gives each handler of a logger a `RepeatFilter`. May be called again.

    Returns:
        Logs what they have left out; see `RepeatFilter.log_left_out`.
    """
    for handler in logger.handlers:
        if not any(isinstance(each, RepeatFilter) for each in handler.filters):
            handler.addFilter(RepeatFilter(handler))
    filters = [each for handler in logger.handlers for each in handler.filters if isinstance(each, RepeatFilter)]

    def log_left_out() -> None:
        for each in filters:
            each.log_left_out()

    return log_left_out


class RepeatFilter(logging.Filter):
    """Bounds how often a line of ours, or of the Kafka client, is repeated. For a handler.

    Lines are alike if logger, level and template are the same, and the pipeline if the template names one first. In 30
    seconds a text passes once, and of lines that are alike ten pass, of the client's one. What was left out is counted,
    and reported by a separate line, which comes with the first line of any kind after that time. Lines at DEBUG all
    pass, and those with `fields`: a change of state is logged each time.

    Without it, aiokafka logs each connection attempt to a broker that is down, about thirty lines a second, and hides
    all other lines; and a million records that fail leave a million lines.

    The handler also gets the lines on what was left out.
    """

    def __init__(self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: dict[tuple[object, ...], _Passed] = {}  # the oldest first

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        most = next((most for name, most in _MOST.items() if f"{record.name}.".startswith(f"{name}.")), None)
        if most is None or record.levelno <= logging.DEBUG or hasattr(record, "fields") or hasattr(record, "left_out"):
            return True
        now_s = self._clock()
        with self._lock:
            over = self._forget(now_s - _SECONDS, _REMEMBERED)
            passed = self._passed.setdefault(_alike(record), _Passed(now_s, set(), record))
            text = hash(record.getMessage())
            passes = text not in passed.texts and len(passed.texts) < most
            if passes:
                passed.texts.add(text)
            else:
                passed.last = record
                passed.left_out += 1
        for each in over:  # without the lock: a handler may log something itself
            self._emit(each.last, each.left_out)
        return passes

    def log_left_out(self) -> None:
        """Logs what was left out and not reported yet: the last lines are about to be written."""
        with self._lock:
            over = self._forget(math.inf, 0)
        for each in over:
            self._emit(each.last, each.left_out)

    def _forget(self, until_s: float, remembered: int) -> list[_Passed]:
        """Forgets lines that passed first until then, and the oldest of too many; those of which some were left out."""
        over = []
        while self._passed:
            alike, passed = next(iter(self._passed.items()))
            if passed.since_s > until_s and len(self._passed) < remembered:
                break
            del self._passed[alike]
            if passed.left_out and passed.last.levelno >= self._handler.level:
                over.append(passed)
        return over

    def _emit(self, last: logging.LogRecord, left_out: int) -> None:
        template, args = str(last.msg), last.args
        if not (isinstance(args, tuple) and args):  # else a formatter takes from them what the line names
            template, args = last.getMessage().replace("%", "%%"), ()
        template = f"left out %d lines like this: {template}"
        line = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, template, (left_out, *args), None)
        line.left_out = left_out
        self._handler.handle(line)


@dataclass(slots=True)
class _Passed:
    """What has passed of lines that are alike, since when, how many were left out, and the last of these."""

    since_s: float
    texts: set[int]
    last: logging.LogRecord
    left_out: int = 0


def _alike(record: logging.LogRecord) -> tuple[object, ...]:
    template = str(record.msg)
    named = record.args[0] if isinstance(record.args, tuple) and template.startswith("pipeline %s") else None
    return record.name, record.levelno, _DIGITS.sub("0", template), named
