"""Brokers and store on the command line, with a configuration and without one."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.config.arguments import (
    add_kafka,
    add_store,
    client_settings,
    configure,
    consumer_arguments,
    store_config,
    store_use,
)
from tests.app.configurations import ORDERS
from transforms.errors import ConfigurationError

STORE_CLASS = "large.message.payload.store.class"


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group()
    add_kafka(group)
    add_store(group)
    arguments = parser.parse_args(given)
    configure(arguments)
    return arguments


def test_command_line_over_the_configuration(tmp_path: Path) -> None:
    """Properties are ours or those of Java's client, with Spark's prefix or without; a file may have others too."""
    config, more = tmp_path / "wideload.toml", tmp_path / "client.properties"
    config.write_text(
        'bootstrap.servers = "b:1"\nclient.id = "me"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        f'sasl.username = "ann"\nsasl.password = "secret"\n{ORDERS}'
    )
    more.write_text(
        "sasl.mechanism=SCRAM-SHA-512\ndefault.api.timeout.ms=7\n"
        'sasl.jaas.config=org.apache.kafka.ScramLoginModule required username="bob" password="hunter";\n'
    )
    arguments = parsed("-c", str(config), "--kafka-config", str(more), "--kafka-option", "kafka.client.rack=r1")
    client = client_settings(arguments)
    assert (client.bootstrap_servers, client.client_id) == ("b:1", "me")
    assert [client.security[f"sasl.{name}"] for name in ("mechanism", "username", "password")] == [
        "SCRAM-SHA-512", "bob", "hunter",
    ]  # fmt: skip
    assert "hunter" not in repr(client)
    assert consumer_arguments(arguments) == {"client_rack": "r1"}
    assert client_settings(parsed("-c", str(config), "--bootstrap-servers", "c:2")).bootstrap_servers == "c:2"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "kafka.sasl.mechanisms=PLAIN",
            "sasl.mechanisms: unknown property; did you mean sasl.mechanism?",
        ),
        ("security.protocol=SASL", "security.protocol: found 'SASL', allowed is one of"),
        ("ssl.truststore.location=x", "set ssl.ca.location"),
        ("hunter2", "--kafka-option: must be KEY=VALUE"),
    ],
)
def test_properties_that_are_wrong(option: str, said: str) -> None:
    """One sentence."""
    with pytest.raises(ConfigurationError) as caught:
        client_settings(parsed("--bootstrap-servers", "b:1", "--kafka-option", option))
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_brokers_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the other commands; without them the message says what to give."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "e:1")
    assert client_settings(parsed()).bootstrap_servers == "e:1"
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS")
    with pytest.raises(ConfigurationError, match="--bootstrap-servers: is missing; pass it, or a configuration"):
        parsed()


def test_store_over_the_configuration(tmp_path: Path) -> None:
    """What is given wins over the configuration, as long as the store is the same."""
    config = tmp_path / "wideload.toml"
    text = ORDERS.replace('"memory"', f'"filesystem"\nfilesystem.root = "{tmp_path}"\nfilesystem.fsync = false')
    config.write_text(f'bootstrap.servers = "b:1"\n{text}')
    arguments = parsed("-c", str(config), "--store", "filesystem.fsync=true")
    use = store_use(arguments, ["orders"])
    found = store_config(arguments, use)
    assert found == {STORE_CLASS: "filesystem", "filesystem.root": str(tmp_path), "filesystem.fsync": True}
    arguments.store = [f"filesystem.root={tmp_path}/other"]
    with pytest.raises(ConfigurationError, match=r"names the store .*, but the configuration has another one"):
        store_config(arguments, use)
    with pytest.raises(ConfigurationError, match="--pipeline: requires a configuration"):
        store_use(parsed("--bootstrap-servers", "b:1", "--pipeline", "p"), [])
