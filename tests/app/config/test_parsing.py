"""The configuration file: what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.check import effective
from app.config.effective import pipeline_values
from app.config.guarantee import Guarantee
from app.config.parsing import load
from app.config.secret import Secret, without_secrets
from tests.app.configurations import HEAD, ORDERS, OWN_CLASS, S3, STORE, only_pipeline, settings_of
from transforms.errors import ConfigurationError
from transforms.signing import Signing


@pytest.mark.parametrize(
    "keys",
    [
        "consumer.max.poll.records = 7",
        '"consumer.max.poll.records" = 7',
        'consumer."max.poll".records = 7',
        "consumer.max = {poll.records = 7}",
        "[pipeline.orders.consumer]\nmax.poll.records = 7",
        "[pipeline.orders.consumer.max]\n'poll.records' = 7",
    ],
)
def test_dotted_nested_and_quoted_names_mean_the_same(keys: str) -> None:
    """A dotted name may be written as TOML's dots, as tables, or in quotes."""
    assert only_pipeline(HEAD + ORDERS + keys).consumer["consumer.max.poll.records"] == 7


DEFAULTS = """
bootstrap.servers = "localhost:9092"
processing.guarantee = "exactly_once"
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "dead"
large.message.payload.store.class = "s3"
large.message.threshold.bytes = 7
large.message.max.bytes = 1000
'large.message.root' = "topic"
large.message.root.topics = ["mirrored"]
large.message.strategy = "auto"
s3.bucket = "payloads"
s3.secret.key = "${env:SECRET}"
s3.access.key = "a"
wrapper.header.7 = "seven"
consumer.max.poll.records = 7
producer.batch.size = 8
"""
A = """
[pipeline.a]
topics = ["x"]
output.topic = "y"
transforms = ["inflate"]
"""
B = """
[pipeline.b]
topics = ["x"]
output.topic = "z"
errors.tolerance = "none"
processing.guarantee = "at_least_once"
transforms = ["offload"]
s3.bucket = "other"
consumer.max.poll.records = 9
"""
CHUNK = ORDERS.replace(STORE, "").replace("orders", "chunks").replace("offload", "chunk")


def test_any_key_of_a_pipeline_may_be_a_default() -> None:
    """Before the first table it holds for all that can use it; a pipeline's own value goes before it."""
    a, b, chunk, memory = settings_of(DEFAULTS + A + B + CHUNK + ORDERS, {"SECRET": "hunter2"}).pipelines
    assert [each.guarantee.name for each in (a, b)] == ["exactly_once", "at_least_once"]
    assert [each.dead_letter_topic for each in (a, b)] == ["dead", None]
    assert [each.store["s3.bucket"] for each in (a, b)] == ["payloads", "other"]
    assert [each.store["s3.secret.key"] for each in (a, b)] == ["hunter2", "hunter2"]
    assert [(each.threshold_bytes, each.max_bytes, each.chunks.strategy) for each in (a, b)] == [(7, 1000, "auto")] * 2
    assert [each.wrapper.headers for each in (a, b)] == [{"wrapper.header.7": "seven"}] * 2
    assert [each.consumer["consumer.max.poll.records"] for each in (a, b)] == [7, 9]
    assert [each.producer["producer.batch.size"] for each in (a, b)] == [8, 8]
    assert [each.reference_scope.topics for each in (a, b)] == [("mirrored",), ()]
    assert (chunk.store, chunk.chunks.strategy, chunk.threshold_bytes) == ({}, "offload", 1_048_576)
    assert memory.store == {"large.message.payload.store.class": "memory", "large.message.max.bytes": 1000}


def test_default_of_a_users_own_store_is_handed_to_it() -> None:
    """Where the class is a default, so may be any key; a pipeline with another store does not get them."""
    text = HEAD + 'large.message.payload.store.class = "shop.store.ShopStore"\nshop.url = "u"\n' + ORDERS
    own = text + ORDERS.replace("pipeline.orders", "pipeline.own").replace(STORE, "")
    orders, shop = settings_of(own).pipelines
    assert "shop.url" not in orders.store
    assert shop.store["shop.url"] == "u"


def test_own_class_takes_any_key() -> None:
    """Keys that the project does not know are handed to a user's class as they stand."""
    keys = 'shop.url = "https://shop"\nshop.tries = 3\nshop.tags = ["a"]\nshop.rules = [{name = "b"}]\n'
    assert only_pipeline(HEAD + OWN_CLASS + keys).store == {
        "large.message.payload.store.class": "shop.store.ShopStore",
        "shop.url": "https://shop",
        "shop.tries": 3,
        "shop.tags": ["a"],
        "shop.rules": [{"name": "b"}],
    }


def test_values_that_are_computed() -> None:
    """The group has the pipeline's name, which may have dots in quotes; dead letters count only with tolerance."""
    found = only_pipeline(
        HEAD
        + ORDERS.replace("pipeline.orders", 'pipeline."eu.orders"')
        + 'errors.deadletterqueue.topic.name = "dead"\nprocessing.guarantee = "exactly_once"'
    )
    assert (found.name, found.group_id, found.dead_letter_topic) == ("eu.orders", "wideload-eu.orders", None)
    assert found.guarantee == Guarantee(
        name="exactly_once", boundary="poll", interval_ms=100, size=16_777_216, timeout_ms=60_000
    )
    assert found.consumer["consumer.isolation.level"] == "read_committed"
    assert found.consumer["consumer.fetch.max.bytes"] == 52_428_800
    small = only_pipeline(f"{HEAD}in.flight.bytes = 1000\n{ORDERS}")
    assert small.consumer["consumer.fetch.max.bytes"] == 250


@pytest.mark.parametrize(
    "addresses", ["localhost:9092", "a:1,b:2", "a:1, b:65535", "10.0.0.1:9092", "[::1]:9092", "kafka_1.local:9092"]
)
def test_addresses_are_hosts_with_ports(addresses: str) -> None:
    """Names, IPv4 and bracketed IPv6 addresses are taken, with spaces behind commas or without."""
    assert settings_of(f'bootstrap.servers = "{addresses}"\n{ORDERS}').client.bootstrap_servers == addresses


def test_typed_keys_take_strings_from_placeholders() -> None:
    """A variable is a string; it becomes a number, a size, a boolean or a list where the key wants one."""
    text = HEAD + 'web.port = "${env:PORT}"\nin.flight.bytes = "128MiB"\n' + S3.replace('["raw"]', '"${env:TOPICS}"')
    text += """
        topic.creation.enable = "${env:CREATE}"
        large.message.max.bytes = "${env:MAX}"
        large.message.threshold.bytes = "64KiB"
        consumer.fetch.max.bytes = "${env:SIZE}"
        s3.bucket = "${env:BUCKET}"
        s3.path.style = "${env:STYLE}"
    """
    environ = {"PORT": "8080", "TOPICS": "a, b", "CREATE": "TRUE", "MAX": "100 MB", "SIZE": "1.5MB"}
    settings = settings_of(text, {**environ, "BUCKET": "b", "STYLE": "false"})
    (pipeline,) = settings.pipelines
    assert (settings.web_port, settings.in_flight_bytes) == (8080, 134_217_728)
    assert (pipeline.topics, pipeline.topic_creation, pipeline.threshold_bytes) == (("a", "b"), True, 65_536)
    assert (pipeline.max_bytes, pipeline.consumer["consumer.fetch.max.bytes"]) == (100_000_000, 1_500_000)
    found = [pipeline.store[name] for name in ("large.message.max.bytes", "s3.bucket", "s3.path.style")]
    assert found == [100_000_000, "b", False]


def test_file_is_read_with_or_without_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows put a mark before the text."""
    path = tmp_path / "wideload.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + ORDERS).encode())
    marked = load(path)
    path.write_text(HEAD + ORDERS)
    assert load(path) == marked


# --- secrets ---------------------------------------------------------------------------------------------------------

PASSWORD = "hunter2"
KEPT = [
    ("sasl.password = 'hunter2'\n", ORDERS, ""),
    ("sasl.password = '${env:PASSWORD}'\n", ORDERS, ""),
    ("ssl.key.password = 'hunter2'\n", ORDERS, ""),
    ("", S3, "s3.bucket = 'b'\ns3.access.key = 'a'\ns3.secret.key = 'hunter2'\n"),
    ("", S3, "s3.bucket = 'b'\ns3.session.token = 'hunter2'\n"),
    ("", OWN_CLASS, "shop.password = 'hunter2'\n"),
    ("", OWN_CLASS, "shop.passwords = ['hunter2', 'hunter2']\nshop.users = [{password = 'hunter2'}]\n"),
    ("", OWN_CLASS, "shop.users = [{password = '${env:PASSWORD}'}]\n"),
]


@pytest.mark.parametrize(("top", "table", "keys"), KEPT)
def test_secret_is_kept_but_not_printed(top: str, table: str, keys: str) -> None:
    """Secrets reach clients and stores as they are; neither the settings nor an error shows one."""
    text = HEAD + top + table + keys
    settings = settings_of(text, {"PASSWORD": PASSWORD})
    printed = f"{settings!r} {settings} {settings.pipelines!r} {dict(settings.pipelines[0].store)} {settings.client}"
    assert PASSWORD not in printed
    assert "***" in printed
    held = [*settings.client.security.values(), *_leaves(dict(settings.pipelines[0].store))]
    assert PASSWORD in held
    for fault in ("large.message.threshold.bytes = 'x'", "topic = []", "group.id = ''"):
        with pytest.raises(ConfigurationError) as caught:
            settings_of(text + fault, {"PASSWORD": PASSWORD})
        told = caught.value
        assert PASSWORD not in f"{told} {told!r} {told.__cause__!r} {told.__context__!r}"


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def test_secret_compares_as_what_it_is() -> None:
    """Only printing hides a secret: clients and stores use it like any string."""
    secret = Secret("pa ss")
    assert (secret == "pa ss", secret.encode(), f"{secret}", len(secret)) == (True, b"pa ss", "pa ss", 5)


@pytest.mark.parametrize("transforms", ['"offload"', '"inflate"', '"inflate", "offload"'])
def test_keys_of_payloads_are_hidden(transforms: str) -> None:
    """Neither the settings, nor what the store is opened with, nor the pages show a key."""
    name = "large.message.encryption"
    keys = f'large.message.signing.key = "{"s" * 32}"\nlarge.message.signing.previous.keys = ["{"p" * 32}"]\n'
    keys += f'{name}.type = "aes-256-gcm"\n{name}.key.id = "one"\n{name}.key.secret = "${{env:KEY}}"\n'
    pipeline = only_pipeline(HEAD + ORDERS.replace('"offload"', transforms) + keys, {"KEY": "1f" * 32})
    assert pipeline.signing == Signing("s" * 32, ("p" * 32,))
    assert pipeline.encryption is not None
    assert pipeline.encryption.current == "one"
    shown = pipeline_values(pipeline)
    assert shown["large.message.encryption.key.id"] == "one"
    assert not [value for value in shown.values() if isinstance(value, bytes)]
    for secret in ("ssss", "pppp", "1f1f", repr(b"\x1f" * 3)[2:-1]):
        assert secret not in f"{pipeline!r} {shown!r}"


def test_chunks_beside_letters_that_are_encrypted() -> None:
    """A pipeline of chunks may encrypt the dead letters that it stores."""
    name = "large.message.encryption"
    keys = f'{name}.type = "aes-256-gcm"\n{name}.key.id = "one"\n{name}.key.secret = "{"1f" * 32}"\n'
    keys += 'large.message.strategy = "chunk"\nerrors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "dead"\n'
    assert only_pipeline(HEAD + ORDERS + keys).encryption is not None


def test_the_token_of_who_may_steer_is_a_secret() -> None:
    """It is printed nowhere; by default nobody steers a worker."""
    token = "token-of-who-may-steer-1"
    settings = settings_of(f'web.control.token = "{token}"\nweb.control.enable = true\n' + HEAD + ORDERS)
    assert (settings.web_control, settings.web_control_token) == (True, token)
    assert token not in repr(settings)
    assert 'web.control.token = "***"' in effective(settings)
    assert token not in without_secrets(f"Bearer {token}")
    settings = settings_of(HEAD + ORDERS)
    assert (settings.web_control, settings.web_control_token) == (False, None)
