"""The command line `wideload`: the group of commands, `worker`, `check`, errors and exit statuses."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from app.commands.connection import config_option
from app.config.installed import WORKER, require
from app.config.secret import without_secrets
from app.config.version import VERSION
from app.interrupts import keep_interrupts
from app.kafka.clients import ClusterError
from transforms.errors import ConfigurationError, WideloadError

if TYPE_CHECKING:
    from app.config.findings import Findings
    from app.config.settings import Settings

_SIGNALLED = 128  # and the number of the signal, as in shells
_INTERRUPTED = 130  # by SIGINT
_PIPE_CLOSED = 141  # by SIGPIPE
_USAGE = 2
_FAILED = 1

_SECTIONS: Mapping[str, Sequence[str]] = {
    "Run": ("worker", "check", "demo"),
    "Work with topics": ("topics", "produce", "consume", "inspect", "dlq"),
    "Work with payloads": ("store", "audit", "sweep", "job"),
    "Work with names": ("names",),
}
_MODULES = {"store": "lifecycle"}  # in app.commands; the other modules have the names of their commands

_DEBUG = "wideload.debug"
_CLIENT_LOGS = ("aiokafka", "asyncio")


def _note_debug(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
    if value:
        context.find_root().meta[_DEBUG] = True
        from app.log_filters import keep_secrets

        logging.basicConfig(stream=sys.stderr, level="DEBUG", force=True)
        keep_secrets()
        for name in _CLIENT_LOGS:
            logging.getLogger(name).setLevel(logging.NOTSET)


_debug_option = click.Option(
    ["-v", "--debug"],
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_note_debug,
    help="Show the logs of the clients, and the traceback of an error.",
)


class _Group(click.Group):
    """Lists commands in sections, and imports the module of a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [name for names in _SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in self.list_commands(ctx):
            # Only now: the module of a command may need aiokafka or Faust.
            command = importlib.import_module(f"app.commands.{_MODULES.get(cmd_name, cmd_name)}").command
            assert isinstance(command, click.Command)
        if command is not None:
            for each in (command, *getattr(command, "commands", {}).values()):
                if _debug_option not in each.params:
                    each.params.append(_debug_option)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            jobs = importlib.import_module("app.commands.job").JOBS
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if args[0] in jobs:
                near = [f"job {args[0]}"]
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{hint}")
        if args and args[0] != "job":
            require(args[0], WORKER, "worker")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in _SECTIONS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name, command.get_short_help_str(100)))
            with formatter.section(section):
                formatter.write_dl(rows)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=[_debug_option],
    epilog="Exit status: 0 success; 1 the command failed or found a problem; 2 you must correct something first.",
)
@click.version_option(VERSION, prog_name="wideload", message="%(prog)s %(version)s")
def cli() -> None:
    """Moves oversized Kafka values to object storage and back.

    A worker moves values that are too large for a topic to a payload store and writes small references instead; another
    transform restores the values. Configuration: docs/configuration.md.

    \b
    Examples:
      wideload demo
      wideload check -c wideload.toml
      wideload topics create -c wideload.toml
      wideload worker -c wideload.toml
      wideload produce raw-large photo.jpg -b localhost:9092
      wideload inspect orders -c wideload.toml
      wideload consume orders --from-beginning --inflate -c wideload.toml --output values/
      wideload dlq list -c wideload.toml
      wideload store lifecycle -c wideload.toml
      wideload names audit -b localhost:9092
    """


@cli.command()
@config_option
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="The minimum level of log lines, which are written to standard error.",
)
def worker(config: str, log_level: str) -> int:
    """Run the pipelines of a configuration until SIGTERM or Ctrl-C.

    The worker first runs the checks of `wideload check`. On SIGTERM it drains, commits and ends with status 0; it ends
    with status 1 when all pipelines have failed. On web.port it serves the web UI, /health, /pipelines and /metrics.

    \b
    Example:
      wideload worker -c wideload.toml --log-level WARNING
    """
    _end_as_first_process()
    from app.config.parsing import load

    settings = load(config)
    from app.run import run_worker

    try:
        return run_worker(settings, log_level.upper(), config)
    except ClusterError as exc:
        raise _at_start(exc) from exc


def _end_as_first_process() -> None:
    """Lets SIGTERM end a container's first process until Faust has its own handlers; nothing is consumed before.

    The kernel does not deliver a signal to process 1 unless it has a handler for it.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(_SIGNALLED + number))


@cli.command()
@config_option
@click.option(
    "--print", "show", is_flag=True, help="Print the configuration with all defaults. Secrets are printed as ***."
)
def check(config: str, *, show: bool) -> int:
    """Check whether a worker would start: configuration, web.port, brokers, topics, limits and stores.

    Reports all errors, one per line. If there are none, it shows where the consumer group of each pipeline starts. The
    command consumes no records. Like the worker, it creates missing output topics if topic.creation.enable is true, and
    the topic of control.topic. It writes a probe to the store of each pipeline that offloads, and removes it.

    \b
    Example:
      wideload check -c wideload.toml --print
    """
    from app.cluster import capacity
    from app.cluster.expiry import warnings_within
    from app.commands.check import TITLES, effective, plan_rows
    from app.commands.console import print_table
    from app.config.handover import store_doubts
    from app.config.parsing import load

    settings = load(config)
    if show:
        click.echo(effective(settings))
    from app.cluster import preflight

    findings = _check_address(settings)
    try:
        plans = asyncio.run(preflight.check(settings, findings))
    except ClusterError as exc:
        raise _at_start(exc) from exc
    for plan in plans:
        for topic in plan.created:
            click.echo(f"created topic {topic}")
    print_table(TITLES, plan_rows(settings, plans))
    if settings.control_topic is not None:
        click.echo(f"control.topic {settings.control_topic}: 1 partition, compact")
    for plan in plans:
        click.echo(f"note: [pipeline.{plan.pipeline}] {plan.beginning}")
    for doubt in store_doubts(settings.pipelines):
        click.echo(f"warning: {doubt}")
    for pipeline, plan in zip(settings.pipelines, plans, strict=True):
        for warning in (*capacity.warnings(pipeline, plan), *warnings_within(pipeline, plan)):
            click.echo(f"warning: [pipeline.{pipeline.name}] {warning}")
    click.echo("OK")
    return 0


def _check_address(settings: Settings) -> Findings:
    """What is wrong with the address of the web server. That the worker of this file uses it is only noted."""
    from app.config.findings import Findings
    from app.web.address import check_address, runs_already

    findings = Findings()
    try:
        check_address(settings)
    except ConfigurationError as exc:
        if exc.key == "web.port" and runs_already(settings):
            click.echo(f"note: a worker with these pipelines runs already, at {settings.web_bind}:{settings.web_port}")
        else:
            findings.add(exc)
    return findings


def _at_start(error: ClusterError) -> ConfigurationError:
    return ConfigurationError("bootstrap.servers", str(error))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status; each error is one line, without a traceback."""
    # The logs of the clients would surround the one line of an error.
    for name in _CLIENT_LOGS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    keep_interrupts()
    sys.exit(_status(list(sys.argv[1:] if arguments is None else arguments)))


def _status(arguments: list[str]) -> int:
    debug = False
    try:
        with cli.make_context("wideload", arguments) as context:
            try:
                result = cli.invoke(context)
            finally:
                debug = bool(context.meta.get(_DEBUG))
            sys.stdout.flush()
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # Otherwise the interpreter would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except Exception as exc:  # noqa: BLE001  # our own defects are one line as well
        if debug:
            click.echo(without_secrets(traceback.format_exc()), err=True)
        return _exit_status(exc)


def _exit_status(error: Exception) -> int:
    """Prints the error to standard error and returns the exit status; each configuration error is one line."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'input or output'}: {error.strerror}"
    texts = [text]
    if isinstance(error, ConfigurationError):
        status, texts = _USAGE, [" ".join(str(each).split()) for each in error.each]
    elif isinstance(error, (WideloadError, OSError)):
        status = _FAILED
    else:
        status, texts = _FAILED, [f"unexpected {type(error).__name__}: {text} (--debug shows where)"]
    for each in texts:
        # Names from the command line or the file may contain control sequences of terminals.
        shown = "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in without_secrets(each)
        )
        click.echo(f"wideload: {shown}", err=True)
    return status


if __name__ == "__main__":
    main()
