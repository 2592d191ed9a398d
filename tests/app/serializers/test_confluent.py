"""confluent-kafka's own classes with our serializers, as far as no broker is needed."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, DeserializingConsumer, KafkaException, Producer, SerializingProducer
from confluent_kafka.aio import AsyncSerializingProducer
from confluent_kafka.error import ValueSerializationError
from confluent_kafka.serialization import MessageField, SerializationContext, StringDeserializer

from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
)
from app.serializers.confluent import consumer_config, producer_config
from app.serializers.librdkafka import KEYS
from tests.app.serializers.conftest import Config, to_json
from transforms.errors import ConfigurationError

LARGE = b"x" * 5_000
REFUSALS = (KafkaException, TypeError, ValueError, AttributeError)


def nowhere(**more: object) -> dict[str, Any]:
    """A client that reaches no broker, and does not say so."""
    return {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **more}


def context(headers: object, field: str = MessageField.VALUE) -> SerializationContext:
    """What confluent-kafka hands to a serializer."""
    return SerializationContext("orders", field, headers)  # type: ignore[arg-type] # what a test wants


# --- configuration ----------------------------------------------------------------------------------------------------


def test_what_is_librdkafkas_is_kept(config_of: Config) -> None:
    """What is the store's, the serializers' or unknown to librdkafka goes; a client can be made of the rest."""
    own = nowhere(**{"acks": "all", "partitioner": "murmur2", "group.id": "g"}, error_cb=print, on_commit=print)
    writes = {
        "value.serializers": [to_json, LargeMessageSerializer],
        "key.serializer": "confluent_kafka.serialization.StringSerializer",
        "max.block.ms": 70_000,
    }
    reads = {
        "value.deserializers": "app.serializers.LargeMessageDeserializer, json.loads",
        "key.deserializer": StringDeserializer,
    }
    config = producer_config(config_of(**own, **writes))
    assert all(isinstance(config.pop(f"{each}.serializer"), ComposableSerializer) for each in ("key", "value"))
    assert config == {**own, "message.max.bytes": 1_000_000}
    del config["on_commit"]  # no key of a producer
    SerializingProducer(config).close()
    config = consumer_config(config_of(**own, **reads))
    assert all(isinstance(config.pop(f"{each}.deserializer"), ComposableDeserializer) for each in ("key", "value"))
    assert config == own
    DeserializingConsumer(config).close()


def refused(name: str) -> list[str]:
    """What a producer and a consumer say of a key; they stop at the first that they do not know, so none is made."""
    told = []
    for client in (Producer, Consumer):
        with pytest.raises(REFUSALS) as caught:
            client({"group.id": "g", name: "1", "wideload.no.such.key": ""})
        told.append(str(caught.value))
    return told


def test_the_keys_are_those_of_the_installed_release(config_of: Config) -> None:
    """Each listed key is one that a client takes, and each name in librdkafka's binary that one takes is listed."""
    unknown = {key for key in KEYS if all(f'No such configuration property: "{key}"' in text for text in refused(key))}
    assert unknown == {f"{part}.{kind}izer.builder" for part in ("key", "value") for kind in ("deserial", "serial")}
    package = Path(confluent_kafka.__file__).parent
    binaries = [*package.glob("cimpl*"), *package.parent.glob("confluent_kafka.libs/*")]
    texts = {text for path in binaries for text in re.findall(rb"[a-z]+(?:\.[a-z_]+)+(?=\0)", path.read_bytes())}
    # A linker keeps a text that is the end of another one only there: `linger.ms` in `sticky.partitioning.linger.ms`.
    words = [text.decode().split(".") for text in texts]
    found = {".".join(each[i:]) for each in words for i in range(len(each) - 1)}
    assert "linger.ms" in found
    assert [name for name in found - KEYS if any("wideload.no.such.key" in text for text in refused(name))] == []
    with pytest.raises(ConfigurationError, match=r"^key\.of\.tomorrow: unknown property"):
        producer_config(config_of(**{"key.of.tomorrow": 1, "value.serializer": LargeMessageSerializer}))


# --- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("shape", [list, dict])
def test_headers_of_the_last_record_go_before_the_next(
    config_of: Config,
    shape: type[list[Any] | dict[str, Any]],
    composed: bool,  # noqa: FBT001
) -> None:
    """An application may use its headers again: a small value is no reference then, and a large one is one, once."""
    key, value = (
        ComposableSerializer([LargeMessageSerializer], config_of(), is_key=is_key)
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


# --- threads, asyncio -------------------------------------------------------------------------------------------------


def test_one_serializer_serves_several_threads(config_of: Config) -> None:
    """Each record gets the reference of its own payload."""
    serializer, deserializer = LargeMessageSerializer(config_of()), LargeMessageDeserializer(config_of())
    begin = threading.Barrier(8)

    def work(number: int) -> bool:
        begin.wait()
        for turn in range(50):
            value = b"%d-%d" % (number, turn) * 100
            headers: list[Any] = []
            if deserializer(serializer(value, context(headers)), context(headers)) != value or headers:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


async def test_async_producer_takes_no_headers_and_so_no_references(config_of: Config) -> None:
    """confluent-kafka's own limit (docs/serializers.md): when this fails, its `aio` producers can do it."""
    producer = await AsyncSerializingProducer({**nowhere(), "value.serializer": LargeMessageSerializer(config_of())})
    with pytest.raises(ValueSerializationError, match=r"a reference needs headers"):
        await producer.produce("orders", value=LARGE)
    with pytest.raises(NotImplementedError, match="Headers are not supported"):
        await producer.produce("orders", value=b"small", headers=[])
    await producer.close()
