"""aiokafka's clients with serializers that see headers, and that call a store off the event loop.

Both have all methods of aiokafka's own clients. One configuration with Kafka's names is for the client, its serializers
and their store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, ProducerClosed
from aiokafka.structs import OffsetAndMetadata

from app.config.naming import check_name
from app.kafka.arguments import Arguments
from app.kafka.delivering import DeliveringConsumer, count_as_poll
from app.kafka.producer import ProducerControls
from app.serializers import config as taken
from app.serializers.backlog import Backlog, Entry
from app.serializers.demand import Allowance, Demand
from app.serializers.threads import PARALLEL, Threads
from transforms.errors import SerializationError
from transforms.record import Header

__all__ = ["DeserializingConsumer", "SerializingProducer"]

_LOOK_MS = 1_000  # how often `getone` looks for records that another call, cancelled, has left in the backlog


_PRODUCER = Arguments.of(
    AIOKafkaProducer, renamed={"batch.size": "max_batch_size"}, aside=frozenset({"max.block.ms"})
).without("serializer")
_CONSUMER = Arguments.of(AIOKafkaConsumer).without("serializer")


class SerializingProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaProducer` whose keys and values go through serializers that may offload them.

    Sends of one task leave in order. Of sends that run at the same time, one with a large value leaves when its payload
    is stored, so a later one may pass it. If the order matters, await one `send` before the next.

    Batches of `create_batch` take bytes as they are: a batch has no topic, so its records are not serialized.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaProducer` with dots, and the keys of the serializers
            and their store. The store calls of a record must fit into `max.block.ms`.
        options: arguments in place of keys, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a key is unknown or missing, or its value is wrong.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # The serializers must know the limit, as they offload what aiokafka would refuse.
        whole.setdefault("max.request.size", _PRODUCER.defaults["max_request_size"])
        self._serializers = taken.producer(whole, _PRODUCER.keys())
        self._threads = Threads()
        with self._serializers.closed_on_error():
            super().__init__(**_PRODUCER.read(self._serializers.client))
        self._controls = ProducerControls(self)

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
            SerializationError: a stage raised an error, and nothing is sent. `__cause__` is the reason; `retriable` is
                true if another try may succeed.
            ConfigurationError: the topic's name is over its limit.
        """
        if self._controls.closed:
            raise ProducerClosed
        check_name("topic", topic, "topic")
        if value is not None or key is not None:
            await self.partitions_for(topic)  # no payload for a topic that does not exist
        own = list(headers or ())
        data = {"key": key, "value": value}
        for part, composable in self._serializers.parts.items():
            data[part] = await self._threads.run(composable, topic, own, data[part])
        future: asyncio.Future[Any]
        future = await super().send(topic, data["value"], data["key"], partition, timestamp_ms, own)
        return future

    async def stop(self) -> None:
        """As `AIOKafkaProducer.stop`; then closes the serializers and their stores."""
        try:
            await super().stop()
        finally:
            await self._threads.close()
            self._serializers.close()


class DeserializingConsumer(DeliveringConsumer):
    """An `AIOKafkaConsumer` that restores references, and deserializes keys and values.

    A record that cannot be restored or deserialized keeps its place (KIP-334): the records before it are delivered,
    then `getone` or `getmany` raises a `SerializationError` with its topic, partition and offset. The next call tries
    again; `seek` to the next offset skips the record.

    The position of a partition moves when a record is delivered, not while it is downloaded. So no commit, rebalance or
    cancelled call loses a record. A download goes on when its call is cancelled, and serves the next call.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, and the keys of the
            deserializers and their store.
        topics: the topics to subscribe to.
        options: arguments in place of keys, for values that are not strings: `ssl_context`,
            `partition_assignment_strategy`.

    Raises:
        ConfigurationError: a key is unknown or missing, or its value is wrong.
    """

    def __init__(self, config: Mapping[str, object], *topics: str, **options: object) -> None:
        whole = _CONSUMER.merged(config, options)
        self._deserializers = taken.consumer(whole, _CONSUMER.keys())
        self._demand = Demand(self._deserializers)
        self._threads = Threads()
        self._backlog = Backlog()
        with self._deserializers.closed_on_error():
            arguments = {**_CONSUMER.defaults, **_CONSUMER.read(self._deserializers.client)}
            self._max_bytes: int = arguments["fetch_max_bytes"]
            self._interval_ms: int = arguments["max_poll_interval_ms"]
            self._most: int | None = arguments["max_poll_records"]
            super().__init__(self._backlog, topics, **arguments)

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`; then closes the deserializers and their stores, after the last store call."""
        try:
            await super().stop()
        finally:
            self._backlog.cancel()
            await self._threads.close()
            self._deserializers.close()

    async def position(self, partition: TopicPartition) -> int:
        """As `AIOKafkaConsumer.position`: the offset from which the next record is delivered."""
        fetched = OffsetAndMetadata(await super().position(partition), "")
        offset: int = self._backlog.safe({partition: fetched})[partition].offset
        return offset

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """As `AIOKafkaConsumer.getone`, with the record restored.

        Raises:
            SerializationError: see the class.
        """
        while True:
            for records in (await self._delivered(partitions, _LOOK_MS, 1)).values():
                return records[0]

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `AIOKafkaConsumer.getmany`, with the records restored: several at once, delivered in order.

        One call downloads at most `fetch.max.bytes`, unless the first payload alone is larger, and begins no download
        that may end after `max.poll.interval.ms`. The next call delivers the rest.

        Raises:
            SerializationError: see the class.
        """
        return await self._delivered(partitions, timeout_ms, self._most if max_records is None else max_records)

    async def _delivered(
        self, partitions: tuple[TopicPartition, ...], timeout_ms: int, most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        if self.closed:
            raise ConsumerStoppedError
        left = self._deliverable(partitions)
        self._raise_failure(left)
        await self._fetch(partitions, left, timeout_ms, most)
        taken = self._backlog.next(self._deliverable(partitions), most)
        downloads = await self._begun(taken)
        if downloads:
            if not (most == 1 and any(entries[0].ready for entries in taken.values())):
                first = asyncio.FIRST_COMPLETED if most == 1 else asyncio.ALL_COMPLETED
                await asyncio.wait(downloads, return_when=first)
            if self.closed:
                raise ConsumerStoppedError
        deliverable = self._deliverable(partitions)
        return self._settled({tp: taken[tp] for tp in taken if tp in deliverable}, most)

    def _deliverable(self, partitions: tuple[TopicPartition, ...]) -> set[TopicPartition]:
        """The partitions of a call that have a backlog, and may deliver it now."""
        wanted = self._backlog.partitions if not partitions else self._backlog.partitions & set(partitions)
        return set(filter(self.may_deliver, wanted))

    def _raise_failure(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            entry = next(iter(self._backlog.entries(tp)), None)
            if entry is not None and entry.error is not None:
                error, entry.error = entry.error, None
                self._backlog.drop(tp, 0)
                raise error

    async def _fetch(
        self, partitions: tuple[TopicPartition, ...], left: set[TopicPartition], timeout_ms: int, most: int | None
    ) -> None:
        """Fetches for the partitions without a backlog; waits for records only if no partition of the call has one."""
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        if not left:
            found = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=most)
        elif others := set(partitions or self.assignment()) - left:
            found = await super().getmany(*others, timeout_ms=0, max_records=most)
        else:
            count_as_poll(self)
        for tp, records in found.items():
            sizes = (self._demand.restored_bytes(record.key, record.value, record.headers) for record in records)
            self._backlog.add(tp, map(Entry, records, sizes))

    async def _begun(self, taken: Mapping[TopicPartition, list[Entry]]) -> set[asyncio.Task[ConsumerRecord]]:
        """The downloads that the call has to wait for."""
        kept_bytes = self._backlog.downloaded_bytes(without=taken)
        allowance = Allowance(self._max_bytes - kept_bytes, self._demand.store_timeout_ms, self._interval_ms)
        downloads: set[asyncio.Task[ConsumerRecord]] = set()
        running: set[asyncio.Task[ConsumerRecord]] = set()
        for entries in taken.values():
            for entry in entries:
                if entry.size is None:
                    continue
                while entry.download is None and len(running) >= PARALLEL:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                fits = allowance.takes(entry.size)
                if entry.download is None and (not fits or any(each.failed for each in entries)):
                    break
                task = entry.begin(self._restored)
                downloads.add(task)
                running.add(task)
        return downloads

    def _settled(
        self, taken: Mapping[TopicPartition, list[Entry]], most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records that are ready, in order; raises the first failure if there are none."""
        delivered: dict[TopicPartition, list[ConsumerRecord]] = {}
        count = 0
        for tp, entries in taken.items():
            for entry, first in zip(entries, self._backlog.entries(tp), strict=False):
                # Another call may have delivered the entries, and a seek or a rebalance may have dropped them.
                if entry is not first or not entry.ready or count == most:
                    break
                try:
                    record = self._restored_now(entry.record) if entry.download is None else entry.download.result()
                except BaseException as exc:
                    entry.download = None
                    if not isinstance(exc, SerializationError):
                        raise
                    entry.error = exc
                    break
                delivered.setdefault(tp, []).append(record)
                count += 1
        # Entries are dropped when all stages of the application have run: an interrupt in one must lose nothing.
        for tp, records in delivered.items():
            self._backlog.drop(tp, len(records))
        if not delivered:
            self._raise_failure(taken)
        return delivered

    def _restored_now(self, record: ConsumerRecord) -> ConsumerRecord:
        if not self._deserializers.parts:
            return record
        found, headers = taken.deserialized(self._deserializers, record)
        return replace(record, **found, headers=tuple(headers))

    async def _restored(self, record: ConsumerRecord) -> ConsumerRecord:
        found, headers = {"key": record.key, "value": record.value}, list(record.headers)
        try:
            for part, composable in self._deserializers.parts.items():
                found[part] = await self._threads.run(composable, record.topic, headers, found[part])
        except SerializationError as exc:
            raise exc.at(record.partition, record.offset) from exc.__cause__
        return replace(record, **found, headers=tuple(headers))
