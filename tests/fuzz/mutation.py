"""Bytes made of other bytes, as damage and malice make them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

__all__ = ["mutated"]

# Lengths at the edges of what an int holds, and about the sizes of what is mutated.
_NUMBERS = (0, 1, 2, 7, 8, 9, 127, 128, 255, 256, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 9, 2**32 - 2, 2**32 - 1)
_LONGEST = 4_096


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with up to four changes; the same for the same state of `rng`."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(_CHANGES)(rng, data, seeds)
    return bytes(data[:_LONGEST])


def _at(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _number(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, data)
    number = rng.choice(_NUMBERS) if rng.random() < 0.5 else rng.randrange(len(data) + 2)
    data[at : at + 4] = number.to_bytes(4, "big")


def _nudge(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, data)
    number = int.from_bytes(data[at : at + 4], "big") + rng.randrange(-9, 10)
    data[at : at + 4] = (number % 2**32).to_bytes(4, "big")


def _insert(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, data)
    data[at:at] = rng.randbytes(rng.randrange(1, 17))


def _delete(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, data)
    del data[at : at + rng.randrange(1, 17)]


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_at(rng, data) :]


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, end = sorted((_at(rng, data), _at(rng, data)))
    data[end:end] = data[start:end]


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    at, start = _at(rng, data), rng.randrange(len(other) + 1)
    data[at:] = other[start:]


_CHANGES: Sequence[Callable[[random.Random, bytearray, Sequence[bytes]], None]] = (
    _flip, _replace, _number, _nudge, _insert, _delete, _cut, _repeat, _splice,
)  # fmt: skip
