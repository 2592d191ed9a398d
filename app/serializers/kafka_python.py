"""kafka-python's clients with serializers that see headers, and that may call a store.

Both have all methods of kafka-python's own clients. One configuration with Kafka's names is for the client, its
serializers and their store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.serializer import Serializer

from app.kafka.allowance import Allowance
from app.kafka.arguments import Arguments
from app.serializers import config as taken
from app.serializers.composable import ComposableSerializer
from app.serializers.demand import Demand
from app.serializers.pieces import refused_piece
from app.serializers.stage import Headers
from transforms.chunk import is_chunk
from transforms.errors import SerializationError
from transforms.record import Header

__all__ = ["DeserializingConsumer", "SerializingProducer"]


_PRODUCER = Arguments(KafkaProducer.DEFAULT_CONFIG).without("serializer")
_CONSUMER = Arguments(KafkaConsumer.DEFAULT_CONFIG).without("serializer")


class _Stages(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Serializers as a subclass of kafka-python's own class, which it requires."""

    def __init__(self, composable: ComposableSerializer) -> None:
        self._composable = composable

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        return self._composable.serialize(topic, headers, data)

    def close(self) -> None:
        self._composable.close()


class SerializingProducer(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """A `KafkaProducer` whose keys and values go through serializers that may offload them, within `send`.

    Args:
        config: keys with Kafka's names: the arguments of `KafkaProducer` with dots, and the keys of the serializers and
            their store.
        options: arguments in place of keys, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a key is unknown or missing, or its value is wrong.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # The serializers must know the limit, as they offload what kafka-python would refuse.
        whole.setdefault("max.request.size", _PRODUCER.defaults["max_request_size"])
        serializers = taken.producer(whole, _PRODUCER.keys())
        stages = {f"{part}_serializer": _Stages(composable) for part, composable in serializers.parts.items()}
        with serializers.closed_on_error():
            super().__init__(**_PRODUCER.read(serializers.client), **stages)

    def __del__(self) -> None:
        if hasattr(self, "config"):  # which kafka-python expects, even if the configuration was refused
            super().__del__()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[Header] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """As `KafkaProducer.send`; the headers of a reference are added to a copy of `headers`.

        Raises:
            SerializationError: a stage raised an error, and nothing is sent. `__cause__` is the reason; `retriable` is
                true if another try may succeed.
        """
        own = headers.copy() if isinstance(headers, list) else headers
        return super().send(topic, value, key, own, partition, timestamp_ms)


class DeserializingConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python has no types
    """A `KafkaConsumer` that restores references, and deserializes keys and values.

    A record that cannot be restored or deserialized keeps its place (KIP-334): the records before it are delivered,
    then `poll`, or the iteration, raises a `SerializationError` with its topic, partition and offset. The next call
    tries again; `seek` to the next offset skips the record. A chunk is such a record: it is no value, and this consumer
    puts none together.

    One `poll` downloads at most `fetch.max.bytes`, unless the first payload alone is larger, and begins no download
    that may end after `max.poll.interval.ms`. The next `poll` delivers the rest.

    Args:
        config: keys with Kafka's names: the arguments of `KafkaConsumer` with dots, and the keys of the deserializers
            and their store.
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
        # The errors that the next calls raise, if the position is still one of the offsets.
        self._failures: dict[TopicPartition, tuple[range, SerializationError]] = {}
        with self._deserializers.closed_on_error():
            super().__init__(*topics, **_CONSUMER.read(self._deserializers.client))

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:  # noqa: FBT001, FBT002  # as there
        """As `KafkaConsumer.close`; then closes the deserializers and their stores."""
        try:
            super().close(autocommit, timeout_ms)
        finally:
            self._deserializers.close()

    def poll(
        self,
        timeout_ms: float = 0,
        max_records: int | None = None,
        update_offsets: bool = True,  # noqa: FBT001, FBT002  # as there
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `KafkaConsumer.poll`, with the records restored.

        Raises:
            SerializationError: see the class.
        """
        # After an error of a deserializer of its own, in its fetcher, a `poll` of kafka-python never ends again.
        self._raise_failure()
        found = super().poll(timeout_ms, max_records, update_offsets)
        delivered: dict[TopicPartition, list[ConsumerRecord]] = {tp: [] for tp in found}
        failures: dict[TopicPartition, SerializationError] = {}
        allowance = Allowance(
            self.config["fetch_max_bytes"], self._demand.store_timeout_ms, self.config["max_poll_interval_ms"]
        )
        try:
            for tp, records in found.items():
                try:
                    self._restore(records, delivered[tp], allowance)
                except SerializationError as exc:
                    failures[tp] = exc
        except BaseException:  # an interrupt: nothing is delivered
            self._give_back(found, {tp: [] for tp in found}, seek=update_offsets)
            raise
        self._give_back(found, delivered, seek=update_offsets)
        self._keep(failures, delivered)
        delivered = {tp: records for tp, records in delivered.items() if records}
        if not delivered:
            self._raise_failure()
        return delivered

    def _raise_failure(self) -> None:
        while self._failures:
            tp, (offsets, error) = self._failures.popitem()
            if tp in self.assignment() - self.paused() and self.position(tp, timeout_ms=0) in offsets:
                raise error

    def _restore(self, records: list[ConsumerRecord], into: list[ConsumerRecord], allowance: Allowance) -> None:
        for record in records:
            size = self._demand.restored_bytes(record.key, record.value, record.headers)
            if size is not None and not allowance.takes(size):
                return
            into.append(self._restored(record))

    def _restored(self, record: ConsumerRecord) -> ConsumerRecord:
        if record.headers and is_chunk(record.headers):
            error = refused_piece("DeserializingConsumer of kafka-python", record.topic, record.headers)
            raise error.at(record.partition, record.offset)
        if not self._deserializers.parts:
            return record
        found, headers = taken.deserialized(self._deserializers, record)
        return record._replace(**found, headers=headers)

    def _give_back(
        self,
        found: Mapping[TopicPartition, list[ConsumerRecord]],
        delivered: Mapping[TopicPartition, list[ConsumerRecord]],
        *,
        seek: bool,
    ) -> None:
        """Lets the next call begin with the records that are not delivered; an iteration moves positions by itself."""
        for tp, records in found.items():
            count = len(delivered[tp])
            if seek and count < len(records):
                self.seek(tp, records[count].offset)

    def _keep(
        self,
        failures: Mapping[TopicPartition, SerializationError],
        delivered: Mapping[TopicPartition, list[ConsumerRecord]],
    ) -> None:
        for tp, error in failures.items():
            assert error.offset is not None
            before = delivered[tp]
            if not before:
                self.seek(tp, error.offset)  # the position may be lower: compaction leaves gaps
            first = before[-1].offset + 1 if before else error.offset
            self._failures[tp] = range(first, error.offset + 1), error
