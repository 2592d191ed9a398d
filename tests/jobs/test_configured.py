"""A worker's configuration in a job: which topics, formats and keys it has for the topics of each job."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.config.arguments import configure
from app.payloads import sweep_command
from app.payloads.audit import AuditSettings
from app.payloads.audit_command import audit_settings
from app.payloads.audit_command import main as audit
from app.payloads.audit_command import parser as audit_parser
from app.payloads.sweep_command import sweep_settings
from jobs import backfill
from jobs.copying.range import BackfillSettings
from jobs.ingesting import command_line
from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.signing import Signing

STORE_CLASS = "large.message.payload.store.class"
FLAG = 'reference.format = "bakdata-flag"'


def pipeline(name: str, sink: str, store: str, *more: str, inflates: bool = False) -> str:
    """A pipeline that offloads `NAME-raw` into a topic, or inflates that topic."""
    topics, output, stage = (sink, f"{name}-whole", "inflate") if inflates else (f"{name}-raw", sink, "offload")
    keys = [f'{STORE_CLASS} = "s3"', f's3.bucket = "{store}"', *more]
    head = [f"[pipeline.{name}]", f'topics = ["{topics}"]', f'output.topic = "{output}"', f'transforms = ["{stage}"]']
    return "\n".join([*head, *keys, ""])


def dead(topic: str) -> str:
    return f'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "{topic}"'


ONE = pipeline("one", "orders", "one", FLAG, dead("orders-dlq"))
TWO = pipeline("two", "returns", "two", FLAG)
LOGIN = 'security.protocol = "SASL_PLAINTEXT"\nsasl.username = "ann"\nsasl.password = "secret"\n'


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """Parses a command line with a file of some pipelines."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    return Configured(tmp_path / "wideload.toml")


class Configured:
    """A file, and command lines with it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, text: str, parser: argparse.ArgumentParser, *given: str) -> argparse.Namespace:
        self._file.write_text(f'bootstrap.servers = "b:9092"\n{text}')
        parsed = parser.parse_args(["-c", str(self._file), *given])
        configure(parsed)
        return parsed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-c", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
        (["--bootstrap-servers", "b:1"], "--topic: is missing"),
    ],
)
def test_configure_refusals(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be taken is one sentence and status 2, before Spark is started."""
    assert audit(given) == 2
    assert message in capsys.readouterr().err


def test_sweep_reads_all_topics_of_the_store(configured: Configured) -> None:
    """Whichever topics are swept, each that may refer to the store is read, and what the user gives."""
    text = ONE + TWO + pipeline("more", "copies", "one", FLAG, dead("copies-dlq"))
    for given, topics, carriers in (
        (["--pipeline", "one"], ("orders", "orders-dlq", "copies", "copies-dlq"), ()),
        (["--topic", "copies", "--carrier", "mine"], ("copies",), ("orders", "orders-dlq", "copies-dlq", "mine")),
    ):
        settings = sweep_settings(configured(text, sweep_command.parser(), *given))
        assert (settings.topics, settings.carriers) == (topics, carriers)
        assert settings.in_flight.total_seconds() == 60 + 20 * 60 + 120
        assert settings.reference_format == "bakdata-flag"


def test_sweep_reads_each_topic_in_its_format(configured: Configured) -> None:
    """Flags have no header, so a topic read in another format seems to refer to nothing: its payloads would go."""

    def formats(*given: str, form: str = "bakdata-flag") -> tuple[str, dict[str, FormatName]]:
        text = ONE.replace("bakdata-flag", form) + pipeline("more", "returns", "one")
        settings = sweep_settings(configured(text, sweep_command.parser(), *given))
        return settings.reference_format, dict(settings.formats)

    expected = {"orders": "bakdata-flag", "orders-dlq": "bakdata-flag", "returns": "wideload"}
    assert formats()[1] == expected
    assert formats("--topic", "returns")[1] == expected
    mine = ["--carrier", "mine", "--topic-format", "mine=bakdata-headers", "--topic-format", "returns=bakdata-headers"]
    assert formats(*mine)[1] == {**expected, "mine": "bakdata-headers", "returns": "bakdata-headers"}
    assert formats("--format", "bakdata-flag", "--carrier", "mine") == ("bakdata-flag", {})
    with pytest.raises(ConfigurationError, match=r"--topic-format: is missing for mine: .*; give mine=FORMAT"):
        formats("--carrier", "mine")
    others = {"orders": "bakdata-headers", "orders-dlq": "bakdata-headers", "returns": "wideload"}
    assert formats("--carrier", "mine", form="bakdata-headers") == ("wideload", others)


def test_backfill_of_a_configuration(configured: Configured) -> None:
    """The store is that of source or sink, the format that of the source, and the login that of the worker."""
    base = ["--sink", "new", "--checkpoint", "c", "--to", "plain"]
    for given, store, form in (
        (["--source", "orders"], "one", "bakdata-flag"),
        (["--source", "old", "--pipeline", "two", "--format", "bakdata-headers"], "two", "bakdata-headers"),
    ):
        source = backfill._settings(configured(LOGIN + ONE + TWO, backfill._parser(), *base, *given)).source
        assert (source.client.bootstrap_servers, source.client.security["sasl.password"]) == ("b:9092", "secret")
        assert (source.inflater.store["s3.bucket"], source.inflater.reference_format) == (store, form)
    chunks = '[pipeline.c]\ntopics = ["a"]\noutput.topic = "b"\ntransforms = ["chunk"]\n'
    parsed = configured(chunks, backfill._parser(), *base, "--source", "chunks")
    assert backfill._settings(parsed).source.inflater.store == {STORE_CLASS: "memory"}


KEY, REQUIRED = "large.message.signing.key", "large.message.signing.required"
OLD, NEW = "o" * 32, "n" * 32


def signed(key: str, *more: str) -> str:
    return "\n".join([f'{KEY} = "{key}"', *more])


# Topics of one store, with keys of their own, one without, and one whose pipelines share no key.
SIGNED = (
    pipeline("orders", "orders", "one", signed(OLD))
    + pipeline("returns", "returns", "one", signed(NEW, f'large.message.signing.previous.keys = ["{OLD}"]'))
    + pipeline("plain", "plain", "one")
)
MIXED = pipeline("p", "mixed", "one", signed(OLD), inflates=True) + pipeline(
    "q", "mixed", "one", signed(NEW), inflates=True
)


def test_backfill_has_the_keys_of_its_topics(configured: Configured) -> None:
    """It verifies as readers of the source do, and signs as writers of the sink do, or as the source is."""
    base = ["--checkpoint", "c", "--to", "references"]

    def settings(source: str, sink: str, *given: str) -> BackfillSettings:
        topics = ["--source", source, "--sink", sink]
        return backfill._settings(configured(SIGNED + MIXED, backfill._parser(), *base, *topics, *given))

    for source, sink, given, keys in (
        ("orders", "returns", (), (Signing(OLD), Signing(NEW, (OLD,)))),
        ("orders", "plain", (), (Signing(OLD), None)),
        ("plain", "orders", (), (None, Signing(OLD))),
        ("new", "new2", ("--store", f"{KEY}={NEW}"), (Signing(NEW), Signing(NEW))),
    ):
        found = settings(source, sink, *given)
        assert found.offload is not None
        assert (Signing.of(found.source.inflater.store), found.offload.signing) == keys
    assert settings("plain", "mixed", "--to", "plain").offload is None
    with pytest.raises(
        ConfigurationError, match=f"-c: has no {KEY} that is valid for topic mixed: pipelines p, q do not share"
    ):
        settings("mixed", "plain")


def test_jobs_have_the_keys_of_encryption_of_their_topics(configured: Configured) -> None:
    """A backfill decrypts as readers of the source do, and encrypts as writers of the sink do; an audit has no key."""
    name = "large.message.encryption"
    one = {f"{name}.type": "aes-256-gcm", f"{name}.key.id": "one", f"{name}.key.secret": "1f" * 32}
    lines = [f'{key} = "{value}"' for key, value in one.items()]
    text = pipeline("orders", "orders", "one", *lines) + pipeline("returns", "returns", "one")

    def settings(*given: str) -> BackfillSettings:
        base = ["--checkpoint", "c", "--to", "references"]
        return backfill._settings(configured(text, backfill._parser(), *base, *given))

    found = settings("--source", "returns", "--sink", "orders")
    assert found.encryption == one
    assert "1f1f" not in repr(found)
    assert not [key for key in found.source.inflater.store if key.startswith(name)]
    found = settings("--source", "orders", "--sink", "returns")
    assert found.encryption == {}
    assert found.source.inflater.store[f"{name}.key.id"] == "one"
    parsed = configured(text, audit_parser(), "--topic", "orders")
    assert not [key for key in audit_settings(parsed).store if key.startswith(name)]


def test_audit_has_the_keys_of_each_topic(configured: Configured) -> None:
    """Each topic is verified by its own keys, unless the command line has some."""

    def settings(*given: str) -> AuditSettings:
        return audit_settings(configured(SIGNED + MIXED, audit_parser(), *given))

    found = settings("--topic", "orders", "--topic", "returns", "--topic", "plain")
    assert {name: each.signing for name, each in found.topics.items()} == {
        "orders": Signing(OLD),
        "returns": Signing(NEW, (OLD,)),
        "plain": None,
    }
    assert Signing.of(found.store) is None
    assert OLD not in repr(found)
    given = settings("--topic", "orders", "--topic", "mixed", "--store", f"{KEY}={NEW}")
    assert [each.signing for each in given.topics.values()] == [Signing(NEW)] * 2
    with pytest.raises(ConfigurationError, match="topic mixed: pipelines p, q do not share a key; leave the topic"):
        settings()


def test_ingest_of_a_configuration(configured: Configured) -> None:
    """Brokers and login come from the configuration, as Kafka's own client takes them; topics do not."""
    arguments = ["--topic", "whole", "--output", "o", "--checkpoint", "c"]
    settings = command_line.settings_of(configured(LOGIN + ONE, command_line.parser(), *arguments))
    assert (settings.bootstrap_servers, settings.topics) == ("b:9092", ("whole",))
    assert 'username="ann" password="secret"' in settings.kafka_options["kafka.sasl.jaas.config"]
