"""The committed offsets of a flow: looked up after each assignment, as the partitions continue from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from app.kafka.clients import translated
from app.kafka.errors import GroupMovedOnError, KafkaError
from app.kafka.shielded import set_within
from app.kafka.structs import OffsetAndMetadata, TopicPartition
from app.pipeline.lane import Lane
from app.pipeline.parts import Parts


class CommittedOffsets:
    """Looks up the committed offsets of the lanes. Belongs to the event loop of the flow.

    No record is read before they are known: it could be delivered again, or the client could be ahead of the
    transaction of another worker, which has not ended. If `fetch` cannot get them, the flow ends. At exactly once,
    `fetch` also starts the transactional producers of the lanes: so no lane is read without one.
    """

    # State that changes, by rebalances: `_known` and `_looking_up`.

    def __init__(
        self,
        parts: Parts,
        fetch: Callable[[Sequence[Lane]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]],
    ) -> None:
        self._parts = parts
        self._fetch = fetch
        self._known = asyncio.Event()
        self._looking_up: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """True if the flow may read."""
        return self._known.is_set()

    async def known_within(self, timeout_s: float) -> None:
        """Waits until the offsets are known, but no longer than the time-out."""
        await set_within(self._known, timeout_s)

    def forget(self) -> None:
        """Begins a rebalance: the offsets that were looked up no longer hold."""
        if self._looking_up is not None:
            self._looking_up.cancel()
        self._known.clear()

    def look_up(self) -> None:
        """Begins to look the offsets up; does not wait, as without a broker there is no answer."""
        self._looking_up = self._parts.termination.begin(self._look_up(self._looking_up))

    async def close(self) -> None:
        """Ends the tasks in the background."""
        if self._looking_up is not None:
            self._looking_up.cancel()
            await asyncio.gather(self._looking_up, return_exceptions=True)

    async def _look_up(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        lanes = list(self._parts.lanes)
        try:
            await self._parts.offset_reset.renew(lanes)
            commits = await self._fetch(lanes)
        except GroupMovedOnError:
            return  # they are looked up after the next assignment
        except KafkaError as exc:
            raise translated(exc, f"reading offsets of group {self._parts.settings.group_id}") from exc
        for lane in lanes:
            commit = commits.get(lane.partition)
            if commit is not None:
                lane.resume(commit.offset, commit.metadata, self._parts.settings.name)
        self._known.set()
