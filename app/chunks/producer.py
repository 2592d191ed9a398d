"""aiokafka's producer with chunks: it splits a record that the topic would refuse."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaTimeoutError, ProducerClosed
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from app.chunks.destinations import ESTIMATE_BYTES, Destination, Destinations, described, is_plain
from app.chunks.keys import PRODUCER_KEYS, apart
from app.config.idempotence import idempotent
from app.config.naming import check_name
from app.kafka.arguments import Arguments
from app.kafka.average import Average
from app.kafka.producer import ProducerControls, RefusedBatches
from app.kafka.shielded import retrieve_exception
from transforms.chunked_message import ChunkMessageId
from transforms.record import Header, Record

_ARGUMENTS = Arguments.of(AIOKafkaProducer)


class ChunkedRecordMetadata(RecordMetadata):  # type: ignore[misc]  # aiokafka has no types
    """The `RecordMetadata` of the last chunk of a message.

    Attributes:
        chunk_message_id: the offsets of the first and the last chunk.
    """

    chunk_message_id: ChunkMessageId

    @classmethod
    def of(cls, first: RecordMetadata, last: RecordMetadata, timestamp: int) -> ChunkedRecordMetadata:
        """From the metadata of the first and the last chunk; `timestamp` is the producer's."""
        own = last if last.timestamp_type else last._replace(timestamp=timestamp)
        metadata = cls(*own)
        metadata.chunk_message_id = ChunkMessageId(first.offset, last.offset)
        return metadata


class ChunkingProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaProducer` that splits records which the topic would refuse.

    A record is split if, as an uncompressed batch of one, it is longer than `chunk.max.bytes`, the topic's
    `max.message.bytes` or `max.request.size`. The producer looks up the topic's limit once, and again after the topic
    has refused a batch. Without the permission to describe it, `chunk.max.bytes` is required. Tombstones and empty
    values are never split.

    All chunks are sent to one partition, in order, each as a separate batch. Other records may be between them. The log
    has each chunk once (`enable.idempotence` is true by default). A `send` that fails or is cancelled midway leaves
    chunks in the log, which readers discard.

    Sends of one task are sent in order. Of concurrent sends, a small record may overtake a large one.

    Args:
        config: properties with Kafka's names: the arguments of `AIOKafkaProducer` with dots, `chunk.max.bytes` and
            `chunk.max.message.bytes`.
        options: arguments in place of properties, for values that are not strings: `value_serializer`, `ssl_context`,
            `partitioner`.

    Raises:
        ConfigurationError: a property is unknown, or its value is wrong.
    """

    _own_serializers: tuple[Any, Any] = None, None

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        values, client = apart(PRODUCER_KEYS, _ARGUMENTS, _ARGUMENTS.merged(config, options))
        arguments = {**_ARGUMENTS.defaults, **_ARGUMENTS.read(idempotent(client))}
        self._own_serializers = arguments.pop("key_serializer"), arguments.pop("value_serializer")
        largest_bytes = arguments["max_request_size"] - ESTIMATE_BYTES
        destinations = Destinations(values, "chunk", partial(described, arguments), largest_bytes)
        self._begin(arguments, destinations, -1 if any(self._own_serializers) else sys.maxsize)

    def _begin(self, arguments: Mapping[str, Any], destinations: Destinations, plain_bytes: int) -> None:
        """Constructs it; no serializer changes keys and values of at most `plain_bytes` together."""
        self._destinations = destinations
        self._plain_bytes = plain_bytes
        self._plain: dict[str, int] = {}  # likewise, of records that a topic accepts
        self._asking = asyncio.Lock()
        self._results: set[asyncio.Task[ChunkedRecordMetadata | None]] = set()
        self._rates = defaultdict[str, Average](Average)
        self._gap = False
        self._stopped = False
        self._batch_bytes: int = arguments["max_batch_size"]
        self._idempotent = bool(arguments["enable_idempotence"])
        self._timeout_s: float = arguments["request_timeout_ms"] / 1000
        super().__init__(**arguments)
        self._controls = ProducerControls(self)
        RefusedBatches(self, self._timeout_s, self._refused, self._settled)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] | None = None,
    ) -> asyncio.Future[Any]:
        """As `AIOKafkaProducer.send`; the result of a chunked message is a `ChunkedRecordMetadata`.

        Returns when the last chunk is queued, so a whole message is never in memory twice. If a chunk fails, the future
        fails, and no chunk is sent after it.

        Raises:
            ChunkError: the record cannot be split, is over `chunk.max.message.bytes`, or the topic is compacted.
            ConfigurationError: the topic's limit is unknown, or its name is over the limit.
            TypeError: key or value are not bytes.
        """
        future: asyncio.Future[Any]
        if self._stopped:
            raise ProducerClosed
        if is_plain(self._plain.get(topic, -1), key, value, headers):
            # Each call on the way costs; nothing on it would do anything for such a record.
            future = await AIOKafkaProducer.send(self, topic, value, key, partition, timestamp_ms, headers)
            return future
        destination = self._destinations.known(topic) or await self._first_seen(topic)
        own = list(headers or ())
        key, value = await self._serialized(destination, own, key, value)
        stamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        record = Record(_bytes("key", key), _bytes("value", value), own, stamp_ms)
        if destination.stores(record):
            record = replace(record, value=await self._offloaded(topic, own, record.value))
        pieces = destination.pieces(record)
        if pieces is not None:
            return await self._send_pieces(topic, record, pieces, partition)
        future = await AIOKafkaProducer.send(self, topic, record.value, record.key, partition, timestamp_ms, own)
        return future

    async def _serialized(self, _: Destination, __: list[Header], key: Any, value: Any) -> tuple[Any, Any]:
        """Key and value as bytes; may add to the headers."""
        of_key, of_value = self._own_serializers
        return key if of_key is None else of_key(key), value if of_value is None else of_value(value)

    async def _offloaded(self, topic: str, headers: list[Header], value: Any) -> bytes:
        """The reference to a value that is stored, or the value itself while the store is down."""
        raise NotImplementedError

    async def _first_seen(self, topic: str) -> Destination:
        check_name("topic", topic, "topic")
        await self.partitions_for(topic)  # no payload for a topic that does not exist
        async with self._asking:  # one request for all sends that wait; they continue in order
            destination = await self._destinations.of(topic)
        self._plain[topic] = min(self._plain_bytes, destination.plain_bytes)
        return destination

    async def _send_pieces(
        self, topic: str, record: Record, pieces: Iterator[Record], partition: int | None
    ) -> asyncio.Future[Any]:
        first = await asyncio.to_thread(next, pieces)  # hashes the value
        place = TopicPartition(topic, await self._controls.partition(topic, partition, record.key))
        sent: list[asyncio.Future[Any]] = []
        for piece in chain([first], pieces):
            if any(future.done() and future.exception() is not None for future in sent):
                break
            batch = super().create_batch()
            batch.append(timestamp=piece.timestamp, key=piece.key, value=piece.value, headers=list(piece.headers))
            batch.close()
            sent.append(await self._queued(place, batch))
            sent[-1].add_done_callback(retrieve_exception)  # `_result` raises the first error, if this call gets there
        result = asyncio.create_task(self._result(topic, sent, record.timestamp))
        self._results.add(result)
        result.add_done_callback(self._results.discard)
        return result

    def create_batch(self) -> Any:
        """As `AIOKafkaProducer.create_batch`; the records of a batch are never split."""
        return BatchBuilder(
            self._batch_bytes,
            self._controls.codec,
            is_transactional=self._controls.transactional,
            key_serializer=self._own_serializers[0],
            value_serializer=self._own_serializers[1],
        )

    async def commit_transaction(self) -> None:
        """As `AIOKafkaProducer.commit_transaction`."""
        await super().commit_transaction()
        self._close_gap()

    async def abort_transaction(self) -> None:
        """As `AIOKafkaProducer.abort_transaction`; another may begin after a refused batch too."""
        await super().abort_transaction()
        self._close_gap()

    async def flush(self) -> None:
        """As `AIOKafkaProducer.flush`."""
        await super().flush()
        if self._results:
            await asyncio.wait(self._results)

    async def stop(self) -> None:
        """As `AIOKafkaProducer.stop`."""
        self._stopped = True
        try:
            await super().stop()
        finally:
            if self._results:
                await asyncio.wait(self._results)

    def stats(self) -> dict[str, dict[str, object]]:
        """By topic: `msgChunkPublished`, and `chunkedMessageRate` (messages a second over the last minute).

        Only topics with a chunked message.
        """
        return {
            topic: {"msgChunkPublished": True, "chunkedMessageRate": rate.per_second()}
            for topic, rate in self._rates.items()
        }

    async def _queued(self, place: TopicPartition, batch: Any) -> asyncio.Future[Any]:
        """Queues a batch within `request.timeout.ms`.

        aiokafka restarts that time for each batch ahead (tried: eight senders of 1 MB in
        chunks of 5 kB had waited for 20 s after half a second).
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    queued: asyncio.Future[Any] = await super().send_batch(
                        batch, place.topic, partition=place.partition
                    )
                    return queued
            except (KafkaTimeoutError, TimeoutError) as exc:
                if time.monotonic() >= deadline:
                    raise KafkaTimeoutError from exc

    async def _result(
        self, topic: str, sent: list[asyncio.Future[Any]], timestamp: int
    ) -> ChunkedRecordMetadata | None:
        metadata = await metadata_of(sent, timestamp)
        self._rates[topic].add()
        return metadata

    def _refused(self, topic: str) -> None:
        """The topic's limit was lowered."""
        self._destinations.forget(topic)
        self._plain.pop(topic, None)

    def _settled(self, batch: asyncio.Future[Any]) -> None:
        """Repairs the sequence numbers once a batch has failed.

        It has used up numbers, so its partition accepts nothing more of this producer id, or of this epoch.
        """
        error = None if batch.cancelled() else batch.exception()
        if error is None:
            return
        if self._controls.transactional:
            self._gap = True
        elif self._idempotent:
            self._controls.renew_id()

    def _close_gap(self) -> None:
        if self._gap:
            self._gap = False
            self._controls.renew_id()


async def metadata_of(sent: list[asyncio.Future[Any]], timestamp: int) -> ChunkedRecordMetadata | None:
    """The metadata of a message, once all its chunks were sent; None if the cluster returns none (acks=0).

    Raises:
        KafkaError: the first with which a chunk failed.
    """
    await asyncio.wait(sent)
    done = [each.result() for each in sent]
    return None if done[-1] is None else ChunkedRecordMetadata.of(done[0], done[-1], timestamp)


def _bytes(name: str, data: Any) -> bytes | None:
    if data is None or isinstance(data, bytes | bytearray | memoryview):
        return None if data is None else bytes(data)
    raise TypeError(f"{name}: found {type(data).__name__}, allowed are bytes; set {name}_serializer")
