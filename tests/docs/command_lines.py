"""The command lines of the pages: each is held against the parser of its program, without running it."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import click

from app.cli import cli
from app.commands.job import JOBS
from app.payloads import audit_command, sweep_command
from docs import commands_page
from jobs import backfill
from jobs.driver.command_line import add_spark
from jobs.ingesting import command_line

ROOT = Path(__file__).resolve().parents[2]
OMITTED = "…"
"""A word of a page in the place of options that stand above."""


def commands_of(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, those in `$(…)` too, without redirections and variables."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from commands_of(inner)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    skipped = False
    for token in [*lexer, ";"]:
        if skipped:
            skipped = False
        elif set(token) <= set("<>&") and set(token) & set("<>"):
            skipped = True
        elif set(token) <= set("();|&"):
            yield words
            words = []
        elif words or not re.fullmatch(r"\w+=.*|until|while|if|do|then|else|!|export|time", token):
            words.append(token)


def check_command(words: Sequence[str]) -> None:
    """One command; those that are not ours are left to their own documentation."""
    if not words or "COMMAND" in words:
        return
    program, *arguments = words
    if program.rpartition("/")[2] == "wideload":
        check_wideload(arguments)
    elif program == "make":
        check_make(arguments)
    elif program in {"python", "python3"} and arguments[:1] == ["-m"] and re.match(r"wideload|app|docs", arguments[1]):
        assert importlib.util.find_spec(arguments[1]), f"there is no module {arguments[1]}"
        if (job := arguments[1].rpartition(".")[2]) in JOBS:
            check_job(job, arguments[2:])
    elif program == "faust":
        assert importlib.util.find_spec(arguments[arguments.index("-A") + 1])
    elif program == "spark-submit":
        program = next((each for each in arguments if re.fullmatch(r"jobs/\w+\.py", each)), "")
        if program:
            check_job(Path(program).stem, arguments[arguments.index(program) + 1 :])


def check_make(arguments: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for each in arguments:
        if each == OMITTED:
            continue
        name, given, _ = each.partition("=")
        found = rf"\$\$?[({{]?{name}\b" if given else rf"(?m)^{name}:"
        assert re.search(found, makefile), f"make has no {each}"


def check_wideload(arguments: Sequence[str]) -> None:
    """By click's own parser, without the values of options: files need not be there."""
    said = [each for each in arguments if each != OMITTED]
    names = dict(commands_page.commands())
    name = next((name for name in names if f"{' '.join(['wideload', *said])} ".startswith(f"{name} ")), None)
    if OMITTED in arguments and any(each.startswith(f"{' '.join(['wideload', *said])} ") for each in names):
        return  # the name of a group
    assert name is not None, f"there is no command {said}"
    rest = said[name.count(" ") :]
    if name == "wideload job":
        if rest and rest[0] != "jars":
            check_job(rest[0], rest[1:] if OMITTED not in arguments else [*rest[1:], OMITTED])
        return
    if name.removeprefix("wideload ") in JOBS:  # by the same parser
        check_job(name.removeprefix("wideload "), rest)
        return
    command = names[name]
    context = click.Context(command, info_name=name, parent=click.Context(cli))
    values, left, _ = command.make_parser(context).parse_args(list(rest))
    assert left == []
    for each in command.params:
        value = values.get(each.name or "")
        given = not each.value_is_missing(value)
        if isinstance(each.type, click.Choice) and given and value != "NAME":
            each.type_cast_value(context, value)
        assert given or not each.required or OMITTED in arguments, f"{name} lacks {each.name}"


def check_job(name: str, arguments: Sequence[str]) -> None:
    """By the parser of the job; where a page leaves something out, nothing is required."""
    parsers: dict[str, Callable[[], argparse.ArgumentParser]] = {
        "audit": partial(audit_command.parser, add_spark),
        "backfill": backfill._parser,
        "sweep": partial(sweep_command.parser, add_spark),
    }
    parsers["ingest"] = command_line.parser
    parser = parsers[name]()
    if OMITTED in arguments:
        for action in parser._actions:
            action.required = False
        for group in parser._mutually_exclusive_groups:
            group.required = False
    with mock.patch.object(type(parser), "error", _refuse):
        try:
            parser.parse_args([each for each in arguments if each != OMITTED])
        except SystemExit as ended:
            assert ended.code == 0  # --help  # noqa: PT017  # it is no failure of what is tested


def _refuse(_parser: argparse.ArgumentParser, message: str) -> None:
    raise AssertionError(message)
