"""A log that loses its end by an unclean election and grows again, for the tests of what readers make of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.integration.cluster import Cluster
from tests.integration.rest import ask
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.way import Way
from tests.integration.worker_process import WorkerProcess, until

__all__ = ["CUT", "SAME", "CutLog"]

SAME, CUT = 10, 30  # so many records are in both logs, and so many were in the one that was lost

_GROWN = {0: 50, 1: CUT, 2: 15}  # where the new log ends, by partition: further, at the same place, before it
_REPLICAS = (1, 2)
_TOKEN = "token-of-who-may-steer-1"
_FOREVER = {"retention.ms": "-1"}


class CutLog:
    """A topic on the first two nodes of a cluster, whose partitions lose their ends, and pipelines that read it.

    Args:
        cluster: all its nodes run.
        way: of the test; it has the folder.
        pipelines: their names.
    """

    def __init__(self, cluster: Cluster, way: Way, *pipelines: str) -> None:
        self._cluster = cluster
        self._way = way
        self._topic = f"{way.raw}-cut"
        unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        cluster.make_topics(self._topic, partitions=len(_GROWN), replicas=_REPLICAS, configs=_FOREVER | unclean)
        cluster.make_topics(*map(self._name, pipelines), partitions=len(_GROWN), configs=_FOREVER)

    def _name(self, pipeline: str) -> str:
        """Of the sink and the group of a pipeline."""
        return f"{self._topic}-{pipeline}"

    def pipelines(self, *names: str, **more: object) -> dict[str, dict[str, object]]:
        """Pipelines with a sink and a group of their own."""
        (keys,) = self._way.offload(**more).values()
        own = {"topics": [self._topic]}
        return {name: {**keys, **own, "output.topic": self._name(name), "group.id": self._name(name)} for name in names}

    def worker(self, pipelines: Mapping[str, Mapping[str, object]]) -> WorkerProcess:
        """A worker that can be steered."""
        settings = {**self._way.settings(), "web.control.enable": True, "web.control.token": _TOKEN}
        return WorkerProcess(self._way.folder, settings, pipelines)

    def steer(self, worker: WorkerProcess, what: str, *pipelines: str) -> None:
        """Pauses or resumes pipelines."""
        for name in pipelines:
            ask(worker.port, "PUT", f"/connectors/{name}/{what}", headers={"Authorization": f"Bearer {_TOKEN}"})

    # --- the log -----------------------------------------------------------------------------------------------------

    def write(self, word: str, end: int | None = None) -> None:
        """Fills each partition up to an offset; without one, to where its new log ends."""
        records: list[Sent] = [
            (at, f"{word}-{number}".encode(), b"v", [], 1)
            for at, begin in end_offsets(self._way.broker, self._topic).items()
            for number in range(begin, _GROWN[at] if end is None else end)
        ]
        send(self._way.broker, self._topic, records)

    def leave_one(self) -> None:
        """The second replica goes, with all records that there are: only the first has those that come."""
        until(partial(self._cluster.in_sync, self._topic, len(_REPLICAS)), "both have all records")
        self._cluster.nodes[1].kill()
        until(partial(self._cluster.in_sync, self._topic, 1), "one is left")

    def lose(self) -> None:
        """The first replica goes as well, and the second one leads."""
        self._cluster.nodes[0].kill()
        self._cluster.nodes[1].start()
        second = dict.fromkeys(_GROWN, _REPLICAS[1])
        until(lambda: self._cluster.leaders(self._topic) == second, "the other leads")

    # --- what became of it -------------------------------------------------------------------------------------------

    def done(self, pipeline: str) -> bool:
        """Whether a pipeline has committed all that was there before the cut."""
        return committed(self._way.broker, self._name(pipeline), self._topic) == dict.fromkeys(_GROWN, CUT)

    def delivered(self, pipeline: str) -> bool:
        """Whether a pipeline has delivered all that was there before the cut."""
        return end_offsets(self._way.broker, self._name(pipeline)) == dict.fromkeys(_GROWN, CUT)

    def _keys(self, topic: str) -> dict[int, list[bytes | None]]:
        found = read_all(self._way.broker, topic, "read_committed")
        return {at: [each.key for each in found[at]] for at in _GROWN}

    def read_anew(self, pipeline: str, *, once: bool) -> bool:
        """Whether a pipeline has delivered what was lost, and all that is there, in order.

        Args:
            pipeline: its name.
            once: whether each record has to be there once.
        """
        there, found = self._keys(self._topic), self._keys(self._name(pipeline))
        assert {at: len(keys) for at, keys in there.items()} == _GROWN
        gone = [f"gone-{number}".encode() for number in range(SAME, CUT)]
        expected = {at: [*keys[:SAME], *gone, *keys[SAME:]] for at, keys in there.items()}
        return expected == (found if once else {at: list(dict.fromkeys(keys)) for at, keys in found.items()})

    def assert_told(self, worker: WorkerProcess, pipeline: str) -> None:
        """The log and /metrics of a worker say what a pipeline has lost, in each partition once."""
        gone, text = CUT - SAME, worker.log.read_text()
        total = f'wideload_truncated_records_total{{pipeline="{pipeline}"}} {len(_GROWN) * gone}'
        assert total in worker.text("/metrics")
        for at in _GROWN:
            told = (
                f"pipeline {pipeline}: topic {self._topic}, partition {at}: the cluster has lost the end of the log, "
                f"as by an unclean election: it was read up to offset {CUT}, and parts from what was read at {SAME}; "
                f"it is read again from there; {gone} records are gone, or have others in their place"
            )
            assert text.count(told) == 1
