"""aiokafka's producer with chunks: it splits a record that the topic would refuse."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerClosed
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from app.chunks.keys import PRODUCER_KEYS, apart
from app.chunks.topic_limits import check_splits
from app.config.idempotence import idempotent
from app.config.naming import check_name
from app.kafka.admin import ADMIN_ARGUMENTS, AdminClient
from app.kafka.arguments import Arguments
from app.kafka.average import Average
from app.kafka.clients import ClusterError, describe
from app.kafka.producer import ProducerControls, RefusedBatches
from app.kafka.shielded import heard
from app.kafka.topics import Topic, topics
from transforms.assembly import ChunkMessageId
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError
from transforms.record import Header, Record

_ARGUMENTS = Arguments.of(AIOKafkaProducer)
_ADMIN = ADMIN_ARGUMENTS & frozenset(_ARGUMENTS.defaults)
# aiokafka compares its own estimate with `max_request_size`: that of a record has room for the longest varints.
_ESTIMATE_BYTES = 21


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
    `max.message.bytes` or `max.request.size`. The producer asks the cluster for the topic's limit once, and again after
    the topic has refused a batch. Without the right to ask, `chunk.max.bytes` is required. A tombstone and an empty
    value are never split.

    All chunks go to one partition, in order, each as a batch of its own. Other records may stand between them. The log
    has each chunk once (`enable.idempotence` is true by default). A `send` that fails or is cancelled midway leaves
    chunks in the log, which readers discard.

    Sends of one task leave in order. Of sends that run at the same time, a small record may pass a large one.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaProducer` with dots, `chunk.max.bytes` and
            `chunk.max.message.bytes`.
        options: arguments in place of keys, for values that are not strings: `value_serializer`, `ssl_context`,
            `partitioner`.

    Raises:
        ConfigurationError: a key is unknown, or its value is wrong.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        values, arguments = self._read(config, options)
        self._chunk_bytes = cast("int | None", values["chunk.max.bytes"])
        self._message_bytes = cast("int", values["chunk.max.message.bytes"])
        self._own_key_serializer = arguments.pop("key_serializer", None)
        self._own_value_serializer = arguments.pop("value_serializer", None)
        self._admin_arguments = {name: arguments[name] for name in _ADMIN}
        self._described: dict[str, Topic | None] = {}
        self._asking = asyncio.Lock()
        self._results: set[asyncio.Task[ChunkedRecordMetadata | None]] = set()
        self._rates = defaultdict[str, Average](Average)
        self._gap = False
        self._stopped = False
        self._batch_bytes = cast("int", arguments["max_batch_size"])
        self._request_bytes = cast("int", arguments["max_request_size"])
        self._idempotent = bool(arguments["enable_idempotence"])
        self._timeout_s = cast("int", arguments["request_timeout_ms"]) / 1000
        super().__init__(**arguments)
        self._controls = ProducerControls(self)
        RefusedBatches(self, self._timeout_s, self._forget_limit, self._settled)

    def _read(
        self, config: Mapping[str, object], options: Mapping[str, object]
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The values of `PRODUCER_KEYS`, and the arguments of `AIOKafkaProducer`."""
        values, client = apart(PRODUCER_KEYS, _ARGUMENTS, _ARGUMENTS.merged(config, options))
        return values, {**_ARGUMENTS.defaults, **_ARGUMENTS.read(idempotent(client))}

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
        fails, and no chunk is sent behind it.

        Raises:
            ChunkError: the record cannot be split, is over `chunk.max.message.bytes`, or the topic is compacted.
            ConfigurationError: the topic's limit is not known, or its name is over the limit.
            TypeError: key or value are not bytes.
        """
        if self._stopped:
            raise ProducerClosed
        check_name("topic", topic, "topic")
        own = list(headers or ())
        key_bytes = key if self._own_key_serializer is None else self._own_key_serializer(key)
        value_bytes = value if self._own_value_serializer is None else self._own_value_serializer(value)
        for name, found in (("key", key_bytes), ("value", value_bytes)):
            if found is not None and not isinstance(found, (bytes, bytearray, memoryview)):
                raise TypeError(f"{name}: found {type(found).__name__}, allowed are bytes; set {name}_serializer")
        await self.partitions_for(topic)
        described = await self._topic(topic)
        limit = self._limit_bytes(described)
        stamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        record = Record(key_bytes, value_bytes, own, stamp_ms)
        if not Chunking(limit).wants(record):
            future: asyncio.Future[Any] = await super().send(
                topic, value_bytes, key_bytes, partition, timestamp_ms, own
            )
            return future
        return await self._send_chunks(topic, record, partition, described)

    async def _send_chunks(
        self, topic: str, record: Record, partition: int | None, described: Topic | None
    ) -> asyncio.Future[Any]:
        """Sends a record that is over the limit.

        Raises:
            ChunkError: as `send`.
        """
        limit = self._limit_bytes(described)
        check_splits(topic, described, len(record.value or b""), limit, self._message_bytes)
        pieces = Chunking(limit).split(record, str(uuid.uuid4()))
        first = await asyncio.to_thread(next, pieces)  # hashes the value
        place = TopicPartition(topic, await self._controls.partition(topic, partition, record.key))
        sent = await self._sent(place, chain([first], pieces))
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
            key_serializer=self._own_key_serializer,
            value_serializer=self._own_value_serializer,
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

        Only topics that have got a chunked message.
        """
        return {
            topic: {"msgChunkPublished": True, "chunkedMessageRate": rate.per_second()}
            for topic, rate in self._rates.items()
        }

    async def _sent(self, place: TopicPartition, pieces: Iterator[Record]) -> list[asyncio.Future[Any]]:
        sent: list[asyncio.Future[Any]] = []
        try:
            for piece in pieces:
                if any(future.done() and future.exception() is not None for future in sent):
                    break
                batch = super().create_batch()
                batch.append(timestamp=piece.timestamp, key=piece.key, value=piece.value, headers=list(piece.headers))
                batch.close()
                sent.append(await self._queued(place, batch))
        except BaseException:
            for future in sent:
                future.add_done_callback(heard)
            raise
        return sent

    async def _queued(self, place: TopicPartition, batch: Any) -> asyncio.Future[Any]:
        """Queues a batch within `request.timeout.ms`.

        aiokafka counts that time again from the beginning for each batch in front (tried: eight senders of 1 MB in
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
        for each in sent:
            each.add_done_callback(heard)  # the first error is raised
        await asyncio.wait(sent)
        done = [each.result() for each in sent]
        self._rates[topic].add()
        first, last = done[0], done[-1]
        if last is None:  # acks=0
            return None
        return ChunkedRecordMetadata.of(first, last, timestamp)

    def _forget_limit(self, topic: str) -> None:
        """The topic is asked again for what it takes."""
        self._described.pop(topic, None)

    def _settled(self, batch: asyncio.Future[Any]) -> None:
        """Repairs the sequence numbers once a batch has failed.

        It has used up numbers, so its partition takes nothing more of this producer id, or of this epoch.
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

    def _limit_bytes(self, topic: Topic | None) -> int:
        own = self._request_bytes - _ESTIMATE_BYTES
        limits = (own, self._chunk_bytes, None if topic is None else topic.max_message_bytes)
        return min(limit for limit in limits if limit is not None)

    async def _topic(self, topic: str) -> Topic | None:
        """The topic as the cluster describes it; None if the cluster does not, and `chunk.max.bytes` is set."""
        if topic in self._described:
            return self._described[topic]
        async with self._asking:  # one question for all sends that wait; they go on in their order
            if topic not in self._described:
                try:
                    self._described[topic] = await self._asked(topic)
                except ConfigurationError:
                    if self._chunk_bytes is None:
                        raise
                    self._described[topic] = None
            return self._described[topic]

    async def _asked(self, topic: str) -> Topic:
        admin = AdminClient(**self._admin_arguments)
        try:
            await admin.start()
            return (await topics(admin, [topic]))[topic]
        except (ConfigurationError, ClusterError, KafkaError, KeyError) as exc:
            reason = describe(exc) if isinstance(exc, KafkaError) else str(exc)
            raise ConfigurationError(
                "chunk.max.bytes", f"is not set, and topic {topic} does not say what it takes: {reason}"
            ) from exc
        finally:
            await admin.close()
