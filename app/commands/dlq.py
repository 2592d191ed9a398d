"""`wideload dlq`: shows the records of a pipeline's dead letter queue, and replays them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import click

from app.commands.connection import config_option, named, opened_store
from app.commands.console import progress
from app.commands.letters import LetterPrinter
from app.config.naming import check_name
from app.config.parsing import load
from app.config.settings import ClientSettings, PipelineSettings, Settings
from app.deadletters.log import Filters, LetterLog, open_log
from app.deadletters.owner import Owner, SharedReaders
from app.deadletters.reader import FoundLetter
from app.deadletters.record_writer import GUARANTEE, OpenWriter, check_exactly_once, open_writer
from app.deadletters.replay import Replay, letter_reader
from app.deadletters.tally import Tally
from app.kafka.sender import find_topic
from transforms.errors import ConfigurationError
from transforms.text import printable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def moment_ms(text: str, now_s: float) -> int:
    """The time that a user gives, in milliseconds since the epoch: ISO 8601, or an age: `90s`, `30m`, `2h`, `7d`.

    Raises:
        ConfigurationError: the text is neither.
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        return int((now_s - int(age[1]) * _SECONDS[age[2]]) * 1000)
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            "--since", f"found {text!r}, allowed is a time such as 2026-11-21T10:00 (UTC), or an age: 90s, 30m, 2h, 7d"
        ) from None


def _filter_options(command: _Function) -> _Function:
    options = (
        config_option,
        click.option(
            "--pipeline",
            metavar="NAME",
            help="Only dead-letter records of this pipeline; required if the dead letter queues differ.",
        ),
        click.option(
            "--error",
            metavar="CLASS",
            help="Only records that failed with this exception, for example PayloadNotFoundError.",
        ),
        click.option(
            "--since",
            metavar="TIME",
            help="Only records with this timestamp or later: a time in ISO 8601, or an age such as 2h.",
        ),
        click.option("--topic", metavar="NAME", help="Only records that were read from this topic."),
        click.option("-p", "--partition", type=click.IntRange(0), help="Only this partition of the dead letter queue."),
        click.option("--from-offset", type=click.IntRange(0), help="Only this offset and later; requires --partition."),
        click.option("--to-offset", type=click.IntRange(0), help="Only this offset and earlier; requires --partition."),
        click.option("-n", "--limit", type=click.IntRange(1), help="The maximum number of dead-letter records."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on a terminal too."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filters(given: dict[str, Any]) -> Filters:
    for option in ("from_offset", "to_offset"):
        if given[option] is not None and given["partition"] is None:
            raise ConfigurationError(
                f"--{option.replace('_', '-')}",
                f"found {given[option]}, which is an offset of one partition; add --partition",
            )
    since = given["since"]
    return Filters(
        error=given["error"],
        since_ms=None if since is None else moment_ms(since, time.time()),
        topic=given["topic"],
        partition=given["partition"],
        start=given["from_offset"] or 0,
        end=given["to_offset"],
        limit=given["limit"],
    )


def _pipelines(settings: Settings) -> Sequence[PipelineSettings]:
    """The pipelines that have a dead letter queue; at least one."""
    pipelines = [each for each in settings.pipelines if each.dead_letter_topic is not None]
    if not pipelines:
        raise ConfigurationError(
            "--config",
            'has no pipeline with errors.tolerance = "all" and a dead letter queue',
        )
    return pipelines


def _chosen(pipelines: Sequence[PipelineSettings], name: str | None, why: str) -> PipelineSettings:
    """The pipeline of this name, or the only one; `why` says why a name is needed."""
    if name is None and len(pipelines) > 1:
        names = ", ".join(each.name for each in pipelines)
        raise ConfigurationError("--pipeline", f"is missing{why}; name one of: {names}")
    return pipelines[0] if name is None else named(pipelines, name, "the pipelines with a dead letter queue are")


@click.group("dlq")
def command() -> None:
    """Show the records of a dead letter queue, and replay them.

    \b
    Examples:
      wideload dlq list -c wideload.toml --since 2h
      wideload dlq replay -c wideload.toml --error PayloadNotFoundError
      wideload dlq replay -c wideload.toml --error PayloadNotFoundError --yes
    """


# --- list -------------------------------------------------------------------------------------------------------------


async def _list(
    client: ClientSettings,
    dead_letters: str,
    readers: SharedReaders,
    filters: Filters,
    owner: Owner | None,
    printer: LetterPrinter,
) -> None:
    topic = await find_topic(client, dead_letters)

    async def show(found: FoundLetter) -> bool:
        summary = await asyncio.to_thread(readers.summarize, found)
        context = {} if summary.letter is None else summary.letter.context
        if filters.match(found, summary) and (owner is None or owner.owns(context)):
            printer.show(found, summary)
        return filters.limit is None or printer.shown < filters.limit

    async with open_log(client, topic) as log:
        for partition, (first, end) in (await log.ranges(filters)).items():
            async for records in log.records(partition, max(first, filters.start), end):
                for record in records:
                    for found in readers.add(record):
                        if not await show(found):
                            return
            for found in readers.incomplete():
                if not await show(found):
                    return


@command.command("list")
@_filter_options
def list_(config: str, pipeline: str | None, *, as_json: bool, **given: Any) -> int:
    """Show dead-letter records: a table on a terminal, JSON lines elsewhere.

    With --pipeline only the dead-letter records of that pipeline are shown. Without it, those of all pipelines are
    shown, which must share one dead letter queue. Each has the timestamp of the record that failed. Exits with 1 if a
    dead-letter record cannot be read, for instance because a payload is missing, or a batch is too large or malformed.

    \b
    Examples:
      wideload dlq list -c wideload.toml
      wideload dlq list -c wideload.toml --pipeline orders-inflate --error PayloadNotFoundError --since 2h
      wideload dlq list -c wideload.toml --json | jq -r .error | sort | uniq -c
    """
    filters = _filters(given)
    rows = sys.stdout.isatty() and not as_json
    settings = load(config)
    pipelines = _pipelines(settings)
    chosen, _ = _whose(pipelines, pipeline)
    dead_letters = str(chosen.dead_letter_topic)
    owner = None if pipeline is None else Owner.of(chosen, pipelines)
    with ExitStack() as stack:
        readers = {
            each.name: letter_reader(opened_store(each, stack) if each.store else None, each, dead_letters)
            for each in pipelines
            if each.dead_letter_topic == dead_letters
        }
        printer = LetterPrinter(as_json=not rows)
        asyncio.run(_list(settings.client, dead_letters, SharedReaders(readers), filters, owner, printer))
    if rows:
        records = "1 dead-letter record" if printer.shown == 1 else f"{printer.shown:,} dead-letter records"
        click.echo(f"{records} in {dead_letters}")
    return 1 if printer.unreadable else 0


# --- replay -----------------------------------------------------------------------------------------------------------


def _group(pipeline: PipelineSettings, given: str | None, client: ClientSettings) -> str:
    group = given or f"{pipeline.group_id}-dlq-replay"
    derived = "" if given else "group.id of the pipeline, and -dlq-replay"
    check_name("group-id", group, "--group", enabled=client.limit_names, derived=derived)
    return group


def _report(pipeline: PipelineSettings, tally: Tally, group: str, *, yes: bool, as_json: bool) -> None:
    if as_json:
        summary = {
            "pipeline": pipeline.name,
            "dry_run": not yes,
            "replayed" if yes else "would_replay": tally.replayed,
            "targets": [
                {"topic": topic, "partition": partition, "records": count}
                for (topic, partition), count in sorted(tally.targets.items())
            ],
            "errors": dict(sorted(tally.errors.items())),
            "skipped": dict(sorted(tally.skipped.items())),
            "failed": tally.failures,
            "failures": [
                {"partition": each.partition, "offset": each.offset, "reason": each.reason} for each in tally.failed
            ],
            "group": group,
        }
        click.echo(json.dumps(summary))
        return
    for (topic, partition), count in sorted(tally.targets.items()):
        click.echo(f"  to {topic}, partition {partition}: {count:,}")
    for name, count in tally.errors.most_common():
        click.echo(f"  failed with {printable(name, 500)}: {count:,}")
    for reason, count in tally.skipped.most_common():
        click.echo(f"  skipped, {printable(reason, 500)}: {count:,}")
    for each in tally.failed:
        click.echo(
            f"  cannot be replayed: partition {each.partition}, offset {each.offset}: {printable(each.reason, 500)}"
        )
    if tally.failures > len(tally.failed):
        click.echo(f"  and {tally.failures - len(tally.failed):,} others")
    records = "1 record" if tally.replayed == 1 else f"{tally.replayed:,} records"
    if yes:
        click.echo(f"replayed {records} of {pipeline.dead_letter_topic}; tracked by group {group}")
    else:
        click.echo(f"would replay {records} of {pipeline.dead_letter_topic}; nothing was written, --yes writes them")


@command.command("replay")
@_filter_options
@click.option(
    "--to", metavar="TOPIC", help="Write all records to this topic instead of those that they were read from."
)
@click.option("--yes", is_flag=True, help="Write the records. Without it, the command only reports what it would do.")
@click.option("-g", "--group", help="The consumer group that tracks replayed records. Default: <group.id>-dlq-replay.")
@click.option(
    "--max-replays",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Skip records that failed again after this many replays.",
)
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Mark unreadable dead-letter records as replayed. Each is reported once and remains in the topic.",
)
@click.option(
    GUARANTEE,
    "guarantee",
    type=click.Choice(["exactly_once", "at_least_once"]),
    default="exactly_once",
    show_default=True,
    help="exactly_once writes records and offsets in transactions, for which the user needs permission.",
)
def replay(
    config: str,
    pipeline: str | None,
    *,
    as_json: bool,
    to: str | None,
    yes: bool,
    group: str | None,
    max_replays: int,
    skip_unreadable: bool,
    guarantee: str,
    **given: Any,
) -> int:
    """Write records back to the topics and partitions that they were read from; a dry run without --yes.

    Each record has the key, value, headers and timestamp with which it failed, and a first header wideload.replays with
    the number of its replays. Records are written in one transaction with the offsets of their dead-letter records, so
    the next run repeats nothing, even if this one is killed. If two runs overlap, the one that started last continues,
    and the other ends. Dead-letter records that a filter excludes can be replayed later.

    With --pipeline only dead-letter records of that pipeline are replayed. Without it, those of all pipelines that
    share the dead letter queue are replayed, one pipeline after another, each with its own store and group. Exits with
    1 if a record cannot be replayed, or if all are skipped and none was replayed before.

    \b
    Examples:
      wideload dlq replay -c wideload.toml
      wideload dlq replay -c wideload.toml --error PayloadNotFoundError --yes
      wideload dlq replay -c wideload.toml --partition 0 --from-offset 17 --to-offset 17 --to orders-repaired --yes
    """
    filters = _filters(given)
    settings = load(config)
    pipelines = _pipelines(settings)
    chosen, shares = _whose(pipelines, pipeline)
    if len(shares) > 1 and group is not None:
        raise ConfigurationError(
            "--group", "applies to one pipeline, but several share the dead letter queue; add --pipeline"
        )
    if len(shares) > 1 and given["limit"] is not None:
        raise ConfigurationError(
            "--limit", "applies to one pipeline, but several share the dead letter queue; add --pipeline"
        )
    owners: Sequence[Owner | None] = [None if pipeline is None else Owner.of(chosen, pipelines)]
    if len(shares) > 1:
        owners = [*Owner.one_after_another(shares)]
    as_json = as_json or not sys.stdout.isatty()
    failed = False
    for each, owner in zip(shares, owners, strict=True):
        name = _group(each, group, settings.client)
        tally = _replay(
            settings.client, each, name, filters, owner, to, max_replays, guarantee, yes=yes, skip=skip_unreadable
        )
        if len(shares) > 1 and not as_json:
            click.echo(f"pipeline {each.name}:")
        _report(each, tally, name, yes=yes, as_json=as_json)
        if tally.passed_over:
            _report_passed_over(tally, yes=yes)
        failed = failed or tally.failures > 0 or tally.in_vain
    return 1 if failed else 0


def _whose(
    pipelines: Sequence[PipelineSettings], name: str | None
) -> tuple[PipelineSettings, Sequence[PipelineSettings]]:
    """The pipeline whose dead letter queue is read, and those whose dead-letter records are."""
    if name is None and len({each.dead_letter_topic for each in pipelines}) == 1:
        return pipelines[0], pipelines
    chosen = _chosen(pipelines, name, ", but the dead letter queues differ")
    return chosen, [chosen]


def _report_passed_over(tally: Tally, *, yes: bool) -> None:
    records = "the only record was" if tally.passed_over == 1 else f"all {tally.passed_over:,} records were"
    reasons = "; ".join(printable(reason, 500) for reason in tally.skipped)
    click.echo(f"wideload: nothing {'was' if yes else 'would be'} replayed: {records} skipped: {reasons}", err=True)


async def _writers(client: ClientSettings, pipeline: PipelineSettings, log: LetterLog, guarantee: str) -> OpenWriter:
    timeout_ms = pipeline.guarantee.timeout_ms if guarantee == "exactly_once" else None
    if timeout_ms is not None:
        await check_exactly_once(client, log, timeout_ms)
    return partial(open_writer, client, log, timeout_ms)


def _replay(
    client: ClientSettings,
    pipeline: PipelineSettings,
    group: str,
    filters: Filters,
    owner: Owner | None,
    to: str | None,
    max_replays: int,
    guarantee: str,
    *,
    yes: bool,
    skip: bool,
) -> Tally:
    """One replay of one pipeline's dead-letter records."""
    with ExitStack() as stack:
        store = opened_store(pipeline, stack) if pipeline.store else None
        advance = stack.enter_context(progress(f"from {pipeline.dead_letter_topic}", filters.limit, unit="messages"))

        async def run() -> Tally:
            assert pipeline.dead_letter_topic is not None
            topic = await find_topic(client, pipeline.dead_letter_topic)
            async with open_log(client, topic, group) as log:
                work = Replay(
                    client,
                    pipeline,
                    log,
                    store,
                    filters,
                    to=to,
                    max_replays=max_replays,
                    done=advance,
                    owner=owner,
                    skip_unreadable=skip,
                    warn=lambda text: click.echo(f"wideload: {text}", err=True),
                )
                try:
                    await work.run(await _writers(client, pipeline, log, guarantee) if yes else None)
                except BaseException:
                    if yes and work.tally.replayed:
                        click.echo(f"wideload: {work.tally.replayed:,} records were replayed before this", err=True)
                    raise
                return work.tally

        return asyncio.run(run())
