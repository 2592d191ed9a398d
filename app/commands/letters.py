"""Dead-letter records as `wideload dlq list` shows them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from app.commands.console import Column, Rows
from app.commands.consume import header_json, json_line, text_json
from app.deadletters.reader import FoundLetter, LetterSummary
from transforms.record_format import name_bytes
from transforms.text import bytes_text, printable

_COLUMNS = (
    Column("partition", 9, ">"),
    Column("offset", 10, ">"),
    Column("when", 19),
    Column("from", 32),
    Column("error", 26),
    Column("size", 9, ">"),
    Column("key", 20),
    Column("message", 60),
)


class LetterPrinter:
    """Shows dead-letter records on standard output: rows of a table, or JSON lines.

    Attributes:
        shown: how many.
        unreadable: how many of these cannot be read.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._rows = None if as_json else Rows(_COLUMNS, sys.stdout)
        self.shown = 0
        self.unreadable = 0

    def show(self, found: FoundLetter, summary: LetterSummary) -> None:
        """Shows one dead-letter record."""
        self.shown += 1
        self.unreadable += summary.letter is None
        if self._rows is None:
            sys.stdout.write(json_line(_line(found, summary)))
            return
        letter = summary.letter
        context = {} if letter is None else letter.context
        origin = None if letter is None else letter.origin
        key = found.record.key if letter is None else letter.record.key
        message = f"! {summary.error}" if summary.error else context.get("exception.message", "-")
        self._rows.add(
            str(found.partition),
            str(found.offset),
            _when(found.timestamp),
            "-" if origin is None else printable(f"{origin[0]}-{origin[1]}@{origin[2]}", 32),
            printable(context.get("exception.class.name", "-").rpartition(".")[2], 26),
            "-" if summary.size is None else bytes_text(summary.size),
            printable(key, 20),
            printable(message, 500),
        )


def _when(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"  # the timestamp may be any 64 bits


def _line(found: FoundLetter, summary: LetterSummary) -> dict[str, Any]:
    letter = summary.letter
    context = {} if letter is None else letter.context
    origin = None if letter is None else letter.origin
    record = found.record if letter is None else letter.record
    return {
        "partition": found.partition,
        "offset": found.offset,
        "last_offset": found.offsets[-1],
        "timestamp": found.timestamp,
        "topic": None if origin is None else origin[0],
        "original_partition": None if origin is None else origin[1],
        "original_offset": None if origin is None else origin[2],
        "pipeline": context.get("connector.name"),
        "error": context.get("exception.class.name"),
        "message": context.get("exception.message"),
        "key": text_json(record.key),
        "size": summary.size,
        "form": summary.form,
        "replays": None if letter is None else letter.replays,
        "headers": header_json([(name_bytes(name).decode(errors="replace"), value) for name, value in record.headers]),
        **({} if summary.error is None else {"problem": summary.error}),
    }
