"""A worker's configuration in a job: the connection for both clients, and which store it is."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs import backfill, sweep
from jobs.audit import _parser as audit_parser
from jobs.audit import _settings as audit_settings
from jobs.audit import main as audit
from jobs.copying.range import BackfillSettings
from jobs.driver.command_line import configure
from jobs.driver.store_options import store_config, store_use
from jobs.driver.worker_config import WorkerConfig
from jobs.ingesting import command_line
from jobs.payloads.reference_states import AuditSettings
from jobs.reading.source_options import settings_of
from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.signing import Signing

STORE_CLASS = "large.message.payload.store.class"


def document(**connection: str) -> dict[str, Any]:
    def use(name: str, topic: str, *carriers: str) -> dict[str, Any]:
        return {
            "pipelines": [name],
            "store": {STORE_CLASS: "filesystem", "filesystem.root": f"/{name}", "filesystem.fsync": False},
            "in.flight.ms": 5_000,
            "carriers": {topic: list(carriers)},
            "formats": {topic: "bakdata-flag"},
            "signing": {topic: {}},
        }

    named = {name.replace("_", "."): value for name, value in connection.items()}
    return {
        "connection": {"bootstrap.servers": "b:9092", **named},
        "topics": ["orders", "orders-dlq", "returns"],
        "stores": [use("one", "orders", "orders-dlq"), use("two", "returns")],
    }


def arguments(**given: object) -> argparse.Namespace:
    values: dict[str, object] = {"config": None, "options": None, "bootstrap_servers": None, "pipeline": None}
    return argparse.Namespace(**values | {"store": [], "store_config": None} | given)


def test_configured_uses() -> None:
    """The store is that of the pipeline, or of the topics; where neither says which, the message has the names."""
    found = WorkerConfig.of(json.loads(json.dumps(document())))
    assert (found.servers, found.topics) == ("b:9092", ("orders", "orders-dlq", "returns"))
    use = found.use(None, ["orders"])
    assert (use.pipelines, use.topics, use.in_flight) == (("one",), ["orders", "orders-dlq"], timedelta(seconds=5))
    assert found.use("two", ["orders"]).pipelines == ("two",)
    with pytest.raises(ConfigurationError, match=r"--pipeline: is missing, .* name one of: one, two"):
        found.use(None, [])
    with pytest.raises(ConfigurationError, match="--pipeline: found 'three', those with a store are: one, two"):
        found.use("three", [])
    with pytest.raises(ConfigurationError, match="in which no pipeline has a store"):
        WorkerConfig.of({**document(), "stores": []}).use(None, [])


def test_configured_login_of_both_clients() -> None:
    """User and password reach Kafka's own client and aiokafka as they are, quotes and all; nothing prints them."""
    password = 'p"9\\x'
    connection = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "ann"}
    found = WorkerConfig.of(document(**connection, sasl_password=password))
    java = found.java_options()
    assert java["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="p\\"9\\\\x";'
    )
    options = {"subscribe": "t", "kafka.bootstrap.servers": "b:9092", STORE_CLASS: "memory"}
    for client in (found.client_options(), {name: java[name] for name in java if "limit" not in name}):
        settings = settings_of(options | client)
        assert settings.client.connection()["sasl_plain_password"] == password
        assert settings.client.connection()["sasl_mechanism"] == "SCRAM-SHA-512"
    assert "p" + '"9' not in repr(found)


def test_configured_logins_by_tokens() -> None:
    """Kafka's own client gets id and secret in the login; the data source `wideload` refuses what it cannot do."""
    credentials = "sasl_oauthbearer_client_credentials_client"
    endpoint = {"sasl_oauthbearer_token_endpoint_url": "https://login/token"}
    connection = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **endpoint}
    found = WorkerConfig.of(document(**connection, **{f"{credentials}_id": "ann", f"{credentials}_secret": 'p"9'}))
    java = found.java_options()
    assert java["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert java["kafka.sasl.jaas.config"].endswith('LoginModule required clientId="ann" clientSecret="p\\"9";')
    assert java["kafka.sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    with pytest.raises(ConfigurationError, match=r"^sasl.mechanism: found 'OAUTHBEARER'; .* PLAIN and SCRAM alone$"):
        found.client_options()
    amazon = WorkerConfig.of(document(security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")).java_options()
    assert amazon["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"


def test_configured_certificates(tmp_path: Path) -> None:
    """Java gets what is in the PEM files, so that executors need none; a key that it cannot read is told."""
    for name in ("ca", "certificate", "key"):
        begin = "PRIVATE KEY" if name == "key" else "CERTIFICATE"
        (tmp_path / name).write_text(f"-----BEGIN {begin}-----\n{name}\n")
    files = {f"ssl_{name}_location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    described = document(security_protocol="SSL", **files)
    described["connection"] |= {"ssl.endpoint.identification.algorithm": "none", "ssl.key.password": "secret"}
    assert WorkerConfig.of(described).java_options() == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nca\n",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----\ncertificate\n",
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nkey\n",
        "kafka.ssl.key.password": "secret",
    }
    (tmp_path / "key").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.location: is not PKCS #8, and Java reads no other keys"):
        WorkerConfig.of(described).java_options()
    (tmp_path / "ca").unlink()
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location: .* cannot be read"):
        WorkerConfig.of(described).java_options()


def test_configure_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be taken is one sentence and status 2, before Spark is started; no part of a file is repeated."""
    file = tmp_path / "options.json"
    for text, message in (
        ("{'secret': 1}", "is no JSON"),
        ('{"secret": 1}', "is no document of options"),
        ("[]", "is no document of options"),
    ):
        file.write_text(text)
        assert audit(["--options", str(file)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert "secret" not in said
    for given, message in (
        (["-c", "wideload.toml"], "-c: is for `wideload job`"),
        (["--options", "/nowhere"], "--options: /nowhere cannot be read"),
        ([], "--bootstrap-servers: is missing; give it, or a configuration with -c"),
        (["--bootstrap-servers", "b:1"], "--topic: is missing"),
        (["--bootstrap-servers", "b:1", "--pipeline", "p"], "--pipeline: is one of a configuration"),
    ):
        assert audit(given) == 2
        assert message in capsys.readouterr().err


def test_sweep_reads_all_topics_of_the_store() -> None:
    """Whichever topics are swept, each that may refer to the store is read, and what is given besides."""
    described = document()
    described["stores"][0]["carriers"] |= {"copies": ["copies-dlq", "orders-dlq"]}
    for given, topics, carriers in (
        (["--pipeline", "one"], ("orders", "copies"), ("orders-dlq", "copies-dlq")),
        (["--topic", "copies", "--carrier", "mine"], ("copies",), ("orders", "orders-dlq", "copies-dlq", "mine")),
    ):
        parsed = sweep._parser().parse_args(given)
        configure(parsed, described)
        settings = sweep._settings(parsed)
        assert (settings.topics, settings.carriers) == (topics, carriers)
        assert settings.in_flight == timedelta(seconds=5)
        assert settings.reference_format == "bakdata-flag"


def test_sweep_reads_each_topic_in_its_format() -> None:
    """Flags have no header, so a topic read in another format seems to refer to nothing: its payloads would go."""
    described = document()
    one = described["stores"][0]
    one["carriers"] = {"orders": ["orders-dlq"], "returns": []}
    one["formats"] = {"orders": "bakdata-flag", "orders-dlq": "bakdata-flag", "returns": "wideload"}

    def formats(*given: str) -> tuple[str, dict[str, FormatName]]:
        parsed = sweep._parser().parse_args(["--pipeline", "one", *given])
        configure(parsed, described)
        settings = sweep._settings(parsed)
        return settings.reference_format, dict(settings.formats)

    assert formats()[1] == one["formats"]
    assert formats("--topic", "returns")[1] == one["formats"]
    mine = ["--carrier", "mine", "--topic-format", "mine=bakdata-headers", "--topic-format", "returns=bakdata-headers"]
    assert formats(*mine)[1] == {**one["formats"], "mine": "bakdata-headers", "returns": "bakdata-headers"}
    assert formats("--format", "bakdata-flag", "--carrier", "mine") == ("bakdata-flag", {})
    with pytest.raises(ConfigurationError, match=r"--topic-format: is missing for mine: .*; give mine=FORMAT"):
        formats("--carrier", "mine")
    one["formats"]["orders"] = one["formats"]["orders-dlq"] = "bakdata-headers"
    assert formats("--carrier", "mine") == ("wideload", one["formats"])


def test_backfill_of_a_configuration() -> None:
    """The store is that of source or sink, the format that of the source, and the login that of the reading client."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "ann", "sasl_password": "secret"}
    described = document(security_protocol="SASL_PLAINTEXT", **login)
    base = ["--sink", "new", "--checkpoint", "c", "--to", "plain"]
    for given, store, form in (
        (["--source", "orders"], "/one", "bakdata-flag"),
        (["--source", "old", "--pipeline", "two", "--format", "bakdata-headers"], "/two", "bakdata-headers"),
    ):
        parsed = backfill._parser().parse_args([*base, *given])
        configure(parsed, described)
        source = backfill._settings(parsed).source
        assert (source.client.servers, source.client.connection()["sasl_plain_password"]) == ("b:9092", "secret")
        assert (source.inflater.store["filesystem.root"], source.inflater.reference_format) == (store, form)
    parsed = backfill._parser().parse_args([*base, "--source", "chunks"])
    configure(parsed, {**described, "stores": []})
    assert backfill._settings(parsed).source.inflater.store == {STORE_CLASS: "memory"}


KEY, REQUIRED = "large.message.signing.key", "large.message.signing.required"
OLD, NEW = "o" * 32, "n" * 32


def signing_document() -> dict[str, Any]:
    """Two topics of one store, with keys of their own, one without, and one whose pipelines share no key."""
    described = document()
    one = described["stores"][0]
    one["carriers"] = {"orders": [], "returns": [], "plain": [], "mixed": []}
    one["formats"] = {}
    one["signing"] = {
        "orders": {KEY: OLD, REQUIRED: True},
        "returns": {KEY: NEW, "large.message.signing.previous.keys": [OLD], REQUIRED: False},
        "plain": {},
        "mixed": {"apart": ["p", "q"], REQUIRED: True},
    }
    return {**described, "stores": [one]}


def test_backfill_has_the_keys_of_its_topics() -> None:
    """It verifies as readers of the source do, and signs as writers of the sink do, or as the source is."""
    base = ["--checkpoint", "c", "--to", "references"]

    def settings(*given: str) -> BackfillSettings:
        parsed = backfill._parser().parse_args([*base, *given])
        configure(parsed, signing_document())
        return backfill._settings(parsed)

    def keys(found: BackfillSettings) -> tuple[Signing | None, Signing | None]:
        assert found.offload is not None
        return Signing.of(found.source.inflater.store), found.offload.signing

    assert keys(settings("--source", "orders", "--sink", "returns")) == (Signing(OLD), Signing(NEW, (OLD,), False))
    assert keys(settings("--source", "orders", "--sink", "plain")) == (Signing(OLD), None)
    assert keys(settings("--source", "plain", "--sink", "orders")) == (None, Signing(OLD))
    assert keys(settings("--source", "new", "--sink", "new2", "--store", f"{KEY}={NEW}")) == (
        Signing(NEW),
        Signing(NEW),
    )
    for topics in (["--source", "new", "--sink", "plain"], ["--source", "plain", "--sink", "new"]):
        with pytest.raises(
            ConfigurationError, match="-c: has no pipeline of topic new, and those of the store have diff"
        ):
            settings(*topics)
    assert settings("--source", "plain", "--sink", "mixed", "--to", "plain").offload is None
    with pytest.raises(
        ConfigurationError, match=f"-c: has no {KEY} that holds for topic mixed: pipelines p, q share no"
    ):
        settings("--source", "mixed", "--sink", "plain")


def test_jobs_have_the_keys_of_encryption_of_their_topics() -> None:
    """A backfill decrypts as readers of the source do, and encrypts as writers of the sink do; an audit has no key."""
    name = "large.message.encryption"
    one = {f"{name}.type": "aes-256-gcm", f"{name}.key.id": "one", f"{name}.key.secret": "1f" * 32}
    described = signing_document()
    described["stores"][0] |= {"signing": {}, "encryption": {"orders": one, "returns": {}, "plain": {}, "mixed": {}}}

    def settings(*given: str) -> BackfillSettings:
        parsed = backfill._parser().parse_args(["--checkpoint", "c", "--to", "references", *given])
        configure(parsed, described)
        return backfill._settings(parsed)

    found = settings("--source", "returns", "--sink", "orders")
    assert found.encryption == one
    assert "1f1f" not in repr(found)
    assert not [key for key in found.source.inflater.store if key.startswith(name)]
    found = settings("--source", "orders", "--sink", "returns")
    assert found.encryption == {}
    assert found.source.inflater.store[f"{name}.key.id"] == "one"
    with pytest.raises(ConfigurationError, match="different keys of encryption; give the keys of the topic with"):
        settings("--source", "new", "--sink", "orders")
    parsed = audit_parser().parse_args(["--topic", "orders"])
    configure(parsed, described)
    assert not [key for key in audit_settings(parsed).store if key.startswith(name)]


def test_a_copy_has_the_keys_that_all_topics_have() -> None:
    """A topic that no pipeline has is verified too, where there is only one way to do so."""
    one = signing_document()
    one["stores"][0]["signing"] = {"orders": {KEY: OLD, REQUIRED: True}, "returns": {KEY: OLD, REQUIRED: True}}
    assert WorkerConfig.of(one).stores[0].signing_of("mirror") == {KEY: OLD, REQUIRED: True}
    assert WorkerConfig.of(document()).stores[0].signing_of("mirror") == {}


def test_audit_has_the_keys_of_each_topic() -> None:
    """Each topic is verified by its own keys, unless the command line has some."""

    def settings(*given: str) -> AuditSettings:
        parsed = audit_parser().parse_args(list(given))
        configure(parsed, signing_document())
        return audit_settings(parsed)

    found = settings("--topic", "orders", "--topic", "returns", "--topic", "plain")
    assert found.signing == {"orders": Signing(OLD), "returns": Signing(NEW, (OLD,), False), "plain": None}
    assert Signing.of(found.store) is None
    assert OLD not in repr(found)
    given = settings("--topic", "orders", "--topic", "mixed", "--store", f"{KEY}={NEW}")
    assert (given.signing, Signing.of(given.store)) == ({}, Signing(NEW))
    with pytest.raises(
        ConfigurationError, match="topic mixed: pipelines p, q share no key; leave the topic out, or give"
    ):
        settings()


def test_ingest_of_a_configuration() -> None:
    """Brokers and login come from the configuration, as Kafka's own client takes them; topics do not."""
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "ann", "sasl_password": "secret"}
    parsed = command_line.parser().parse_args(["--topic", "whole", "--output", "o", "--checkpoint", "c"])
    configure(parsed, document(security_protocol="SASL_PLAINTEXT", **login))
    settings = command_line.settings_of(parsed)
    assert (settings.bootstrap_servers, settings.topics) == ("b:9092", ("whole",))
    assert 'username="ann" password="secret"' in settings.kafka_options["kafka.sasl.jaas.config"]


def test_store_config_over_the_configuration(tmp_path: Path) -> None:
    """What is given wins over the configuration, as long as the store is the same."""
    settings = arguments(store=["filesystem.fsync=true"])
    configure(settings, document())
    assert settings.bootstrap_servers == "b:9092"
    use = store_use(settings, ["orders"])
    found = {STORE_CLASS: "filesystem", "filesystem.root": "/one", "filesystem.fsync": True}
    assert store_config(settings, use) == found
    settings.store = [f"filesystem.root={tmp_path}"]
    with pytest.raises(ConfigurationError, match="the store, and the configuration says another one"):
        store_config(settings, use)
