"""kafka-python's producer with chunks: it splits records that the topic would refuse."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaProducer
from kafka.errors import IllegalStateError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.future import Future
from kafka.partitioner import DefaultPartitioner, Partitioner

from app.chunks.destinations import ANY_TOPIC_BYTES, is_plain
from app.serializers.delivery import Delivery
from app.serializers.strategy import Outgoing
from transforms.record import Header, Record


class ChunkedFuture(Future):  # type: ignore[misc]  # kafka-python has no types
    """The result of `send` for a value in chunks: the metadata of the last one, or the first error."""

    def __init__(self) -> None:
        super().__init__()
        self._done = threading.Event()
        self.add_both(lambda _: self._done.set())

    def get(self, timeout: float | None = None) -> Any:
        """As that of kafka-python's own future.

        Raises:
            KafkaError: a chunk was not delivered, or the result was not known in time.
        """
        if not self.is_done and not self._done.wait(timeout):
            raise KafkaTimeoutError(f"Timeout after waiting for {timeout} secs.")
        if self.exception is not None:
            raise self.exception
        return self.value


class _Given(threading.local):
    """What the application passed for the record that a thread sends, which only a custom partitioner sees.

    Attributes:
        record: key and value; None if they are bytes that no serializer has changed.
        partition: what the partitioner chose last.
    """

    record: tuple[Any, Any] | None = None
    partition: int | None = None


class WritingProducer(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """The `send` of our `SerializingProducer`.

    Keys and values are serialized before kafka-python's own `send`, which has no place for several records of one.

    Args:
        outgoing: how records that are too large are sent.
        arguments: of kafka-python's own class.
    """

    def __init__(self, outgoing: Outgoing, **arguments: Any) -> None:
        self._outgoing = outgoing
        self._plain_bytes, self._plain_topics = min(ANY_TOPIC_BYTES, outgoing.plain_bytes), set[str]()
        self._given, self._ended = _Given(), False
        partitioner = arguments.get("partitioner", KafkaProducer.DEFAULT_CONFIG["partitioner"])
        self._by_key = type(partitioner) is DefaultPartitioner  # which depends on the key alone
        if not self._by_key:
            arguments["partitioner"] = _Partitioner(self._given, partitioner)
        super().__init__(**arguments)

    def __del__(self) -> None:
        if hasattr(self, "config"):  # which kafka-python expects, even if the configuration was refused
            super().__del__()

    def close(self, *args: Any, **named: Any) -> None:
        """As `KafkaProducer.close`; then closes the serializers and their stores."""
        super().close(*args, **named)  # callbacks may still send
        self._ended = True
        self._outgoing.serializers.close()

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

        For a value in chunks, the result is the metadata of the last one.

        Raises:
            SerializationError: a serializer raised an error, or a wrapped null would be written to a compacted topic;
                nothing is sent. `__cause__` is the reason; `retriable` is true if another try may succeed.
            ChunkError: the record cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic's limit is unknown.
        """
        if self._ended:
            raise IllegalStateError("KafkaProducer already closed!")
        if not isinstance(headers, list | None):
            raise TypeError("headers must be list-type")
        if topic in self._plain_topics and is_plain(self._plain_bytes, key, value, headers):
            # Each call on the way costs; nothing on it would do anything for such a record.
            return super().send(topic, value, key, headers, partition, timestamp_ms)
        outgoing = self._outgoing
        outgoing.check(topic, value)
        own = list(headers or ())
        data = {"key": key, "value": value}
        for part, composable in outgoing.serializers.parts.items():
            data[part] = composable.serialize(topic, own, data[part])
        for part, found in data.items():
            if isinstance(found, bytearray | memoryview):
                data[part] = bytes(found)
        self._plain_topics.add(topic)
        self._given.record = key, value
        try:
            if not outgoing.asks(data["key"], data["value"], own):
                return super().send(topic, data["value"], data["key"], own, partition, timestamp_ms)
            stamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
            record, pieces = outgoing.written(topic, Record(data["key"], data["value"], own, stamp_ms))
            if pieces is None:
                future = super().send(topic, record.value, record.key, own, partition, timestamp_ms)
                return future.add_errback(self._refused, topic)
            return self._send_pieces(topic, pieces, partition)
        finally:
            self._given.record = None

    def _send_pieces(self, topic: str, pieces: Iterator[Record], partition: int | None) -> ChunkedFuture:
        result = ChunkedFuture()
        delivery = Delivery(lambda error, last: result.failure(error) if error else result.success(last))
        first = next(pieces)  # hashes the value
        if partition is None and first.key is None and self._by_key:
            # kafka-python also chooses a random one if a record has no key.
            partition = random.choice(sorted(self.partitions_for(topic)))  # noqa: S311  # no secret
        for piece in itertools.chain([first], pieces):
            if delivery.failed:
                break
            future = super().send(topic, piece.value, piece.key, list(piece.headers), partition, piece.timestamp)
            delivery.begin()
            future.add_callback(lambda metadata: delivery.end(None, metadata, metadata.offset))
            future.add_errback(lambda error: delivery.end(error, None, -1))
            future.add_errback(self._refused, topic)
            if partition is None and not self._by_key:
                partition = self._given.partition  # for the next chunk, the partitioner may choose another one
        delivery.close()
        return result

    def _refused(self, topic: str, error: Exception) -> None:
        if isinstance(error, MessageSizeTooLargeError):
            self._outgoing.destinations.forget(topic)


class _Partitioner(Partitioner):  # type: ignore[misc]  # kafka-python has no types
    """A custom partitioner: it receives the application's own key and value, and its choice is noted.

    Otherwise only the future of the first chunk would have the choice, and a callback cannot wait for it, since it runs
    on the thread that completes all futures.
    """

    def __init__(self, given: _Given, own: Any) -> None:
        self._given, self._own = given, own

    def partition(
        self, topic: str, key: Any, serialized_key: Any, value: Any, serialized_value: Any, cluster: Any
    ) -> Any:
        key, value = self._given.record or (key, value)
        if isinstance(self._own, Partitioner):
            chosen = self._own.partition(topic, key, serialized_key, value, serialized_value, cluster)
        else:  # of kafka-python 2
            chosen = self._own.partition(topic, serialized_key, cluster)
        self._given.partition = chosen
        return chosen

    def on_new_batch(self, topic: str, cluster: Any, prev_partition: int) -> None:
        called = getattr(self._own, "on_new_batch", None)
        if called is not None:
            called(topic, cluster, prev_partition)
