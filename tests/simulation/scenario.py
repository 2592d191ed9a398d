"""What is drawn before a history begins: pipeline, topics, how many workers and records, how bad the storm is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.answers import RELEASES
from tests.simulation.outcome import Cuts

WRAPPED_HEADER = 3_000_001  # the number of the header `n` in wrappers
THRESHOLD_BYTES = 1_000  # values over it go to the store
MOST_BYTES = 8_000  # the longest value that the pipelines take: `large.message.max.bytes` and `chunk.max.message.bytes`

_PLAIN = ("small", "small", "large", "tombstone")
_REFERENCES = ("reference", "reference", "reference")
_CHUNKS = ("message_of_chunks",) * 4
_AGAIN = ("message_begun_twice", "message_of_twins", "message_sent_twice")
_BAD_REFERENCES = ("forged_reference", "missing_payload", "corrupt_payload", "huge_payload")
_BAD_CHUNKS = ("message_with_a_gap", "message_without_end")


@dataclass(frozen=True, slots=True)
class Kind:
    transforms: tuple[str, ...]  # in order
    good: tuple[str, ...] = _PLAIN  # the messages that come out
    bad: tuple[str, ...] = ("too_large", "long_key")  # those that never can
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def assembles(self) -> bool:
        return "assemble" in self.transforms or "inflate" in self.transforms

    @property
    def splits(self) -> bool:
        strategy = self.keys.get("large.message.strategy", "offload")
        return "chunk" in self.transforms or ("offload" in self.transforms and strategy != "offload")

    @property
    def fits_less(self) -> bool:
        """Whether all that comes out fits the sink if that takes less."""
        return "offload" in self.transforms and not self.splits and not self.assembles

    @property
    def stores(self) -> bool:
        strategy = self.keys.get("large.message.strategy", "offload")
        return "inflate" in self.transforms or ("offload" in self.transforms and strategy != "chunk")


def _with_chunks(kind: Kind) -> Kind:
    return Kind(kind.transforms, (*kind.good, *_CHUNKS, *_AGAIN), (*kind.bad, *_BAD_CHUNKS), kind.keys)


_INFLATING = ("small", "tombstone", *_REFERENCES)
_NO_SINK = ("long_key",)

KINDS: Sequence[Kind] = (
    Kind(("offload",)),
    Kind(("offload",)),
    Kind(("offload",)),
    Kind(("offload",), keys={"large.message.strategy": "auto"}),
    Kind(("offload",), keys={"large.message.strategy": "chunk"}),
    Kind(("chunk",)),
    Kind(("inflate",), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES)),
    _with_chunks(Kind(("inflate",), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES))),
    _with_chunks(Kind(("inflate", "chunk"), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES))),
    _with_chunks(Kind(("assemble",), ("small", "tombstone"), _NO_SINK)),
    _with_chunks(Kind(("assemble", "offload"), _PLAIN, _NO_SINK)),
    _with_chunks(Kind(("assemble", "wrap"), ("small", "tombstone"), ("strange_header",))),
    Kind(("wrap",), ("small",), ("strange_header",)),
    Kind(("offload", "wrap"), _PLAIN, ("strange_header", "long_key")),
    Kind(("unwrap",), ("small",), ("bare_value", "long_key")),
    Kind(("unwrap", "offload"), _PLAIN, ("bare_value", "long_key")),
    Kind(("unwrap", "inflate"), _INFLATING, ("bare_value", *_BAD_REFERENCES)),
    Kind(("inflate", "wrap"), _INFLATING, ("strange_header", *_BAD_REFERENCES)),
    Kind(("unwrap", "wrap"), ("small", "tombstone"), ("bare_value",)),
)


@dataclass(slots=True)
class Work:
    kind: Kind  # of the pipeline
    makers: Sequence[str]  # which messages there are; see `Messages`
    keys: dict[str, Any]  # properties of the pipeline
    gives_up: bool  # whether messages of chunks may be given up by chance
    runs_out: bool  # whether the patience for one record with the store is bounded, so that any may be given up

    def stands(self, act: str) -> bool:
        """Whether an act leaves what must come out as it is."""
        return act != "change_limit" or self.kind.fits_less

    @property
    def in_chunks(self) -> bool:
        """Whether some messages are written in chunks."""
        return any(each.startswith("message") for each in self.makers)


def drawn_work(chance: Random) -> Work:
    kind = chance.choice(KINDS)
    makers = [*kind.good] * chance.choice((1, 3))
    if chance.random() < 0.3:
        makers += [chance.choice(kind.bad)]
    keys: dict[str, Any] = {"transforms": [*kind.transforms], **kind.keys}
    if kind.stores:
        keys |= {"large.message.payload.store.class": "memory", "large.message.max.bytes": MOST_BYTES}
        keys["large.message.store.timeout.ms"] = 3_000
    if "offload" in kind.transforms and keys.get("large.message.strategy") != "chunk":
        keys["large.message.threshold.bytes"] = THRESHOLD_BYTES
    if kind.splits or kind.assembles:
        keys["chunk.max.message.bytes"] = MOST_BYTES
    if kind.splits:
        keys["chunk.max.bytes"] = chance.choice((900, 2_000))
    if "wrap" in kind.transforms or "unwrap" in kind.transforms:
        keys[f"wrapper.header.{WRAPPED_HEADER}"] = "n"
    gives_up = False
    if any(each.startswith("message") for each in makers):
        short, few = chance.random() < 0.2, chance.random() < 0.2
        keys["expire.time.of.incomplete.chunked.message.ms"] = 2_000 if short else 30_000
        if few:
            keys["max.pending.chunked.message"] = chance.choice((1, 2))
        gives_up = short or few
    runs_out = kind.stores and not any(each.startswith("message") for each in makers) and chance.random() < 0.25
    if runs_out:
        keys["errors.retry.timeout"] = chance.choice((0, 1_000, 3_000))
    return Work(kind, makers, keys, gives_up, runs_out)


@dataclass(slots=True)
class Scenario:
    exactly_once: bool  # the guarantee
    tolerance: str  # of errors
    work: Work  # of the pipeline
    partitions: int  # of the source and the sink
    workers: int  # at the start
    records: int  # in the source, in the end
    storm_s: float  # how long things go wrong
    rate: float  # of the requests to which something happens
    store_threads: int = 8  # how many calls of the store go on at a time
    in_flight_bytes: int = 100_000  # of a worker
    odd: float = 0.0  # how likely the source has each other kind of batches; see `Upstream`
    graceful_ms: int = 5_000  # how long a worker that loses partitions, or stops, may take to finish its records
    release: str = "4.1"  # of Kafka
    static: bool = False  # whether workers are static members of the group: one that takes another's place has its id
    # The names of what happens to workers, brokers, topics and the store; see `Storm`
    acts: list[str] = field(default_factory=list)
    control_topic: str | None = None  # by which all workers are steered; None if each is steered alone
    keys: dict[str, Any] = field(default_factory=dict)  # other properties of the pipeline

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
    if cuts.workers is not None:
        scenario.workers = min(scenario.workers, cuts.workers)
    if cuts.records is not None:
        scenario.records = min(scenario.records, cuts.records)
