"""aiokafka's consumer with chunks: it delivers whole messages, and commits no chunk of an incomplete one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from app.chunks.discarded import OnDiscarded, warn
from app.chunks.keys import CONSUMER_KEYS, apart
from app.chunks.whole_records import WholeRecordConsumer
from app.kafka.arguments import Arguments
from transforms.errors import SerializationError

_ARGUMENTS = Arguments.of(AIOKafkaConsumer)


class AssemblingConsumer(WholeRecordConsumer):
    """An `AIOKafkaConsumer` that delivers whole messages, as `AssembledRecord`, between the ordinary records.

    A message is delivered with the offset of its last chunk. No commit, automatic or not, passes the first chunk of an
    incomplete message. The commit's metadata notes the offset up to which records have been delivered, so
    that a restart does not deliver them again.

    `on_discarded` is called with each discarded message, before any record behind it is delivered. If it raises an
    error, `getone` or `getmany` raises it, the next call tries again, and no commit passes the message. By default a
    warning is logged.

    No limit drops a message. Messages that exceed `max.pending.chunked.message` or `max.pending.chunked.bytes` are kept
    as offsets, and their chunks are re-read when the last one has arrived, by a second consumer without a group.
    With `auto.ack.oldest.chunked.message.on.queue.full` the oldest message is dropped instead.

    The offset of a message is that of its last chunk, for `position` and `seek` too. If reading starts in the middle of
    a message, its first chunk is searched up to `chunk.lookback` offsets before. An application that stores offsets
    elsewhere therefore loses nothing if it continues at `position`, or after the last record that it has processed.

    The age of a message grows only while a call waits for its partition, and the partition is not paused, so a message
    does not expire while its chunks are in the log and are not read.

    A record whose deserializer raises an error keeps its place: the records before it are delivered, then a call raises
    a `RecordDeserializationError`, and the next call tries again. `seek` to the next offset skips it.

    A rebalance forgets incomplete messages, whose chunks are then read again. A `seek` to an offset retains messages
    that began before it, and no commit passes them.

    Args:
        config: properties with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, and those of chunks.
        topics: the topics to subscribe to.
        on_discarded: called with each discarded message; may be a coroutine function.
        options: arguments in place of properties, for values that are not strings: `value_deserializer`, `ssl_context`.

    Raises:
        ConfigurationError: a property is unknown, or its value is wrong.
    """

    def __init__(
        self, config: Mapping[str, object], *topics: str, on_discarded: OnDiscarded = warn, **options: object
    ) -> None:
        values, client = apart(CONSUMER_KEYS, _ARGUMENTS, _ARGUMENTS.merged(config, options))
        arguments = {**_ARGUMENTS.defaults, **_ARGUMENTS.read(client)}
        # Functions of bytes, which need no download.
        self._deserializers: dict[str, Callable[[bytes | None], Any]] = {
            field: own for field in ("key", "value") if (own := arguments.pop(f"{field}_deserializer")) is not None
        }
        self._keeps_plain = not self._deserializers
        super().__init__(values, on_discarded, topics, arguments)

    def _restore(self, record: ConsumerRecord) -> ConsumerRecord:
        found: dict[str, Any] = {}
        for field, deserializer in self._deserializers.items():
            try:
                found[field] = deserializer(getattr(record, field))
            except Exception as exc:
                reason = f"{type(exc).__name__}: {exc}"
                error = SerializationError(record.topic, field, reason, deserializing=True)
                raise error.at(record.partition, record.offset) from exc
        return replace(record, **found) if found else record
