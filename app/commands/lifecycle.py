"""`wideload store lifecycle`: how long payloads stay, how long they should, and Wideload's own expiry rules."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterator, Sequence

import click

from app.cluster.expiry import TopicExpiry, carriers, references, survey, with_carriers
from app.commands.connection import config_option
from app.commands.console import print_table
from app.commands.consume import json_line
from app.config.parsing import load
from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import Topic, topics
from stores.store import ExpiryRule
from transforms.errors import ConfigurationError, of_pipeline
from transforms.retention import duration_text
from transforms.text import printable

__all__ = ["command"]


async def _topics(client: ClientSettings, names: Sequence[str]) -> dict[str, Topic]:
    async with admin(client) as connection:
        return await topics(connection, names)


def _line(row: TopicExpiry) -> dict[str, object]:
    retention = row.retention
    return {
        "pipeline": row.pipeline,
        "transform": row.transform,
        "topic": row.topic,
        "retention_ms": None if retention is None else retention.retention_ms,
        "cleanup_policy": None if retention is None else retention.cleanup_policy,
        "payloads": row.payloads,
        "rules": [dataclasses.asdict(rule) for rule in row.rules],
        "recommended_days": None if retention is None else retention.recommended_days,
        "verdict": row.state,
        "message": row.message,
        "changed": row.changed,
        "notes": list(row.notes),
    }


def _rule(rule: ExpiryRule) -> str:
    age = f"from {rule.date}" if rule.days is None else f"{rule.days} d"
    return f"{age}: our own" if rule.own else f"{age}: {rule.id}{'' if rule.whole else ', ' + rule.scope}"


def _cells(row: TopicExpiry) -> Iterator[str]:
    retention = row.retention
    yield row.pipeline
    yield row.topic
    yield "-" if retention is None else f"{retention.retention_ms} ({duration_text(retention.retention_ms)})"
    yield "-" if retention is None else retention.cleanup_policy
    yield row.payloads
    yield "\n".join(_rule(rule) for rule in row.rules) or ("none" if row.state in ("missing", "no-ttl") else "-")
    yield "-" if retention is None or retention.recommended_days is None else f"{retention.recommended_days} d"
    yield row.state


def _show(rows: Sequence[TopicExpiry]) -> None:
    titles = ("pipeline", "topic", "retention.ms", "cleanup.policy", "payloads", "rules", "recommended", "verdict")
    print_table(titles, (map(_printable, _cells(row)) for row in rows))
    told: dict[str, list[str]] = {}
    for row in rows:
        changed = [] if row.changed is None else [row.changed]
        for sentence in (*changed, row.message, *(f"note: {note}" for note in row.notes)):
            told.setdefault(sentence, []).append(row.pipeline)
    for sentence, pipelines in told.items():
        click.echo(f"{', '.join(dict.fromkeys(pipelines))}: {_printable(sentence)}")


def _printable(text: str) -> str:
    """The text without control characters: the ID of a rule may have some."""
    return "\n".join(printable(line, 2_000) for line in text.split("\n"))


@click.group("store")
def command() -> None:
    """Look after the store of the payloads.

    \b
    Example:
      wideload store lifecycle -c wideload.toml
    """


@command.command("lifecycle")
@config_option
@click.option("--apply", is_flag=True, help="Set our own rules; all other rules of the bucket stay as they are.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, one a topic.")
def lifecycle(config: str, *, apply: bool, as_json: bool) -> int:
    """Show how long topics keep records, how long the store keeps payloads, and how long it should.

    It should keep them for retention.ms and 15 %, in whole days. The status is 1 if payloads expire too early, or
    never, or though their records stay for ever, or if the store or the topic could not be read. See docs/lifecycle.md.

    \b
    Examples:
      wideload store lifecycle -c wideload.toml
      wideload store lifecycle -c wideload.toml --apply
      wideload store lifecycle -c wideload.toml --json | jq 'select(.verdict != "ok")'
    """
    settings = load(config)
    referring = {name for pipeline in settings.pipelines for _, name in references(pipeline)}
    names = {name for topic in referring for name in (topic, *carriers(topic, settings.pipelines))}
    try:
        found = asyncio.run(_topics(settings.client, sorted(names)))
    except ClusterError as exc:
        raise ConfigurationError("bootstrap.servers", str(exc)) from exc
    rows: list[TopicExpiry] = []
    for pipeline in settings.pipelines:
        with of_pipeline(pipeline.name):
            rows += (with_carriers(row, settings.pipelines, found) for row in survey(pipeline, found, apply=apply))
    if as_json:
        for row in rows:
            sys.stdout.write(json_line(_line(row)))
    else:
        _show(rows)
    return 1 if any(row.wrong for row in rows) else 0
