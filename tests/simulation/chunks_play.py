"""The history of aiokafka's clients with chunks: `ChunkingProducer`, and `AssemblingConsumer` in a group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.simulation.chunk_ledger import Ledger
from tests.simulation.chunk_log import logged
from tests.simulation.chunk_readers import Reader
from tests.simulation.chunk_writers import Sent, Writer
from tests.simulation.groups import Commit
from tests.simulation.play import Actor, Play, PlayScenario
from tests.simulation.promises import Broken

__all__ = ["ChunksPlay"]

_GROUP, _TOPIC = "readers", "chunks"
_SERVERS = "broker:9001,broker:9002,broker:9003"


class ChunksPlay(Play):
    """See the module."""

    def prepare(self) -> None:
        chance = self.chance
        partitions = chance.choice((1, 1, 2, 3))
        self._partitions = partitions
        self.cluster.create(_TOPIC, partitions, max_message_bytes=str(chance.choice((700, 1_200))))
        self.cluster.committed = self._committed
        pending = chance.choice((40_000, 200_000))
        expires = chance.random() < 0.2
        self._ledger = Ledger(self, partial(self.cluster.log, _TOPIC), self._values, expires=expires)
        self._reading: dict[str, Any] = {
            "bootstrap.servers": _SERVERS,
            "group.id": _GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_500,
            "request.timeout.ms": 7_000,
            "max.poll.interval.ms": 20_000,
            "retry.backoff.ms": 100,
            "enable.auto.commit": chance.random() < 0.5,
            "auto.commit.interval.ms": 300,
            "max.pending.chunked.bytes": pending,
            "chunk.max.message.bytes": 5_000,
            "max.pending.chunked.message": chance.choice((1, 2, 100)),
            "expire.time.of.incomplete.chunked.message.ms": 500 if expires else 30_000,
            "chunk.lookback": chance.choice((0, 10_000)),
            "fetch.max.bytes": chance.choice((2_000, 52_428_800)),
        }
        self._habits = {
            "one": chance.random() < 0.4,
            "commits": not self._reading["enable.auto.commit"],
            "own": chance.random() < 0.3,
            "pauses": chance.random() < 0.2,
            "seeks": chance.random() < 0.2,
        }
        if self._habits["seeks"]:
            self._reading["chunk.lookback"] = 10_000
        self._writing: dict[str, Any] = {
            "bootstrap.servers": _SERVERS,
            "request.timeout.ms": 4_000,
            "retry.backoff.ms": 100,
            "linger.ms": chance.choice((0, 20)),
            "max.request.size": 1_048_576,
        }
        if chance.random() < 0.3:
            self._writing["chunk.max.bytes"] = 500
        self._messages = chance.choice((2, 5, 10))
        writers, readers = chance.choice((1, 1, 2)), chance.choice((1, 1, 2, 3))
        keys = {"reading": self._reading, "writing": self._writing, "habits": self._habits}
        self.scenario = PlayScenario(writers + readers, writers * self._messages, keys)
        for _ in range(writers):
            self._new_writer()
        for _ in range(readers):
            self._new_reader()

    def _new_writer(self) -> None:
        writer = Writer(self, self._writing, self._partitions, self._messages)
        self.actors.append(writer)
        writer.begin(writer.work())

    def _new_reader(self) -> None:
        reader = Reader(self, self._ledger, self._reading, self._habits)
        self.actors.append(reader)
        reader.begin(reader.work())

    def replace(self, actor: Actor) -> None:
        if isinstance(actor, Reader):
            self._new_reader()
        elif sum(isinstance(each, Writer) for each in self.actors) < 4:
            self._new_writer()

    def _committed(self, group: str, offsets: Mapping[Any, Commit]) -> None:
        if group == _GROUP:
            for (_, number), commit in offsets.items():
                self._ledger.commit(number, commit.offset, commit.metadata)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _sent(self) -> dict[bytes, Sent]:
        return {key: sent for each in self.actors if isinstance(each, Writer) for key, sent in each.sent.items()}

    def left(self) -> object:
        writing = [each.process.name for each in self.actors if isinstance(each, Writer) and not each.ended]
        if writing:
            return writing
        return [left for number in range(self._partitions) if (left := self._ledger.left(number)) is not None]

    def _values(self) -> Mapping[bytes, bytes]:
        return {key: sent.value for key, sent in self._sent().items()}

    def check_end(self) -> None:
        sent = self._sent()
        for number in range(self._partitions):
            messages = logged(self.cluster.log(_TOPIC, number))
            whole = {each.key: each for each in messages if each.whole}
            for key, each in sent.items():
                if each.partition == number and each.acknowledged is not None and key not in whole:
                    raise Broken(f"{key!r} was acknowledged, and is not whole in the log of {number}")
            self._check_order(whole, sent, number)
            self._ledger.check_end(number)
        if self.broken is not None:
            raise Broken(self.broken)

    def _check_order(self, whole: Mapping[bytes, Any], sent: Mapping[bytes, Sent], number: int) -> None:
        last: dict[str, tuple[int, bytes]] = {}
        for key, each in sent.items():
            if each.partition == number and key in whole and each.acknowledged is not None:
                offset = whole[key].first
                if offset < last.get(each.task, (-1, b""))[0]:
                    raise Broken(f"{key!r} stands before {last[each.task][1]!r}, though it was sent behind it")
                last[each.task] = offset, key
