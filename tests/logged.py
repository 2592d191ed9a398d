"""A record of a log, for tests of what reads logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transforms.record import Header


@dataclass(frozen=True, slots=True)
class Logged:
    """A record at its offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int
    offset: int
