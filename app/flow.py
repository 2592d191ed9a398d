"""A flow: one life of a pipeline, from clients that start to clients that stop.

Reads batches from the source partitions, lets records pass or puts them through the transforms on threads, writes the
results in source order, and commits what is durable. Whatever goes wrong with the clients ends the flow; the next one
begins at the committed offsets. So there is one way of recovery, and it is the one that a restart takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.structs import ConsumerRecord

from app import clients
from app.assembly import Assembly, chunks_of
from app.budget import Budget, Share
from app.clients import ClusterError
from app.dead_letter import dead_letter
from app.lane import Hold, Lane, Slot
from app.sink import Sink
from app.stages import Fallback
from transforms.errors import (
    DiscardedChunkError,
    PayloadNotFoundError,
    PayloadStoreError,
    RecordTooLargeError,
    ReferenceRefusedError,
    TransformError,
    WideloadError,
)
from transforms.size import batch_of_one_bytes

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    from app.lane import SourceRecord
    from app.preflight import Plan
    from app.settings import ClientSettings, PipelineSettings
    from app.stages import Chain
    from app.stats import PipelineStats
    from transforms.assembly import Discarded
    from transforms.record import RecordLike

__all__ = ["Flow", "RecordError"]

log = logging.getLogger(__name__)

_UNEXPECTED = "pipeline %s: unexpected error"
_POLL_MS = 200
_RETRY_DELAY_S = 0.2
_STOP_CLIENT_S = 10.0
_RECORD_OVERHEAD_BYTES = 400  # what a record that waits costs beside its key and value (CPython 3.11, measured)


class RecordError(WideloadError):
    """A record stopped the pipeline, by `errors.tolerance = "none"` or because the store refuses everyone.

    Attributes:
        topic, partition, offset: where the record is.
    """

    def __init__(self, record: SourceRecord, error: BaseException, advice: str) -> None:
        super().__init__(record, error, advice)
        self.topic = record.topic
        self.partition = record.partition
        self.offset = record.offset
        self._message = f"topic {record.topic}, partition {record.partition}, offset {record.offset}: {error}{advice}"

    def __str__(self) -> str:
        return self._message


class Flow(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """One life of a pipeline. Belongs to one event loop; `run` once.

    Args:
        client: how to reach the cluster.
        settings: the pipeline's.
        plan: what the preflight found.
        chain: the transforms.
        budget: shared by all pipelines.
        executor: where transforms run.
        stats: what is counted.
        graceful_timeout_s: how long to drain before partitions are given up.
        joined: called when the group has given the worker its share of the partitions, which may be none.
    """

    # State that changes: `_lanes`, by rebalances; `_waiting`, records read but not admitted yet, by the poll loop and
    # rebalances; `_failure`, once. All on the event loop, and between two awaits, so there is no lock.

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        plan: Plan,
        chain: Chain,
        *,
        budget: Budget,
        executor: Executor,
        stats: PipelineStats,
        graceful_timeout_s: float,
        joined: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.degraded: str | None = None
        self._joined = joined
        self._plan = plan
        self._chain = chain
        self._share = Share(budget)
        self._executor = executor
        self._stats = stats
        self._graceful_timeout_s = graceful_timeout_s
        self._consumer: AIOKafkaConsumer = clients.consumer(client, settings)
        self._producer: AIOKafkaProducer = clients.producer(client, settings)
        self._large = asyncio.Semaphore(1)
        self._sink = self._make_sink(plan.sink.name)
        self._dead_letters = None if plan.dead_letters is None else self._make_sink(plan.dead_letters.name)
        self._lanes: dict[TopicPartition, Lane] = {}
        self._waiting: deque[tuple[Lane, deque[SourceRecord]]] = deque()
        self._failure: BaseException | None = None
        self._stopping = False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._durable = asyncio.Event()
        self._looking_up: asyncio.Task[None] | None = None
        self._assembly = Assembly(settings.chunks, stats) if settings.chunks.assembles else None
        self._resumed = asyncio.Event()
        if self._assembly is None:
            self._resumed.set()
        self._apply_on_thread = Fallback(chain, self._fell_back_on_thread).apply if chain.falls_back else chain.apply

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the budget that this flow holds."""
        return self._share.used

    @property
    def pending_messages(self) -> int:
        """Messages of which chunks are missing."""
        return self._assembly.pending if self._assembly is not None else 0

    @property
    def pending_bytes(self) -> int:
        """What their chunks hold, beside the budget."""
        return self._assembly.pending_bytes if self._assembly is not None else 0

    def positions(self) -> dict[TopicPartition, tuple[int | None, int | None, int | None]]:
        """For each assigned partition: the offset read up to, the committed one, and the end of the log."""
        assigned = self._consumer.assignment()
        return {
            partition: (
                lane.tracker.released if lane.tracker else lane.committed,
                lane.tracker.committed if lane.tracker else lane.committed,
                self._consumer.highwater(partition),
            )
            for partition, lane in self._lanes.items()
            if partition in assigned
        }

    def stop(self) -> None:
        """Asks `run` to drain, to commit, and to return."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Moves records until `stop`.

        Raises:
            ClusterError: a client failed; what was not committed is read again by the next flow.
            RecordError: a record stopped the pipeline; its offset and those after it are not committed.
        """
        commits: asyncio.Task[None] | None = None
        try:
            await self._start_clients()
            commits = asyncio.get_running_loop().create_task(self._commit_regularly())
            while not self._stopping:
                self._raise_failure()
                await self._turn()
            commits.cancel()  # or a commit that is tried again could follow the last one with older offsets
            await self._finish()
        except (KafkaError, IllegalStateError, OSError, TimeoutError) as exc:
            raise clients.translated(exc, f"group {self.settings.group_id}") from exc
        finally:
            for task in (commits, self._looking_up):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            self._discard(list(self._lanes))
            await self._stop_clients()
            self._share.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _start_clients(self) -> None:
        await self._producer.start()
        self._consumer.subscribe(list(self.settings.topics), listener=self)
        await self._consumer.start()

    async def _turn(self) -> None:
        reading = not self._waiting
        if reading:
            await self._poll()
        elif not self._resumed.is_set():
            await self._await_resumed()
        else:
            await self._await_room()
        if self._resumed.is_set():
            self._admit()
        if self._assembly is not None:
            self._expire(self._assembly, reading=reading)
        self._sink.flush()
        if self._dead_letters is not None:
            self._dead_letters.flush()
        # A poll with data at hand returns without a pause; senders and acknowledgements need their turn.
        await asyncio.sleep(0)

    async def _poll(self) -> None:
        stalled = any(lane.stalled for lane in self._lanes.values())
        wanted = [partition for partition, lane in self._lanes.items() if not lane.stalled] if stalled else []
        if stalled and not wanted:
            await self._await_change()
            return
        try:
            polled = await self._consumer.getmany(*wanted, timeout_ms=_POLL_MS)
        except (
            UnicodeDecodeError
        ) as exc:  # the flow must end: aiokafka's next poll would skip what was before the record
            raise self._unreadable(exc) from exc
        # No await may stand between the poll and this: a rebalance in between would leave records of lost partitions.
        for partition, records in polled.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                self._waiting.append((lane, deque(records)))

    def _unreadable(self, error: UnicodeDecodeError) -> WideloadError:
        reason = f"the name of a header is not UTF-8, as Kafka wants it, and the client cannot read the record: {error}"
        # aiokafka does not say where it was; the partition is the one whose reading has ended before its end.
        for partition, result in self._consumer._fetcher._records.items():  # noqa: SLF001
            records = getattr(result, "_partition_records", None)
            if records is not None and records._records_iterator.gi_frame is None:  # noqa: SLF001
                empty = (None, None, None, -1, -1, ())
                place = ConsumerRecord(partition.topic, partition.partition, records.next_fetch_offset, -1, 0, *empty)
                return RecordError(place, ValueError(reason), "; to go on, move the group's offset behind the record")
        return ClusterError(reason, retriable=False)

    async def _await_room(self) -> None:
        """Waits for bytes to come free. The client is not polled, so it reads no further and keeps what it has read."""
        if not await self._share.freed(_POLL_MS / 1000):
            await self._keep_membership()

    async def _await_resumed(self) -> None:
        """Waits for what the commits say: before that no record may be admitted, or it could be delivered again."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._resumed.wait(), _POLL_MS / 1000)
        await self._keep_membership()

    async def _await_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _POLL_MS / 1000)
        await self._keep_membership()

    async def _keep_membership(self) -> None:
        """Counts as a poll, or the group would take the partitions away after `max.poll.interval.ms`.

        Paused partitions give nothing, and lose what was read ahead; so this is done only when it is due.
        """
        interval_s = self._poll_interval_s()
        # aiokafka tells nobody else how long ago the last poll was, which is what it goes by itself.
        if self._consumer._subscription.fetcher_idle_time < interval_s:  # noqa: SLF001
            return
        assigned = list(self._lanes)
        self._consumer.pause(*assigned)
        try:
            await self._consumer.getmany(timeout_ms=0)
        finally:
            self._consumer.resume(*(partition for partition in assigned if partition in self._lanes))

    def _poll_interval_s(self) -> float:
        interval = self.settings.consumer["consumer.max.poll.interval.ms"]
        assert isinstance(interval, int)
        return interval / 3000  # a third of it, in seconds

    def _admit(self) -> None:
        share = self._share
        assembly = self._assembly
        while self._waiting:
            lane, records = self._waiting[0]
            while records:
                record = records[0]
                held = len(record.value or b"") + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
                if assembly is not None and assembly.takes(lane, record):
                    if not share.admits(held + assembly.reserve_bytes(record)):
                        return
                    self._assemble(assembly, lane, record)
                elif not lane.slots and self._chain.passes(record):
                    if not share.admits(held):
                        return
                    self._share.take(held)
                    tracker = lane.tracked(record.offset)
                    self._sink.append(self._sink_partition(lane, record), record, tracker, record.offset, held)
                else:
                    held += self._chain.reserve_bytes(record)
                    if not share.admits(held):
                        return
                    self._enqueue(lane, record, held)
                records.popleft()
                self._stats.records_in += 1
                self._stats.bytes_in += len(record.key or b"") + len(record.value or b"")
            self._waiting.popleft()

    # --- assembling --------------------------------------------------------------------------------------------------

    def _assemble(self, assembly: Assembly, lane: Lane, record: SourceRecord) -> None:
        """Takes a chunk. What is pending is not of the budget, or chunks could wait in it for those behind them."""
        lane.tracked(record.offset)
        whole, discarded = assembly.add(lane, record)
        if whole is None:
            lane.slots.append(Slot(record, 0, ()))
        else:
            self._enqueue(lane, whole, _held_bytes(whole) + self._chain.reserve_bytes(whole))
        for event in discarded:
            self._give_up(event)
        self._release(lane)

    def _expire(self, assembly: Assembly, *, reading: bool) -> None:
        assembly.tick(reading=reading and not any(lane.stalled for lane in self._lanes.values()))
        if not self._waiting:
            for event in assembly.expire():
                self._give_up(event)

    def _give_up(self, event: Discarded) -> None:
        """Gives each chunk of a message that will not be whole its outcome, at the end of its lane."""
        chunks = chunks_of(event)
        first = chunks[0]
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        if event.reason == "evicted" and self.settings.chunks.drops_oldest:
            self._stats.evicted_messages += 1
            log.warning(
                "pipeline %s: topic %s, partition %d, offset %d and %d other chunks are dropped: %s",
                self.settings.name,
                first.topic,
                first.partition,
                first.offset,
                len(chunks) - 1,
                error,
            )
            return
        lane = self._lanes[TopicPartition(first.topic, first.partition)]
        slot = Slot(chunks[-1], 0, hold=Hold(first.offset))
        assert slot.hold is not None
        lane.holds.append(slot.hold)
        lane.slots.append(slot)
        with self._outcomes(slot):
            slot.result = tuple(self._letter(chunk, error) for chunk in chunks)
            slot.dead = True
            self._hold_result(slot)
        self._release(lane)

    # --- transforming ------------------------------------------------------------------------------------------------

    def _enqueue(self, lane: Lane, record: SourceRecord, held: int) -> None:
        lane.tracked(record.offset)
        slot = Slot(record, held)
        lane.slots.append(slot)
        self._share.take(held)
        if self._chain.passes(record):
            slot.result = (record,)
            return
        if not self._chain.blocks(record):
            with self._outcomes(slot):
                slot.result, _ = self._chain.apply(record)
                self._hold_result(slot)
            self._release(lane)
            return
        task = asyncio.get_running_loop().create_task(self._transform(lane, slot))
        lane.tasks.add(task)
        task.add_done_callback(lane.tasks.discard)

    async def _transform(self, lane: Lane, slot: Slot) -> None:
        with self._outcomes(slot):
            slot.result, applied = await self._apply(lane, slot.source)
            self._count(applied, slot)
            self._hold_result(slot)
        self._release(lane)

    @contextlib.contextmanager
    def _outcomes(self, slot: Slot) -> Iterator[None]:
        """Gives each error of a record its outcome: a dead letter in place of the result, or the end of the flow."""
        try:
            try:
                yield
            except (TransformError, PayloadNotFoundError, ReferenceRefusedError) as exc:
                self._bury(slot, exc)
        except RecordError as exc:
            self._fail(exc)
        except PayloadStoreError as exc:
            self._fail(RecordError(slot.source, exc, "; the store refuses, so no record can pass it"))
        except Exception as exc:  # a defect of ours must stop the pipeline as loudly as an error of the record
            log.exception(_UNEXPECTED, self.settings.name)
            self._fail(RecordError(slot.source, exc, ""))

    async def _apply(self, lane: Lane, record: SourceRecord) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        """Tries until it succeeds or can never do so; a store that is down is not an error of the record."""
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        delay = _RETRY_DELAY_S
        stalled = False
        try:
            while True:
                try:
                    return await loop.run_in_executor(self._executor, self._apply_on_thread, record)
                except PayloadStoreError as exc:
                    self._stats.store_errors += 1
                    if not exc.retriable:
                        raise
                    self._stats.retries += 1
                    if not stalled and time.monotonic() - started > self.settings.store_timeout_ms / 1000:
                        stalled = True
                        lane.stalled += 1
                        log.warning("pipeline %s waits for its store: %s", self.settings.name, exc)
                    self._degrade(exc, "it is tried again")
                await asyncio.sleep(delay)
                delay = min(delay * 2, self.settings.retry_delay_max_ms / 1000)
        finally:
            if stalled:
                lane.stalled -= 1
                self._changed.set()

    def _degrade(self, error: PayloadStoreError, then: str) -> None:
        if self.degraded is None:
            log.warning("pipeline %s: the store failed, %s: %s", self.settings.name, then, error)
        self.degraded = str(error)

    def _fell_back_on_thread(self, error: PayloadStoreError) -> None:
        self._loop.call_soon_threadsafe(self._fell_back, error)

    def _fell_back(self, error: PayloadStoreError) -> None:
        self._stats.store_errors += 1
        self._degrade(error, "large values go as chunks")

    def _count(self, applied: Collection[str], slot: Slot) -> None:
        assert slot.result is not None
        stats = self._stats
        for name in applied:
            if name == "offload":
                stats.offloaded_records += 1
                stats.offloaded_bytes += len(slot.source.value or b"")
            elif name == "inflate":
                stats.inflated_records += 1
                stats.inflated_bytes += sum(len(result.value or b"") for result in slot.result)
            else:
                stats.chunked_messages += 1
                stats.chunks_published += len(slot.result)
                stats.published_rate.count()
        if "offload" in applied or "inflate" in applied:
            self.degraded = None

    def _hold_result(self, slot: Slot) -> None:
        """What is held from here on is the result; an offloaded value is gone, an inflated one has come."""
        assert slot.result is not None
        held = sum(map(_held_bytes, slot.result))
        self._share.give(slot.held - held)
        slot.held = held

    def _bury(self, slot: Slot, error: WideloadError) -> None:
        slot.result = (self._letter(slot.source, error),)
        slot.dead = True
        self._hold_result(slot)

    def _letter(self, source: SourceRecord, error: WideloadError) -> RecordLike:
        """The dead letter of a record that can never succeed.

        Raises:
            RecordError: there is no dead-letter topic, or it would not take the letter.
        """
        if self._dead_letters is None or self._plan.dead_letters is None:
            advice = '; errors.tolerance = "all" and a dead-letter topic would let the records behind it pass'
            raise RecordError(source, error, advice) from error
        topic = self._plan.dead_letters
        stage = ",".join(self.settings.transforms)
        # A chunk is as large as its topic takes; what is wrong with it must then be read in the log.
        for context in (True, False) if self.settings.dead_letter_context else (False,):
            letter = dead_letter(source, error, pipeline=self.settings.name, stage=stage, context=context)
            size = batch_of_one_bytes(letter)
            if size <= topic.max_message_bytes:
                break
        else:
            too_large = RecordTooLargeError(topic.name, size, topic.max_message_bytes)
            raise RecordError(source, error, f"; and it cannot be a dead letter: {too_large}") from error
        self._stats.dead_letters += 1
        log.warning(
            "pipeline %s: topic %s, partition %d, offset %d goes to %s: %s",
            self.settings.name,
            source.topic,
            source.partition,
            source.offset,
            topic.name,
            error,
        )
        return letter

    # --- writing -----------------------------------------------------------------------------------------------------

    def _release(self, lane: Lane) -> None:
        """Lets go of what is done, up to the first record that is not."""
        if self._failure is not None or self._lanes.get(lane.partition) is not lane:
            return
        while lane.slots and lane.slots[0].result is not None:
            slot = lane.slots.popleft()
            try:
                self._write(lane, slot)
            except Exception as exc:  # in a task of its own: raised, it would be seen by nobody
                log.exception(_UNEXPECTED, self.settings.name)
                self._fail(RecordError(slot.source, exc, ""))
                return
        self._sink.flush()
        if self._dead_letters is not None:
            self._dead_letters.flush()

    def _write(self, lane: Lane, slot: Slot) -> None:
        assert slot.result is not None
        tracker = lane.tracked(slot.source.offset)
        # What was discarded has no place of its own any more: it is written with the record that left last.
        offset = max(slot.source.offset, tracker.released - 1)
        if slot.hold is not None:
            slot.hold.last = offset
        if not slot.result:
            tracker.released = offset + 1
            self._durable.set()
        for result in slot.result:
            if slot.dead:
                assert self._dead_letters is not None
                assert self._plan.dead_letters is not None
                partition = slot.source.partition % self._plan.dead_letters.partitions
                self._dead_letters.append(partition, result, tracker, offset, _held_bytes(result))
            else:
                self._sink.append(self._sink_partition(lane, result), result, tracker, offset, _held_bytes(result))

    def _sink_partition(self, lane: Lane, record: RecordLike) -> int:
        if lane.sink_partition is not None:
            return lane.sink_partition
        partitions = self._plan.sink.partitions
        source_partition: int = lane.partition.partition
        if record.key is None:
            # Any would do; one for each source partition keeps their order.
            return source_partition % partitions
        hashed: int = murmur2(record.key)
        return (hashed & 0x7FFFFFFF) % partitions

    def _make_sink(self, topic: str) -> Sink:
        def failed(error: BaseException) -> None:
            told = clients.translated(error, f"writing to topic {topic}")
            # The next flow asks for the limit, and splits by that.
            retriable = told.retriable or (isinstance(error, MessageSizeTooLargeError) and self.settings.chunks.splits)
            self._fail(ClusterError(str(told), retriable=retriable))

        return Sink(
            self._producer, topic, self._share, failed=failed, acknowledged=self._acknowledged, large=self._large
        )

    def _acknowledged(self, records: int, size: int) -> None:
        self._stats.records_out += records
        self._stats.bytes_out += size
        self._durable.set()

    # --- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._changed.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- committing --------------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            # As soon as something is durable, then at most once an interval: a worker that is killed soon after its
            # start has committed what it had done.
            await self._durable.wait()
            self._durable.clear()
            try:
                await self._commit()
            except KafkaError as exc:
                self._fail(clients.translated(exc, f"committing offsets of group {self.settings.group_id}"))
                return
            except Exception as exc:  # or the flow would go on, and commit nothing any more
                log.exception(_UNEXPECTED, self.settings.name)
                self._fail(exc)
                return
            await asyncio.sleep(self.settings.flush_interval_ms / 1000)

    async def _commit(self) -> None:
        """Commits what is durable. A group that moves on meanwhile is no failure: the records are read again."""
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for partition, lane in self._lanes.items():
            tracker = lane.tracker
            if tracker is not None:
                commit = (tracker.safe(), "") if self._assembly is None else self._assembly.commit(lane)
                if commit[0] > tracker.committed or commit[1] != lane.noted:
                    offsets[partition] = commit
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError) as exc:
            log.info("pipeline %s: offsets not committed, the group has moved on: %s", self.settings.name, exc)
            return
        self._stats.commits += 1
        for partition, (offset, metadata) in offsets.items():
            committed = self._lanes.get(partition)
            if committed is not None and committed.tracker is not None:
                committed.tracker.committed = max(committed.tracker.committed, offset)
                committed.noted = metadata

    # --- rebalancing -------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finishes what is held, as far as time allows, commits it, and forgets the rest."""
        self._waiting.clear()
        if not self._lanes:
            return
        self._stats.rebalances += 1
        await self._drain()
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self._commit(), _STOP_CLIENT_S)
        self._discard(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Opens a lane for each partition."""
        self._discard(list(self._lanes))
        if self._looking_up is not None:
            self._looking_up.cancel()
        if self._assembly is not None:
            self._resumed.clear()
        for partition in assigned:
            sink_partition = self._plan.sink_partition(partition.topic, partition.partition)
            if sink_partition is not None and sink_partition >= self._plan.sink.partitions:
                reason = f"topic {partition.topic} has new partitions, partition {partition.partition} among them"
                self._fail(ClusterError(reason, retriable=True))
                return
            self._lanes[partition] = Lane(partition, sink_partition)
        # Not here: without a broker the answer never comes, and aiokafka waits for this method before it stops.
        self._looking_up = asyncio.get_running_loop().create_task(self._look_up_committed())
        self._joined()
        log.info(
            "pipeline %s reads %s",
            self.settings.name,
            ", ".join(f"{partition.topic}-{partition.partition}" for partition in sorted(assigned)) or "no partition",
        )

    async def _look_up_committed(self) -> None:
        """So that the lag of a partition is known before its first record, and what was delivered above that."""
        if self._assembly is not None:
            await self._resume(self._assembly)
            return
        for partition, lane in list(self._lanes.items()):
            with contextlib.suppress(KafkaError, IllegalStateError):
                lane.committed = await self._consumer.committed(partition)

    async def _resume(self, assembly: Assembly) -> None:
        lanes = dict(self._lanes)
        try:
            # `committed` keeps the metadata to itself.
            commits = await self._consumer._coordinator.fetch_committed_offsets(list(lanes))  # noqa: SLF001
        except (KafkaError, IllegalStateError) as exc:
            self._fail(clients.translated(exc, f"reading offsets of group {self.settings.group_id}"))
            return
        except Exception as exc:  # or the flow would wait for ever
            log.exception(_UNEXPECTED, self.settings.name)
            self._fail(exc)
            return
        for partition, lane in lanes.items():
            if partition in commits:
                lane.committed = commits[partition].offset
                assembly.resume(lane, commits[partition].metadata, self.settings.name)
        self._resumed.set()

    def _discard(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            lane = self._lanes.pop(partition, None)
            if lane is not None:
                self._share.give(sum(slot.held for slot in lane.slots))
                lane.discard()
                if self._assembly is not None:
                    self._assembly.clear(partition)

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self._waiting.clear()
        await self._drain()
        self._raise_failure()
        await asyncio.wait_for(self._commit(), _STOP_CLIENT_S)

    async def _drain(self) -> None:
        """Waits until all that was admitted is durable, at most the graceful time."""
        deadline = time.monotonic() + self._graceful_timeout_s
        while self._failure is None and any(lane.busy for lane in self._lanes.values()):
            if time.monotonic() > deadline:
                log.warning(
                    "pipeline %s: not all records were finished in %.1f s; they are read again",
                    self.settings.name,
                    self._graceful_timeout_s,
                )
                return
            # The next bytes, not those since `admits` said no: those may have come long ago, and nothing would wait.
            await self._share.budget.freed(0.05)

    async def _stop_clients(self) -> None:
        self._sink.discard()
        if self._dead_letters is not None:
            self._dead_letters.discard()
        for name, stop in (("producer", self._abandon_producer), ("consumer", self._consumer.stop)):
            await self._quietly(name, stop)

    async def _quietly(self, name: str, stop: Callable[[], object]) -> None:
        try:
            stopping = stop()
            assert asyncio.iscoroutine(stopping)
            await asyncio.wait_for(stopping, _STOP_CLIENT_S)
        except (KafkaError, OSError, TimeoutError, asyncio.CancelledError) as exc:
            log.info("pipeline %s: its %s did not stop cleanly: %r", self.settings.name, name, exc)

    async def _abandon_producer(self) -> None:
        """Stops the producer without waiting for batches that it still holds.

        `stop` of aiokafka would flush first, and with a broker that is down it never ends; nor may an old batch be
        sent once the next flow has begun. Drained flows hold none.
        """
        await self._producer.client.close()
        await self._producer._sender.close()  # noqa: SLF001  # the one way to stop it without a flush
        await self._producer.stop()


def _held_bytes(record: RecordLike) -> int:
    return len(record.value or b"") + len(record.key or b"") + _RECORD_OVERHEAD_BYTES
