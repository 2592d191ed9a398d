"""What must come of the batches that no reader can decode: dead letters, or the end of the pipeline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from transforms.commit_metadata import noted

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

__all__ = ["Damaged"]

_PLACE = re.compile(r"topic raw, partition (\d+), offset \d+: malformed record: .*?\(offsets (\d+) to")


class Damaged:
    """Looks at the batches of `Source.damaged` in a world.

    Attributes:
        kept: the values of dead-letter topics that were deleted.
        read: those of them that were committed by then; the others may be written once more in their transaction.
    """

    def __init__(self, world: World) -> None:
        self.kept: list[bytes | None] = []
        self.read: list[bytes | None] = []
        self._world = world

    def lost(self, number: int, end: int) -> list[int]:
        """The offsets of damage below `end` of a source partition that are no dead letters."""
        batches = [each for each in self._world.source.damaged[number] if each[0] < end]
        values = self.kept + self._values() if batches else []
        return [offset for offset, data in batches if data not in values]

    def twice(self) -> list[int]:
        """The offsets of damage with more than one dead letter."""
        values, repeated = self.read + self._values(), self._world.losses.repeated
        found = [batches for number, batches in self._world.source.damaged.items() if number not in repeated]
        return [offset for batches in found for offset, data in batches if values.count(data) > 1]

    def _values(self) -> list[bytes | None]:
        logs = self._world.cluster.logs("dead")
        return [record.value for log in logs for _, record in log.committed()]

    def stopped(self, worker: Worker) -> bool:
        """Whether a pipeline has ended at a batch that cannot be decoded, be it in the log still or not."""
        text = worker.failed or ""
        return self._world.scenario.tolerance == "none" and "malformed record" in text and "(offsets" in text

    def ended(self, worker: Worker) -> bool:
        """Whether a pipeline has ended as it must if errors are not tolerated, with topic, partition and offset."""
        if worker.tolerates or worker.failed is None:
            return False
        places = [(number, offset) for number, found in self._world.source.damaged.items() for offset, _ in found]
        return any(
            f"topic raw, partition {number}, offset" in worker.failed and f"(offsets {offset} to" in worker.failed
            for number, offset in places
        )

    def lacking(self, worker: Worker) -> str | None:
        """What is not written, or not committed, though it comes before the batch at which a pipeline has ended."""
        found = _PLACE.search(worker.failed or "")
        if found is None:
            return None
        number, first = map(int, found.groups())
        world = self._world
        if number in world.losses.unsteady:
            return None
        end = max((each.offset for each in world.source.written[number] if each.offset < first), default=None)
        commit = world.cluster.groups.committed(world.settings.pipelines[0].group_id).get(("raw", number))
        note = None if commit is None else noted(commit.metadata)  # an incomplete message may hold the offset back
        reached = -1 if commit is None else max(commit.offset, 0 if note is None else note.delivered)
        if end is not None and reached <= end:
            return f"raw-{number}: the pipeline has ended at {first}, and what is before it is not committed: {commit}"
        return None
