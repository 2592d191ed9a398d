"""What a deployment needs, from measured figures: `python -m benchmarks.scale --help`; docs/scale.md has its tables.

Nothing is measured here. Each input is an option, with the measured or published figure as its default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import click

from benchmarks.result import published

_MONTH_S = 30 * 86_400
_HEADROOM = 0.7  # of a worker's maximum; the rest is for restarts and bursts
_GB, _MB, _KIB = 1e9, 1e6, 1_024


@dataclass(frozen=True, slots=True)
class Inputs:
    """Figures of one machine, and of S3; see `INPUTS`."""

    offload_mib: float
    offload_cpu_ms: float
    records: float
    record_cpu_us: float
    sweep_start_s: float
    sweep_per_s: float
    put_price: float = 0.005
    get_price: float = 0.0004
    storage_price: float = 0.023
    prefix_puts: float = 3_500
    retention_days: float = 7


_SWEPT = 20_000, 200_000  # payloads of the two runs


def _measured() -> Inputs:
    """With the figures of docs/numbers.md."""
    found = published()
    some, many = (found[f"sweep.{size}"]["against"] for size in ("some", "many"))
    per_s = (_SWEPT[1] - _SWEPT[0]) / (many - some)
    return Inputs(
        offload_mib=found["offload.s3.vs_best_peer"]["value"],
        offload_cpu_ms=found["offload.s3.cpu_ms"]["value"],
        records=found["passthrough.none.1m.4p.vs_librdkafka"]["value"],
        record_cpu_us=found["passthrough.none.1m.4p.cpu_vs_librdkafka"]["value"],
        sweep_start_s=round(some - _SWEPT[0] / per_s, 1),
        sweep_per_s=round(per_s, -2),
    )


DEFAULTS = _measured()

INPUTS: Mapping[str, tuple[str, str, str]] = {
    "offload_mib": ("MiB/s that one worker offloads", "measured", "numbers.md, 4 MB values to S3"),
    "offload_cpu_ms": ("ms of CPU for a value of 4 MB, offloaded", "measured", "numbers.md"),
    "records": ("records of 1 KB that one worker forwards per second", "measured", "numbers.md, 4 partitions"),
    "record_cpu_us": ("µs of CPU for such a record", "measured", "numbers.md"),
    "sweep_start_s": (
        "s that a sweep needs before its first payload",
        "measured",
        "numbers.md, 20,000 and 200,000 payloads",
    ),
    "sweep_per_s": (
        "payloads that a sweep compares per second on 2 cores",
        "measured",
        "numbers.md, 20,000 and 200,000 payloads",
    ),
    "put_price": ("USD for 1,000 PUT or LIST requests", "source", "AWS's price list, S3 Standard, us-east-1"),
    "get_price": ("USD for 1,000 GET requests", "source", "AWS's price list, S3 Standard, us-east-1"),
    "storage_price": (
        "USD for a GB and a month, the first 50 TB",
        "source",
        "AWS's price list, S3 Standard, us-east-1",
    ),
    "prefix_puts": (
        "PUT requests per second that S3 accepts for each prefix",
        "source",
        "AWS's S3 user guide, performance",
    ),
    "retention_days": ("days that records are kept", "assumed", "Kafka's default"),
}
"""By input: what it is, where it comes from, and the place."""


def tables(inputs: Inputs = DEFAULTS) -> str:
    """The tables of the page as Markdown."""
    return "\n".join(
        [
            "### Inputs\n",
            *_given(inputs),
            "\n### 1 GB/s of large values\n",
            *_large(inputs),
            "\n### 1,000,000 small records per second\n",
            *_small(inputs),
            "\n### A billion payloads swept\n",
            *_sweep(inputs),
            "",
        ]
    )


def _given(inputs: Inputs) -> Iterator[str]:
    yield "| input | value | from | place |"
    yield "| --- | --- | --- | --- |"
    for name, (what, kind, place) in INPUTS.items():
        yield f"| {what} | {getattr(inputs, name):,g} | {kind} | {place} |"


def _large(inputs: Inputs) -> Iterator[str]:
    yield (
        "| size of a value | values/s | workers that offload | cores | PUT, a month | GET for one reader | stored, GB "
        "| storage, a month | concurrent prefixes |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for size, label in ((64 * _KIB, "64 KiB"), (_KIB**2, "1 MiB"), (4 * _KIB**2, "4 MiB"), (16 * _KIB**2, "16 MiB")):
        rate = _GB / size
        workers = math.ceil(_GB / (inputs.offload_mib * _KIB**2) / _HEADROOM)
        # Hashing and copying grow with the bytes; the request itself does not. Both are in the figure of 4 MB.
        cores = _GB / (4 * _MB) * inputs.offload_cpu_ms / 1_000
        puts = rate * _MONTH_S / 1_000
        stored = inputs.retention_days * 86_400
        cells = (
            label,
            f"{rate:,.0f}",
            str(workers),
            f"{cores:.1f}",
            _usd(puts * inputs.put_price),
            _usd(puts * inputs.get_price),
            f"{stored:,.0f}",
            _usd(stored * inputs.storage_price),
            str(math.ceil(rate / inputs.prefix_puts)),
        )
        yield f"| {' | '.join(cells)} |"


def _small(inputs: Inputs) -> Iterator[str]:
    rate = 1_000_000
    workers = math.ceil(rate / inputs.records / _HEADROOM)
    yield "| quantity | figure |"
    yield "| --- | --- |"
    yield f"| workers | {workers} |"
    yield f"| cores in use | {rate * inputs.record_cpu_us / 1e6:.1f} |"
    yield f"| partitions, at least | {workers}, one for each worker; {4 * workers} correspond to the measurement |"
    yield "| network of all workers, in and out | 1.0 GB/s each way; less if producers compress |"
    yield "| S3 requests | none |"


def _sweep(inputs: Inputs) -> Iterator[str]:
    count = 1_000_000_000
    lists = count / 1_000
    yield "| quantity | figure |"
    yield "| --- | --- |"
    yield f"| LIST requests, 1,000 keys each | {lists:,.0f}, {_usd(lists / 1_000 * inputs.put_price)} |"
    yield "| DELETE requests | as many as there are orphans; free |"
    for cores in (2, 32, 128):
        hours = (inputs.sweep_start_s + count / inputs.sweep_per_s / (cores / 2)) / 3_600
        yield f"| hours on {cores} cores, if it scales linearly | {hours:,.1f} |"
    yield (
        "| memory | as with 200,000: rows are shuffled through the disks of the executors, 100 to 200 bytes for each "
        "payload and each record |"
    )


def _usd(value: float) -> str:
    return f"{value:,.0f} USD" if value >= 10 else f"{value:,.2f} USD"  # noqa: PLR2004


def _options(command: click.Command) -> click.Command:
    for field in reversed(fields(Inputs)):
        what, kind, _ = INPUTS[field.name]
        name = f"--{field.name.replace('_', '-')}"
        option = click.option(
            name, type=float, default=getattr(DEFAULTS, field.name), show_default=True, help=f"{what} ({kind})."
        )
        command = option(command)
    return command


@_options
@click.command()
def main(**given: float) -> None:
    """Print what a deployment needs. Each option replaces a figure by yours."""
    click.echo(tables(Inputs(**given)))


def page(text: str) -> str:
    """The page, with the tables of the defaults between its marks."""
    begin, end = "<!-- scale -->\n", "<!-- /scale -->"
    before, _, behind = text.partition(begin)
    return f"{before}{begin}{tables()}{end}{behind.partition(end)[2]}"


if __name__ == "__main__":
    main()
