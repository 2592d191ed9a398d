"""Wrappers in clients: objects in and out, in the shape of each client, beside the other stages."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext, StringDeserializer, StringSerializer

from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    MalformedWrapperError,
    MessageWrapper,
    SerializationError,
    TypedWrapper,
    WrapperDeserializer,
    WrapperSerializer,
)
from app.serializers import config as taken
from tests.app.serializers.conftest import to_json
from transforms.errors import ConfigurationError

WRAPPER = MessageWrapper({3_000_001: b"t", 5: b""}, b"value")
BYTES = WRAPPER.serialize()


def context() -> Any:
    """What confluent-kafka hands to a serializer."""
    return SerializationContext("orders", MessageField.VALUE, [])


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (WrapperSerializer(), WrapperDeserializer()),
        (ComposableSerializer([WrapperSerializer]), ComposableDeserializer([WrapperDeserializer])),
        (
            ComposableSerializer("app.serializers.WrapperSerializer"),
            ComposableDeserializer("app.serializers.WrapperDeserializer"),
        ),
    ],
    ids=["alone", "class", "path"],
)
def test_shapes(writer: Any, reader: Any) -> None:
    """Kafka's own methods and confluent-kafka's calls give the same; nulls pass, and the headers stay as they are."""
    headers = [("own", b"1")]
    assert writer.serialize("orders", headers, WRAPPER) == writer(WRAPPER, context()) == BYTES
    assert reader.deserialize("orders", headers, BYTES) == reader(BYTES, context()) == WRAPPER
    assert writer.serialize("orders", headers, None) is writer(None, context()) is None
    assert reader.deserialize("orders", headers, None) is reader(None, context()) is None
    assert headers == [("own", b"1")]
    with pytest.raises(SerializationError, match="WrapperDeserializer: malformed wrapper: ") as caught:
        reader.deserialize("orders", headers, b"plain")
    assert isinstance(caught.value.__cause__, MalformedWrapperError)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"bytes", "WrapperSerializer: found bytes, allowed are MessageWrapper and None"),
        (MessageWrapper({2**31: b""}, b""), "WrapperSerializer: header 2147483648: the key is not an int32"),
        (MessageWrapper({}, "text"), "WrapperSerializer: the value is of type str"),  # type: ignore[arg-type]
        (TypedWrapper(None, b""), "the headers are of type NoneType, allowed is a mapping"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_wrapper_is_refused(data: object, message: str) -> None:
    """A mistake of the application says what was found; it can never succeed."""
    with pytest.raises(SerializationError, match=re.escape(message)) as caught:
        WrapperSerializer().serialize("orders", [], data)
    assert (caught.value.field, caught.value.retriable) == ("value", False)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


# --- serializers of what is in the wrapper ---------------------------------------------------------------------------


def to_pickle(data: object) -> bytes:
    """One that takes bytes as well as anything else."""
    return pickle.dumps(data)


class Number:
    """Kafka's shape, both ways; configured."""

    KEYS = ("number.length",)
    closed = 0

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:  # noqa: FBT001  # Kafka's signature
        self._length = int(str(config["number.length"]))
        assert not is_key

    def serialize(self, topic: str, headers: None, data: int) -> bytes:
        assert (topic, headers) == ("orders", None)
        return data.to_bytes(self._length, "big")

    def deserialize(self, topic: str, headers: None, data: bytes) -> int:
        assert (topic, headers) == ("orders", None)
        return int.from_bytes(data, "big")

    def close(self) -> None:
        Number.closed += 1


def inside(direction: str, numbered: object) -> dict[str, object]:
    """Serializers, or deserializers, of what is in a wrapper."""
    stages: dict[str, object] = {"value": to_json if direction == "serializer" else "json.loads"}
    stages |= {"header.3000001": numbered, "header.-7": Number}
    own = WrapperSerializer if direction == "serializer" else WrapperDeserializer
    keys = {f"wrapper.{key}.{direction}": stage for key, stage in stages.items()}
    return {f"value.{direction}s": [own], "number.length": 3, **keys}


def test_what_is_in_a_wrapper_has_serializers_of_its_own() -> None:
    """The value and each header by its key, in the shape of any client; what has none is bytes; both ways."""
    writer = taken.producer(inside("serializer", StringSerializer()), []).parts["value"]
    reader = taken.consumer(inside("deserializer", StringDeserializer()), []).parts["value"]
    typed = TypedWrapper({3_000_001: "ä", 5: b"plain", -7: 258}, {"a": [1]})
    data = MessageWrapper({3_000_001: "ä".encode(), 5: b"plain", -7: b"\0\1\2"}, b'{"a": [1]}').serialize()
    headers: list[tuple[str, bytes | None]] = []
    assert writer.serialize("orders", headers, typed) == data
    assert reader.deserialize("orders", headers, data) == typed
    assert list(reader.deserialize("orders", headers, data).headers) == [3_000_001, 5, -7]
    marker: TypedWrapper[object] = TypedWrapper({-7: 1}, None)
    assert reader.deserialize("orders", [], writer.serialize("orders", [], marker)) == marker
    assert writer.serialize("orders", [], None) is reader.deserialize("orders", [], None) is None
    assert headers == []
    before = Number.closed
    writer.close()
    reader.close()
    assert Number.closed == before + 2


def test_what_is_in_a_message_wrapper_is_serialized_already() -> None:
    """A producer with serializers for what is in a wrapper takes a wrapper of bytes too, and writes it as it is."""
    keys = {"wrapper.value.serializer": to_pickle, "wrapper.header.3000001.serializer": StringSerializer()}
    writer = taken.producer({"value.serializers": [WrapperSerializer], **keys}, []).parts["value"]
    assert writer.serialize("orders", [], WRAPPER) == BYTES
    typed = TypedWrapper({3_000_001: "t", 5: b""}, [1])
    assert writer.serialize("orders", [], typed) == MessageWrapper(WRAPPER.headers, to_pickle([1])).serialize()


def raising(_data: object) -> bytes:
    raise ArithmeticError("no")


def textual(_data: object) -> Any:
    return "text"


def nothing(_data: object) -> None:  # which on a compacted topic deletes nothing
    return None


@pytest.mark.parametrize(
    ("key", "stage", "data", "reason"),
    [
        ("header.9", raising, TypedWrapper({9: 1}, b""), "raising, raised ArithmeticError: no"),
        ("header.9", textual, TypedWrapper({9: 1}, b""), "textual, returned str, allowed is bytes"),
        ("header.9", raising, TypedWrapper({9: None}, b""), "raising, found None, and a header in a wrapper"),
        ("value", raising, TypedWrapper({}, 1), "raising, raised ArithmeticError: no"),
        ("value", textual, TypedWrapper({}, 1), "textual, returned str, allowed is bytes"),
        (
            "value",
            nothing,
            TypedWrapper({}, 1),
            "nothing, returned NoneType, allowed is bytes; for a wrapper without a",
        ),
    ],
)
def test_an_error_names_the_header(key: str, stage: object, data: object, reason: str) -> None:
    """What fails says by which key of the configuration, and so for which header; the cause is kept."""
    writer = WrapperSerializer({f"wrapper.{key}.serializer": stage})
    with pytest.raises(SerializationError, match=re.escape(f"wrapper.{key}.serializer, {reason}")) as caught:
        writer.serialize("orders", [], data)
    assert isinstance(caught.value.__cause__, ArithmeticError) == ("raised" in reason)
    if "raised" in reason:
        reader = WrapperDeserializer({f"wrapper.{key}.deserializer": stage})
        with pytest.raises(SerializationError, match=re.escape(f"deserialized: wrapper.{key}.deserializer, {reason}")):
            reader.deserialize("orders", [], MessageWrapper({9: b"1"}, b"1").serialize())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"wrapper.header.trace.serializer": to_json}, "header.trace.serializer: found 'trace', allowed between"),
        ({"wrapper.header.2147483648.serializer": to_json}, "found '2147483648', allowed between"),
        ({"wrapper.header.07.serializer": to_json}, "found '07', allowed between"),
        ({"wrapper.header.-0.serializer": to_json}, "found '-0', allowed between"),
        ({"wrapper.header.7.serializer": 5}, "wrapper.header.7.serializer: int: lacks the method serialize"),
        ({"wrapper.header.7.serializer": "nothing"}, "header.7.serializer: found 'nothing', allowed is a class"),
        ({"wrapper.value.serializr": to_json}, "did you mean wrapper.value.serializer?"),
        ({"wrapper.header.7.deserializer": to_json}, "wrapper.header.7.deserializer: unknown property"),
    ],
)
def test_wrong_serializers_are_refused(config: dict[str, object], message: str) -> None:
    """Before anything is sent, with the key that is wrong."""
    stages = {"value.serializers": [WrapperSerializer], "wrapper.value.serializer": to_json}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        taken.producer({**stages, **config}, [])


def test_plain_values_come_as_wrappers_where_they_may() -> None:
    """With `unwrap.on.plain.value = "pass"` a plain value is one without headers; the key is not the client's."""
    stages = {"value.deserializers": [WrapperDeserializer]}
    found = taken.consumer({**stages, "unwrap.on.plain.value": "pass", "group.id": "g"}, ["group.id"])
    assert found.client == {"group.id": "g"}
    reader = found.parts["value"]
    assert reader.deserialize("orders", [], b"plain") == MessageWrapper({}, b"plain")
    assert reader.deserialize("orders", [], BYTES) == WRAPPER
    for given, message in (
        ({"unwrap.on.plain.value": "skip"}, r"unwrap.on.plain.value: found 'skip', allowed is one of: fail, pass"),
        ({"unwrap.on.plain.valu": "pass"}, r"did you mean unwrap\.on\.plain\.value\?"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            taken.consumer({**stages, **given}, [])


def test_keys_of_records_are_told_apart() -> None:
    """A serializer for keys says so in its errors."""
    for writer in (WrapperSerializer({}, is_key=True), ComposableSerializer([WrapperSerializer], is_key=True)):
        with pytest.raises(SerializationError, match="the key of a record of topic orders cannot be serialized"):
            writer.serialize("orders", [], b"bytes")
