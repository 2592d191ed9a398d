"""confluent-kafka's consumer with chunks: `poll` gives whole messages, and no commit passes an incomplete one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import confluent_kafka
from confluent_kafka import KafkaException, Message, TopicPartition

from app.chunks.polled import OnDiscarded, Place, Polled, Rereads
from app.kafka.source_batch import ReadRecord
from transforms.assembly import Assembled, Counts, Reread
from transforms.chunk import is_chunk
from transforms.logger_name import logger_name
from transforms.record import Header

__all__ = ["PollingConsumer"]

_logger = logging.getLogger(logger_name(__name__))

_LOOK_S = 1.0  # how often a poll that waits looks for messages that have expired
_STEP_S = 0.2
_STORE_S = 0.1
_END: int = confluent_kafka.KafkaError._PARTITION_EOF  # noqa: SLF001  # a public name, as librdkafka's are written
_REQUEST_S = 30.0
# These are of a member of a group, or would be called twice.
_OF_MEMBERS = frozenset(
    {"group.instance.id", "on_commit", "stats_cb", "key.deserializer.builder", "value.deserializer.builder"}
)


class PollingConsumer(confluent_kafka.Consumer):
    """The `poll`, positions and commits of our `DeserializingConsumer`: messages are whole, and as Kafka has them.

    `begin` comes before the constructor of confluent-kafka's own class. For one thread, as confluent-kafka's.
    """

    def begin(
        self, polled: Polled, on_discarded: OnDiscarded, config: Mapping[str, Any], *, stores: bool
    ) -> dict[str, Any]:
        """Takes what it needs, and returns the configuration for confluent-kafka.

        Args:
            polled: the incomplete messages.
            on_discarded: called with each discarded message.
            config: of the client.
            stores: whether `poll` stores the offset of what it gives (`enable.auto.offset.store`).
        """
        self._polled, self._on_discarded, self._stores = polled, on_discarded, stores
        self._positions: dict[Place, int] = {}  # behind the last record that was polled
        self._sought: set[Place] = set()  # whose position the application has set
        self._paused: set[Place] = set()
        self._unstored: set[Place] = set()
        self._store_s = 0.0
        self._ready: Message | None = None  # what `poll` gives next
        self._last: Message | None = None  # the last chunk of `polled.again`
        self._given_out: Message | None = None  # what `poll` gave last, until the application has it
        self._own_headers: list[Header] | None = None  # of that message
        self._notes: dict[Place, TopicPartition] = {}  # where reading goes on, with the metadata of a commit
        own = {key: value for key, value in config.items() if key not in _OF_MEMBERS}
        log_config = {
            **own,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._rereads = Rereads(polled, lambda: _Log(log_config))
        # librdkafka would store the offset of each chunk.
        return {**config, "enable.auto.offset.store": False}

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._polled.counts

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._polled.stats()

    def close(self) -> None:
        """As confluent-kafka's."""
        self._store_all()
        self._rereads.close()
        super().close()

    # --- records ------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """As confluent-kafka's; goes on waiting, up to the time-out, if it reads only chunks."""
        until_s = math.inf if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            self._advance(until_s)
            if self._ready is not None and not self._polled.discarded:
                self._given_out, self._ready = self._ready, None
                self._own_headers = _copied(self._given_out)
                return self._given_out
            self._store_in_time()  # also where a call waits for ever
            if time.monotonic() >= until_s:
                return None

    def taken(self) -> None:
        """Takes in that the application has what `poll` gave, or the error for it: its offset may be stored."""
        message, self._given_out = self._given_out, None
        if message is not None and message.error() is None and self._stores:
            self._unstored.add(_place(message))
            self._store_in_time()

    def restore(self) -> None:
        """Gives what `poll` gave the headers that it has in Kafka: a deserializer has removed those of a reference."""
        if self._given_out is not None and self._own_headers is not None:
            self._given_out.set_headers(cast("Any", self._own_headers))  # its type wants a list of wider tuples

    def give_back(self) -> None:
        """Takes in that the application does not have what `poll` gave: the next call gives it."""
        self.restore()
        self._ready, self._given_out = self._given_out, None

    def _advance(self, until_s: float) -> None:
        """One step: discarded messages go first, then what is to be read again, then the next record."""
        polled = self._polled
        if polled.discarded:
            place, discarded = polled.discarded.head
            if isinstance(discarded, Reread):
                self._read_again(discarded, until_s)
                return
            self._on_discarded(discarded)  # if it raises an error, the next call tries again
            if polled.discarded and polled.discarded.head[1] is discarded:  # the callback may have sought
                polled.discarded.drop_head()
            if self._stores:
                self._unstored.add(place)
        elif polled.again is not None:
            self._read_again(polled.again, until_s)
        elif self._ready is None:
            self._poll(min(_LOOK_S, max(0.0, until_s - time.monotonic())))

    def _poll(self, wait_s: float) -> None:
        since_s, counts = time.monotonic(), self._polled.waits
        message = super().poll(wait_s)
        if counts:
            self._polled.count(self._positions.keys() - self._paused, time.monotonic() - since_s)
        if message is None or message.error() is not None:
            self._ready = message
            return
        place, offset = _place(message), message.offset() or 0
        begins = offset
        try:
            if place not in self._positions:
                self._resume(place, offset)
            if not is_chunk(_headers(message)):
                self._ready = None if self._polled.delivered(place, offset) else message
            else:
                begins, _ = self._polled.safe(place, offset)
                whole = self._polled.take(_record(message))
                if whole is not None:
                    self._ready = _whole(message, whole)
                elif self._polled.again is not None:
                    self._last = message
            self._positions[place] = offset + 1
        except BaseException:  # an interrupt, or no memory: the message comes again, with the chunks before it
            self._go_back(place, offset, begins)
            raise

    def _go_back(self, place: Place, offset: int, begins: int) -> None:
        """Reads on at a record that was not taken, or at the first of the chunks that `begins` is the offset of."""
        safe, metadata = self._polled.safe(place, offset, before=begins)
        told = place in self._sought and place not in self._positions
        if self._stores and place in self._positions:
            with suppress(KafkaException):  # the partition has gone: whoever has it now begins at the commit
                super().store_offsets(offsets=[_noting(place, safe, metadata)])
        paused = place in self._paused
        self._forget([TopicPartition(*place)])
        if paused:
            self._paused.add(place)
        if told:
            self._sought.add(place)
        else:
            self._notes[place] = _noting(place, safe, metadata)
        with suppress(KafkaException):  # the same
            super().seek(TopicPartition(*place, safe))

    def _read_again(self, reread: Reread, until_s: float) -> None:
        """Reads on until the time is over."""
        done = self._rereads.read(reread, until_s)
        if done is None:
            return
        outcome, beginning = done
        if reread is self._polled.again and isinstance(outcome, Assembled) and self._last is not None:
            self._ready = _whole(self._last, outcome)
        self._polled.resolve(reread, outcome, beginning)

    # --- positions ----------------------------------------------------------------------------------------------------

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """As confluent-kafka's: the offsets from which the next records, or messages, are given.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk.
        """
        found = super().position(partitions)
        for each in found:
            if each.offset >= 0:
                each.offset = self._polled.position((each.topic, each.partition), self._given(each, each.offset))
        return found

    def seek(self, partition: TopicPartition) -> None:
        """As confluent-kafka's. A message whose last chunk is at the offset, or behind it, comes whole.

        No commit passes one that began before the offset and has not ended before it.
        """
        self._forget([partition], moved=partition.offset >= 0)
        self._sought.add((partition.topic, partition.partition))
        super().seek(partition)

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002  # confluent-kafka's signature
    ) -> Any:
        """As confluent-kafka's; no offset passes the first chunk of an incomplete message."""
        if message is None and offsets is None and self._stores:
            offsets = [TopicPartition(*place, offset) for place, offset in self._positions.items()]
        told = self._told(message, offsets)
        # Without offsets, librdkafka commits what is stored, and it is an error if that has not changed.
        commit: Callable[..., Any] = super().commit
        return commit(asynchronous=asynchronous) if not told else commit(offsets=told, asynchronous=asynchronous)

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """As confluent-kafka's; no offset passes the first chunk of an incomplete message."""
        super().store_offsets(offsets=self._told(message, offsets) or [])

    def _told(self, message: Message | None, offsets: list[TopicPartition] | None) -> list[TopicPartition] | None:
        if message is not None:
            offsets = [TopicPartition(*_place(message), (message.offset() or 0) + 1)]
        return None if offsets is None else [self._safe(each) for each in offsets]

    def _safe(self, told: TopicPartition) -> TopicPartition:
        if told.offset < 0:
            return told
        place = (told.topic, told.partition)
        offset, metadata = self._polled.safe(place, self._given(told, told.offset), told.metadata or "")
        return _noting(place, offset, metadata)

    def _given(self, of: TopicPartition, offset: int) -> int:
        """`offset`, or that of a message of the partition that is ready and was not given yet."""
        ready = self._ready
        if ready is None or ready.error() is not None or _place(ready) != (of.topic, of.partition):
            return offset
        return min(offset, ready.offset() or 0)

    def _store_in_time(self) -> None:
        if self._unstored and time.monotonic() >= self._store_s:
            self._store_all()

    def _store_all(self) -> None:
        """Stores the offsets of what was given since the last time, for librdkafka's automatic commit.

        That looks every `auto.commit.interval.ms`; to store each offset would take longer than to read its record.
        """
        places, self._unstored = self._unstored & self._positions.keys(), set()
        if places:
            offsets = [self._safe(TopicPartition(*place, self._positions[place])) for place in places]
            try:
                super().store_offsets(offsets=offsets)
            except KafkaException as exc:  # of partitions that have gone: whoever has them now begins at the commit
                _logger.debug("offsets were not stored: %s", exc)
        self._store_s = time.monotonic() + _STORE_S

    def _resume(self, place: Place, offset: int) -> None:
        """Takes in what the commit notes at which a partition begins; without it records may come again."""
        committed = self._notes.pop(place, None)
        if committed is None and place not in self._sought:
            try:
                (committed,) = self.committed([TopicPartition(*place)], timeout=_REQUEST_S)
            except KafkaException as exc:
                _logger.warning("topic %s partition %d: its commit is not known: %s", *place, exc)
        self._positions[place] = offset
        self._polled.begin(place, offset)
        if committed is not None and 0 <= committed.offset <= offset:  # else reading did not begin there
            self._polled.resume(place, committed.metadata)

    # --- assignments --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: Callable[..., None] | None = None,
        on_revoke: Callable[..., None] | None = None,
        on_lost: Callable[..., None] | None = None,
    ) -> None:
        """As confluent-kafka's."""
        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}

        def noted(name: str) -> Callable[[confluent_kafka.Consumer, list[TopicPartition]], None]:
            own = callbacks.get(name)

            def called(consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
                if name == "on_assign":
                    self._forget(partitions)
                else:
                    self._store_all()  # librdkafka commits when the partitions go
                try:
                    if own is not None:
                        own(consumer, partitions)
                finally:
                    if name != "on_assign":
                        self._forget(partitions)

            return called

        names = ["on_assign", "on_revoke", *(["on_lost"] if on_lost is not None else [])]
        super().subscribe(topics, **{name: noted(name) for name in names})

    def assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._store_all()
        self._forget(_partitions(self._positions))
        self._begin_at(partitions)
        super().assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._begin_at(partitions)
        super().incremental_assign(partitions)

    def unassign(self) -> None:
        """As confluent-kafka's."""
        self._store_all()
        self._forget(_partitions(self._positions))
        super().unassign()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._store_all()
        self._forget(partitions)
        super().incremental_unassign(partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's; the time of incomplete messages stands still."""
        self._paused |= {(each.topic, each.partition) for each in partitions}
        super().pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """As confluent-kafka's."""
        self._paused -= {(each.topic, each.partition) for each in partitions}
        super().resume(partitions)

    def _begin_at(self, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._sought |= {(each.topic, each.partition) for each in partitions if _is_told(each.offset)}

    def _forget(self, partitions: Iterable[TopicPartition], *, moved: bool = False) -> None:
        """Forgets partitions; of those whose position is set (`moved`), not the messages that go on behind that."""
        for each in partitions:
            place = (each.topic, each.partition)
            if moved:
                self._polled.move(place, each.offset)
            else:
                self._polled.clear(place)
            self._positions.pop(place, None)
            self._sought.discard(place)
            self._notes.pop(place, None)
            self._paused.discard(place)
            self._rereads.forget(place)
            if self._ready is not None and self._ready.error() is None and _place(self._ready) == place:
                self._ready = None


class _Log:
    """A consumer that is no member of the group, and reads a partition anywhere; see `app.chunks.polled.Seeking`."""

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


def _copied(message: Message) -> list[Header] | None:
    """The headers of a message, in a list of their own; None if it has none."""
    return list(_headers(message)) or None if message.error() is None else None


def _place(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0


def _partitions(places: Iterable[Place]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]


def _noting(place: Place, offset: int, note: str) -> TopicPartition:
    """An offset to commit with its note, without the NUL at its end: confluent-kafka writes one itself."""
    return TopicPartition(*place, offset, note.removesuffix("\0"))


def _is_told(offset: int) -> bool:
    return offset not in {confluent_kafka.OFFSET_INVALID, confluent_kafka.OFFSET_STORED}


def _headers(message: Message) -> tuple[Header, ...]:
    headers: Any = message.headers()  # librdkafka gives a list of pairs
    return tuple(headers or ())


def _record(message: Message) -> ReadRecord:
    place, timestamp = _place(message), message.timestamp()[1]
    key, value = message.key(), message.value()
    return ReadRecord(*place, message.offset() or 0, timestamp, key, value, _headers(message))


def _whole(last: Message, message: Assembled) -> Message:
    """The message in the place of its last chunk."""
    last.set_value(message.record.value)
    last.set_headers(list(message.record.headers))
    return last
