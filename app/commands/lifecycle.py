"""`wideload store lifecycle`: how long payloads stay, how long they should, and Wideload's own expiry rules."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import click

from app.cluster.expiry import (
    TopicExpiry,
    references,
    referencing_topics,
    survey,
    survey_topics,
    with_referencing_topics,
)
from app.commands.client_store import client_store_options, connection_of, given_keys, store_of
from app.commands.connection import client_of, connection_options, pipeline_of
from app.commands.console import print_table
from app.commands.consume import json_line
from app.config.parsing import load
from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import Topic, topics
from stores.registry import STORE_CLASS
from stores.store import ExpiryRule, check_topic
from transforms.errors import ConfigurationError, of_pipeline, shown
from transforms.retention import FOREVER, duration_text
from transforms.text import printable

_SEGMENT_MS = 604_800_000  # Kafka's default
_VARIABLE = "WIDELOAD_CONFIG"


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
    return f"{age}: Wideload" if rule.own else f"{age}: {rule.id}{'' if rule.whole else ', ' + rule.scope}"


def _cells(row: TopicExpiry) -> Iterator[str]:
    retention = row.retention
    yield row.pipeline or "-"
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
    sentences: dict[str, list[str]] = {}
    for row in rows:
        changed = [] if row.changed is None else [row.changed]
        for sentence in (*changed, row.message, *(f"note: {note}" for note in row.notes)):
            sentences.setdefault(sentence, []).append(row.pipeline or f"topic {row.topic}")
    for sentence, concerned in sentences.items():
        click.echo(f"{', '.join(dict.fromkeys(concerned))}: {_printable(sentence)}")


def _printable(text: str) -> str:
    """The text without control characters: the ID of a rule may have some."""
    return "\n".join(printable(line, 2_000) for line in text.split("\n"))


@dataclass(frozen=True, slots=True)
class _Known:
    """How long topics keep records, according to the options; None for options that are not set."""

    retention_ms: int | None
    segment_ms: int | None
    cleanup_policy: str | None

    def topics(self, names: Sequence[str]) -> Mapping[str, Topic] | None:
        """The topics; None if brokers are to be asked.

        Raises:
            ConfigurationError: an option is missing, or the policy is wrong.
        """
        policy = self.cleanup_policy
        if policy is not None and not {each.strip() for each in policy.split(",")} <= {"delete", "compact"}:
            raise ConfigurationError(
                "--cleanup-policy", f"found {shown(policy)}, allowed are delete, compact, and compact,delete"
            )
        retention_ms = self.retention_ms
        if retention_ms is None and policy is not None and "delete" not in policy:
            retention_ms = FOREVER  # it has no effect there
        if retention_ms is None:
            for option, value in (("--segment-ms", self.segment_ms), ("--cleanup-policy", policy)):
                if value is not None:
                    raise ConfigurationError(option, "requires --retention-ms; without both, brokers are asked")
            return None
        segment_ms = _SEGMENT_MS if self.segment_ms is None else self.segment_ms
        return {
            name: Topic(name, 1, 0, policy or "delete", retention_ms=retention_ms, segment_ms=segment_ms)
            for name in names
        }


@click.group("store")
def command() -> None:
    """Show and set the expiry rules of the payload store.

    \b
    Example:
      wideload store lifecycle -c wideload.toml
      wideload store lifecycle --topic orders --store-config producer.properties
    """


@command.command("lifecycle")
@connection_options
@client_store_options
@click.option("--topic", "names", multiple=True, metavar="NAME", help="A topic that clients write; may be repeated.")
@click.option(
    "--retention-ms",
    type=click.IntRange(FOREVER),
    help=f"Their retention.ms, {FOREVER} for unlimited. With it, brokers are not asked.",
)
@click.option("--segment-ms", type=click.IntRange(1), help=f"Their segment.ms. [default: {_SEGMENT_MS}]")
@click.option("--cleanup-policy", metavar="POLICY", help="Their cleanup.policy. [default: delete]")
@click.option("--apply", is_flag=True, help="Set Wideload's own rules. All other rules stay unchanged.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, one per topic.")
def lifecycle(
    bootstrap_servers: str | None,
    config: str | None,
    extra: tuple[str, ...],
    store_file: str | None,
    store_pairs: tuple[str, ...],
    names: tuple[str, ...],
    retention_ms: int | None,
    segment_ms: int | None,
    cleanup_policy: str | None,
    *,
    apply: bool,
    as_json: bool,
) -> int:
    """Show how long topics keep records, how long the store keeps payloads, and how long it should.

    The recommended time is the longer of retention.ms + 15 %, and retention.ms + segment.ms + 1 day, rounded up to
    whole days. Exits with 1 if payloads expire before their records, never expire, or expire although the topic keeps
    records forever; or if the store or the topic could not be read. See docs/lifecycle.md.

    Without --topic, the topics are those of the pipelines of -c. With --topic, which is for clients without a worker,
    the payloads are in the store of --store and --store-config, or else in that of -c.

    \b
    Examples:
      wideload store lifecycle -c wideload.toml
      wideload store lifecycle -c wideload.toml --apply
      wideload store lifecycle -c wideload.toml --json | jq 'select(.verdict != "ok")'
      wideload store lifecycle --topic orders --store-config producer.properties -b localhost:9092
      wideload store lifecycle --topic orders --retention-ms 604800000 \\
          -s large.message.payload.store.class=s3 -s s3.bucket=payloads
    """
    if names:
        known = _Known(retention_ms, segment_ms, cleanup_policy)
        rows = _of_clients(
            names, known, given_keys(store_file, store_pairs), bootstrap_servers, config, extra, apply=apply
        )
    else:
        _refuse_without_topic(
            {
                "--store-config": store_file,
                "--store": store_pairs,
                "--retention-ms": retention_ms,
                "--segment-ms": segment_ms,
                "--cleanup-policy": cleanup_policy,
            }
        )
        rows = _of_pipelines(bootstrap_servers, config or os.environ.get(_VARIABLE), extra, apply=apply)
    if as_json:
        for row in rows:
            sys.stdout.write(json_line(_line(row)))
    else:
        _show(rows)
    return 1 if any(row.wrong for row in rows) else 0


def _refuse_without_topic(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value is not None and value != ():
            raise ConfigurationError(option, "is for topics of clients; name one with --topic")


def _of_pipelines(
    bootstrap_servers: str | None, config: str | None, extra: Sequence[str], *, apply: bool
) -> list[TopicExpiry]:
    if config is None:
        raise ConfigurationError(
            "--config", f"is missing; pass it, or set ${_VARIABLE}; for clients without a worker, pass --topic"
        )
    settings = load(config)
    referring = {name for pipeline in settings.pipelines for _, name in references(pipeline)}
    names = {name for topic in referring for name in (topic, *referencing_topics(topic, settings.pipelines))}
    found = _found(client_of(bootstrap_servers, config, extra), names)
    rows: list[TopicExpiry] = []
    for pipeline in settings.pipelines:
        with of_pipeline(pipeline.name):
            rows += (
                with_referencing_topics(row, settings.pipelines, found) for row in survey(pipeline, found, apply=apply)
            )
    return rows


def _of_clients(
    names: Sequence[str],
    known: _Known,
    given: Mapping[str, object],
    bootstrap_servers: str | None,
    config: str | None,
    extra: Sequence[str],
    *,
    apply: bool,
) -> list[TopicExpiry]:
    for name in names:
        check_topic(name)
    store = (
        pipeline_of(load(config), None).store if config is not None and STORE_CLASS not in given else store_of(given)
    )
    found = known.topics(names)
    if found is None:
        found = _found(client_of(bootstrap_servers, config, extra, given=connection_of(given)), names)
    return survey_topics(store, dict.fromkeys(names), found, apply=apply)


def _found(client: ClientSettings, names: Iterable[str]) -> Mapping[str, Topic]:
    try:
        return asyncio.run(_topics(client, sorted(set(names))))
    except ClusterError as exc:
        raise ConfigurationError("bootstrap.servers", str(exc)) from exc
