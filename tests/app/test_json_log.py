"""Log lines as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from typing import Any

import pytest

from app.config.secret import known
from app.json_log import JsonFormatter, log_as_json
from app.log_filters import hide_secrets


def line(message: str, *args: object, exc_info: Any = None) -> dict[str, Any]:
    """The object of a line."""
    record = logging.LogRecord("wideload.x", logging.WARNING, __file__, 1, message, args, exc_info)
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def refuse(text: str) -> None:
    """Raises an error whose message is the text."""
    raise ValueError(text)


@pytest.mark.parametrize(
    ("message", "args", "named"),
    [
        ("starts", (), {}),
        (
            "pipeline %s: topic %s, partition %d, offset %d %s: %s",
            ("p", "raw", 3, 812, "goes to dead", "offset 9"),
            {"pipeline": "p", "topic": "raw", "partition": 3, "offset": 812},
        ),
        ("100%% of topic %s after %.1f s, offset %s", ("a\nb", 1.5, "1,234,567"), {"topic": "a\nb", "offset": 1234567}),
        ("topic %s, topic %s, offset %s", ("a", "b", "none"), {"topic": "a"}),
        ("topic %(name)s", ({"name": "a"},), {}),
    ],
)
def test_line_has_what_its_message_names(message: str, args: tuple[object, ...], named: dict[str, object]) -> None:
    """Time, level, logger and message are always there; places where the words of the message name them."""
    found = line(message, *args)
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    fixed = {name: found.pop(name) for name in ("level", "logger", "message")}
    assert fixed == {
        "level": "WARNING",
        "logger": "wideload.x",
        "message": message % (args if named or not args else args[0]),
    }
    assert found == named


def test_line_hides_secrets_that_json_would_write_in_another_way() -> None:
    """A secret with quotes and umlauts is hidden in message, place and traceback; an exception has its own field."""
    secret = 'pa"ss\\wörd'
    known(secret)
    try:
        refuse(secret)
    except ValueError:
        found = line("topic %s, %s", secret, f"https://user:{secret[:3]}@host", exc_info=sys.exc_info())
    assert (found["topic"], found["message"]) == ("***", "topic ***, https://***@host")
    assert found["exception"].endswith("ValueError: ***")
    assert "Traceback" in found["exception"]


def test_line_of_bytes_that_are_no_text() -> None:
    """A name that is not UTF-8 gives JSON that every parser reads."""
    assert line("topic %s", "\udcfc")["topic"] == "\\udcfc"


def test_secrets_are_not_hidden_again_in_the_object() -> None:
    """A mask over the whole line could take a quotation mark with it."""
    logger = logging.getLogger("tests.own")
    logger.addHandler(logging.StreamHandler())
    for _ in range(2):
        log_as_json(logger)
        hide_secrets(logger)
    assert type(logger.handlers[0].formatter) is JsonFormatter
