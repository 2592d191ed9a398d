"""aiokafka's clients with serializers that see headers, and that call a store off the event loop.

Both have all methods of aiokafka's own clients. One configuration with Kafka's names is for the client, its serializers
and their store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import ProducerClosed

from app.chunks.discarded import warn
from app.chunks.keys import CONSUMER_KEYS, PRODUCER_KEYS, STRATEGY
from app.chunks.producer import ChunkingProducer
from app.chunks.whole_records import OnDiscarded, WholeRecordConsumer
from app.config.idempotence import idempotent
from app.config.naming import check_name
from app.kafka.arguments import Arguments
from app.kafka.topics import Topic
from app.serializers import config as taken
from app.serializers.composable import ComposableDeserializer
from app.serializers.strategy import (
    ASK_AGAIN_S,
    check_wrapper,
    is_plain,
    large_serializer,
    plain_bytes,
    strategy_of,
    told_unknown,
)
from app.serializers.threads import Threads
from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError, SerializationError
from transforms.record import Header, Record
from transforms.reference import VALUE, is_reference

__all__ = ["DeserializingConsumer", "SerializingProducer"]

_PRODUCER = Arguments.of(
    AIOKafkaProducer, renamed={"batch.size": "max_batch_size"}, aside=frozenset({"max.block.ms"})
).without("serializer")
_CONSUMER = Arguments.of(AIOKafkaConsumer).without("serializer")


class SerializingProducer(ChunkingProducer):
    """An `AIOKafkaProducer` whose keys and values go through serializers, and which sends nothing that is too large.

    `large.message.strategy` says what is done with a record that is over `large.message.threshold.bytes`, or over what
    its topic takes (`max.message.bytes`, which the producer asks for once, and again when the topic refuses a batch):

        offload   the default: its value goes to the store. Needs a `LargeMessageSerializer`
        chunk     it is sent as chunks, as by `app.chunks.ChunkingProducer`; only what the topic would refuse
        auto      its value goes to the store; while the store is down, it is sent as chunks

    Sends of one task leave in order. Of sends that run at the same time, one with a large value leaves when its payload
    is stored, so a later one may pass it. If the order matters, await one `send` before the next.

    Batches of `create_batch` take bytes as they are: a batch has no topic, so its records are not serialized.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaProducer` with dots, `large.message.strategy`,
            `chunk.max.bytes`, `chunk.max.message.bytes`, and the keys of the serializers and their store. The store
            calls of a record must fit into `max.block.ms`.
        options: arguments in place of keys, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a key is unknown or missing, its value is wrong, or the strategy does not fit the stages.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # The serializers must know the limit, as they offload what aiokafka would refuse.
        whole.setdefault("max.request.size", _PRODUCER.defaults["max_request_size"])
        self._strategy = strategy_of(whole)
        whole.pop(STRATEGY.name, None)
        if self._strategy != "offload":
            whole = idempotent(whole)
        self._serializers = taken.producer(whole, [*_PRODUCER.keys(), STRATEGY.name], PRODUCER_KEYS)
        self._threads = Threads()
        self._unknown_until: dict[str, float] = {}
        with self._serializers.closed_on_error():
            self._large = large_serializer(self._strategy, self._serializers)
            self._plain_limits: dict[str, int] = {}  # of the topics in `_described`
            super().__init__(whole)

    def _read(self, *_: Mapping[str, object]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        values = self._serializers.values
        if self._strategy == "auto" and self._large is not None:
            self._large.fall_back(values["chunk.max.message.bytes"])
        return values, {**_PRODUCER.defaults, **_PRODUCER.read(self._serializers.client)}

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] | None = None,
    ) -> asyncio.Future[Any]:
        """As `AIOKafkaProducer.send`; the headers of a reference are added to a copy of `headers`.

        Raises:
            SerializationError: a stage raised an error, or a wrapped null would go to a compacted topic, and nothing is
                sent. `__cause__` is the reason; `retriable` is true if another try may succeed.
            ChunkError: the record cannot be split, or its topic is compacted.
            ConfigurationError: the topic's name is over its limit.
        """
        if self._stopped:
            raise ProducerClosed
        described = self._described.get(topic)
        if described is None:
            described = await self._first_seen(topic, asked=value is not None or key is not None)
        future: asyncio.Future[Any]
        if described is not None and not headers and is_plain(self._plain_limits.get(topic, -1), key, value):
            # Each call on the way costs; nothing on it would do anything for such a record.
            future = await AIOKafkaProducer.send(self, topic, value, key, partition, timestamp_ms)
            return future
        check_wrapper(topic, value, described)
        own = list(headers or ())
        data = {"key": key, "value": value}
        for part, composable in self._serializers.parts.items():
            data[part] = await self._threads.run(composable, topic, own, data[part])
        for part, given in data.items():
            if isinstance(given, bytearray | memoryview):
                data[part] = bytes(given)
        if self._over_limit(data, own, described):
            if self._large is not None and not is_reference(own, VALUE):
                data["value"] = await self._threads.offload(self._large, topic, own, data["value"])
            chunks = self._strategy == "chunk" or (self._strategy == "auto" and described is not None)
            if chunks and self._over_limit(data, own, described):
                stamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
                return await self._send_chunks(
                    topic, Record(data["key"], data["value"], own, stamp_ms), partition, described
                )
        future = await AIOKafkaProducer.send(self, topic, data["value"], data["key"], partition, timestamp_ms, own)
        return future

    async def stop(self) -> None:
        """As `AIOKafkaProducer.stop`; then closes the serializers and their stores."""
        try:
            await super().stop()
        finally:
            await self._threads.close()
            self._serializers.close()

    async def _first_seen(self, topic: str, *, asked: bool) -> Topic | None:
        check_name("topic", topic, "topic")
        if not asked:
            return None
        await self.partitions_for(topic)  # no payload for a topic that does not exist
        described = await self._topic(topic)
        limit = self._limit_bytes(described) - HEADERLESS_OVERHEAD_BYTES
        self._plain_limits[topic] = min(plain_bytes(self._serializers), limit)
        return described

    def _over_limit(self, data: Mapping[str, Any], headers: Sequence[Header], described: Topic | None) -> bool:
        key, value = data["key"], data["value"]
        if not isinstance(value, bytes) or not isinstance(key, bytes | None):
            return False  # aiokafka says what it takes
        return Chunking(self._limit_bytes(described)).wants(Record(key, value, headers))

    async def _topic(self, topic: str) -> Topic | None:
        if self._unknown_until.get(topic, 0.0) > time.monotonic():
            return None
        try:
            return await super()._topic(topic)
        except ConfigurationError as exc:
            if self._strategy == "chunk":
                raise
            if topic not in self._unknown_until:
                told_unknown(topic, exc)
            self._unknown_until[topic] = time.monotonic() + ASK_AGAIN_S
            return None


class DeserializingConsumer(WholeRecordConsumer):
    """An `AIOKafkaConsumer` that gives each record whole, whether it came plain, as a reference or as chunks.

    Chunks are put together first, as `app.chunks.AssemblingConsumer` says; then references are restored, and keys and
    values deserialized.

    A record that cannot be restored or deserialized keeps its place (KIP-334): the records before it are delivered,
    then `getone` or `getmany` raises a `SerializationError` with its topic, partition and offset. The next call tries
    again; `seek` to the next offset skips the record. Chunks that make no message go to `on_discarded`.

    The position of a partition moves when a record is delivered, not while it is downloaded. So no commit, rebalance or
    cancelled call loses a record. A download goes on when its call is cancelled, and serves the next call.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, `app.chunks.keys.CONSUMER_KEYS`,
            and the keys of the deserializers and their store.
        topics: the topics to subscribe to.
        on_discarded: called with each message of chunks that is not whole; may be a coroutine function. By default a
            warning is logged.
        options: arguments in place of keys, for values that are not strings: `ssl_context`,
            `partition_assignment_strategy`.

    Raises:
        ConfigurationError: a key is unknown or missing, or its value is wrong.
    """

    def __init__(
        self, config: Mapping[str, object], *topics: str, on_discarded: OnDiscarded = warn, **options: object
    ) -> None:
        whole = _CONSUMER.merged(config, options)
        deserializers = taken.consumer(whole, _CONSUMER.keys(), CONSUMER_KEYS)
        with deserializers.closed_on_error():
            arguments = {**_CONSUMER.defaults, **_CONSUMER.read(deserializers.client)}
            super().__init__(deserializers.values, _Restoring(deserializers), on_discarded, topics, arguments)


class _Restoring:
    """Restores and deserializes records; see `app.chunks.whole_records.Restoring`."""

    def __init__(self, deserializers: taken.ClientConfig[ComposableDeserializer]) -> None:
        self._deserializers = deserializers
        self._threads = Threads()
        self._keeps_plain = all(composable.keeps_plain for composable in deserializers.parts.values())

    @property
    def timeout_ms(self) -> int:
        return self._deserializers.store_timeout_ms

    def size(self, record: ConsumerRecord) -> int | None:
        return self._deserializers.restored_bytes(record)

    async def restore(self, record: ConsumerRecord) -> ConsumerRecord:
        found, headers = {"key": record.key, "value": record.value}, list(record.headers)
        try:
            for part, composable in self._deserializers.parts.items():
                found[part] = await self._threads.run(composable, record.topic, headers, found[part])
        except SerializationError as exc:
            raise exc.at(record.partition, record.offset) from exc.__cause__
        return replace(record, **found, headers=tuple(headers))

    def restore_now(self, record: ConsumerRecord) -> ConsumerRecord:
        if self._keeps_plain and not record.headers:
            return record
        found, headers = taken.deserialized(self._deserializers, record)
        if found["value"] is record.value and found["key"] is record.key and tuple(headers) == record.headers:
            return record  # nothing was done with it, and a copy costs more than all the rest
        return replace(record, **found, headers=tuple(headers))

    async def close(self) -> None:
        await self._threads.close()
        self._deserializers.close()
