"""The connection of a worker's configuration, against a broker that asks for certificates, user and password."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from app.config.java_client import to_java
from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.local.broker import EmbeddedBroker
from app.payloads.search import search
from app.payloads.sweep_settings import SweepSettings
from jobs.copying.receipt import Receipt
from jobs.copying.writer import SinkTopic, SinkWriter
from jobs.reading.log import look
from jobs.reading.options import settings_of
from jobs.reading.ranges import Bounds
from tests.app import configurations
from tests.integration.names import Names
from tests.integration.topics import send
from transforms.errors import ConfigurationError, WideloadError
from transforms.record import Record

PASSWORD = 'p"9\\x'
LISTENER = "listener.name.sasl_ssl"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with `cert`, which is its own authority, `key`, and both as a broker takes them."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    names = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    made = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", *names, *made], check=True, capture_output=True)
    (tmp_path / "both").write_text((tmp_path / "key").read_text() + (tmp_path / "cert").read_text())
    return tmp_path


@pytest.fixture
def cluster(files: Path) -> Iterator[EmbeddedBroker]:
    """A broker that takes nobody without a certificate and a password."""
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{quoted}";'
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        f"{LISTENER}.plain.sasl.jaas.config": login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        f"{LISTENER}.ssl.client.auth": "required",
        f"{LISTENER}.ssl.keystore.type": "PEM",
        f"{LISTENER}.ssl.keystore.location": str(files / "both"),
        f"{LISTENER}.ssl.truststore.type": "PEM",
        f"{LISTENER}.ssl.truststore.location": str(files / "cert"),
    }
    broker = EmbeddedBroker(properties, protocols=["SASL_SSL"])
    try:
        broker.start()
    except WideloadError as exc:
        pytest.fail(f"no broker: {exc}", pytrace=False)
    with broker:
        yield broker


async def create(bootstrap: str, topics: Sequence[str]) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    finally:
        await client.close()


async def allow(bootstrap: str, rights: Mapping[str, Sequence[int]]) -> None:
    """Gives ann these rights: 3 Read, 8 Describe, 10 DescribeConfigs."""
    async with admin(ClientSettings(bootstrap)) as connection:
        names = Names(bootstrap, connection)
        for topic, operations in rights.items():
            for operation in operations:
                await names.acl("User:ann", "*", topic, type_number=2, operation=operation)


def test_both_clients_get_in(spark: SparkSession, cluster: EmbeddedBroker, files: Path) -> None:
    """What the worker's file says of security lets in Kafka's own client, which Spark has, and aiokafka as well.

    A search of other topics names those that this user may see and not read. A backfill says which rights it lacks.
    """
    asyncio.run(create(cluster.bootstrap_servers, ["orders", "readable", "shut", "unseen"]))
    asyncio.run(allow(cluster.bootstrap_servers, {"orders": (3, 8, 10), "readable": (3,), "shut": (8,)}))
    send(cluster.bootstrap_servers, "orders", [(0, b"k", b"%d" % number, [], 1) for number in range(3)])
    settings = configurations.settings_of(
        f'bootstrap.servers = "{cluster.address("SASL_SSL")}"\nsecurity.protocol = "SASL_SSL"\n'
        'sasl.username = "ann"\nsasl.password = "${env:PASSWORD}"\n'
        f'ssl.ca.location = "{files}/cert"\nssl.certificate.location = "{files}/cert"\n'
        f'ssl.key.location = "{files}/key"\n' + configurations.ORDERS,
        {"PASSWORD": PASSWORD},
    )
    java = {f"kafka.{name}": value for name, value in to_java(settings.client).items()}
    servers = java.pop("kafka.bootstrap.servers")
    java |= {"kafka.bootstrap.servers": servers, "subscribe": "orders"}
    assert spark.read.format("kafka").options(**java).load().count() == 3
    client = {f"kafka.{name}": str(value) for name, value in settings.client.security.items() if value is not None}
    store = {"large.message.payload.store.class": "memory"}
    source = settings_of({"kafka.bootstrap.servers": servers, "subscribe": "orders", **store, **client})
    assert look(source.client, source.topics).bounds == {("orders", 0): Bounds(0, 3)}

    found = search(SweepSettings(settings.client, {}, ("orders",)), None)
    assert (found.unread, found.searched) == ({"shut": "may not be read"}, 1)
    assert "refer to them: shut (may not be read); specify each with --carrier" in found.refusals[0]
    assert search(SweepSettings(settings.client, {}, ("orders",), ignored=("shut",)), None).refusals == []

    asyncio.run(create(cluster.bootstrap_servers, ["copy"]))
    _backfill_needs(source.client, cluster.bootstrap_servers)


def _backfill_needs(client: ClientSettings, bootstrap: str) -> None:
    """Each right that a backfill needs beside those on the source, and what it says without the ones on groups."""
    name, sink = "wideload-backfill-copy:orders:0", SinkTopic("copy", {0: 0}, 1_000_000, keeps_timestamps=True)

    def allow_prefix(type_number: int, *operations: int) -> None:
        async def allowed() -> None:
            async with admin(ClientSettings(bootstrap)) as connection:
                for operation in operations:
                    names = Names(bootstrap, connection)
                    await names.acl("User:ann", "*", "wideload-backfill-", type_number, operation, pattern=4)

        asyncio.run(allowed())

    asyncio.run(allow(bootstrap, {"copy": (4, 8)}))
    with pytest.raises(ConfigurationError, match=f"may not write with the transactional id {name}"):
        SinkWriter(client, sink, name, 60_000)
    allow_prefix(5, 4, 8)
    refused = pytest.raises(ConfigurationError, match=f"may not read and commit the offsets of group {name}; grant")
    with closing(SinkWriter(client, sink, name, 60_000)) as writer, refused:
        writer.receipt("orders", 0)
    allow_prefix(3, 8)
    with closing(SinkWriter(client, sink, name, 60_000)) as writer:
        assert writer.receipt("orders", 0) is None
        with refused:
            writer.commit("orders", 0, Receipt("id", 0, 1))
    allow_prefix(3, 3)
    with closing(SinkWriter(client, sink, name, 60_000)) as writer:
        writer.write(0, Record(b"k", b"v", (), 1))
        writer.commit("orders", 0, Receipt("id", 0, 1))
        assert writer.receipt("orders", 0) == Receipt("id", 0, 1)
