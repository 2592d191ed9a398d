"""confluent-kafka's consumer with whole messages: no commit passes one that is incomplete."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.error import ConsumeError

from app.chunks.allowance import PARALLEL, Allowance
from app.chunks.blocking import Actions, OnDiscarded
from app.chunks.downloads import Downloads
from app.chunks.inbox import Entry, Place
from app.chunks.keys import limits
from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig, restoring
from app.serializers.confluent_messages import END, REQUEST_S, Log, Messages, failure_of, noting, place_of, record_of
from transforms.chunk import is_chunk
from transforms.chunked_message import Counts
from transforms.logger_name import logger_name

_logger = logging.getLogger(logger_name(__name__))
_CLIENT = confluent_kafka.Consumer

_LOOK_S = 1.0  # how often a call that waits looks for messages that have expired
_STORE_S = 0.1
_FETCH_BYTES, _INTERVAL_MS = 52_428_800, 300_000  # librdkafka's defaults
_DONE = object()  # `work` of an entry that is deserialized
# These are of a member of a group, or would be called twice.
_OF_MEMBERS = frozenset(
    {"group.instance.id", "on_commit", "stats_cb", "key.deserializer.builder", "value.deserializer.builder"}
)


class PollingConsumer(confluent_kafka.Consumer):
    """The reading, positions and commits of our `DeserializingConsumer`. For one thread, as confluent-kafka's.

    While nothing is pending, messages pass from librdkafka to the application unchanged: librdkafka knows the
    positions, and headers show which messages are ours. Otherwise they wait in an inbox until a call takes them.

    Args:
        split: the deserializers, the values of the properties of chunks, and librdkafka's properties.
        on_discarded: called with each discarded message.
    """

    def __init__(self, split: ClientConfig[ComposableDeserializer], on_discarded: OnDiscarded) -> None:
        client, values = split.client, split.values
        self._inbox = Messages(limits(values), values["chunk.lookback"])
        self._stores = _is_true(client, "enable.auto.offset.store")
        self._commits = self._stores and _is_true(client, "enable.auto.commit")
        self._store_s = self._fetched_s = 0.0
        # Partitions of which nothing was read yet, each with the commit at which it begins, if known.
        self._new: dict[Place, TopicPartition | None] = {}
        self._paused: set[Place] = set()
        self._empty = True  # the inbox, as far as the calls of `_take` know
        # Deserializers that confluent-kafka built run only within its own `poll`: nothing is downloaded ahead.
        self._builds = any(name.endswith("deserializer.builder") for name in client)
        self._keeps_plain = split.keeps_plain and not self._builds
        own = {key: value for key, value in client.items() if key not in _OF_MEMBERS}
        log = {**own, "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True}
        self._actions = Actions(self._inbox, on_discarded, lambda: Log(log))
        max_bytes = int(str(client.get("fetch.max.bytes", _FETCH_BYTES)))
        interval_ms = int(str(client.get("max.poll.interval.ms", _INTERVAL_MS)))
        self._split = split
        self._downloads = Downloads[Any](self._size, lambda message: restoring(split, record_of(message)))
        self._allowance = partial(Allowance, max_bytes, split.store_timeout_ms, interval_ms)
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
        self._store()
        self._commits = False
        self._actions.close()
        super().close()
        self._downloads.close()

    # --- records ------------------------------------------------------------------------------------------------------

    def deserialize(self, message: Message) -> None:
        """Puts the application's key and value into a message; if it fails, the message is unchanged.

        Raises:
            ConsumeError: confluent-kafka's own.
        """

    def poll(self, timeout: float | None = -1) -> Message | None:
        """As confluent-kafka's; continues to wait, up to the timeout, if it reads only chunks.

        An interrupt (Ctrl-C) while it waits or downloads loses no record: the next call returns it. If the `exception`
        of confluent-kafka's error is a `SerializationError`, it is a `RecordDeserializationError`.

        Raises:
            ConsumeError: the record cannot be deserialized: the next call continues after it; or librdkafka reports an
                error.
        """
        if self._commits and time.monotonic() >= self._store_s:
            self._store()
        if self._empty and (message := _CLIENT.poll(self, 0)) is not None:
            headers = message.headers()
            if message.error() is None and not (self._new and place_of(message) in self._new):
                if not headers and self._keeps_plain:
                    return message
                if not headers or not self._is_ours(headers):
                    return self._deserialized([message])[0]
            self._put([message])
        for found in self._take(1, _until(timeout)):
            if (error := found.error()) is not None:
                raise ConsumeError(error, kafka_message=found)
            return found
        return None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Up to `num_messages`, each as from `poll`: waits until there are as many, or the timeout expires.

        Errors of librdkafka are among them as messages (`message.error()`), as with confluent-kafka's `Consumer`. The
        call returns with fewer messages before one that cannot be deserialized, which the next call raises, before one
        that is discarded or read again, and before a download for which there is no time or memory left: together at
        most `fetch.max.bytes`, and none that may end after `max.poll.interval.ms`. If it raises an error, the next call
        returns the messages that it had.

        Raises:
            ConsumeError: the first record cannot be deserialized: the next call continues after it.
            ValueError: more messages than a million.
        """
        if self._commits and time.monotonic() >= self._store_s:
            self._store()
        until_s = _until(timeout)
        if self._empty:
            # librdkafka itself waits, if that is at most one look, and no message can expire.
            is_short = timeout is not None and 0 <= timeout <= _LOOK_S and not self._inbox.waits
            messages = _CLIENT.consume(self, num_messages, (timeout or 0.0) if is_short else 0.0)
            headers = [*filter(None, map(Message.headers, messages))]
            new = self._new and not self._new.keys().isdisjoint(map(place_of, messages))
            passes = not (new or any(map(Message.error, messages)) or any(map(self._is_ours, headers)))
            if passes and (is_short or len(messages) == num_messages):
                return messages if self._keeps_plain and not headers else self._deserialized(messages)
            self._put(messages)
        return self._take(num_messages, until_s)

    def _is_ours(self, headers: Any) -> bool:
        """Whether these are of a chunk or of a reference."""
        return is_chunk(headers) or any(large.wants(b"", headers) for _, large in self._split.larges)

    def _deserialized(self, messages: list[Message]) -> list[Message]:
        """Deserializes messages that nothing precedes; if one fails, they are delivered through the inbox."""
        for at, message in enumerate(messages):
            try:
                self.deserialize(message)
            except BaseException as error:
                entries = [Entry(each, each.offset() or 0) for each in messages]
                for entry in entries[:at]:
                    entry.work = _DONE
                self._empty = False
                self._inbox.put_back([(place_of(each.record), each) for each in entries])
                if not isinstance(error, Exception):
                    raise
                entries[at].error = failure_of(error, message)
                return self._take(len(messages), 0.0)
        return messages

    def _take(self, most: int, until_s: float) -> list[Message]:
        """The next messages of the inbox. While it waits, all of them remain there: a rebalance may revoke them."""
        given: list[tuple[Place, Entry[Message]]] = []
        allowance, over = self._allowance(), False
        try:
            while True:
                self._look_ahead()
                self._fill(given, most, allowance)
                if over or len(given) >= most or (given and (self._inbox.actions or any(self._upcoming()))):
                    return [entry.record for _, entry in given]
                left = most - len(given)
                if not given:
                    allowance = self._allowance()
                self._inbox.put_back(given)
                given.clear()
                if self._inbox.actions:
                    self._actions.do_first(until_s)
                else:
                    self._wait(left, until_s)
                over = time.monotonic() >= until_s
        except BaseException:
            self._inbox.put_back(given)
            self._go_back()
            raise
        finally:
            self._empty = self._inbox.empty

    def _look_ahead(self) -> None:
        """Continues to read for more downloads, and to stay in the group and notice rebalances."""
        window = [*islice(self._upcoming(), PARALLEL)]
        if len(window) < PARALLEL and any(each.work or self._size(each.record) is not None for each in window):
            self._fetch(PARALLEL - len(window))
        elif window and not self._inbox.actions and time.monotonic() - self._fetched_s > _LOOK_S:
            self._fetch(1)

    def _fill(self, given: list[tuple[Place, Entry[Message]]], most: int, allowance: Allowance) -> None:
        """Takes the next messages out of the inbox, deserialized; raises the error of the first one."""
        places = [each for each in self._inbox.places if each not in self._paused]
        # An error of an earlier call comes first, whatever the other partitions have.
        for place in sorted(places, key=lambda each: self._inbox.first(each).error is None):
            if place in self._new:
                self._begin(place)
            while len(given) < most and (entry := self._inbox.head(place)) is not None:
                if not self._restore(entry, allowance):
                    if entry.error is not None and not given:
                        self._inbox.pop(place)
                        raise entry.error
                    return
                given.append((place, entry))  # first: `put_back` reverts what an interrupt leaves half done
                self._inbox.pop(place)

    def _upcoming(self) -> Iterator[Entry[Message]]:
        """The next entries."""
        places = (each for each in self._inbox.places if each not in self._paused)
        return chain.from_iterable(map(self._inbox.entries, places))

    def _restore(self, entry: Entry[Message], allowance: Allowance) -> bool:
        """Deserializes the next message; False if it has an error, or needs a download that may not start."""
        message = entry.record
        try:
            if entry.error is None and entry.work is not _DONE and message.error() is None:
                if entry.work is None and self._size(message) is None:
                    self.deserialize(message)
                else:
                    others = (each for each in self._upcoming() if each is not entry)
                    restored = self._downloads.restore(chain([entry], others), allowance.takes)
                    if restored is None:
                        return False
                    found, headers = restored
                    message.set_headers(headers)
                    message.set_key(found["key"])
                    message.set_value(found["value"])
                entry.work = _DONE
        except Exception as error:  # noqa: BLE001  # a deserializer may raise any
            entry.error = failure_of(error, message)
        return entry.error is None

    def _size(self, message: Message) -> int | None:
        """The most bytes that are downloaded for a message; None if there is nothing to download."""
        headers: Any = message.headers()
        if not headers or self._builds or is_chunk(headers):
            return None
        return self._split.restored_bytes(record_of(message))

    def _wait(self, most: int, until_s: float) -> None:
        """Waits for messages, and counts the time by which incomplete ones expire."""
        since_s, waits = time.monotonic(), self._inbox.waits
        if self._commits and since_s >= self._store_s:
            self._store()
        if not self._fetch(max(most, PARALLEL)):
            self._fetch(most, min(_LOOK_S, max(0.0, until_s - since_s)))
        if waits:
            places = {place_of(each) for each in _CLIENT.assignment(self)}
            self._inbox.tick(time.monotonic() - since_s, places - self._paused)

    def _fetch(self, most: int, wait_s: float = 0.0) -> bool:
        self._fetched_s = time.monotonic()
        before = _CLIENT.position(self, _CLIENT.assignment(self))
        try:
            messages = _CLIENT.consume(self, most, wait_s)
            self._put(messages)
        except BaseException:  # an interrupt that arrives with messages drops them, and librdkafka is past them
            for was, now in zip(before, _CLIENT.position(self, before), strict=True):
                begins = self._new.get(place_of(was)) or was
                if begins.offset >= 0 and (begins is not was or now.offset != was.offset):
                    self._inbox.interrupted[place_of(was)] = self._inbox.commit(place_of(was), begins.offset)
            self._go_back()
            raise
        return bool(messages)

    def _put(self, messages: Sequence[Message]) -> None:
        try:
            self._empty = False
            for place, found in groupby(messages, _queue_of):
                self._inbox.put(place, found)
        except BaseException:  # no memory, or an interrupt: librdkafka is already past them
            for message in reversed(messages):
                place, offset = _queue_of(message), message.offset() or 0
                self._inbox.interrupted[place] = self._inbox.commit(place, offset)
            self._go_back()
            raise

    # --- positions ----------------------------------------------------------------------------------------------------

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """As confluent-kafka's: the offsets from which the next records, or messages, are delivered.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk.
        """
        found = super().position(partitions)
        for each in found:
            if each.offset >= 0:
                each.offset = self._inbox.position(place_of(each), each.offset)
        return found

    def seek(self, partition: TopicPartition) -> None:
        """As confluent-kafka's. A message whose last chunk is at or after the offset is delivered whole.

        No commit passes a message that spans the offset.
        """
        super().seek(partition)
        place = place_of(partition)
        if partition.offset >= 0:
            self._inbox.move(place, partition.offset)
        else:
            self._inbox.clear(place)
        self._new[place] = TopicPartition(*place, partition.offset)
        self._empty = self._inbox.empty

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
            offsets = [TopicPartition(*place_of(message), (message.offset() or 0) + 1)]
        return [each if each.offset < 0 else self._safe(each, stated=True) for each in offsets or ()]

    def _delivered(self) -> list[TopicPartition]:
        """The offset to commit of each partition of which something was read."""
        found = _CLIENT.position(self, _CLIENT.assignment(self))
        return [self._safe(each) for each in found if each.offset >= 0 and place_of(each) not in self._new]

    def _safe(self, at: TopicPartition, *, stated: bool = False) -> TopicPartition:
        place = place_of(at)
        return noting(place, *self._inbox.commit(place, at.offset, at.metadata or "", stated=stated))

    def _store(self) -> None:
        """Stores the offsets of delivered messages for librdkafka's automatic commit, every `auto.commit.interval.ms`.

        Storing each offset would take longer than reading its record.
        """
        self._store_s = time.monotonic() + _STORE_S
        if self._commits and (offsets := self._delivered()):
            try:
                _CLIENT.store_offsets(self, offsets=offsets)
            except KafkaException as exc:  # of partitions that have gone: their new owners begin at the commit
                _logger.debug("offsets were not stored: %s", exc)

    def _begin(self, place: Place) -> None:
        """Starts a partition at its first record, and applies the note of its commit if it starts there."""
        offset = self._inbox.first(place).offset
        if self._new[place] is None:
            asked = [TopicPartition(*each) for each, commit in self._new.items() if commit is None]
            try:
                self._new |= {place_of(each): each for each in self.committed(asked, timeout=REQUEST_S)}
            except KafkaException as exc:  # without the note records may be delivered again
                _logger.warning("topic %s partition %d: its committed offset is unknown: %s", *place, exc)
        commit = self._new.pop(place)
        if commit is not None and not 0 <= commit.offset <= offset:  # reading did not begin there
            commit = None
        self._inbox.begin(place, offset, None if commit is None else commit.metadata)

    def _go_back(self) -> None:
        """Re-reads partitions whose work was interrupted, from an offset where nothing is lost."""
        for place, commit in [*self._inbox.interrupted.items()]:
            at = noting(place, *commit)
            with suppress(KafkaException):  # the partition has gone: its new owner begins at the commit
                if self._stores and place not in self._new:
                    _CLIENT.store_offsets(self, offsets=[at])
                _CLIENT.seek(self, at)
            self._inbox.clear(place)
            self._new.setdefault(place, at)

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

        def gone(
            own: Callable[..., None] | None, consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]
        ) -> None:
            self._store()  # librdkafka commits when the partitions go
            try:
                if own is not None:
                    own(consumer, partitions)
            finally:
                self._forget(partitions)

        lost = {} if on_lost is None else {"on_lost": partial(gone, on_lost)}
        super().subscribe(topics, on_assign=assigned, on_revoke=partial(gone, on_revoke), **lost)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._change(partial(super().assign, partitions), _CLIENT.assignment(self), partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._change(partial(super().incremental_assign, partitions), (), partitions)

    def unassign(self) -> None:
        """As confluent-kafka's."""
        self._change(super().unassign, _CLIENT.assignment(self))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._change(partial(super().incremental_unassign, partitions), partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; the time of incomplete messages stands still."""
        super().pause(partitions)
        self._paused.update(map(place_of, partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        super().resume(partitions)
        self._paused.difference_update(map(place_of, partitions))

    def _change(
        self, change: Callable[[], object], gone: Iterable[TopicPartition], come: Iterable[TopicPartition] = ()
    ) -> None:
        self._store()
        change()
        self._forget(gone)
        self._begin_at(come)

    def _begin_at(self, partitions: Iterable[TopicPartition]) -> None:
        self._forget(partitions)
        unknown = {confluent_kafka.OFFSET_INVALID, confluent_kafka.OFFSET_STORED}
        for each in partitions:
            self._new[place_of(each)] = None if each.offset in unknown else TopicPartition(*place_of(each), each.offset)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for place in map(place_of, partitions):
            self._inbox.clear(place)
            self._new.pop(place, None)
            self._paused.discard(place)


def _queue_of(message: Message) -> Place:
    error = message.error()
    # An error without an offset blocks no partition.
    return place_of(message) if error is None or error.code() == END else ("", -1)


def _until(timeout: float | None) -> float:
    return math.inf if timeout is None or timeout < 0 else time.monotonic() + timeout


def _is_true(config: Mapping[str, object], key: str) -> bool:
    return str(config.get(key, True)).lower() != "false"
