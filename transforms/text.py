"""Text for people, and from them: sizes, bytes of records in a form that is safe for terminals, what is UTF-8."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_KILO = 1000
_NEAR = 0.75  # of 1; `orders-in` and `orders-out` are near, `orders` and `payments` are not
_ROUNDS_UP = 999.95  # to 1000.0, with one digit behind the point


def bytes_text(count: int) -> str:
    """A number of bytes for people: `512 B`, `20.0 kB`, `1.5 MB`; decimal units, as in the tools around Kafka."""
    if count < _KILO:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= _KILO
        if size < _ROUNDS_UP:
            return f"{size:.1f} {unit}"
    return f"{size / _KILO:.1f} TB"


def text_table(*rows: Sequence[str]) -> str:
    """Lines of text with columns as wide as their widest cell: names to the left, and numbers in the others right."""
    first, *others = (max(map(len, cells)) for cells in zip(*rows, strict=True))
    lines = (
        "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(rest, others, strict=True))]).rstrip()
        for name, *rest in rows
    )
    return "".join(f"{line}\n" for line in lines)


def is_utf8(text: str) -> bool:
    """False for a lone surrogate, which Python makes of bytes in arguments and the environment that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(data: bytes | str | None, limit: int = 200) -> str:
    """Bytes of a record, or text, in a form that is safe for a terminal: characters that are not printable are escaped.

    A null is `-`. A text longer than `limit` characters is cut, with an ellipsis.
    """
    if data is None:
        return "-"
    if isinstance(data, str):
        data = data.encode(errors="replace")
    # A character has at most four bytes, so the rest of a key of a megabyte is not needed.
    text = data[: 4 * limit + 4].decode(errors="backslashreplace")
    escaped = _escaped(text[: limit + 1])
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"


def brief(text: str, limit: int = 40) -> str:
    """`text` for one line: characters that are not printable are escaped, and a long text is cut in its middle."""
    if len(text) <= limit:
        return _escaped(text)
    end = limit // 3
    return f"{_escaped(text[: limit - end - 1])}…{_escaped(text[-end:])}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is probably meant.

    Empty if none is near, or several are equally near: of `in-1` to `in-9`, none says what `in-0` should have been.
    """
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=2, cutoff=_NEAR)
    ratios = {difflib.SequenceMatcher(None, each, name).ratio() for each in near}
    return f"; did you mean {near[0]}?" if near and len(ratios) == len(near) else ""


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
