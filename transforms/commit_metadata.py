"""The metadata of commits for a topic of chunks: which messages above the committed offset were delivered already.

    wideload:delivered=OFFSET[;torn=ID,...]

A commit cannot pass the first chunk of an incomplete message, and later messages may be delivered before that one. The
metadata says so, and a restart does not deliver them again. Brokers allow 4,096 bytes (seed 003).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Noted", "note", "noted"]

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


def note(offset: int, delivered: int, torn: Sequence[str]) -> str:
    """The metadata of a commit of `offset`; empty if there is nothing to note. At most 785 bytes."""
    if delivered <= offset and not torn:
        return ""
    return f"wideload:delivered={delivered}" + (f";torn={','.join(torn)}" if torn else "")


def noted(metadata: str | None) -> Noted | None:
    """The inverse of `note`; None if the metadata is not of this form."""
    # confluent-kafka (2.16.1) writes the NUL that ends a string in C, too.
    match = _NOTE.fullmatch((metadata or "").removesuffix("\0"))
    return None if match is None else Noted(int(match[1]), tuple(match[2].split(",")) if match[2] else ())
