"""The way of one message in a test: three topics, a store, two pipelines, and records to send along it."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.topics import Found, Sent, committed, end_offsets
from tests.integration.worker_process import WorkerProcess

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

MakeTopic = Callable[..., str]

THRESHOLD = 20_000
PARTITIONS = 6


class Way:
    """Three topics, a store, and the configuration of the two pipelines between them."""

    def __init__(
        self,
        broker: str,
        make_topic: MakeTopic,
        folder: Path,
        *,
        partitions: int,
        large: int,
        session_ms: int,
    ) -> None:
        self.broker = broker
        self.folder = folder
        self.session_ms = session_ms
        forever = {"retention.ms": "-1"}  # the records' timestamps are years old
        big = {**forever, "max.message.bytes": str(large + 1_000_000)}
        self.raw = make_topic(partitions, **big)
        self.orders = make_topic(partitions, **forever)
        self.inflated = make_topic(partitions, **big)
        self.dead = make_topic(partitions, **big)
        (folder / "store").mkdir(exist_ok=True)  # a reader refuses to start without it
        self.tolerant = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": self.dead}
        self.store: dict[str, object] = {
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(folder / "store"),
            "filesystem.fsync": False,
        }

    def worker(self, **more: object) -> WorkerProcess:
        """A worker with both pipelines."""
        return WorkerProcess(self.folder, self.settings(), {**self.offload(**more), **self.inflate(**more)})

    def settings(self) -> dict[str, object]:
        """The worker's keys: a short session, so that a killed worker is missed soon."""
        return {
            "bootstrap.servers": self.broker,
            "consumer.session.timeout.ms": self.session_ms,
            "consumer.heartbeat.interval.ms": 300,
        }

    def offload(self, **more: object) -> dict[str, dict[str, object]]:
        """The pipeline from raw to orders."""
        return {"offload": self._pipeline("offload", self.raw, self.orders, more)}

    def inflate(self, **more: object) -> dict[str, dict[str, object]]:
        """The pipeline from orders to inflated."""
        return {"inflate": self._pipeline("inflate", self.orders, self.inflated, more)}

    def group(self, pipeline: str) -> str:
        """The consumer group of a pipeline."""
        return f"{self.raw}-{pipeline}"

    def all_read(self, pipeline: str) -> bool:
        """Whether a pipeline has committed all of its topic, also what is no record at its end."""
        source = self.orders if pipeline == "inflate" else self.raw
        return committed(self.broker, self.group(pipeline), source) == end_offsets(self.broker, source)

    def arrived(self, count: int) -> bool:
        """Whether so many records have come out at the far end."""
        return sum(end_offsets(self.broker, self.inflated).values()) >= count

    def _pipeline(self, name: str, source: str, sink: str, more: Mapping[str, object]) -> dict[str, object]:
        return {
            "topics": [source],
            "output.topic": sink,
            "transforms": [name],
            "group.id": self.group(name),
            **({} if more.get("transforms") == ["chunk"] else {"large.message.threshold.bytes": THRESHOLD}),
            **self.store,
            "offset.flush.interval.ms": 200,
            **more,
        }


MakeWay = Callable[..., Way]


def stream(rng: random.Random, partitions: int) -> Iterator[Sent]:
    """Records without end, of which one in 25 is large, numbered by partition in their keys."""
    numbers = [0] * partitions
    while True:
        partition = rng.randrange(partitions)
        size = rng.randrange(THRESHOLD + 1, 4 * THRESHOLD) if rng.random() < 0.04 else rng.randrange(200)
        value = rng.randbytes(size)
        yield partition, b"%d" % numbers[partition], value, [("n", b"%d" % len(value))], 1_700_000_000_000
        numbers[partition] += 1


def mixed(count: int, seed: int, partitions: int = PARTITIONS) -> list[Sent]:
    """So many of them."""
    return list(itertools.islice(stream(random.Random(seed), partitions), count))


def expected(records: list[Sent]) -> dict[int, list[tuple[bytes | None, str]]]:
    """Keys and digests by partition, in order."""
    by_partition: dict[int, list[tuple[bytes | None, str]]] = {}
    for partition, key, value, _, _ in records:
        by_partition.setdefault(partition, []).append((key, hashlib.sha256(value or b"").hexdigest()))
    return by_partition


def digests(found: Mapping[int, list[Found]]) -> dict[int, list[tuple[bytes | None, str]]]:
    """Keys and digests of what was read, by partition, in order."""
    return {
        partition: [(record.key, hashlib.sha256(record.value or b"").hexdigest()) for record in records]
        for partition, records in found.items()
    }


def first_occurrences(found: Mapping[int, list[tuple[bytes | None, str]]]) -> dict[int, list[tuple[bytes | None, str]]]:
    """Without what came a second time: at least once may repeat, but never lose nor reorder."""
    return {partition: list(dict.fromkeys(records)) for partition, records in found.items()}


def reason_of(letter: Found) -> str:
    """Why a record is a dead letter."""
    return (dict(letter.headers)["__connect.errors.exception.message"] or b"").decode()


def ways_on(cluster: Cluster, folder: Path) -> Callable[[], Way]:
    """Makes ways on a cluster, with topics of three partitions each."""
    numbers = itertools.count()

    def make_topic(partitions: int, **configs: str) -> str:
        name = f"{folder.name}-{next(numbers)}"
        cluster.make_topic(name, partitions, **configs)
        return name

    return lambda: Way(cluster.bootstrap_servers, make_topic, folder, partitions=3, large=2_000_000, session_ms=4_000)
