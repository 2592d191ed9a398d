"""An aiokafka consumer that delivers whole records: it puts chunks together, and downloads ahead."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import OffsetAndMetadata
from aiokafka.util import commit_structure_validate

from app.chunks.allowance import PARALLEL, Allowance
from app.chunks.backlog import Entry
from app.chunks.delivering import DeliveringConsumer
from app.chunks.keys import limits
from app.chunks.pending import AssembledRecord, Pending, ReadingClock, TornError
from app.chunks.rereader import Again, Rereader
from app.kafka.average import Average
from app.kafka.consumer_controls import count_as_poll
from transforms.assembly import ChunkMessageId, Counts, Discarded
from transforms.errors import SerializationError

__all__ = ["OnDiscarded", "Restoring", "WholeRecordConsumer"]

OnDiscarded = Callable[[Discarded], Awaitable[None] | None]

_LOOK_S = 1.0  # how often a call that waits looks for expired messages, and for what a cancelled call has left
_AHEAD = 100  # records that `getone` takes at once: to take each alone takes three times as long


class Restoring(Protocol):
    """What is done with each whole record before it is delivered."""

    @property
    def timeout_ms(self) -> int:
        """The longest time of one `restore`."""

    def size(self, record: ConsumerRecord) -> int | None:
        """How many bytes `restore` downloads; None if `restore_now` is enough."""

    async def restore(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record for the application, with a download."""

    def restore_now(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record for the application."""

    async def close(self) -> None:
        """Waits for the last download."""


class WholeRecordConsumer(DeliveringConsumer):
    """The base of consumers whose records come whole; see `AssemblingConsumer` for what it promises about chunks.

    Args:
        values: of `app.chunks.keys.CONSUMER_KEYS`.
        restoring: what is done with each record.
        on_discarded: called with each discarded message.
        topics: the topics to subscribe to.
        arguments: all arguments of `AIOKafkaConsumer`, without deserializers.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        restoring: Restoring,
        on_discarded: OnDiscarded,
        topics: Iterable[str],
        arguments: Mapping[str, Any],
    ) -> None:
        within = limits(values)
        self._pending = Pending(within, restoring.size)
        self._restoring = restoring
        self._on_discarded = on_discarded
        self._lookback: int = values["chunk.lookback"]
        self._rereader = Rereader(arguments, within, self._lookback)
        self._settling = asyncio.Lock()
        self._clock = ReadingClock(time.monotonic)
        self._rates = defaultdict[str, Average](Average)
        self._max_bytes: int = arguments["fetch_max_bytes"]
        self._interval_ms: int = arguments["max_poll_interval_ms"]
        self._most: int | None = arguments["max_poll_records"]
        self._waiting = 0  # calls that wait for records to come
        super().__init__(self._pending, topics, **arguments)

    @property
    def counts(self) -> Counts:
        """How many messages have been assembled and discarded, and how many chunks were ignored, so far."""
        return self._pending.assembler.counts

    def stats(self) -> dict[str, object]:
        """`chunkedMessageRate` by topic (messages a second over the last minute), and the incomplete messages."""
        assembler = self._pending.assembler
        return {
            "chunkedMessageRate": {topic: rate.per_second() for topic, rate in self._rates.items()},
            "pendingChunkedMessages": assembler.pending,
            "pendingChunkedBytes": assembler.pending_bytes,
            "setAside": assembler.counts.set_aside,
            "expired": assembler.counts.discarded.get("expired", 0),
        }

    async def stop(self) -> None:
        """As `AIOKafkaConsumer.stop`; then ends what is read again, and waits for the last download."""
        try:
            await super().stop()
        finally:
            self._pending.backlog.cancel()
            await self._rereader.stop()
            await self._restoring.close()

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """As `AIOKafkaConsumer.getone`: the next record, whole."""
        while True:
            at_hand = self._at_hand(partitions)
            delivered = self._taken(at_hand, 1) if at_hand else await self._delivered(partitions, _LOOK_S, 1)
            for records in delivered.values():
                return records[0]

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `AIOKafkaConsumer.getmany`; goes on waiting, up to the time-out, if it reads only chunks.

        Discarded messages come first: `on_discarded` gets one at least, and more until the time-out.

        One call downloads at most `fetch.max.bytes`, unless the first payload alone is larger, and begins no download
        that may end after `max.poll.interval.ms`. The next call delivers the rest.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            delivered = await self._delivered(partitions, left_s, self._most if max_records is None else max_records)
            if delivered or not left_s:
                return delivered

    # --- positions ----------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """As `AIOKafkaConsumer.position`: the offset from which the next record, or message, is delivered.

        If an incomplete message begins more than `chunk.lookback` before that, it is the offset of its first chunk: a
        `seek` to it may give records again, and loses none.
        """
        position = self._pending.position(partition, await super().position(partition))
        begins = self._pending.assembler.safe_offset(partition, position)
        return position if position - begins <= self._lookback else begins

    def seek(self, partition: TopicPartition, offset: int | ChunkMessageId) -> None:
        """As `AIOKafkaConsumer.seek`; the id of a message stands for its first chunk.

        A message whose last chunk is at the offset, or behind it, comes whole: wherever its first chunk is if that was
        read, and else up to `chunk.lookback` before the offset. No commit passes the first chunk of one that was read.
        """
        super().seek(partition, offset.first if isinstance(offset, ChunkMessageId) else offset)

    def safe_offsets(
        self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` commits; also for `send_offsets_to_transaction`.

        Args:
            offsets: the next offset of each partition, as for `commit`; by default those behind all delivered records.
        """
        if offsets is not None:
            return self._pending.safe(commit_structure_validate(dict(offsets)), told=True)
        return self.delivered_offsets()

    async def commit(self, offsets: Mapping[TopicPartition, int | tuple[int, str]] | None = None) -> None:
        """As `AIOKafkaConsumer.commit`, with `safe_offsets`.

        Metadata of the application's own replaces the note; then a restart may deliver some messages again.
        """
        await super().commit(None if offsets is None else self.safe_offsets(offsets))

    # --- one call -----------------------------------------------------------------------------------------------------

    def _at_hand(self, partitions: tuple[TopicPartition, ...]) -> dict[TopicPartition, list[Entry]]:
        """The next record, if it was fetched with others, and nothing has to be done before it is delivered."""
        pending = self._pending
        if not self.closed and not pending.discarded and not pending.assembler.pending:
            for tp in pending.backlog.partitions:
                entry = next(iter(pending.backlog.entries(tp)))
                if entry.size is None and entry.error is None and (not partitions or tp in partitions):
                    if self.may_deliver(tp):
                        count_as_poll(self)
                        return {tp: [entry]}
                    break
        return {}

    async def _delivered(
        self, partitions: tuple[TopicPartition, ...], timeout_s: float, most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `most` records that are ready, once `on_discarded` has taken the discarded messages."""
        if self.closed:
            raise ConsumerStoppedError
        until_s = time.monotonic() + timeout_s
        if not await self._settle(until_s):
            return {}
        left = self._deliverable(partitions)
        self._raise_failure(left)
        await self._fetch(partitions, left, max(0.0, until_s - time.monotonic()), most)
        if not await self._settle(until_s):
            return {}
        taken = self._pending.backlog.next(self._deliverable(partitions), most)
        downloads = await self._begun(taken)
        if downloads:
            if not (most == 1 and any(entries[0].ready for entries in taken.values())):
                await self._wait(downloads, all_of_them=most != 1)
            if self.closed:
                raise ConsumerStoppedError
        deliverable = self._deliverable(partitions)
        return self._taken({tp: taken[tp] for tp in taken if tp in deliverable}, most)

    async def _wait(self, downloads: set[asyncio.Task[ConsumerRecord]], *, all_of_them: bool) -> None:
        """Waits for downloads, and counts that as a poll: what is read again has no time of its own."""
        when = asyncio.ALL_COMPLETED if all_of_them else asyncio.FIRST_COMPLETED
        while not self.closed:
            done, left = await asyncio.wait(downloads, return_when=when, timeout=_LOOK_S)
            if not left or (done and not all_of_them):
                return
            count_as_poll(self)

    def _deliverable(self, partitions: tuple[TopicPartition, ...]) -> set[TopicPartition]:
        """The partitions of a call that have a backlog, and may deliver it now."""
        known = self._pending.backlog.partitions
        return set(filter(self.may_deliver, known & set(partitions) if partitions else known))

    def _raise_failure(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            entry = next(iter(self._pending.backlog.entries(tp)), None)
            if entry is not None and entry.error is not None:
                error, entry.error = entry.error, None
                self._pending.backlog.drop(tp, 0)
                raise error

    async def _fetch(
        self, partitions: tuple[TopicPartition, ...], left: set[TopicPartition], timeout_s: float, most: int | None
    ) -> None:
        """Fetches for the partitions without a backlog; waits for records only if no partition of the call has one."""
        assembler = self._pending.assembler
        expire_s = assembler.limits.expire_ms / 1000
        waiting = bool(expire_s and (assembler.pending or assembler.repeating))
        wait_s = min(timeout_s, _LOOK_S, expire_s / 4) if waiting else timeout_s
        since_s = time.monotonic()
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        others = set(partitions or self.assignment()) - left if left or waiting else set()
        try:
            if not left:
                self._waiting += 1
                try:
                    # Rounded up: with the last fraction of a millisecond as 0, the calls would spin until it is over.
                    wait_ms = math.ceil(wait_s * 1000)
                    found = await super().getmany(*partitions, timeout_ms=wait_ms, max_records=most)
                finally:
                    self._waiting -= 1
            elif others:
                found = await super().getmany(*others, timeout_ms=0, max_records=most)
            else:
                count_as_poll(self)
        except asyncio.CancelledError:  # `wait_for` may end each call of an application
            if waiting:
                self._let_pass(others, since_s, {})
            raise
        # From here on no other task can run, so the records are sorted in the order in which they were read.
        self._let_pass(others if waiting else set(), since_s, found)
        ahead = min(self._most or _AHEAD, _AHEAD)
        if found and most == 1 and ahead > 1 and not self._waiting:
            # The next calls take the others at hand. If another call waits, they are for that one.
            # Not those with a backlog, which would grow.
            self._take(await super().getmany(*(others if left else partitions), timeout_ms=0, max_records=ahead - 1))

    def _let_pass(
        self, partitions: set[TopicPartition], since_s: float, found: Mapping[TopicPartition, list[ConsumerRecord]]
    ) -> None:
        """Counts the time in which a call has read these partitions, takes what it found, and lets messages expire."""
        read = partitions - self.paused() if partitions else partitions
        self._clock.count(read, since_s)
        self._take(found)
        for tp in read:
            self._pending.expire(tp, self._clock.now_ms(tp))

    def _take(self, found: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Takes what was fetched; if that fails, the rest is read again, as the client is already behind all of it."""
        torn: TornError | None = None
        for tp, records in found.items():
            if torn is None:
                try:
                    self._pending.take(tp, records, self._clock.now_ms(tp))
                    continue
                except TornError as exc:
                    torn, back = exc, exc.back
            else:
                back = self._pending.safe({tp: OffsetAndMetadata(records[0].offset, "")})[tp]
            AIOKafkaConsumer.seek(self, tp, back.offset)
            self._pending.moved(tp, back.metadata)
        if torn is not None:
            assert torn.__cause__ is not None
            raise torn.__cause__

    async def _settle(self, until_s: float) -> bool:
        """Gives the discarded messages to `on_discarded`: one at least, and more until the time is over.

        Returns:
            Whether all have been given.
        """
        waiting = self._pending.discarded
        if not waiting:
            return True
        async with self._settling:
            while waiting:
                discarded = waiting.head
                if isinstance(discarded, Again) and not await self._read_again(discarded, until_s):
                    return False
                if not isinstance(discarded, Again):
                    done = self._on_discarded(discarded)
                    if inspect.isawaitable(done):
                        await done
                    # A rebalance meanwhile may have dropped it.
                    if waiting and waiting.head is discarded:
                        waiting.drop_head()
                    if time.monotonic() >= until_s:
                        break
        count_as_poll(self)
        return not waiting

    async def _read_again(self, again: Again, until_s: float) -> bool:
        """Reads the chunks of a message that is discarded; that goes on when the call is over. Whether it is done."""
        task = self._rereader.begin(again)
        while not task.done():
            count_as_poll(self)
            await asyncio.wait({task}, timeout=max(0.0, min(_LOOK_S, until_s - time.monotonic())))
            if self.closed:
                raise ConsumerStoppedError
            if time.monotonic() >= until_s and not task.done():
                return False
        again.task = None  # if it has failed, the next call tries again
        self._pending.given_up(again, task.result())
        return True

    # --- records that need something before they are delivered --------------------------------------------------------

    async def _begun(self, taken: Mapping[TopicPartition, list[Entry]]) -> set[asyncio.Task[ConsumerRecord]]:
        """The downloads that the call has to wait for."""
        kept_bytes = self._pending.backlog.downloaded_bytes(without=taken)
        allowance = Allowance(self._max_bytes - kept_bytes, self._restoring.timeout_ms, self._interval_ms)
        downloads: set[asyncio.Task[ConsumerRecord]] = set()
        running: set[asyncio.Task[ConsumerRecord]] = set()
        for entries in taken.values():
            for entry in entries:
                if entry.size is None:
                    continue
                while entry.download is None and len(running) >= PARALLEL:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                fits = allowance.takes(entry.size)
                if entry.download is None and (not fits or any(each.failed for each in entries)):
                    break
                task = entry.begin(self._restored)
                downloads.add(task)
                running.add(task)
        return downloads

    async def _restored(self, entry: Entry) -> ConsumerRecord:
        if isinstance(entry.record, Again):
            self._pending.whole(entry, await self._rereader.read(entry.record))
        return entry.record if entry.gone or entry.size is None else await self._restoring.restore(entry.record)

    def _taken(
        self, taken: Mapping[TopicPartition, list[Entry]], most: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records that are ready, in order; raises the first failure if there are none."""
        delivered: dict[TopicPartition, list[ConsumerRecord]] = {}
        passed: dict[TopicPartition, int] = {}
        count = 0
        for tp, entries in taken.items():
            records, passed[tp] = self._ready(tp, entries, None if most is None else most - count, first=not count)
            count += len(records)
            if records:
                delivered[tp] = records
        # Entries are dropped when all stages of the application have run: an interrupt in one must lose nothing.
        for tp, number in passed.items():
            if number:
                self._pending.backlog.drop(tp, number)
            for record in delivered.get(tp, ()):
                if isinstance(record, AssembledRecord):
                    self._rates[tp.topic].add()
        if not delivered:
            self._raise_failure(taken)
        return delivered

    def _ready(
        self, tp: TopicPartition, entries: Iterable[Entry], most: int | None, *, first: bool
    ) -> tuple[list[ConsumerRecord], int]:
        """The records of a partition that are ready, and how many entries they and the messages that are gone were.

        An error that is not the record's is raised if this is the `first` record of the call; else the next call does.
        """
        records: list[ConsumerRecord] = []
        passed = 0
        for entry, own in zip(entries, self._pending.backlog.entries(tp), strict=False):
            # Another call may have delivered the entries, and a seek or a rebalance may have dropped them.
            if entry is not own or not entry.ready or len(records) == most:
                break
            if entry.gone:
                passed += 1
                break  # `on_discarded` comes before the records behind it
            try:
                records.append(self._restoring.restore_now(entry.record) if entry.size is None else entry.result())
            except SerializationError as exc:
                entry.download, entry.error = None, exc
                break
            except BaseException as exc:
                entry.download = None
                if isinstance(exc, Exception) and (records or not first):
                    break
                raise
            passed += 1
        return records, passed
