"""The committed offsets of a flow: looked up after each assignment, for they say where the partitions go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum

from app.config.settings import PipelineSettings
from app.kafka.clients import ClusterError, translated
from app.kafka.errors import GroupMovedOnError, KafkaError
from app.kafka.structs import OffsetAndMetadata, TopicPartition
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.termination import Termination

__all__ = ["CommittedOffsets", "NeededFor"]


class NeededFor(Enum):
    """The first thing that a flow cannot do without the committed offsets."""

    LAG = "they only tell the lag"
    ADMITTING = "a record that is admitted without them could be delivered again"
    READING = "the client may be ahead of the transaction of another worker, which has not ended"


class CommittedOffsets:
    """Looks up the committed offsets of the lanes. Belongs to the event loop of the flow.

    The termination ends the flow if the offsets are needed and `fetch` cannot get them.
    """

    # State that changes: `_known` and `_looking_up`, by rebalances.

    def __init__(
        self,
        lanes: Lanes,
        settings: PipelineSettings,
        termination: Termination,
        needed_for: NeededFor,
        fetch: Callable[[Sequence[Lane]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]],
    ) -> None:
        self._lanes = lanes
        self._termination = termination
        self._needed_for = needed_for
        self._settings = settings
        self._fetch = fetch
        self._known = asyncio.Event()
        self._looking_up: asyncio.Task[None] | None = None

    @property
    def may_read(self) -> bool:
        """False while the flow cannot read, as the offsets are not known."""
        return self._needed_for is not NeededFor.READING or self._known.is_set()

    @property
    def may_admit(self) -> bool:
        """False while the flow cannot admit the records that it has read, as the offsets are not known."""
        return self._needed_for is NeededFor.LAG or self._known.is_set()

    async def known_within(self, timeout_s: float) -> None:
        """Waits until the offsets are known, but no longer than the time-out."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), timeout_s)

    def forget(self) -> None:
        """Begins a rebalance: the offsets that were looked up no longer hold."""
        if self._looking_up is not None:
            self._looking_up.cancel()
        self._known.clear()

    def look_up(self) -> None:
        """Begins to look the offsets up; does not wait, as without a broker there is no answer."""
        self._looking_up = self._termination.begin(self._look_up(self._looking_up))

    async def close(self) -> None:
        """Ends what goes on by itself."""
        if self._looking_up is not None:
            self._looking_up.cancel()
            await asyncio.gather(self._looking_up, return_exceptions=True)

    async def _look_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        lanes = list(self._lanes)
        try:
            commits = await self._fetch(lanes)
        except GroupMovedOnError:
            return  # they are looked up after the next assignment
        except (KafkaError, ClusterError) as exc:
            if self._needed_for is not NeededFor.LAG:
                self._termination.fail(self._error(exc))
            return
        for lane in lanes:
            commit = commits.get(lane.partition)
            if commit is not None:
                self._lanes.resume(lane, commit.offset, commit.metadata, self._settings.name)
        self._known.set()

    def _error(self, error: Exception) -> ClusterError:
        if isinstance(error, ClusterError):
            return error
        return translated(error, f"reading offsets of group {self._settings.group_id}")
