"""A flow: one life of a pipeline, from clients that start to clients that stop.

Reads batches from the source partitions, lets records pass or puts them through the transforms on threads, writes the
results in source order, and commits what is durable. Whatever goes wrong with the clients ends the flow; the next one
begins at the committed offsets. So there is one way of recovery, and it is the one that a restart takes.

A record goes from `GroupConsumer` to `Admission`. If it passes, `Output` writes it. If it does not, `Dispatcher`
applies the transforms (with `Retries` and `ErrorPolicy`), and then `Output` writes the result. `Commits` commits what
is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from app.cluster.preflight import Plan
from app.config.settings import ClientSettings, PipelineSettings
from app.deadletters.writer import Letters
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError, batch_settings, translated
from app.kafka.consumer import GroupConsumer
from app.pipeline.admission import Admission
from app.pipeline.assembly import Assembly
from app.pipeline.budget import Budget, Share
from app.pipeline.chain import Chain
from app.pipeline.commits import Commits
from app.pipeline.dispatch import Dispatcher
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.exactly_once import Transactions
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.learned_limits import LimitError, UnfitError
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.output import Output
from app.pipeline.retries import Retries
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import RecordError, Termination
from app.pipeline.topic_watcher import LimitRaisedError, PartitionsChangedError, TopicWatcher
from stores.store import PayloadStore

__all__ = ["Flow"]

log = logging.getLogger(__name__)

_POLL_MS = 200
_PEEK_S = 0.05
_STOP_CLIENT_S = 10.0


class Flow(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """One life of a pipeline. Belongs to one event loop; `run` once.

    Args:
        client: how to reach the cluster.
        settings: the pipeline's.
        plan: what the preflight found.
        chain: the transforms.
        store: of the pipeline; None where it has none.
        budget: shared by all pipelines.
        executor: where transforms run.
        stats: what is counted.
        graceful_timeout_s: how long to drain before partitions are given up.
        joined: called when the group has given the worker its share of the partitions, which may be none.
        renewed: source topics that were created anew since the last flow began.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    # State that changes is with the parts; each changes its own on the event loop, between two awaits, so there is no
    # lock.

    def __init__(
        self,
        client: ClientSettings,
        settings: PipelineSettings,
        plan: Plan,
        chain: Chain,
        *,
        store: PayloadStore | None = None,
        budget: Budget,
        executor: Executor,
        stats: PipelineStats,
        graceful_timeout_s: float,
        joined: Callable[[], None],
        renewed: Collection[str] = (),
    ) -> None:
        self.settings = settings
        self._plan = plan
        self._stats = stats
        self._graceful_timeout_s = graceful_timeout_s
        interval_ms = settings.consumer["consumer.max.poll.interval.ms"]
        assert isinstance(interval_ms, int)
        self._rebalance_s = interval_ms / 1000
        self._joined = joined
        self._changed = asyncio.Event()
        self._termination = termination = Termination(settings.name, self._changed.set)
        self._share = share = Share(budget)
        self._assembly = Assembly(settings.chunks, stats) if settings.chunks.assembles else None
        self._lanes = lanes = Lanes(share, self._assembly)
        self._brokers = brokers = _brokers(settings)
        self._consumer = GroupConsumer(client, settings, brokers)
        self._commits = Commits(self._consumer, settings, lanes, self._assembly, stats=stats, termination=termination)
        self._output: Output | Transactions
        if settings.guarantee.exactly_once:
            self._output = Transactions(
                client,
                settings,
                plan,
                share,
                lanes,
                brokers=brokers,
                commits=self._commits,
                stats=stats,
                termination=termination,
            )
            self._commits.through(self._output)
        else:
            self._output = Output(
                client,
                settings,
                plan,
                share,
                brokers=brokers,
                stats=stats,
                termination=termination,
                durable=self._commits.due,
            )
        self._offset_reset = OffsetReset(self._consumer, settings, lanes, stats=stats, renewed=renewed)
        self._retries = Retries(chain, executor, settings, stats=stats, unstalled=self._changed.set)
        letters = None if plan.dead_letters is None else Letters(settings, plan.dead_letters, store)
        dispatcher = Dispatcher(
            lanes,
            share,
            retries=self._retries,
            error_policy=ErrorPolicy(settings, letters, share, executor=executor, stats=stats, termination=termination),
            output=self._output,
            termination=termination,
        )
        self._admission = Admission(
            chain, lanes, share, assembly=self._assembly, output=self._output, dispatcher=dispatcher, stats=stats
        )

    @property
    def degraded(self) -> str | None:
        """Why records wait, or may have to, or go without the store; None where they do not."""
        return "; ".join(filter(None, (self._retries.degraded, self._brokers.trouble, self._consumer.trouble))) or None

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
        """For each assigned partition: the offset read up to, the committed one, and the end of what can be read."""
        ends = self._consumer.ends()
        return {lane.partition: self._position(lane, ends) for lane in self._lanes if lane.partition in ends}

    def _position(
        self, lane: Lane, ends: Mapping[TopicPartition, int | None]
    ) -> tuple[int | None, int | None, int | None]:
        position = lane.tracker.released if lane.tracker else lane.committed
        committed = lane.tracker.committed if lane.tracker else lane.committed
        end = ends[lane.partition]
        if end is not None and position == committed and not lane.busy and not self._admission.waits:
            read = self._consumer.position(lane.partition)
            if read is not None and read >= end:
                # What is left are the marks of transactions and what compaction has taken: no records.
                end = committed
        return position, committed, end

    @property
    def renewing(self) -> bool:
        """True until topics that were created anew are read from their first record."""
        return self._offset_reset.renewing

    def stop(self) -> None:
        """Asks `run` to drain, to commit, and to return."""
        self._termination.ask()

    async def run(self) -> None:
        """Moves records until `stop`.

        Raises:
            ClusterError: a client failed, or topics are not those of the plan any more; what was not committed is read
                again by the next flow. `LimitError` where a topic takes less than the plan says.
            RecordError: a record stopped the pipeline; its offset and those after it are not committed.
        """
        topic_watcher = TopicWatcher(self._plan, self._termination, self._consumer.send)
        watching: list[asyncio.Task[None]] = []
        try:
            await self._output.start()
            await self._join()
            self._commits.begin()
            watching = [asyncio.create_task(each) for each in (topic_watcher.watch(), self._watch_brokers())]
            while not self._termination.asked:
                self._termination.raise_error()
                await self._turn()
            self._commits.end()
            await self._finish()
        except (LimitError, LimitRaisedError, PartitionsChangedError, UnfitError, RecordError) as exc:
            if isinstance(exc, UnfitError):
                exc.partition = next((lane.partition for lane in self._lanes if lane.tracker is exc.tracker), None)
            self._commits.end()
            if isinstance(exc, RecordError) and not self.settings.guarantee.exactly_once:
                raise
            # All that is written, before the refused record if there is one, shall not be written again, or be aborted.
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._output.settled(), _STOP_CLIENT_S)
                await asyncio.wait_for(self._commits.commit(), _STOP_CLIENT_S)
            raise
        except (KafkaError, IllegalStateError, OSError, TimeoutError) as exc:
            raise translated(exc, f"group {self.settings.group_id}") from exc
        finally:
            for task in watching:
                task.cancel()
            await self._commits.close()
            self._lanes.discard_all()
            await self._stop_clients()
            self._share.close()

    async def _watch_brokers(self) -> None:
        """aiokafka asks the addresses that it knows, for ever; new clients ask those of `bootstrap.servers`."""
        told = await self._brokers.silent(batch_settings(self.settings).delivery_timeout_s)
        error = ClusterError(f"{told}; bootstrap.servers is asked again", retriable=True)
        self._termination.fail(error)
        self._consumer.interrupt(KafkaConnectionError(str(error)))

    async def _join(self) -> None:
        """Joins the group, which takes as long as its slowest member; not beyond `stop`."""
        loop = asyncio.get_running_loop()
        joining = loop.create_task(self._consumer.start(self))
        changed = loop.create_task(self._changed.wait())
        try:
            await asyncio.wait([joining, changed], return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
        finally:
            joining.cancel()
            changed.cancel()
            await asyncio.gather(joining, changed, return_exceptions=True)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        reading = not self._admission.waits and self._commits.may_read
        if self._offset_reset.fresh:
            await self._renew()
        elif reading:
            await self._poll()
        elif not self._commits.resumed:
            await self._await_resumed()
        else:
            await self._poll_others()
        if self._commits.resumed:
            self._admission.admit()
        if self._admission.expire(reading=reading):
            self._commits.due()
        self._output.flush()
        # A poll with data at hand returns without a pause; senders and acknowledgements need their turn.
        await asyncio.sleep(0)

    async def _poll(self) -> None:
        wanted = [lane.partition for lane in self._lanes if not lane.stalled] if self._lanes.stalled else []
        if self._lanes.stalled and not wanted:
            await self._await_change()
            return
        await self._read(wanted, _POLL_MS)

    async def _read(self, partitions: Sequence[TopicPartition], timeout_ms: int) -> bool:
        """Reads some partitions, or all where none are named; whether there was something."""
        try:
            polled = await self._consumer.poll(partitions, timeout_ms)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as exc:
            if self._commits.may_read:
                await self._unless_ended(self._offset_reset.find(exc))
            return False
        # No await may stand between the poll and this: a rebalance in between would leave records of lost partitions.
        if not self._commits.may_read:
            # A rebalance during the poll: this was read before it was known from where on.
            self._consumer.unread(polled)
            return False
        self._admission.add(polled)
        return bool(polled)

    async def _renew(self) -> None:
        await self._unless_ended(self._offset_reset.renew())
        if not self._offset_reset.fresh:
            self._commits.look_up()

    async def _unless_ended(self, looking: Coroutine[None, None, None]) -> None:
        """Waits for what asks the brokers, which may be away, but no longer than the flow goes on."""
        task = asyncio.get_running_loop().create_task(looking)
        try:
            while not task.done() and not self._termination.asked and self._termination.error is None:
                await asyncio.wait([task], timeout=_POLL_MS / 1000)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _poll_others(self) -> None:
        """Reads the partitions of which no records wait for room, without letting those wait that have some by now."""
        wanted = [lane.partition for lane in self._lanes if not lane.stalled and not self._admission.holds(lane)]
        if not wanted:
            await self._await_room()
            return
        if not await self._read(wanted, 0):
            self._output.press()
            await self._share.freed(_PEEK_S)

    async def _await_room(self) -> None:
        """Waits for bytes to come free. The client is not polled, so it reads no further and keeps what it has read."""
        self._output.press()  # nothing comes in that could fill batches
        if not await self._share.freed(_POLL_MS / 1000):
            await self._consumer.keep_membership()

    async def _await_resumed(self) -> None:
        """Waits for what the commits say: before that no record may be admitted, or it could be delivered again."""
        await self._commits.resumed_within(_POLL_MS / 1000)
        await self._consumer.keep_membership()

    async def _await_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _POLL_MS / 1000)
        await self._consumer.keep_membership()

    # --- rebalancing -------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finishes what is held, as far as time allows, commits it, and forgets the rest."""
        self._admission.clear()
        if not len(self._lanes):
            return
        self._stats.rebalances += 1
        began = time.monotonic()
        await self._drain()
        # After `max.poll.interval.ms` the group goes on without this member, and takes no commit from it.
        left_s = self._rebalance_s - (time.monotonic() - began)
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self._commits.commit(), min(_STOP_CLIENT_S, left_s))
        self._discard(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Opens a lane for each partition."""
        if self._commits.closed:
            return  # the flow leaves the group; what it took now, producers too, it would take from the next one
        self._discard([lane.partition for lane in self._lanes])
        for partition in assigned:
            sink_partition = self._plan.sink_partition(partition.topic, partition.partition)
            if sink_partition is not None and sink_partition >= self._plan.sink.partitions:
                reason = f"topic {partition.topic} has new partitions, partition {partition.partition} among them"
                self._termination.fail(ClusterError(reason, retriable=True))
                return
            self._lanes.open(partition, sink_partition)
        # Not awaited: without a broker the answer never comes, and aiokafka waits for this method before it stops.
        self._offset_reset.assigned(assigned)
        if not self._offset_reset.fresh:
            self._commits.look_up()
        self._joined()
        log.info(
            "pipeline %s reads %s",
            self.settings.name,
            ", ".join(f"{partition.topic}-{partition.partition}" for partition in sorted(assigned)) or "no partition",
        )

    def _discard(self, partitions: Collection[TopicPartition]) -> None:
        self._commits.forget()
        self._lanes.discard(partitions)
        if isinstance(self._output, Transactions):
            self._output.forget(partitions)

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self._admission.clear()
        await self._drain()
        self._termination.raise_error()
        await asyncio.wait_for(self._commits.commit(), _STOP_CLIENT_S)

    async def _drain(self) -> None:
        """Waits until all that was admitted is durable, at most the graceful time."""
        deadline = time.monotonic() + self._graceful_timeout_s
        while self._termination.error is None and self._lanes.busy:
            if time.monotonic() > deadline:
                log.warning(
                    "pipeline %s: not all records were finished in %.1f s; they are read again",
                    self.settings.name,
                    self._graceful_timeout_s,
                )
                return
            self._output.press()
            # The next bytes, not those since `admits` said no: those may have come long ago, and nothing would wait.
            await self._share.budget.freed(0.05)

    async def _stop_clients(self) -> None:
        self._output.discard()
        await self._quietly("producer", self._output.stop)
        await self._quietly("consumer", self._consumer.stop)

    async def _quietly(self, name: str, stop: Callable[[], Awaitable[None]]) -> None:
        try:
            await asyncio.wait_for(stop(), _STOP_CLIENT_S)
        except (KafkaError, OSError, TimeoutError, asyncio.CancelledError) as exc:
            log.info("pipeline %s: its %s did not stop cleanly: %r", self.settings.name, name, exc)


def _brokers(settings: PipelineSettings) -> BrokerHealth:
    fetch_wait_ms = settings.consumer["consumer.fetch.max.wait.ms"]
    assert isinstance(fetch_wait_ms, int)
    topics = [*settings.topics, settings.output_topic]
    if settings.dead_letter_topic is not None:
        topics.append(settings.dead_letter_topic)
    return BrokerHealth(topics, fetch_wait_ms / 1000)
