"""aiokafka's clients with serializers that see headers, and that call a store off the event loop.

Both have all methods of aiokafka's own clients. One configuration with Kafka's names is for the client, its serializers
and their store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord

from app.chunks.destinations import ESTIMATE_BYTES, Destination, described
from app.chunks.discarded import OnDiscarded, warn
from app.chunks.keys import CONSUMER_KEYS
from app.chunks.producer import ChunkingProducer
from app.chunks.whole_records import WholeRecordConsumer
from app.config.idempotence import idempotent
from app.kafka.arguments import Arguments
from app.serializers import config as client_config
from app.serializers.strategy import Outgoing, byte_count, check_wrapper, strategy_of
from app.serializers.threads import Threads
from transforms.errors import SerializationError
from transforms.record import Header

__all__ = ["DeserializingConsumer", "SerializingProducer"]

_PRODUCER = Arguments.of(
    AIOKafkaProducer, renamed={"batch.size": "max_batch_size"}, aside=frozenset({"max.block.ms"})
).without("serializer")
_CONSUMER = Arguments.of(AIOKafkaConsumer).without("serializer")


class SerializingProducer(ChunkingProducer):
    """An `AIOKafkaProducer` that serializes keys and values, and sends nothing that is too large.

    `large.message.strategy` determines what happens to a value over `large.message.threshold.bytes`, or whose record
    exceeds the topic's `max.message.bytes`. The producer looks up that limit once, and again when the topic has refused
    a batch:

        offload   the default: it is stored. Needs a `LargeMessageSerializer`
        chunk     it is sent as chunks, as by `ChunkingProducer`, only if the topic would refuse it
        auto      it is stored; while the store is down, it is sent as chunks

    Sends of one task are sent in order. Of concurrent sends, one with a large value is sent when its payload is stored,
    so a later one may overtake it. If the order matters, await one `send` before the next.

    Batches of `create_batch` accept only bytes: a batch has no topic, so its records are not serialized.

    `send` adds the headers of a reference to a copy of `headers`. It raises a `SerializationError`, and sends nothing,
    if a serializer raised an error, or a wrapped null would be written to a compacted topic. `__cause__` is the reason;
    `retriable` is true if another try may succeed.

    Args:
        config: properties with Kafka's names: the arguments of `AIOKafkaProducer` with dots, `large.message.strategy`,
            `chunk.max.bytes`, `chunk.max.message.bytes`, and those of the serializers and their store. The store
            calls of a record must fit into `max.block.ms`.
        options: arguments in place of properties, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong, or the strategy does not fit the serializers.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # The serializers must know the limit, as they offload what aiokafka would refuse.
        limit = byte_count(whole, "max.request.size", _PRODUCER.defaults["max_request_size"])
        whole.setdefault("max.request.size", limit)
        if strategy_of(whole) != "offload":
            whole = idempotent(whole)
        arguments = dict(_PRODUCER.defaults)
        ask = partial(described, arguments)
        self._outgoing = outgoing = Outgoing(whole, _PRODUCER.keys(), limit - ESTIMATE_BYTES, ask=ask)
        self._threads = Threads()
        with outgoing.serializers.closed_on_error():
            arguments |= _PRODUCER.read(outgoing.serializers.client)
            self._begin(arguments, outgoing.destinations, outgoing.plain_bytes)

    async def _serialized(
        self, destination: Destination, headers: list[Header], key: Any, value: Any
    ) -> tuple[Any, Any]:
        check_wrapper(destination, value)
        data = {"key": key, "value": value}
        for part, composable in self._outgoing.serializers.parts.items():
            data[part] = await self._threads.run(composable, destination.name, headers, data[part])
        return data["key"], data["value"]

    async def _offloaded(self, topic: str, headers: list[Header], value: Any) -> bytes:
        assert self._outgoing.large is not None
        return await self._threads.offload(self._outgoing.large, topic, headers, value)

    async def stop(self) -> None:
        """As `AIOKafkaProducer.stop`; then closes the serializers and their stores."""
        try:
            await super().stop()
        finally:
            await self._threads.close()
            self._outgoing.serializers.close()


class DeserializingConsumer(WholeRecordConsumer):
    """An `AIOKafkaConsumer` that delivers whole values, whether they were sent plain, as references or as chunks.

    Chunks are reassembled first, as by `AssemblingConsumer`. Then references are restored, and keys and values
    deserialized.

    A record that cannot be restored or deserialized keeps its place (KIP-334): the records before it are delivered,
    then `getone` or `getmany` raises a `SerializationError` with its topic, partition and offset. The next call tries
    again; `seek` to the next offset skips the record. Chunks that do not form a message are passed to `on_discarded`.

    The position of a partition moves when a record is delivered, not while it is downloaded, so no commit, rebalance or
    cancelled call loses a record. The download of a cancelled call continues, and serves the next call.

    Args:
        config: properties with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, and those of chunks, of
            the deserializers and of their store.
        topics: the topics to subscribe to.
        on_discarded: called with each message that cannot be reassembled; may be a coroutine function. By default a
            warning is logged.
        options: arguments in place of properties, for values that are not strings: `ssl_context`,
            `partition_assignment_strategy`.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong.
    """

    def __init__(
        self, config: Mapping[str, object], *topics: str, on_discarded: OnDiscarded = warn, **options: object
    ) -> None:
        whole = _CONSUMER.merged(config, options)
        self._deserializers = client_config.consumer(whole, _CONSUMER.keys(), CONSUMER_KEYS)
        self._threads = Threads()
        self._keeps_plain = self._deserializers.keeps_plain
        self._download_s = max(1, self._deserializers.store_timeout_ms) / 1000
        with self._deserializers.closed_on_error():
            arguments = {**_CONSUMER.defaults, **_CONSUMER.read(self._deserializers.client)}
            super().__init__(self._deserializers.values, on_discarded, topics, arguments)

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`; then waits for the last download, and closes the deserializers."""
        try:
            await super().stop()
        finally:
            await self._threads.close()
            self._deserializers.close()

    def _size(self, record: ConsumerRecord) -> int | None:
        return self._deserializers.restored_bytes(record)

    async def _restore_large(self, record: ConsumerRecord) -> ConsumerRecord:
        found, headers = {"key": record.key, "value": record.value}, list(record.headers)
        try:
            for part, composable in self._deserializers.parts.items():
                found[part] = await self._threads.run(composable, record.topic, headers, found[part])
        except SerializationError as exc:
            raise exc.at(record.partition, record.offset) from exc.__cause__
        return replace(record, **found, headers=tuple(headers))

    def _restore(self, record: ConsumerRecord) -> ConsumerRecord:
        if self._keeps_plain:
            return record
        found, headers = client_config.deserialized(self._deserializers, record)
        if found["value"] is record.value and found["key"] is record.key and tuple(headers) == record.headers:
            return record  # nothing was done with it, and a copy costs more than all the rest
        return replace(record, **found, headers=tuple(headers))
