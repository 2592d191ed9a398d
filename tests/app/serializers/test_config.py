"""One configuration, as the seed's example has it: who gets which key, and which configurations are refused."""

from __future__ import annotations

import json
import subprocess
import sys
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
OWN = {"bootstrap.servers", "acks", "client.id"}
VALUE: list[Header] = [("large-message", b"true"), ("large-message.size", b"70")]
KEY: list[Header] = [("large-message-key", b"true"), ("large-message-key.size", b"5")]


class OwnStore:
    """A class of the seed's interface, with the keys that it speaks of."""

    KEYS: ClassVar[list[str]] = ["own.url"]
    found: ClassVar[dict[str, object]] = {}

    def configure(self, config: dict[str, object]) -> None:
        """Keeps what it was given."""
        type(self).found = config

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        return f"own://{topic}/{len(data)}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        return full_path.encode()


class Open(OwnStore):
    """The same, without the names of its keys."""

    KEYS: ClassVar[list[str]] = []


class Unlisted:
    """A stage that reads the configuration, as one that asks a schema registry does."""

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:  # noqa: FBT001  # Kafka's signature
        """Keeps what is its own."""
        self.url = str(config.get("registry.url"))

    def serialize(self, topic: str, headers: object, data: object) -> bytes:
        """Where the registry is."""
        return self.url.encode()


class Registered(Unlisted):
    """The same, with the names of its keys."""

    KEYS: ClassVar[list[str]] = ["registry.url"]


def to_json(value: object) -> bytes:
    """As applications write it."""
    return json.dumps(value).encode()


# --- who gets which key -----------------------------------------------------------------------------------------------


def test_the_seeds_producer_is_taken_apart() -> None:
    """The example of seed 000, with names of this project: strings for numbers, a comma in the list."""
    given = {
        "value.serializers": f"tests.app.serializers.test_config.to_json, {SERIALIZER}",
        "key.serializer": str.encode,
        "large.message.payload.store.class": "s3",
        "large.message.threshold.bytes": 1_048_576,
        "s3.bucket": "my-bucket",
        "s3.region": "us-east-1",
        "s3.retry.attempts": "3",
        "s3.connection.timeout.ms": "5000",
        "bootstrap.servers": "localhost:9092",
    }
    found = config.producer(given, OWN)
    assert found.client == {"bootstrap.servers": "localhost:9092"}
    assert [stage.name for stage in found.parts["value"].stages] == [
        "value.serializers, stage 1, to_json",
        "value.serializers, stage 2, LargeMessageSerializer",
    ]
    assert found.parts["value"].serialize("orders", [], [1]) == b"[1]"
    assert found.parts["key"].serialize("orders", [], "k") == b"k"
    found.close()


def test_a_consumer_is_taken_apart(config_of: Config) -> None:
    """The four keys of a consumer are read likewise."""
    given = config_of(**{"value.deserializers": [DESERIALIZER, json.loads], "key.deserializer": bytes.decode, "x": 1})
    found = config.consumer(given, ["x"])
    assert found.client == {"x": 1}
    assert found.parts["value"].deserialize("orders", [], b"[1]") == [1]
    assert found.parts["key"].deserialize("orders", [], b"k") == "k"


def test_without_serializers_bytes_stay_bytes() -> None:
    """A configuration without any of the four keys leaves all to the client."""
    found = config.producer({"bootstrap.servers": "localhost:9092"}, OWN)
    assert (found.parts, found.client) == ({}, {"bootstrap.servers": "localhost:9092"})


def test_a_key_of_the_store_that_is_none_is_not_set() -> None:
    """A configuration that is made by a program may say None for what is not set."""
    given = {"large.message.payload.store.class": "s3", "s3.bucket": "payloads", "s3.region": "us-east-1"}
    unset = {"s3.endpoint": None, "large.message.threshold.bytes": None, "acks": None}
    with closing(LargeMessageSerializer({**given, **unset})) as stage:
        assert isinstance(stage.store, S3Store)
        assert [stage.wants(b"x" * size, []) for size in (1_048_576, 1_048_577)] == [False, True]


def test_a_store_within_a_composable_stage_counts(config_of: Config) -> None:
    """Serializers that stand in a composable among the stages are found: their store's keys, and their time."""
    inner = ComposableSerializer([LargeMessageSerializer], config_of())
    given = config_of(**{"value.serializer": inner, "acks": "all"})
    found = config.producer(given, OWN)
    assert found.client == {"acks": "all"}
    keys = LargeMessageSerializer(config_of(), is_key=True)
    with pytest.raises(ConfigurationError, match="120,000 ms for a record, 2 calls"):
        config.producer({**given, "key.serializer": keys, "max.block.ms": 60_000}, OWN)


def test_a_class_of_ones_own_gets_everything() -> None:
    """A user's class gets the client's whole configuration; what it speaks of is not the client's."""
    given = {
        "value.serializers": [SERIALIZER],
        "large.message.payload.store.class": "tests.app.serializers.test_config.OwnStore",
        "large.message.threshold.bytes": "5",
        "large.message.store.timeout.ms": "5000",
        "own.url": "here",
        "own.more": "there",
        "acks": "all",
    }
    found = config.producer(given, {*OWN, "own.more"})
    assert found.client == {"own.more": "there", "acks": "all"}
    assert OwnStore.found == {
        "large.message.id.generator": "uuid",
        "large.message.store.timeout.ms": 5000,
        "own.url": "here",
        "own.more": "there",
        "acks": "all",
        "value.serializers": [SERIALIZER],
    }
    with pytest.raises(ConfigurationError, match=r"own\.more: is not a key that is known here"):
        config.producer(given, OWN)
    del given["own.more"]
    assert config.producer(given, OWN).client == {"acks": "all"}


def test_a_stage_of_ones_own_has_keys_of_its_own() -> None:
    """The keys that a stage lists are not the client's, and one that is misspelt is found."""
    given = {"value.serializers": [Registered], "registry.url": "here", "acks": "all"}
    found = config.producer(given, OWN)
    assert found.client == {"acks": "all"}
    assert found.parts["value"].serialize("orders", [], b"") == b"here"


WITH = {"value.serializers": [SERIALIZER]}


@pytest.mark.parametrize(
    ("given", "key", "nearest"),
    [
        ({**WITH, "memory.nmae": 1}, "memory.nmae", "memory.name"),
        ({**WITH, "large.message.treshold.bytes": 1}, "large.message.treshold.bytes", "large.message.threshold.bytes"),
        ({**WITH, "bootstrap.server": 1}, "bootstrap.server", "bootstrap.servers"),
        ({**WITH, "value.serialisers": []}, "value.serialisers", "value.serializers"),
        ({**WITH, "max.poll.interval.ms": 1}, "max.poll.interval.ms", None),  # of a consumer
        ({"value.serializers": [SERIALIZER, Registered], "registry.ulr": 1}, "registry.ulr", "registry.url"),
        ({"value.serialisers": [SERIALIZER]}, "value.serialisers", "value.serializers"),
        ({"value.deserializers": [SERIALIZER]}, "value.deserializers", "value.serializers"),
    ],
)
def test_an_unknown_property_is_refused(
    config_of: Config, given: Mapping[str, object], key: str, nearest: str | None
) -> None:
    """The error has the nearest name, also where no stage takes the store's properties."""
    with pytest.raises(ConfigurationError) as caught:
        config.producer(config_of(**given), OWN)
    hint = "" if nearest is None else f"; did you mean {nearest}?"
    assert str(caught.value) == f"{key}: is not a key that is known here{hint}"


def test_a_store_without_its_serializer_is_explained(config_of: Config) -> None:
    """The error names the serializers that have a store, whichever of its properties comes first."""
    given = {"memory.size": 5, **config_of(**{"value.serializers": [bytes.swapcase]})}
    with pytest.raises(
        ConfigurationError, match=r"payload\.store\.class: is only for LargeMessageSerializer and Large"
    ):
        config.producer(given, OWN)


@pytest.mark.parametrize("store", [OwnStore, Open])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("large.message.treshold.bytes", "did you mean large.message.threshold.bytes?"),
        ("large.mesage.threshold.bytes", "did you mean large.message.threshold.bytes?"),
        ("large.message.stratgy", "did you mean large.message.strategy?"),
        ("large.mesage.strategy", "did you mean large.message.strategy?"),
        ("large.message.what", "list it in its KEYS"),
        ("large.message.strategy", "is for a SerializingProducer"),
    ],
)
def test_a_store_class_of_ones_own_hides_no_misspelt_key(store: type, name: str, found: str) -> None:
    """Names that begin as ours do are ours: a misspelt threshold is an error, and not the default."""
    given = {"large.message.payload.store.class": store, "bootstrap.servers": "a:1", name: 5}
    for made in (LargeMessageSerializer, LargeMessageDeserializer):
        with pytest.raises(ConfigurationError) as caught:
            made(given)
        assert caught.value.key == name
        assert found in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"value.serializers": [SERIALIZER], "large.message.payload.store.class": Open},
        {"value.serializers": [Unlisted]},
    ],
)
def test_a_class_without_a_list_hides_no_misspelt_key(given: Mapping[str, object]) -> None:
    """What is nearly a known key is this key, misspelt; what only has its name in it may be the class's."""
    more: dict[str, object] = {"kv.bootstrap.servers": "b:1", "more": 1, "large.message.max.bytes": 5}
    found = config.producer({**given, **more, "acks": "all"}, OWN)
    assert found.client == {"acks": "all"}
    for name, meant in (
        ("bootstrap.server", "bootstrap.servers"),
        ("value.serialisers", "value.serializers"),
        ("large.mesage.max.bytes", "large.message.max.bytes"),
    ):
        with pytest.raises(ConfigurationError, match=rf"^{name}: .*did you mean {meant}\?") as caught:
            config.producer({**given, name: 1}, OWN)
        assert "list it in its KEYS" in str(caught.value)


def test_the_store_class_misspelt_is_found() -> None:
    """That the key is missing would be half of the truth."""
    with pytest.raises(ConfigurationError, match=r"^large\.message\.payload\.store\.clas: .* did you mean"):
        LargeMessageSerializer({"large.message.payload.store.clas": "s3", "s3.bucket": "payloads"})


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


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(("kind", "take"), [("serializer", config.producer), ("deserializer", config.consumer)])
def test_a_list_beside_its_singular_is_refused(field: str, kind: str, take: Callable[..., object]) -> None:
    """Seed 000: a list cannot be configured with its singular at the same time; the error names both keys."""
    given = {f"{field}.{kind}s": [bytes.swapcase], f"{field}.{kind}": bytes.swapcase}
    with pytest.raises(ConfigurationError) as caught:
        take(given, OWN)
    assert str(caught.value).startswith(f"{field}.{kind}s: cannot be combined with {field}.{kind}; set either")


class Closing:
    """Says whether it was closed."""

    closed = False

    def serialize(self, topic: str, headers: object, data: bytes) -> bytes:
        """The bytes as they are."""
        return data

    def close(self) -> None:
        """See the class."""
        self.closed = True


def test_an_error_closes_what_was_opened() -> None:
    """A wrong stage of values leaves no serializer of keys open, which may have a store."""
    opened = Closing()
    with pytest.raises(ConfigurationError):
        config.producer({"key.serializer": opened, "value.serializer": object}, OWN)
    assert opened.closed


def test_the_singular_is_named_in_its_errors() -> None:
    """What is wrong with `value.serializer` is told of that key."""
    with pytest.raises(ConfigurationError) as caught:
        config.producer({"value.serializer": object}, OWN)
    assert caught.value.key == "value.serializer"


@pytest.mark.parametrize("found", [None, 3])
def test_the_store_class_is_required(found: object) -> None:
    """Seed 000: `large.message.payload.store.class` is required."""
    given = {} if found is None else {"large.message.payload.store.class": found}
    for made in (LargeMessageSerializer, LargeMessageDeserializer):
        with pytest.raises(ConfigurationError, match=r"large\.message\.payload\.store\.class: (is missing|found 3)"):
            made(given)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("large.message.threshold.bytes", "-1", "found -1, allowed is 0 or more"),
        (
            "large.message.threshold.bytes",
            "1 megabyte",
            'found \'1 megabyte\', allowed is a number of bytes, or a text such as "1MB" or "64KiB"',
        ),
        (
            "large.message.compression.type",
            "brotli",
            "found 'brotli', allowed is one of: none, gzip, snappy, lz4, zstd",
        ),
        ("large.message.id.generator", "md5", "found 'md5', allowed is one of: uuid, sha256"),
        ("large.message.max.bytes", "0", "found 0, allowed is 1 or more"),
        ("max.block.ms", "soon", "found 'soon', allowed is a value of type int"),
    ],
)
def test_a_wrong_value_is_refused(config_of: Config, key: str, value: str, message: str) -> None:
    """Each value is checked, and the error says what was found and what is allowed."""
    with pytest.raises(ConfigurationError) as caught:
        LargeMessageSerializer(config_of(**{key: value}))
    assert caught.value.key == key
    assert message in str(caught.value)


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
        with pytest.raises(ConfigurationError) as caught:
            made(config_of(**{**given, TIMEOUT: limit + 1}))
        assert caught.value.key == TIMEOUT
        assert f"the store may take {limit + 1:,} ms for a record" in str(caught.value)
        assert f"allowed is no more than {key}, which is {limit:,}" in str(caught.value)


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
    s3 = {"large.message.payload.store.class": "s3", "s3.bucket": "payloads", "s3.region": "us-east-1"}
    for given in (config_of(**both), {**both, **s3, limit: None}, config_of(**both, **{TIMEOUT: 5_000, limit: 10_000})):
        take(given, [limit]).close()
    with pytest.raises(ConfigurationError, match=rf"may take 10,002 ms .* 2 calls .* than {limit}, which is 10,000"):
        take(config_of(**both, **{TIMEOUT: 5_001, limit: 10_000}), [limit])


def test_a_longer_store_time_does_not_fit_the_default(config_of: Config) -> None:
    """The default of `max.block.ms` is a minute for each call; what is over it is refused, as with one call."""
    both = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER, TIMEOUT: 60_000}
    keys = LargeMessageSerializer(config_of(**{TIMEOUT: 60_001, "max.block.ms": 70_000}), is_key=True)
    with pytest.raises(ConfigurationError, match=r"may take 120,001 ms .* max\.block\.ms, which is 120,000"):
        config.producer({**config_of(**both), "key.serializer": keys}, OWN)


def test_the_stores_own_retries_must_fit() -> None:
    """Attempts, waits and pauses of the S3 store are part of the time."""
    given = {
        "large.message.payload.store.class": "s3",
        "s3.bucket": "payloads",
        "max.block.ms": 30_000,
        TIMEOUT: 30_000,
    }
    with pytest.raises(ConfigurationError, match=r"3 attempts .* may take 58,000 ms"):
        LargeMessageSerializer(given)


# --- the cluster, for the warning -------------------------------------------------------------------------------------


def test_the_clients_connection_is_read() -> None:
    """librdkafka's spellings are taken: lower-case protocols, and `sasl.mechanisms`."""
    settings = embedded_client_settings(
        {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "u",
            "acks": "all",
        }
    )
    assert settings.bootstrap_servers == "a:1,b:2"
    assert settings.security["security.protocol"] == "SASL_SSL"
    assert settings.security["sasl.mechanism"] == "SCRAM-SHA-256"


def test_no_secret_shows() -> None:
    """Whatever is made of a configuration may be printed, or stand in a log of local variables."""
    secrets = ("s3.secret.key", "s3.session.token", "sasl.password", "ssl.key.password")
    given: dict[str, object] = {
        "bootstrap.servers": "a:1",
        "value.serializers": [SERIALIZER],
        "value.deserializers": [DESERIALIZER],
        "large.message.payload.store.class": "s3",
        "s3.bucket": "payloads",
        "s3.region": "us-east-1",
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
    assert embedded_client_settings(given).security["sasl.password"] == "hush"


# --- what is imported -------------------------------------------------------------------------------------------------


def test_serializers_bring_no_client_with_them() -> None:
    """An application that serializes does not import Faust, a Kafka client, boto3 or Spark for it."""
    program = (
        "import sys, app.serializers, app.serializers.config as c; c.producer({'value.serializers': "
        "['app.serializers.LargeMessageSerializer'], 'large.message.payload.store.class': 'memory'}, []); "
        "print([m for m in ('faust', 'aiokafka', 'confluent_kafka', 'kafka', 'boto3', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
