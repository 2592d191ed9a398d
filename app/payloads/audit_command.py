"""The command line of an audit, with Spark and without it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from app.config.arguments import (
    JobParser,
    add_kafka,
    add_store,
    client_settings,
    configure,
    parse,
    store_config,
    store_use,
)
from app.payloads.audit import Audit, AuditSettings, audit
from app.payloads.engine import Engine
from app.payloads.local_engine import on_terminal
from app.payloads.terminal import failed, interrupted
from transforms.errors import ConfigurationError, WideloadError, shown
from transforms.formats import FORMATS
from transforms.found_references import ReferenceFinder
from transforms.reference_state import STATES
from transforms.signing import KEY_NAME, Signing
from transforms.text import bytes_text, printable, text_table

FINDINGS = 3
"""The exit status of an audit that found something wrong."""

_REPORT = "a new file for the report, one row for each reference: NAME.parquet, or NAME.jsonl for JSON lines"
_EXAMPLE = ("topic", "partition", "offset", "which", "state", "path", "size", "stored", "detail")


def main(
    argv: Sequence[str] | None,
    opened: Callable[[argparse.Namespace, AuditSettings], AbstractContextManager[Engine[Any]]] = on_terminal,
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    report: str = _REPORT,
) -> int:
    """Runs an audit; returns the exit status: 0 all is well, 1 it failed, 2 to be set right first, 3 findings.

    Args:
        argv: the command line; None for that of the process.
        opened: opens the engine.
        add: adds the options of the engine.
        report: what `--report` takes.
    """
    arguments = parse(parser(add, report), argv)
    try:
        configure(arguments)
        settings = audit_settings(arguments)
        with opened(arguments, settings) as engine:
            result = audit(engine, settings)[1]
            seconds = engine.seconds
    except WideloadError as error:
        return failed("audit", error, arguments)
    except KeyboardInterrupt:
        return interrupted("audit", "there is no result")
    status = FINDINGS if result.wrong else 0
    if arguments.json or not sys.stdout.isatty():
        summary = {
            "job": "audit",
            "status": "wrong" if result.wrong else "ok",
            "wrong": result.wrong,
            "topics": result.states,
            "stored_bytes": result.stored,
            "report": arguments.report,
            "examples": [{name: getattr(each, name) for name in _EXAMPLE} for each in result.examples],
            "notes": result.notes,
            "seconds": dict(seconds),
        }
        print(json.dumps(summary))
    else:
        _show(result, arguments.report)
    return status


def _show(result: Audit, report: str | None) -> None:
    seen = [name for name in STATES if name == "ok" or any(name in states for states in result.states.values())]
    rows = [
        [topic, f"{sum(states.values()):,}", *(f"{states.get(name, 0):,}" for name in seen)]
        for topic, states in result.states.items()
    ]
    sys.stdout.write(text_table(["topic", "references", *seen], *rows))
    print(f"payloads: {bytes_text(result.stored)}")
    for each in result.examples:
        path = "" if each.path is None or shown(each.path) in (each.detail or "") else f" {shown(each.path)}"
        place = f"{each.topic} partition {each.partition} offset {each.offset} {each.which}"
        print(f"{place}: {each.state}{path}: {printable(each.detail, 1_000)}")
    if result.wrong > len(result.examples):
        where = report or "use --report to get all of them"
        print(f"… and {result.wrong - len(result.examples):,} more: {where}")
    for note in result.notes:
        print(f"note: {note}")


def audit_settings(arguments: argparse.Namespace) -> AuditSettings:
    """What the command line asks for, after `configure`.

    Raises:
        ConfigurationError: an option is missing or wrong.
    """
    use = store_use(arguments, arguments.topic)
    topics = arguments.topic or ([] if use is None else use.topics)
    if not topics:
        raise ConfigurationError("--topic", "is missing; specify a topic, or a configuration with -c")
    store = store_config(arguments, use)
    formats = {} if use is None or arguments.format is not None else use.formats
    configured = None if KEY_NAME in store else use  # the command line wins
    return AuditSettings(
        client=client_settings(arguments),
        store=store,
        topics={
            name: ReferenceFinder(
                formats.get(name, arguments.format or "wideload"),
                signing=Signing.of(store if configured is None else configured.signing_of(name)),
            )
            for name in topics
        },
        newest_only=arguments.newest_only,
        verify=arguments.verify,
        report=arguments.report,
    )


def parser(
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None, report: str = _REPORT
) -> argparse.ArgumentParser:
    """The command line; see `main`."""
    made = JobParser(
        prog="audit",
        description="Checks each reference in the topics: whether its payload exists, is the right one, and is "
        "kept as long as the record.",
        epilog="Exit status: 0 if all references are valid, 1 if the audit failed, 2 if something must be "
        "corrected first, 3 if a reference has a problem. The last line on stdout is the result, as JSON if "
        "stdout is not a terminal.",
        allow_abbrev=False,
    )
    # fmt: off
    source = made.add_argument_group("what to read")
    add_kafka(source)
    source.add_argument("--topic", action="append", default=[], metavar="NAME",
        help="a topic; may be given several times. Default with -c: each topic that may refer to payloads of the store")
    source.add_argument("--format", choices=list(FORMATS),
        help="the worker's reference.format (default: from the configuration, otherwise wideload)")
    source.add_argument("--newest-only", action="store_true",
        help="in compacted topics, check only the newest record of each key, as is useful after a sweep with this "
            "option. A reader that starts at the beginning may find older records, which Kafka has not removed yet")
    add_store(made.add_argument_group("the store"))
    what = made.add_argument_group("what to do")
    what.add_argument("--verify", action="store_true", help="read every payload, and compare size and checksum")
    what.add_argument("--report", metavar="PATH", help=report)
    what.add_argument("--json", action="store_true", help="print JSON in a terminal too")
    # fmt: on
    add(made)
    return made
