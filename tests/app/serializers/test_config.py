"""One configuration, as the seed's example has it: who gets which key, and which configurations are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, ClassVar

import pytest

from app.config.client import embedded_client_settings
from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    config,
)
from stores.s3 import S3Store
from tests.app.serializers.conftest import Config
from transforms.errors import ConfigurationError
from transforms.record import Header, Record

SERIALIZER = "app.serializers.LargeMessageSerializer"
DESERIALIZER = "app.serializers.LargeMessageDeserializer"
TIMEOUT = "large.message.store.timeout.ms"
STORE = "large.message.payload.store.class"
OWN = {"bootstrap.servers", "acks", "client.id"}
WITH = {"value.serializers": [SERIALIZER]}
S3 = {STORE: "s3", "s3.bucket": "payloads", "s3.region": "us-east-1"}
VALUE: list[Header] = [("large-message", b"true"), ("large-message.size", b"70")]
KEY: list[Header] = [("large-message-key", b"true"), ("large-message-key.size", b"5")]


class OwnStore:
    """A class of the seed's interface, with the keys that it speaks of."""

    KEYS: ClassVar[list[str]] = ["own.url"]
    found: ClassVar[dict[str, object]] = {}

    def configure(self, config: dict[str, object]) -> None:
        type(self).found = config

    def publish(self, topic: str, data: bytes) -> str:
        return f"own://{topic}/{len(data)}"

    def download(self, full_path: str) -> bytes:
        return full_path.encode()


class Open(OwnStore):
    """The same, without the names of its keys."""

    KEYS: ClassVar[list[str]] = []


class Unlisted:
    """A stage that reads the configuration, as one that asks a schema registry does."""

    closed = False

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:  # noqa: FBT001  # Kafka's signature
        self.url = str(config.get("registry.url"))

    def serialize(self, topic: str, headers: object, data: object) -> bytes:
        return self.url.encode()

    def close(self) -> None:
        self.closed = True


class Registered(Unlisted):
    """The same, with the names of its keys."""

    KEYS: ClassVar[list[str]] = ["registry.url"]


# --- who gets which key -----------------------------------------------------------------------------------------------


def test_the_seeds_producer_is_taken_apart() -> None:
    """The example of seed 000, with names of this project: strings for numbers, a comma in the list."""
    given = {
        "value.serializers": f"tests.app.serializers.conftest.to_json, {SERIALIZER}",
        "key.serializer": str.encode,
        **S3,
        "large.message.threshold.bytes": 1_048_576,
        "s3.retry.attempts": "3",
        "s3.connection.timeout.ms": "5000",
        "bootstrap.servers": "localhost:9092",
    }
    found = config.producer(given, OWN)
    assert found.client == {"bootstrap.servers": "localhost:9092"}
    assert [stage.name for stage in found.parts["value"].stages] == [
        "value.serializers, item 1, to_json",
        "value.serializers, item 2, LargeMessageSerializer",
    ]
    assert found.parts["value"].serialize("orders", [], [1]) == b"[1]"
    assert found.parts["key"].serialize("orders", [], "k") == b"k"
    found.close()


def test_a_key_that_is_none_is_not_set() -> None:
    """A configuration that is made by a program may say None for what is not set."""
    unset = {"s3.endpoint": None, "large.message.threshold.bytes": None, "acks": None}
    with closing(LargeMessageSerializer({**S3, **unset})) as stage:
        assert isinstance(stage.store, S3Store)
        assert [stage.wants(b"x" * size, []) for size in (1_048_576, 1_048_577)] == [False, True]


def test_classes_of_the_users(config_of: Config) -> None:
    """A store gets the client's whole configuration; what it or a stage lists is not the client's."""
    given = {
        **WITH,
        STORE: "tests.app.serializers.test_config.OwnStore",
        "large.message.threshold.bytes": "5",
        TIMEOUT: "5000",
        "own.url": "here",
        "acks": "all",
    }
    assert config.producer(given, OWN).client == {"acks": "all"}
    ours = {"large.message.id.generator": "uuid", TIMEOUT: 5000}
    assert OwnStore.found == {**ours, "own.url": "here", "acks": "all", **WITH}
    found = config.producer({"value.serializers": [Registered], "registry.url": "here", "acks": "all"}, OWN)
    assert found.client == {"acks": "all"}
    assert found.parts["value"].serialize("orders", [], b"") == b"here"
    secret = {"large.message.signing.key": "s" * 32}
    LargeMessageSerializer({STORE: OwnStore, **secret})
    assert not secret.keys() & OwnStore.found.keys()


@pytest.mark.parametrize(
    ("key", "value", "headers", "expected"),
    [
        (b"k", b"v", [], None),
        (b"k", b"v", [("own", b"1")], None),
        (b"k", b"v", VALUE, 70),
        (b"k", b"v", [*KEY, *VALUE], 75),
        (b"k", None, [*KEY, *VALUE], 5),
        (b"k", None, VALUE, None),
        (b"k", b"v", [VALUE[0]], 268_435_456),
        (b"k", b"v", [VALUE[0], ("large-message.size", b"wrong")], 0),
        (b"k", b"v", [VALUE[0], ("large-message.size", b"268435457")], 0),
    ],
)
def test_a_record_downloads_what_its_headers_say(
    config_of: Config, key: bytes, value: bytes | None, headers: list[Header], expected: int | None
) -> None:
    """Bytes of key and value together; None where the store is not called, a null among that."""
    nested = ComposableDeserializer([LargeMessageDeserializer, json.loads], config_of())
    given = config_of(**{"key.deserializer": LargeMessageDeserializer, "value.deserializer": nested})
    found = config.consumer(given, [])
    assert found.store_timeout_ms == 120_000
    assert found.restored_bytes(Record(key, value, headers)) == expected
    without = config.consumer({"value.deserializer": json.loads}, [])
    assert (without.store_timeout_ms, without.restored_bytes(Record(key, value, headers))) == (0, None)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key", "meant"),
    [
        ({**WITH, "memory.nmae": 1}, "memory.nmae", "memory.name"),
        ({**WITH, "large.message.treshold.bytes": 1}, "large.message.treshold.bytes", "large.message.threshold.bytes"),
        ({**WITH, "bootstrap.server": 1}, "bootstrap.server", "bootstrap.servers"),
        ({**WITH, "max.poll.interval.ms": 1}, "max.poll.interval.ms", None),  # of a consumer
        ({"value.serializers": [SERIALIZER, Registered], "registry.ulr": 1}, "registry.ulr", "registry.url"),
        ({"value.serialisers": [SERIALIZER]}, "value.serialisers", "value.serializers"),  # before the store's keys
        ({"value.deserializers": [SERIALIZER]}, "value.deserializers", "value.serializers"),
    ],
)
def test_an_unknown_property_is_refused(
    config_of: Config, given: Mapping[str, object], key: str, meant: str | None
) -> None:
    """The error has the nearest name, whichever of several wrong properties comes first."""
    hint = "" if meant is None else f"; did you mean {meant}?"
    with pytest.raises(ConfigurationError, match=re.escape(f"{key}: unknown property{hint}") + "$"):
        config.producer(config_of(**given), OWN)


def test_a_store_without_its_serializer_is_explained(config_of: Config) -> None:
    """The error names those that have a store, whichever of its properties comes first; and the key of a wrong one."""
    found = rf"^{STORE}: is only for LargeMessageSerializer and LargeMessageDeserializer: add one to the list, or"
    with pytest.raises(ConfigurationError, match=found):
        config.producer({"memory.size": 5, **config_of(**{"value.serializers": [bytes.swapcase]})}, OWN)
    with pytest.raises(ConfigurationError, match=r"^value\.serializer: item 1, object: lacks the method serialize"):
        config.producer({"value.serializer": object}, OWN)


@pytest.mark.parametrize("store", [OwnStore, Open])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("large.message.treshold.bytes", "did you mean large.message.threshold.bytes?"),
        ("large.mesage.threshold.bytes", "did you mean large.message.threshold.bytes?"),
        ("large.mesage.strategy", "did you mean large.message.strategy?"),
        ("large.message.what", "list it in its KEYS"),
        ("large.message.strategy", "is supported only by a SerializingProducer"),
    ],
)
def test_a_store_class_of_ones_own_hides_no_misspelt_key(store: type, name: str, found: str) -> None:
    """Names that begin as ours do are ours: a misspelt threshold is an error, and not the default."""
    for made in (LargeMessageSerializer, LargeMessageDeserializer):
        with pytest.raises(ConfigurationError, match=rf"^{name}: .*{re.escape(found)}"):
            made({STORE: store, "bootstrap.servers": "a:1", name: 5})


@pytest.mark.parametrize("given", [{**WITH, STORE: Open}, {"value.serializers": [Unlisted]}])
def test_a_class_without_a_list_hides_no_misspelt_key(given: Mapping[str, object]) -> None:
    """What is nearly a known key is this key, misspelt; what only has its name in it may be the class's."""
    more: dict[str, object] = {"kv.bootstrap.servers": "b:1", "more": 1, "large.message.max.bytes": 5}
    assert config.producer({**given, **more, "acks": "all"}, OWN).client == {"acks": "all"}
    for name, meant in (
        ("bootstrap.server", "bootstrap.servers"),
        ("value.serialisers", "value.serializers"),
        ("large.mesage.max.bytes", "large.message.max.bytes"),
    ):
        with pytest.raises(ConfigurationError, match=rf"^{name}: .*did you mean {meant}\?.*list it in its KEYS"):
            config.producer({**given, name: 1}, OWN)


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(("kind", "take"), [("serializer", config.producer), ("deserializer", config.consumer)])
def test_a_list_beside_its_singular_is_refused(field: str, kind: str, take: Callable[..., object]) -> None:
    """Seed 000: a list cannot be configured with its singular at the same time; the error names both keys."""
    given = {f"{field}.{kind}s": [bytes.swapcase], f"{field}.{kind}": bytes.swapcase}
    found = f"^{field}.{kind}s: cannot be combined with {field}.{kind}; set either"
    with pytest.raises(ConfigurationError, match=found):
        take(given, OWN)


def test_an_error_closes_what_was_opened() -> None:
    """A wrong stage of values leaves no serializer of keys open, which may have a store."""
    opened = Unlisted()
    with pytest.raises(ConfigurationError):
        config.producer({"key.serializer": opened, "value.serializer": object}, OWN)
    assert opened.closed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({STORE: None}, f"{STORE}: is missing"),
        ({STORE: 3}, f"{STORE}: found 3"),
        ({STORE: None, "large.message.payload.store.clas": "s3"}, "large.message.payload.store.clas: .* did you mean"),
        ({"large.message.max.bytes": "0"}, "large.message.max.bytes: found 0, allowed is 1 or more"),
    ],
)
def test_a_wrong_value_is_refused(config_of: Config, given: dict[str, object], message: str) -> None:
    """Each value is checked, on both sides, and the error says what was found and what is allowed."""
    for made in (LargeMessageSerializer, LargeMessageDeserializer):
        with pytest.raises(ConfigurationError, match=f"^{message}"):
            made({name: value for name, value in config_of(**given).items() if value is not None})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("large.message.threshold.bytes", "-1", "found -1, allowed is 0 or more"),
        ("large.message.threshold.bytes", "1 megabyte", "found '1 megabyte', allowed is a number of bytes"),
        ("large.message.compression.type", "brotli", "found 'brotli', allowed is one of: none, gzip, snappy, lz4, zs"),
        ("large.message.id.generator", "md5", "found 'md5', allowed is one of: uuid, sha256"),
        ("max.block.ms", "soon", "found 'soon', allowed is a value of type int"),
    ],
)
def test_a_wrong_value_of_a_serializer_is_refused(config_of: Config, key: str, value: str, message: str) -> None:
    """The same, of what only a serializer reads."""
    with pytest.raises(ConfigurationError, match=f"^{key}: {message}"):
        LargeMessageSerializer(config_of(**{key: value}))


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "key", "default_ms"),
    [(LargeMessageSerializer, "max.block.ms", 60_000), (LargeMessageDeserializer, "max.poll.interval.ms", 300_000)],
)
def test_the_store_must_not_take_longer_than_the_client_may(
    config_of: Config, made: Any, key: str, default_ms: int
) -> None:
    """Seed 000, "Critical Timing Constraints": refused when it is configured, with both numbers."""
    for limit, given in ((default_ms, {}), (7_000, {key: "7000"})):
        made(config_of(**{**given, TIMEOUT: limit}))
        found = rf"^{TIMEOUT}: .* may take {limit + 1:,} ms for a record.* no more than {key}, which is {limit:,}"
        with pytest.raises(ConfigurationError, match=found):
            made(config_of(**{**given, TIMEOUT: limit + 1}))


@pytest.mark.parametrize(
    ("take", "kind", "stage", "limit"),
    [
        (config.producer, "serializer", SERIALIZER, "max.block.ms"),
        (config.consumer, "deserializer", DESERIALIZER, "max.poll.interval.ms"),
    ],
)
def test_keys_and_values_share_the_time(
    config_of: Config, take: Callable[..., Any], kind: str, stage: str, limit: str
) -> None:
    """A record whose key and value are both large takes two calls of the store, for which the defaults are enough."""
    both = {f"key.{kind}": stage, f"value.{kind}": stage}
    for given in (config_of(**both), {**both, **S3, limit: None}, config_of(**both, **{TIMEOUT: 5_000, limit: 10_000})):
        take(given, [limit]).close()
    with pytest.raises(ConfigurationError, match=rf"may take 10,002 ms .* 2 calls .* than {limit}, which is 10,000"):
        take(config_of(**both, **{TIMEOUT: 5_001, limit: 10_000}), [limit])


def test_a_longer_store_time_does_not_fit_the_default(config_of: Config) -> None:
    """The default of `max.block.ms` is a minute for each call, also of one that stands in a composable."""
    keys = LargeMessageSerializer(config_of(**{TIMEOUT: 60_001, "max.block.ms": 70_000}), is_key=True)
    inner = ComposableSerializer([LargeMessageSerializer], config_of(**{TIMEOUT: 60_000}))
    assert config.producer(config_of(**{"value.serializer": inner, "acks": "all"}), OWN).client == {"acks": "all"}
    with pytest.raises(ConfigurationError, match=r"may take 120,001 ms .* 2 calls.* max\.block\.ms, which is 120,000"):
        config.producer({**config_of(), "value.serializer": inner, "key.serializer": keys}, OWN)


def test_the_stores_own_retries_must_fit() -> None:
    """Attempts, waits and pauses of the S3 store are part of the time."""
    with pytest.raises(ConfigurationError, match=r"3 attempts .* may take 58,000 ms"):
        LargeMessageSerializer({**S3, "max.block.ms": 30_000, TIMEOUT: 30_000})


def test_no_secret_shows() -> None:
    """Whatever is made of a configuration may be printed, or stand in a log of local variables."""
    secrets = ("s3.secret.key", "s3.session.token", "sasl.password", "ssl.key.password")
    given: dict[str, object] = {
        "bootstrap.servers": "a:1",
        **WITH,
        "value.deserializers": [DESERIALIZER],
        **S3,
        "s3.access.key": "A",
        **dict.fromkeys(secrets, "hush"),
    }
    made = (
        config.producer(given, given.keys()),
        config.consumer(given, given.keys()),
        LargeMessageSerializer(given),
        LargeMessageDeserializer(given),
        embedded_client_settings(given),
    )
    assert [type(each).__name__ for each in made if "hush" in repr(each)] == []
    # The connection is read in librdkafka's spellings, too.
    librdkafkas: dict[str, object] = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-256"}
    security = embedded_client_settings({**given, **librdkafkas, "sasl.username": "u"}).security
    assert (security["sasl.password"], security["sasl.mechanism"]) == ("hush", "SCRAM-SHA-256")
    assert security["security.protocol"] == "SASL_SSL"
