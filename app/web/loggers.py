"""The loggers of the worker, with the names that Kafka Connect has for their levels."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from app.web.errors import RestError
from transforms.text import printable

__all__ = ["ROOT", "Loggers"]

ROOT = "root"

_SHOWN = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_LEVELS: Mapping[str, int] = {
    "TRACE": logging.DEBUG,  # Python has nothing below
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class Loggers:
    """Reads and sets the levels of loggers.

    Args:
        least: levels below which a logger, and those below it, are never set: they would write secrets.
    """

    def __init__(self, least: Mapping[str, int]) -> None:
        self._least = least
        self._modified_ms: dict[str, int] = {}

    def levels(self) -> dict[str, dict[str, Any]]:
        """The loggers that have a level of their own."""
        named = {name: logger for name, logger in _loggers() if logger.level != logging.NOTSET}
        return {name: self._level(name, named[name]) for name in sorted(named)}

    def level(self, name: str) -> dict[str, Any]:
        """The level of a logger, its own or that of the one above it.

        Raises:
            RestError: there is no such logger.
        """
        for each, logger in _loggers():
            if each == (ROOT if name.lower() == ROOT else name):
                return self._level(each, logger)
        raise RestError(404, f"Logger {printable(name)} not found.")

    def set_level(self, name: str, level: str) -> list[str]:
        """Sets the level of a logger and of those below it, and returns their names.

        Raises:
            RestError: there is no such level, or the name cannot be one of a logger.
        """
        number = _LEVELS.get(level.upper())
        if number is None:
            raise RestError(404, f"invalid log level '{printable(level)}'.")
        if not _NAME.fullmatch(name):
            raise RestError(400, f"{printable(name)} is no name of a logger")
        root = name.lower() == ROOT
        top = logging.getLogger(None if root else name)
        affected = {ROOT if root else name: top}
        affected |= {each: logger for each, logger in _loggers() if root or each.startswith(f"{name}.")}
        for each, logger in affected.items():
            # The others follow the one above them; a floor needs a level of its own, or they would follow too far.
            if logger is top or logger.level != logging.NOTSET or each in self._least:
                logger.setLevel(max(number, self._floor(each)))
                self._modified_ms[each] = int(time.time() * 1000)
        return sorted(affected)

    def _floor(self, name: str) -> int:
        found = (level for each, level in self._least.items() if name == each or name.startswith(f"{each}."))
        return max(found, default=logging.NOTSET)

    def _level(self, name: str, logger: logging.Logger) -> dict[str, Any]:
        level = logging.getLevelName(logger.getEffectiveLevel())
        return {"level": _SHOWN.get(level, level), "last_modified": self._modified_ms.get(name)}


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield ROOT, logging.getLogger()
    for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):  # the others are places in the tree that nobody has asked for
            yield name, logger
