"""The large-message serializers: what is offloaded, under which name, and how each failure reaches the application."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import example, given
from hypothesis import strategies as st

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.strategy import strategy_of
from stores.memory import MemoryStore
from tests.app.serializers.conftest import Config
from transforms.batch_size import value_room_bytes
from transforms.chunk import Chunking
from transforms.compression import CODECS
from transforms.errors import (
    ConfigurationError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    SerializationError,
    SignatureError,
    ValueTooLargeError,
)
from transforms.record import Record

LARGE = b"l" * 101
STORE = "large.message.payload.store.class"
GENERATOR = "large.message.id.generator"
REFERENCE = ("large-message", b"true")
SHA256 = hashlib.sha256(LARGE).hexdigest()
SIGNING = {"large.message.signing.key": "s" * 32}
ENCRYPTED = {
    "large.message.encryption.type": "aes-256-gcm",
    "large.message.encryption.key.id": "one",
    "large.message.encryption.key.secret": "1f" * 32,
}


class SeedStore:
    """A class of the seed's interface alone; its payloads are named at random unless it is told otherwise."""

    def configure(self, config: Mapping[str, object]) -> None:
        self._fails, self._named = config.get("seed.fails"), config.get("seed.named")

    def publish(self, topic: str, data: bytes) -> str:
        if isinstance(self._fails, Exception):
            raise self._fails
        return f"seed://{topic}/{self.id(data)}"

    def id(self, data: bytes) -> str:
        return f"mine-{hashlib.md5(data).hexdigest()}" if self._named else str(uuid.uuid4())  # noqa: S324

    def download(self, full_path: str) -> bytes:
        raise NotImplementedError


def seed(**more: object) -> dict[str, object]:
    return {STORE: SeedStore, "large.message.threshold.bytes": 100, **more}


def sent(config: Mapping[str, object], data: Any, *, is_key: bool = False) -> tuple[bytes, list[Any]]:
    """What a record has after serializing `data`: the bytes and the headers."""
    headers: list[Any] = [("own", b"1")]
    value = LargeMessageSerializer(config, is_key=is_key).serialize("orders", headers, data)
    assert value is not None
    return value, headers


def failure(config: Mapping[str, object], value: bytes | None, headers: list[Any]) -> SerializationError:
    """Why a value cannot be deserialized; its headers stay."""
    before = list(headers)
    with pytest.raises(SerializationError) as caught:
        LargeMessageDeserializer(config).deserialize("orders", headers, value)
    assert headers == before
    assert (caught.value.deserializing, caught.value.retriable) == (True, False)
    return caught.value


# --- what is offloaded, and comes back --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "longest"),
    [
        ({}, 100),
        ({"large.message.threshold.bytes": None}, 1_048_576),  # seed 000: 1 MB, the default of max.message.bytes
        ({"large.message.threshold.bytes": 10_000, "max.request.size": 3_000}, 1_900),  # headers and room for a key
        ({"large.message.threshold.bytes": 10_000, "message.max.bytes": 3_000}, 1_900),
    ],
)
def test_what_is_too_long_is_offloaded(config_of: Config, given: dict[str, object], longest: int) -> None:
    """That is what is over the threshold, or would make a record that the client refuses; else a value passes."""
    for length in (0, 1, longest - 1, longest):
        assert sent(config_of(**given), b"x" * length) == (b"x" * length, [("own", b"1")])
    value, headers = sent(config_of(**given), b"x" * (longest + 1))
    assert value.startswith(b"memory://")
    assert len(headers) == 4


def test_what_readers_would_refuse_is_not_stored(config_of: Config) -> None:
    """A value over `large.message.max.bytes` is an error of its writer; one of that length is stored and read."""
    given = config_of(**{"large.message.max.bytes": 200})
    value, headers = sent(given, b"x" * 200)
    assert LargeMessageDeserializer(given).deserialize("orders", headers, value) == b"x" * 200
    with pytest.raises(SerializationError, match=r"201 bytes, and large\.message\.max\.bytes is 200") as caught:
        sent(given, b"x" * 201)
    assert isinstance(caught.value.__cause__, ValueTooLargeError)


_TEXTS = st.text(max_size=30)


@given(st.lists(st.tuples(_TEXTS, st.none() | _TEXTS | st.binary(max_size=90)), max_size=5), st.booleans())
@example([("n", "\u4e2d" * 100)], True)
def test_headers_count_as_they_are_sent(own: list[Any], over: bool) -> None:  # noqa: FBT001
    """Also where confluent-kafka was given texts: the very first record that its client would refuse is offloaded."""
    given = {STORE: "memory", "memory.name": "counted", "max.request.size": 3_024}
    sent_headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in own]
    room = value_room_bytes(Record(None, None, sent_headers), 2_000)  # without what is left for a key
    assert LargeMessageSerializer(given).wants(b"x" * (room + over), own) is over


@pytest.mark.parametrize(
    ("given", "own"),
    [
        *(({"large.message.compression.type": codec}, []) for codec in CODECS),
        ({"max.request.size": 4_000}, [("trace", b"x" * 3_500)]),
    ],
)
def test_equal_keys_give_equal_references(config_of: Config, given: dict[str, object], own: list[Any]) -> None:
    """Whoever writes them, and whatever headers they have, or Kafka would send them to two partitions."""
    for key, offloaded in ((b"customer " * 200, True), (b"customer", False)):
        headers = list(own)
        found = LargeMessageSerializer(config_of(**given), is_key=True).serialize("orders", headers, key)
        assert found == LargeMessageSerializer(config_of(), is_key=True).serialize("orders", [], key)
        assert (len(headers) > len(own)) is offloaded


# --- names of payloads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "is_key", "name"),
    [
        ({}, False, None),  # seed 000: by default the id is a random UUID
        ({}, True, SHA256),
        ({GENERATOR: "sha256"}, False, SHA256),
        ({GENERATOR: "sha256", "large.message.compression.type": "zstd"}, False, SHA256),
        ({GENERATOR: "sha256", **ENCRYPTED}, False, None),
        (seed(**{"seed.named": True}), False, f"mine-{hashlib.md5(LARGE).hexdigest()}"),  # noqa: S324
        (seed(**{"seed.named": True}), True, f"mine-{hashlib.md5(LARGE).hexdigest()}"),  # noqa: S324
    ],
    ids=["value", "key", "by content", "compressed", "encrypted", "own class", "key of own class"],
)
def test_names(config_of: Config, more: dict[str, object], is_key: bool, name: str | None) -> None:  # noqa: FBT001
    """At random, by content, or as a class of the user's says; equal keys have equal names."""
    first, second = (sent(config_of(**more), LARGE, is_key=is_key)[0].decode() for _ in range(2))
    assert re.fullmatch(r"(memory://[^/]+|seed:/)/orders/[0-9a-z-]+", first)
    if name is None:
        assert first != second
    elif not more.get("large.message.compression.type"):
        assert first.endswith(f"/orders/{name}")
    assert (first == second) is (name is not None)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "topic", "more", "is_key", "found"),
    [
        ("text", "orders", {}, False, "found str, allowed are bytes; put a serializer before it"),
        (LARGE, "../x", {}, False, "topic '../x'"),
        (LARGE, "orders", seed(), True, "returned two paths for one key"),
    ],
)
def test_a_record_that_is_refused(
    config_of: Config,
    data: Any,
    topic: str,
    more: dict[str, object],
    is_key: bool,  # noqa: FBT001
    found: str,
) -> None:
    """What is no bytes, a topic's name that no store can use, and a key that a user's class names at random."""
    serializer, headers = LargeMessageSerializer(config_of(**more), is_key=is_key), list[Any]()
    with pytest.raises(SerializationError, match=re.escape(found)):
        serializer.serialize(topic, headers, data)
    assert headers == []


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({GENERATOR: "uuid"}, "found 'uuid', allowed for keys is sha256"),
        (ENCRYPTED, "keys cannot be encrypted: equal keys need equal references"),
    ],
)
def test_keys_need_equal_references(config_of: Config, more: dict[str, object], found: str) -> None:
    """Random names and encryption would send equal keys to different partitions; a reader may be told of both."""
    with pytest.raises(ConfigurationError, match=found):
        LargeMessageSerializer(config_of(**more), is_key=True)
    LargeMessageDeserializer(config_of(**more), is_key=True)


def test_chunks_are_not_encrypted() -> None:
    """Who asks for encryption and sends chunks is told that they stay readable."""
    with pytest.raises(ConfigurationError, match="chunks stay in Kafka, and are not encrypted"):
        strategy_of({"large.message.strategy": "chunk", **ENCRYPTED})
    assert strategy_of({"large.message.strategy": "offload", **ENCRYPTED}) == "offload"


def test_without_headers_large_is_refused_before_it_is_stored(config_of: Config) -> None:
    """Where the client was given no headers, a small value passes, and a large one is an error that says what to do."""
    given = config_of()
    serializer = LargeMessageSerializer(given)
    assert serializer(b"small", SerializationContext("orders", MessageField.VALUE)) == b"small"
    with pytest.raises(SerializationError, match=r"it is large \(101 bytes\).* give the record headers=\[\]"):
        serializer(LARGE, SerializationContext("orders", MessageField.VALUE))
    store = MemoryStore()
    store.configure({"memory.name": given["memory.name"]})
    assert list(store.list()) == []


@pytest.mark.parametrize("made", [LargeMessageSerializer, LargeMessageDeserializer])
def test_a_serializer_of_values_refuses_keys(config_of: Config, made: Any) -> None:
    """One that was created for values, used for keys, says how to make the other one."""
    with pytest.raises(
        SerializationError, match=r"was created for values; create another one for keys, with is_key=True"
    ):
        made(config_of())(b"k", SerializationContext("orders", MessageField.KEY, []))
    with pytest.raises(
        SerializationError, match=r"was created for keys; create another one for values, with is_key=False"
    ):
        made(config_of(), is_key=True)(b"k", SerializationContext("orders", MessageField.VALUE, []))


def test_it_must_be_configured_and_not_closed(config_of: Config) -> None:
    """Before `configure` and after `close` there is no store; closing twice is no error."""
    serializer = LargeMessageSerializer(config_of())
    serializer.close()
    serializer.close()
    for unusable in (serializer, LargeMessageSerializer()):
        with pytest.raises(ConfigurationError, match="is not configured, or was closed"):
            unusable.serialize("orders", [], b"small")


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "retriable"),
    [
        (TimeoutError("late"), True),
        (ConnectionResetError("cut"), True),
        (PermissionError("no"), False),
        (PayloadStoreError("throttled", retriable=True), True),
        (PayloadStoreError("no such bucket", retriable=False), False),
    ],
)
def test_a_store_that_fails_is_the_cause(raised: Exception, retriable: bool) -> None:  # noqa: FBT001
    """An error of the store is the cause, and says whether another try may succeed; the record has no headers yet."""
    headers: list[Any] = []
    with pytest.raises(SerializationError) as caught:
        LargeMessageSerializer(seed(**{"seed.fails": raised})).serialize("orders", headers, LARGE)
    assert type(caught.value.__cause__) is PayloadStoreError
    assert caught.value.retriable is retriable
    assert headers == []


def test_a_payload_that_is_gone_or_was_changed_is_the_cause(config_of: Config) -> None:
    """The error has the coordinates that a client gives it; size and checksum are verified."""
    given = config_of(**{GENERATOR: "sha256"})
    value, headers = sent(given, LARGE)
    store = MemoryStore()
    store.configure({"memory.name": given["memory.name"]})
    store.put("orders", SHA256, b"m" * 101)
    assert isinstance(failure(given, value, headers).__cause__, PayloadCorruptError)
    MemoryStore.clear()
    error = failure(given, value, headers)
    assert isinstance(error.__cause__, PayloadNotFoundError)
    told = "the value of a record of topic orders{} cannot be deserialized: LargeMessageDeserializer: there is no"
    assert str(error).startswith(told.format(""))
    assert str(error.at(3, 1234)).startswith(told.format(" partition 3 offset 1234"))


@pytest.mark.parametrize("beside", [[], [REFERENCE]])
def test_a_piece_is_no_value(config_of: Config, beside: list[Any]) -> None:
    """A deserializer sees one record: it says what reads the whole message, and gives no piece of it to anybody."""
    (first, *_) = Chunking(1_000).split(Record(b"k", b"v" * 5_000, beside), "an-id")
    told = "chunk of a message, chunk.id 0 of chunk.count 8, chunk.uuid an-id, .*serializers.aiokafka, .confluent or "
    assert re.search(told, str(failure(config_of(), first.value, list(first.headers))))
    keys = LargeMessageDeserializer(config_of(), is_key=True)
    assert keys.deserialize("orders", list(first.headers), first.key) == b"k"
    hostile = [("large-message.chunk.uuid", b"\x1b[2J"), ("large-message.chunk.id", None)]
    assert r"chunk.id - of chunk.count -, chunk.uuid \x1b" in str(failure(config_of(), b"", hostile))


# --- signatures, encryption -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_key", [False, True])
def test_a_signed_reference_is_read_with_the_key_alone(config_of: Config, *, is_key: bool) -> None:
    """With a key the reference is signed, and what others have written is refused before the store is asked."""
    value, headers = sent(config_of(**SIGNING), LARGE, is_key=is_key)
    assert headers[-1][0] == ("large-message-key.signature" if is_key else "large-message.signature")
    reader = LargeMessageDeserializer(config_of(**SIGNING), is_key=is_key)
    unsigned = headers[:-1]
    assert reader.deserialize("orders", headers, value) == LARGE
    assert headers == [("own", b"1")]
    MemoryStore.clear()  # whoever asked the store now would be told that there is no payload
    with pytest.raises(SerializationError, match="has no signature") as caught:
        reader.deserialize("orders", unsigned, value)
    assert isinstance(caught.value.__cause__, SignatureError)
