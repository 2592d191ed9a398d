"""The command line of a sweep, with Spark and without it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from app.config.arguments import (
    JobParser,
    add_kafka,
    add_store,
    at_least,
    client_settings,
    configure,
    pairs,
    parse,
    store_config,
    store_use,
)
from app.config.store_use import StoreUse
from app.kafka.range_reader import RecordsLostError
from app.payloads.engine import Engine
from app.payloads.local_engine import on_terminal
from app.payloads.sweep import DELETING, Sweep, sweep
from app.payloads.sweep_settings import (
    DEFAULT_GRACE,
    DEFAULT_MAX_DELETE_FRACTION,
    DEFAULT_RECORDS,
    DEFAULT_TIME,
    SweepSettings,
)
from app.payloads.terminal import failed, interrupted
from stores.store import check_topic
from transforms.errors import ConfigurationError, WideloadError
from transforms.formats import FORMATS, FormatName
from transforms.text import bytes_text, text_table

REFUSED = 3
"""The exit status of a sweep that is refused."""

_LONGEST_GRACE = timedelta(days=36_500)  # dates do not go back forever
_REPORT = "a new file for the report, one row for each payload: NAME.parquet, or NAME.jsonl for JSON lines"
_COLUMNS = ("topic", "payloads", "size", "live", "young", "to delete", "size", "oldest")


def main(
    argv: Sequence[str] | None,
    opened: Callable[[argparse.Namespace, SweepSettings], AbstractContextManager[Engine[Any]]] = on_terminal,
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    report: str = _REPORT,
) -> int:
    """Runs a sweep; returns the exit status: 0 done, 1 failed at work, 2 something to set right first, 3 refused.

    Args:
        argv: the command line; None for that of the process.
        opened: opens the engine.
        add: adds the options of the engine.
        report: what `--report` takes.
    """
    arguments = parse(parser(add, report), argv)
    try:
        configure(arguments)
        settings = sweep_settings(arguments)
        with opened(arguments, settings) as engine:
            seconds = engine.seconds
            result = sweep(engine, settings)
    except RecordsLostError as error:
        if DELETING in seconds:
            print(f"sweep: only orphans were removed, and the next run continues: {error}", file=sys.stderr)
            return 1
        result = Sweep(
            datetime.now(UTC) - settings.grace, refusals=[f"it is not known what is live; run it again: {error}"]
        )
    except WideloadError as error:
        return failed("sweep", error, arguments)
    except KeyboardInterrupt:
        return interrupted("sweep", "only orphans were removed, if any; run it again")
    errors = [f"refused: {each}" for each in result.refusals]
    if result.failed:
        errors.append(f"{result.failed:,} payloads were not removed, for instance: {result.error}")
    state = "refused" if result.refusals else "failed" if errors else "done" if arguments.delete else "dry-run"
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps(_summary(result, arguments, state) | {"seconds": dict(seconds)}))
    else:
        _show(result, arguments, state)
    for line in [*(f"warning: {each}" for each in result.search.warnings), *errors]:
        print(f"sweep: {line}", file=sys.stderr)
    return REFUSED if result.refusals else 1 if errors else 0


def _show(result: Sweep, arguments: argparse.Namespace, state: str) -> None:
    if result.folders:
        sys.stdout.write(
            text_table(
                _COLUMNS,
                *(
                    (
                        each.topic,
                        f"{each.payloads:,}",
                        bytes_text(each.bytes),
                        f"{each.live:,}",
                        f"{each.young:,}",
                        f"{each.orphans:,}",
                        bytes_text(each.orphan_bytes),
                        "-" if each.oldest is None else f"{each.oldest:%Y-%m-%d %H:%M}",
                    )
                    for each in result.folders
                ),
            )
        )
    for folder in result.folders:
        if folder.foreign:
            print(
                f"left alone, because their names are not those of payloads: {folder.foreign:,} in the directory "
                f"of {folder.topic}; "
                "--any-name treats them as payloads"
            )
    if result.left_alone:
        print(f"left alone, as they are not among --topic: {', '.join(result.left_alone)}")
    if result.search.searched:
        print(
            f"other topics, searched for references: {result.search.searched:,}, the newest "
            f"{arguments.search_records:,} offsets of each partition; older records were not searched, nor were "
            f"topics that these credentials may not see"
        )
    for topic, records in result.quarantined.items():
        print(f"in quarantine: {topic}, with {records:,} records that cannot be read")
    for outcome, found in sorted(result.outcomes.items()):
        print(f"{outcome}: {found.count:,} payloads, {bytes_text(found.bytes)}")
    if state == "dry-run":
        print("nothing was deleted: this was a dry run; --delete deletes")


def _summary(result: Sweep, arguments: argparse.Namespace, state: str) -> dict[str, object]:
    folders = [folder._asdict() for folder in result.folders]
    summary: dict[str, object] = {
        "job": "sweep",
        "status": state,
        "cutoff": result.cutoff.isoformat(),
        "references": result.references,
        "topics": {
            folder.pop("topic"): folder | {"oldest": folder["oldest"] and folder["oldest"].isoformat()}
            for folder in folders
        },
        "left_alone": result.left_alone,
        "quarantined": dict(result.quarantined),
        "refer": {
            topic: {"partition": each.partition, "offset": each.offset} for topic, each in result.search.found.items()
        },
        "unclear": {
            topic: {"records": each.records, "partition": each.partition, "offset": each.offset, "error": each.error}
            for topic, each in result.search.unclear.items()
        },
        "searched": result.search.searched,
        "not_searched": dict(result.search.unread),
        "refusals": result.refusals,
        "report": arguments.report,
        "outcomes": {name: {"payloads": each.count, "bytes": each.bytes} for name, each in result.outcomes.items()},
    }
    return summary if result.error is None else summary | {"error": result.error}


# --- the command line -------------------------------------------------------------------------------------------------


def sweep_settings(arguments: argparse.Namespace) -> SweepSettings:
    """What the command line asks for, after `configure`.

    Raises:
        ConfigurationError: an option is missing or wrong.
    """
    use = store_use(arguments, arguments.topics)
    configured = {} if use is None or arguments.reference_format is not None else use.formats
    if use is not None:
        _take_topics(arguments, use)
    elif not arguments.topics and not arguments.deleted_topics:
        raise ConfigurationError("--topic", "is missing; specify the topic whose payloads are to be swept, or -c")
    read, deleted = {*arguments.topics, *arguments.carriers}, arguments.deleted_topics
    _check_each("--deleted-topic", deleted, lambda name: name not in read, "is --topic or --carrier too")
    _check_each("--quarantine", arguments.quarantined, lambda name: name in read, "is neither --topic nor --carrier")
    _check_each("--ignore-topic", arguments.ignored, lambda name: name not in read, "is --topic or --carrier too")
    if {*arguments.topics, *deleted} <= {*arguments.quarantined}:
        raise ConfigurationError("--quarantine", "has each topic that is to be swept, so nothing would be left to do")
    for root in arguments.other_roots:
        # A root without its last slash would also be the beginning of other roots.
        if not re.fullmatch(r"[a-z0-9+.-]+://.*/", root):
            raise ConfigurationError("--other-root", f"found {root!r}, allowed is a root as s3://bucket/prefix/")
    for name in deleted:
        check_topic(name)
    given = {field.name: getattr(arguments, field.name, None) for field in fields(SweepSettings)}
    return SweepSettings(
        **{name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in given.items()}
        | {
            "client": client_settings(arguments),
            "store": store_config(arguments, use),
            "reference_format": arguments.reference_format or "wideload",
            "formats": _formats(arguments, configured),
            "in_flight": timedelta(0) if use is None else use.in_flight,
        }
    )


def _take_topics(arguments: argparse.Namespace, use: StoreUse) -> None:
    """Adds to the referencing topics every topic that, by the configuration, may carry references to the store.

    All of them, whichever topics are swept: a topic may be a copy of another, and the configuration does not say so.

    Raises:
        ConfigurationError: the configuration does not say where references to a topic's payloads are.
    """
    if arguments.reference_format is None and len(set(use.formats.values())) == 1:
        arguments.reference_format = next(iter(use.formats.values()))
    for topic in arguments.topics:
        if topic not in use.referencing:
            raise ConfigurationError(
                "--topic",
                f"found {topic}, but according to the configuration the store has payloads of "
                f"{', '.join(use.referencing)}; omit -c, and specify each --carrier",
            )
    topics = list(dict.fromkeys(arguments.topics or (() if arguments.deleted_topics else use.referencing)))
    arguments.topics = topics
    arguments.carriers = [name for name in dict.fromkeys((*use.topics, *arguments.carriers)) if name not in topics]


def _check_each(option: str, names: Sequence[str], good: Callable[[str], bool], wrong: str) -> None:
    for name in names:
        if not good(name):
            raise ConfigurationError(option, f"{name} {wrong}")


def _formats(arguments: argparse.Namespace, configured: Mapping[str, FormatName]) -> dict[str, FormatName]:
    """The formats of single topics: those of the configuration, and over them those of the command line.

    Raises:
        ConfigurationError: a format is given for nothing or is none; or it is missing, and no header would show it.
    """
    read = [*arguments.topics, *arguments.carriers]
    given = pairs("--topic-format", arguments.topic_format)
    _check_each("--topic-format", [*given], lambda name: name in read, "is neither --topic nor --carrier")
    for name in given.values():
        if name not in FORMATS:
            raise ConfigurationError("--topic-format", f"found {name!r}, allowed are {', '.join(FORMATS)}")
    found = {topic: configured[topic] for topic in read if topic in configured}
    found |= cast("dict[str, FormatName]", given)
    names = {*configured.values()}
    missing = [topic for topic in read if topic not in found]
    if missing and len(names) > 1 and "bakdata-flag" in names:
        raise ConfigurationError(
            "--topic-format",
            f"is missing for {missing[0]}: no pipeline of the configuration has it, and they have several formats; "
            f"give {missing[0]}=FORMAT",
        )
    return found


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,9})(s|m|h|d)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; allowed are 90s, 90m, 24h, 7d")
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    with suppress(OverflowError):
        duration = timedelta(**{units[match[2]]: int(match[1])})
        if duration <= _LONGEST_GRACE:
            return duration
    raise argparse.ArgumentTypeError(f"{text!r} is longer than a hundred years")


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError("is from 0 to 1")
    return number


def parser(
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None, report: str = _REPORT
) -> argparse.ArgumentParser:
    """The command line; see `main`."""
    made = JobParser(
        prog="sweep",
        description="Deletes payloads that no record refers to any longer. Without --delete, the command is a dry run.",
        epilog="Exit status: 0 if the sweep completed, 1 if it failed while it ran, 2 if something must be "
        "corrected first, 3 if it refused and deleted nothing. The last line on stdout is the result, as JSON "
        "if stdout is not a terminal.",
        allow_abbrev=False,
    )
    # fmt: off
    source = made.add_argument_group("what to read")
    add_kafka(source)
    source.add_argument("--topic", dest="topics", action="append", default=[], metavar="NAME",
        help="a topic whose payloads are swept; may be given several times. Payloads of other topics are left "
            "alone. Default with -c: each topic with payloads in the store")
    source.add_argument("--deleted-topic", dest="deleted_topics", action="append", default=[], metavar="NAME",
        help="a topic that no longer exists, and whose payloads are swept; refused if the cluster has the topic. "
            "All payloads are deleted that no --topic and no --carrier refers to, so --max-delete-fraction 1 is "
            "required too")
    source.add_argument("--carrier", dest="carriers", action="append", default=[], metavar="NAME",
        help="a referencing topic: its records may refer to those payloads too, as in a dead letter queue or a "
            "copy; may be given several times")
    source.add_argument("--format", dest="reference_format", choices=list(FORMATS),
        help="the worker's reference.format (default: from the configuration, otherwise wideload)")
    source.add_argument("--topic-format", action="append", default=[], metavar="NAME=FORMAT",
        help="the format of one --topic or --carrier if it differs from --format; may be given several times")
    source.add_argument("--other-root", dest="other_roots", action="append", default=[], metavar="PATH",
        help="ignore references whose path begins with PATH, because they lead to another store; without this "
            "option they are a reason to refuse")
    source.add_argument("--quarantine", dest="quarantined", action="append", default=[], metavar="NAME",
        help="a --topic or --carrier with references that cannot be read: its payloads are left alone, and such "
            "records do not cause a refusal. Not for a dead letter queue, whose records may contain references")
    source.add_argument("--ignore-topic", dest="ignored", action="append", default=[], metavar="NAME",
        help="a topic whose references do not count: payloads that only such a topic refers to are deleted. "
            "Otherwise the sweep refuses if a topic that is neither --topic nor --carrier has references to them. "
            "A pattern such as 'team-b-*' matches several topics")
    source.add_argument("--search-records", type=at_least(1), default=DEFAULT_RECORDS, metavar="N",
        help="how many of the newest offsets in each partition of all other topics are searched for references to "
            "the payloads (default: 1,000); older records are not searched")
    source.add_argument("--search-time", type=_duration, default=DEFAULT_TIME, metavar="TIME",
        help="the time limit of that search; topics that were not searched by then are a reason to refuse "
            "(default: 10m)")
    source.add_argument("--newest-only", action="store_true",
        help="in compacted topics, count only the newest record of each key, and records that were overwritten "
            "within --grace. A reader that is further behind may find older records, which Kafka has not removed "
            "yet, without a payload")
    add_store(made.add_argument_group("the store"))
    what = made.add_argument_group("what to delete")
    what.add_argument("--delete", action="store_true", help="delete the payloads; without this option, only report "
        "what would be deleted")
    what.add_argument("--grace", type=_duration, default=DEFAULT_GRACE, metavar="TIME",
        help="the minimum age of a payload that is deleted, for example 90m, 24h or 7d (default: 24h)")
    what.add_argument("--allow-short-grace", dest="short_grace", action="store_true",
        help="accept a minimum age of less than an hour; only if nothing is being published")
    what.add_argument("--max-delete-fraction", type=_fraction, default=DEFAULT_MAX_DELETE_FRACTION, metavar="N",
        help="the largest fraction of a topic's payloads that may be deleted, 0 to 1 (default %(default)s)")
    what.add_argument("--any-name", action="store_true",
        help="treat every object in a topic's directory as a payload, not only those whose name is a SHA-256 or a "
            "UUID, as the built-in stores name them")
    what.add_argument("--report", metavar="PATH",
        help=f"{report}. A row contains size, age, state and reason. The report is written before anything is deleted")
    what.add_argument("--json", action="store_true", help="print JSON in a terminal too")
    # fmt: on
    add(made)
    return made
