"""The benchmark: `python -m benchmarks.run`.

Runs on the broker of `KAFKA_BOOTSTRAP_SERVERS` where that is set, else on an embedded one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from app.local.broker import EmbeddedBroker
from benchmarks import machine
from benchmarks.batches import batches
from benchmarks.bench import Bench, matches
from benchmarks.chunks import chunks
from benchmarks.clients import PARTS as CLIENT_PARTS
from benchmarks.clients import clients
from benchmarks.exactly_once import COUNTS, exactly_once
from benchmarks.latency import MEASURES, latency
from benchmarks.memory import memory
from benchmarks.offload import offload
from benchmarks.passthrough import PARTS, passthrough
from benchmarks.race import BenchmarkError
from benchmarks.result import Result, merge, table
from benchmarks.s3clients import PARTS as S3_PARTS
from benchmarks.s3clients import s3clients
from benchmarks.spark_inflate import spark_inflate
from benchmarks.sweep import audit, sweep
from benchmarks.topics import Topics

SCENARIOS: Mapping[str, Callable[[Bench], Awaitable[list[Result]]]] = {
    "passthrough": passthrough,
    "exactly_once": exactly_once,
    "latency": latency,
    "offload": offload,
    "s3clients": s3clients,
    "chunks": chunks,
    "clients": clients,
    "memory": memory,
    "batches": batches,
    "sweep": sweep,
    "audit": audit,
    "spark_inflate": spark_inflate,
}

SCENARIO_PARTS: Mapping[str, Collection[str]] = {
    "passthrough": PARTS,
    "exactly_once": COUNTS,
    "latency": MEASURES,
    "s3clients": S3_PARTS,
    "clients": CLIENT_PARTS,
}
"""Of the scenarios that can run in part: the names of the parts, as in the names of their results."""


async def _run(
    bootstrap: str,
    wanted: Mapping[str, Sequence[str]],
    repeat: int,
    records: Mapping[str, int],
    console: Console,
    profiles: Path | None,
    keep: Callable[[Sequence[Result]], None],
) -> None:
    """Runs the scenarios; `keep` gets the results of each as soon as it has ended, or a later fault would cost all."""
    async with Topics(bootstrap) as topics:
        for name, parts in wanted.items():
            with tempfile.TemporaryDirectory(prefix="wideload-bench-") as folder:
                bench = Bench(topics, Path(folder), repeat, records.get(name), console, profiles, parts)
                keep(await SCENARIOS[name](bench))


def _counts(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Mapping[str, int]:
    """Records by scenario."""
    counts: dict[str, int] = {}
    for each in given:
        name, _equals, number = each.rpartition("=")
        if name and name not in SCENARIOS:
            raise click.BadParameter(f"{name!r} is not a scenario", param=parameter)
        if not number.isdecimal() or int(number) < 1:
            raise click.BadParameter(f"{number!r} is not a number of 1 or more", param=parameter)
        counts |= dict.fromkeys([name] if name else SCENARIOS, int(number))
    return counts


def _wanted(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Patterns of parts by scenario; none for all of its parts."""
    wanted: dict[str, list[str]] = {}
    whole: set[str] = set()
    for each in given:
        name, _dot, pattern = each.partition(".")
        if name not in SCENARIOS:
            found = f"{name!r} is not a scenario; there are {', '.join(SCENARIOS)}"
            raise click.BadParameter(found, param=parameter)
        patterns = wanted.setdefault(name, [])
        if not pattern:
            whole.add(name)
        elif any(matches(part, pattern) for part in SCENARIO_PARTS.get(name, ())):
            patterns.append(pattern)
        else:
            parts = ", ".join(SCENARIO_PARTS.get(name, ())) or "none"
            raise click.BadParameter(f"{pattern!r} is not a part of {name}; it has {parts}", param=parameter)
    return {name: () if name in whole else patterns for name, patterns in wanted.items()}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    metavar="SCENARIO[.PART]",
    multiple=True,
    callback=_wanted,
    help=f"Run this scenario; may be repeated. Scenarios: {', '.join(SCENARIOS)}. Some can run in part, by the names "
    "of their results: passthrough.none.1m.4p, passthrough.zstd, passthrough.*.1m.*, exactly_once.1p.",
)
@click.option(
    "--records",
    metavar="[SCENARIO=]N",
    multiple=True,
    callback=_counts,
    help="How many records to move instead of a scenario's default; may be repeated.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds; medians are reported."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("build/bench.json"),
    show_default=True,
    help="File for the results; a file next to it describes the machine. With --only, other results in it are kept.",
)
@click.option(
    "--profile", is_flag=True, help="Profile the worker, which slows it down; files are written next to the results."
)
def main(
    only: Mapping[str, Sequence[str]], records: Mapping[str, int], repeat: int, output: Path, *, profile: bool
) -> None:
    """Measure the worker and what it is compared with, and print one table."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # new topics that brokers do not know yet are expected
    found = machine.describe()
    console.print(machine.sentence(found), highlight=False)
    with ExitStack() as stack:
        bootstrap = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        if not bootstrap:
            broker = stack.enter_context(EmbeddedBroker(heap="1g", fast_start=False))
            bootstrap = broker.bootstrap_servers
        profiles = output.parent / "profiles" if profile else None
        results: list[Result] = []

        def keep(new: Sequence[Result]) -> None:
            merge(output, new, keep=bool(only or results))
            results.extend(new)

        try:
            asyncio.run(_run(bootstrap, only or dict.fromkeys(SCENARIOS, ()), repeat, records, console, profiles, keep))
        except BenchmarkError as exc:
            raise click.ClickException(str(exc)) from exc
    output.with_name(f"{output.stem}-machine.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(table(results))


if __name__ == "__main__":
    main()
