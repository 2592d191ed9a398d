"""Checks every reference of topics: reports payloads that are missing, are others, or will be deleted too early.

`jobs.payloads.reference_states` does the work; this is the command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this folder on the path in place of the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pyspark.sql import Row

from app.config.arguments import JobParser, add_kafka, add_store, configure, parse, store_config, store_use
from jobs.driver.command_line import add_spark, session_settings, source_options
from jobs.driver.failures import JobFailedError, require_broker
from jobs.driver.session import INTERRUPTED, ending_cleanly, fit_shuffles, open_session, share_code
from jobs.payloads.reference_states import EXAMPLE, STATES, Audit, AuditSettings, run
from jobs.reading.named_topics import require_topics
from jobs.reading.topics import Kafka
from transforms.errors import ConfigurationError, shown
from transforms.formats import FORMATS
from transforms.signing import KEY_NAME, Signing
from transforms.text import bytes_text, printable, text_table

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 all is well, 1 something is wrong or it failed, 2 to set right first."""
    arguments = parse(_parser(), argv)
    audit, status = None, 0
    try:
        configure(arguments)
        settings, session = _settings(arguments), session_settings(arguments, "wideload-audit")
        require_broker(settings.kafka.servers)
        require_topics(settings.kafka, {"--topic": settings.topics})
        with ending_cleanly(), open_session(session) as spark:
            share_code(spark)
            fit_shuffles(spark)
            audit = run(spark, settings, screen=sys.stderr if sys.stderr.isatty() else None)
        status = 1 if audit.wrong else 0
    except (ConfigurationError, JobFailedError) as error:
        if arguments.verbose:
            raise
        status = 2 if isinstance(error, ConfigurationError) else 1
        print(f"audit: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        status = INTERRUPTED
        print("audit: interrupted; there is no result", file=sys.stderr)
    if audit is not None:
        _tell(audit, arguments)
    return status


def _tell(audit: Audit, arguments: argparse.Namespace) -> None:
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps(_summary(audit, arguments.report)))
        return
    seen = [state for state in STATES if state == "ok" or any(state in states for states in audit.states.values())]
    columns = ["topic", "references", *seen]
    rows = [
        [topic, f"{sum(states.values()):,}", *(f"{states.get(state, 0):,}" for state in seen)]
        for topic, states in audit.states.items()
    ]
    sys.stdout.write(text_table(columns, *rows))
    print(f"payloads: {bytes_text(audit.stored)}")
    for row in audit.examples:
        told = row.path is None or shown(row.path) in (row.detail or "")
        path = "" if told else f" {shown(row.path)}"
        detail = printable(row.detail, 1_000)
        print(f"{row.topic} partition {row.partition} offset {row.offset} {row.which}: {row.state}{path}: {detail}")
    if audit.wrong > len(audit.examples):
        where = arguments.report or "give --report for all of them"
        print(f"… and {audit.wrong - len(audit.examples):,} more: {where}")
    for note in audit.notes:
        print(f"note: {note}")


def _summary(audit: Audit, report: str | None) -> dict[str, object]:
    return {
        "job": "audit",
        "status": "wrong" if audit.wrong else "ok",
        "wrong": audit.wrong,
        "topics": audit.states,
        "stored_bytes": audit.stored,
        "report": report,
        "examples": [_example(row) for row in audit.examples],
        "notes": audit.notes,
        "seconds": audit.seconds,
    }


def _example(row: Row) -> dict[str, object]:
    return {name: row[name] for name in EXAMPLE}


def _settings(arguments: argparse.Namespace) -> AuditSettings:
    use = store_use(arguments, arguments.topic)
    topics = arguments.topic or ([] if use is None else use.topics)
    if not topics:
        raise ConfigurationError("--topic", "is missing; give a topic, or a configuration with -c")
    store = store_config(arguments, use)
    configured = None if KEY_NAME in store else use  # the command line wins
    return AuditSettings(
        kafka=Kafka(arguments.bootstrap_servers, source_options(arguments, {"--topic": topics})),
        store=store,
        topics=tuple(dict.fromkeys(topics)),
        reference_format=arguments.format or "wideload",
        formats={} if use is None or arguments.format is not None else use.formats,
        signing={} if configured is None else {name: Signing.of(configured.signing_of(name)) for name in topics},
        newest_only=arguments.newest_only,
        verify=arguments.verify,
        report=arguments.report,
    )


def _parser() -> argparse.ArgumentParser:
    parser = JobParser(
        prog="audit",
        description="Check every reference of topics: whether its payload is there, is the right one, and stays as "
        "long as the record.",
        epilog="Exit status: 0 all is well, 1 something is wrong or the job failed, 2 something to set right first. "
        "The last line on stdout is the result, as JSON when stdout is not a terminal.",
        allow_abbrev=False,
    )
    source = parser.add_argument_group("what to read")
    add_kafka(source)
    # fmt: off
    source.add_argument("--topic", action="append", default=[], metavar="NAME",
        help="a topic; may be given several times. With -c or --options the default is each topic that may refer to "
        "payloads of the store")
    source.add_argument("--format", choices=list(FORMATS),
        help="the worker's reference.format (default: from the configuration, else wideload)")
    source.add_argument("--newest-only", action="store_true",
        help="of a compacted topic, check the newest record of each key alone, as after a sweep with this option. "
        "A reader that begins at the beginning may meet others, which Kafka has not removed yet")
    add_store(parser.add_argument_group("the store"))
    what = parser.add_argument_group("what to do")
    what.add_argument("--verify", action="store_true", help="read every payload, and compare size and checksum")
    what.add_argument("--report", metavar="FOLDER", help="a new folder for a row for each reference, as Parquet")
    what.add_argument("--json", action="store_true", help="JSON in a terminal too")
    add_spark(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
