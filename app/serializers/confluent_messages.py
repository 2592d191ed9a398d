"""confluent-kafka's messages: as records, in an inbox, in a log that is re-read, and as errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.error import ConsumeError, KeyDeserializationError, ValueDeserializationError

from app.chunks.inbox import Inbox, Place
from app.kafka.source_batch import ReadRecord
from transforms.chunked_message import Assembled
from transforms.errors import SerializationError
from transforms.record import Header

END: int = confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001  # a public name, as librdkafka's are written
REQUEST_S = 30.0
_STEP_S = 0.2


def place_of(of: Any) -> Place:
    """The place of a message or a `TopicPartition`."""
    return (of.topic, of.partition) if isinstance(of, TopicPartition) else (of.topic(), of.partition())


def noting(place: Place, offset: int, note: str) -> TopicPartition:
    """An offset to commit with its note, without the NUL at its end: confluent-kafka writes one itself."""
    return TopicPartition(*place, offset, note.removesuffix("\0"))


def record_of(message: Message) -> ReadRecord:
    """A message as a record for reassembly and deserializers."""
    headers: Any = message.headers() or ()
    offset, timestamp = message.offset() or 0, message.timestamp()[1]
    return ReadRecord(*place_of(message), offset, timestamp, message.key(), message.value(), tuple(headers))


def failure_of(error: Exception, message: Message) -> Exception:
    """confluent-kafka's error for a record. The place is added to the reason: deserializers receive only the topic."""
    if isinstance(error, ConsumeError) and isinstance(reason := error.exception, SerializationError):
        error.exception = reason.at(message.partition() or 0, message.offset() or 0)
        error.exception.__cause__ = reason.__cause__
    elif isinstance(error, SerializationError):  # of a record with a download
        failed = KeyDeserializationError if error.field == "key" else ValueDeserializationError
        return failed(exception=error, kafka_message=message)
    return error


class Messages(Inbox[Message]):
    """It also has errors and ends of partitions, which librdkafka returns among the messages."""

    def headers(self, record: Message) -> list[Header] | None:
        return record.headers()  # type: ignore[return-value]  # librdkafka gives a list of pairs

    def offset(self, record: Message) -> int:
        return record.offset() or 0

    def logged(self, record: Message) -> ReadRecord:
        return record_of(record)

    def whole(self, last: Message, message: Assembled) -> Message:
        last.set_value(message.record.value)
        last.set_headers(list(message.record.headers))
        return last


class Log:
    """A consumer outside the group that reads a partition at any offset; see `app.chunks.blocking.Log`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._consumer = confluent_kafka.Consumer(dict(config))

    def first(self, place: Place) -> int:
        bounds = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=REQUEST_S)
        return bounds[0]

    def records(self, place: Place, start: int, end: int) -> Iterator[ReadRecord | None]:
        self._consumer.assign([TopicPartition(*place, start)])
        try:
            offset = start
            while offset < end:
                message = self._consumer.poll(_STEP_S)
                if message is None:
                    yield None
                    continue
                if (error := message.error()) is not None:
                    if error.code() == END:
                        return
                    if error.fatal() or error.code() > 0:
                        raise KafkaException(error)
                    continue  # librdkafka reports connections, and tries again
                offset = (message.offset() or 0) + 1
                if offset <= end:
                    yield record_of(message)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()
