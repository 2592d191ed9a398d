"""The metadata of commits for a topic of chunks: which messages above the committed offset were delivered already.

    wideload:delivered=OFFSET[;torn=ID,...]NUL

The NUL is there for confluent-kafka (2.16.1), which reads metadata as a C string, though librdkafka does not terminate
it with a NUL: what follows in memory would be read as well, and a digit there would become part of the offset.

A commit cannot pass the first chunk of an incomplete message, and later messages may be delivered before that one. The
metadata notes these, so that a restart does not deliver them again. Brokers allow 4,096 bytes, unless they are
configured otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

KAFKAS_BYTES = 4_096
"""The longest metadata of a commit with the default of `offset.metadata.max.bytes`."""

LEAST_BYTES = 39
"""The longest note without ids: an offset has 19 digits at most."""

MOST_BYTES = 780
"""The longest note, with 32 ids."""

_DELIVERED = "wideload:delivered="
_TORN = ";torn="
_END = "\0"
_ID_BYTES = 22

_NOTE = re.compile(r"wideload:delivered=([0-9]{1,19})(?:;torn=((?:[\w-]{22},){0,31}[\w-]{22}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Noted:
    """The metadata of a commit, parsed.

    Attributes:
        delivered: all messages that end below this offset were delivered.
        torn: as `Assembler.torn` returned it.
    """

    delivered: int
    torn: tuple[str, ...] = ()


def note(offset: int, delivered: int, torn: Sequence[str], most_bytes: int = KAFKAS_BYTES) -> str:
    """The metadata of a commit of `offset`; empty if there is nothing to note, or no room. At most `MOST_BYTES` long.

    Args:
        offset: the committed offset.
        delivered: as in `Noted`.
        torn: as in `Noted`; if there is no room for all, the last ones, which are the newest, are noted.
        most_bytes: the maximum that brokers accept; below `LEAST_BYTES` a restart may deliver messages again.
    """
    text = f"{_DELIVERED}{delivered}"
    free = most_bytes - len(text) - len(_END)
    room = (free - len(_TORN) + 1) // (_ID_BYTES + 1)
    kept = torn[-room:] if room > 0 else ()
    if free < 0 or (delivered <= offset and not kept):
        return ""
    return text + (_TORN + ",".join(kept) if kept else "") + _END


def noted(metadata: str | None) -> Noted | None:
    """The inverse of `note`; None if the metadata is not of this form."""
    match = _NOTE.fullmatch((metadata or "").partition(_END)[0])
    return None if match is None else Noted(int(match[1]), tuple(match[2].split(",")) if match[2] else ())
