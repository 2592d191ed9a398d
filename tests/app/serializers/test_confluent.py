"""confluent-kafka's own classes with our serializers, as far as no broker is needed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    Consumer,
    DeserializingConsumer,
    KafkaException,
    Message,
    Producer,
    SerializingProducer,
    TopicPartition,
)
from confluent_kafka.aio import AsyncSerializingProducer
from confluent_kafka.error import ValueDeserializationError, ValueSerializationError
from confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    StringDeserializer,
)

from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    confluent_reads,
)
from app.serializers.confluent import AwaitedDeserializer, async_consumer_config, consumer_config, producer_config
from app.serializers.confluent import DeserializingConsumer as OurConsumer
from app.serializers.librdkafka import KEYS
from tests.app.serializers.conftest import Config
from tests.integration.client_stores import GatedStore
from transforms.errors import ConfigurationError, SerializationError

LARGE = b"x" * 5_000
_LONG_S = 30.0


@pytest.fixture
def gate() -> Iterator[type[GatedStore]]:
    """A store whose downloads wait until the test lets them pass."""
    GatedStore.reset()
    yield GatedStore
    GatedStore.reset()


def nowhere(**more: object) -> dict[str, Any]:
    """A client that reaches no broker, and does not say so."""
    return {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **more}


def context(headers: object, field: str = MessageField.VALUE) -> SerializationContext:
    """What confluent-kafka hands to a serializer."""
    return SerializationContext("orders", field, headers)  # type: ignore[arg-type] # what a test wants


def to_json(value: object) -> bytes:
    """As applications write it."""
    return json.dumps(value).encode()


# --- configuration ----------------------------------------------------------------------------------------------------


def test_producer_config_keeps_what_is_librdkafkas(config_of: Config) -> None:
    """What is the store's, the serializers' or unknown to librdkafka goes; a client can be made of the rest."""

    def on_error(error: object) -> None:
        """Is a key of the Python client, not of librdkafka."""

    config = producer_config(
        config_of(
            **nowhere(acks="all", error_cb=on_error, partitioner="murmur2"),
            **{
                "value.serializers": [to_json, LargeMessageSerializer],
                "key.serializer": "confluent_kafka.serialization.StringSerializer",
                "max.block.ms": 70_000,
            },
        )
    )
    serializers = (config.pop("key.serializer"), config.pop("value.serializer"))
    assert all(isinstance(each, ComposableSerializer) for each in serializers)
    assert config == {**nowhere(acks="all", error_cb=on_error, partitioner="murmur2"), "message.max.bytes": 1_000_000}
    SerializingProducer(config).close()


def test_consumer_config_keeps_what_is_librdkafkas(config_of: Config) -> None:
    """Likewise for a consumer; dotted paths and classes do alike."""

    def on_commit(error: object, partitions: object) -> None:
        """Is a key of the Python client."""

    config = consumer_config(
        config_of(
            **nowhere(on_commit=on_commit),
            **{
                "group.id": "g",
                "value.deserializers": "app.serializers.LargeMessageDeserializer, json.loads",
                "key.deserializer": StringDeserializer,
            },
        )
    )
    deserializers = (config.pop("key.deserializer"), config.pop("value.deserializer"))
    assert all(isinstance(each, ComposableDeserializer) for each in deserializers)
    assert config == nowhere(**{"on_commit": on_commit, "group.id": "g"})
    DeserializingConsumer(config).close()


def test_without_serializers_there_are_none() -> None:
    """Bytes go in and out as they are."""
    assert producer_config(nowhere()) == nowhere(**{"message.max.bytes": 1_000_000})
    assert consumer_config(nowhere()) == async_consumer_config(nowhere()) == nowhere()


WRITES, READS = {"value.serializer": LargeMessageSerializer}, {"value.deserializer": LargeMessageDeserializer}


@pytest.mark.parametrize(
    ("make", "stage"), [(producer_config, WRITES), (consumer_config, READS), (async_consumer_config, READS)]
)
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"bootstrap.server": "x"}, r"bootstrap\.server: .*did you mean bootstrap\.servers\?"),
        ({"large.message.treshold.bytes": 1}, r"large\.message\.treshold\.bytes: .*threshold"),
        (
            {"large.message.store.timeout.ms": 30_000, "max.block.ms": "20000", "max.poll.interval.ms": 20_000},
            r".*30,000 ms.*max\.(block|poll\.interval)\.ms, which is 20,000",
        ),
    ],
)
def test_what_is_refused(
    config_of: Config, make: Any, stage: dict[str, Any], given: dict[str, Any], found: str
) -> None:
    """A key that neither librdkafka nor the store knows; and a store that may take longer than the client: seed 000."""
    with pytest.raises(ConfigurationError, match=f"^{found}"):
        make(config_of(**stage, **given))


def test_the_keys_are_those_of_the_installed_release(config_of: Config) -> None:
    """Each listed key is one that a client takes; a newer key joins the dict that the client is made from."""
    unknown = []
    for key in KEYS:
        told = []
        for client in (Producer, Consumer):
            # A client reads its keys in order and stops at the first that it does not know, so none is made here.
            with pytest.raises((KafkaException, TypeError, ValueError, AttributeError)) as caught:
                client({"group.id": "g", key: "1", "wideload.no.such.key": ""})
            told.append(str(caught.value))
        if all("No such configuration property" in text and f'"{key}"' in text for text in told):
            unknown.append(key)
    assert sorted(unknown) == [
        f"{part}.{kind}.builder" for part in ("key", "value") for kind in ("deserializer", "serializer")
    ]
    with pytest.raises(ConfigurationError, match=r"^key\.of\.tomorrow: is not a key that is known here"):
        producer_config(config_of(**{"key.of.tomorrow": 1, "value.serializer": LargeMessageSerializer}))


def test_a_wrong_value_is_librdkafkas_own_error(config_of: Config) -> None:
    """A key that it knows stays its own, whatever stands there."""
    config = producer_config(config_of(**nowhere(acks="seven"), **{"value.serializer": LargeMessageSerializer}))
    with pytest.raises(KafkaException, match="Invalid value"):
        SerializingProducer(config)


def test_a_users_store_gets_keys_of_any_name(gate: type[GatedStore]) -> None:
    """What librdkafka does not know is the store's, and does not reach librdkafka."""
    config = producer_config(
        nowhere(
            **{
                "large.message.payload.store.class": "tests.integration.client_stores.GatedStore",
                "value.serializer": LargeMessageSerializer,
                "my.store.colour": "blue",
            }
        )
    )
    assert "my.store.colour" not in config
    SerializingProducer(config).close()


# --- headers ----------------------------------------------------------------------------------------------------------


def test_headers_none_lets_small_values_pass_and_says_what_large_ones_need(gate: type[GatedStore]) -> None:
    """The client hands on no headers where `produce` was given none, so a reference has no place; nothing is stored."""
    config = {"large.message.payload.store.class": GatedStore, "large.message.threshold.bytes": 100}
    producer = SerializingProducer({**nowhere(), "value.serializer": LargeMessageSerializer(config)})
    purged: list[object] = []

    def on_delivery(_error: object, message: Any) -> None:
        purged.append(message.value())

    producer.produce("orders", value=b"small", on_delivery=on_delivery)
    with pytest.raises(ValueSerializationError, match=r"give the record headers=\[\]") as caught:
        producer.produce("orders", value=LARGE, on_delivery=on_delivery)
    assert isinstance(caught.value.exception, SerializationError)
    assert not gate.payloads
    producer.purge()
    producer.flush()
    assert purged == [b"small"]
    producer.close()


@pytest.mark.parametrize("own", [[("a", b"1"), ("b", None)], {"a": b"1", "b": None}, [], {}])
def test_headers_of_a_reference_join_the_ones_that_are_sent(
    config_of: Config, own: list[tuple[str, bytes | None]] | dict[str, bytes | None]
) -> None:
    """List or dict: behind the application's own, in the very object that confluent-kafka sends."""
    before = list(own.items()) if isinstance(own, dict) else list(own)
    sent: Any = own
    path = LargeMessageSerializer(config_of())(LARGE, context(sent))
    after = list(sent.items()) if isinstance(sent, dict) else sent
    assert path is not None
    assert path.startswith(b"memory://")
    assert after[: len(before)] == before
    assert [name for name, _ in after[len(before) :]] == [
        "large-message",
        "large-message.size",
        "large-message.checksum",
    ]


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("shape", [list, dict])
def test_headers_of_the_last_record_go_before_the_next(
    config_of: Config,
    shape: type[list[Any] | dict[str, Any]],
    composed: bool,  # noqa: FBT001
) -> None:
    """An application may use its headers again: a small value is no reference then, and a large one is one, once."""
    classes = [LargeMessageSerializer]
    key, value = (
        ComposableSerializer(classes, config_of(), is_key=is_key)
        if composed
        else LargeMessageSerializer(config_of(), is_key=is_key)
        for is_key in (True, False)
    )
    headers: Any = shape([("a", b"1"), ("b", None)])
    for large_key, large_value in ((True, True), (True, True), (False, True), (True, False), (False, False)):
        key(LARGE if large_key else b"small", context(headers, MessageField.KEY))
        value(LARGE if large_value else b"small", context(headers))
        names = [name for name, _ in (headers.items() if isinstance(headers, dict) else headers)]
        assert names[:2] == ["a", "b"]
        assert names.count("large-message-key") == large_key
        assert names.count("large-message") == large_value
        assert len(names) == 2 + 3 * large_key + 3 * large_value


def test_headers_of_a_reference_that_is_passed_on_stay(config_of: Config) -> None:
    """What another client wrote is the application's own, also where it is a reference."""
    own = [("large-message", b"true"), ("large-message.size", b"5000")]
    headers = list(own)
    assert LargeMessageSerializer(config_of())(b"memory://x/orders/1", context(headers)) == b"memory://x/orders/1"
    assert headers == own


# --- stages and errors ------------------------------------------------------------------------------------------------


# --- threads, asyncio -------------------------------------------------------------------------------------------------


def test_one_serializer_serves_several_threads(config_of: Config) -> None:
    """Each record gets the reference of its own payload."""
    serializer = producer_config(config_of(**{"value.serializers": [to_json, LargeMessageSerializer]}))[
        "value.serializer"
    ]
    deserializer = consumer_config(config_of(**{"value.deserializers": [LargeMessageDeserializer, json.loads]}))[
        "value.deserializer"
    ]
    begin = threading.Barrier(8)

    def work(number: int) -> bool:
        begin.wait()
        for turn in range(50):
            value = f"{number}-{turn}" * 100
            headers: list[Any] = []
            if deserializer(serializer(value, context(headers)), context(headers)) != value or headers:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


async def test_awaited_deserializer_leaves_the_loop_free(gate: type[GatedStore]) -> None:
    """While a download hangs the loop runs; what is no reference needs no thread; a payload comes back."""
    config = {"large.message.payload.store.class": GatedStore, "large.message.threshold.bytes": 100}
    headers: list[Any] = []
    path = LargeMessageSerializer(config)(LARGE, context(headers))
    taken = async_consumer_config({**config, "value.deserializers": [LargeMessageDeserializer]})
    deserializer: AwaitedDeserializer = taken["value.deserializer"]
    gate.open.clear()
    threading.Timer(0.05, gate.open.set).start()
    reading = deserializer(path, context(headers))
    assert await deserializer(b"small", context([])) == b"small"
    assert await deserializer(None, context(None)) is None
    assert gate.begun == 0
    assert await reading == LARGE
    assert headers == []
    await deserializer.aclose()


async def test_async_producer_takes_no_headers_and_so_no_references(config_of: Config) -> None:
    """confluent-kafka's own limit (docs/serializers.md): when this fails, its `aio` producers can do it."""
    producer = await AsyncSerializingProducer({**nowhere(), "value.serializer": LargeMessageSerializer(config_of())})
    with pytest.raises(ValueSerializationError, match=r"a reference needs headers"):
        await producer.produce("orders", value=LARGE)
    with pytest.raises(NotImplementedError, match="Headers are not supported"):
        await producer.produce("orders", value=b"small", headers=[])
    await producer.close()


def test_no_key_of_the_installed_release_is_missing() -> None:
    """Every name in librdkafka's binary that a client takes as a key is listed, such as `linger.ms`."""
    package = Path(confluent_kafka.__file__).parent
    binaries = [*package.glob("cimpl*"), *package.parent.glob("confluent_kafka.libs/*")]
    texts = {text for path in binaries for text in re.findall(rb"[a-z]+(?:\.[a-z_]+)+(?=\0)", path.read_bytes())}
    # A linker keeps a text that is the end of another one only there: `linger.ms` in `sticky.partitioning.linger.ms`.
    words = [text.decode().split(".") for text in texts]
    found = {".".join(each[i:]) for each in words for i in range(len(each) - 1)}
    assert "linger.ms" in found
    missing = []
    for name in found - KEYS:
        for client in (Producer, Consumer):
            with pytest.raises((KafkaException, TypeError, ValueError, AttributeError)) as caught:
                client({"group.id": "g", name: "1", "wideload.no.such.key": ""})
            if "wideload.no.such.key" in str(caught.value):
                missing.append(name)
    assert missing == []


# --- batches ----------------------------------------------------------------------------------------------------------


def fetching(monkeypatch: pytest.MonkeyPatch, values: list[tuple[int, bytes, Any]], **config: Any) -> OurConsumer:
    """A consumer of two partitions that fetches these values, each with its headers, by one call."""
    batches = [[Message("t", number, at, b"k", value, own) for at, (number, value, own) in enumerate(values)]]

    class Fetched(Consumer):
        """Gives what the test has."""

        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            return batches.pop() if batches else []

    monkeypatch.setattr(confluent_reads, "_CLIENT", Fetched)
    consumer = OurConsumer(nowhere(**{"group.id": "g", **config}))
    consumer.assign([TopicPartition("t", number, 0) for number in (0, 1)])
    return consumer


def test_payloads_of_several_partitions(config_of: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message gets its own, whichever partition is read first."""
    values: list[tuple[int, bytes, Any]] = []
    for number in (0, 0, 0, 1, 1):
        headers: list[Any] = []
        path = LargeMessageSerializer(config_of())(b"%d" % len(values) * 5_000, context(headers))
        assert path is not None
        values.append((number, path, headers))
    with fetching(monkeypatch, values, **config_of(**{"value.deserializer": LargeMessageDeserializer})) as consumer:
        found = consumer.consume(5, 0)
        assert [each.value() for each in found] == [b"%d" % (each.offset() or 0) * 5_000 for each in found]
        assert len(found) == 5


def test_the_call_behind_a_short_batch_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure does not wait until the other partitions have nothing more."""
    values: list[tuple[int, bytes, Any]] = [(0, b"a", None), (0, b"bad", None), (1, b"b", None), (1, b"c", None)]

    def failing(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError(data)
        return data

    with fetching(monkeypatch, values, **{"value.deserializers": [failing]}) as consumer:
        assert [each.value() for each in consumer.consume(4, 0)] == [b"a"]
        with pytest.raises(ValueDeserializationError):
            consumer.consume(4, 0)
        assert [each.value() for each in consumer.consume(4, 0)] == [b"b", b"c"]
