"""Removes the payloads that no record refers to any more. A dry run, unless `--delete` is given.

`jobs.payloads.orphans` does the work, and says why it is safe; this is the command.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import cast

if not __package__:  # spark-submit runs this file by itself, with this folder on the path in place of the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from app.config.arguments import (
    JobParser,
    add_kafka,
    add_store,
    at_least,
    configure,
    pairs,
    parse,
    store_config,
    store_use,
)
from app.config.store_use import StoreUse
from jobs.driver.command_line import add_spark, session_settings, source_options
from jobs.driver.failures import JobFailedError, require_broker
from jobs.driver.session import INTERRUPTED, ending_cleanly, fit_shuffles, open_session, share_code
from jobs.payloads.orphans import DEFAULT_GRACE, DEFAULT_MAX_DELETE_FRACTION, Folder, Sweep, SweepSettings, run
from jobs.payloads.other_topics import DEFAULT_RECORDS, DEFAULT_TIME
from jobs.reading.named_topics import require_topics
from jobs.reading.topics import Kafka
from stores.store import check_topic
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.text import bytes_text, text_table

__all__ = ["main"]

_REFUSED_STATUS = 3
_LONGEST_GRACE = timedelta(days=36_500)  # dates do not go back for ever

_COLUMNS = ("topic", "payloads", "size", "live", "young", "to delete", "size", "oldest")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 done, 1 failed at work, 2 something to set right first, 3 refused."""
    arguments = parse(_parser(), argv)
    sweep, message, status = None, None, 0
    try:
        configure(arguments)
        settings, session = _settings(arguments), session_settings(arguments, "wideload-sweep")
        require_broker(settings.kafka.servers)
        require_topics(settings.kafka, {"--topic": settings.topics, "--carrier": settings.carriers})
        with ending_cleanly(), open_session(session) as spark:
            share_code(spark)
            fit_shuffles(spark)
            sweep = run(spark, settings, screen=sys.stderr if sys.stderr.isatty() else None)
        if sweep.refusal:
            status, message = _REFUSED_STATUS, sweep.refusal
        elif sweep.failed:
            status, message = 1, f"{sweep.failed:,} payloads were not removed, for instance: {sweep.error}"
    except (ConfigurationError, JobFailedError) as error:
        if arguments.verbose:
            raise
        status, message = 2 if isinstance(error, ConfigurationError) else 1, str(error)
    except KeyboardInterrupt:
        status, message = INTERRUPTED, "interrupted; only orphans were removed, if any; run it again"
    if sweep is not None:
        _tell(sweep, arguments, message)
    if message is not None:
        print(f"sweep: {'refused: ' if status == _REFUSED_STATUS else ''}{message}", file=sys.stderr)
    return status


def _tell(sweep: Sweep, arguments: argparse.Namespace, message: str | None) -> None:
    state = "refused" if sweep.refusal else "failed" if message else "done" if arguments.delete else "dry-run"
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps(_summary(sweep, state, message)))
        return
    if sweep.folders:
        sys.stdout.write(text_table(_COLUMNS, *map(_cells, sweep.folders)))
    for folder in sweep.folders:
        if folder.foreign:
            print(
                f"left alone, as these are not names of payloads: {folder.foreign:,} in the folder of {folder.topic}; "
                "--any-name takes them for payloads"
            )
    if sweep.left_alone:
        print(f"left alone, as they are not among --topic: {', '.join(sweep.left_alone)}")
    if sweep.search.searched:
        print(
            f"other topics, searched for references: {sweep.search.searched:,}, the newest "
            f"{arguments.search_records:,} offsets of each partition; older records were not looked at, nor "
            "were topics that these credentials may not see"
        )
    quarantined = [
        f"in quarantine: {topic}, with {records:,} records that cannot be read"
        for topic, records in sweep.quarantined.items()
    ]
    for told in (*quarantined, *(f"note: {note}" for note in sweep.notes)):
        print(told)
    for outcome, (payloads, size) in sorted(sweep.outcomes.items()):
        print(f"{outcome}: {payloads:,} payloads, {bytes_text(size)}")
    if state == "dry-run":
        print("nothing was deleted: this was a dry run; --delete deletes")


def _summary(sweep: Sweep, state: str, message: str | None) -> dict[str, object]:
    topics = {
        folder.topic: {
            "payloads": folder.payloads,
            "bytes": folder.bytes,
            "live": folder.live,
            "young": folder.young,
            "foreign": folder.foreign,
            "orphans": folder.orphans,
            "orphan_bytes": folder.orphan_bytes,
            "oldest": None if folder.oldest is None else folder.oldest.isoformat(),
        }
        for folder in sweep.folders
    }
    summary: dict[str, object] = {
        "job": "sweep",
        "status": state,
        "cutoff": sweep.cutoff.isoformat(),
        "references": sweep.references,
        "topics": topics,
        "left_alone": sweep.left_alone,
        "quarantined": dict(sweep.quarantined),
        "refer": {
            topic: {
                "references": each.references,
                "unclear": each.unclear,
                "partition": each.partition,
                "offset": each.offset,
            }
            for topic, each in sweep.search.found.items()
        },
        "searched": sweep.search.searched,
        "not_searched": dict(sweep.search.unread),
        "notes": sweep.notes,
        "outcomes": {name: {"payloads": number, "bytes": size} for name, (number, size) in sweep.outcomes.items()},
        "seconds": sweep.seconds,
    }
    return summary if message is None else summary | {"error": message}


def _cells(folder: Folder) -> list[str]:
    return [
        folder.topic,
        f"{folder.payloads:,}",
        bytes_text(folder.bytes),
        f"{folder.live:,}",
        f"{folder.young:,}",
        f"{folder.orphans:,}",
        bytes_text(folder.orphan_bytes),
        "-" if folder.oldest is None else f"{folder.oldest:%Y-%m-%d %H:%M}",
    ]


def _settings(arguments: argparse.Namespace) -> SweepSettings:
    use = store_use(arguments, arguments.topic)
    configured = {} if use is None or arguments.format is not None else use.formats
    if use is not None:
        _take_topics(arguments, use)
    elif not arguments.topic and not arguments.deleted_topic:
        raise ConfigurationError("--topic", "is missing; give the topic whose payloads are to be swept, or -c")
    return SweepSettings(
        kafka=Kafka(
            arguments.bootstrap_servers,
            source_options(
                arguments,
                {
                    "--topic": arguments.topic,
                    "--carrier": arguments.carrier,
                    "--deleted-topic": arguments.deleted_topic,
                },
            ),
        ),
        store=store_config(arguments, use),
        topics=tuple(dict.fromkeys(arguments.topic)),
        deleted_topics=_deleted_topics(arguments),
        carriers=tuple(arguments.carrier),
        reference_format=arguments.format or "wideload",
        formats=_formats(arguments, configured),
        any_name=arguments.any_name,
        grace=arguments.grace,
        in_flight=timedelta(0) if use is None else use.in_flight,
        short_grace=arguments.allow_short_grace,
        newest_only=arguments.newest_only,
        max_delete_fraction=arguments.max_delete_fraction,
        other_roots=_other_roots(arguments.other_root),
        delete=arguments.delete,
        quarantined=_quarantined(arguments),
        ignored=_ignored(arguments),
        search_records=arguments.search_records,
        search_time=arguments.search_time,
    )


def _take_topics(arguments: argparse.Namespace, use: StoreUse) -> None:
    """Adds to the carriers every topic that, by the configuration, may carry references to the store.

    All of them, whichever topics are swept: a topic may be a copy of another, and the configuration does not tell.

    Raises:
        ConfigurationError: the configuration does not say where references to a topic's payloads are.
    """
    if arguments.format is None and len(set(use.formats.values())) == 1:
        arguments.format = next(iter(use.formats.values()))
    for topic in arguments.topic:
        if topic not in use.carriers:
            raise ConfigurationError(
                "--topic",
                f"found {topic}, and by the configuration the store has payloads of {', '.join(use.carriers)}; leave "
                "out -c, and give each --carrier",
            )
    topics = list(dict.fromkeys(arguments.topic or (() if arguments.deleted_topic else use.carriers)))
    arguments.topic = topics
    arguments.carrier = [name for name in dict.fromkeys((*use.topics, *arguments.carrier)) if name not in topics]


def _deleted_topics(arguments: argparse.Namespace) -> tuple[str, ...]:
    both = set(arguments.deleted_topic) & {*arguments.topic, *arguments.carrier}
    if both:
        raise ConfigurationError("--deleted-topic", f"{min(both)} is --topic or --carrier too; it is one or the other")
    return tuple(dict.fromkeys(check_topic(name) for name in arguments.deleted_topic))


def _quarantined(arguments: argparse.Namespace) -> tuple[str, ...]:
    given = tuple(dict.fromkeys(arguments.quarantine))
    for topic in given:
        if topic not in {*arguments.topic, *arguments.carrier}:
            raise ConfigurationError("--quarantine", f"{topic} is neither --topic nor --carrier, so it is not read")
    if {*arguments.topic, *arguments.deleted_topic} <= {*given}:
        raise ConfigurationError("--quarantine", "has each topic that is to be swept, so nothing would be left to do")
    return given


def _ignored(arguments: argparse.Namespace) -> tuple[str, ...]:
    for topic in arguments.ignore_topic:
        if topic in {*arguments.topic, *arguments.carrier}:
            raise ConfigurationError("--ignore-topic", f"{topic} is --topic or --carrier too, so it is read")
    return tuple(dict.fromkeys(arguments.ignore_topic))


def _formats(arguments: argparse.Namespace, configured: Mapping[str, FormatName]) -> dict[str, FormatName]:
    """The formats of single topics: those of the configuration, and over them those of the command line.

    Raises:
        ConfigurationError: a format is given for nothing or is none; or it is missing, and no header would tell it.
    """
    read = [*arguments.topic, *arguments.carrier]
    found = {topic: configured[topic] for topic in read if topic in configured}
    for topic, name in pairs("--topic-format", arguments.topic_format).items():
        if topic not in read:
            raise ConfigurationError("--topic-format", f"{topic} is neither --topic nor --carrier")
        if name not in FORMATS:
            raise ConfigurationError("--topic-format", f"found {name!r}, allowed are {', '.join(FORMATS)}")
        found[topic] = cast("FormatName", name)
    names = {*configured.values()}
    missing = [topic for topic in read if topic not in found]
    if missing and len(names) > 1 and "bakdata-flag" in names:
        raise ConfigurationError(
            "--topic-format",
            f"is missing for {missing[0]}: no pipeline of the configuration has it, and they have several formats; "
            f"give {missing[0]}=FORMAT",
        )
    return found


def _other_roots(given: Sequence[str]) -> tuple[str, ...]:
    for root in given:
        # A root without its last slash would also be the beginning of other roots.
        if not re.fullmatch(r"[a-z0-9+.-]+://.*/", root):
            raise ConfigurationError("--other-root", f"found {root!r}, allowed is a root as s3://bucket/prefix/")
    return tuple(given)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,9})(s|m|h|d)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; allowed are 90s, 90m, 24h, 7d")
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


def _parser() -> argparse.ArgumentParser:
    parser = JobParser(
        prog="sweep",
        description="Remove the payloads that no record refers to any more. A dry run, unless --delete is given.",
        epilog="Exit status: 0 done, 1 failed at work, 2 something to set right first, 3 refused, nothing was deleted. "
        "The last line on stdout is the result, as JSON when stdout is not a terminal.",
        allow_abbrev=False,
    )
    source = parser.add_argument_group("what to read")
    add_kafka(source)
    # fmt: off
    source.add_argument("--topic", action="append", default=[], metavar="NAME",
        help="a topic whose payloads are swept; may be given several times. Payloads of other topics are left alone. "
        "With -c or --options the default is each topic with payloads in the store")
    source.add_argument("--deleted-topic", action="append", default=[], metavar="NAME",
        help="a topic that no longer exists, whose payloads are swept; refused if the cluster has it. All payloads go "
        "that no --topic and no --carrier refers to, so give --max-delete-fraction 1 too")
    source.add_argument("--carrier", action="append", default=[], metavar="NAME",
        help="a topic whose records may refer to those payloads too: dead letters, copies; may be given several times")
    source.add_argument("--format", choices=list(FORMATS),
        help="the worker's reference.format (default: from the configuration, else wideload)")
    source.add_argument("--topic-format", action="append", default=[], metavar="NAME=FORMAT",
        help="the format of one --topic or --carrier, if it is not --format; may be given several times")
    source.add_argument("--other-root", action="append", default=[], metavar="PATH",
        help="references that begin with PATH lead to another store and do not count; without this they are refused")
    source.add_argument("--quarantine", action="append", default=[], metavar="NAME",
        help="a --topic or --carrier in which somebody has written references that cannot be read: its payloads are "
        "left alone, and such records are no reason to refuse. No dead-letter topic: its letters may be references")
    source.add_argument("--ignore-topic", action="append", default=[], metavar="NAME",
        help="a topic that is neither --topic nor --carrier, and whose references do not count: payloads go that "
        "only it refers to. Without this, and without --carrier, such a topic is a reason to refuse. A pattern as "
        "'team-b-*' is for many")
    source.add_argument("--search-records", type=at_least(1), default=DEFAULT_RECORDS, metavar="N",
        help="how many of the newest offsets of each partition of all other topics are searched for references to the "
        "payloads (default: 1,000); older ones are not seen")
    source.add_argument("--search-time", type=_duration, default=DEFAULT_TIME, metavar="TIME",
        help="how long that may last; topics that are left then are a reason to refuse (default: 10m)")
    source.add_argument("--newest-only", action="store_true",
        help="of a compacted topic, count the newest record of each key, and what was overwritten during the grace. A "
        "reader that begins before the others, which Kafka has not removed yet, may meet them without a payload")
    add_store(parser.add_argument_group("the store"))
    what = parser.add_argument_group("what to delete")
    what.add_argument("--delete", action="store_true", help="delete; without it, only report what would be deleted")
    what.add_argument("--grace", type=_duration, default=DEFAULT_GRACE, metavar="TIME",
        help="how old a payload must be at least, as 90m, 24h or 7d (default: 24h)")
    what.add_argument("--allow-short-grace", action="store_true",
        help="take a grace of less than an hour; only if nothing is being published")
    what.add_argument("--max-delete-fraction", type=_fraction, default=DEFAULT_MAX_DELETE_FRACTION, metavar="N",
        help="the most of a topic's payloads that may go, 0 to 1 (default %(default)s)")
    what.add_argument("--any-name", action="store_true",
        help="take every object of a topic's folder for a payload, not only those named by a SHA-256 or a UUID, as "
        "all stores of this project name them")
    what.add_argument("--json", action="store_true", help="JSON in a terminal too")
    add_spark(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
