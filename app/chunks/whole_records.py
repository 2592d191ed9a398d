"""An aiokafka consumer that delivers whole records: it reassembles chunks, and downloads ahead."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata
from aiokafka.util import commit_structure_validate

from app.chunks.allowance import PARALLEL
from app.chunks.discarded import OnDiscarded, hand_out
from app.chunks.keys import limits
from app.chunks.prefetch import Prefetch
from app.chunks.range_reader import RangeReader
from app.chunks.record_inbox import RecordInbox
from app.config.naming import check_topics
from app.kafka.average import Average
from app.kafka.consumer_controls import ConsumerControls, count_as_poll
from app.kafka.fetch_errors import follow_leaders
from app.kafka.subscriptions import Subscriptions, Woken
from transforms.chunk import is_chunk
from transforms.chunked_message import ChunkMessageId, Counts, Discarded

Records = dict[TopicPartition, list[ConsumerRecord]]
_Found = TypeVar("_Found")

_LOOK_S = 1.0  # how often a waiting call checks for expired messages, and reports that it is alive
_AHEAD = 100  # records that `getone` fetches together: fetching each alone takes three times as long


class WholeRecordConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """The base of consumers whose records are delivered whole, and committed when delivered; see `AssemblingConsumer`.

    Args:
        values: of the properties in `app.chunks.keys.CONSUMER_KEYS`.
        on_discarded: called with each discarded message.
        topics: the topics to subscribe to.
        arguments: all arguments of `AIOKafkaConsumer`, without deserializers.

    Attributes:
        closed: True once `stop` has been called.
    """

    # Each call takes what is whole at the heads of the queues of the inbox, and fetches if there is nothing. Nothing is
    # awaited between that a record leaves its queue and that the application has it, so a cancelled call loses none.

    _keeps_plain = True  # whether `_restore` changes no record without a size
    _download_s = 1.0  # the longest time of one download

    def __init__(
        self, values: Mapping[str, Any], on_discarded: OnDiscarded, topics: Iterable[str], arguments: Mapping[str, Any]
    ) -> None:
        check_topics(topics)
        within = limits(values)
        super().__init__(**arguments)
        self._on_discarded = on_discarded
        self._expire_s = within.expire_ms / 1000
        self._inbox = RecordInbox(within, values["chunk.lookback"])
        self._prefetch = Prefetch(self._inbox, self._size, self._restore_large, arguments["fetch_max_bytes"])
        self._reader = RangeReader(arguments)
        self._acting = asyncio.Lock()
        self.closed = False
        self._stop_s = arguments["request_timeout_ms"] / 1000
        self._interval_s = arguments["max_poll_interval_ms"] / 1000
        self._most: int | None = arguments["max_poll_records"]
        self._ahead = min(self._most or _AHEAD, _AHEAD)
        self._waiting = 0  # calls that wait for records
        self._rates = defaultdict[str, Average](Average)
        self._controls = ConsumerControls(self)
        self._subscriptions = Subscriptions.adopt_for(self._controls.subscription, self._inbox)
        follow_leaders(self)
        if topics:
            self.subscribe(set(topics))

    def _size(self, _: ConsumerRecord) -> int | None:
        """The most bytes that a record downloads before it is delivered; None if nothing."""
        return None

    def _restore(self, record: ConsumerRecord) -> ConsumerRecord:
        """A whole record as it is delivered to the application."""
        return record

    async def _restore_large(self, record: ConsumerRecord) -> ConsumerRecord:
        """A whole record that downloads something, as it is delivered to the application."""
        return self._restore(record)

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._inbox.counts

    def stats(self) -> dict[str, object]:
        """`chunkedMessageRate` by topic (messages a second over the last minute), and the incomplete messages."""
        rates = {topic: rate.per_second() for topic, rate in self._rates.items()}
        return {"chunkedMessageRate": rates, **self._inbox.stats()}

    async def start(self) -> None:
        """As `AIOKafkaConsumer.start`."""
        await super().start()
        self._controls.coordinator()  # its rebalances proceed from now on

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`, and in any case: within `request.timeout.ms` and two seconds."""
        if self.closed:
            return
        self.closed = True
        try:
            await self._controls.stop(super().stop, self._stop_s)
        finally:
            for place in self._inbox.places:
                for entry in self._inbox.entries(place):
                    if entry.work is not None:
                        entry.work.future.cancel()
            await self._reader.stop()

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """As `AIOKafkaConsumer.subscribe`.

        Raises:
            ConfigurationError: the name of a topic is over its limit.
        """
        check_topics(topics)
        super().subscribe(topics, pattern, listener)

    # --- records ------------------------------------------------------------------------------------------------------

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """As `AIOKafkaConsumer.getone`: the next record, whole."""
        while True:
            if self._is_quiet():
                record = await self._waited(super().getone(*partitions))
                if record is None:
                    continue
                if self._is_quiet() and not self._is_ours(record):
                    return record
                self._put({TopicPartition(record.topic, record.partition): [record]})
                if self._size(record) is not None:  # the downloads of the next ones start with its own
                    self._put(await self._waited(super().getmany(*partitions, max_records=self._ahead)) or {})
            delivered = self._taken(partitions, 1) or await self._whole(partitions, time.monotonic() + _LOOK_S, 1)
            for records in delivered.values():
                return records[0]

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Records:
        """As `AIOKafkaConsumer.getmany`; continues to wait, up to the timeout, if it reads only chunks.

        Discarded messages come first: `on_discarded` is called for one at least, and for more until the timeout.

        One call downloads at most `fetch.max.bytes`, unless the first payload alone is larger, and starts no download
        that may end after `max.poll.interval.ms`. The next call delivers the rest.
        """
        if max_records is not None and max_records < 1:
            raise ValueError("max_records must be 1 or more")
        until_s = time.monotonic() + timeout_ms / 1000
        if self._is_quiet():
            fetching = super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
            found = await self._waited(fetching) or {}
            if self._is_quiet() and not any(self._is_ours(each) for records in found.values() for each in records):
                return found
            self._put(found)
        return await self._whole(partitions, until_s, self._most if max_records is None else max_records)

    def _is_quiet(self) -> bool:
        """Whether all records that are neither chunks nor references may be delivered unchanged."""
        return self._keeps_plain and self._inbox.quiet

    def _is_ours(self, record: ConsumerRecord) -> bool:
        """Whether a record is a chunk, or a reference."""
        headers = record.headers
        return bool(headers) and (is_chunk(headers) or self._size(record) is not None)

    async def _waited(self, fetching: Awaitable[_Found]) -> _Found | None:
        """The result of the client; None if there may be something here."""
        self._waiting += 1
        try:
            return await fetching
        except Woken:
            return None
        finally:
            self._waiting -= 1

    async def _whole(self, partitions: tuple[TopicPartition, ...], until_s: float, most: int | None) -> Records:
        """The next whole records; none if the time is over."""
        acted = False
        try:
            while True:
                if self.closed:
                    raise ConsumerStoppedError
                over = time.monotonic() >= until_s
                if self._inbox.actions:
                    if acted and over:
                        return {}
                    await self._act(until_s)
                    acted = True
                    continue
                await self._fetch(partitions, until_s, most)
                await self._download(partitions, most)
                delivered = self._taken(partitions, most)
                if delivered or (over and not self._inbox.actions and not self._heads(partitions)):
                    return delivered
        finally:
            if self._waiting and not self._inbox.quiet:  # others may deliver what is left here, or have to count time
                self._subscriptions.wake()

    async def _act(self, until_s: float) -> None:
        """Continues the first action: passes a message to `on_discarded`, or reads a range.

        The reading continues when the time of the call is over.
        """
        async with self._acting:
            if self.closed or not self._inbox.actions:
                return
            action = self._inbox.actions[0]
            if isinstance(action, Discarded):
                await hand_out(self._inbox, action, self._on_discarded)
            else:
                task = self._reader.begin(action)
                await asyncio.wait({task}, timeout=max(0.0, min(_LOOK_S, until_s - time.monotonic())))
                if task.done() and not self.closed:
                    task.result()
                    self._inbox.resolve(action)
            count_as_poll(self)

    def _heads(self, partitions: tuple[TopicPartition, ...]) -> list[TopicPartition]:
        """The partitions of a call that have records here, and may deliver them now; those that wait longest first."""
        if self._controls.rebalancing or (assignment := self._controls.assignment) is None:
            return []  # they may go to another member of the group
        found: list[Any] = [place for place in self._inbox.places if not partitions or place in partitions]
        return [tp for tp in found if (state := assignment.state_value(tp)) is not None and not state.paused]

    async def _fetch(self, partitions: tuple[TopicPartition, ...], until_s: float, most: int | None) -> None:
        """Fetches for the partitions without records here; waits for some only if no partition of the call has any."""
        most = self._ahead if most == 1 else most
        since_s, waits = time.monotonic(), self._inbox.waits
        wait_s = max(0.0, until_s - since_s)
        if waits:
            wait_s = min(wait_s, _LOOK_S, self._expire_s / 4)
        chosen: Collection[TopicPartition] = partitions
        if self._heads(partitions):
            count_as_poll(self)
            chosen, wait_s = set(partitions or self.assignment()) - set(self._inbox.places), 0.0
            if not chosen:
                return
        try:
            # Rounded up: with the last fraction of a millisecond as 0, the calls would spin until it is over.
            fetching = super().getmany(*chosen, timeout_ms=math.ceil(wait_s * 1000), max_records=most)
            # No other task can run before the records are here, so they are in the order in which they were read.
            self._put(await self._waited(fetching) or {})
        finally:
            if waits:  # `wait_for` may end each call of an application: its time counts, too
                self._inbox.count(set(chosen or self.assignment()) - self.paused(), since_s)

    def _put(self, found: Records) -> None:
        try:
            for tp, records in found.items():
                self._inbox.put(tp, records)
        except BaseException:  # no memory, or an interrupt: the client is already behind them
            for tp, records in found.items():
                self._read_on(tp, *self._inbox.commit(tp, records[0].offset))
            raise

    def _read_on(self, partition: TopicPartition, offset: int, metadata: str | None) -> None:
        """Continues at a commit, as after a restart."""
        AIOKafkaConsumer.seek(self, partition, offset)
        self._inbox.clear(partition)
        self._inbox.begin(partition, offset, metadata)

    async def _download(self, partitions: tuple[TopicPartition, ...], most: int | None) -> None:
        """Waits for all downloads of the next records; `getone` for one record that is ready."""
        until_s = time.monotonic() + self._interval_s
        while not self.closed:
            heads = self._heads(partitions)
            # As many again wait for the threads, unless they would end too late: a thread does not wait for the loop.
            rounds = min(2, (until_s - time.monotonic()) // self._download_s)
            running = self._prefetch.begin(heads, None if most == 1 else most, int(rounds) * PARALLEL)
            if not running or (most == 1 and any(self._prefetch.ready(self._inbox.first(tp)) for tp in heads)):
                return
            await asyncio.wait(running, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            count_as_poll(self)

    def _taken(self, partitions: tuple[TopicPartition, ...], most: int | None) -> Records:
        """Takes up to `most` records that are ready, in order; raises an error of the first one."""
        if self.closed:
            raise ConsumerStoppedError
        delivered: Records = {}
        back: dict[TopicPartition, tuple[int, str]] = {}
        try:
            for tp in [] if self._inbox.actions else self._heads(partitions):
                back[tp] = self._inbox.commit(tp, self._inbox.first(tp).offset)
                self._take(tp, delivered, most)
        except BaseException:  # no memory, or an interrupt: the application has none of them
            for tp, commit in back.items():
                if tp in delivered or tp in self._inbox.interrupted:
                    self._read_on(tp, *commit)
            raise
        return delivered

    def _take(self, tp: TopicPartition, delivered: Records, most: int | None) -> None:
        left = math.inf if most is None else most - sum(map(len, delivered.values()))
        while left and (entry := self._inbox.head(tp)) is not None and self._prefetch.ready(entry):
            try:
                record = self._restore(entry.record) if entry.work is None else entry.work.future.result()
            except BaseException as exc:
                if delivered and isinstance(exc, Exception):
                    return  # the next call raises it
                entry.work = None  # the next call tries again
                self._inbox.put_last(tp)
                raise
            self._inbox.pop(tp)
            delivered.setdefault(tp, []).append(record)
            left -= 1
            if entry.first is not None:
                self._rates[tp.topic].add()
            if entry.work is not None:  # the next downloads run while the application works
                self._prefetch.begin([tp])

    # --- positions ----------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """As `AIOKafkaConsumer.position`: the offset from which the next record, or message, is delivered.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk: a
        `seek` to it may repeat records, and loses none.
        """
        return self._inbox.position(partition, await super().position(partition))

    def seek(self, partition: TopicPartition, offset: int | ChunkMessageId) -> None:
        """As `AIOKafkaConsumer.seek`; the id of a message stands for its first chunk.

        A message whose last chunk is at or after the offset is delivered whole: wherever its first chunk is, if that
        was read, and otherwise up to `chunk.lookback` before the offset. No commit passes a first chunk that was read.
        """
        super().seek(partition, offset.first if isinstance(offset, ChunkMessageId) else offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """As `AIOKafkaConsumer.seek_to_beginning`."""
        self._forget(partitions)
        return bool(await super().seek_to_beginning(*partitions))

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """As `AIOKafkaConsumer.seek_to_end`."""
        self._forget(partitions)
        return bool(await super().seek_to_end(*partitions))

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what was read of partitions whose positions are about to be set; of none, if one is not assigned."""
        chosen = set(partitions or self.assignment())
        for each in chosen if chosen <= self.assignment() else ():
            self._inbox.clear(each)
            self._subscriptions.forget_commit(each)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """As `AIOKafkaConsumer.seek_to_committed`; the commit's note about delivered records applies, as at a start."""
        offsets: dict[TopicPartition, int | None] = await super().seek_to_committed(*partitions)
        commits = await self._controls.commits(list(offsets))
        for partition, commit in commits.items():
            if partition in self.assignment():
                # Without a turn of the loop between: nothing is delivered that the note does not know of.
                self._read_on(partition, commit.offset, commit.metadata)
                offsets[partition] = commit.offset
        return offsets

    def safe_offsets(
        self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` commits; also for `send_offsets_to_transaction`.

        Args:
            offsets: the next offset of each partition, as for `commit`; by default those after all delivered records.

        Raises:
            IllegalStateError: no partitions are assigned.
        """
        if offsets is not None:
            return self._inbox.safe(commit_structure_validate(dict(offsets)), stated=True)
        if (assignment := self._controls.assignment) is None:
            raise IllegalStateError("No partitions assigned")
        return dict(assignment.all_consumed_offsets())

    async def commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None) -> None:
        """As `AIOKafkaConsumer.commit`, with `safe_offsets`.

        Metadata of the application replaces the note; a restart may then deliver some messages again.
        """
        await super().commit(None if offsets is None else self.safe_offsets(offsets))
