"""`wideload job`: runs a Spark job with its own options in this process."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import click

from app.config.installed import require
from app.local import jars, spark_home, spark_start

JOBS: Mapping[str, str] = {
    "audit": "List references whose payloads are missing, differ, or expire before the reference.",
    "backfill": "Copy a topic to another topic, with references instead of large values, or the reverse.",
    "ingest": "Write the records of a topic to Parquet or a Delta table, each once, with their full values.",
    "sweep": "Remove payloads that no record refers to; a dry run by default.",
}
"""The jobs by name; each is a module of `jobs` with a `main`."""

_JARS = "jars"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",
)
@click.argument("arguments", metavar="[NAME [OPTIONS]]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, arguments: tuple[str, ...]) -> int:
    """Run a Spark job; without a name, list the jobs.

    Each job has its own options: `wideload job NAME --help`. It runs in this process, by default on the cores of this
    machine (--master); on a cluster use spark-submit (docs/spark.md). The exit status is that of the job.

    `wideload job jars` prints the files of the connector for other Spark programs: --jars "$(wideload job jars)".

    With -c FILE after the name, a job uses brokers, security, stores and topics of a worker's configuration.

    \b
    Examples:
      wideload job sweep --help
      wideload job sweep -c wideload.toml
    """
    if not arguments:
        _list()
        return 0
    name, *rest = arguments
    if name in ("-h", "--help"):
        click.echo(context.get_help())
        _list()
        return 0
    if name == _JARS:
        if rest:
            context.fail(f"{_JARS} takes no options")
        click.echo(",".join(map(str, jars.ensure("spark", lambda line: click.echo(line, err=True)))))
        return 0
    if name not in JOBS:
        near = difflib.get_close_matches(name, [*JOBS, _JARS], n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; the jobs are {', '.join(JOBS)}"
        context.fail(f"there is no job {name!r}{hint}")
    require_spark("job")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.update(spark_start.environ())  # empty where the archive was not made
    # By name: no other part of `app` knows the jobs or Spark.
    main = cast("Callable[[list[str]], int]", importlib.import_module(f"jobs.{name}").main)
    return main([*_locked_jars(rest), *rest])


def require_spark(command: str) -> None:
    """Checks that the packages of the Spark jobs are installed, and that the jobs run on this Spark.

    Raises:
        ConfigurationError: one of them is not, or Spark is of another release.
    """
    require(command, ("pyspark", "py4j", "pyarrow"), "spark")
    spark_home.release()


def _locked_jars(arguments: Sequence[str]) -> list[str]:
    """The connector as an option, with the files of the lock; Spark would download others, and for each run.

    Raises:
        JarsError: it cannot be fetched.
    """
    own = {"--jars", "-h", "--help"} & {argument.partition("=")[0] for argument in arguments}
    if own or os.environ.get("WIDELOAD_SPARK_JARS"):
        return []
    return ["--jars", ",".join(map(str, jars.ensure("spark", lambda line: click.echo(line, err=True))))]


def _list() -> None:
    width = max(map(len, JOBS))
    for name, line in JOBS.items():
        click.echo(f"  {name:<{width}}  {line}")
