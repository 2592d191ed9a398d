"""confluent-kafka's own clients, created from one configuration that includes the serializers and their store.

    producer = SerializingProducer({"bootstrap.servers": ..., "value.serializers": [...], ...})
    consumer = DeserializingConsumer({"bootstrap.servers": ..., "value.deserializers": [...], ...})

`producer_config` and `consumer_config` create a configuration for confluent-kafka's own classes. These do not close
the serializers in it, so the application must: `config["value.serializer"].close()`. Ours close their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import confluent_kafka

from app.chunks.blocking import OnDiscarded
from app.chunks.destinations import ANY_TOPIC_BYTES, is_plain
from app.chunks.discarded import warn
from app.chunks.keys import CONSUMER_KEYS
from app.config.idempotence import idempotent
from app.serializers import config as client_config
from app.serializers.composable import ComposableDeserializer, ComposableSerializer
from app.serializers.confluent_reads import PollingConsumer
from app.serializers.confluent_writes import WritingProducer, bare_produce
from app.serializers.librdkafka import KEYS
from app.serializers.strategy import Outgoing, byte_count, strategy_of
from app.serializers.threads import Threads

__all__ = [
    "AwaitedDeserializer",
    "DeserializingConsumer",
    "SerializingProducer",
    "async_consumer_config",
    "consumer_config",
    "producer_config",
]

_LIMIT = "message.max.bytes"
_LIMIT_BYTES = 1_000_000  # librdkafka's default
_BATCH = "batch.size"
_BATCH_BYTES = 1_000_000  # the same
_ASIDE = frozenset({"max.block.ms", "max.request.size"})  # Kafka's properties that only the serializers read here
_NAMES = KEYS | _ASIDE


def producer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of a `SerializingProducer`.

    The serializers also offload values over `message.max.bytes` (1,000,000), which librdkafka would refuse.

    Args:
        config: properties with Kafka's names: librdkafka's, and those of the serializers and their store. The store
            calls of a record must fit into `max.block.ms`.

    Returns:
        The properties of librdkafka, with `key.serializer` and `value.serializer` if `config` names serializers.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong.
    """
    return _librdkafka(client_config.producer({_LIMIT: _LIMIT_BYTES, **config}, _NAMES))


def _librdkafka(split: client_config.ClientConfig[ComposableSerializer]) -> dict[str, Any]:
    client: dict[str, Any] = {key: value for key, value in split.client.items() if key not in _ASIDE}
    return {**client, **{f"{part}.serializer": composable for part, composable in split.parts.items()}}


def consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of a `DeserializingConsumer`; otherwise as `producer_config`.

    Raises:
        ConfigurationError: as there.
    """
    split = client_config.consumer(config, _NAMES)
    return {**split.client, **{f"{part}.deserializer": composable for part, composable in split.parts.items()}}


def async_consumer_config(config: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of an `AsyncDeserializingConsumer` of `confluent_kafka.aio`; otherwise as `consumer_config`.

    Payloads are downloaded off the event loop. The deserializers are closed with `aclose()`.

    Raises:
        ConfigurationError: as there.
    """
    made = consumer_config(config)
    return {
        key: AwaitedDeserializer(value) if isinstance(value, ComposableDeserializer) else value
        for key, value in made.items()
    }


class _Closable(Protocol):
    def close(self) -> object: ...


class _Closing:
    """Closes at the end of a `with`: confluent-kafka's own classes flush, or close what is below ours."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closable, *_: object) -> None:
        self.close()


if TYPE_CHECKING:
    _SerializingProducer = confluent_kafka.SerializingProducer[Any, Any]
else:
    _SerializingProducer = confluent_kafka.SerializingProducer  # generic from 2.16 on


class SerializingProducer(_Closing, _SerializingProducer, WritingProducer):
    """confluent-kafka's `SerializingProducer`, with serializers and store in its configuration, for values of any size.

    `large.message.strategy` determines what happens to a value over `large.message.threshold.bytes`, or whose record
    exceeds the topic's `max.message.bytes`. The producer looks up that limit before the first record of more than
    1,024 bytes, and again when the topic has refused one:

        offload   the default: it is stored. Needs a `LargeMessageSerializer`
        chunk     it is sent as chunks, only if the topic would refuse it
        auto      it is stored; while the store is down, it is sent as chunks

    All chunks are sent to one partition, in order. `on_delivery` is called once for a value: with the message of its
    last chunk, or with the first error. With `chunk` and `auto`, `enable.idempotence` is true by default, unless
    another property forbids it.

    `produce` may be called in a callback; `poll`, `flush` and others raise a `KafkaException` (`_STATE`) there.

    Records without headers can become references too. Everything else is as in confluent-kafka, including errors.

    Args:
        conf: as for `producer_config`, with `large.message.strategy`, `chunk.max.bytes` and `chunk.max.message.bytes`.

    Raises:
        ConfigurationError: as there, or the strategy does not fit the serializers.
    """

    def __init__(self, conf: Mapping[str, object]) -> None:
        whole: Mapping[str, object] = {_LIMIT: _LIMIT_BYTES, **conf}
        if strategy_of(whole) != "offload":
            whole = idempotent(whole)
        largest = byte_count(whole, _LIMIT, _LIMIT_BYTES)
        outgoing = Outgoing(whole, _NAMES, largest, min(byte_count(whole, _BATCH, _BATCH_BYTES), largest))
        self._split = outgoing.serializers
        with self._split.closed_on_error():
            self.prepare(outgoing, conf)
            self._plain_bytes, self._plain_topics = min(ANY_TOPIC_BYTES, outgoing.plain_bytes), set[str]()
            if any(name.endswith("serializer.builder") for name in conf):
                self._plain_bytes = -1  # confluent-kafka makes a serializer, which may change any value
            super().__init__(_librdkafka(self._split))

    def produce(  # type: ignore[override]  # as confluent-kafka's own class has it
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Callable[..., None] | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As there.

        Raises:
            BufferError: librdkafka's queue is full; or, in a callback, it has no room for all chunks of the value.
            ChunkError: the record cannot be split, or its topic is compacted.
            ConfigurationError: the record would be split, and the topic's limit is below `batch.size`, or unknown.
            SerializationError: a wrapped null would be written to a compacted topic.
        """
        if topic in self._plain_topics and is_plain(self._plain_bytes, key, value, headers):
            # Each call on the way costs; nothing on it would do anything for such a record.
            bare_produce(self, topic, value, key, partition, on_delivery, None, timestamp, headers or None)
            return
        self._outgoing.check(topic, value)
        super().produce(topic, key, value, partition, on_delivery, timestamp, [] if headers is None else headers)
        self._plain_topics.add(topic)

    def close(self) -> bool:
        """As there (`flush` before 2.13); then closes the serializers and their stores. May be called twice."""
        try:
            return bool(super().close()) if hasattr(super(), "close") else self.flush() == 0
        finally:
            if not self.in_callback:  # where it is refused, and the producer remains usable
                self._split.close()


if TYPE_CHECKING:
    _DeserializingConsumer = confluent_kafka.DeserializingConsumer[Any, Any]
else:
    _DeserializingConsumer = confluent_kafka.DeserializingConsumer


class _Fetched(confluent_kafka.Consumer):
    """What confluent-kafka's `DeserializingConsumer` polls and deserializes."""

    _message: confluent_kafka.Message[Any, Any]

    def poll(self, timeout: float = -1) -> confluent_kafka.Message[Any, Any]:  # noqa: ARG002  # as there
        return self._message


class DeserializingConsumer(_Closing, PollingConsumer, _DeserializingConsumer, _Fetched):  # type: ignore[misc]
    """confluent-kafka's `DeserializingConsumer`, for whole values: plain, from a reference, or from chunks.

    A value in chunks is the message of its last chunk, with the whole value and the record's own headers. No commit,
    automatic or not, passes the first chunk of an incomplete message; the commit's metadata notes what was delivered
    behind it, so that a restart does not deliver it again. Chunks that exceed the memory limit are re-read from the
    log, by a second consumer that does not join the group. Up to eight payloads are downloaded ahead. Everything else
    is as in confluent-kafka, including errors.

    Args:
        conf: as for `consumer_config`, and the properties of a consumer of chunks.
        on_discarded: called with each message that cannot be reassembled. If it raises an error, the call raises it,
            the next call tries again, and no commit passes the message. By default a warning is logged.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong.
    """

    def __init__(self, conf: Mapping[str, object], on_discarded: OnDiscarded = warn) -> None:
        self._split = client_config.consumer(conf, _NAMES, CONSUMER_KEYS)
        with self._split.closed_on_error():
            super().__init__(self._split, on_discarded)

    def deserialize(self, message: confluent_kafka.Message[Any, Any]) -> None:
        own: Any = [*(message.headers() or ())]
        self._message = message
        try:
            _DeserializingConsumer.poll(self)
        except BaseException:
            if own:
                message.set_headers(own)
            raise

    def close(self) -> None:
        """As there; then closes the deserializers and their stores. May be called twice."""
        try:
            super().close()
        finally:
            self._split.close()


class AwaitedDeserializer:
    """Deserializers for `confluent_kafka.aio`, whose caller awaits the result.

    Args:
        composable: the deserializers.
    """

    def __init__(self, composable: ComposableDeserializer) -> None:
        self._composable = composable
        self._threads = Threads()

    async def __call__(self, data: bytes | None, context: Any) -> Any:
        """As `ComposableDeserializer.deserialize`, without blocking the loop on a store."""
        given = context.headers
        headers = list(given) if isinstance(given, list) else given
        found = await self._threads.run(self._composable, context.topic, headers, data)
        if isinstance(given, list):
            given[:] = headers
        return found

    async def aclose(self) -> None:
        """Closes the deserializers, once no store call is under way."""
        await self._threads.close()
        self._composable.close()
