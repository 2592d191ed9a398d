"""The commits of a flow: what the group is told is done, when, and what it was told before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from app.clients import translated

if TYPE_CHECKING:
    from aiokafka import TopicPartition

    from app.assembly import Assembly
    from app.ending import Ending
    from app.intake import Intake
    from app.lanes import Lanes
    from app.settings import PipelineSettings
    from app.stats import PipelineStats

__all__ = ["Commits"]

log = logging.getLogger(__name__)


class Commits:
    """Commits what is durable of the lanes of a flow. Belongs to its event loop.

    Args:
        intake: whose group is told.
        settings: the pipeline's.
        lanes: whose trackers say what is durable.
        assembly: what it holds keeps commits back, and it resumes from their metadata; None where none are assembled.
        stats: what is counted.
        ending: of the flow, where a commit fails.
    """

    def __init__(
        self,
        intake: Intake,
        settings: PipelineSettings,
        lanes: Lanes,
        assembly: Assembly | None,
        *,
        stats: PipelineStats,
        ending: Ending,
    ) -> None:
        self._intake = intake
        self._settings = settings
        self._lanes = lanes
        self._assembly = assembly
        self._stats = stats
        self._ending = ending
        self._durable = asyncio.Event()
        self._regular: asyncio.Task[None] | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._resumed = asyncio.Event()
        if assembly is None:
            self._resumed.set()

    # --- before ------------------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> bool:
        """False while it is not known what was delivered before: a record admitted then could be delivered again."""
        return self._resumed.is_set()

    async def resumed_within(self, timeout_s: float) -> None:
        """Waits until `resumed`, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._resumed.wait(), timeout_s)

    def forget(self) -> None:
        """Begins a rebalance: what was looked up no longer holds."""
        if self._looking_up is not None:
            self._looking_up.cancel()
        if self._assembly is not None:
            self._resumed.clear()

    def look_up(self) -> None:
        """Begins to look up what is committed of the lanes; does not wait, as without a broker there is no answer."""
        self._looking_up = asyncio.get_running_loop().create_task(self._look_up())

    async def _look_up(self) -> None:
        """So that the lag of a partition is known before its first record, and what was delivered above that."""
        if self._assembly is not None:
            await self._resume(self._assembly)
            return
        for lane in self._lanes:
            with contextlib.suppress(KafkaError, IllegalStateError):
                lane.committed = await self._intake.committed(lane.partition)

    async def _resume(self, assembly: Assembly) -> None:
        lanes = list(self._lanes)
        try:
            commits = await self._intake.commits([lane.partition for lane in lanes])
        except (KafkaError, IllegalStateError) as exc:
            self._ending.fail(translated(exc, f"reading offsets of group {self._settings.group_id}"))
            return
        except Exception as exc:  # noqa: BLE001  # or the flow would wait for ever
            self._ending.fail_by_defect(exc)
            return
        for lane in lanes:
            commit = commits.get(lane.partition)
            if commit is not None:
                lane.committed = commit.offset
                assembly.resume(lane, commit.metadata, self._settings.name)
        self._resumed.set()

    # --- while the flow runs -----------------------------------------------------------------------------------------

    def due(self) -> None:
        """Says that there may be something to commit."""
        self._durable.set()

    def begin(self) -> None:
        """Begins to commit regularly, until `end`."""
        self._regular = asyncio.get_running_loop().create_task(self._commit_regularly())

    def end(self) -> None:
        """Ends that, or a commit that is tried again could follow the last one with older offsets."""
        if self._regular is not None:
            self._regular.cancel()

    async def close(self) -> None:
        """Ends all that goes on by itself."""
        for task in (self._regular, self._looking_up):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _commit_regularly(self) -> None:
        while True:
            # As soon as something is durable, then at most once an interval: a worker that is killed soon after its
            # start has committed what it had done.
            await self._durable.wait()
            self._durable.clear()
            try:
                await self.commit()
            except KafkaError as exc:
                self._ending.fail(translated(exc, f"committing offsets of group {self._settings.group_id}"))
                return
            except Exception as exc:  # noqa: BLE001  # or the flow would go on, and commit nothing any more
                self._ending.fail_by_defect(exc)
                return
            await asyncio.sleep(self._settings.flush_interval_ms / 1000)

    async def commit(self) -> None:
        """Commits what is durable. A group that moves on meanwhile is no failure: the records are read again.

        Raises:
            KafkaError: the cluster did not take the offsets.
        """
        offsets = self._offsets()
        if not offsets:
            return
        try:
            await self._intake.commit(offsets)
        except (CommitFailedError, IllegalStateError) as exc:
            log.info("pipeline %s: offsets not committed, the group has moved on: %s", self._settings.name, exc)
            return
        self._stats.commits += 1
        for partition, (offset, metadata) in offsets.items():
            lane = self._lanes.get(partition)
            if lane is not None and lane.tracker is not None:
                lane.tracker.committed = max(lane.tracker.committed, offset)
                lane.noted = metadata

    def _offsets(self) -> dict[TopicPartition, tuple[int, str]]:
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for lane in self._lanes:
            tracker = lane.tracker
            if tracker is not None:
                commit = (tracker.safe(), "") if self._assembly is None else self._assembly.commit(lane)
                if commit[0] > tracker.committed or commit[1] != lane.noted:
                    offsets[lane.partition] = commit
        return offsets
