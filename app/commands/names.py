"""`wideload names`: finds names that are longer than the limits of Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast, get_args

import click

from app.cluster import names_audit as cluster
from app.cluster.name_uses import Audit, Use
from app.commands.connection import client_of, connection_options
from app.commands.console import print_table, progress
from transforms.identifiers import FIRST_VERSION, IDENTIFIERS, LIMIT_KEY, Identifier, Kind
from transforms.text import brief

_SHOWN_CHARACTERS = 48
_SHOWN_ROWS = 50


@click.group("names")
def command() -> None:
    """Check names against the limits that Kafka 5.0 enforces.

    \b
    Examples:
      wideload names audit -b localhost:9092
      wideload names check group-id my-group
    """


@command.command("audit")
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with full names.")
@click.option("--strict", is_flag=True, help="Also exit with 1 if something that the brokers have could not be read.")
def audit(
    bootstrap_servers: str | None, config: str | None, extra: tuple[str, ...], *, as_json: bool, strict: bool
) -> int:
    """Show the names of a live cluster that are over a limit, and the longest of each kind.

    It reads topics, groups with their members, transactional ids, ACLs, SCRAM users, configs, quotas and offset commit
    metadata, and changes nothing. It also lists what it could not read, because a permission is missing or these
    brokers do not support it. Exits with 1 if a name is over its limit. See docs/limits.md.

    \b
    Examples:
      wideload names audit -b localhost:9092
      wideload names audit -c wideload.toml --json | jq -r '.over[] | [.kind, .name] | @tsv'
    """
    client = client_of(bootstrap_servers, config, extra)
    with progress("reading the cluster", None, unit=None):
        found = asyncio.run(cluster.audit(client))
    if as_json:
        click.echo(json.dumps(_document(found), indent=2))
    else:
        _show(found)
    return 1 if found.over or (strict and any(missed.failed for missed in found.not_read)) else 0


@command.command("check")
@click.argument("kind", type=click.Choice(get_args(Kind)), metavar="KIND")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def check_one(kind: str, name: str, *, as_json: bool) -> int:
    """Check whether NAME is within the limit of its KIND, without a cluster.

    KIND is topic, group-id, member-id, group-instance-id, client-id, transactional-id, offset-metadata, rack-id,
    resource-name, acl-principal or acl-host. Exits with 1 if NAME is over the limit.

    \b
    Example:
      wideload names check client-id "$(hostname)-orders"
    """
    row = IDENTIFIERS[cast("Kind", kind)]
    length = row.length(name)
    refused = length > row.limit
    if as_json:
        line = {"kind": kind, "length": length, "limit": row.limit, "unit": row.unit, "over": refused}
        click.echo(json.dumps({**line, "error": str(row.error) if refused else None}))
    elif refused:
        click.echo(f"{row.name}: {length:,} {row.unit}, the limit is {row.limit:,}; {_answers(row)}")
    else:
        click.echo(f"{row.name}: {length:,} {row.unit}, within the limit of {row.limit:,}")
    return 1 if refused else 0


def _answers(row: Identifier) -> str:
    new, old = row.answer(new_client=True), row.answer(new_client=False)
    answer = str(new) if new == old else f"{new}, and {old} to older clients"
    if row.enforced:
        return f"brokers answer {answer}"
    return f"brokers answer {answer}, from Kafka {FIRST_VERSION}.0 on or with {LIMIT_KEY}=true"


def _use(use: Use) -> dict[str, Any]:
    return {
        "kind": use.kind,
        "name": use.text,
        "length": use.length,
        "limit": use.limit,
        "unit": IDENTIFIERS[use.kind].unit,
        "over": use.over,
        "where": use.where,
        "count": use.count,
    }


def _document(found: Audit) -> dict[str, Any]:
    return {
        "enforced": found.enforced,
        "over": [{**_use(use), "error": str(IDENTIFIERS[use.kind].error)} for use in found.over],
        "longest": [{"names": len(uses), **_use(uses[0])} for kind in IDENTIFIERS if (uses := found.of(kind))],
        "not_read": [
            {"what": missed.what, "reason": missed.reason, "failed": missed.failed} for missed in found.not_read
        ],
    }


def _show(found: Audit) -> None:
    over = found.over
    if over:
        _table("over the limit", ("kind", "name", "length", "limit", "where"), map(_cells, over[:_SHOWN_ROWS]))
        if len(over) > _SHOWN_ROWS:
            click.echo(f"… and {len(over) - _SHOWN_ROWS:,} more; --json lists all")
    _table("the longest of each kind", ("kind", "names", "name", "length", "limit", "where"), _longest(found))
    for missed in found.not_read:
        click.echo(f"not read: {brief(missed.what, 200)}: {brief(missed.reason, 500)}")
    click.echo(_enforcement(found))
    names = "1 name" if len(found.uses) == 1 else f"{len(found.uses):,} names"
    click.echo(f"{names} read, {len(over):,} over a limit" if over else f"{names} read, none over a limit")


def _enforcement(found: Audit) -> str:
    if found.enforced is None:
        return f"it is not known whether the brokers enforce the limits ({LIMIT_KEY})"
    if found.enforced:
        return f"the brokers enforce the limits: {LIMIT_KEY} is true"
    return f"the brokers do not enforce the limits: {LIMIT_KEY} is false, or this version does not know it"


def _cells(use: Use) -> tuple[str, ...]:
    where = use.where if use.count == 1 else f"{use.where}, and {use.count - 1:,} more"
    limit = "-" if use.limit is None else f"{use.limit:,}"
    unit = " bytes" if IDENTIFIERS[use.kind].unit == "bytes" else ""
    return use.kind, brief(use.text, _SHOWN_CHARACTERS), f"{use.length:,}{unit}", limit, where


def _longest(found: Audit) -> Iterator[tuple[str, ...]]:
    for kind in IDENTIFIERS:
        uses = found.of(kind)
        if uses:
            cells = _cells(uses[0])
            yield cells[0], f"{len(uses):,}", *cells[1:]
        else:
            yield kind, "0", "-", "-", "-", "-"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    click.echo(f"{title}:")
    shown = ([brief(cell, 200) for cell in row] for row in rows)
    print_table(columns, shown, right=("names", "length", "limit"))
