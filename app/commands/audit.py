"""`wideload audit`: checks every reference of topics, without Spark."""

from __future__ import annotations

import click

from app.payloads import audit_command


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",
)
@click.argument("arguments", metavar="[OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Check the references of topics: whether each payload exists, matches, and is kept long enough.

    The options are those of `wideload job audit`, which runs on Spark: see `wideload audit --help`.

    \b
    Examples:
      wideload audit -c wideload.toml
      wideload audit -b localhost:9092 --topic orders --store-config store.properties --report findings.parquet
    """
    return audit_command.main(arguments)
