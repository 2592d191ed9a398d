"""`make fuzz`: a million mutated inputs for each parser; `make fuzz FUZZ="--count 10000 --seed 7"` for fewer.

`corpus/NAME.hex` has inputs on which the parser NAME once failed, or nearly did: one a line, in hex. Each run examines
them first, and mutates them, too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutation import mutated
from tests.fuzz.parsers import PARSERS, Parser

_CORPUS = Path(__file__).parent / "corpus"


class Defect(AssertionError):  # noqa: N818  # what it is called
    """A parser has broken its promise; the input, in hex, is in the message."""

    def __init__(self, parser: str, data: bytes, error: Exception) -> None:
        super().__init__(
            f"{parser}: {type(error).__name__}: {error}; the input is bytes.fromhex({data.hex()!r}), which belongs "
            f"into tests/fuzz/corpus/{parser}.hex"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many inputs were taken, and how many refused."""

    taken: int
    refused: int


def fuzz(parser: Parser, count: int, seed: int) -> Outcome:
    """Examines so many inputs, the same for the same seed.

    Raises:
        Defect: with the first one on which the parser does anything but take it or refuse it.
    """
    taken = 0
    for data in _inputs(parser, count, seed):
        try:
            taken += parser.takes(data)
        except Exception as exc:
            raise Defect(parser.name, data, exc) from exc
    return Outcome(taken, count - taken)


def corpus(parser: str) -> list[bytes]:
    """The kept inputs of a parser."""
    file = _CORPUS / f"{parser}.hex"
    lines = file.read_text("ascii").splitlines() if file.is_file() else []
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def _inputs(parser: Parser, count: int, seed: int) -> Iterator[bytes]:
    rng, kept = random.Random(seed), corpus(parser.name)
    seeds = [*parser.seeds, *kept]
    yield from kept[:count]
    for _ in range(count - len(kept)):
        yield mutated(rng, seeds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; the exit status."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    options.add_argument("--parser", choices=[parser.name for parser in PARSERS], help="one, in place of all")
    options.add_argument("--count", type=int, default=1_000_000, help="inputs for each (%(default)s)")
    options.add_argument("--seed", type=int, default=None, help="to have the same inputs again")
    given = options.parse_args(arguments)
    seed = time.time_ns() % 2**32 if given.seed is None else given.seed
    for parser in PARSERS:
        if given.parser not in (None, parser.name):
            continue
        began = time.perf_counter()
        try:
            outcome = fuzz(parser, given.count, seed)
        except Defect as exc:
            print(f"{exc} (--seed {seed})", file=sys.stderr)  # noqa: T201
            return 1
        seconds = time.perf_counter() - began
        print(  # noqa: T201
            f"{parser.name}: {given.count:,} inputs in {seconds:.1f} s, {outcome.taken:,} taken, "
            f"{outcome.refused:,} refused, no defect (--seed {seed})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
