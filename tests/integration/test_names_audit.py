"""`wideload names audit` on a real broker with the standard authorizer, and names that it takes today."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.cluster.enforced_limits import CommitLimits, commit_limits
from app.cluster.name_uses import Audit, Use
from app.cluster.names_audit import audit
from app.cluster.preflight import plan_pipeline
from app.config.parsing import parse
from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.local.broker import EmbeddedBroker
from tests.forks import run
from tests.integration.names import Names, properties
from transforms.errors import WideloadError
from transforms.identifiers import Kind

LIMITED = "limited"
DESCRIBER = "describer"
PASSWORD = "of-a-test"
LOGIN = (
    "-X", "security.protocol=SASL_PLAINTEXT", "-X", f"sasl.username={LIMITED}", "-X", f"sasl.password={PASSWORD}",
)  # fmt: skip
FITS, OVER = 249, 250
MANY = 230  # groups, of which a request asks for a hundred


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedBroker]:
    """A broker that knows users and what they may do."""
    try:
        broker = EmbeddedBroker(
            properties({LIMITED: PASSWORD, DESCRIBER: PASSWORD}),
            protocols=["SASL_PLAINTEXT"],
        )
        broker.start()
    except WideloadError as exc:
        pytest.fail(f"no broker: {exc}", pytrace=False)
    with broker:
        yield broker


@pytest.fixture(scope="module")
def found(cluster: EmbeddedBroker) -> Audit:
    """What an audit finds where every kind has a name of 249 and one of 250 characters."""
    return asyncio.run(populate(cluster.bootstrap_servers))


def name(kind: str, length: int, letter: str = "x") -> str:
    """A name of this length that says what it is for."""
    return kind + letter * (length - len(kind))


async def populate(bootstrap: str) -> Audit:
    client = ClientSettings(bootstrap)
    async with admin(client) as connection:
        names = Names(bootstrap, connection)
        try:
            assert await names.topic("t") == 0
            assert await names.topic(name("topic", FITS)) == 0
            for length in (FITS, OVER):
                await populate_with(names, length)
            for text in ("ä" * FITS, "漢" * OVER, "😀" * 125, "e\x1b[31m\u202e" + "y" * OVER):
                await names.transactions(text)
            assert await names.commit("plain", "t", "m" * 4096) == 0
            assert await names.commit("umlauts", "t", "ä" * 2049) == 0
            # What the controller has taken comes to the brokers a moment later.
            deadline = time.monotonic() + 30
            wanted = {(kind, name(prefix, limit + 1)) for kind, prefix, limit in KINDS}
            while True:
                found = await audit(client)
                if wanted <= {(each.kind, each.text) for each in found.uses} or time.monotonic() > deadline:
                    return found
        finally:
            await names.close()


async def populate_with(names: Names, length: int) -> None:
    await names.classic_member(
        name("group", length),
        "t",
        client_id=name("client", length),
        group_instance_id=name("instance", length),
    )
    await names.rack_member(f"racked-{length}", "t", name("classic-rack", length))
    await names.transactions(name("transaction", length))
    await names.acl(principal=name("User:", length))
    await names.acl(host=name("host", length))
    await names.acl(resource=name("resource", length), type_number=3)
    await names.acl(resource=name("resource-user", length), type_number=7, operation=13)  # DescribeTokens
    await names.quota("client-id", name("quota-client", length))
    await names.quota("user", name("quota-user", length))
    await names.scram_user(name("scram", length - len("User:")))
    await names.group_config(name("config", length))
    member_id = name("member", 36 if length == FITS else 37)
    await names.consumer_member(f"new-{length}", member_id, name("new-instance", length), name("rack", length))
    await names.streams_member(
        f"streams-{length}", name("streamer", len(member_id)), None, name("streams-rack", length)
    )
    # Brokers refuse a member of a share group with a longer id, from Kafka 4.2 on.
    await names.share_member(f"share-{length}", name("sharer", 36), name("share-rack", length))


KINDS: list[tuple[Kind, str, int]] = [
    ("group-id", "group", FITS),
    ("client-id", "client", FITS),
    ("group-instance-id", "instance", FITS),
    ("transactional-id", "transaction", FITS),
    ("acl-principal", "User:", FITS),
    ("acl-principal", "User:scram", FITS),
    ("acl-host", "host", FITS),
    ("resource-name", "resource", FITS),
    ("resource-name", "resource-user", FITS),
    ("client-id", "quota-client", FITS),
    ("resource-name", "quota-user", FITS),
    ("resource-name", "config", FITS),
    ("group-instance-id", "new-instance", FITS),
    ("rack-id", "rack", FITS),
    ("rack-id", "share-rack", FITS),
    ("rack-id", "streams-rack", FITS),
    ("rack-id", "classic-rack", FITS),
    ("member-id", "member", 36),
    ("member-id", "streamer", 36),
]


def use(found: Audit, kind: Kind, text: str) -> Use:
    """What the audit says of a name."""
    (only,) = [each for each in found.uses if (each.kind, each.text) == (kind, text)]
    return only


@pytest.mark.parametrize(("kind", "prefix", "limit"), KINDS, ids=str)
def test_audit_finds_what_is_over(found: Audit, kind: Kind, prefix: str, limit: int) -> None:
    """Of names that the broker takes today, the audit finds the one that is a character too long, and only that."""
    fits, over = use(found, kind, name(prefix, limit)), use(found, kind, name(prefix, limit + 1))
    assert (fits.length, fits.over) == (limit, False)
    assert (over.length, over.limit, over.over) == (limit + 1, limit, True)
    assert over in found.over


def test_audit_topic(found: Audit, cluster: EmbeddedBroker) -> None:
    """A topic of 249 characters is within the limit; the broker itself refuses one of 250, with error 17."""
    assert use(found, "topic", name("topic", FITS)).over is False

    async def create() -> int:
        async with admin(ClientSettings(cluster.bootstrap_servers)) as connection:
            return await Names(cluster.bootstrap_servers, connection).topic(name("topic", OVER))

    assert asyncio.run(create()) == 17


def test_audit_counts_characters(found: Audit) -> None:
    """Letters of several bytes count as one each; those beyond U+FFFF as two, as brokers in Java count them."""
    lengths = {each.text[0]: (each.length, each.over) for each in found.of("transactional-id")}
    assert lengths["ä"] == (249, False)
    assert lengths["漢"] == (250, True)
    assert lengths["😀"] == (250, True)


def test_audit_metadata_in_bytes(found: Audit) -> None:
    """Metadata of commits is counted in bytes: 4,096 letters fit, 2,049 of two bytes do not."""
    assert use(found, "offset-metadata", "m" * 4096).over is False
    over = use(found, "offset-metadata", "ä" * 2049)
    assert (over.length, over.limit, over.over) == (4098, 4096, True)
    assert over.where == "group umlauts, t/0"


@pytest.mark.usefixtures("found")  # which makes the topic
def test_broker_refuses_metadata(cluster: EmbeddedBroker) -> None:
    """The broker of today refuses 4,097 letters, with error 12; it counts characters, where the document says bytes."""

    async def commit(metadata: str) -> int:
        async with admin(ClientSettings(cluster.bootstrap_servers)) as connection:
            return await Names(cluster.bootstrap_servers, connection).commit("refused", "t", metadata)

    assert asyncio.run(commit("m" * 4097)) == 12
    assert asyncio.run(commit("ä" * 4097)) == 12
    assert asyncio.run(commit("ä" * 4096)) == 0


def test_audit_member_ids_of_classic_groups(found: Audit) -> None:
    """Those are made by the broker, of the instance id and a UUID: they are shown, and held to no limit."""
    made = [each for each in found.of("member-id") if each.text.startswith("instance")]
    assert [each.length for each in made] == [OVER + 37, FITS + 37]
    assert not any(each.over for each in made)


def test_audit_says_what_it_did_not_read(found: Audit) -> None:
    """As the super user all is read but what no request tells, and what a broker would leave out for others."""
    assert [missed.what for missed in found.not_read] == [
        "transactional ids that this user may not describe",
        "client ids and rack ids of clients that are in no group",
    ]
    assert found.enforced is False


def logged_in(cluster: EmbeddedBroker, user: str) -> ClientSettings:
    """A client of a user who may do what ACLs let him."""
    client = ClientSettings(cluster.address("SASL_PLAINTEXT"))
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": user, "sasl.password": PASSWORD}
    return replace(client, security={**client.security, **login})


def test_audit_without_rights(found: Audit, cluster: EmbeddedBroker) -> None:
    """Who may see nothing is told of every part that is missing, with the right that would help; `--strict` fails."""
    seen = asyncio.run(audit(logged_in(cluster, LIMITED)))
    assert found.uses
    assert seen.uses == ()
    assert seen.enforced is None
    assert {missed.what: missed.reason.split("; ")[-1] for missed in seen.not_read} == {
        "the settings of the limits of broker 1": "grant DescribeConfigs on the cluster",
        "ACLs": "grant Describe on the cluster",
        "config resources of groups and client metrics": "grant DescribeConfigs on the cluster",
        "topics that this user may not describe, and their offset commit metadata": "grant Describe on all topics",
        "quotas": "grant DescribeConfigs on the cluster",
        "SCRAM users": "grant Describe on the cluster",
        "groups that this user may not describe": "grant Describe on the cluster",
        "transactional ids that this user may not describe": (
            "a super user sees all, and so does a user with Describe on all transactional ids"
        ),
        "client ids and rack ids of clients that are in no group": (
            "brokers have client ids in their request logs and metrics"
        ),
    }
    assert [missed.what for missed in seen.not_read if not missed.failed] == [
        "transactional ids that this user may not describe",
        "client ids and rack ids of clients that are in no group",
    ]
    command = ("names", "audit", "-b", cluster.address("SASL_PLAINTEXT"), *LOGIN)
    assert [wideload(*command, *more).returncode for more in ((), ("--strict",))] == [0, 1]


def test_audit_with_rights_on_the_cluster(found: Audit, cluster: EmbeddedBroker) -> None:
    """Who may describe the cluster, but no topic and no group, sees their names, and how many he sees no more of."""

    async def allow() -> Audit:
        async with admin(ClientSettings(cluster.bootstrap_servers)) as connection:
            names = Names(cluster.bootstrap_servers, connection)
            for operation in (8, 10):  # Describe, DescribeConfigs
                await names.acl(f"User:{DESCRIBER}", "*", "kafka-cluster", type_number=4, operation=operation)
        deadline = time.monotonic() + 30
        while True:
            seen = await audit(logged_in(cluster, DESCRIBER))
            if (seen.of("acl-host") and seen.enforced is not None) or time.monotonic() > deadline:
                return seen

    seen = asyncio.run(allow())
    groups = {each.text for each in found.of("group-id")}
    assert {each.text for each in seen.of("topic")} == {each.text for each in found.of("topic")}
    assert {each.text for each in seen.of("group-id")} >= groups
    assert seen.of("client-id") == tuple(each for each in found.of("client-id") if each.text.startswith("quota"))
    missed = {each.what: each.reason for each in seen.not_read}
    assert any(what.startswith("members of ") and "groups" in what for what in missed)
    assert missed[f"offset commit metadata of {len(seen.of('topic')):,} topics"].endswith(
        "grant Describe on all topics"
    )
    assert "groups that this user may not describe" not in missed
    assert "transactional ids that this user may not describe" in missed


def wideload(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return run([sys.executable, "-m", "app.cli", *arguments])


def test_command_json(found: Audit, cluster: EmbeddedBroker) -> None:
    """`--json` gives every name that is over whole, and what was not read; the status is 1."""
    done = wideload("names", "audit", "-b", cluster.bootstrap_servers, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    over = {each["kind"]: each for each in document["over"]}
    assert over["acl-principal"] == {
        "kind": "acl-principal",
        "name": name("User:", OVER),
        "length": OVER,
        "limit": FITS,
        "unit": "characters",
        "over": True,
        "where": "ACL of topic t",
        "count": 1,
        "error": "RESOURCE_IDENTIFIER_TOO_LARGE",
    }
    assert any(each["name"].startswith("e\x1b[31m\u202e") for each in document["over"])
    longest = {each["kind"]: (each["length"], each["over"]) for each in document["longest"]}
    assert longest["topic"] == (FITS, False)
    assert longest["offset-metadata"][1] is True
    assert document["not_read"]
    assert document["enforced"] is False
    assert found.over


def test_command_table(found: Audit, cluster: EmbeddedBroker) -> None:
    """The table shows what is over, and the longest of each kind; no name gets to the terminal as it is."""
    done = wideload("names", "audit", "-b", cluster.bootstrap_servers)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"[0-9]+ names read, [0-9]+ over a limit\n$", done.stdout)
    assert found.over
    assert r"e\x1b[31m\u202ey" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "not read: client ids and rack ids of clients that are in no group: " in done.stdout


def test_command_of_a_user_with_the_wrong_password(cluster: EmbeddedBroker, tmp_path: Path) -> None:
    """A login that fails is one line, without a traceback, and the password is not in it."""
    config = tmp_path / "secret"
    config.write_text("not-the-password")
    done = wideload(
        "names", "audit", "-b", cluster.address("SASL_PLAINTEXT"), "-X", "security.protocol=SASL_PLAINTEXT",
        "-X", f"sasl.username={LIMITED}", "-X", f"sasl.password=${{file:{config}}}",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("wideload: bootstrap.servers: no broker answers")
    assert "not-the-password" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_command_that_tells_all_does_not_tell_the_password(cluster: EmbeddedBroker) -> None:
    """With --debug the clients log each of their requests, but for those that log in."""
    done = wideload("names", "audit", "-b", cluster.address("SASL_PLAINTEXT"), *LOGIN, "--debug")
    assert "SaslHandShakeRequest" in done.stderr
    assert PASSWORD not in done.stderr


def test_audit_of_a_cluster_without_authorizer() -> None:
    """There nothing is left out: only ACLs, which do not count there, and what no request tells. Status 0.

    A broker that allows more metadata is held to what it allows.
    """
    own = {"offset.metadata.max.bytes": "5000", "offsets.retention.minutes": "4320", "broker.rack": "r" * FITS}
    with EmbeddedBroker(own) as broker:

        async def fill() -> Audit:
            client = ClientSettings(broker.bootstrap_servers)
            async with admin(client) as connection:
                names = Names(broker.bootstrap_servers, connection)
                assert await names.topic("t") == 0
                await names.transactions("makes-the-coordinators")
                await names.classic_member("g", "t")
                await names.close()
                assert await names.commit("plain", "t", "m" * 5000) == 0
                for number in range(MANY):
                    assert await names.commit(f"many-{number}", "t", f"note {number}") == 0
            return await audit(client)

        found = asyncio.run(fill())
        done = wideload("names", "audit", "-b", broker.bootstrap_servers, "--strict")
        taken = asyncio.run(commit_limits(ClientSettings(broker.bootstrap_servers)))
        table = {"topics": ["t"], "output.topic": "whole", "transforms": ["assemble"], "topic.creation.enable": True}
        settings = parse({"bootstrap.servers": broker.bootstrap_servers, "pipeline": {"p": table}})
        plan = asyncio.run(plan_pipeline(settings.client, settings.pipelines[0]))
    assert taken == CommitLimits(5000, 3 * 24 * 3_600_000)
    assert plan.metadata_bytes == 5000  # what a pipeline with chunks notes beside its offsets fits this
    assert use(found, "offset-metadata", "m" * 5000).limit == 5000
    assert use(found, "rack-id", "r" * FITS).where == "broker 1"
    assert found.over == ()
    assert len([each for each in found.of("group-id") if each.text.startswith("many-")]) == MANY
    assert len([each for each in found.of("offset-metadata") if each.text.startswith("note ")]) == MANY
    assert [missed.what for missed in found.not_read] == [
        "ACLs",
        "client ids and rack ids of clients that are in no group",
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert "over the limit" not in done.stdout
    assert done.stdout.endswith(f"{len(found.uses)} names read, none over a limit\n")
