"""confluent-kafka's consumer with whole messages: no commit passes one that is incomplete."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.error import ConsumeError, KeyDeserializationError, ValueDeserializationError

from app.chunks.allowance import PARALLEL, Allowance
from app.chunks.blocking import Actions, OnDiscarded
from app.chunks.downloads import Downloads, Restoring
from app.chunks.inbox import Entry, Inbox, Place
from app.chunks.keys import limits
from app.kafka.source_batch import ReadRecord
from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig
from app.serializers.large_message import LargeMessageDeserializer
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Counts
from transforms.errors import SerializationError
from transforms.logger_name import logger_name
from transforms.record import Header

_logger = logging.getLogger(logger_name(__name__))
_CLIENT = confluent_kafka.Consumer
_headers, _error = Message.headers, Message.error

_LOOK_S = 1.0  # how often a call that waits looks for messages that have expired
_STEP_S = 0.2
_STORE_S = 0.1
_END: int = confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001  # a public name, as librdkafka's are written
_REQUEST_S = 30.0
_MOST = 1_000_000  # messages of one `consume`
_FETCH_BYTES, _INTERVAL_MS = 52_428_800, 300_000  # librdkafka's defaults
_DONE = object()  # `work` of an entry that is deserialized
# These are of a member of a group, or would be called twice.
_OF_MEMBERS = frozenset(
    {"group.instance.id", "on_commit", "stats_cb", "key.deserializer.builder", "value.deserializer.builder"}
)


class _Messages(Inbox[Message]):
    """Errors and ends of partitions are in it too, as librdkafka gives them among the messages."""

    def headers(self, record: Message) -> list[Header] | None:
        return record.headers()  # type: ignore[return-value]  # librdkafka gives a list of pairs

    def offset(self, record: Message) -> int:
        return record.offset() or 0

    def logged(self, record: Message) -> ReadRecord:
        return _record(record)

    def whole(self, last: Message, message: Assembled) -> Message:
        last.set_value(message.record.value)
        last.set_headers(list(message.record.headers))
        return last


class PollingConsumer(confluent_kafka.Consumer):
    """The reading, positions and commits of our `DeserializingConsumer`. For one thread, as confluent-kafka's.

    While all is quiet, messages go from librdkafka to the application as they are: librdkafka knows the positions, and
    whether one is for us its headers say. Otherwise they wait in an inbox until a call takes them.

    Args:
        split: the deserializers, the values of the properties of chunks, and librdkafka's properties.
        on_discarded: called with each discarded message.
    """

    def __init__(self, split: ClientConfig[ComposableDeserializer], on_discarded: OnDiscarded) -> None:
        client, values = split.client, split.values
        self._inbox = _Messages(limits(values), values["chunk.lookback"])
        self._stores = _is_true(client, "enable.auto.offset.store")
        self._commits = self._stores and _is_true(client, "enable.auto.commit")
        self._store_s = 0.0
        # Partitions of which nothing was read yet, each with the commit, if it is known, at which it begins.
        self._new: dict[Place, TopicPartition | None] = {}
        self._paused: set[Place] = set()
        self._quiet = True  # as far as the calls of `_take` know
        self._keeps_plain = all(each.keeps_plain for each in split.parts.values()) and not any(
            name.endswith("deserializer.builder") for name in client
        )
        own = {key: value for key, value in client.items() if key not in _OF_MEMBERS}
        log = {**own, "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True}
        self._actions = Actions(self._inbox, on_discarded, lambda: _Log(log))
        max_bytes = int(str(client.get("fetch.max.bytes", _FETCH_BYTES)))
        interval_ms = int(str(client.get("max.poll.interval.ms", _INTERVAL_MS)))
        self._split = split
        firsts = {part: each.stages[0].target for part, each in split.parts.items()}
        self._firsts = {part: each for part, each in firsts.items() if isinstance(each, LargeMessageDeserializer)}
        self._downloads = Downloads[Any](self._size, self._payloads)
        self._limits = max_bytes, split.store_timeout_ms, interval_ms
        parts = {f"{part}.deserializer": composable for part, composable in split.parts.items()}
        # librdkafka would store the offset of each chunk.
        super().__init__({**client, **parts, "enable.auto.offset.store": False})

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._inbox.counts

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._inbox.stats()

    def close(self) -> None:
        """As confluent-kafka's."""
        if self._commits:
            self._commits = False
            self._store()
        self._actions.close()
        super().close()
        self._downloads.close()

    # --- records ------------------------------------------------------------------------------------------------------

    def deserialize(self, message: Message, restored: Mapping[str, Any] | None) -> None:
        """Puts the application's key and value into a message; if it fails, the message is as it was.

        Args:
            message: as Kafka has it, or put together.
            restored: key, value and headers with the payloads, if these were downloaded ahead.

        Raises:
            ConsumeError: confluent-kafka's own.
        """

    def poll(self, timeout: float | None = -1) -> Message | None:
        """As confluent-kafka's; goes on waiting, up to the time-out, if it reads only chunks.

        An interrupt (Ctrl-C) while a payload is downloaded loses no record: the next call gives it. If the `exception`
        of confluent-kafka's error is a `SerializationError`, it is a `RecordDeserializationError`.

        Raises:
            ConsumeError: the record cannot be deserialized: the next call goes on behind it; or librdkafka reports an
                error.
        """
        if self._quiet:
            if self._commits and time.monotonic() >= self._store_s:
                self._store()
            message = _CLIENT.poll(self, 0)
            if message is not None:
                plain = self._keeps_plain and not message.headers() and message.error() is None
                if plain and not (self._new and _place(message) in self._new):
                    return message
                self._put([message])
        found = self._take(1, _until(timeout))
        if found and (error := found[0].error()) is not None:
            raise ConsumeError(error, kafka_message=found[0])
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Up to so many messages, each as `poll` gives it: waits until there are as many, or the time is over.

        Errors of librdkafka are among them as messages (`message.error()`), as with confluent-kafka's `Consumer`. The
        call returns with fewer messages before one that cannot be deserialized, which the next call raises, before one
        that is discarded or read again, and before a download for which it has no time or memory left: together at most
        `fetch.max.bytes`, and none that may end after `max.poll.interval.ms`. If it raises an error, the next call
        gives what it had.

        Raises:
            ConsumeError: the first record cannot be deserialized: the next call goes on behind it.
            ValueError: more messages than a million.
        """
        until_s = _until(timeout)
        if self._quiet or not 0 <= num_messages <= _MOST:
            if self._commits and time.monotonic() >= self._store_s:
                self._store()
            wait_s = timeout if timeout is not None and 0 <= timeout <= _LOOK_S else 0
            messages = _CLIENT.consume(self, num_messages, wait_s)
            plain = self._keeps_plain and not any(map(_headers, messages)) and not any(map(_error, messages))
            new = self._new and not self._new.keys().isdisjoint(map(_place, messages))
            if plain and not new and (len(messages) == num_messages or wait_s == timeout):
                return messages
            self._put(messages)
        return self._take(num_messages, until_s)

    def _take(self, most: int, until_s: float) -> list[Message]:
        """The next messages, out of the inbox. While it waits they are all there: a rebalance may take them."""
        allowance, over = Allowance(*self._limits), False
        try:
            while True:
                window = [*islice(self._upcoming(), PARALLEL)]
                if len(window) < PARALLEL and any(self._size(each.record) is not None for each in window):
                    self._put(_CLIENT.consume(self, PARALLEL - len(window), 0))
                given = self._given(most, allowance)
                if over or len(given) == most or (given and (self._inbox.actions or any(self._upcoming()))):
                    return [entry.record for _, entry in given]
                self._inbox.put_back(given)
                if self._inbox.actions:
                    self._actions.do_first(until_s)
                else:
                    self._fetch(most - len(given), until_s)
                over = time.monotonic() >= until_s
        except BaseException:
            self._go_back()
            raise
        finally:
            self._quiet = self._inbox.quiet

    def _given(self, most: int, allowance: Allowance) -> list[tuple[Place, Entry[Message]]]:
        given: list[tuple[Place, Entry[Message]]] = []
        try:
            while len(given) < most and (found := self._head()) is not None:
                if not self._finish(*found, allowance, first=not given):
                    break
                self._inbox.pop(found[0])
                given.append(found)
        except BaseException:
            self._inbox.put_back(given)
            raise
        return given

    def _finish(self, place: Place, entry: Entry[Message], allowance: Allowance, *, first: bool) -> bool:
        """Deserializes the next message; False if this call may not download it, or if a later one raises its error."""
        try:
            if entry.error is None:
                return entry.work is _DONE or self._restore(entry, allowance)
        except Exception as error:  # noqa: BLE001  # a stage may raise any
            entry.error = _failure(error, entry.record)
        if first:
            self._inbox.pop(place)
            raise entry.error
        return False

    def _restore(self, entry: Entry[Message], allowance: Allowance) -> bool:
        restored = None
        if entry.record.error() is None:
            if self._size(entry.record) is not None:
                restored = self._downloads.restore(self._upcoming(), allowance.takes)
                if restored is None:
                    return False
            self.deserialize(entry.record, restored)
        entry.work = _DONE
        return True

    def _size(self, message: Message) -> int | None:
        headers: Any = message.headers()
        return self._split.restored_bytes(_record(message)) if headers and not is_chunk(headers) else None

    def _payloads(self, message: Message) -> Restoring[Mapping[str, Any]]:
        """Puts payloads into the place of references, so that the deserializers find none."""
        record = _record(message)
        found: dict[str, Any] = {"key": record.key, "value": record.value, "headers": [*record.headers]}
        for part, large in self._firsts.items():
            if large.wants(found[part], found["headers"]):
                found[part] = (yield partial(large.deserialize, record.topic, found["headers"], found[part]))()
        return found

    def _head(self) -> tuple[Place, Entry[Message]] | None:
        for place in [*self._inbox.places]:
            if place not in self._paused and not self._inbox.actions:
                if place in self._new:
                    self._begin(place)
                if (entry := self._inbox.head(place)) is not None:
                    return place, entry
        return None

    def _upcoming(self) -> Iterator[Entry[Message]]:
        """The next entries, in the order in which they are given."""
        queues = [self._inbox.entries(place) for place in self._inbox.places if place not in self._paused]
        return (each for each in chain.from_iterable(zip_longest(*queues)) if each is not None)

    def _fetch(self, most: int, until_s: float) -> None:
        """Waits for messages, and counts the time by which incomplete ones expire."""
        since_s, waits = time.monotonic(), self._inbox.waits
        if self._commits and since_s >= self._store_s:
            self._store()
        wait_s = min(_LOOK_S, max(0.0, until_s - since_s))
        self._put(_CLIENT.consume(self, max(most, PARALLEL), 0) or _CLIENT.consume(self, most, wait_s))
        if waits:
            places = {_place(each) for each in _CLIENT.assignment(self)}
            self._inbox.tick(time.monotonic() - since_s, places - self._paused)

    def _put(self, messages: Iterable[Message]) -> None:
        for message in messages:
            error = message.error()
            # An error without an offset stands in the way of no partition.
            place = _place(message) if error is None or error.code() == _END else ("", -1)
            self._inbox.put(place, [message])

    # --- positions ----------------------------------------------------------------------------------------------------

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """As confluent-kafka's: the offsets from which the next records, or messages, are given.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk.
        """
        found = super().position(partitions)
        for each in found:
            if each.offset >= 0:
                each.offset = self._inbox.position(_place(each), each.offset)
        return found

    def seek(self, partition: TopicPartition) -> None:
        """As confluent-kafka's. A message whose last chunk is at the offset, or behind it, comes whole.

        No commit passes one that began before the offset and has not ended before it.
        """
        super().seek(partition)
        place = _place(partition)
        if partition.offset >= 0:
            self._inbox.move(place, partition.offset)
        else:
            self._inbox.clear(place)
        self._new[place] = TopicPartition(*place, partition.offset)
        self._quiet = self._inbox.quiet

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002  # confluent-kafka's signature
    ) -> Any:
        """As confluent-kafka's; no offset passes the first chunk of an incomplete message."""
        safe = self._stated(message, offsets)
        if message is None and offsets is None and self._stores:
            safe = self._delivered()
        # Without offsets, librdkafka commits what is stored, and it is an error if that has not changed.
        commit: Callable[..., Any] = super().commit
        return commit(asynchronous=asynchronous) if not safe else commit(offsets=safe, asynchronous=asynchronous)

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """As confluent-kafka's; no offset passes the first chunk of an incomplete message."""
        super().store_offsets(offsets=self._stated(message, offsets))

    def _stated(self, message: Message | None, offsets: list[TopicPartition] | None) -> list[TopicPartition]:
        if message is not None:
            offsets = [TopicPartition(*_place(message), (message.offset() or 0) + 1)]
        return [each if each.offset < 0 else self._safe(each, stated=True) for each in offsets or ()]

    def _delivered(self) -> list[TopicPartition]:
        """What may be committed of each partition of which something was read."""
        found = _CLIENT.position(self, _CLIENT.assignment(self))
        return [self._safe(each) for each in found if each.offset >= 0 and _place(each) not in self._new]

    def _safe(self, at: TopicPartition, *, stated: bool = False) -> TopicPartition:
        place = _place(at)
        return _noting(place, *self._inbox.commit(place, at.offset, at.metadata or "", stated=stated))

    def _store(self) -> None:
        """Stores what was given, for librdkafka's automatic commit, which looks every `auto.commit.interval.ms`.

        To store each offset would take longer than to read its record.
        """
        self._store_s = time.monotonic() + _STORE_S
        if offsets := self._delivered():
            try:
                _CLIENT.store_offsets(self, offsets=offsets)
            except KafkaException as exc:  # of partitions that have gone: whoever has them now begins at the commit
                _logger.debug("offsets were not stored: %s", exc)

    def _begin(self, place: Place) -> None:
        """Begins a partition at its first record, and goes by the note of its commit if it begins there."""
        offset = next(iter(self._inbox.entries(place))).offset
        if self._new[place] is None:
            asked = [TopicPartition(*each) for each, commit in self._new.items() if commit is None]
            try:
                self._new |= {_place(each): each for each in self.committed(asked, timeout=_REQUEST_S)}
            except KafkaException as exc:  # without the note records may come again
                _logger.warning("topic %s partition %d: its commit is not known: %s", *place, exc)
        commit = self._new.pop(place)
        noted = commit is not None and 0 <= commit.offset <= offset
        self._inbox.begin(place, offset, commit.metadata if noted and commit is not None else None)

    def _go_back(self) -> None:
        """Lets partitions whose work was interrupted be read again from where nothing is lost."""
        for place, commit in [*self._inbox.torn.items()]:
            at = _noting(place, *commit)
            with suppress(KafkaException):  # the partition has gone: whoever has it now begins at the commit
                if self._stores:
                    _CLIENT.store_offsets(self, offsets=[at])
                _CLIENT.seek(self, at)
            self._inbox.clear(place)
            self._new[place] = at

    # --- assignments --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[..., None] | None = None,
        on_revoke: Callable[..., None] | None = None,
        on_lost: Callable[..., None] | None = None,
    ) -> None:
        """As confluent-kafka's."""

        def assigned(consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
            self._begin_at(partitions)
            if on_assign is not None:
                on_assign(consumer, partitions)

        def gone(own: Callable[..., None] | None) -> Callable[..., None]:
            def called(consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
                if self._commits:
                    self._store()  # librdkafka commits when the partitions go
                try:
                    if own is not None:
                        own(consumer, partitions)
                finally:
                    self._forget(partitions)

            return called

        lost = {} if on_lost is None else {"on_lost": gone(on_lost)}
        super().subscribe(topics, on_assign=assigned, on_revoke=gone(on_revoke), **lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._replace(partitions, super().assign)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        super().incremental_assign(partitions)
        self._begin_at(partitions)

    def unassign(self) -> None:
        """As confluent-kafka's."""
        self._replace([], lambda _: _CLIENT.unassign(self))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        if self._commits:
            self._store()
        super().incremental_unassign(partitions)
        self._forget(partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; the time of incomplete messages stands still."""
        super().pause(partitions)
        self._paused.update(map(_place, partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        super().resume(partitions)
        self._paused.difference_update(map(_place, partitions))

    def _replace(self, partitions: list[TopicPartition], assign: Callable[[list[TopicPartition]], object]) -> None:
        former = _CLIENT.assignment(self)
        if self._commits:
            self._store()
        assign(partitions)
        self._forget(former)
        self._begin_at(partitions)

    def _begin_at(self, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        unknown = {confluent_kafka.OFFSET_INVALID, confluent_kafka.OFFSET_STORED}
        for each in partitions:
            self._new[_place(each)] = None if each.offset in unknown else TopicPartition(*_place(each), each.offset)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for place in map(_place, partitions):
            self._inbox.clear(place)
            self._new.pop(place, None)
            self._paused.discard(place)


class _Log:
    """A consumer that is no member of the group, and reads a partition anywhere; see `app.chunks.blocking.Log`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._consumer = confluent_kafka.Consumer(dict(config))

    def first(self, place: Place) -> int:
        bounds = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_REQUEST_S)
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
                    if error.code() == _END:
                        return
                    if error.fatal() or error.code() > 0:
                        raise KafkaException(error)
                    continue  # librdkafka tells of connections, and tries again
                offset = (message.offset() or 0) + 1
                if offset <= end:
                    yield _record(message)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()


def _until(timeout: float | None) -> float:
    return math.inf if timeout is None or timeout < 0 else time.monotonic() + timeout


def _failure(error: Exception, message: Message) -> Exception:
    """confluent-kafka's error for a record. The reason has its place: deserializers are given the topic alone."""
    reason = error.exception if isinstance(error, ConsumeError) else error
    if not isinstance(reason, SerializationError) or reason.partition is not None:
        return error
    located = reason.at(message.partition() or 0, message.offset() or 0)
    located.__cause__ = reason.__cause__
    if isinstance(error, ConsumeError):
        error.exception = located
        return error
    failed = KeyDeserializationError if reason.field == "key" else ValueDeserializationError
    return failed(exception=located, kafka_message=message)


def _is_true(config: Mapping[str, object], key: str) -> bool:
    return str(config.get(key, True)).lower() != "false"


def _place(of: Any) -> Place:
    """That of a message or a `TopicPartition`."""
    return (of.topic, of.partition) if isinstance(of, TopicPartition) else (of.topic(), of.partition())


def _noting(place: Place, offset: int, note: str) -> TopicPartition:
    """An offset to commit with its note, without the NUL at its end: confluent-kafka writes one itself."""
    return TopicPartition(*place, offset, note.removesuffix("\0"))


def _record(message: Message) -> ReadRecord:
    headers: Any = message.headers() or ()
    offset, timestamp = message.offset() or 0, message.timestamp()[1]
    return ReadRecord(*_place(message), offset, timestamp, message.key(), message.value(), tuple(headers))
