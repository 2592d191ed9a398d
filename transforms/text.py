"""Text for users, and from them: sizes, bytes of records in a form that is safe for terminals, checks for UTF-8."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_KILO = 1000
_NEAR = 0.75  # of 1; `orders-in` and `orders-out` are similar, `orders` and `payments` are not
_ROUNDS_UP = 999.95  # to 1000.0, with one decimal place


def bytes_text(count: int) -> str:
    """A number of bytes as text: `512 B`, `20.0 kB`, `1.5 MB`; decimal units, as in the tools around Kafka."""
    if count < _KILO:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= _KILO
        if size < _ROUNDS_UP:
            return f"{size:.1f} {unit}"
    return f"{size / _KILO:.1f} TB"


def text_table(*rows: Sequence[str]) -> str:
    """Lines of text with columns as wide as their widest cell: the first one left-aligned, the others right-aligned."""
    first, *others = (max(map(len, cells)) for cells in zip(*rows, strict=True))
    lines = (
        "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(rest, others, strict=True))]).rstrip()
        for name, *rest in rows
    )
    return "".join(f"{line}\n" for line in lines)


def is_utf8(text: str) -> bool:
    """False if there is a lone surrogate, as Python decodes bytes of arguments and variables that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(data: bytes | str | None, limit: int = 200) -> str:
    """Bytes of a record, or text, in a form that is safe for a terminal: unprintable characters are escaped.

    A null is `-`. A text longer than `limit` characters is truncated, with an ellipsis.
    """
    if data is None:
        return "-"
    if isinstance(data, str):
        data = data.encode(errors="replace")
    # A character has at most four bytes, so most of a key of a megabyte is not needed.
    text = data[: 4 * limit + 4].decode(errors="backslashreplace")
    escaped = _escaped(text[: limit + 1])
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"


def brief(text: str, limit: int = 40) -> str:
    """`text` for one line: unprintable characters are escaped, and a long text is shortened in its middle."""
    if len(text) <= limit:
        return _escaped(text)
    end = limit // 3
    return f"{_escaped(text[: limit - end - 1])}…{_escaped(text[-end:])}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is probably meant.

    Empty if none is similar, or several are equally similar: `in-0` may be a typo of any of `in-1` to `in-9`.
    """
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=2, cutoff=_NEAR)
    ratios = {difflib.SequenceMatcher(None, each, name).ratio() for each in near}
    return f"; did you mean {near[0]}?" if near and len(ratios) == len(near) else ""


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
