"""Log lines as JSON, one object a line, for what collects logs: `log.format = "json"`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from app.config.secret import without_secrets
from app.log_filters import SecretFormatter

# Each placeholder of a template, with the word before it if that names its value.
_PLACEHOLDER = re.compile(r"(?:\b(pipeline|topic|partition|offset) )?%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_NUMBER = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})*|[0-9]+")


class JsonFormatter(SecretFormatter):
    """Formats a log line as a JSON object, in ASCII; secrets are hidden in each text before it is encoded.

    `time` (RFC 3339, UTC), `level`, `logger` and `message` are always there; `pipeline`, `topic`, `partition` and
    `offset` if the line names them; `exception` and `stack` if it has them; `left_out` if lines like it were left out.
    Values of `extra={"fields": {…}}` become fields of these names.
    """

    def __init__(self) -> None:
        super().__init__(logging.Formatter())

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": record.name,
            "message": _shown(record.getMessage()),
        }
        for name, value in (*_named(record), *getattr(record, "fields", {}).items()):
            line.setdefault(name, _shown(value) if isinstance(value, str) else value)
        if left_out := getattr(record, "left_out", 0):
            line["left_out"] = left_out
        if record.exc_info:
            line["exception"] = _shown(self.formatException(record.exc_info))
        elif record.exc_text:
            line["exception"] = _shown(record.exc_text)
        if record.stack_info:
            line["stack"] = _shown(record.stack_info)
        return json.dumps(line)


def log_as_json(logger: logging.Logger) -> None:
    """Lets the handlers of a logger format with a `JsonFormatter`. May be called again."""
    for handler in logger.handlers:
        if not isinstance(handler.formatter, JsonFormatter):
            handler.setFormatter(JsonFormatter())


def _shown(text: str) -> str:
    """The text without secrets. Half of a surrogate pair, as in names that are not UTF-8, is invalid in JSON."""
    return without_secrets(text).encode(errors="backslashreplace").decode()


def _named(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """What the line names, by the words of its template: in `topic %s`, the value is that of a topic."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return
    values = iter(record.args)
    for match in _PLACEHOLDER.finditer(record.msg):
        if match[0].endswith("%%"):
            continue
        value = next(values, None)
        if match[1] is None or value is None:
            continue
        if match[1] in ("pipeline", "topic"):
            yield match[1], str(value)
        elif _NUMBER.fullmatch(str(value)):
            yield match[1], int(str(value).replace(",", ""))
