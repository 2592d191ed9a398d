"""The large-message serializers: what is offloaded, under which name, and how each failure reaches the application."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from app.serializers import (
    LargeMessageDeserializer,
    LargeMessageSerializer,
)
from app.serializers.strategy import strategy_of
from stores.memory import MemoryStore
from tests import strategies
from tests.app.serializers.conftest import Config
from transforms.batch_size import value_room_bytes
from transforms.chunk import Chunking
from transforms.compression import CODECS
from transforms.errors import (
    ConfigurationError,
    EncryptionError,
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordDeserializationError,
    ReferenceRefusedError,
    SerializationError,
    SignatureError,
    ValueTooLargeError,
)
from transforms.record import Record

LARGE = b"l" * 101
STORE = "large.message.payload.store.class"
GENERATOR = "large.message.id.generator"
HERE = "tests.app.serializers.test_large_message"


class SeedStore:
    """A class of the seed's interface alone; its payloads are named at random unless it is told otherwise."""

    payloads: ClassVar[dict[str, bytes]] = {}
    configs: ClassVar[list[Mapping[str, object]]] = []

    def configure(self, config: Mapping[str, object]) -> None:
        """Keeps what it was given."""
        self.configs.append(config)
        self._fails = config.get("seed.fails")
        self._named = config.get("seed.named")

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        if self._fails is not None:
            assert isinstance(self._fails, Exception)
            raise self._fails
        path = f"seed://{topic}/{self.id(data)}"
        self.payloads[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        return self.payloads[full_path]

    def id(self, data: bytes) -> str:
        """Its own idea of a name."""
        return f"mine-{hashlib.md5(data).hexdigest()}" if self._named else str(uuid.uuid4())  # noqa: S324


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    SeedStore.payloads.clear()
    SeedStore.configs.clear()


def sent(config: Mapping[str, object], data: bytes, *, is_key: bool = False) -> tuple[bytes | None, list[Any]]:
    """What a record has after serializing `data`: the bytes and the headers."""
    headers: list[Any] = [("own", b"1")]
    return LargeMessageSerializer(config, is_key=is_key).serialize("orders", headers, data), headers


# --- what is offloaded ------------------------------------------------------------------------------------------------


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
    assert (value or b"").startswith(b"memory://")
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
def test_headers_count_as_they_are_sent(own: list[Any], over: bool) -> None:  # noqa: FBT001
    """Also where confluent-kafka was given texts: the very first record that its client would refuse is offloaded."""
    given = {STORE: "memory", "memory.name": "counted", "max.request.size": 3_024}
    sent_headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in own]
    room = value_room_bytes(Record(None, None, sent_headers), 2_000)  # without what is left for a key
    assert LargeMessageSerializer(given).wants(b"x" * (room + over), own) is over


def test_a_value_has_the_references_headers(config_of: Config) -> None:
    """The record has the path as its value and the four headers of the format behind its own."""
    value, headers = sent(config_of(**{"large.message.compression.type": "gzip"}), LARGE)
    assert value is not None
    assert re.fullmatch(rb"memory://[^/]+/orders/[0-9a-f]{8}-[0-9a-f-]{27}", value)
    assert headers == [
        ("own", b"1"),
        ("large-message", b"true"),
        ("large-message.size", b"101"),
        ("large-message.checksum", b"sha256:" + hashlib.sha256(LARGE).hexdigest().encode()),
        ("large-message.compression", b"gzip"),
    ]


def test_a_key_has_headers_of_its_own(config_of: Config) -> None:
    """An offloaded key has the key's headers, so that one record may have both."""
    given = config_of()
    value, headers = sent(given, LARGE, is_key=True)
    assert value is not None
    assert value.endswith(b"/orders/" + hashlib.sha256(LARGE).hexdigest().encode())
    assert [name for name, _ in headers[1:]] == [
        "large-message-key",
        "large-message-key.size",
        "large-message-key.checksum",
    ]


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_key_and_value_come_back(config_of: Config, codec: str) -> None:
    """A record with an offloaded key and an offloaded value is restored, own headers and all."""
    given = config_of(**{"large.message.compression.type": codec, "large.message.store.timeout.ms": 1000})
    headers: list[Any] = [("own", None), ("own", b"2")]
    key = LargeMessageSerializer(given, is_key=True).serialize("orders", headers, b"k" * 500)
    value = LargeMessageSerializer(given).serialize("orders", headers, b"v" * 1000)
    assert len(headers) == 2 + 3 + (3 if codec == "none" else 4)  # keys are never compressed
    assert LargeMessageDeserializer(given, is_key=True).deserialize("orders", headers, key) == b"k" * 500
    assert LargeMessageDeserializer(given).deserialize("orders", headers, value) == b"v" * 1000
    assert headers == [("own", None), ("own", b"2")]


@given(data=strategies.optional_bytes(), own=strategies.headers(), codec=strategies.codecs())
def test_any_record_comes_back(data: bytes | None, own: list[Any], codec: str | None) -> None:
    """Serialize and deserialize restore any value and any headers, also such as look like a reference's."""
    given = {
        STORE: "memory",
        "memory.name": "any-record",
        "large.message.threshold.bytes": 64,
        "large.message.compression.type": codec or "none",
    }
    headers = list(own)
    value = LargeMessageSerializer(given).serialize("orders", headers, data)
    if headers != own:  # else it is small, and own headers that claim a reference are the application's own matter
        assert LargeMessageDeserializer(given).deserialize("orders", headers, value) == data
        assert headers == own
    else:
        assert value == data
    MemoryStore.clear()


def test_small_and_null_pass_the_deserializer(config_of: Config) -> None:
    """What is no reference is given back as it is: no header, a null, another value of the header, none at all."""
    deserializer = LargeMessageDeserializer(config_of())
    assert deserializer.deserialize("orders", None, b"small") == b"small"
    assert deserializer.deserialize("orders", [], b"small") == b"small"
    assert deserializer.deserialize("orders", [("large-message", b"false")], b"small") == b"small"
    assert deserializer.deserialize("orders", [("large-message-key", b"true")], b"small") == b"small"
    assert deserializer.deserialize("orders", [("large-message", b"true")], None) is None


def test_the_seeds_bare_reference_is_read(config_of: Config) -> None:
    """A record with nothing but `large-message: true` is one of the seed's own format."""
    given = config_of()
    value, _ = sent(given, LARGE)
    headers: list[Any] = [("large-message", b"true")]
    assert LargeMessageDeserializer(given).deserialize("orders", headers, value) == LARGE
    assert headers == []


# --- as a stage, and in confluent-kafka -------------------------------------------------------------------------------


def test_a_store_call_is_foretold(config_of: Config) -> None:
    """`wants` says whether the store is going to be called."""
    serializer, deserializer = LargeMessageSerializer(config_of()), LargeMessageDeserializer(config_of())
    assert [serializer.wants(data, []) for data in (b"x" * 100, b"x" * 101, None, "x" * 101)] == [
        False,
        True,
        False,
        False,
    ]
    headers: list[Any] = [("own", b"1")]
    assert not deserializer.wants(b"v", headers)
    serializer.serialize("orders", headers, LARGE)
    assert deserializer.wants(b"v", headers)
    assert not deserializer.wants(None, headers)
    assert not LargeMessageDeserializer(config_of(), is_key=True).wants(b"k", headers)


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
    """One that was made for values, used for keys, says how to make the other one."""
    with pytest.raises(SerializationError, match=r"was made for values; make another one for keys, with is_key=True"):
        made(config_of())(b"k", SerializationContext("orders", MessageField.KEY, []))
    with pytest.raises(SerializationError, match=r"was made for keys; make another one for values, with is_key=False"):
        made(config_of(), is_key=True)(b"k", SerializationContext("orders", MessageField.VALUE, []))


def test_something_other_than_bytes_is_named(config_of: Config) -> None:
    """A value that no serializer has made bytes of is an error, not a guess."""
    with pytest.raises(SerializationError, match="found str, allowed are bytes; put a serializer before it"):
        LargeMessageSerializer(config_of()).serialize("orders", [], "text")


def test_a_topic_that_cannot_be_is_an_error_of_the_record(config_of: Config) -> None:
    """A topic's name that no store can use is told as such."""
    with pytest.raises(SerializationError, match=r"topic '\.\./x'"):
        LargeMessageSerializer(config_of()).serialize("../x", [], LARGE)


def test_it_must_be_configured_and_not_closed(config_of: Config) -> None:
    """Before `configure` and after `close` there is no store; closing twice is no error."""
    serializer = LargeMessageSerializer(config_of())
    serializer.close()
    serializer.close()
    for unusable in (serializer, LargeMessageSerializer()):
        with pytest.raises(ConfigurationError, match="configure was not called, or close was"):
            unusable.serialize("orders", [], b"small")


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "own"),
    [
        *(({"large.message.compression.type": codec}, []) for codec in CODECS),
        ({"max.request.size": 4_000}, [("trace", b"x" * 2_000)]),
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


def test_values_are_named_at_random_by_default(config_of: Config) -> None:
    """Seed 000: by default the id is a random UUID."""
    given = config_of()
    first, second = (sent(given, LARGE)[0] for _ in range(2))
    assert first != second
    assert first is not None
    uuid.UUID(first.decode().rpartition("/")[2], version=4)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_values_may_be_named_by_content(config_of: Config, codec: str) -> None:
    """With `sha256` equal values share one payload, compressed or not."""
    given = config_of(**{GENERATOR: "sha256", "large.message.compression.type": codec})
    assert sent(given, LARGE)[0] == sent(given, LARGE)[0] != sent(given, b"m" * 101)[0]


def test_random_names_are_refused_for_keys(config_of: Config) -> None:
    """Equal keys with different references would go to different partitions."""
    with pytest.raises(ConfigurationError, match="found 'uuid', allowed for keys is sha256"):
        LargeMessageSerializer(config_of(**{GENERATOR: "uuid"}), is_key=True)


def test_a_class_of_ones_own_names_its_payloads() -> None:
    """The `id` of a user's class decides, and the class gets every key of the configuration but the serializers'."""
    given = {STORE: f"{HERE}.SeedStore", "seed.named": True, "acks": "all", "large.message.threshold.bytes": 100}
    value, headers = sent(given, LARGE)
    assert value == f"seed://orders/mine-{hashlib.md5(LARGE).hexdigest()}".encode()  # noqa: S324
    assert LargeMessageDeserializer(given).deserialize("orders", headers, value) == LARGE
    assert SeedStore.configs[0] == {"seed.named": True, "acks": "all", GENERATOR: "uuid"}


def test_the_class_itself_may_stand_for_its_path() -> None:
    """In a configuration that is no file, a class is as good as its path."""
    value, _ = sent({STORE: SeedStore, "seed.named": True, "large.message.threshold.bytes": 100}, LARGE)
    assert value is not None
    assert value.startswith(b"seed://")


@pytest.mark.parametrize("named", [True, False])
def test_a_class_that_names_keys_at_random_is_refused(named: bool) -> None:  # noqa: FBT001
    """The first offloaded key shows whether a user's class names payloads by their bytes."""
    given = {STORE: SeedStore, "seed.named": named, "large.message.threshold.bytes": 100}
    serializer = LargeMessageSerializer(given, is_key=True)
    if named:
        assert serializer.serialize("orders", [], LARGE) == serializer.serialize("orders", [], LARGE)
        return
    with pytest.raises(SerializationError, match="gave two paths for one key") as caught:
        serializer.serialize("orders", [], LARGE)
    assert isinstance(caught.value.__cause__, ConfigurationError)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_missing_payload_is_the_cause(config_of: Config) -> None:
    """A consumer tells a payload that is gone by the cause, and the record's headers are still there."""
    given = config_of()
    value, headers = sent(given, LARGE)
    before = list(headers)
    MemoryStore.clear()
    with pytest.raises(SerializationError) as caught:
        LargeMessageDeserializer(given).deserialize("orders", headers, value)
    assert isinstance(caught.value.__cause__, PayloadNotFoundError)
    assert isinstance(caught.value.__cause__, PayloadStoreError)
    assert not caught.value.retriable
    assert headers == before
    assert str(caught.value).startswith(
        "the value of a record of topic orders cannot be deserialized: LargeMessageDeserializer: there is no payload at"
    )


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
    serializer = LargeMessageSerializer({STORE: SeedStore, "seed.fails": raised, "large.message.threshold.bytes": 1})
    with pytest.raises(SerializationError) as caught:
        serializer.serialize("orders", headers, LARGE)
    assert isinstance(caught.value.__cause__, PayloadStoreError)
    assert not isinstance(caught.value.__cause__, PayloadNotFoundError)
    assert caught.value.retriable is retriable
    assert headers == []


@pytest.mark.parametrize(
    ("value", "headers", "cause"),
    [
        (b"file:///etc/passwd", [], ReferenceRefusedError),
        (b"\xff", [], MalformedReferenceError),
        (b"memory://x/orders/1", [("large-message.size", b"-1")], MalformedReferenceError),
        (b"memory://x/orders/1", [("large-message.size", b"268435457")], PayloadTooLargeError),
    ],
)
def test_a_reference_that_is_not_right_is_the_cause(
    config_of: Config, value: bytes, headers: list[Any], cause: type[Exception]
) -> None:
    """What another writer has put into a record cannot make the consumer read what it should not."""
    with pytest.raises(SerializationError) as caught:
        LargeMessageDeserializer(config_of()).deserialize("orders", [("large-message", b"true"), *headers], value)
    assert isinstance(caught.value.__cause__, cause)
    assert not caught.value.retriable


@pytest.mark.parametrize("beside", [[], [("large-message", b"true")]])
def test_a_piece_is_no_value(config_of: Config, beside: list[Any]) -> None:
    """A deserializer sees one record: it says what reads the whole message, and gives no piece of it to anybody."""
    (first, *_) = Chunking(1_000).split(Record(b"k", b"v" * 5_000, beside), "an-id")
    with pytest.raises(SerializationError) as caught:
        LargeMessageDeserializer(config_of()).deserialize("orders", list(first.headers), first.value)
    told = "piece of a message, chunk.id 0 of chunk.count 8, chunk.uuid an-id, .*serializers.aiokafka, .confluent or "
    assert re.search(told, str(caught.value))
    assert (caught.value.deserializing, caught.value.retriable) == (True, False)
    keys = LargeMessageDeserializer(config_of(), is_key=True)
    assert keys.deserialize("orders", list(first.headers), first.key) == b"k"
    hostile = [("large-message.chunk.uuid", b"\x1b[2J"), ("large-message.chunk.id", None)]
    with pytest.raises(SerializationError, match=r"chunk.id - of chunk.count -, chunk.uuid \\x1b"):
        LargeMessageDeserializer(config_of()).deserialize("orders", hostile, b"")


def test_a_payload_that_was_changed_is_the_cause(config_of: Config) -> None:
    """Size and checksum are verified."""
    given = config_of(**{GENERATOR: "sha256"})
    value, headers = sent(given, LARGE)
    store = MemoryStore()
    store.configure({"memory.name": given["memory.name"]})
    store.put("orders", hashlib.sha256(LARGE).hexdigest(), b"m" * 101)
    with pytest.raises(SerializationError) as caught:
        LargeMessageDeserializer(given).deserialize("orders", headers, value)
    assert isinstance(caught.value.__cause__, PayloadCorruptError)


def test_coordinates_join_the_message() -> None:
    """An error that a client has given the coordinates of its record shows them."""
    error: RecordDeserializationError = SerializationError("orders", "value", "gone", deserializing=True).at(3, 1234)
    assert str(error) == "the value of a record of topic orders partition 3 offset 1234 cannot be deserialized: gone"
    assert (error.partition, error.offset, error.deserializing) == (3, 1234, True)


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_key", [False, True])
def test_a_signed_reference_is_read_with_the_key_alone(config_of: Config, *, is_key: bool) -> None:
    """With a key the reference is signed, and what others have written is refused before the store is asked."""
    signing = {"large.message.signing.key": "s" * 32}
    name = "large-message-key.signature" if is_key else "large-message.signature"
    value, headers = sent(config_of(**signing), LARGE, is_key=is_key)
    assert headers[-1][0] == name
    reader = LargeMessageDeserializer(config_of(**signing), is_key=is_key)
    unsigned = headers[:-1]
    assert reader.deserialize("orders", headers, value) == LARGE
    assert headers == [("own", b"1")]
    MemoryStore.clear()  # whoever asked the store now would be told that there is no payload
    with pytest.raises(SerializationError, match="has no signature") as caught:
        reader.deserialize("orders", unsigned, value)
    assert isinstance(caught.value.__cause__, SignatureError)


def test_a_class_of_ones_own_is_not_handed_the_key(config_of: Config) -> None:
    """Keys to sign with are for serializers, not for stores."""
    LargeMessageSerializer(config_of(**{STORE: f"{HERE}.SeedStore", "large.message.signing.key": "s" * 32}))
    assert "large.message.signing.key" not in SeedStore.configs[0]
    assert "large.message.threshold.bytes" not in SeedStore.configs[0]


# --- encryption -------------------------------------------------------------------------------------------------------

ENCRYPTED = {
    "large.message.encryption.type": "aes-256-gcm",
    "large.message.encryption.key.id": "one",
    "large.message.encryption.key.secret": "1f" * 32,
}


def test_an_encrypted_payload_is_read_with_the_key_alone(config_of: Config) -> None:
    """A reader needs no type, and takes the headers off; without the key it says what is missing."""
    value, headers = sent(config_of(**ENCRYPTED), LARGE)
    again, others = sent(config_of(**ENCRYPTED), LARGE)
    assert value != again
    key = {name: ENCRYPTED[name] for name in [*ENCRYPTED][1:]}
    assert LargeMessageDeserializer(config_of(**key)).deserialize("orders", headers, value) == LARGE
    assert headers == [("own", b"1")]
    with pytest.raises(SerializationError, match="encrypted with key one, and no key is configured here") as caught:
        LargeMessageDeserializer(config_of()).deserialize("orders", others, again)
    assert isinstance(caught.value.__cause__, EncryptionError)
    assert not caught.value.retriable
    assert len(others) == 8


def test_keys_are_not_encrypted(config_of: Config) -> None:
    """Equal keys need equal references, which encryption would not give."""
    with pytest.raises(ConfigurationError, match="keys cannot be encrypted: equal keys need equal references"):
        LargeMessageSerializer(config_of(**ENCRYPTED), is_key=True)
    LargeMessageDeserializer(config_of(**ENCRYPTED), is_key=True)


def test_chunks_are_not_encrypted() -> None:
    """Who asks for encryption and sends chunks is told that they stay readable."""
    with pytest.raises(ConfigurationError, match="chunks stay in Kafka, and are not encrypted"):
        strategy_of({"large.message.strategy": "chunk", **ENCRYPTED})
    assert strategy_of({"large.message.strategy": "offload", **ENCRYPTED}) == "offload"
