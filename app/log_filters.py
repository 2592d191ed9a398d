"""Filters for the log: no secrets, no flood of repeated lines, and no errors of the Kafka client that are none."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiokafka.errors import IllegalGenerationError, KafkaError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.protocol.admin import SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1

from app.config.secret import without_secrets
from transforms.logger_name import ROOT

__all__ = [
    "LEAST_LEVELS",
    "TOLD_BY_US",
    "LineFormatter",
    "RepeatFilter",
    "SecretFormatter",
    "bound_repeats",
    "calm_clients",
    "hide_secrets",
    "keep_secrets",
]

LEAST_LEVELS: Mapping[str, int] = {"botocore": logging.INFO}
"""Levels below which no logger may be set: at DEBUG, botocore logs each request, with the session token."""

_LOGINS = (SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1)
_SECONDS = 30.0
_LOOK_S = 1.0
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

TOLD_BY_US: Mapping[str, tuple[str, ...]] = {
    "aiokafka": (
        'Unable connect to "%s:%s": %s',
        'Unable to request metadata from "%s:%s": %s',
        "Unable to request metadata from node with id %s: %r",
        "Unable to update metadata from %s",
        "Unable connect to node with id %s: %s",
    ),
    "aiokafka.consumer.fetcher": ("Failed fetch messages from %s: %s", "Failed fetch offsets from %s: %s"),
    "aiokafka.consumer.group_coordinator": (
        "Error sending %s to node %s [%s] -- marking coordinator dead",
        "Group Coordinator Request failed: %s",
        "Heartbeat failed for group %s because it is rebalancing",
        "Heartbeat failed for group %s: coordinator (node %s) is either not started or not valid",
        "Heartbeat send request failed: %s. Will retry.",
        "Heartbeat session expired - marking coordinator dead",
        "LeaveGroup request failed: %s",
        "Marking the coordinator dead (node %s)for group %s.",
        "OffsetCommit failed for group %s due to group error (%s), will rejoin",
    ),
    "aiokafka.producer.sender": (
        "Cannot send %r to %s: %r",
        "Got error produce response: %s",
        "Got error produce response on topic-partition %s, retrying. Error: %s",
        "Unexpected error in sender routine",
    ),
}
"""Templates of lines, by logger, that aiokafka logs as warnings or errors and then tries again.

They stay what they are if they name an error that does not pass by itself. Some come with each healthy start or
rebalance. Of the others a pipeline tells itself: that brokers or the group do not answer, that a rebalance lasts, that
offsets were not committed, that a batch was not acknowledged in its time.
"""


def keep_secrets() -> None:
    """Keeps passwords and tokens out of the clients' logs, at any log level. Is called again if that changes."""
    _set_levels(LEAST_LEVELS)
    # At DEBUG, aiokafka logs each request, and the login request has the password.
    logger = logging.getLogger("aiokafka.conn")
    if _is_no_login not in logger.filters:
        logger.addFilter(_is_no_login)


def _is_no_login(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(each, _LOGINS) for each in record.args))


def calm_clients(*, whole: bool = False) -> None:
    """Lets the client libraries log warnings and errors only, and those of `TOLD_BY_US` at DEBUG.

    They log everything if the root logger is at DEBUG, and never more than the root logger does; so this is called
    again if its level changes. Where the store's credentials come from is logged once, not for the store of each
    pipeline; and once, without a traceback, why they are not renewed.

    Args:
        whole: whether the process has no code of users, whose own pages and tasks may fail.
    """
    calm = {**_CLIENTS, **_OF_THE_PROCESS} if whole else _CLIENTS
    _set_levels(dict.fromkeys(calm, logging.NOTSET) if _root_level() <= logging.DEBUG else calm)
    keep_secrets()
    asyncio_log = logging.getLogger("asyncio")
    if whole and _is_awaited not in asyncio_log.filters:
        asyncio_log.addFilter(_is_awaited)
    for name in TOLD_BY_US:
        logger = logging.getLogger(name)
        if _calmed not in logger.filters:
            logger.addFilter(_calmed)
    for name in _CREDENTIALS:
        logger = logging.getLogger(name)
        if _is_first not in logger.filters:
            logger.addFilter(_is_first)


def _set_levels(levels: Mapping[str, int]) -> None:
    """Sets levels; that of the root logger counts where it is higher, or a line that it leaves out would pass."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(max(level, _root_level()))


def _root_level() -> int:
    return logging.getLogger().level


def _is_first(record: logging.LogRecord) -> bool:
    """Whether no line before has had this text, and this class of error; several threads may ask."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        text = f"{text} {type(error).__name__}"
        record.msg, record.args, record.exc_info = f"{text}: {error}", (), None
    return _first.setdefault(text, record) is record


def _calmed(record: logging.LogRecord) -> bool:
    if record.msg not in TOLD_BY_US.get(record.name, ()):
        return True
    args = record.args if isinstance(record.args, tuple) else ()
    if not all(map(_passes_by_itself, args)) or not _is_of_kafka(record.exc_info):
        return True
    return _lowered(record)


def _is_awaited(record: logging.LogRecord) -> bool:
    """Whether a line is not that of an error behind `asyncio.shield`, whose caller was cancelled: at DEBUG it passes.

    Python logs these since 3.14. Whatever cancels a call of the Kafka client has reported why.
    """
    return "exception in shielded future" not in str(record.msg) or _lowered(record)


def _lowered(record: logging.LogRecord) -> bool:
    """Takes a line down to DEBUG; whether it passes there."""
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _is_of_kafka(exc_info: object) -> bool:
    """Whether a line has no traceback, or that of an error of Kafka: it ends the flow, which reports it."""
    return not isinstance(exc_info, tuple) or isinstance(exc_info[1], KafkaError)


def _passes_by_itself(arg: object) -> bool:
    """Whether an argument of a line is no error, or one of those that `TOLD_BY_US` is about.

    A login that is refused, a certificate, a name that is not found: their reasons are in no other line.
    """
    kind = arg if isinstance(arg, type) else type(arg)
    if not issubclass(kind, BaseException):
        return True
    if issubclass(kind, KafkaError):
        return kind in _OF_A_REBALANCE or (
            bool(getattr(kind, "retriable", False)) and kind.__module__ == KafkaError.__module__
        )
    return issubclass(kind, (ConnectionError, TimeoutError))


class LineFormatter(logging.Formatter):
    """Formats a message on one line: what it quotes may have line breaks, or control sequences of terminals.

    The traceback of an unexpected error stands in lines of its own behind it.
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
        Says what they have left out; see `RepeatFilter.tell_left_out`.
    """
    for handler in logger.handlers:
        if not any(isinstance(each, RepeatFilter) for each in handler.filters):
            handler.addFilter(RepeatFilter(handler))
    filters = [each for handler in logger.handlers for each in handler.filters if isinstance(each, RepeatFilter)]

    def tell() -> None:
        for each in filters:
            each.tell_left_out()

    return tell


class RepeatFilter(logging.Filter):
    """Bounds how often a line of ours, or of the Kafka client, is repeated. For a handler.

    Lines are alike if logger, level and template are the same, and the pipeline if the template names one first. In
    `seconds` a text passes once, and of lines that are alike ten pass, of the client's one. What was left out is
    counted: the next line that is alike says so, or else a line of its own, which comes with the next line of any kind.
    Lines at DEBUG all pass, and those with `fields`: a change of state is told each time.

    Without it, aiokafka logs each connection attempt to a broker that is down, about thirty lines a second, and hides
    all other lines; and a million records that fail leave a million lines.

    Args:
        handler: gets the lines on what was left out.
        seconds: how long a repeated line is left out.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, handler: logging.Handler, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: dict[_Alike, _Passed] = {}
        self._looked_s = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        most = _most(record.name)
        if most is None or record.levelno <= logging.DEBUG or hasattr(record, "fields"):
            return True
        now_s = self._clock()
        with self._lock:
            passes = self._passes(record, most, now_s)
            lapsed = self._lapsed(now_s)
        for each in lapsed:
            self._tell(each)
        return passes

    def tell_left_out(self) -> None:
        """Says what was left out and not told yet: the last lines are about to be written."""
        with self._lock:
            left = [each for each in self._passed.values() if each.left_out]
            self._passed.clear()
        for each in left:
            self._tell(each)

    def _passes(self, record: logging.LogRecord, most: int, now_s: float) -> bool:
        alike, text = _alike(record), hash(record.getMessage())
        passed = self._passed.get(alike)
        if passed is not None and now_s - passed.since_s < self._seconds:
            if text not in passed.texts and len(passed.texts) < most:
                passed.texts.add(text)
                return True
            passed.left_out += 1
            passed.last = record
            return False
        if passed is not None and passed.left_out:
            _add_left_out(record, passed.left_out)
        self._passed[alike] = _Passed(now_s, {text}, record)
        return True

    def _lapsed(self, now_s: float) -> list[_Passed]:
        """Those whose time is over, and of which lines were left out; all of them are forgotten."""
        if now_s - self._looked_s < _LOOK_S and len(self._passed) < _REMEMBERED:
            return []
        self._looked_s = now_s
        gone = {alike: each for alike, each in self._passed.items() if now_s - each.since_s >= self._seconds}
        if len(self._passed) - len(gone) >= _REMEMBERED:
            gone = self._passed
        self._passed = {alike: each for alike, each in self._passed.items() if alike not in gone}
        return [each for each in gone.values() if each.left_out]

    def _tell(self, passed: _Passed) -> None:
        last, count = passed.last, passed.left_out
        template, args = _with_arguments(last)
        told = logging.LogRecord(
            last.name, last.levelno, last.pathname, last.lineno, f"left out %d lines like this: {template}",
            (count, *args), None,
        )  # fmt: skip
        told.left_out = count
        if told.levelno >= self._handler.level:
            self._handler.acquire()
            try:
                self._handler.emit(told)
            finally:
                self._handler.release()


_Alike = tuple[str, int, str, object]


@dataclass(slots=True)
class _Passed:
    """What has passed of lines that are alike, since when, how many were left out, and the last of these."""

    since_s: float
    texts: set[int]
    last: logging.LogRecord
    left_out: int = 0


def _most(name: str) -> int | None:
    for prefix, most in _MOST.items():
        if name == prefix or name.startswith(f"{prefix}."):
            return most
    return None


def _alike(record: logging.LogRecord) -> _Alike:
    template = str(record.msg)
    named = record.args[0] if isinstance(record.args, tuple) and template.startswith("pipeline %s") else None
    return record.name, record.levelno, _DIGITS.sub("0", template), named


def _with_arguments(record: logging.LogRecord) -> tuple[str, tuple[object, ...]]:
    """Template and arguments of a line; a formatter takes from them what the line names."""
    if isinstance(record.args, tuple) and record.args:
        return str(record.msg), record.args
    return record.getMessage().replace("%", "%%"), ()


def _add_left_out(record: logging.LogRecord, left_out: int) -> None:
    template, args = _with_arguments(record)
    record.msg, record.args = f"{template} (and %d more like it)", (*args, left_out)
    record.left_out = left_out
