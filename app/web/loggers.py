"""The loggers of the worker, with the names that Kafka Connect has for their levels."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from app.web.errors import RestError
from transforms.text import printable

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


class Loggers:
    """Reads and sets the levels of loggers.

    Args:
        least: levels below which a logger, and those below it, are never set: they would write secrets.
    """

    def __init__(self, least: Mapping[str, int]) -> None:
        self._least = least
        self._modified_ms: dict[str, int] = {}

    def levels(self) -> dict[str, dict[str, Any]]:
        """The levels of all loggers, their own or those of the ones above them; Connect has done so since 4.0."""
        return {name: self._level(name, logger) for name, logger in sorted(_loggers().items())}

    def level(self, name: str) -> dict[str, Any]:
        """The level of a logger, its own or that of the one above it.

        Raises:
            RestError: there is no such logger.
        """
        name, logger = _known(name)
        return self._level(name, logger)

    def set_level(self, name: str, level: str) -> list[str]:
        """Sets the level of a logger and of those below it, and returns their names.

        Raises:
            RestError: there is no such level, or no such logger: Connect would make one that nothing logs to.
        """
        number = _LEVELS.get(level.upper())
        if number is None:
            raise RestError(404, f"invalid log level '{printable(level)}'.")
        name, top = _known(name)
        affected = {each: logger for each, logger in _loggers().items() if _is_below(each, name)}
        for each, logger in affected.items():
            # The others follow the one above them; a floor needs an explicit level, or they would follow too far.
            if logger is top or logger.level != logging.NOTSET or each in self._least:
                logger.setLevel(max(number, self._floor(each)))
                self._modified_ms[each] = int(time.time() * 1000)
        return sorted(affected)

    def _floor(self, name: str) -> int:
        found = (level for each, level in self._least.items() if _is_below(name, each))
        return max(found, default=logging.NOTSET)

    def _level(self, name: str, logger: logging.Logger) -> dict[str, Any]:
        level = logging.getLevelName(logger.getEffectiveLevel())
        return {"level": _SHOWN.get(level, level), "last_modified": self._modified_ms.get(name)}


def _loggers() -> dict[str, logging.Logger]:
    """All loggers that modules have asked for, and those above them, as `wideload.pipeline`."""
    names = list(logging.Logger.manager.loggerDict)
    return {ROOT: logging.getLogger(), **{name: logging.getLogger(name) for name in names}}


def _known(name: str) -> tuple[str, logging.Logger]:
    found, name = _loggers(), ROOT if name.lower() == ROOT else name
    if name not in found:
        raise RestError(404, f"Logger {printable(name)} not found.")
    return name, found[name]


def _is_below(name: str, top: str) -> bool:
    return top in (ROOT, name) or name.startswith(f"{top}.")
