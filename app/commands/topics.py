"""`wideload topics`: creates the topics that a configuration names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence

import click

from app.cluster.topic_creation import create_topic, until_known
from app.cluster.wanted_topics import BROKERS_DEFAULT, Wanted, wanted_topics
from app.commands.connection import config_option
from app.commands.console import print_table
from app.config.findings import Findings
from app.config.parsing import load
from app.config.settings import ClientSettings, Settings
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import MAX_MESSAGE_BYTES, topics
from stores.keys import Key
from transforms.errors import ConfigurationError

_LARGEST = Key("--max-message-bytes", "bytes", "", minimum=1, maximum=2_147_483_647)
_TITLES = ("topic", "used as", "state", "partitions", MAX_MESSAGE_BYTES, "other properties")


@click.group("topics")
def command() -> None:
    """Create the topics of a configuration.

    \b
    Example:
      wideload topics create -c wideload.toml --dry-run
    """


@command.command("create")
@config_option
@click.option("--yes", is_flag=True, help="Create the topics without asking for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show which topics would be created.")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="The partitions of source topics that no pipeline writes. Default: those of the output topic, or "
    "of the brokers.",
)
@click.option(
    "--max-message-bytes",
    "largest",
    metavar="SIZE",
    help="max.message.bytes for topics that carry full values, for example 32MiB. Default: the largest value the "
    "pipelines accept, at most 104 MB.",
)
def create(config: str, *, yes: bool, dry_run: bool, partitions: int | None, largest: str | None) -> int:
    """Create the topics that a configuration names: source and output topics, dead letter queues, control.topic.

    The command shows all topics in a table, and asks for confirmation. Existing topics are not changed. Output topics
    and dead letter queues get as many partitions as the source topic, so that records keep their partitions.
    max.message.bytes is raised for topics that carry full values. Everything else is the brokers' default. Exits with
    1 if the answer is no.

    \b
    Examples:
      wideload topics create -c wideload.toml
      wideload topics create -c wideload.toml --partitions 6 --max-message-bytes 32MiB --yes
    """
    settings = load(config)
    largest_bytes = None if largest is None else _LARGEST.check(_LARGEST.coerce(largest))
    assert largest_bytes is None or isinstance(largest_bytes, int)
    try:
        found = asyncio.run(_wanted(settings, partitions, largest_bytes))
        print_table(_TITLES, map(_cells, found), right=("partitions", MAX_MESSAGE_BYTES))
        missing = [each for each in found if each.found is None]
        if not missing:
            click.echo("all topics exist; run wideload check to verify them")
            return 0
        count = "1 topic" if len(missing) == 1 else f"{len(missing)} topics"
        if dry_run:
            click.echo(f"would create {count}; nothing was created")
            return 0
        if not (yes or _agreed(count)):
            click.echo("nothing was created")
            return 1
        asyncio.run(_create(settings.client, missing))
    except ClusterError as exc:
        raise ConfigurationError("bootstrap.servers", str(exc)) from exc
    return 0


def _agreed(count: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "--yes", "is missing, and there is no terminal for the confirmation; add it, or --dry-run"
        )
    try:
        return click.confirm(f"create {count}?")
    except click.Abort as exc:
        click.echo()  # what was typed has left the cursor in the line of the question
        if isinstance(exc.__context__, EOFError):
            return False
        click.echo("nothing was created")
        raise


async def _wanted(settings: Settings, partitions: int | None, largest_bytes: int | None) -> list[Wanted]:
    control = settings.control_topic
    names = [each.name for each in wanted_topics(settings.pipelines, {}, control_topic=control)]
    async with admin(settings.client) as connection:
        found = await topics(connection, names)
    return wanted_topics(
        settings.pipelines, found, partitions=partitions, largest_bytes=largest_bytes, control_topic=control
    )


async def _create(client: ClientSettings, missing: Sequence[Wanted]) -> None:
    """Creates what is missing; a topic that the brokers refuse does not keep the others back."""
    findings = Findings()
    made = []
    async with admin(client) as connection:
        for each in missing:
            with findings.noted():
                if await create_topic(connection, each.key, each.name, each.partitions, each.replicas, each.configs):
                    made.append(each.name)
                    click.echo(f"created topic {each.name}")
                else:
                    click.echo(f"topic {each.name} exists; it was created in the meantime")
        await until_known(connection, made)
    findings.check()


def _cells(each: Wanted) -> Iterator[str]:
    yield each.name
    yield "\n".join(each.uses)
    if each.found is not None:
        yield from ("exists", str(each.found.partitions), f"{each.found.max_message_bytes:,}", "")
        return
    limit = each.configs.get(MAX_MESSAGE_BYTES)
    yield "missing"
    yield "default" if each.partitions == BROKERS_DEFAULT else str(each.partitions)
    yield "default" if limit is None else f"{int(limit):,}"
    others = {name: value for name, value in each.configs.items() if name != MAX_MESSAGE_BYTES}
    if each.replicas != BROKERS_DEFAULT:
        others["replication.factor"] = str(each.replicas)
    yield "\n".join(f"{name}={value}" for name, value in others.items())
