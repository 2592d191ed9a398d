"""kafka-python's consumer with chunks: `poll` gives whole records, and no commit passes an incomplete one."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from app.chunks.polled import OnDiscarded, Polled, Rereads
from app.serializers.kafka_python_log import Log, place_of, record_of
from app.serializers.kafka_python_rebalances import Listener, Rebalances
from transforms.assembly import Assembled, Counts, Reread
from transforms.chunk import is_chunk
from transforms.errors import SerializationError
from transforms.logger_name import logger_name

__all__ = ["PollingConsumer"]

_logger = logging.getLogger(logger_name(__name__))

_LOOK_S = 1.0  # how often a poll that waits looks for expired messages, where any can expire
_LONG_LOOK_S = 60.0
_REQUEST_MS = 30_000
# These are of a member of a group, or would be called twice.
_OF_MEMBERS = frozenset(
    {
        "group_id",
        "group_instance_id",
        "metric_reporters",
        "partition_assignment_strategy",
        "default_offset_commit_callback",
    }
)


class PollingConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python has no types
    """The `poll`, the positions and the commits of our `DeserializingConsumer`: records are whole.

    It commits by itself where kafka-python would (`enable_auto_commit`): each `auto_commit_interval_ms` within `poll`,
    before its partitions go, and when it is closed. For one thread, as kafka-python's.

    Args:
        polled: the incomplete messages.
        on_discarded: called with each discarded message.
        topics: the topics to subscribe to.
        arguments: of kafka-python's own class.
    """

    def __init__(self, polled: Polled, on_discarded: OnDiscarded, *topics: str, **arguments: Any) -> None:
        self._polled, self._on_discarded = polled, on_discarded
        self._buffer: dict[TopicPartition, deque[ConsumerRecord]] = {}  # restored, and not given yet
        # The record that a position is at, if its chunk is taken already: None if it completed nothing.
        self._taken: dict[TopicPartition, tuple[int, ConsumerRecord | None]] = {}
        self._failures: dict[TopicPartition, SerializationError] = {}
        self._last: tuple[TopicPartition, ConsumerRecord] | None = None  # the last chunk of `polled.again`
        self._next: dict[TopicPartition, int] = {}  # behind the last record that was taken
        self._begun: set[TopicPartition] = set()  # of which a record came
        self._moved: dict[TopicPartition, int] = {}  # where the application has set a position, until it is taken in
        self._given_now: set[TopicPartition] = set()  # of which the last call gave something
        # kafka-python's own thread, which calls listeners, changes the first, and commits the second.
        self._rebalances = Rebalances(self.assignment)
        self._safe: Mapping[TopicPartition, OffsetAndMetadata] = {}
        self._owner = threading.get_ident()
        self._untaken = False  # positions may be behind records that `_take_all` has not come to
        self._ended = False
        wanted = arguments.get("enable_auto_commit", KafkaConsumer.DEFAULT_CONFIG["enable_auto_commit"])
        self._commits = bool(wanted) and arguments.get("group_id") is not None
        interval_ms = arguments.get("auto_commit_interval_ms", KafkaConsumer.DEFAULT_CONFIG["auto_commit_interval_ms"])
        self._commit_every_s = interval_ms / 1000
        self._commit_s = time.monotonic() + self._commit_every_s
        own = {name: value for name, value in arguments.items() if name not in _OF_MEMBERS}
        log_arguments = {**own, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        self._rereads = Rereads(polled, lambda: Log(log_arguments))
        super().__init__(**{**arguments, "enable_auto_commit": False})
        if topics:
            self.subscribe(topics)

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._polled.counts

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._polled.stats()

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:  # noqa: FBT001, FBT002  # as there
        """As `KafkaConsumer.close`."""
        if self._ended:
            return
        self._ended = True
        try:
            self._rereads.close()
            if autocommit and self._commits:
                self.commit(timeout_ms=self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms)
        except KafkaError as exc:
            _logger.warning("the offsets were not committed when the consumer was closed: %s", exc)
        finally:
            self._commits = False
            super().close(autocommit, timeout_ms)

    # --- records ------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `KafkaConsumer.poll`; goes on waiting, up to the time-out, if it reads only chunks.

        Raises:
            SerializationError: a record cannot be restored; see `DeserializingConsumer`.
        """
        if timeout_ms < 0:
            raise ValueError("Timeout must not be negative")
        self._fill(time.monotonic() + timeout_ms / 1000, max_records)
        left = self.config["max_poll_records"] if max_records is None else max_records
        given: dict[TopicPartition, list[ConsumerRecord]] = {}
        for tp in self._fetchable(self._buffer):
            if left:
                given[tp] = self._out_of_buffer(tp, left)
                left -= len(given[tp])
        return given

    def __iter__(self) -> PollingConsumer:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; ends when none came for `consumer_timeout_ms`, or the consumer is closed.

        Raises:
            SerializationError: as `poll`.
        """
        wait_ms = self.config["consumer_timeout_ms"]
        until_s = math.inf if wait_ms < 0 else time.monotonic() + wait_ms / 1000
        while not self._ended:
            self._fill(until_s, None)
            for tp in self._fetchable(self._buffer):
                return self._out_of_buffer(tp, 1)[0]
            if time.monotonic() >= until_s:
                break
        raise StopIteration

    def _out_of_buffer(self, tp: TopicPartition, most: int) -> list[ConsumerRecord]:
        """The next records that are given; they are committed, where that is automatic, after the next call begins."""
        records = self._buffer[tp]
        given = list(itertools.islice(records, most))
        self._given_now.add(tp)
        if len(given) == len(records):
            del self._buffer[tp]
        else:
            self._buffer[tp] = deque(itertools.islice(records, most, None))
        return given

    def _fetchable(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = self.assignment() - self.paused()
        return [tp for tp in partitions if tp in wanted]

    def _fill(self, until_s: float, max_records: int | None) -> None:
        """Sees to it that there are records to give, if any come until then.

        Raises:
            SerializationError: the next record of a partition cannot be restored, and no others are there to give.
        """
        self._owner = threading.get_ident()
        self._drop_gone()
        self._note(self._given_now)
        self._given_now.clear()
        while not self._fetchable(self._buffer):
            for tp in self._fetchable(self._failures):
                raise self._failures.pop(tp)
            self._commit_in_time()
            if self._advance(until_s):
                try:
                    self._take_all(self._polled_records(self._wait_s(until_s), max_records))
                except KafkaError:
                    raise
                except BaseException:  # an interrupt between the two
                    self._seek_back()
                    raise
            if time.monotonic() >= until_s and not self._fetchable(self._failures):
                return

    def _seek_back(self) -> None:
        """Lets the next call begin behind what was taken."""
        for tp in self.assignment() & self._next.keys():
            with contextlib.suppress(ValueError):
                super().seek(tp, self._next[tp])

    def _wait_s(self, until_s: float) -> float:
        """How long a poll may wait: until then, or until there is something else to look after.

        No shorter: a poll of kafka-python 3.0.12 whose time is over while it joins may leave it outside for minutes
        (tried: one new group in fifty, with 100 ms).
        """
        now_s = time.monotonic()
        waits_s = [until_s - now_s, _LOOK_S if self._polled.waits else _LONG_LOOK_S]
        if self._commits and self.assignment():
            waits_s.append(self._commit_s - now_s)
        return max(0.0, min(waits_s))

    def _advance(self, until_s: float) -> bool:
        """One step: discarded messages go first, then what is to be read again. Whether there is neither."""
        polled = self._polled
        if polled.discarded:
            place, discarded = polled.discarded.head
            if isinstance(discarded, Reread):
                self._read_again(discarded, until_s)
                return False
            self._on_discarded(discarded)  # if it raises an error, the next call tries again
            if polled.discarded and polled.discarded.head[1] is discarded:  # the callback may have sought
                polled.discarded.drop_head()
            self._note([TopicPartition(*place)])
            return False
        if polled.again is not None:
            self._read_again(polled.again, until_s)
            return False
        return True

    def _polled_records(self, wait_s: float, max_records: int | None) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        since_s, counts, self._untaken = time.monotonic(), self._polled.waits, True
        found: Mapping[TopicPartition, list[ConsumerRecord]] = super().poll(wait_s * 1000, max_records)
        gone = self._drop_gone()
        if gone:
            found = {tp: records for tp, records in found.items() if tp not in gone or self._is_behind(tp, records)}
        if counts:
            places = [place_of(tp) for tp in self._begun - self.paused()]
            self._polled.count(places, time.monotonic() - since_s)
        return found

    def _is_behind(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> bool:
        """Whether these records were polled since a partition has come, or was sought: its position is behind them.

        And behind the marks of transactions and what compaction has removed, if these follow.
        """
        with contextlib.suppress(KafkaError, KeyError):
            offset = super().position(tp, timeout_ms=0)
            return offset is not None and bool(offset > records[-1].offset)
        return False

    def _take_all(self, found: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Fills the buffer; the next call begins with the first record of each partition that is not in it."""
        left = {tp: deque(records) for tp, records in found.items()}
        takes = self._allowance()
        try:
            for tp, records in left.items():
                while records and not self._blocked() and self._take(tp, records[0], takes):
                    self._next[tp] = records.popleft().offset + 1
        except _TornError as torn:  # an interrupt within the work on a chunk: the partition is read again
            left[torn.partition].clear()
            raise torn.cause from None
        finally:  # also after an interrupt
            for tp, records in left.items():
                if records:
                    with contextlib.suppress(ValueError):  # it has gone meanwhile
                        super().seek(tp, records[0].offset)
            self._untaken = False

    def _blocked(self) -> bool:
        """Whether something has to be done before the next record."""
        return self._polled.again is not None or bool(self._polled.discarded)

    def _take(self, tp: TopicPartition, record: ConsumerRecord, takes: Callable[[int], bool]) -> bool:
        """Takes the next record of a partition; False if it has to wait, or cannot be restored."""
        if record.offset < self._next.get(tp, 0):
            self._forget([tp])  # the partition was elsewhere meanwhile, and begins at its commit
        offset, raw = self._taken.get(tp, (-1, None))
        if offset != record.offset:
            try:
                raw = self._whole(tp, record)
            except BaseException as exc:  # noqa: BLE001  # it is raised again
                self._read_anew(tp, record.offset)
                raise _TornError(tp, exc) from None
            if self._polled.again is not None:
                self._last = (tp, record)
                return False
        if raw is not None:
            size = self._restored_bytes(raw)
            if size is not None and not takes(size):
                return False
            try:
                restored = self._restored(raw)
            except SerializationError as exc:
                self._failures[tp] = exc
                return False
            self._buffer.setdefault(tp, deque()).append(restored)
        self._taken.pop(tp, None)
        return True

    def _read_anew(self, tp: TopicPartition, offset: int) -> None:
        """Begins a partition again where nothing is lost: records may come twice."""
        safe, _ = self._polled.safe(place_of(tp), self._given(tp, offset))
        self._forget([tp])
        with contextlib.suppress(ValueError):
            super().seek(tp, safe)

    def _whole(self, tp: TopicPartition, record: ConsumerRecord) -> ConsumerRecord | None:
        """The record, or the message that is whole with it; None if it is a chunk that completes nothing."""
        place = place_of(tp)
        if tp not in self._begun:
            self._resume(tp, record.offset)
        if not is_chunk(record.headers):
            return None if self._polled.delivered(place, record.offset) else record
        whole = self._polled.take(record_of(record))
        if whole is None:
            return None
        found = _assembled(record, whole)
        self._taken[tp] = record.offset, found
        return found

    def _read_again(self, reread: Reread, until_s: float) -> None:
        """Reads on until the time is over."""
        done = self._rereads.read(reread, until_s)
        if done is None:
            return
        outcome, beginning = done
        if reread is self._polled.again and self._last is not None:
            tp, record = self._last
            found = _assembled(record, outcome) if isinstance(outcome, Assembled) else None
            self._taken[tp] = record.offset, found
        self._polled.resolve(reread, outcome, beginning)

    # --- what a subclass restores -------------------------------------------------------------------------------------

    def _allowance(self) -> Callable[[int], bool]:
        """What says whether one call may download so many bytes more."""
        raise NotImplementedError

    def _restored_bytes(self, record: ConsumerRecord) -> int | None:
        """The most bytes that a record downloads; None if it downloads nothing."""
        raise NotImplementedError

    def _restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record that is given in place of a whole one.

        Raises:
            SerializationError: it cannot be restored.
        """
        raise NotImplementedError

    # --- positions ----------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """As kafka-python's: the offset from which the next records are given.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk.
        """
        if threading.get_ident() == self._owner and not self._untaken:
            self._drop_gone()
        found = super().position(partition, timeout_ms)
        return None if found is None else self._polled.position(place_of(partition), self._given(partition, found))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """As kafka-python's. A message whose last chunk is at the offset, or behind it, comes whole.

        No commit passes one that began before the offset and has not ended before it.
        """
        super().seek(partition, offset)
        self._moved[partition] = offset
        self._seek_told([partition])
        self._next[partition] = offset

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """As kafka-python's."""
        super().seek_to_beginning(*partitions)
        self._seek_told(partitions or self.assignment())

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """As kafka-python's."""
        super().seek_to_end(*partitions)
        self._seek_told(partitions or self.assignment())

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_ms: float | None = None
    ) -> None:
        """As kafka-python's; no offset passes the first chunk of an incomplete message."""
        super().commit(self._told(offsets), timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[..., object] | None = None,
    ) -> Any:
        """As kafka-python's; no offset passes the first chunk of an incomplete message."""
        return super().commit_async(self._told(offsets), callback)

    def _seek_told(self, partitions: Iterable[TopicPartition]) -> None:
        self._rebalances.seek(partitions)
        if threading.get_ident() == self._owner:  # else a listener seeks, and the next call forgets
            self._drop_gone()

    def _told(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            # A signal handler may commit in the midst of a call: then positions say nothing.
            if threading.get_ident() == self._owner and not self._untaken:
                self._drop_gone()
                self._look_at_positions()
            return self._told_of(self.assignment())
        return {tp: self._safe_at(tp, told.offset, told.metadata or "") for tp, told in offsets.items()}

    def _safe_at(self, tp: TopicPartition, offset: int, metadata: str = "") -> OffsetAndMetadata:
        safe, noted = self._polled.safe(place_of(tp), self._given(tp, offset), metadata)
        return OffsetAndMetadata(safe, noted, -1)

    def _given(self, tp: TopicPartition, offset: int) -> int:
        """`offset`, or that of the first record of the partition that was not given yet."""
        records = self._buffer.get(tp)
        return min(offset, records[0].offset) if records else offset

    def _note(self, given: Iterable[TopicPartition]) -> None:
        """Has what was given committed before a rebalance, too."""
        if self._commits:
            self._safe = {**self._safe, **self._told_of(given)}

    def _told_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        known = [tp for tp in partitions if tp in self._next]
        return {tp: self._safe_at(tp, self._next[tp]) for tp in known}

    def _look_at_positions(self) -> None:
        """Takes in that positions are behind what is no record, such as the mark of a transaction."""
        for tp in self.assignment():
            # `poll` raises the first; the other comes where kafka-python's thread takes the partition away meanwhile.
            with contextlib.suppress(KafkaError, KeyError):
                offset = super().position(tp, timeout_ms=0)
                if offset is None:
                    continue
                if tp not in self._begun:
                    self._resume(tp, offset)  # or this commit would erase what the last one notes
                self._next[tp] = offset

    def _commit_in_time(self) -> None:
        if time.monotonic() >= self._commit_s:
            self._commit_now()
            self._commit_s = time.monotonic() + self._commit_every_s

    def _resume(self, tp: TopicPartition, offset: int) -> None:
        """Takes in what the commit notes at which a partition begins; without it records may come again."""
        place, committed = place_of(tp), None
        if tp not in self._rebalances.sought and self.config["group_id"] is not None:
            try:
                committed = self.committed(tp, metadata=True, timeout_ms=_REQUEST_MS)
            except KafkaError as exc:
                _logger.warning("topic %s partition %d: its commit is not known: %s", *place, exc)
        self._begun.add(tp)
        self._polled.begin(place, offset)
        if committed is not None and 0 <= committed.offset <= offset:  # else reading did not begin there
            self._polled.resume(place, committed.metadata)

    # --- assignments --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None = None,
    ) -> None:
        """As kafka-python's."""
        super().subscribe(topics, pattern, Listener(self._rebalances, self._leave, listener))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """As kafka-python's."""
        self._commit_now()
        gone = self.assignment() - set(partitions)
        super().assign(partitions)
        self._rebalances.lost(gone)
        self._drop_gone()

    def unsubscribe(self) -> None:
        """As kafka-python's."""
        self._commit_now()
        gone = self.assignment()
        super().unsubscribe()
        self._rebalances.lost(gone)
        self._drop_gone()

    def _commit_now(self) -> None:
        if self._commits and self.assignment():
            told = self._told(None)
            self._safe = {**self._safe, **told}
            super().commit_async(told, _told_on_error)

    async def _leave(self, partitions: Collection[TopicPartition]) -> None:
        """Commits before partitions go, on kafka-python's thread."""
        gone = set(self._rebalances.gone)
        safe = {tp: told for tp, told in self._safe.items() if tp in partitions and tp not in gone}
        if self._commits and safe:
            try:
                await super().commit_async(safe)
            except Exception as exc:  # noqa: BLE001  # the rebalance has to go on, whatever it was
                _logger.warning("the offsets were not committed before a rebalance; records may come again: %s", exc)

    def _drop_gone(self) -> set[TopicPartition]:
        """Forgets the partitions that have gone, or were sought; gives them."""
        self._rebalances.settle()
        gone: set[TopicPartition] = set()
        while self._rebalances.gone:
            tp = self._rebalances.gone.popleft()
            self._forget([tp])
            gone.add(tp)
        return gone

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        for tp in gone:
            place = place_of(tp)
            offset = self._moved.pop(tp, None)
            if offset is None:
                self._polled.clear(place)
            else:
                self._polled.move(place, offset)
            self._rereads.forget(place)
            for each in (self._buffer, self._taken, self._failures, self._next):
                each.pop(tp, None)
            self._begun.discard(tp)
            self._given_now.discard(tp)
        self._safe = {tp: told for tp, told in self._safe.items() if tp not in gone}


class _TornError(Exception):
    """The work on a chunk was interrupted; the partition begins again."""

    def __init__(self, partition: TopicPartition, cause: BaseException) -> None:
        super().__init__()
        self.partition, self.cause = partition, cause


def _told_on_error(_: object, response: object) -> None:
    if isinstance(response, Exception):
        _logger.warning("an automatic commit failed, and is tried again: %s", response)


def _assembled(last: ConsumerRecord, message: Assembled) -> ConsumerRecord:
    """The message in the place of its last chunk."""
    whole = message.record
    return last._replace(value=whole.value, headers=list(whole.headers), serialized_value_size=len(whole.value or b""))
