"""The store of clients as a command reads it, and `wideload store lifecycle` without a worker's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import cli
from app.commands.client_store import connection_of, given_keys, store_of
from transforms.errors import ConfigurationError

CLASS = "large.message.payload.store.class"
WEEK = "604800000"

# What an application gives its client: most of it is neither the store's nor the command's.
PROPERTIES = f"""\
# a producer
bootstrap.servers = b:9092
client.id = shop
acks = all
sasl.mechanisms = SCRAM-SHA-256
security.protocol = sasl_plaintext
sasl.username = shop
sasl.password = ${{env:PASSWORD}}
value.serializers = wideload.serializers.LargeMessageSerializer
large.message.threshold.bytes = 1000
{CLASS} = s3
s3.bucket = pay\\
  loads
s3.path.style = true
s3.access.key = key
s3.secret.key = ${{env:SECRET}}
"""
ENVIRON = {"PASSWORD": "pass-word", "SECRET": "very-secret"}


def test_a_clients_file_is_taken_as_it_is(tmp_path: Path) -> None:
    """Store and connection are found among the keys of a client, texts get their types, and secrets are hidden."""
    path = tmp_path / "producer.properties"
    path.write_text(PROPERTIES)
    given = given_keys(str(path), ["s3.prefix=p"], ENVIRON)
    store = store_of(given)
    assert store == {
        CLASS: "s3",
        "s3.bucket": "payloads",
        "s3.path.style": True,
        "s3.access.key": "key",
        "s3.secret.key": "very-secret",
        "s3.prefix": "p",
    }
    assert "very-secret" not in repr(store)
    assert connection_of(given) == {
        "bootstrap.servers": "b:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "shop",
        "sasl.password": "pass-word",
    }


def test_toml_and_options(tmp_path: Path) -> None:
    """A file that is called *.toml is TOML; an option stands before the file."""
    path = tmp_path / "client.toml"
    path.write_text(f'{CLASS} = "filesystem"\n[filesystem]\nroot = "/a"\n')
    given = given_keys(str(path), ["filesystem.root=/b"])
    assert (store_of(given), connection_of(given)) == ({CLASS: "filesystem", "filesystem.root": "/b"}, {})


@pytest.mark.parametrize(
    ("name", "text", "pairs", "said"),
    [
        ("x.properties", "no equals sign: secret", [], "must be KEY=VALUE"),
        ("x.toml", "a = ", [], "is not TOML"),
        ("x.toml", '[pipeline.a]\ntopics = ["x"]\n', [], "pass it with -c"),
        ("x.properties", "", ["filesystem.root=/b"], f"{CLASS}=… is missing"),
        ("x.properties", f"{CLASS}=filesystem", ["filesystem.rot=/b"], "did you mean filesystem.root?"),
        ("x.properties", f"{CLASS}=filesystem", ["filesystem.root=${env:NONE}"], "NONE is not set"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, pairs: list[str], said: str) -> None:
    """Each mistake has one sentence that names what is allowed, and repeats no text that may be a secret."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        store_of(given_keys(str(tmp_path / name), pairs, {}))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def lifecycle(*arguments: str) -> tuple[int, str]:
    """Status and output of the command, which asks no broker."""
    done = CliRunner().invoke(cli, ["store", "lifecycle", *arguments], standalone_mode=False)
    if done.exception is not None:
        assert isinstance(done.exception, ConfigurationError), done.exception
        return 2, str(done.exception)
    return done.return_value, done.output


def test_lifecycle_of_a_store_without_rules(tmp_path: Path) -> None:
    """Without a worker, and without brokers: the age from retention and segments; the store grows without limit."""
    store = ("-s", f"{CLASS}=filesystem", "-s", f"filesystem.root={tmp_path}", "--json")
    status, output = lifecycle("--topic", "orders", "--retention-ms", WEEK, *store)
    row = json.loads(output)
    assert (status, row["verdict"], row["recommended_days"]) == (0, "no-rules", 15)
    assert (row["pipeline"], row["transform"], row["payloads"]) == (None, "client", f"{tmp_path.as_uri()}/orders/")
    assert "it grows unless a sweep is scheduled" in row["message"]
    _, output = lifecycle("--topic", "orders", "--retention-ms", WEEK, "--segment-ms", "86400000", *store)
    assert json.loads(output)["recommended_days"] == 9
    status, output = lifecycle("--topic", "a", "--topic", "b", "--cleanup-policy", "compact", *store)
    rows = [json.loads(line) for line in output.splitlines()]
    assert (status, [row["topic"] for row in rows], rows[0]["recommended_days"]) == (0, ["a", "b"], None)
    assert "a TTL must not be used" in rows[0]["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--config: is missing"),
        (("-s", "a=b"), "--store: is for topics of clients; name one with --topic"),
        (("--topic", "orders", "--retention-ms", "1"), f"{CLASS}=… is missing"),
        (("--topic", "a/b", "--retention-ms", "1"), "topic: found 'a/b'"),
        (("--topic", "a", "-s", f"{CLASS}=memory", "--segment-ms", "1"), "--segment-ms: requires --retention-ms"),
        (("--topic", "a", "-s", f"{CLASS}=memory", "--cleanup-policy", "never"), "--cleanup-policy: found 'never'"),
        (("--topic", "a", "-s", f"{CLASS}=memory"), "--bootstrap-servers: is missing"),
    ],
)
def test_lifecycle_says_what_is_missing(arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that do not go together are refused before anything is asked, with what to do."""
    for name in ("WIDELOAD_CONFIG", "KAFKA_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    status, told = lifecycle(*arguments)
    assert status == 2
    assert said in told
