"""Lists of serializers: which stages are taken, in which order they run, and what each mistake is told as."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.serialization import IntegerDeserializer, IntegerSerializer, StringDeserializer, StringSerializer
from hypothesis import given
from hypothesis import strategies as st
from kafka.serializer import JsonSerializer

from app.serializers import ComposableDeserializer, ComposableSerializer, LargeMessageDeserializer
from tests.app.serializers.conftest import to_json
from transforms.errors import ConfigurationError, PayloadNotFoundError, SerializationError

HERE = "tests.app.serializers.test_composable"


class Reversing:
    """A stage of Kafka's own shape; it is its own opposite."""

    def serialize(self, topic: str, headers: list[Any], data: bytes) -> bytes:
        headers.append((f"reversed-{topic}", b"yes"))
        return data[::-1]

    def deserialize(self, topic: str, headers: list[Any], data: bytes) -> bytes:
        headers.remove((f"reversed-{topic}", b"yes"))
        return data[::-1]


class OldReversing:
    """The same without headers, as in Kafka before 0.11 and in kafka-python 2."""

    def serialize(self, topic: str, data: bytes) -> bytes:
        return data[::-1] + topic.encode()

    def deserialize(self, topic: str, data: bytes) -> bytes:
        return data.removesuffix(topic.encode())[::-1]


class Configured:
    """Keeps what it was configured with."""

    def configure(self, config: dict[str, object], is_key: bool) -> None:  # noqa: FBT001  # Kafka's signature
        self.found = (config.get("suffix"), is_key)

    def serialize(self, _topic: str, _headers: list[Any], data: bytes) -> bytes:
        return data + repr(self.found).encode()


class Unmakeable:
    """Cannot be made without arguments."""

    def __init__(self, needed: int) -> None:
        self.needed = needed

    def serialize(self, _topic: str, _headers: list[Any], _data: object) -> bytes:
        return bytes([self.needed])


class Refusing(Unmakeable):
    """Refuses every configuration."""

    def __init__(self) -> None:
        super().__init__(1)

    def configure(self, _config: object, _is_key: object) -> None:
        raise LookupError("no suffix")


def shout(text: bytes, encoding: str = "ascii") -> bytes:
    """A function with a second argument that is no context."""
    return text.decode(encoding).upper().encode(encoding)


@dataclass(slots=True)
class Closing:
    """Counts how often it was closed, and may raise."""

    error: Exception | None = None
    closed: list[bool] = field(default_factory=list)

    def serialize(self, _topic: str, _headers: list[Any], data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.closed.append(True)
        if self.error is not None:
            raise self.error


# --- which stages are taken -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "data", "expected"),
    [
        ([to_json], {"a": 1}, b'{"a": 1}'),
        ([to_json, Reversing], {"a": 1}, b'}1 :"a"{'),
        ([to_json, Reversing(), OldReversing], [1], b"[1]orders"),
        (["tests.app.serializers.conftest.to_json", f"{HERE}:Reversing"], [12], b"]21["),
        (f"tests.app.serializers.conftest.to_json, {HERE}.Reversing", [12], b"]21["),
        ((StringSerializer("utf-16-le"), Reversing), "ab", b"\0b\0a"),
        ([IntegerSerializer], 258, b"\0\0\1\2"),
        ([JsonSerializer], [1, None], b"[1, null]"),
        ([str.encode, shout], "strasse", b"STRASSE"),
        ([to_json, bytes.hex, str.encode], 7, "item 2, bytes.hex, returned str, allowed are bytes and None"),
        ([str.encode, shout], "straße", "item 2, shout, raised UnicodeDecodeError"),
        ([lambda _: "text", Reversing], 1, "item 1, <lambda>, returned str, allowed are bytes and None"),
        ([to_json, lambda _: bytearray(b"x")], 1, "item 2, <lambda>, returned bytearray, allowed are bytes and None"),
    ],
)
def test_serializers_run_in_order(stages: Any, data: object, expected: bytes | str) -> None:
    """Stages of every client's shape, by class, path or object, run in the order of the list; each returns bytes."""
    serializer = ComposableSerializer(stages)
    if isinstance(expected, bytes):
        assert serializer.serialize("orders", [], data) == expected
        return
    told = "the value of a record of topic orders cannot be serialized: value.serializers, "
    with pytest.raises(SerializationError, match=f"^{told}{expected}") as caught:
        serializer.serialize("orders", [], data)
    assert isinstance(caught.value.__cause__, ValueError) is ("raised" in expected)


@pytest.mark.parametrize(
    ("stages", "data", "expected"),
    [
        ([json.loads], b"[1]", [1]),
        ([OldReversing, Reversing, json.loads], b"[1]orders", [1]),
        ([Reversing, StringDeserializer("utf-16-le")], b"\0b\0a", "ab"),
        ([IntegerDeserializer()], b"\0\0\1\2", 258),
        ([JsonSerializer], b"[1, null]", [1, None]),
    ],
)
def test_deserializers_run_in_order(stages: Any, data: bytes, expected: object) -> None:
    """The last stage gives what the application wants, whatever type that has."""
    assert ComposableDeserializer(stages).deserialize("orders", [("reversed-orders", b"yes")], data) == expected


def test_a_class_is_configured_and_an_object_is_not() -> None:
    """A class gets the whole configuration and whether it is for keys; an object is taken as it is."""
    ready = Configured()
    ready.found = ("its own", False)
    serializer = ComposableSerializer([Configured, ready], {"suffix": "-x"}, is_key=True)
    assert serializer.serialize("orders", [], b"k") == b"k('-x', True)('its own', False)"


# --- nulls ------------------------------------------------------------------------------------------------------------


def test_a_null_is_a_null() -> None:
    """No stage is asked about a null, from Kafka or of another stage: JSON would make `null` of it, four bytes."""
    headers: list[Any] = []
    for stages, data in (([to_json], None), ([to_json, Reversing], None), ([lambda _: None, Reversing], b"x")):
        assert ComposableSerializer(stages).serialize("orders", headers, data) is None
    for readers, read in (([Reversing, json.loads], None), ([lambda _: None, json.loads], b"x")):
        assert ComposableDeserializer(readers).deserialize("orders", headers, read) is None
    assert headers == []


# --- mistakes in the configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "value.serializers: is an empty list; list at least one item"),
        ("", "value.serializers: is an empty list; list at least one item"),
        (Reversing, "value.serializers: found one class Reversing, allowed is a list of classes or dotted paths"),
        ([to_json, object], "value.serializers: item 2, object: lacks the method serialize(topic, headers, data)"),
        ([LargeMessageDeserializer], "item 1, LargeMessageDeserializer: lacks the method serialize"),
        ([to_json, 3], "value.serializers: item 2, int: lacks the method serialize"),
        ([lambda: None], "lacks the method serialize"),
        ([lambda _a, _b, _c: None], "lacks the method serialize"),
        ([Unmakeable], "value.serializers: item 1, Unmakeable: cannot be created without arguments (TypeError: "),
        ([Refusing], "value.serializers: item 1, Refusing: configure raised LookupError: no suffix"),
        (["json"], "value.serializers: item 1, found 'json', allowed is a class, or its path as package.module.Class"),
        ([to_json, "jsom.dumps"], "value.serializers: found 'jsom.dumps', but module jsom cannot be imported"),
        (["json.dump_all"], "value.serializers: found 'json.dump_all', but module json has no dump_all"),
    ],
)
def test_a_list_that_cannot_work_is_refused(stages: Any, message: str) -> None:
    """Each mistake in a list is an error that names the key, and the stage by position and class."""
    with pytest.raises(ConfigurationError) as caught:
        ComposableSerializer(stages)
    assert message in str(caught.value)


def test_the_key_of_the_configuration_is_named() -> None:
    """The error says which of the four lists it is."""
    for made, kind in ((ComposableSerializer, "serializers"), (ComposableDeserializer, "deserializers")):
        for is_key in (False, True):
            with pytest.raises(ConfigurationError, match=f"^{'key' if is_key else 'value'}.{kind}: "):
                made([object], is_key=is_key)


# --- failures of a stage ----------------------------------------------------------------------------------------------


def test_a_serialization_error_passes_as_it_is() -> None:
    """A stage that raises the right error itself keeps its own cause."""
    cause = PayloadNotFoundError("memory://x/y/z")
    error = SerializationError("orders", "value", "gone", deserializing=True)

    def fail(_: bytes) -> bytes:
        raise error from cause

    with pytest.raises(SerializationError) as caught:
        ComposableDeserializer([fail]).deserialize("orders", [], b"x")
    assert (caught.value, caught.value.__cause__) == (error, cause)


def test_close_reaches_every_stage() -> None:
    """All stages are closed, also behind one that cannot be, and the first failure is told."""
    first, second, third = Closing(OSError("disk")), Closing(), Closing(OSError("other"))
    with pytest.raises(OSError, match="disk"):
        ComposableSerializer([first, to_json, second, third]).close()
    assert (first.closed, second.closed, third.closed) == ([True], [True], [True])


# --- a composable among the stages ------------------------------------------------------------------------------------


class Shouting(ComposableSerializer):
    """Does something besides what its stages do."""

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        return (super().serialize(topic, headers, data) or b"") + b"!"


def test_stages_of_a_composable_stand_in_its_place() -> None:
    """Each is called, checked and named as it is in its own list; what is closed is closed once."""
    closing = Closing()
    serializer = ComposableSerializer([ComposableSerializer([to_json, closing]), Reversing, Shouting([Reversing])])
    targets = [type(stage.target) for stage in serializer.stages]
    assert targets == [type(to_json), Closing, Reversing, Shouting]
    assert serializer.serialize("orders", [], 12) == b"12!"
    serializer.close()
    assert closing.closed == [True]
    failing = ComposableDeserializer([ComposableDeserializer([Reversing, json.loads]), Reversing], is_key=True)
    with pytest.raises(SerializationError, match=r"value.deserializers, item 2, loads, returned int") as caught:
        failing.deserialize("orders", [("reversed-orders", b"yes")], b"21")
    assert caught.value.deserializing


# --- any list ---------------------------------------------------------------------------------------------------------


def _xor(mask: int) -> Callable[[bytes], bytes]:
    return lambda data: bytes(byte ^ mask for byte in data)


@given(
    st.lists(st.sampled_from(["kafka", "old", "xor", "text"]), min_size=1, max_size=6),
    st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)
def test_any_list_of_stages_and_its_opposite_give_the_data_back(
    kinds: list[str], data: bytes, own: list[tuple[str, bytes | None]]
) -> None:
    """Deserializers in the opposite order restore data and headers, whatever the stages."""
    there: dict[str, object] = {"kafka": Reversing, "old": OldReversing(), "xor": _xor(7), "text": bytes.swapcase}
    headers = list(own)
    sent = ComposableSerializer([there[kind] for kind in kinds]).serialize("orders", headers, data)
    assert len(headers) == len(own) + kinds.count("kafka")
    got = ComposableDeserializer([there[kind] for kind in reversed(kinds)]).deserialize("orders", headers, sent)
    assert (got, headers) == (data, own)
