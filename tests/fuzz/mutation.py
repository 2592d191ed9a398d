"""Bytes made of other bytes, as damage and malice make them."""

from __future__ import annotations

import random
from collections.abc import Sequence

# Lengths at the edges of what an int holds, and about the sizes of what is mutated.
_NUMBERS = (0, 1, 2, 7, 8, 9, 127, 128, 255, 256, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 9, 2**32 - 2, 2**32 - 1)
_LONGEST = 4_096
_CHANGES = ("flip", "replace", "number", "nudge", "insert", "delete", "cut", "repeat", "splice")


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with up to four changes; the same for the same state of `rng`."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        _change(rng, data, seeds)
    return bytes(data[:_LONGEST])


def _change(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """One change, at a place by chance; there may be nothing behind it."""
    at = rng.randrange(len(data) + 1)
    some = slice(at, at + rng.randrange(1, 17))
    match rng.choice(_CHANGES):
        case "flip" if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case "replace" if at < len(data):
            data[at] = rng.randrange(256)
        case "number":
            number = rng.choice(_NUMBERS) if rng.random() < 0.5 else rng.randrange(len(data) + 2)
            data[at : at + 4] = number.to_bytes(4, "big")
        case "nudge":
            number = int.from_bytes(data[at : at + 4], "big") + rng.randrange(-9, 10)
            data[at : at + 4] = (number % 2**32).to_bytes(4, "big")
        case "insert":
            data[at:at] = rng.randbytes(some.stop - at)
        case "delete":
            del data[some]
        case "cut":
            del data[at:]
        case "repeat":
            data[at:at] = data[rng.randrange(at + 1) : at]
        case "splice":
            other = rng.choice(seeds)
            data[at:] = other[rng.randrange(len(other) + 1) :]
