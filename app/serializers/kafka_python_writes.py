"""kafka-python's producer with chunks: it sends what its topic would refuse in parts."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from kafka.future import Future
from kafka.partitioner import DefaultPartitioner, Partitioner
from kafka.serializer import Serializer

from app.serializers.composable import ComposableSerializer
from app.serializers.stage import Headers
from app.serializers.strategy import Oversized
from transforms.record import Header, Record

__all__ = ["ChunkedFuture", "WritingProducer", "largest"]

# kafka-python compares its own estimate with `max_request_size`: that of a record has room for the longest varints.
_ESTIMATE_BYTES = 21


class ChunkedFuture(Future):  # type: ignore[misc]  # kafka-python has no types
    """What `send` gives for a value in chunks: the metadata of the last one, or the first error."""

    def __init__(self) -> None:
        super().__init__()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._left: int | None = None
        self._delivered = 0
        self._last: Any = None
        self._error: Exception | None = None

    def get(self, timeout: float | None = None) -> Any:
        """As that of kafka-python's own future.

        Raises:
            KafkaError: a chunk was not delivered, or this was not known in time.
        """
        if not self.is_done and not self._done.wait(timeout):
            raise KafkaTimeoutError(f"Timeout after waiting for {timeout} secs.")
        if self.exception is not None:
            raise self.exception
        return self.value

    def takes(self, chunk: Future) -> None:
        """Takes in the future of the next chunk."""
        chunk.add_callback(self._count, None)
        chunk.add_errback(lambda error: self._count(error, None))

    def expects(self, count: int) -> None:
        """Takes in how many chunks there are: no more will be sent."""
        with self._lock:
            self._left = count
        self._end()

    @property
    def has_failed(self) -> bool:
        """Whether a chunk was not delivered."""
        return self._error is not None

    def _count(self, error: Exception | None, metadata: Any) -> None:
        with self._lock:
            self._delivered += 1
            self._error = self._error or error
            if metadata is not None and (self._last is None or metadata.offset >= self._last.offset):
                self._last = metadata
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._left != self._delivered:
                return
            self._left = None
        if self._error is None:
            self.success(self._last)
        else:
            self.failure(self._error)
        self._done.set()


class _Split(Exception):  # noqa: N818  # no error: it takes a record out of kafka-python's `send`
    """The record is to be sent as these chunks."""

    def __init__(self, pieces: Iterator[Record]) -> None:
        super().__init__()
        self.pieces = pieces


class _Sending(threading.local):
    """What a thread is sending.

    Attributes:
        key: of the record, serialized once the stages of keys have run.
        timestamp_ms: of the record.
        piece: the chunk in place of the record's own key and value, which only the partitioner sees.
        asks: whether what its topic takes matters for it.
        partition: what a partitioner of the application's own chose last; None if it was not asked.
    """

    key: Any = None
    timestamp_ms: int | None = None
    piece: Record | None = None
    asks = False
    partition: int | None = None


class WritingProducer(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """The `send` of our `SerializingProducer`.

    Args:
        oversized: what is done with records that are too large.
        arguments: of kafka-python's own class.
    """

    def __init__(self, oversized: Oversized, **arguments: Any) -> None:
        self._oversized = oversized
        self._sending = _Sending()
        partitioner = arguments.get("partitioner", KafkaProducer.DEFAULT_CONFIG["partitioner"])
        self._keeps = type(partitioner) is DefaultPartitioner  # which goes by the key alone
        if not self._keeps:
            arguments["partitioner"] = _Partitioner(self._sending, partitioner)
        parts = oversized.serializers.parts
        stages = {
            "key_serializer": _KeyStage(self._sending, parts.get("key")),
            "value_serializer": _ValueStage(self._sending, parts.get("value"), oversized),
        }
        super().__init__(**arguments, **stages)

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

        For a value in chunks, the result is the metadata of the last one.

        Raises:
            SerializationError: a stage raised an error, or a wrapped null would go to a compacted topic, and nothing is
                sent. `__cause__` is the reason; `retriable` is true if another try may succeed.
            ChunkError: the record cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic does not say what it takes.
        """
        self._oversized.check(topic, value)
        own = headers.copy() if isinstance(headers, list) else headers
        sending = self._sending
        sending.key, sending.timestamp_ms, sending.asks = key, timestamp_ms, False
        pieces = None
        try:
            future = super().send(topic, value, key, own, partition, timestamp_ms)
        except _Split as split:
            pieces = split.pieces
        if pieces is not None:
            return self._send_pieces(topic, value, key, pieces, partition)
        if sending.asks:
            future.add_errback(self._refused, topic)
        return future

    def _send_pieces(
        self, topic: str, value: Any, key: Any, pieces: Iterator[Record], partition: int | None
    ) -> ChunkedFuture:
        result, count = ChunkedFuture(), 0
        first = next(pieces)  # hashes the value
        if partition is None and first.key is None and self._keeps:
            # kafka-python takes one at random, too, if a record has no key.
            partition = random.choice(sorted(self.partitions_for(topic)))  # noqa: S311  # no secret
        self._sending.partition = None
        for piece in itertools.chain([first], pieces):
            if result.has_failed:
                break
            result.takes(self._send_piece(topic, value, key, piece, partition))
            if partition is None and not self._keeps:
                partition = self._sending.partition  # for the next chunk, the partitioner may choose another one
            count += 1
        result.expects(count)
        return result

    def _send_piece(self, topic: str, value: Any, key: Any, piece: Record, partition: int | None) -> Any:
        self._sending.piece = piece
        try:
            future = super().send(topic, value, key, list(piece.headers), partition, piece.timestamp)
        finally:
            self._sending.piece = None
        future.add_errback(self._refused, topic)
        return future

    def _refused(self, topic: str, error: Exception) -> None:
        if isinstance(error, MessageSizeTooLargeError):
            self._oversized.refused(topic)


class _Partitioner(Partitioner):  # type: ignore[misc]  # kafka-python has no types
    """A partitioner of the application's own, whose choice is noted.

    Else only the future of the first chunk would tell it, and a callback cannot wait for one: it runs on the thread
    that ends all futures.
    """

    def __init__(self, sending: _Sending, own: Any) -> None:
        self._sending, self._own = sending, own

    def partition(
        self, topic: str, key: Any, serialized_key: Any, value: Any, serialized_value: Any, cluster: Any
    ) -> Any:
        if isinstance(self._own, Partitioner):
            chosen = self._own.partition(topic, key, serialized_key, value, serialized_value, cluster)
        else:  # of kafka-python 2
            chosen = self._own.partition(topic, serialized_key, cluster)
        self._sending.partition = chosen
        return chosen

    def on_new_batch(self, topic: str, cluster: Any, prev_partition: int) -> None:
        called = getattr(self._own, "on_new_batch", None)
        if called is not None:
            called(topic, cluster, prev_partition)


class _KeyStage(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """The serializers of keys, as a subclass of kafka-python's own class, which it requires."""

    def __init__(self, sending: _Sending, composable: ComposableSerializer | None) -> None:
        self._sending, self._composable = sending, composable

    def serialize(self, topic: str, headers: Headers, data: Any) -> Any:
        if self._sending.piece is not None:
            return self._sending.piece.key
        if self._composable is None:
            return data
        self._sending.key = self._composable.serialize(topic, headers, data)
        return self._sending.key

    def close(self) -> None:
        if self._composable is not None:
            self._composable.close()


class _ValueStage(_KeyStage):
    """The serializers of values, and what is done with a record that its topic would refuse."""

    def __init__(self, sending: _Sending, composable: ComposableSerializer | None, oversized: Oversized) -> None:
        super().__init__(sending, composable)
        self._oversized = oversized

    def serialize(self, topic: str, headers: Headers, data: Any) -> Any:
        sending = self._sending
        if sending.piece is not None:
            return sending.piece.value
        if self._composable is not None:
            data = self._composable.serialize(topic, headers, data)
        value = bytes(data) if isinstance(data, bytearray | memoryview) else data
        sending.asks = self._oversized.asks(sending.key, value, headers or ())
        if not sending.asks or headers is None:
            return data
        stamp_ms = int(time.time() * 1000) if sending.timestamp_ms is None else sending.timestamp_ms
        record, pieces = self._oversized.written(topic, Record(sending.key, value, headers, stamp_ms), headers)
        if pieces is not None:
            raise _Split(pieces)
        return record.value


def largest(config: Mapping[str, object]) -> int:
    """The most bytes of a record that kafka-python takes."""
    return int(str(config["max.request.size"])) - _ESTIMATE_BYTES
