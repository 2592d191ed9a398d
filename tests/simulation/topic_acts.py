"""What happens to topics in the storm: retention, limits, policies, quotas, elections. One method is one act."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.cluster import Topic
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.world import World

__all__ = ["TopicActs"]

_MAGIC = 16  # where a batch has its format
# A worker that has not seen the former topic cannot know that an offset was committed for it, by one that had not yet
# noticed: docs/reliability.md, "How soon a change is noticed".
_WITH_NEW_WORKERS = {"kill", "stop", "join", "freeze", "defect"}
# A static member that restarts for another reason keeps its partitions, and gets no new ones: "Static members" there.
_WITH_RESTARTS = {*_WITH_NEW_WORKERS, "replace", "delete_topic", "change_limit", "compact", "cut_log", "add_partition"}


class TopicActs:
    """The acts on topics; each public method is one."""

    _world: World
    _tell: Callable[[str], None]
    _chance: Random

    def _source(self) -> tuple[int, PartitionLog] | None:
        """A partition of the source, and its number, if it exists."""
        logs = self._world.cluster.logs("raw")
        if not logs:
            return None
        number = self._chance.randrange(len(logs))
        return number, logs[number]

    def _topic(self, *names: str) -> Topic | None:
        """One of these topics, if it exists."""
        return self._world.cluster.topics.get(self._chance.choice(names))

    def _for_a_while(self, end: Callable[..., Any], *args: Any) -> None:
        self._world.restore(self._chance.choice((0.2, 2.0, 6.0)) * self._chance.random(), end, *args)

    def delete_records(self) -> None:
        """Retention, or an operator, deletes records of the source: below what is committed, or above."""
        if (source := self._source()) is None:
            return
        number, log = source
        start = self._chance.randint(log.start, log.end)
        if start > log.start:
            self._tell(f"the records of raw-{number} before {start} are deleted")
            self._world.losses.source_lost(number, log.start, start)
            log.delete_before(start)

    def change_limit(self) -> None:
        """The sink takes less, or more."""
        limit = self._chance.choice((600, 1_200, 2_000, 8_000))
        if (topic := self._topic("out")) is None:
            return
        config = topic.config
        self._tell(f"out: max.message.bytes is {limit}")
        config["max.message.bytes"] = str(limit)
        self._for_a_while(config.__setitem__, "max.message.bytes", "4000")

    def compact(self) -> None:
        """A topic gets another cleanup policy, for a while."""
        if (topic := self._topic("raw", "out", "dead")) is None:
            return
        self._tell(f"{topic.name} is compacted")
        topic.config["cleanup.policy"] = self._chance.choice(("compact", "compact,delete"))
        self._for_a_while(topic.config.__setitem__, "cleanup.policy", "delete")

    def lack_replicas(self) -> None:
        """A partition of sink or dead letters has too few replicas in sync, for a while."""
        if (topic := self._topic("out", "dead")) is None:
            return
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
        if (source := self._source()) is None:
            return
        number, log = source
        losses = self._world.losses
        open_from = min((each.base for each in log.batches if each.transactional), default=log.end)
        bases = [each.base for each in log.batches[-4:] if each.base >= log.start] if open_from == log.end else []
        # The formats 0 and 1 have no leader epochs: nobody can see that such a log was cut and has grown again.
        if bases and all(each.data[_MAGIC] == 2 for each in log.batches) and number not in losses.unsteady:
            end = self._chance.choice(bases)
            self._tell(f"raw-{number} has a leader that lacks its records from {end} on")
            losses.unsteady.add(number)
            losses.source_lost(number, end, log.end)
            self._world.source.forget(number, end)
            log.truncate(end)
            self._world.cluster.move_leader(log)

    def delete_topic(self) -> None:
        """A topic is deleted, and created again."""
        names = ["out", "dead"]
        scenario = self._world.scenario  # without dead letters a record may end all pipelines, and others are started
        if not _WITH_NEW_WORKERS.intersection(scenario.acts) and not scenario.static and scenario.tolerance == "all":
            names.append("raw")
        if (topic := self._topic(*names)) is None:
            return
        losses, source = self._world.losses, self._world.source
        self._tell(f"{topic.name} is deleted")
        if topic.name == "raw":
            for number, log in enumerate(topic.logs):
                losses.source_lost(number, 0, log.end)
            source.begin_again()
            losses.unsteady.update(source.written)
            losses.repeated.update(source.written)
        else:
            for log in topic.logs:
                losses.sink_lost(log)
        self._world.cluster.delete(topic.name)
        self._for_a_while(self._create, topic)

    def _create(self, former: Topic) -> None:
        cluster = self._world.cluster
        if former.name not in cluster.topics:
            self._tell(f"{former.name} is created again")
            limit = "4000" if former.name == "out" else former.config["max.message.bytes"]
            cluster.create(former.name, len(former.logs), max_message_bytes=limit)

    def add_partition(self) -> None:
        """A partition is added to the sink, and then one to the source."""
        cluster, scenario = self._world.cluster, self._world.scenario
        if scenario.static and len(_WITH_RESTARTS.intersection(scenario.acts)) > 1:
            return
        if 0 < len(cluster.logs("out")) < 4:
            self._world.losses.rerouted = True
            self._tell("out has one more partition")
            cluster.grow("out")
            self._for_a_while(self._grow_source, len(cluster.logs("out")))

    def _grow_source(self, wanted: int) -> None:
        logs, source = self._world.cluster.logs("raw"), self._world.source
        while logs and len(logs) < wanted:
            self._tell("raw has one more partition")
            self._world.cluster.grow("raw")
            if len(source.written) < len(logs):
                source.grow()
