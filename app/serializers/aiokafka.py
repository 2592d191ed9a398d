"""aiokafka's clients with serializers that see headers and may call a store: off the event loop.

Everything of aiokafka's own clients is there. Both are made from one configuration with Kafka's names, which has the
serializers and their store in it too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, ProducerClosed

from app.config.naming import check_name, check_topics
from app.kafka.arguments import Arguments
from app.serializers import config as taken
from app.serializers.demand import Allowance, Demand
from app.serializers.downloads import Downloads
from app.serializers.threads import PARALLEL, Threads
from transforms.errors import SerializationError
from transforms.record import Header

__all__ = ["DeserializingConsumer", "SerializingProducer"]

# A record as Kafka has it, and its download if it needs one.
_Pair = tuple[ConsumerRecord, "asyncio.Task[Any] | None"]


def _defaults(client: type) -> dict[str, object]:
    parameters = inspect.signature(client).parameters.values()
    named = {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in named.items() if not name.endswith("serializer")}


_PRODUCER = Arguments(
    _defaults(AIOKafkaProducer), renamed={"batch.size": "max_batch_size"}, aside=frozenset({"max.block.ms"})
)
_CONSUMER = Arguments(_defaults(AIOKafkaConsumer))


class SerializingProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaProducer` whose keys and values go through serializers that may offload them.

    Sends of one task leave in order. Of sends that run at the same time, one with a large value leaves when its payload
    is stored, so a later one may pass it; await one `send` before the next where the order matters.

    Batches of `create_batch` take bytes as they are: a batch knows no topic, so nothing in it is serialized.

    Args:
        config: keys with Kafka's names: those of `AIOKafkaProducer` with dots, the serializers', their store's.
            `max.block.ms` is what the store calls of a record are checked against.
        options: the same as arguments, for what is no string: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a key is not known, missing or wrong.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # What aiokafka would refuse is to be offloaded, so the serializers must know the limit.
        whole.setdefault("max.request.size", _PRODUCER.defaults["max_request_size"])
        self._serializers = taken.producer(whole, own=_PRODUCER.knows, names=_PRODUCER.keys())
        self._threads = Threads()
        try:
            super().__init__(**_PRODUCER.read(self._serializers.client))
        except BaseException:
            self._serializers.close()
            raise

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] | None = None,
    ) -> asyncio.Future[Any]:
        """As `AIOKafkaProducer.send`; the headers of references join a copy of `headers`.

        Raises:
            SerializationError: a stage raised an error; nothing is sent. `__cause__` has the reason, `retriable` says
                whether the same may succeed later.
            ConfigurationError: the topic's name is over its limit.
        """
        if self._closed:
            raise ProducerClosed
        check_name("topic", topic, "topic")
        if value is not None or key is not None:
            await self.partitions_for(topic)  # no payload for a topic that is not there
        own = list(headers or ())
        key_bytes = await self._threads.serialize(self._serializers.key, topic, own, key, is_key=True)
        value_bytes = await self._threads.serialize(self._serializers.value, topic, own, value, is_key=False)
        future: asyncio.Future[Any] = await super().send(topic, value_bytes, key_bytes, partition, timestamp_ms, own)
        return future

    async def stop(self) -> None:
        """As `AIOKafkaProducer.stop`; then closes the serializers and their stores."""
        try:
            await super().stop()
        finally:
            await self._threads.close()
            self._serializers.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """What the next call raises, unless somebody has moved on."""

    hold: _Hold
    error: SerializationError


class _Hold:
    """A partition whose position stays at the first record that is not delivered yet, so that no commit passes it.

    Args:
        state: aiokafka's own of the partition.
        assignment: the one that it belongs to.
        offset: of the record.
    """

    def __init__(self, state: Any, assignment: Any, offset: int) -> None:
        self._state = state
        self._assignment = assignment
        self._after = state.position
        self.offset = offset
        self.ended = asyncio.Event()
        state.consumed_to(offset)

    @property
    def stands(self) -> bool:
        """False where the partition was taken away or paused, or the application has sought another position."""
        state = self._state
        current = self._assignment.active and state.has_valid_position and not state.paused
        return bool(current and state.position == self.offset)

    def covers(self, offset: int) -> bool:
        """Whether a record that another call has read is of this call; not after a seek, or another assignment."""
        return bool(self._assignment.active and self.offset == offset)

    def renew(self) -> None:
        """Another call of the consumer has read on, without knowing."""
        if not self._state.awaiting_reset:
            self._state.consumed_to(self.offset)

    def release(self) -> None:
        """All that was fetched is delivered."""
        self._state.consumed_to(self._after)

    def moved(self, offset: int) -> _Hold:
        """The same partition at a later record, after a seek."""
        return _Hold(self._state, self._assignment, offset)


class DeserializingConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """An `AIOKafkaConsumer` that restores references, and gives what the deserializers make of keys and values.

    A record that cannot be had stays where it is (KIP-334): what is before it is delivered, then `getone` or `getmany`
    raises a `SerializationError` with its topic, partition and offset. The next call tries it again; `seek` to the
    offset behind passes over it.

    The position of a partition moves when a record is delivered, not while it is downloaded. So neither a commit nor a
    rebalance nor a cancelled call loses a record. A download that a cancelled call has begun goes on, and serves the
    call that reads the record again.

    Args:
        config: keys with Kafka's names: those of `AIOKafkaConsumer` with dots, the deserializers', their store's.
        topics: to be subscribed.
        options: the same as arguments, for what is no string: `ssl_context`, `partition_assignment_strategy`.

    Raises:
        ConfigurationError: a key is not known, missing or wrong.
    """

    def __init__(self, config: Mapping[str, object], *topics: str, **options: object) -> None:
        whole = _CONSUMER.merged(config, options)
        check_topics(topics)
        self._deserializers = taken.consumer(whole, own=_CONSUMER.knows, names=_CONSUMER.keys())
        self._threads = Threads()
        try:
            arguments = {**_CONSUMER.defaults, **_CONSUMER.read(self._deserializers.client)}
            self._demand = Demand.of(self._deserializers)
            self._max_bytes: int = arguments["fetch_max_bytes"]
            self._interval_ms: int = arguments["max_poll_interval_ms"]
            self._downloads = Downloads(self._restored, self._max_bytes)
            super().__init__(*topics, **arguments)
        except BaseException:
            self._deserializers.close()
            raise
        self._holds: dict[TopicPartition, _Hold] = {}
        self._failures: dict[TopicPartition, _Failure] = {}

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """As `AIOKafkaConsumer.subscribe`.

        Raises:
            ConfigurationError: a topic's name is over its limit.
        """
        check_topics(topics)
        super().subscribe(topics, pattern, listener)

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`; then closes the deserializers and their stores, once no call is under way."""
        try:
            await super().stop()
        finally:
            self._downloads.clear()
            await self._threads.close()
            self._deserializers.close()

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """As `AIOKafkaConsumer.getone`, with the record restored.

        Raises:
            SerializationError: see the class.
        """
        while True:
            self._raise_failure(partitions)
            record = await super().getone(*partitions)
            delivered = await self._delivered({TopicPartition(record.topic, record.partition): [record]})
            for records in delivered.values():
                return records[0]

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `AIOKafkaConsumer.getmany`, with the records restored: several at once, delivered in order.

        One call downloads no more than `fetch.max.bytes`, unless the first payload alone is larger, and begins no
        download that might end after `max.poll.interval.ms`. The next call has what was left.

        Raises:
            SerializationError: see the class.
        """
        self._raise_failure(partitions)
        found = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        return await self._delivered(found)

    def _raise_failure(self, partitions: tuple[TopicPartition, ...]) -> None:
        for partition, failure in list(self._failures.items()):
            if not partitions or partition in partitions:
                del self._failures[partition]
                if failure.hold.stands:
                    raise failure.error

    async def _delivered(
        self, found: Mapping[TopicPartition, list[ConsumerRecord]]
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        holds = {tp: self._hold(tp, records[0].offset) for tp, records in found.items() if not self._held(tp, records)}
        if len(holds) < len(found):
            found = await self._without_held(found, holds)
        self._holds |= holds
        try:
            begun = await self._begun(found)
            downloads = [task for pairs in begun.values() for _, task in pairs if task is not None]
            if downloads:
                await asyncio.wait(downloads)
                if self._closed:
                    raise ConsumerStoppedError
            return self._settled(found, begun, holds)
        finally:
            self._downloads.trim(self._is_to_come)
            for tp, hold in holds.items():
                if self._holds.get(tp) is hold:  # else another call has it, after a seek
                    del self._holds[tp]
                hold.ended.set()

    def _held(self, partition: TopicPartition, records: list[ConsumerRecord]) -> bool:
        hold = self._holds.get(partition)
        return hold is not None and hold.covers(records[0].offset)

    def _hold(self, partition: TopicPartition, offset: int) -> _Hold:
        assignment = self._subscription.subscription.assignment
        return _Hold(assignment.state_value(partition), assignment, offset)

    async def _without_held(
        self, found: Mapping[TopicPartition, list[ConsumerRecord]], holds: Mapping[TopicPartition, _Hold]
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Of several tasks that read one partition, one at a time gets on: the others' records are read again."""
        others = [self._holds[tp] for tp in found if tp not in holds]
        for hold in others:
            hold.renew()
        if not holds:
            await asyncio.wait(
                [asyncio.create_task(hold.ended.wait()) for hold in others], return_when=asyncio.FIRST_COMPLETED
            )
        return {tp: records for tp, records in found.items() if tp in holds}

    async def _begun(self, found: Mapping[TopicPartition, list[ConsumerRecord]]) -> dict[TopicPartition, list[_Pair]]:
        """The records that this call may deliver, the first of each partition, with the download if there is one."""
        allowance = Allowance(self._max_bytes, self._demand.store_timeout_ms, self._interval_ms)
        begun: dict[TopicPartition, list[_Pair]] = {}
        running: set[asyncio.Task[Any]] = set()
        for tp, records in found.items():
            pairs = begun[tp] = []
            for record in records:
                size = self._demand.restored_bytes(record.key, record.value, record.headers)
                if size is None:
                    pairs.append((record, None))
                    continue
                while len(running) >= PARALLEL:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if _failed(pairs) or not allowance.takes(size):
                    break
                task = self._downloads.begin(record, size)
                running.add(task)
                pairs.append((record, task))
        return begun

    def _settled(
        self,
        found: Mapping[TopicPartition, list[ConsumerRecord]],
        begun: Mapping[TopicPartition, list[_Pair]],
        holds: Mapping[TopicPartition, _Hold],
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """What is delivered, with positions behind it; raises the first failure where that is nothing."""
        standing = {} if self._subscription.reassignment_in_progress else holds
        results = {tp: self._result(begun[tp]) for tp, hold in standing.items() if hold.stands}
        # Positions move when all stages of the application have run: an interrupt in one must lose nothing.
        for tp, (out, failure) in results.items():
            hold, records = holds[tp], found[tp]
            if len(out) == len(records):
                hold.release()
            elif out:
                self.seek(tp, records[len(out)].offset)
                hold = hold.moved(records[len(out)].offset)
            if failure is not None:
                self._failures[tp] = _Failure(hold, failure)
        delivered = {tp: out for tp, (out, _) in results.items() if out}
        if found and not delivered:
            self._raise_failure(tuple(found))
        return delivered

    def _result(self, pairs: Iterable[_Pair]) -> tuple[list[ConsumerRecord], SerializationError | None]:
        out: list[ConsumerRecord] = []
        for record, task in pairs:
            self._downloads.forget(record)
            try:
                out.append(self._restored_now(record) if task is None else task.result())
            except SerializationError as exc:
                return out, exc
        return out, None

    def _is_to_come(self, topic: str, partition: int, offset: int) -> bool:
        subscription = self._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        state = None if assignment is None else assignment.state_value(TopicPartition(topic, partition))
        return bool(state is not None and state.has_valid_position and state.position <= offset)

    def _restored_now(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = self._deserializers.key, self._deserializers.value
        if key is None and value is None:
            return record
        headers = list(record.headers)
        with _coordinates(record):
            return replace(
                record,
                key=record.key if key is None else key.deserialize(record.topic, headers, record.key),
                value=record.value if value is None else value.deserialize(record.topic, headers, record.value),
                headers=tuple(headers),
            )

    async def _restored(self, record: ConsumerRecord) -> ConsumerRecord:
        headers = list(record.headers)
        both = self._deserializers
        with _coordinates(record):
            key = await self._threads.deserialize(both.key, record.topic, headers, record.key, is_key=True)
            value = await self._threads.deserialize(both.value, record.topic, headers, record.value, is_key=False)
        return replace(record, key=key, value=value, headers=tuple(headers))


@contextmanager
def _coordinates(record: ConsumerRecord) -> Iterator[None]:
    """An error within says where the record stands."""
    try:
        yield
    except SerializationError as exc:
        raise exc.at(record.partition, record.offset) from exc.__cause__


def _failed(pairs: Iterable[_Pair]) -> bool:
    tasks = (task for _, task in pairs if task is not None and task.done() and not task.cancelled())
    return any(task.exception() is not None for task in tasks)
