"""confluent-kafka's producer with chunks: it sends what its topic would refuse in parts."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message
from confluent_kafka.error import ValueSerializationError

from app.serializers.strategy import Oversized
from transforms.errors import SerializationError
from transforms.record import Record

__all__ = ["WritingProducer"]

OnDelivery = Callable[..., None]

_METADATA_S = 30.0
_ROOM_S = 0.1  # how long one look waits for room in librdkafka's queue
_RANDOM = "random"  # librdkafka's partitioner that does so with each record


class WritingProducer(confluent_kafka.Producer):
    """The `produce` of our `SerializingProducer`, behind the serializers: it takes bytes.

    `begin` comes before the constructor of confluent-kafka's own class.
    """

    def begin(self, oversized: Oversized, partitioner: str) -> None:
        """Takes what it needs.

        Args:
            oversized: what is done with records that are too large.
            partitioner: of the configuration.
        """
        self._oversized = oversized
        self._spreads = partitioner == _RANDOM

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As confluent-kafka's; see `SerializingProducer`."""
        oversized, told_to = self._oversized, on_delivery or callback
        if not oversized.asks(key, value):
            # Of two callbacks confluent-kafka takes the first, even if that is None.
            super().produce(topic, value, key, partition, on_delivery=told_to, timestamp=timestamp, headers=headers)
            return
        key, value = _encoded(key), _encoded(value)
        own = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        stamp_ms = timestamp or int(time.time() * 1000)
        try:
            record, pieces = oversized.written(topic, Record(key, value, own, stamp_ms), own)
        except SerializationError as exc:
            raise ValueSerializationError(exc) from exc
        told = _Delivery(told_to, lambda: oversized.refused(topic))
        if pieces is None:
            told.expects(1)
            told.all_sent()
            super().produce(topic, record.value, key, partition, on_delivery=told, timestamp=timestamp, headers=own)
            return
        if partition < 0 and (self._spreads or not key):
            partition = self._any_partition(topic)
        self._send(topic, partition, pieces, told)

    def _send(self, topic: str, partition: int, pieces: Iterator[Record], told: _Delivery) -> None:
        first = next(pieces)  # hashes the value
        for number, piece in enumerate(itertools.chain([first], pieces)):
            if told.failed:
                break
            told.expects(1)
            try:
                self._queue(topic, partition, piece, told, waits=number > 0)
            except BaseException:
                told.expects(-1)
                raise
        told.all_sent()

    def _queue(self, topic: str, partition: int, piece: Record, told: _Delivery, *, waits: bool) -> None:
        """Queues a chunk. Behind the first one it waits for room, as nobody can send the rest of a message again."""
        while True:
            try:
                super().produce(
                    topic,
                    piece.value,
                    piece.key,
                    partition,
                    on_delivery=told,
                    timestamp=piece.timestamp,
                    headers=list(piece.headers),
                )
            except BufferError:
                if not waits:
                    raise
                self.poll(_ROOM_S)
            else:
                return

    def _any_partition(self, topic: str) -> int:
        """A partition at random, as librdkafka takes one for a record without a key."""
        found = self.list_topics(topic, timeout=_METADATA_S).topics[topic]
        if found.error is not None or not found.partitions:
            return -1  # librdkafka tells what is wrong with the topic
        return int(random.choice(list(found.partitions)))  # noqa: S311  # no secret


def _encoded(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else data


class _Delivery:
    """Calls the application once for all chunks of a value. librdkafka calls it from any thread that polls.

    Args:
        on_delivery: of the application.
        refused: called if the topic refused a record as too large.
    """

    def __init__(self, on_delivery: OnDelivery | None, refused: Callable[[], object]) -> None:
        self._on_delivery = on_delivery
        self._refused = refused
        self._lock = threading.Lock()
        self._expected = 0
        self._is_sent = False
        self._last: Message | None = None
        self._error: KafkaError | None = None

    @property
    def failed(self) -> bool:
        """Whether one was not delivered."""
        return self._error is not None

    def expects(self, count: int) -> None:
        """Takes in that so many more are sent."""
        with self._lock:
            self._expected += count

    def all_sent(self) -> None:
        """Takes in that no more will be sent."""
        self._is_sent = True
        self._tell()

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Takes in what became of one."""
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._refused()
        with self._lock:
            self._expected -= 1
            self._error = self._error or error
            if self._last is None or (message.offset() or 0) >= (self._last.offset() or 0) or error is not None:
                self._last = message
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            last = self._last
            if not self._is_sent or self._expected or last is None:
                return
            self._last = None
        if self._on_delivery is not None:
            self._on_delivery(self._error, last)
