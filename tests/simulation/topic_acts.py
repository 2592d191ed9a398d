"""What happens to topics in the storm: retention, limits, policies, quotas, elections. One method is one act."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.world import World

__all__ = ["TopicActs"]


class TopicActs:
    """The acts on topics; each public method is one."""

    _world: World
    _tell: Callable[[str], None]
    _chance: Random

    def _source(self) -> tuple[int, PartitionLog]:
        logs = self._world.cluster.topics["raw"].logs
        number = self._chance.randrange(len(logs))
        return number, logs[number]

    def _for_a_while(self, end: Callable[..., Any], *args: Any) -> None:
        self._world.restore(self._chance.choice((0.2, 2.0, 6.0)) * self._chance.random(), end, *args)

    def delete_records(self) -> None:
        """Retention, or an operator, deletes records of the source: below what is committed, or above."""
        number, log = self._source()
        start = self._chance.randint(log.start, log.end)
        if start > log.start:
            self._tell(f"the records of raw-{number} before {start} are deleted")
            self._world.losses.source_lost(number, log.start, start)
            log.delete_before(start)

    def change_limit(self) -> None:
        """The sink takes less, or more."""
        limit = self._chance.choice((600, 1_200, 2_000, 8_000))
        config = self._world.cluster.topics["out"].config
        self._tell(f"out: max.message.bytes is {limit}")
        config["max.message.bytes"] = str(limit)
        self._for_a_while(config.__setitem__, "max.message.bytes", "4000")

    def compact(self) -> None:
        """A topic gets another cleanup policy, for a while."""
        topic = self._world.cluster.topics[self._chance.choice(("raw", "out", "dead"))]
        self._tell(f"{topic.name} is compacted")
        topic.config["cleanup.policy"] = self._chance.choice(("compact", "compact,delete"))
        self._for_a_while(topic.config.__setitem__, "cleanup.policy", "delete")

    def lack_replicas(self) -> None:
        """A partition of sink or dead letters has too few replicas in sync, for a while."""
        topic = self._world.cluster.topics[self._chance.choice(("out", "dead"))]
        log = self._chance.choice(topic.logs)
        self._tell(f"{topic.name}: too few replicas in sync")
        topic.config["min.insync.replicas"], log.alone = "2", True
        self._for_a_while(setattr, log, "alone", False)

    def throttle(self) -> None:
        """The clients have used up a quota, for a while."""
        cluster = self._world.cluster
        cluster.throttle_ms = self._chance.choice((20, 300, 2_000))
        self._tell(f"quotas: each answer with records, or to them, delays the next by {cluster.throttle_ms} ms")
        self._for_a_while(setattr, cluster, "throttle_ms", 0)

    def cut_log(self) -> None:
        """An unclean election: a replica leads that lacks the newest records of the source. Once for a partition."""
        number, log = self._source()
        losses = self._world.losses
        open_from = min((each.base for each in log.batches if each.transactional), default=log.end)
        bases = [each.base for each in log.batches[-4:]] if open_from == log.end else []
        if bases and number not in losses.unsteady:
            end = self._chance.choice(bases)
            self._tell(f"raw-{number} has a leader that lacks its records from {end} on")
            losses.unsteady.add(number)
            losses.source_lost(number, end, log.end)
            self._world.source.forget(number, end)
            log.truncate(end)
            self._world.cluster.move_leader(log)
