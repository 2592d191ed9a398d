"""What a history takes away from the logs: it may be missing in the end, or need not be in order any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.world import World

__all__ = ["Losses"]


class Losses:
    """Keeps account of it.

    Attributes:
        gone: the keys that need not come out: they left the source before they were durable.
        kept: the keys that were in a sink that was deleted.
        unsteady: the source partitions whose offsets mean something else than before: a commit proves nothing there.
        rerouted: whether source and sink have had different numbers of partitions, so that the key has decided.
        repeated: the source partitions of topics that were created again, whose records may come twice.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.gone: set[bytes] = set()
        self.kept: set[bytes] = set()
        self.rerouted = False
        self.unsteady: set[int] = set()
        self.repeated: set[int] = set()

    def source_lost(self, number: int, first: int, last: int) -> None:
        """A source partition has lost the records from the offset `first` to before `last`."""
        self.gone |= {
            message.key
            for message in self._world.source.began[number]
            if any(first <= offset < last for offset in message.offsets)
        }
        damaged = self._world.source.damaged
        kept = [each for each in damaged[number] if not first <= each[0] < last]
        for offset, data in damaged[number]:
            end = int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big")
            if first <= offset < last <= end:  # the log still has the batch, of which the rest cannot be decoded
                kept.append((last, data))
        damaged[number] = kept

    def sink_lost(self, log: PartitionLog) -> None:
        """A partition of the sink or of the dead letters is gone."""
        self.kept |= {record.key for record in log.records() if record.key is not None}
        damaged = self._world.promises.damaged
        damaged.kept += [record.value for record in log.records()]
        damaged.read += [record.value for _, record in log.committed()]

    def spares(self, key: bytes) -> bool:
        """Whether a message need not come out."""
        return key in self.gone or key in self.kept
