"""`wideload sweep`: removes payloads that no record refers to, without Spark."""

from __future__ import annotations

import click

from app.payloads import sweep_command


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",
)
@click.argument("arguments", metavar="[OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Remove payloads that no record refers to; a dry run by default.

    The options are those of `wideload job sweep`, which runs on Spark: see `wideload sweep --help`.

    \b
    Examples:
      wideload sweep -c wideload.toml
      wideload sweep -c wideload.toml --report payloads.parquet --delete
    """
    return sweep_command.main(arguments)
