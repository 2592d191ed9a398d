"""Wrappers in clients: objects in and out, in the shape of each client, beside the other stages."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from faust.serializers.codecs import Codec

from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    MalformedWrapperError,
    MessageWrapper,
    SerializationError,
    WrapperDeserializer,
    WrapperSerializer,
)
from app.serializers import config as taken
from stores.memory import MemoryStore
from tests.vectors.wrapper import WrapperCase, wrapper_cases
from transforms.errors import ConfigurationError

WRAPPER = MessageWrapper({3_000_001: b"t", 5: b""}, b"value")
BYTES = WRAPPER.serialize()


def context() -> Any:
    """What confluent-kafka hands to a serializer."""
    return SerializationContext("orders", MessageField.VALUE, [])


@pytest.mark.parametrize("case", wrapper_cases(), ids=lambda case: case.name)
def test_vector(case: WrapperCase) -> None:
    """What another implementation wrote is read and written, and what it refuses is refused, with its cause."""
    reader = WrapperDeserializer()
    if case.content is None:
        with pytest.raises(SerializationError, match="WrapperDeserializer: malformed wrapper: ") as caught:
            reader.deserialize("orders", [], case.bytes)
        assert isinstance(caught.value.__cause__, MalformedWrapperError)
        return
    assert reader.deserialize("orders", [], case.bytes) == case.content
    assert WrapperSerializer().serialize("orders", [], case.content) == case.bytes


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


def test_first_stage_of_several() -> None:
    """A large wrapper goes to the store, and comes back; the reference has headers, the wrapper's are in it."""
    config = {"large.message.payload.store.class": "memory", "large.message.threshold.bytes": 10}
    writer = ComposableSerializer([WrapperSerializer, LargeMessageSerializer], config)
    reader = ComposableDeserializer([LargeMessageDeserializer, WrapperDeserializer], config)
    headers: list[tuple[str, bytes | None]] = []
    data = writer.serialize("orders", headers, WRAPPER)
    assert data is not None
    assert data.startswith(b"memory:")
    assert headers[0] == ("large-message", b"true")
    assert reader.deserialize("orders", headers, data) == WRAPPER
    writer.close()
    reader.close()
    MemoryStore.clear()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"bytes", "WrapperSerializer: found bytes, allowed are MessageWrapper and None"),
        (MessageWrapper({2**31: b""}, b""), "WrapperSerializer: header 2147483648: the key is not an int32"),
        (MessageWrapper({}, "text"), "WrapperSerializer: the value is of type str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_wrapper_is_refused(data: object, message: str) -> None:
    """A mistake of the application says what was found; it can never succeed."""
    with pytest.raises(SerializationError, match=re.escape(message)) as caught:
        WrapperSerializer().serialize("orders", [], data)
    assert (caught.value.field, caught.value.retriable) == ("value", False)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_plain_values_come_as_wrappers_where_they_may() -> None:
    """With `unwrap.on.plain.value = "pass"` a plain value is one without headers; another word is refused."""
    reader = WrapperDeserializer({"unwrap.on.plain.value": "pass"})
    assert reader.deserialize("orders", [], b"plain") == MessageWrapper({}, b"plain")
    assert reader.deserialize("orders", [], BYTES) == WRAPPER
    with pytest.raises(ConfigurationError, match=r"unwrap.on.plain.value: found 'skip', allowed is one of: fail, pass"):
        WrapperDeserializer({"unwrap.on.plain.value": "skip"})


def test_keys_are_kept_from_the_client() -> None:
    """The one key goes to the deserializer, and a misspelt one is found."""
    stages = {"value.deserializers": [WrapperDeserializer], "unwrap.on.plain.value": "pass"}
    found = taken.consumer({**stages, "group.id": "g"}, ["group.id"])
    assert found.client == {"group.id": "g"}
    assert found.parts["value"].deserialize("orders", [], b"plain") == MessageWrapper({}, b"plain")
    with pytest.raises(ConfigurationError, match=r"did you mean unwrap\.on\.plain\.value\?"):
        taken.consumer({**stages, "unwrap.on.plain.valu": "pass"}, [])


def test_keys_of_records_are_told_apart() -> None:
    """A serializer for keys says so in its errors."""
    for writer in (WrapperSerializer({}, is_key=True), ComposableSerializer([WrapperSerializer], is_key=True)):
        with pytest.raises(SerializationError, match="the key of a record of topic orders cannot be serialized"):
            writer.serialize("orders", [], b"bytes")


def test_codec_of_the_documentation() -> None:
    """Faust's codecs see no headers, and need none: the one of docs/serializers.md is both directions."""

    class WrapperCodec(Codec):
        def _dumps(self, obj: Any) -> bytes:
            found: bytes = obj.serialize()
            return found

        def _loads(self, s: bytes) -> Any:
            return MessageWrapper.parse(s)

    codec = WrapperCodec()
    assert (codec.dumps(WRAPPER), codec.loads(BYTES)) == (BYTES, WRAPPER)
