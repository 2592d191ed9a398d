"""`python -m tests.simulation [SEED [COUNT]]`: runs the worker in simulated worlds, one history for each seed.

The history of a single seed is printed. With --minutes, as many seeds run as there is time for. If a guarantee was
broken, the exit status is 1, and the shortest history that breaks it is printed, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

_KINDS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser()
    given = options.parse_args(arguments)
    from tests.simulation.clock import real_s, take_the_place_of_time

    take_the_place_of_time()  # before anything else of the project, or of aiokafka, is imported
    from tests.simulation.outcome import Cuts
    from tests.simulation.processes import ALL, MIX, PLAYS, Detail, outcomes
    from tests.simulation.report import Report, explain, told

    cuts = Cuts(
        None if given.only is None else frozenset(given.only.split(",")) - {"none"}, given.workers, given.records
    )
    first = int(time.time()) if given.seed is None else given.seed
    if given.play not in (ALL, *PLAYS):
        options.error(f"--play {given.play} is not one of {', '.join(PLAYS)}, {ALL}")
    seeds: Iterable[tuple[int, str]]
    if given.seeds is not None:
        lines = [line.split() for line in given.seeds.read_text().splitlines()]
        seeds = [(int(seed), play) for seed, play, *_ in (each for each in lines if each and each[0] != "#")]
    else:
        print(f"seeds from {first}", file=sys.stderr, flush=True)
        count = given.count or (1 if given.seed is not None and given.minutes is None else 1_000)
        until_s = real_s() + (given.minutes or 0) * 60
        numbers: Iterable[int] = range(first, first + count)
        if given.minutes is not None:
            numbers = itertools.takewhile(lambda _: real_s() < until_s, itertools.count(first))
        seeds = ((each, MIX[each % len(MIX)] if given.play == ALL else given.play) for each in numbers)
        if given.minutes is None and count == 1:
            one = [(seed, replace(cuts, play=play)) for seed, play in seeds]
            (outcome,) = outcomes(one, 1, Detail(history=True))
            print("\n".join(told(outcome)))
            return 1 if outcome.broken else 0
    report = Report()
    digests = []
    try:
        jobs = ((seed, replace(cuts, play=play)) for seed, play in seeds)
        for outcome in outcomes(jobs, given.processes, Detail(tally=given.tally), given.chunk):
            report.add(outcome)
            digests.append(f"{outcome.seed} {outcome.digest}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    if given.digests is not None:
        given.digests.write_text("\n".join(digests) + "\n")
    if given.tally:
        print("\n".join(report.tallied()))
    for found in [*report.broken.values()][:_KINDS]:
        print("\n".join(explain(found, given.shrink)))
    print("\n".join(report.summary()))
    return 1 if report.broken else 0


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    options.add_argument("seed", type=int, nargs="?", help="the first seed (default: the time)")
    options.add_argument("count", type=int, nargs="?", help="number of seeds (default: 1 with SEED, otherwise 1,000)")
    options.add_argument("--minutes", type=float, help="run seeds for this time, in place of a count")
    options.add_argument("--seeds", type=Path, help="run the seeds of a file: a seed and a play on each line")
    options.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes (default: cores, %(default)s)",
    )
    options.add_argument("--chunk", type=int, default=100, help="histories per process (default: %(default)s)")
    options.add_argument(
        "--shrink", type=float, default=30, help="seconds to shrink each failure (default: %(default)s)"
    )
    options.add_argument(
        "--play", default="worker", help="what is simulated: worker, chunks, …; or all, in turns (default: %(default)s)"
    )
    options.add_argument("--only", metavar="NAMES", help="the only faults and acts that may happen, or none")
    options.add_argument("--workers", type=int, help="maximum number of workers at the start")
    options.add_argument("--records", type=int, help="maximum number of records in the source")
    options.add_argument("--tally", action="store_true", help="print how often each thing happened")
    options.add_argument("--digests", type=Path, help="write the digest of each history into this file")
    return options


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts would have another order each time, and a seed another history.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    sys.exit(main())
