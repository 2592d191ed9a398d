"""Large values and keys are offloaded, and restored, inside a client.

Source: KIP-1159, "org.apache.kafka.common.serialization.largemessage.Serializer" and "Deserializer". The format is the
worker's (`transforms.reference`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from app.serializers.compaction import CompactionWarning
from app.serializers.fallback import Fallback
from app.serializers.options import CONSUMER_KEYS, GENERATOR, PRODUCER_KEYS, TIMEOUT, own_names, read_options
from app.serializers.stage import Configured, Headers, encoded
from stores.encryption import keyring_of
from stores.keys import Key
from stores.payload import download, publish
from stores.registry import STORE_CLASS, open_store
from stores.store import PayloadStore, Put
from stores.user import UserStore
from transforms.batch_size import HEADER_OVERHEAD_BYTES, HEADERLESS_OVERHEAD_BYTES
from transforms.chunk import is_chunk, piece_text
from transforms.errors import ConfigurationError, SerializationError, TransformError, WideloadError
from transforms.inflate import Inflate
from transforms.keyring import TYPE_NAME
from transforms.offload import Offload, Payload
from transforms.record import Header, Record
from transforms.reference import KEY, VALUE, Reference, is_reference
from transforms.signing import Signing

# Room for the key of a record: the serializer of the value does not see the key.
_KEY_ALLOWANCE_BYTES = 1024

_EQUAL_KEYS = "equal keys need equal references, to meet in one partition and to be compacted"
_RANDOM_IDS = (
    "large.message.id.generator is uuid: each record leaves another payload, and those of compacted records stay; set "
    "large.message.id.generator to sha256"
)


class LargeMessage(Configured):
    """Has a store, and knows whether it is for keys or for values."""

    _READS: ClassVar[Sequence[Key]]
    _part = VALUE
    _store: PayloadStore | None = None
    KEYS: Sequence[str] | None = ()

    def _take(self, config: Mapping[str, object]) -> None:
        self._part = KEY if self._field == KEY.name else VALUE
        values, store = read_options(config, self._READS)
        self.store_timeout_ms: int = values[TIMEOUT]
        self._signing = Signing.of(values)
        self._keyring = keyring_of(values)
        self.KEYS = own_names(cast("str | type", config[STORE_CLASS]))
        self._open(config, values, store)

    @abstractmethod
    def _open(self, config: Mapping[str, object], values: Mapping[str, Any], store: Mapping[str, object]) -> None:
        """Opens the store of this configuration; `values` has those of `_READS`."""

    @abstractmethod
    def wants(self, data: object, headers: Headers) -> bool:
        """Whether a call with this data calls the store.

        Raises:
            ConfigurationError: it was not configured, or is closed.
        """

    @property
    def store(self) -> PayloadStore:
        """The store, as configured.

        Raises:
            ConfigurationError: there is none.
        """
        if self._store is None:
            raise ConfigurationError("value.serializers", f"{type(self).__name__}: is not configured, or was closed")
        return self._store

    def close(self) -> None:
        """Closes the store; may be called twice."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __call__(self, data: Any, context: Any) -> Any:
        """As of `Ours`; refuses keys if it is for values, and values if it is for keys."""
        field = str(context.field)
        if field != self._field:
            raise SerializationError(
                context.topic,
                field,
                f"this {type(self).__name__} was created for {self._field}s; create another one for {field}s, with "
                f"is_key={field == KEY.name}",
            )
        return super().__call__(data, context)


class LargeMessageSerializer(LargeMessage):
    """Stores bytes over the threshold as a payload, and replaces them with a reference.

    It accepts bytes, so it is the last of `value.serializers`. Several threads may use one object.

    Args:
        config: the client's configuration, or the properties in docs/serializers.md; without it, call `configure`.
        is_key: whether it is for keys, not for values.

    Attributes:
        small_bytes: data up to this length is not changed if the record has no headers; -1 before it is configured.

    Raises:
        ConfigurationError: a property is missing or wrong; the store may take longer than `max.block.ms`; or keys are
            to have random ids, or to be encrypted.
    """

    _READS = PRODUCER_KEYS
    _DIRECTION = "serialize"
    small_bytes = -1

    def _open(self, config: Mapping[str, object], values: Mapping[str, Any], store: Mapping[str, object]) -> None:
        codec, generator = values["large.message.compression.type"], values[GENERATOR]
        self._encrypts = self._keyring is not None and self._keyring.writes
        if self._part is KEY:
            if config.get(GENERATOR) == "uuid":
                hint = "remove it: values then use uuid and keys sha256"
                raise ConfigurationError(GENERATOR, f"found 'uuid', allowed for keys is sha256: {_EQUAL_KEYS}; {hint}")
            if self._encrypts:
                found = f"found {values[TYPE_NAME]!r}, and keys cannot be encrypted"
                hint = "remove LargeMessageSerializer from the serializers of keys"
                raise ConfigurationError(TYPE_NAME, f"{found}: {_EQUAL_KEYS}; {hint}")
            # Equal keys need equal references, of whatever producer, and two compressors seldom agree to the byte.
            codec, generator = "none", "sha256"
        threshold_bytes: int = values["large.message.threshold.bytes"]
        limits = [value for name in ("max.request.size", "message.max.bytes") if (value := values[name]) is not None]
        limit_bytes = min(limits) - _KEY_ALLOWANCE_BYTES if limits else None
        self._offload = Offload(
            threshold_bytes,
            limit_bytes,
            None if codec == "none" else codec,
            max_bytes=values["large.message.max.bytes"],
        )
        self._by_digest = generator == "sha256"
        self._fallback = Fallback(-1)  # for values of no length
        self._store = open_store({**store, GENERATOR: generator}, bounded=True)
        self._to_prove = self._part is KEY and not isinstance(self._store, Put)
        own_ids = isinstance(self._store, UserStore) and self._store.has_own_ids
        self._warning = None if self._by_digest or own_ids else CompactionWarning(config, _RANDOM_IDS)
        room_bytes = threshold_bytes if limit_bytes is None else limit_bytes - HEADERLESS_OVERHEAD_BYTES
        self.small_bytes = min(threshold_bytes, room_bytes)

    def serialize(self, topic: str, headers: Headers, data: object) -> bytes | None:
        """`data`, or the path of the payload if the data is large; the reference's headers are then added to `headers`.

        Raises:
            SerializationError: the store failed (`__cause__` is a `PayloadStoreError`), `data` has more than
                `large.message.max.bytes` (a `ValueTooLargeError`), it is not bytes, or it is large and there is no list
                of headers.
            ConfigurationError: it was not configured, or is closed.
        """
        if data is not None and not isinstance(data, bytes):
            raise self._error(topic, f"found {type(data).__name__}, allowed are bytes; put a serializer before it")
        return data if data is None or not self.wants(data, headers) else self.offload(topic, headers, data)

    def offload(self, topic: str, headers: Headers, data: bytes) -> bytes:
        """As `serialize`, whatever the length of the data, because the topic would refuse it.

        Raises:
            SerializationError: as `serialize`.
        """
        store = self.store
        if self._fallback.holds(data):
            return data
        if headers is None:
            raise self._error(
                topic,
                f"it is large ({len(data):,} bytes), and a reference needs headers; give the record headers=[], or use "
                "the SerializingProducer of wideload.serializers.confluent",
            )
        if self._warning is not None:
            self._warning.ask(topic)
        try:
            payload = self._offload.payload(data, hashed=not self._encrypts)
            reference = self._fallback.tried(data, lambda: self._publish(store, topic, payload))
            if reference is None:
                return data
            value = reference.value()
            if self._signing is not None:
                reference = self._signing.signed(reference, self._part)
        except WideloadError as exc:
            raise self._error(topic, str(exc)) from exc
        except ValueError as exc:  # of a topic that Kafka would refuse too
            raise self._error(topic, f"topic {topic!r}: {exc}") from exc
        headers.extend(reference.headers(self._part))
        return value

    def fall_back(self, max_bytes: int) -> None:
        """Has `serialize` return values up to this length unchanged while the store is down: the caller splits them.

        One value every five seconds tries the store again.
        """
        self._fallback = Fallback(max_bytes)

    def wants(self, data: object, headers: Headers) -> bool:
        if not isinstance(data, bytes):
            return False
        _ = self.store  # an error if there is none
        # Headers do not count for a key: it would be large in one record and not in the next, and change its partition.
        counted, most = headers if self._part is VALUE else None, len(data)
        if counted:  # a character takes up to four bytes
            most += sum(HEADER_OVERHEAD_BYTES + 4 * (len(name) + len(value or b"")) for name, value in counted)
        if most <= self.small_bytes:
            return False  # nearly every record ends here
        large = self._offload.wants(Record(None, data, encoded(counted or ())))
        return large and not self._fallback.holds(data)

    def _publish(self, store: PayloadStore, topic: str, payload: Payload) -> Reference:
        reference = publish(store, topic, payload, by_digest=self._by_digest, keyring=self._keyring)
        if self._to_prove:
            # The first key is published twice if the store names payloads: equal keys must give equal references.
            again = publish(store, topic, payload, by_digest=self._by_digest)
            if again != reference:
                raise ConfigurationError(
                    STORE_CLASS,
                    "returned two paths for one key, so two partitions; its publish must name payloads by their bytes",
                )
            self._to_prove = False
        return reference


class LargeMessageDeserializer(LargeMessage):
    """Replaces a reference with its payload; everything else is unchanged.

    It returns bytes, so it is the first of `value.deserializers`. Arguments and errors are as with
    `LargeMessageSerializer`, for `max.poll.interval.ms`.
    """

    _READS = CONSUMER_KEYS
    _DIRECTION = "deserialize"

    def _open(self, _: Mapping[str, object], values: Mapping[str, Any], store: Mapping[str, object]) -> None:
        self._inflate = Inflate(values["large.message.max.bytes"], signing=self._signing)
        self._store = open_store(store, bounded=True)

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> bytes | None:
        """`data`, or the payload if the data is a reference, whose headers are then removed from `headers`.

        Raises:
            SerializationError: the payload is missing (`__cause__` is a `PayloadNotFoundError`), the store failed or
                refused the reference (another `PayloadStoreError`), the reference or the payload is wrong (a
                `TransformError`), or the value is a chunk.
            ConfigurationError: it was not configured, or is closed.
        """
        store = self.store
        if data is None or not headers:
            return data
        if self._part is VALUE and is_chunk(headers):
            raise self._error(
                topic,
                f"the value is a chunk of a message, {piece_text(headers)}, and a deserializer sees one record at a "
                "time; read the topic with the DeserializingConsumer of wideload.serializers.aiokafka, .confluent or "
                ".kafka_python, with the LargeMessageSchema of wideload.serializers.faust, or behind a pipeline with "
                "the transform inflate or assemble",
            )
        if not is_reference(headers, self._part):
            return data
        try:
            reference, own = Reference.read(data, headers, self._part)
            self._inflate.verify(reference, self._part)
            restored = self._inflate.restore(reference, download(store, reference, self._inflate, self._keyring))
        except WideloadError as exc:
            raise self._error(topic, str(exc)) from exc
        if isinstance(headers, list):  # aiokafka's own records have a tuple
            headers[:] = own
        return restored

    def wants(self, data: object, headers: Headers) -> bool:
        return data is not None and bool(headers) and is_reference(headers or (), self._part)

    def restored_bytes(self, headers: Sequence[Header]) -> int:
        """The most bytes that `deserialize` returns for a reference with these headers.

        `large.message.max.bytes` if the headers have no size; 0 if they are wrong, as nothing is downloaded then.
        """
        try:
            reference, _ = Reference.read(b"-", headers, self._part)
            self._inflate.stored_limit_bytes(reference)
        except TransformError:
            return 0
        return self._inflate.max_bytes if reference.size is None else reference.size
