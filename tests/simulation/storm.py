"""What happens to workers, brokers, topics and the store while the storm lasts. One method is one act."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.topic_acts import TopicActs

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["ACTS", "Storm"]


class Storm(TopicActs):
    """Lets things happen, as chance wills. Each public method but `blow` is an act that a scenario may name.

    Args:
        world: to which they happen.
        tell: called with what happens.
    """

    def __init__(self, world: World, tell: Callable[[str], None]) -> None:
        self._world, self._tell = world, tell
        self._chance = Random(0)  # each act has one of its own

    async def blow(self) -> None:
        """Acts for the time of the scenario."""
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

    def kill(self) -> None:
        """A worker is gone, and another one starts."""
        alive = self._world.alive
        if alive:
            worker = self._chance.choice(alive)
            worker.kill()
            self._world.new_worker(worker)

    def stop(self) -> None:
        """A worker is stopped as Kubernetes does it, and another one starts."""
        alive = self._world.alive
        if alive:
            worker = self._chance.choice(alive)
            worker.stop()
            self._world.new_worker(worker)

    def join(self) -> None:
        """One more worker."""
        if len(self._world.alive) < 3:
            self._world.new_worker()

    def replace(self) -> None:
        """A worker starts with the id of a static member that runs, and puts it out of the group (KIP-345)."""
        alive = self._world.alive
        if alive and self._world.scenario.static:
            self._world.new_worker(self._chance.choice(alive))

    def freeze(self) -> None:
        """A worker stands still: shorter than its session lasts, or longer, as a zombie."""
        alive = self._world.alive
        if alive:
            self._chance.choice(alive).freeze(self._chance.choice((0.5, 3.0, 12.0)))

    def move_leader(self) -> None:
        """A partition has another leader."""
        topic = self._chance.choice([*self._world.cluster.topics.values()])  # never all are gone
        number = self._chance.randrange(len(topic.logs))
        self._world.cluster.move_leader(topic.logs[number])
        self._tell(f"{topic.name}-{number} has another leader: broker {topic.logs[number].node}")

    def move_coordinator(self) -> None:
        """A group, or a transactional id, has another coordinator."""
        keys = self._world.cluster.coordinated
        if keys:
            key = self._chance.choice(keys)
            self._world.cluster.move_coordinator(key)
            self._tell(f"{key[1]} has another coordinator")

    def break_broker(self) -> None:
        """A broker goes down, and comes back."""
        cluster = self._world.cluster
        if all(each.up for each in cluster.brokers.values()):
            broker = self._chance.choice([*cluster.brokers.values()])
            self._tell(f"broker {broker.number} goes down")
            cluster.stop(broker)
            self._world.loop.call_later(self._chance.choice((0.3, 3.0)), setattr, broker, "up", True)

    def lose_machine(self) -> None:
        """The machine of a broker is gone, and comes back: nothing refuses a connection, or ends one."""
        cluster = self._world.cluster
        if all(each.up for each in cluster.brokers.values()):
            broker = self._chance.choice([*cluster.brokers.values()])
            self._tell(f"the machine of broker {broker.number} is gone")
            cluster.stop(broker, silent=True)
            self._world.loop.call_later(self._chance.choice((3.0, 10.0, 30.0)), setattr, broker, "up", True)

    def kill_brokers(self) -> None:
        """All brokers are killed at once. Their first answers may be older than what was committed."""
        cluster = self._world.cluster
        if all(each.up for each in cluster.brokers.values()):
            self._tell("all brokers are killed")
            draw = self._chance.random
            cluster.kill_all(self._chance.choice((0.2, 2.0)), draw() * 3.0, draw() * 1.5)

    def isolate(self) -> None:
        """The leader of a source partition is cut off from the other brokers, and does not know it for a while."""
        if (source := self._source()) is None:
            return
        number, log = source
        cluster = self._world.cluster
        if not any(cluster.isolation.of(each) for each in cluster.brokers):
            self._tell(f"broker {log.node}, which leads raw-{number}, is cut off from the others")
            seconds = self._chance.choice((0.5, 3.0, 8.0))
            cluster.isolate(log.node, seconds)
            for _ in range(3):  # clients look for leaders again, and may ask the one that is cut off
                self._world.loop.call_later(self._chance.random() * seconds, cluster.move_leader, log)

    def time_out_transactions(self) -> None:
        """The coordinator aborts all open transactions, and fences their producers."""
        self._world.cluster.transactions.time_out_all()

    def defect(self) -> None:
        """The worker has a defect: one write raises."""
        self._world.defect.arm(self._chance)

    def sweep(self) -> None:
        """One payload does not go in for long, and a sweep takes what no record refers to."""
        self._world.sweep.begin()

    def break_store(self) -> None:
        """The store is down, or fails at times, in one way or another; and its check may say that all is well."""
        self._world.store.worsen(self._chance)


ACTS = [name for name in (*vars(Storm), *vars(TopicActs)) if not name.startswith("_") and name != "blow"]
"""The names of all acts, in the order of the class."""
