"""A pipeline: a service of the Faust app that keeps a flow running, and reports its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Literal, cast

from faust import Service

from app.cluster import capacity
from app.cluster.enforced_limits import is_over_limit, refused_names
from app.cluster.preflight import Plan, plan_pipeline
from app.config.secret import without_secrets
from app.config.settings import ClientSettings, PipelineSettings, Settings
from app.kafka.clients import ClusterError, sharing_context
from app.kafka.flow_clients import FlowClients
from app.kafka.shielded import set_within
from app.kafka.structs import TopicPartition
from app.kafka.troubles import OF_CLUSTER, OF_STORE, Troubles
from app.pipeline import background
from app.pipeline.budget import Budget
from app.pipeline.chain import build
from app.pipeline.flow import Flow
from app.pipeline.learned_limits import LearnedLimits, LimitError, UnfitError
from app.pipeline.pipeline_store import PipelineStore
from app.pipeline.report import FlowReport, Target
from app.pipeline.runtime import Runtime
from app.pipeline.stages import UnfitStage
from app.pipeline.state_log import StateLog
from app.pipeline.stats import PipelineStats
from transforms.errors import ConfigurationError, WideloadError
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

State = Literal["STARTING", "RUNNING", "PAUSED", "RESTARTING", "FAILED", "STOPPED"]

_FIRST_DELAY_S = 0.5
_STOP_S = 10.0
_STEADY_S = 60.0  # a flow that ran this long has recovered; the next failure starts with the first delay


class Pipeline(Service):
    """Runs one pipeline: a flow, and another one after a failure that may pass, until it is stopped.

    A pipeline that has run once is not given up if the cluster then refuses something: a topic that is gone, a right
    that was taken away. It waits, retries, and reports that.

    Only a restart on request, and a stop, close its store: the next flow opens it again, with the
    credentials and certificates of then.

    `settings` are those of the worker. Without a plan it checks the cluster first. `ended` is called when it has
    failed; after that it waits until `request_restart`. `runtime` is of this pipeline alone: its threads end with it.
    """

    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like

    def __init__(
        self,
        settings: Settings,
        pipeline: PipelineSettings,
        *,
        plan: Plan | None,
        budget: Budget,
        ended: Callable[[Pipeline], None],
        runtime: Runtime,
    ) -> None:
        super().__init__()
        self.settings = pipeline
        self.stats = PipelineStats.by(runtime.monotonic)
        self._status: State = "STARTING"
        self.target: Target = "STARTED"
        self.last_error: str | None = None
        self.last_error_at: float | None = None
        self.failing_since: float | None = None
        self.flow: Flow | None = None
        self.plan = plan
        self._worker = settings
        self._budget = budget
        self._runtime = runtime
        self._ended = ended
        self._learned_limits = LearnedLimits()
        self._store = PipelineStore(settings.client, pipeline, runtime.threads, self.stats)
        self._supervisor: asyncio.Task[None] | None = None
        self._ending = False
        self._woken = asyncio.Event()  # something is asked for, whatever the supervisor waits for
        self._restart_requested = False  # a request has ended the current flow
        self._joined_s: float | None = None
        self._proven = False
        self._seen_topics: set[str] = set()
        self._topic_ids: dict[str, str] = {}
        self._left: Mapping[TopicPartition, tuple[int, int]] = {}  # by the last flow that has joined the group
        self._troubles = Troubles(pipeline.name, runtime.monotonic)
        self._log = StateLog(self, self._troubles)
        self._following: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        """The name of this service in Faust's log."""
        return f"Pipeline: {self.settings.name}"

    @property
    def status(self) -> State:
        """What it is now; paused once nothing is read any more."""
        paused = self.target == "PAUSED" and self.flow is not None and self.flow.paused
        return "PAUSED" if paused and self._status == "RUNNING" else self._status

    @property
    def degraded(self) -> str | None:
        """The reason why records wait though the pipeline runs; None if they do not."""
        degraded = self._troubles.text(*OF_STORE, *OF_CLUSTER)
        return None if degraded is None else without_secrets(degraded)

    @property
    def flow_report(self) -> FlowReport:
        """See `PipelineReport`."""
        return FlowReport() if self.flow is None else self.flow.report

    def steer(self, target: Target) -> None:
        """See `PipelineControl`."""
        if target == self.target:
            return
        self._log.is_asked(f"to be {target}")
        self.target = target
        self._restart_requested = self._restart_requested or target == "STOPPED"
        self._forget_former()
        if self.flow is not None and target == "STOPPED":
            self.flow.stop()
        elif self.flow is not None:
            self.flow.pause(paused=target == "PAUSED")
        self._woken.set()

    def request_restart(self) -> None:
        """See `PipelineControl`."""
        if self.target == "STOPPED":
            return
        self._log.is_asked("to restart")
        self._forget_former()
        if self._status == "FAILED":
            self._status = "STARTING"
        elif self._status != "STARTING":
            self._status = "RESTARTING"
        self._restart_requested = True
        if self.flow is not None:
            self.flow.stop(renewing_store=True)
        self._woken.set()

    def _forget_former(self) -> None:
        """What a pipeline that runs has failed with before is not why it is restarted or stopped now."""
        if self._status == "RUNNING":
            self.failing_since = None

    @property
    def awaited(self) -> str | None:
        """What the pipeline waits for before it runs, and until when at the latest; None if that is not known."""
        return self._troubles.awaited if self.status != "RUNNING" else None

    async def on_start(self) -> None:
        """Begins; returns before the first record."""
        self._supervisor = background.begin(self._supervise(), self._give_up)
        self._following = background.begin(self._log.follow(), self._log_defect, lasting=True)

    async def on_stop(self) -> None:
        """Drains, commits, and closes the store."""
        self._ending = True
        self._woken.set()
        if self.flow is not None:
            self.flow.stop()
        if self._supervisor is not None:
            # After the drain there is only the wait for brokers that do not answer.
            patience_s = self._worker.graceful_timeout_ms / 1000 + _STOP_S
            await asyncio.wait([self._supervisor], timeout=patience_s)
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._following is not None:
            await background.end(self._following)
            self._log.ends(self._left)
        await self._store.close()
        self._runtime.threads.close()

    def _log_defect(self, error: BaseException) -> None:
        log.error("pipeline %s: unexpected error, its log ends", self.settings.name, exc_info=error)

    async def _supervise(self) -> None:
        delay_s = _FIRST_DELAY_S
        task = cast("asyncio.Task[None]", asyncio.current_task())
        while not self._ending:
            try:
                delay_s = await self._turn(delay_s)
            except (Exception, asyncio.CancelledError) as exc:
                if task.cancelling():
                    raise
                # A defect of ours, or a library has cancelled what the flow waits for. The other pipelines must not go
                # down with this one, and a request may restart it.
                log.exception("pipeline %s: unexpected error", self.settings.name)
                self._give_up(exc)
        if self._status != "FAILED":
            self._status = "STOPPED"

    async def _turn(self, delay_s: float) -> float:
        """Lives once, or waits until a request starts it; returns the wait after the next failure."""
        self._woken.clear()
        requested, self._restart_requested = self._restart_requested, False
        if requested:  # the topic may have been corrected, or the store's files replaced
            self._learned_limits.unfit.clear()
            await self._store.close()
            self._runtime.threads.renew()
        self._status = self._next
        if self._status in {"STOPPED", "FAILED"}:
            self._troubles.forget()
            await self._woken.wait()
            return _FIRST_DELAY_S
        self._joined_s = None
        try:
            await self._live_once()
        except ClusterError as exc:
            return await self._after(exc, delay_s)
        except WideloadError as exc:
            self._give_up(exc)
        return delay_s

    @property
    def _next(self) -> State:
        """What it is before the next flow begins; a failed pipeline stays failed until a request."""
        if self.target == "STOPPED":
            return "STOPPED"
        if self._status == "STOPPED":
            return "STARTING"
        return "RESTARTING" if self._status == "RUNNING" else self._status

    async def _after(self, error: ClusterError, delay_s: float) -> float:
        """Waits, or gives up, after a flow that a client has ended; returns the wait after the next one."""
        if self._steady():
            self.failing_since, delay_s = None, _FIRST_DELAY_S
        self._proven = self._proven or self._steady() or self.stats.records_out > 0
        refused = None if self.flow is None else self.flow.refused
        over_limit = refused_names(self._worker.client, self.settings, refused)
        if over_limit is not None:
            self._give_up(over_limit)
            return delay_s
        if not error.retriable and not (error.forbidden and self._proven):
            self._give_up(error)
            return delay_s
        if isinstance(error, UnfitError):
            delay_s = _FIRST_DELAY_S  # each restart has one record less to refuse
        self._restart_later(error, delay_s)
        await set_within(self._woken, delay_s)
        return min(delay_s * 2, self.settings.retry_delay_max_ms / 1000)

    def _steady(self) -> bool:
        """True if the flow that has ended had worked for a while."""
        return self._joined_s is not None and self._runtime.monotonic() - self._joined_s > _STEADY_S

    def _client(self) -> ClientSettings:
        """How the clients of one flow reach the cluster."""
        try:
            return sharing_context(self._worker.client)
        except ConfigurationError as exc:
            # The files were right when the worker started, so they are being replaced.
            raise ClusterError(str(exc), retriable=True) from exc

    async def _look(self, client: ClientSettings) -> Plan:
        try:
            began = self._status == "RESTARTING"
            return await plan_pipeline(client, self.settings, began=began, existed=self._seen_topics)
        except ConfigurationError as exc:
            if self._status != "RESTARTING" or is_over_limit(exc):
                raise
            # The cluster was right before, and a change can be taken back. A lower limit too, before it was seen.
            self._learned_limits.sizes.clear()
            raise ClusterError("; ".join(f"{each.key}: {each.reason}" for each in exc.each), retriable=True) from exc

    async def _live_once(self) -> None:
        """One flow, from the check of the cluster to its end."""
        client = self._client()
        # The next flow looks again: topics may have changed.
        found, self.plan = self.plan or await self._look(client), None
        self._seen_topics.update(each.name for each in found.topics)
        plan = self._learned_limits.applied(found)
        if self._status == "STARTING":
            for warning in capacity.warnings(self.settings, plan):
                log.warning("pipeline %s: %s", self.settings.name, warning)
        await self._store.open(plan)
        self._log.starts(plan, self._store.store)
        if self._ending or self._restart_requested or self.target == "STOPPED":
            return
        renewed = {each.name for each in plan.sources if each.id and self._topic_ids.get(each.name, each.id) != each.id}
        if renewed:
            self.stats.forget_failed()
            self._learned_limits.forget_unfit(renewed)
        unfit = self._learned_limits.unfit
        self.flow = Flow(
            FlowClients(client, self.settings),
            self.settings,
            plan,
            build(
                self.settings,
                self._store.store,
                plan.sink,
                self.stats,
                UnfitStage(unfit, plan.sink, self._runtime.time) if unfit else None,
            ),
            found=found,
            store=self._store.store,
            budget=self._budget,
            runtime=self._runtime,
            stats=self.stats,
            troubles=self._troubles,
            graceful_timeout_s=self._worker.graceful_timeout_ms / 1000,
            joined=self._joined,
            renewed=renewed,
            before=None if self.flow is None else self.flow.progress,
        )
        self.flow.pause(paused=self.target == "PAUSED")
        try:
            await self.flow.run()
        except (LimitError, UnfitError) as exc:
            self._learned_limits.learn(found, exc)
            raise
        finally:
            if self._joined_s is not None:
                self._left = self.flow.left
            if not self.flow.renewing:
                self._topic_ids = {each.name: each.id for each in plan.sources if each.id is not None}

    def _joined(self) -> None:
        self._status = "RUNNING"
        self._joined_s = self._runtime.monotonic()

    def _restart_later(self, error: Exception, delay_s: float) -> None:
        self._status = "RESTARTING"
        self.failing_since = self.failing_since or self._runtime.time()
        self.stats.restarts += 1
        self._note(error)
        self._log.restarts(error, delay_s)

    def _give_up(self, error: BaseException) -> None:
        self._note(error)
        if self._restart_requested or self.target == "STOPPED":
            log.warning("pipeline %s: stopped before its last records were written: %s", self.settings.name, error)
            return  # it was to end anyway, and the request decides its state
        self._status = "FAILED"
        self._log.fails(self.last_error or "")
        self._ended(self)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, ConfigurationError):
            # Without the pipeline, which the page names.
            error = ConfigurationError.together([ConfigurationError(each.key, each.reason) for each in error.each])
        text = str(error) if isinstance(error, WideloadError) else f"unexpected {type(error).__name__}: {error}"
        self.last_error = without_secrets(text)
        self.last_error_at = self._runtime.time()
