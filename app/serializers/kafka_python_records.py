"""The records of kafka-python's consumer: those that wait for it, whole and restored; and a log that is re-read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from app.chunks.downloads import Downloads, Restoring
from app.chunks.inbox import Inbox, Place
from app.chunks.keys import limits
from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig, deserialized, restoring
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled
from transforms.errors import SerializationError

REQUEST_MS = 30_000
_STEP_MS = 200
# These are of a member of a group, or would be called twice.
_OF_MEMBERS = {"group_id", "group_instance_id", "metric_reporters", "partition_assignment_strategy"}
_OF_MEMBERS |= {"default_offset_commit_callback"}
_headers_of = attrgetter("headers")


class Records(Inbox[ConsumerRecord]):
    """An inbox whose records are restored before they are `ready`.

    Args:
        deserializers: of keys and values, with the values of the properties in `app.chunks.keys.CONSUMER_KEYS`.
    """

    def __init__(self, deserializers: ClientConfig[ComposableDeserializer]) -> None:
        super().__init__(limits(deserializers.values), deserializers.values["chunk.lookback"])
        self._deserializers = deserializers
        self._keeps_plain = deserializers.keeps_plain
        self._downloads = Downloads[ConsumerRecord](self._size, self._restoring)

    def whole(self, last: ConsumerRecord, message: Assembled) -> ConsumerRecord:
        value, headers = message.record.value, list(message.record.headers)
        return last._replace(value=value, headers=headers, serialized_value_size=len(value or b""))

    def add(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Adds records of partitions without entries. If all are plain, and nothing waits, they are ready."""
        headers = map(_headers_of, itertools.chain.from_iterable(found.values()))
        plain = self._keeps_plain and self.quiet and not any(headers)
        for tp, records in found.items():
            if plain:
                self.ready[tp] = deque(records)
            else:
                self.put(tp, records)

    def restore(
        self, places: Sequence[TopicPartition], most: int, takes: Callable[[int], bool], *, hastens: bool
    ) -> None:
        """Restores the next records of these partitions, until `most` are ready, or one cannot be restored.

        Args:
            places: the partitions, which have entries.
            most: how many records may be ready.
            takes: whether one more download, of at most this many bytes, may start.
            hastens: whether to wait for no download after the first record.
        """
        left, restored = most - sum(map(len, self.ready.values())), None
        for at, tp in enumerate(places):
            while left > 0 and (entry := self.head(tp)) is not None and entry.error is None:
                try:
                    if self._size(entry.record) is None:
                        restored = self._restored(entry.record)
                    elif hastens and restored is not None:
                        return
                    else:
                        entries = itertools.chain.from_iterable(map(self.entries, places[at:]))
                        restored = self._downloads.restore(entries, takes)
                        if restored is None:
                            break
                except SerializationError as exc:
                    entry.error = exc
                    break
                self.ready.setdefault(tp, deque()).append(restored)
                self.pop(tp)
                left -= 1

    def raise_error(self, places: Collection[TopicPartition]) -> None:
        """Raises the error of a record that is the next of its partition; it is tried again after that."""
        for tp in places:
            entry = self.first(tp)
            error, entry.error = entry.error, None
            if error is not None:
                raise error

    def close(self) -> None:
        """Waits for downloads, and closes the deserializers."""
        self._downloads.close()
        self._deserializers.close()

    def _size(self, record: ConsumerRecord) -> int | None:
        headers = record.headers
        return None if not headers or is_chunk(headers) else self._deserializers.restored_bytes(record)

    def _restored(self, record: ConsumerRecord) -> ConsumerRecord:
        if self._keeps_plain and not record.headers:
            return record
        found, headers = deserialized(self._deserializers, record)
        return record._replace(**found, headers=headers)

    def _restoring(self, record: ConsumerRecord) -> Restoring[ConsumerRecord]:
        found, headers = yield from restoring(self._deserializers, record)
        return record._replace(**found, headers=headers)


class Log:
    """A consumer outside the group that reads a partition at any offset; see `app.chunks.blocking.Log`.

    Args:
        arguments: of the consumer that is one.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        own = {name: value for name, value in arguments.items() if name not in _OF_MEMBERS}
        self._consumer = KafkaConsumer(**{**own, "enable_auto_commit": False, "auto_offset_reset": "earliest"})

    def first(self, place: Place) -> int:
        tp = TopicPartition(*place)
        found: int = self._consumer.beginning_offsets([tp], timeout_ms=REQUEST_MS)[tp]
        return found

    def records(self, place: Place, start: int, end: int) -> Iterator[ConsumerRecord | None]:
        tp = TopicPartition(*place)
        self._consumer.assign([tp])
        self._consumer.seek(tp, start)
        # These offsets were in the log. If it now ends before `end`, they were removed.
        end = min(end, self._consumer.end_offsets([tp], timeout_ms=REQUEST_MS)[tp])
        while (self._consumer.position(tp, timeout_ms=REQUEST_MS) or 0) < end:
            found = self._consumer.poll(_STEP_MS).get(tp, [])
            if not found:
                yield None
            for record in found:
                if record.offset >= end:
                    return
                yield record

    def close(self) -> None:
        self._consumer.close()
