"""What is drawn before a history begins: pipeline, topics, how many workers and records, how bad the storm is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.cuts import Cuts
from tests.simulation.kinds import Work, drawn_work
from tests.simulation.releases import RELEASES

__all__ = ["Scenario", "cut", "drawn"]


@dataclass(slots=True)
class Scenario:
    """See the module.

    Attributes:
        exactly_once: the guarantee.
        tolerance: of errors.
        work: of the pipeline.
        partitions: of the source and the sink.
        workers: at the start.
        records: in the source, in the end.
        storm_s: how long things go wrong.
        rate: of the requests to which something happens.
        in_flight_bytes: of a worker.
        store_threads: how many calls of the store go on at a time.
        graceful_ms: how long a worker that loses partitions, or stops, may take to finish its records.
        release: of Kafka.
        static: whether workers are static members of the group: one that takes another's place has its id.
        odd: how likely the source has each other kind of batches; see `Upstream`.
        acts: the names of what happens to workers, brokers, topics and the store; see `Storm`.
        control_topic: by which all workers are steered; None if each is steered alone.
        keys: other properties of the pipeline.
    """

    exactly_once: bool
    tolerance: str
    work: Work
    partitions: int
    workers: int
    records: int
    storm_s: float
    rate: float
    store_threads: int = 8
    in_flight_bytes: int = 100_000
    odd: float = 0.0
    graceful_ms: int = 5_000
    release: str = "4.1"
    static: bool = False
    acts: list[str] = field(default_factory=list)
    control_topic: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def drops(self) -> bool:
        """Whether messages that are given up by chance are dropped."""
        return bool(self.keys.get("auto.ack.oldest.chunked.message.on.queue.full"))

    @property
    def falls_back(self) -> bool:
        """Whether values go as chunks only while the store is down."""
        return self.keys.get("large.message.strategy") == "auto"

    def document(self, member: int = 0, *, tolerant: bool = False) -> Mapping[str, Any]:
        """The configuration of a worker, of a static member its own. `tolerant`: with dead letters in any case."""
        tolerance = "all" if tolerant else self.tolerance
        table: dict[str, Any] = {
            "topics": ["raw"],
            "output.topic": "out",
            "errors.tolerance": tolerance,
            "processing.guarantee": "exactly_once" if self.exactly_once else "at_least_once",
            **self.keys,
        }
        if self.static:
            table["consumer.group.instance.id"] = f"member-{member}"
        if tolerance == "all":
            table["errors.deadletterqueue.topic.name"] = "dead"
        steered = {} if self.control_topic is None else {"control.topic": self.control_topic}
        return {
            **steered,
            "bootstrap.servers": "broker:9001,broker:9002,broker:9003",
            "in.flight.bytes": self.in_flight_bytes,
            "store.threads": self.store_threads,
            "task.shutdown.graceful.timeout.ms": self.graceful_ms,
            "pipeline": {"p": table},
        }


def drawn(chance: Random, acts: list[str]) -> Scenario:
    """A scenario of a seed, with some of these acts."""
    exactly_once = chance.random() < 0.5
    keys: dict[str, Any] = {
        "consumer.session.timeout.ms": 6_000,
        "consumer.heartbeat.interval.ms": 1_500,
        "consumer.request.timeout.ms": 7_000,
        "consumer.max.poll.interval.ms": 20_000,
        "consumer.auto.offset.reset": "earliest",
        "consumer.max.poll.records": chance.choice((2, 2_000)),
        "producer.request.timeout.ms": 4_000,
        "producer.delivery.timeout.ms": chance.choice((6_000, 15_000)),
        "producer.batch.size": chance.choice((200, 1_000, 3_900)),
        "producer.linger.ms": chance.choice((0, 0, 50)),
        "offset.flush.interval.ms": chance.choice((100, 1_000)),
        "errors.retry.delay.max.ms": 2_000,
    }
    work = drawn_work(chance)
    keys |= work.keys
    if exactly_once:
        keys |= {
            "producer.transaction.timeout.ms": 8_000,
            "transaction.boundary.interval.ms": chance.choice((100, 1_000)),
            "transaction.boundary.type": chance.choice(("poll", "interval")),
        }
    return Scenario(
        exactly_once,
        "all" if work.gives_up or work.runs_out else chance.choice(("none", "all")),
        work,
        partitions=chance.choice((1, 1, 2, 3)),
        workers=chance.choice((1, 1, 2, 2, 3)),
        records=chance.choice((3, 8, 20, 40)),
        storm_s=chance.choice((0.5, 2.0, 5.0)),
        rate=chance.choice((0.0, 0.02, 0.1, 0.3)),
        in_flight_bytes=100_000 if work.in_chunks else chance.choice((20_000, 100_000)),
        store_threads=chance.choice((1, 2, 8)),
        odd=chance.choice((0.0, 0.2, 0.5)),
        static=chance.random() < 0.2,
        graceful_ms=chance.choice((100, 5_000)),
        release=chance.choice((*RELEASES,)),
        acts=[each for each in acts if chance.random() < 0.4 and work.stands(each)],
        keys=keys,
    )


def cut(scenario: Scenario, cuts: Cuts) -> None:
    """Makes a scenario smaller."""
    if cuts.workers is not None:
        scenario.workers = min(scenario.workers, cuts.workers)
    if cuts.records is not None:
        scenario.records = min(scenario.records, cuts.records)
