"""kafka-python's consumer with whole records: its polls, positions, commits and rebalances, over an inbox."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from app.chunks.allowance import Allowance
from app.chunks.blocking import Actions, OnDiscarded
from app.chunks.discarded import warn
from app.chunks.inbox import Place
from app.chunks.keys import CONSUMER_KEYS
from app.kafka.arguments import Arguments
from app.serializers.config import consumer
from app.serializers.kafka_python_callbacks import Listener, Tokens
from app.serializers.kafka_python_records import REQUEST_MS, Log, Records
from transforms.chunked_message import Counts
from transforms.logger_name import logger_name

_logger = logging.getLogger(logger_name(__name__))

_LOOK_S = 1.0  # how often a waiting poll checks for expired messages, if any can expire
_LONG_LOOK_S = 60.0

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


_ARGUMENTS = Arguments(KafkaConsumer.DEFAULT_CONFIG, tokens=Tokens).without("serializer")


class DeserializingConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python has no types
    """A `KafkaConsumer` that delivers whole, deserialized values: plain, from a reference, or from chunks.

    A record that cannot be restored or deserialized keeps its place (KIP-334): the records before it are delivered,
    then `poll`, or the iteration, raises a `SerializationError` with its topic, partition and offset. The next call
    tries again; `seek` to the next offset skips the record.

    A value in chunks is the record of its last chunk, with the whole value and the record's own headers. No commit,
    automatic or not, passes the first chunk of an incomplete message; the commit's metadata notes what was delivered
    behind it, so that a restart does not deliver it again. Chunks that exceed the memory limit are re-read from the
    log, by a second consumer that does not join the group.

    One `poll` downloads at most `fetch.max.bytes`, unless the first payload alone is larger, and starts no download
    that may end after `max.poll.interval.ms`. The next `poll` delivers the rest.

    It commits automatically where kafka-python would (`enable.auto.commit`): every `auto.commit.interval.ms` within
    `poll`, before partitions are revoked, and in `close`. Like kafka-python's, it is for one thread.

    Args:
        config: properties with Kafka's names: the arguments of `KafkaConsumer` with dots, and those of chunks, of the
            deserializers and of their store.
        topics: the topics to subscribe to.
        on_discarded: called with each message that cannot be reassembled. If it raises an error, `poll` raises it, the
            next call tries again, and no commit passes the message. By default a warning is logged.
        options: arguments in place of properties, for values that are not strings: `ssl_context`,
            `partition_assignment_strategy`.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong.
    """

    # A record goes from kafka-python to the inbox, where chunks become messages, from there restored to `_ready`, and
    # to the application. A plain one, before which nothing waits, is ready unchanged.

    def __init__(
        self, config: Mapping[str, object], *topics: str, on_discarded: OnDiscarded = warn, **options: object
    ) -> None:
        whole = _ARGUMENTS.merged(config, options)
        deserializers = consumer(whole, _ARGUMENTS.keys(), CONSUMER_KEYS)
        with deserializers.closed_on_error():
            arguments = _ARGUMENTS.read(deserializers.client)
            self._inbox = Records(deserializers)
            super().__init__(**{**arguments, "enable_auto_commit": False})
        self._ready = self._inbox.ready
        self._actions = Actions(self._inbox, on_discarded, lambda: Log(arguments))
        self._iterated: deque[ConsumerRecord] = deque()  # those of one partition, while an iteration returns them
        # What kafka-python returns next; None after a seek to the beginning or the end.
        self._next: dict[TopicPartition, int | None] = {}
        self._polled_s = -math.inf
        self._polling = False  # kafka-python's positions may be behind records that are not here yet
        self._ended = False
        self._commits = arguments.get("enable_auto_commit", True) and arguments.get("group_id") is not None
        bounds = self.config["fetch_max_bytes"], deserializers.store_timeout_ms, self.config["max_poll_interval_ms"]
        self._allowance = partial(Allowance, *bounds)
        self._commit_every_s = self.config["auto_commit_interval_ms"] / 1000
        self._commit_s = time.monotonic() + self._commit_every_s
        if topics:
            self.subscribe(topics)

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._inbox.counts

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._inbox.stats()

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:  # noqa: FBT001, FBT002  # as there
        """As `KafkaConsumer.close`; then closes the deserializers and their stores."""
        if self._ended:
            return
        self._ended = True
        try:
            self._actions.close()
            if autocommit and self._commits:
                self.commit(timeout_ms=self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms)
        except KafkaError as exc:
            _logger.warning("the offsets were not committed when the consumer was closed: %s", exc)
        finally:
            self._commits = False
            self._iterated = deque()
            self._ready.clear()
            try:
                super().close(autocommit, timeout_ms)
            finally:
                self._inbox.close()

    # --- records ------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `KafkaConsumer.poll`; continues to wait, up to the timeout, if it reads only chunks.

        Raises:
            SerializationError: a record cannot be restored; see the class.
        """
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        left = self.config["max_poll_records"] if max_records is None else max_records
        self._fill(time.monotonic() + timeout_ms / 1000, left)
        given: dict[TopicPartition, list[ConsumerRecord]] = {}
        rest: dict[TopicPartition, deque[ConsumerRecord]] = {}
        for tp in self._fetchable(self._ready):
            if left:
                given[tp] = list(itertools.islice(self._ready[tp], left))
                rest[tp] = deque(itertools.islice(self._ready[tp], left, None))
                left -= len(given[tp])
        self._ready.update(rest)  # all of them, or none after an interrupt
        return given

    def __next__(self) -> ConsumerRecord:
        """The next record; ends when none arrives for `consumer_timeout_ms`, or the consumer is closed.

        Raises:
            SerializationError: as `poll`.
        """
        if self._iterated:
            return self._iterated.popleft()
        wait_ms = self.config["consumer_timeout_ms"]
        until_s = math.inf if wait_ms < 0 else time.monotonic() + wait_ms / 1000
        while not self._ended:
            self._fill(until_s, self.config["max_poll_records"], iterates=True)
            for tp in self._fetchable(self._ready):
                self._iterated = self._ready[tp]
                return self._iterated.popleft()
            if time.monotonic() >= until_s:
                break
        raise StopIteration

    def _fetchable(self, partitions: Iterable[Place]) -> list[Any]:
        wanted = self.assignment() - self.paused()
        return [tp for tp in partitions if tp in wanted]

    def _fill(self, until_s: float, most: int, *, iterates: bool = False) -> None:
        """Ensures that there are records to return, if any arrive until then.

        Raises:
            SerializationError: the next record of a partition cannot be restored, and there are no others to return.
        """
        self._forget_gone()
        self._iterated = deque()
        for tp in [tp for tp, records in self._ready.items() if not records]:
            del self._ready[tp]
        self._inbox.raise_error(self._fetchable(self._inbox.places))
        if (self._ready or self._inbox.places) and time.monotonic() - self._polled_s > _LOOK_S:
            self._poll(0.0, most)  # to stay in the group, and for the other partitions
        allowance, waited = self._allowance(), False
        while True:
            try:
                self._inbox.restore(self._fetchable(self._inbox.places), most, allowance.takes, hastens=iterates)
            except BaseException:
                self._go_back()
                raise
            if self._fetchable(self._ready):
                return
            self._inbox.raise_error(self._fetchable(self._inbox.places))
            if waited and time.monotonic() >= until_s:
                return
            waited = True
            if time.monotonic() >= self._commit_s:
                self._commit_now()
                self._commit_s = time.monotonic() + self._commit_every_s
            if self._inbox.actions:
                self._actions.do_first(until_s)
            else:
                self._poll(until_s, most)

    # --- polls --------------------------------------------------------------------------------------------------------

    def _poll(self, until_s: float, most: int) -> None:
        """Waits for records until then, or until there is something else to do.

        Not for a shorter time: a poll of kafka-python 3.0.12 that ends while it joins may leave it outside for minutes
        (tried: one new group in fifty, with 100 ms).
        """
        self._polled_s, waits = time.monotonic(), self._inbox.waits
        until_s = min(until_s, self._polled_s + (_LOOK_S if waits else _LONG_LOOK_S))
        if self._commits and self.assignment():
            until_s = min(until_s, self._commit_s)
        self._polling, found = True, dict[TopicPartition, list[ConsumerRecord]]()
        try:
            found = super().poll(max(0.0, until_s - self._polled_s) * 1000, most)
            self._put(found)
        except KafkaError:
            raise
        except BaseException:  # an interrupt between the two
            for tp in self.assignment():
                offset = found[tp][0].offset if self._next.get(tp) is None and tp in found else self._next.get(tp)
                if offset is not None:
                    super().seek(tp, offset)
            raise
        finally:
            self._polling = False
        if waits:
            self._inbox.tick(time.monotonic() - self._polled_s, self._next.keys() - self.paused())

    def _put(self, found: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Puts polled records into the inbox. Assignments have changed before: a poll ends with its records."""
        self._forget_gone()
        for tp, records in found.items():
            if records[0].offset < (self._next.get(tp) or 0):
                self._forget(tp)  # it was assigned elsewhere, and begins at its commit
            if not self._inbox.has_begun(tp):
                self._begin(tp, records[0].offset)
        for tp in [tp for tp in found if tp in self._ready or self._inbox.entries(tp)]:
            super().seek(tp, found.pop(tp)[0].offset)  # that is enough: the poll was for the group, and for others
        self._inbox.add(found)
        self._next.update({tp: records[-1].offset + 1 for tp, records in found.items()})

    def _begin(self, tp: TopicPartition, offset: int) -> None:
        """Reading starts, at the commit unless the application has sought. Without its note, records may repeat."""
        committed = None
        if tp not in self._next and self.config["group_id"] is not None:
            try:
                committed = self.committed(tp, metadata=True, timeout_ms=REQUEST_MS)
            except KafkaError as exc:
                _logger.warning("topic %s partition %d: its committed offset is unknown: %s", *tp, exc)
        if committed is not None and not 0 <= committed.offset <= offset:  # reading did not begin there
            committed = None
        self._inbox.begin(tp, offset, None if committed is None else committed.metadata)
        self._next[tp] = offset

    # --- positions ----------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """The offset from which the next record is delivered.

        If an incomplete message begins more than `chunk.lookback` before it, that is the offset of its first chunk.
        """
        found = super().position(partition, timeout_ms)
        return None if found is None else self._inbox.position(partition, found)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """As kafka-python's. A message whose last chunk is at or after the offset is delivered whole.

        No commit passes a message that spans the offset.
        """
        super().seek(partition, offset)
        self._restart(partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """As kafka-python's."""
        super().seek_to_beginning(*partitions)
        self._forget_position(partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """As kafka-python's."""
        super().seek_to_end(*partitions)
        self._forget_position(partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """As kafka-python's."""
        super().pause(*partitions)
        self._iterated = deque()

    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """As kafka-python's; no offset passes the first chunk of an incomplete message."""
        super().commit(self._safe_offsets(offsets), timeout_ms)

    def commit_async(self, offsets: Offsets | None = None, callback: Callable[..., object] | None = None) -> Any:
        """As kafka-python's; no offset passes the first chunk of an incomplete message."""
        return super().commit_async(self._safe_offsets(offsets), callback)

    def _safe_offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is not None:
            return {tp: self._safe(tp, at.offset, at.metadata or "", stated=True) for tp, at in offsets.items()}
        if (
            not self._polling
        ):  # otherwise a listener or a signal handler commits, and kafka-python's positions do not help
            for tp in self.assignment():
                # `poll` raises the first; the other occurs where kafka-python's thread revokes the partition.
                with suppress(KafkaError, KeyError):
                    # It may be after something that is not a record, such as the marker of a transaction.
                    offset = super().position(tp, timeout_ms=0)
                    if offset is not None:
                        if not self._inbox.has_begun(tp):
                            self._begin(tp, offset)  # or this commit would erase what the last one notes
                        self._next[tp] = offset
        return self._offsets(self.assignment())

    def _offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: self._safe(tp, at) for tp in partitions if (at := self._next.get(tp)) is not None}

    def _safe(self, tp: TopicPartition, offset: int, metadata: str = "", *, stated: bool = False) -> OffsetAndMetadata:
        return OffsetAndMetadata(*self._inbox.commit(tp, offset, metadata, stated=stated), -1)

    def _commit_now(self) -> None:
        if self._commits and self.assignment():
            super().commit_async(self._safe_offsets(None), _warn_of_error)

    # --- assignments --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None = None,
    ) -> None:
        """As kafka-python's."""
        super().subscribe(topics, pattern, Listener(self._forget_gone, self._leave, listener))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """As kafka-python's."""
        self._commit_now()
        super().assign(partitions)
        self._forget_gone()

    def unsubscribe(self) -> None:
        """As kafka-python's."""
        self._commit_now()
        super().unsubscribe()
        self._forget_gone()

    async def _leave(self, partitions: Collection[TopicPartition]) -> None:
        """Commits before partitions are revoked, on kafka-python's thread within a poll: delivered records are done."""
        if self._commits and (safe := self._offsets(partitions)):
            try:
                await super().commit_async(safe)
            except Exception as exc:  # noqa: BLE001  # the rebalance has to continue, whatever it was
                _logger.warning("the offsets were not committed before a rebalance; records may repeat: %s", exc)

    def _forget_gone(self, lost: Iterable[TopicPartition] = ()) -> None:
        for tp in [*lost, *{*self._next} - self.assignment()]:
            self._forget(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._inbox.clear(tp)
        self._next.pop(tp, None)
        self._iterated = deque()

    def _forget_position(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions or self.assignment():
            self._forget(tp)
            self._next[tp] = None

    def _restart(self, tp: TopicPartition, offset: int, metadata: str | None = None) -> None:
        self._inbox.move(tp, offset)
        self._inbox.begin(tp, offset, metadata)
        self._next[tp] = offset
        self._iterated = deque()

    def _go_back(self) -> None:
        """Re-reads partitions whose work was interrupted."""
        for place, (offset, metadata) in [*self._inbox.interrupted.items()]:
            tp = TopicPartition(*place)
            with suppress(ValueError):  # it was revoked
                super().seek(tp, offset)
            self._restart(tp, offset, metadata)


def _warn_of_error(_: object, response: object) -> None:
    if isinstance(response, Exception):
        _logger.warning("an automatic commit failed and will be retried: %s", response)
