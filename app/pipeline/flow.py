"""A flow: one life of a pipeline, from clients that start to clients that stop.

Reads batches from the source partitions, lets records pass or puts them through the transforms on threads, writes the
results in source order, and commits what is durable. Whatever goes wrong with the clients ends the flow; the next one
starts at the committed offsets. There is therefore only one way of recovery: that of a restart.
`app.pipeline` describes how a record is processed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import cast

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError, batch_settings, describe, translated
from app.kafka.errors import KafkaError
from app.kafka.flow_clients import FlowClients
from app.kafka.structs import TopicPartition
from app.kafka.troubles import OF_STORE, OF_TOPICS, Troubles
from app.pipeline.admission import Admission
from app.pipeline.budget import Budget, Share
from app.pipeline.chain import Chain
from app.pipeline.delivery import AtLeastOnce, Delivery, ExactlyOnce
from app.pipeline.dispatch import Dispatcher, PayloadAgedError
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.lanes import Lanes
from app.pipeline.learned_limits import LimitError, UnfitError
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.parts import Parts
from app.pipeline.poll_loop import PollLoop
from app.pipeline.progress import Progress
from app.pipeline.report import FlowReport
from app.pipeline.retries import Retries
from app.pipeline.runtime import Runtime
from app.pipeline.state_log import uncommitted_text
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import RecordError, Termination
from app.pipeline.topic_watcher import TopicChangedError, TopicWatcher
from stores.store import PayloadStore
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_STOP_CLIENT_S = 10.0
_STORE_S = 1.0  # for records that do not wait for a store that fails

# After these errors what is written is committed, or it would be written again.
_KEEPING_WRITTEN = (LimitError, PayloadAgedError, UnfitError, RecordError)


class Flow:
    """One life of a pipeline. Belongs to one event loop; `run` once.

    `clients` opens its clients. `chain` is for what the output topic of the plan accepts. `found` is the plan without
    the limits that refusals taught; None if `plan` has none of them. `joined` is called when the group has assigned
    partitions, or none. `renewed` are the source topics that were recreated since the last flow started. `before`
    is how far that flow had come.

    Attributes:
        progress: how far the flow has come in each partition.
        brokers: which brokers answer.
        topic_watcher: watches the topics.
        left: what was not committed when the flow ended; see `Lanes.uncommitted`.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    # State that changes is in the parts. Each changes its own on the event loop, between two awaits: there is no lock.

    def __init__(
        self,
        clients: FlowClients,
        settings: PipelineSettings,
        plan: Plan,
        chain: Chain,
        *,
        found: Plan | None = None,
        store: PayloadStore | None = None,
        budget: Budget,
        runtime: Runtime,
        stats: PipelineStats,
        troubles: Troubles,
        graceful_timeout_s: float,
        joined: Callable[[], None],
        renewed: Collection[str] = (),
        before: Progress | None = None,
    ) -> None:
        self.settings = settings
        self._plan = plan
        self._stats = stats
        self._graceful_timeout_s = graceful_timeout_s
        interval_ms = settings.consumer["consumer.max.poll.interval.ms"]
        assert isinstance(interval_ms, int)
        self._rebalance_s = interval_ms / 1000
        self._joined = joined
        self._clock = clock = runtime.monotonic
        self._termination = termination = Termination(settings.name, self._wake)
        self._share = share = Share(budget)
        self._assembler = None
        if settings.chunks.assembles:
            self._assembler = LaneAssembler(settings.chunks, stats, clock=clock, metadata_bytes=plan.metadata_bytes)
        self._lanes = lanes = Lanes(share, self._assembler)
        self._troubles = troubles
        self.brokers: BrokerHealth = _brokers(settings, stats, troubles)
        brokers = self.brokers
        self._source = clients.source(brokers, share)
        self.topic_watcher: TopicWatcher = TopicWatcher(
            found or plan,
            termination,
            self._source.send,
            troubles,
            chunked=settings.chunks.expects_chunks,
        )
        self._retries = Retries(
            chain, runtime, settings, stats=stats, troubles=troubles, unstalled=budget.wake, store=store
        )
        self._offset_reset = reset = OffsetReset(self._source, settings, lanes, stats=stats, renewed=renewed)
        parts = Parts(
            settings, plan, clients, self._source, brokers, lanes, reset, share, stats, termination, runtime.time
        )
        make_delivery = ExactlyOnce if settings.guarantee.exactly_once else AtLeastOnce
        self._delivery: Delivery = make_delivery(parts)
        error_policy = ErrorPolicy(parts, store, runtime)
        dispatcher = Dispatcher(parts, self._retries, error_policy, self._delivery, clock=clock)
        admission = Admission(parts, chain, self._assembler, self._delivery, dispatcher)
        self.left: Mapping[TopicPartition, tuple[int, int]] = {}
        self.progress: Progress = Progress(lanes, self._source, before)
        self._poll_loop = PollLoop(parts, admission, self._delivery, clock=clock)
        self._leaving = self._renewing_store = False
        self._had: set[TopicPartition] = set()

    @property
    def refused(self) -> int | None:
        """The last error of a broker that may mean a name over its limit; None for none."""
        return self.brokers.refused

    @property
    def report(self) -> FlowReport:
        """How far it has come, and what it holds."""
        share, assembler = self._share, self._assembler
        positions, oldest_ms = self.progress.latest
        return FlowReport(
            share.used,
            share.ahead,
            0 if assembler is None else assembler.pending,
            0 if assembler is None else assembler.pending_bytes,
            self._poll_loop.paused,
            oldest_ms,
            positions,
        )

    @property
    def renewing(self) -> bool:
        """True until recreated topics are read from their first record."""
        return self._offset_reset.renewing

    @property
    def paused(self) -> bool:
        """True while it is paused, and reads nothing any more."""
        return self._poll_loop.all_paused

    def pause(self, *, paused: bool) -> None:
        """Pauses or resumes. A paused flow finishes and commits what it has admitted, and stays in the group."""
        self._poll_loop.pause_asked = paused

    def stop(self, *, renewing_store: bool = False) -> None:
        """Asks `run` to drain, to commit, and to return; with `renewing_store`, not to wait for a store that fails."""
        self._renewing_store = self._renewing_store or renewing_store
        self._termination.ask()

    def _wake(self) -> None:
        self._share.budget.wake()
        self._source.interrupt()

    async def run(self) -> None:
        """Moves records until `stop`.

        Raises:
            ClusterError: a client failed, or topics are not those of the plan any more; the next flow reads again what
                was not committed. `LimitError` if a topic accepts less than in the plan.
            RecordError: a record stopped the pipeline; its offset and those after it are not committed.
        """
        watching: list[asyncio.Task[None]] = []
        try:
            watching.append(self._termination.begin(self._watch_brokers(), lasting=True))
            await self._termination.unless_ended(self._delivery.start())
            await self._join()
            watched = self.topic_watcher.watch(), self._watch_membership()
            watching += [self._termination.begin(each, lasting=True) for each in watched]
            while not self._termination.asked:
                self._termination.raise_error()
                await self._poll_loop.turn()
            await self._finish()
        except (ClusterError, RecordError) as exc:
            changed = exc if isinstance(exc, TopicChangedError) else None
            if isinstance(exc, _KEEPING_WRITTEN) or (changed is not None and changed.same_log):
                await self._commit_written()
            await self._raise_if_replaced(exc)
            if changed is not None and changed.topic in self.settings.topics:
                self._source.give_up_place()
            lacking = self._troubles.text(*OF_TOPICS)
            if type(exc) is ClusterError and lacking is not None:
                raise ClusterError(f"{exc}; {lacking}", retriable=exc.retriable, forbidden=exc.forbidden) from exc
            raise
        except (KafkaError, OSError, TimeoutError) as exc:
            await self._raise_if_replaced(exc)
            raise translated(exc, f"group {self.settings.group_id}") from exc
        finally:
            self._leaving = True
            for task in watching:
                task.cancel()
            async with contextlib.AsyncExitStack() as ending:  # if one raises, the others are called too
                ending.callback(self._share.close)
                ending.push_async_callback(self._quietly, "consumer", self._source.stop)
                ending.push_async_callback(self._quietly, "producer", self._delivery.stop)
                await self._delivery.offsets.close()
                self.progress.freeze()
                self.left = self._lanes.uncommitted()
                self._lanes.discard(lane.partition for lane in self._lanes)
                self._troubles.end_flow()

    async def _commit_written(self) -> None:
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self._delivery.settled(), _STOP_CLIENT_S)
            await asyncio.wait_for(self._delivery.commit(), _STOP_CLIENT_S)

    async def _watch_brokers(self) -> None:
        """Ends the flow if no broker answers: aiokafka asks only known addresses, new clients `bootstrap.servers`."""
        told = await self.brokers.silent(batch_settings(self.settings).delivery_timeout_s)
        self._termination.fail(ClusterError(f"{told}; bootstrap.servers is asked again", retriable=True))

    async def _watch_membership(self) -> None:
        """Ends the flow if another worker is in its place."""
        await self._source.replaced()
        self._termination.fail(self._replaced())

    async def _raise_if_replaced(self, error: BaseException) -> None:
        """After an error: the next flow would join again, and so put the other worker out."""
        if not isinstance(error, RecordError) and await self._source.is_replaced():
            raise self._replaced() from error

    def _replaced(self) -> ClusterError:
        key = "consumer.group.instance.id"
        return ClusterError(
            f"another worker has joined group {self.settings.group_id} with {key} = {self.settings.consumer[key]!r}, "
            f"and this one is out of it: give each worker a different {key}, or none",
            retriable=False,
        )

    async def _join(self) -> None:
        """Joins the group, which takes as long as its slowest member, but no longer than until the termination."""
        session_s = cast("int", self.settings.consumer["consumer.session.timeout.ms"]) / 1000
        with self._troubles.joining(self.settings.group_id, session_s, self._rebalance_s):
            await self._termination.unless_ended(self._source.start(self))

    # --- rebalancing -------------------------------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Finishes the records in flight, as far as time allows, commits them, and forgets the rest."""
        self._lanes.let_go()
        if not len(self._lanes):
            return
        self._stats.rebalances += 1
        began = self._clock()
        await self._drain()
        # After `max.poll.interval.ms` the group continues without this member, and accepts no commit from it.
        left_s = self._rebalance_s - (self._clock() - began)
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self._delivery.commit(), min(_STOP_CLIENT_S, left_s))
        self.progress.freeze()
        self._discard(sorted(revoked))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Opens a lane for each partition."""
        if self._leaving:
            return  # what the flow took now, producers too, it would take from the next one
        self._discard([lane.partition for lane in self._lanes])
        for partition in sorted(assigned):
            sink_partition = self._plan.sink_partition(partition.topic, partition.partition)
            if sink_partition is not None and sink_partition >= self._plan.sink.partitions:
                reason = f"topic {partition.topic} has new partitions, partition {partition.partition} among them"
                self._termination.fail(ClusterError(reason, retriable=True))
                return
            # With one output partition there is nothing for the key to decide.
            self._lanes.open(partition, 0 if self._plan.sink.partitions == 1 else sink_partition)
        self.progress.begin()
        # Not awaited: without a broker the answer never comes, and aiokafka waits for this method before it stops.
        self._delivery.offsets.look_up()
        self._joined()
        gone, self._had = self._had - assigned, set(assigned)
        given_back = f"; gave back {_named(gone)}" if gone else ""
        fields = {
            "partitions": [_name(each) for each in sorted(assigned)],
            "given_back": [_name(each) for each in sorted(gone)],
        }
        told = _named(assigned)
        log.info("pipeline %s reads %s%s", self.settings.name, told, given_back, extra={"fields": fields})

    def _discard(self, partitions: Collection[TopicPartition]) -> None:
        self._lanes.discard(partitions)
        self._delivery.forget()

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self._poll_loop.look()
        self._lanes.let_go()
        await self._drain()
        self._termination.raise_error()
        await asyncio.wait_for(self._delivery.commit(), _STOP_CLIENT_S)

    async def _drain(self) -> None:
        """Waits until all that was admitted is durable, at most the graceful time."""
        began = self._clock()
        while self._termination.error is None and self._lanes.busy:
            waited_s = self._clock() - began
            if self._renewing_store and self._troubles.text(*OF_STORE) and waited_s > _STORE_S:
                log.info("pipeline %s: records that wait for the store are read again", self.settings.name)
                return
            if waited_s > self._graceful_timeout_s:
                log.warning(
                    "pipeline %s: not all records were finished in %.1f s (task.shutdown.graceful.timeout.ms); %s",
                    self.settings.name,
                    self._graceful_timeout_s,
                    uncommitted_text(self._lanes.uncommitted()),
                )
                return
            self._delivery.press()
            # The budget's event, not the share's, which may have been set long ago: nothing would wait.
            await self._share.budget.freed(0.05)

    async def _quietly(self, name: str, stop: Callable[[], Awaitable[None]]) -> None:
        try:
            await asyncio.wait_for(stop(), _STOP_CLIENT_S)
        except (KafkaError, OSError, TimeoutError, asyncio.CancelledError) as exc:
            log.info("pipeline %s: its %s did not stop cleanly: %s", self.settings.name, name, describe(exc))


def _named(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(_name, sorted(partitions))) or "no partition"


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _brokers(settings: PipelineSettings, stats: PipelineStats, troubles: Troubles) -> BrokerHealth:
    fetch_wait_ms = settings.consumer["consumer.fetch.max.wait.ms"]
    assert isinstance(fetch_wait_ms, int)
    topics = [*settings.topics, settings.output_topic]
    if settings.dead_letter_topic is not None:
        topics.append(settings.dead_letter_topic)
    return BrokerHealth(topics, fetch_wait_ms / 1000, troubles, throttled=stats.throttled)
