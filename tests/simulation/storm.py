"""What happens to workers, brokers, topics and the store while the storm lasts. One method is one act."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from app.pipeline import dispatch
from app.pipeline.output import Output
from transforms.errors import PayloadStoreError
from transforms.retention import LONGEST_HOLD_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker, Topic
    from tests.simulation.partition_log import PartitionLog
    from tests.simulation.world import World

_APPEND = Output.append
TEXT = "a defect of the simulation"


class Defect:
    """A defect of the worker itself: one call of `Output.append` raises, and the pipeline ends."""

    def __init__(self) -> None:
        self._left = 0
        # Whether it has raised. Of a discarded message the commit then goes back to before the letters.
        self.raised = False

        def append(output: Output, *values: Any) -> None:
            if self._left:
                self._left -= 1
                if not self._left:
                    self.raised = True
                    raise MemoryError(TEXT)
            _APPEND(output, *values)

        setattr(Output, "append", append)  # noqa: B010  # mypy takes it for a declaration

    def arm(self, chance: Random) -> None:
        self._left = chance.randint(1, 5)

    @staticmethod
    def is_in(text: str | None) -> bool:
        return text is not None and TEXT in text


_HOLD_S = 1.0
# The hold, one call of the store, the longest delivery.timeout.ms, and the longest time that a worker stands still.
_LEAST_AGE_S = _HOLD_S + 3.0 + 15.0 + 12.0 + 5.0
_OUTAGE_S = _LEAST_AGE_S + 5.0


class Sweep:
    """A sweep of the payload store while one payload does not go in: what waits behind it was stored long ago.

    A real outage of that length takes too many turns of the workers. So all times are shorter here, each by its part.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._stuck: str | None = None
        self._until_s = 0.0
        self._payloads = world.store.payloads = _AgedPayloads(world.loop.time)
        self._call = world.store.call
        setattr(world.store, "call", self._called)  # noqa: B010  # mypy takes it for a declaration
        setattr(dispatch, "LONGEST_HOLD_S", _HOLD_S if "sweep" in world.scenario.acts else LONGEST_HOLD_S)  # noqa: B010

    def begin(self) -> None:
        """The next payload does not go in until all that is not referred to was swept."""
        if not self._until_s:
            loop = self._world.loop
            self._until_s = loop.time() + _OUTAGE_S
            loop.call_at(self._until_s, self._sweep)
            loop.call_later(5.0, self._end_without)

    def _called(self, what: str, *details: Any) -> None:
        if what.startswith("put") and self._world.loop.time() < self._until_s:
            self._stuck = self._stuck or what
            if what == self._stuck:
                raise PayloadStoreError(f"the simulated store does not take this payload: {what}", retriable=True)
        self._call(what, *details)

    def _end_without(self) -> None:
        if self._stuck is None:
            self._until_s = self._world.loop.time()

    def _sweep(self) -> None:
        world = self._world
        logs = [log for name in ("out", "dead") for log in world.cluster.logs(name)]
        # In wrappers there is more than the reference.
        referred = b" ".join(record.value or b"" for log in logs for _, record in log.committed())
        oldest_s = world.loop.time() - _LEAST_AGE_S
        aged = [path for path, put_s in self._payloads.put_s.items() if put_s < oldest_s]
        swept = [path for path in aged if "/raw/" not in path and path.encode() not in referred]
        for path in swept:
            del self._payloads[path]
        if self._stuck is not None:
            world.tell(f"{self._stuck} goes in from now on; a sweep takes {len(swept)} payloads")


class _AgedPayloads(dict[str, bytes]):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.put_s: dict[str, float] = {}
        self._clock = clock

    def __setitem__(self, path: str, payload: bytes) -> None:
        self.put_s[path] = self._clock()
        super().__setitem__(path, payload)

    def __delitem__(self, path: str) -> None:
        del self.put_s[path]
        super().__delitem__(path)


class Acts:
    """What happens to processes and brokers, whatever is simulated."""

    def __init__(self, history: Any, chance: Random) -> None:
        self._world, self._chance = history, chance

    def kill(self) -> None:
        if alive := self._world.alive:
            actor = self._chance.choice(alive)
            actor.kill()
            self._world.new(actor)

    def stop(self) -> None:
        """A process is stopped as Kubernetes does it, and another one starts."""
        if alive := self._world.alive:
            actor = self._chance.choice(alive)
            actor.stop()
            self._world.new(actor)

    def join(self) -> None:
        if len(self._world.alive) < 3:
            self._world.new()

    def replace(self) -> None:
        """A worker starts with the id of a static member that runs, and puts it out of the group (KIP-345)."""
        alive = self._world.alive
        if alive and self._world.scenario.static:
            self._world.new(self._chance.choice(alive))

    def freeze(self) -> None:
        """A process stands still: shorter than its session lasts, or longer, as a zombie."""
        if alive := self._world.alive:
            self._chance.choice(alive).freeze(self._chance.choice((0.5, 3.0, 12.0)))

    def move_leader(self) -> None:
        topic = self._chance.choice([*self._world.cluster.topics.values()])  # never all are gone
        number = self._chance.randrange(len(topic.logs))
        self._world.cluster.move_leader(topic.logs[number])
        self._world.tell(f"{topic.name}-{number} has another leader: broker {topic.logs[number].node}")

    def move_coordinator(self) -> None:
        """A group, or a transactional id, has another coordinator."""
        if keys := self._world.cluster.coordinated:
            key = self._chance.choice(keys)
            self._world.cluster.move_coordinator(key)
            self._world.tell(f"{key[1]} has another coordinator")

    def _broker(self) -> Broker | None:
        """One of the brokers, if all are up."""
        brokers: list[Broker] = [*self._world.cluster.brokers.values()]
        return self._chance.choice(brokers) if all(each.up for each in brokers) else None

    def break_broker(self) -> None:
        if broker := self._broker():
            self._world.tell(f"broker {broker.number} goes down")
            self._world.cluster.stop(broker)
            self._world.loop.call_later(self._chance.choice((0.3, 3.0)), setattr, broker, "up", True)


_MAGIC = 16  # where a batch has its format
# A worker that has not seen the former topic cannot know that an offset was committed for it, by one that had not yet
# noticed: docs/broker-failures.md, "How soon a change is noticed".
_WITH_NEW_WORKERS = {"kill", "stop", "join", "freeze", "defect"}
# A static member that restarts for another reason keeps its partitions, and gets no new ones: "Static members" there.
_WITH_RESTARTS = {*_WITH_NEW_WORKERS, "replace", "delete_topic", "change_limit", "compact", "cut_log", "add_partition"}


class Storm(Acts):
    """Lets things happen, as chance wills. Each public method but `blow` is an act that a scenario may name."""

    _world: World

    def __init__(self, world: World) -> None:
        super().__init__(world, Random(0))  # each act has one of its own

    async def blow(self) -> None:
        world = self._world
        scenario, loop = world.scenario, world.loop
        until_s = loop.time() + scenario.storm_s
        for number in itertools.count():
            self._chance = world.stream(f"act {number}")
            await asyncio.sleep(self._chance.random() * scenario.storm_s / 2)
            if scenario.acts:
                act = self._chance.choice(scenario.acts)
                if world.happens(f"act.{number}", act):
                    getattr(self, act)()
            if loop.time() >= until_s:
                return

    def lose_machine(self) -> None:
        """The machine of a broker is gone, and comes back: nothing refuses a connection, or ends one."""
        if broker := self._broker():
            self._world.tell(f"the machine of broker {broker.number} is gone")
            self._world.cluster.stop(broker, silent=True)
            self._world.loop.call_later(self._chance.choice((3.0, 10.0, 30.0)), setattr, broker, "up", True)

    def kill_brokers(self) -> None:
        """All brokers are killed at once. Their first answers may be older than what was committed."""
        cluster = self._world.cluster
        if all(each.up for each in cluster.brokers.values()):
            self._world.tell("all brokers are killed")
            draw = self._chance.random
            cluster.kill_all(self._chance.choice((0.2, 2.0)), draw() * 3.0, draw() * 1.5)

    def isolate(self) -> None:
        """The leader of a source partition is cut off from the other brokers, and does not know it for a while."""
        if (source := self._source()) is None:
            return
        number, log = source
        cluster = self._world.cluster
        if not any(cluster.isolation.of(each) for each in cluster.brokers):
            self._world.tell(f"broker {log.node}, which leads raw-{number}, is cut off from the others")
            seconds = self._chance.choice((0.5, 3.0, 8.0))
            cluster.isolate(log.node, seconds)
            for _ in range(3):  # clients look for leaders again, and may ask the one that is cut off
                self._world.loop.call_later(self._chance.random() * seconds, cluster.move_leader, log)

    def time_out_transactions(self) -> None:
        """The coordinator aborts all open transactions, and fences their producers."""
        self._world.cluster.transactions.time_out_all()

    def defect(self) -> None:
        self._world.defect.arm(self._chance)

    def sweep(self) -> None:
        """One payload does not go in for long, and a sweep takes what no record refers to."""
        self._world.sweep.begin()

    def break_store(self) -> None:
        """The store is down, or fails at times, in one way or another; and its check may say that all is well."""
        self._world.store.worsen(self._chance)

    def _source(self) -> tuple[int, PartitionLog] | None:
        """A partition of the source, and its number, if it exists."""
        logs = self._world.cluster.logs("raw")
        if not logs:
            return None
        number = self._chance.randrange(len(logs))
        return number, logs[number]

    def _topic(self, *names: str) -> Topic | None:
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
            self._world.tell(f"the records of raw-{number} before {start} are deleted")
            self._world.losses.source_lost(number, log.start, start)
            log.delete_before(start)

    def change_limit(self) -> None:
        """The sink takes less, or more."""
        limit = self._chance.choice((600, 1_200, 2_000, 8_000))
        if (topic := self._topic("out")) is None:
            return
        config = topic.config
        self._world.tell(f"out: max.message.bytes is {limit}")
        config["max.message.bytes"] = str(limit)
        self._for_a_while(config.__setitem__, "max.message.bytes", "4000")

    def compact(self) -> None:
        if (topic := self._topic("raw", "out", "dead")) is None:
            return
        self._world.tell(f"{topic.name} is compacted")
        topic.config["cleanup.policy"] = self._chance.choice(("compact", "compact,delete"))
        self._for_a_while(topic.config.__setitem__, "cleanup.policy", "delete")

    def lack_replicas(self) -> None:
        """A partition of sink or dead letters has too few replicas in sync, for a while."""
        if (topic := self._topic("out", "dead")) is None:
            return
        log = self._chance.choice(topic.logs)
        self._world.tell(f"{topic.name}: too few replicas in sync")
        topic.config["min.insync.replicas"], log.alone = "2", True
        self._for_a_while(setattr, log, "alone", False)

    def throttle(self) -> None:
        cluster = self._world.cluster
        cluster.throttle_ms = self._chance.choice((20, 300, 2_000))
        self._world.tell(f"quotas: each answer with records, or to them, delays the next by {cluster.throttle_ms} ms")
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
            self._world.tell(f"raw-{number} has a leader that lacks its records from {end} on")
            losses.unsteady.add(number)
            losses.source_lost(number, end, log.end)
            self._world.source.forget(number, end)
            log.truncate(end)
            self._world.cluster.move_leader(log)

    def delete_topic(self) -> None:
        names = ["out", "dead"]
        scenario = self._world.scenario  # without dead letters a record may end all pipelines, and others are started
        if not _WITH_NEW_WORKERS.intersection(scenario.acts) and not scenario.static and scenario.tolerance == "all":
            names.append("raw")
        if (topic := self._topic(*names)) is None:
            return
        losses, source = self._world.losses, self._world.source
        self._world.tell(f"{topic.name} is deleted")
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
            self._world.tell(f"{former.name} is created again")
            limit = "4000" if former.name == "out" else former.config["max.message.bytes"]
            cluster.create(former.name, len(former.logs), max_message_bytes=limit)

    def add_partition(self) -> None:
        """A partition is added to the sink, and then one to the source."""
        cluster, scenario = self._world.cluster, self._world.scenario
        if scenario.static and len(_WITH_RESTARTS.intersection(scenario.acts)) > 1:
            return
        if 0 < len(cluster.logs("out")) < 4:
            self._world.losses.rerouted = True
            self._world.tell("out has one more partition")
            cluster.grow("out")
            self._for_a_while(self._grow_source, len(cluster.logs("out")))

    def _grow_source(self, wanted: int) -> None:
        logs, source = self._world.cluster.logs("raw"), self._world.source
        while logs and len(logs) < wanted:
            self._world.tell("raw has one more partition")
            self._world.cluster.grow("raw")
            if len(source.written) < len(logs):
                source.grow()


ACTS = [name for name in (*vars(Acts), *vars(Storm)) if not name.startswith("_") and name != "blow"]  # in order
