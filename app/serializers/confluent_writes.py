"""confluent-kafka's producer with chunks: it splits records that the topic would refuse."""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import get_ident
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.error import ValueSerializationError

from app.serializers.delivery import Delivery
from app.serializers.stage import encoded
from app.serializers.strategy import Outgoing
from transforms.chunk import Chunk
from transforms.errors import SerializationError
from transforms.record import Record

OnDelivery = Callable[..., None]

_METADATA_S = 30.0
_ROOM_S = 0.1  # how long one look waits for space in librdkafka's queue
_QUEUE = "queue.buffering.max.messages"
_QUEUE_MESSAGES = 100_000  # librdkafka's default; 0 means unlimited
_DEFAULT_PARTITIONER = "consistent_random"
# Keys for which librdkafka's partitioners choose a random partition for each record; `random` does for all.
_AT_RANDOM: Mapping[str, tuple[bytes | None, ...]] = {
    "consistent_random": (None, b""),
    "murmur2_random": (None,),
    "fnv1a_random": (None,),
}
# The calls that run callbacks, in addition to `poll`. Source: the uses of `CallState_begin` in confluent-kafka's
# Producer.c, Metadata.c and confluent_kafka.c.
_CALLS = (
    "abort_transaction",
    "close",
    "commit_transaction",
    "flush",
    "init_transactions",
    "list_topics",
    "send_offsets_to_transaction",
    "set_sasl_credentials",
)
# By position, as a call with names takes a third longer; likewise `poll`.
bare_produce: Callable[..., None] = confluent_kafka.Producer.produce
_bare_poll: Callable[..., int] = confluent_kafka.Producer.poll


class WritingProducer(confluent_kafka.Producer):
    """The `produce` of our `SerializingProducer`, after the serializers: it accepts bytes.

    It survives a `poll` or `flush` in a callback of this producer. confluent-kafka keeps the state of such a call by
    thread, and a second one on the same thread removes it: with the next callback the process aborts (issue 457 there).
    Here the second call is an error.

    Call `prepare` before the constructor of confluent-kafka's own class.
    """

    def prepare(self, outgoing: Outgoing, config: Mapping[str, object]) -> None:
        """Sets how records that are too large are sent, and the configuration of the client."""
        self._outgoing = outgoing
        self._calling = set[int]()
        self._most_queued = config.get(_QUEUE, _QUEUE_MESSAGES)
        self._partitioner = str(config.get("partitioner") or _DEFAULT_PARTITIONER)
        # confluent-kafka calls it for a record without a callback.
        self._on_delivery: Any = config.get("on_delivery")

    @property
    def in_callback(self) -> bool:
        """Whether this thread is in a callback of this producer, where nothing may wait for other callbacks."""
        return get_ident() in self._calling

    def poll(self, timeout: float | None = -1) -> int:
        """As confluent-kafka's."""
        thread, calling = get_ident(), self._calling
        if thread in calling:
            raise _nested("poll")
        calling.add(thread)
        try:
            return _bare_poll(self, timeout)
        finally:
            calling.discard(thread)

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
        outgoing, on_delivery = self._outgoing, on_delivery or callback
        key, value = _encoded(key), _encoded(value)
        own: Any = encoded(list(headers.items()) if isinstance(headers, Mapping) else headers) if headers else []
        if not outgoing.asks(key, value, own):
            # Of two callbacks confluent-kafka uses the first, even if that is None.
            bare_produce(self, topic, value, key, partition, on_delivery, None, timestamp, headers)
            return
        try:
            record, pieces = outgoing.written(topic, Record(key, value, own, timestamp or int(time.time() * 1000)))
        except SerializationError as exc:
            raise ValueSerializationError(exc) from exc
        delivery = self._delivery(topic, on_delivery or self._on_delivery)
        if pieces is None:
            self._queue(topic, partition, replace(record, timestamp=timestamp), delivery, waits=False)
        else:
            first = next(pieces)  # hashes the value
            if partition < 0 and (self._partitioner == "random" or key in _AT_RANDOM.get(self._partitioner, ())):
                partition = self._any_partition(topic)  # or each chunk would go to another one
            if self.in_callback:
                self._check_room(topic, first)
            for number, piece in enumerate(itertools.chain([first], pieces)):
                if delivery.failed:
                    break
                self._queue(topic, partition, piece, delivery, waits=number > 0)
        delivery.close()

    def _delivery(self, topic: str, on_delivery: OnDelivery | None) -> Delivery:
        def done(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._outgoing.destinations.forget(topic)
            if on_delivery is not None:
                on_delivery(error, message)

        return Delivery(done)

    def _queue(self, topic: str, partition: int, record: Record, delivery: Delivery, *, waits: bool) -> None:
        """Queues a record. Chunks after the first one wait for space: the rest of a message cannot be sent again.

        Raises:
            BufferError: there is no space, and it does not wait, or may not wait because it is in a callback.
        """

        def ended(error: KafkaError | None, message: Message) -> None:
            delivery.end(error, message, message.offset() or 0)

        delivery.begin()
        headers = list(record.headers)
        while True:
            try:
                bare_produce(self, topic, record.value, record.key, partition, ended, None, record.timestamp, headers)
            except BufferError:
                if not waits or self.in_callback:
                    raise
                self.poll(_ROOM_S)
            else:
                return

    def _check_room(self, topic: str, first: Record) -> None:
        """Refuses a value in a callback before its first chunk is queued, because nothing may wait for space there.

        Raises:
            BufferError: librdkafka's queue has no space for all chunks.
        """
        count, most, queued = Chunk.parse(first)[0].count, int(str(self._most_queued)), len(self)
        if most and queued + count > most:
            raise BufferError(
                f"Local: Queue full: the value for topic {topic} has {count:,} chunks, and {queued:,} of {most:,} "
                f"messages ({_QUEUE}) are queued; produce cannot wait for space in a callback; produce the value again "
                f"after poll or flush has returned, or raise {_QUEUE}"
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


def _nested(name: str) -> KafkaException:
    return KafkaException(
        KafkaError(
            KafkaError._STATE,  # noqa: SLF001  # a public name, as librdkafka's are written
            f"{name} was called in a callback of the same producer, where confluent-kafka aborts the process; "
            f"only produce is allowed in a callback; call {name} after poll or flush has returned",
        )
    )


def _unnested(name: str) -> Callable[..., Any]:
    call: Callable[..., Any] = getattr(confluent_kafka.Producer, name)

    @functools.wraps(call)
    def called(self: WritingProducer, *args: Any, **named: Any) -> Any:
        thread, calling = get_ident(), self._calling
        if thread in calling:
            raise _nested(name)
        calling.add(thread)
        try:
            return call(self, *args, **named)
        finally:
            calling.discard(thread)

    return called


for _name in _CALLS:
    if hasattr(confluent_kafka.Producer, _name):  # `close` came with 2.13
        setattr(WritingProducer, _name, _unnested(_name))
