"""confluent-kafka's producer with chunks: it sends what its topic would refuse in parts."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.error import ValueSerializationError

from app.serializers.confluent_callbacks import CallbackProducer
from app.serializers.stage import encoded
from app.serializers.strategy import Oversized
from transforms.chunk import Chunk
from transforms.errors import SerializationError
from transforms.record import Record

__all__ = ["WritingProducer"]

OnDelivery = Callable[..., None]

_METADATA_S = 30.0
_ROOM_S = 0.1  # how long one look waits for room in librdkafka's queue
_QUEUE = "queue.buffering.max.messages"
_QUEUE_MESSAGES = 100_000  # librdkafka's default; 0 is no limit
# librdkafka's partitioners that take one at random for each record, for one without a key, and for an empty key, too.
_RANDOM = frozenset({"random"})
_RANDOM_WITHOUT_KEY = frozenset({"consistent_random", "murmur2_random", "fnv1a_random"})
_RANDOM_WITH_EMPTY_KEY = frozenset({"consistent_random"})
_DEFAULT_PARTITIONER = "consistent_random"


class WritingProducer(CallbackProducer):
    """The `produce` of our `SerializingProducer`, behind the serializers: it takes bytes.

    `prepare` comes before the constructor of confluent-kafka's own class.
    """

    def prepare(self, oversized: Oversized, config: Mapping[str, object]) -> None:
        """Takes what it needs.

        Args:
            oversized: what is done with records that are too large.
            config: of the client.
        """
        self.begin()
        self._oversized = oversized
        self._most_queued = config.get(_QUEUE, _QUEUE_MESSAGES)
        self._partitioner = str(config.get("partitioner") or _DEFAULT_PARTITIONER)
        # confluent-kafka calls it for a record that has no callback of its own.
        self._on_delivery: Any = config.get("on_delivery")

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
        key, value = _encoded(key), _encoded(value)
        own: Any = encoded(list(headers.items()) if isinstance(headers, Mapping) else headers) if headers else []
        if not oversized.asks(key, value, own):
            # Of two callbacks confluent-kafka takes the first, even if that is None.
            super().produce(topic, value, key, partition, on_delivery=told_to, timestamp=timestamp, headers=headers)
            return
        stamp_ms = timestamp or int(time.time() * 1000)
        try:
            record, pieces = oversized.written(topic, Record(key, value, own, stamp_ms), own)
        except SerializationError as exc:
            raise ValueSerializationError(exc) from exc
        told = _Delivery(told_to or self._on_delivery, lambda: oversized.refused(topic))
        if pieces is None:
            told.expects(1)
            told.all_sent()
            super().produce(topic, record.value, key, partition, on_delivery=told, timestamp=timestamp, headers=own)
            return
        if partition < 0 and self._spreads(key):
            partition = self._any_partition(topic)
        self._send(topic, partition, pieces, told)

    def _send(self, topic: str, partition: int, pieces: Iterator[Record], told: _Delivery) -> None:
        first = next(pieces)  # hashes the value
        if self.in_callback:
            self._check_room(topic, first)
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
        """Queues a chunk. Behind the first one it waits for room, as nobody can send the rest of a message again.

        Raises:
            BufferError: there is no room for the first one; or for a later one in a callback, where nothing may wait.
        """
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
                if not waits or self.in_callback:
                    raise
                self.poll(_ROOM_S)
            else:
                return

    def _check_room(self, topic: str, first: Record) -> None:
        """Refuses a value in a callback before its first chunk is queued: there nothing may wait for room.

        Raises:
            BufferError: librdkafka's queue has no room for all chunks.
        """
        count, most, queued = Chunk.parse(first)[0].count, int(str(self._most_queued)), len(self)
        if most and queued + count > most:
            raise BufferError(
                f"Local: Queue full: the value for topic {topic} has {count:,} chunks, and {queued:,} of {most:,} "
                f"messages ({_QUEUE}) are queued; in a callback produce cannot wait for room: produce the value again "
                f"once poll or flush has returned, or raise {_QUEUE}"
            )

    def _spreads(self, key: bytes | None) -> bool:
        """Whether librdkafka would take a partition at random for each chunk."""
        name = self._partitioner
        return (
            name in _RANDOM
            or (key is None and name in _RANDOM_WITHOUT_KEY)
            or (key == b"" and name in _RANDOM_WITH_EMPTY_KEY)
        )

    def _any_partition(self, topic: str) -> int:
        """A partition at random, for all chunks of a value."""
        with ThreadPoolExecutor(1, "list-topics") as pool:  # this thread may be in a callback
            found = pool.submit(self.list_topics, topic, timeout=_METADATA_S).result().topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return int(random.choice(list(found.partitions)))  # noqa: S311  # no secret


def _encoded(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else data


class _Delivery:
    """Calls the application once for all chunks of a value. librdkafka calls it from any thread that polls.

    With the first error it is called at once: with `delivery.report.only.error`, nothing is heard of the others.

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
        self.failed = False
        """Whether one was not delivered."""

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
        if error is not None:
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._refused()
            with self._lock:
                is_first, self.failed = not self.failed, True
            if is_first and self._on_delivery is not None:
                self._on_delivery(error, message)
            return
        with self._lock:
            self._expected -= 1
            if self._last is None or (message.offset() or 0) >= (self._last.offset() or 0):
                self._last = message
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            last = self._last
            if not self._is_sent or self._expected or self.failed or last is None:
                return
            self._last = None
        if self._on_delivery is not None:
            self._on_delivery(None, last)
