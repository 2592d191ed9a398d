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

    `on_discarded` gets each discarded message, before any record behind it is delivered. If it raises, `getone` or
    `getmany` raises this error, the next call tries again, and no commit passes the message. By default a warning is
    logged. `transforms.reassembly` explains the reasons.

    No limit drops a message. What does not fit into `max.pending.chunked.message` and `max.pending.chunked.bytes` is
    kept as offsets, and its chunks are read again when the last one has come, by a consumer of its own without a group.
    With `auto.ack.oldest.chunked.message.on.queue.full` the oldest message is dropped instead.

    A message has the place of its last chunk, for `position` and `seek` too. Reading that begins in the middle of a
    message looks for its first chunk up to `chunk.lookback` offsets before that. So an application that keeps offsets
    elsewhere loses nothing if it goes on at `position`, or behind the offset of the last record that it has done.

    The age of a message grows only while a call waits for its partition, and that is not paused. So a message does not
    expire while its chunks are in the log and nobody reads them.

    A record whose deserializer raises an error keeps its place: the records before it are delivered, then a call raises
    a `RecordDeserializationError`, and the next call tries again. `seek` to the next offset skips it.

    A rebalance forgets incomplete messages: their chunks are read again. `seek` to an offset keeps those that began
    before it, and no commit passes them.

    Args:
        config: keys with Kafka's names: the arguments of `AIOKafkaConsumer` with dots, and `CONSUMER_KEYS`.
        topics: the topics to subscribe to.
        on_discarded: called with each discarded message; may be a coroutine function.
        options: arguments in place of keys, for values that are not strings: `value_deserializer`, `ssl_context`.

    Raises:
        ConfigurationError: a key is unknown, or its value is wrong.
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
