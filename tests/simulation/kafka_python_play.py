"""The history of kafka-python's consumer with chunks, over a simulated `kafka.KafkaConsumer`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import kafka
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import CommitFailedError, IllegalStateError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from tests.simulation.chunk_ledger import Given
from tests.simulation.polled_play import TOPIC, AppError, Member, PolledPlay

_DEFAULTS = {**kafka.KafkaConsumer.DEFAULT_CONFIG}


class _Committed:
    """What `commit_async` gives: it is awaited, or not."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def __await__(self) -> Iterator[None]:
        if self._error is not None:
            raise self._error
        return iter(())


class FakeConsumer:
    """kafka-python's consumer, with what ours calls of it; its positions and its buffer are one."""

    DEFAULT_CONFIG: Mapping[str, Any] = _DEFAULTS
    play: KafkaPythonPlay
    member: KafkaPythonMember | None = None  # to which it belongs; None for one that only reads

    def __init__(self, **arguments: Any) -> None:
        self.config = {**_DEFAULTS, **arguments}
        self.listener: Any = None
        self.positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()

    def _fail(self, name: str) -> None:
        member = self.member
        if member is not None and self.play.fails(member.name, name, member.chance):
            raise KafkaTimeoutError(f"simulated: {name}")

    def subscribe(self, topics: Any = (), pattern: Any = None, listener: Any = None) -> None:
        self.listener = listener

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self.positions = {tp: self.positions.get(tp) for tp in partitions}

    def unsubscribe(self) -> None:
        self.positions = {}

    def assignment(self) -> set[TopicPartition]:
        return {*self.positions}

    def paused(self) -> set[TopicPartition]:
        return self._paused & {*self.positions}

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused |= {*partitions}

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused -= {*partitions}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if tp not in self.positions:
            raise ValueError("Unassigned partition")
        self.positions[tp] = offset

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        for tp in partitions or [*self.positions]:
            self.positions[tp] = 0

    def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int | None:
        if tp not in self.positions:
            raise IllegalStateError("Partition is not assigned")
        self._locate(tp)
        return self.positions[tp]

    def _locate(self, tp: TopicPartition) -> None:
        if self.positions[tp] is None:
            self.positions[tp] = self.play.commits.get(tp.partition, (0, ""))[0]

    def committed(self, tp: TopicPartition, **_: object) -> Any:
        if self.member is not None and self.play.fails(self.member.name, "committed", self.member.chance):
            self.member.reading.distrust(tp.partition)
            raise KafkaTimeoutError("simulated: committed")
        found = self.play.commits.get(tp.partition)
        return None if found is None else OffsetAndMetadata(found[0], found[1], -1)

    def beginning_offsets(self, partitions: Any, timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Any, timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        return {tp: self.play.logs[tp.partition].end for tp in partitions}

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[Any]]:
        self._fail("poll")
        if self.member is not None:  # `ensure_active_group` of 3.0.12 is called here alone, and waits for its listeners
            self.play.rebalance_now_and_then()
        chance = self.play.chance if self.member is None else self.member.chance
        left = min(max_records or 500, chance.choice((1, 3, 500)))
        found: dict[TopicPartition, list[Any]] = {}
        self.play.pass_time(chance.random() * 0.005)
        if self.member is not None and self.member.expelled:
            self.play.pass_time(timeout_ms / 1000)
            return {}
        for tp in [each for each in self.positions if each not in self._paused]:
            self._locate(tp)
            position = self.positions[tp]
            assert position is not None
            for offset, record in self.play.records(tp.partition, position, left):
                found.setdefault(tp, []).append(_record(tp, offset, record))
                self.positions[tp] = offset + 1
                left -= 1
        if not found:
            self.play.pass_time(min(timeout_ms / 1000, 5.0))
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_ms: Any = None) -> None:
        self._fail("commit")
        error = self._commit(offsets)
        if error is not None:
            raise error

    def commit_async(self, offsets: Any = None, callback: Any = None) -> Any:
        member = self.member
        assert member is not None
        failed = self.play.fails(member.name, "commit_async", member.chance)
        error = KafkaTimeoutError("simulated") if failed else self._commit(offsets)
        if callback is not None:
            callback(offsets, error)
        return _Committed(error)

    def _commit(self, offsets: Any) -> Exception | None:
        assert self.member is not None
        told = {tp.partition: (each.offset, each.metadata) for tp, each in offsets.items()}
        return None if self.play.commit(self.member, told) else CommitFailedError("expelled")

    def close(self, *_: object) -> None:
        if self.member is not None:
            _run(self.listener.on_partitions_revoked([*self.positions]))
        self.positions = {}


def _record(tp: TopicPartition, offset: int, record: Any) -> ConsumerRecord:
    headers, value = list(record.headers), record.value
    return ConsumerRecord(*tp, -1, offset, record.timestamp, 0, record.key, value, headers, None, 1, len(value), 0)


def _run(call: Any) -> None:
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("a listener waits")


class KafkaPythonMember(Member):
    RAISED = (KafkaTimeoutError, CommitFailedError, IllegalStateError)
    PARTITION = TopicPartition

    def begin(self, values: dict[str, Any]) -> None:
        values |= {
            "group.id": "g",
            "enable.auto.commit": self.play.keys["commits"] == "auto",
            "auto.commit.interval.ms": 300,
            "consumer.timeout.ms": 500,
        }
        self.client.__init__(values, TOPIC, on_discarded=self.discarded)

    def read(self, *, calm: bool) -> None:
        chance, client = self.chance, self.client
        try:
            if self.play.keys["iterates"] and chance.random() < 0.8:
                record = next(client, None)
                found = {} if record is None else {TopicPartition(TOPIC, record.partition): [record]}
            else:
                most = chance.choice((None, None, 1, 3))
                found = client.poll(timeout_ms=1_000 if calm else chance.choice((0, 100, 1_000)), max_records=most)
        except (KafkaTimeoutError, AppError) as exc:
            self.play.tell(f"{self.name}: poll raised {exc!r}")
            found = {}
        for tp, records in found.items():
            for record in records:
                self.reading.give(Given(tp.partition, record.offset, record.key, record.value, record.offset))

    def commit(self) -> None:
        if self.chance.random() < 0.3:
            last = self.reading.last
            told = {TopicPartition(TOPIC, each): OffsetAndMetadata(last[each] + 1, "", -1) for each in sorted(last)}
            self.client.commit(told)
        else:
            self.client.commit()

    def hold(self, call: Callable[..., None], numbers: Sequence[int]) -> None:
        call(*self.partitions(numbers))

    def position(self, number: int) -> int:
        found: int = self.client.position(TopicPartition(TOPIC, number))
        return found

    def seek(self, number: int, offset: int) -> None:
        self.client.seek(TopicPartition(TOPIC, number), offset)


class KafkaPythonPlay(PolledPlay):
    def client_class(self) -> Any:
        if kafka.KafkaConsumer is not FakeConsumer:
            kafka.KafkaConsumer = FakeConsumer
            for name in ("records", "reads"):
                importlib.reload(importlib.import_module(f"app.serializers.kafka_python_{name}"))
        FakeConsumer.play = self
        return importlib.import_module("app.serializers.kafka_python_reads").DeserializingConsumer

    def member(self, number: int) -> KafkaPythonMember:
        return KafkaPythonMember(self, number)

    def revoke(self, member: Member, *, lost: bool) -> None:
        partitions = member.partitions(member.owned)
        listener = member.client.listener
        _run((listener.on_partitions_lost if lost else listener.on_partitions_revoked)(partitions))
        if lost:
            member.client.positions = {}

    def assign(self, member: Member, numbers: list[int], *, came_back: bool) -> None:
        client = member.client
        partitions = member.partitions(numbers)
        for number in member.owned:
            if number not in numbers:
                member.reading.forget(number)
        new = [number for number in numbers if number not in member.owned or not came_back]
        client.positions = {tp: client.positions.get(tp) if came_back else None for tp in partitions}
        member.owned = numbers
        member.reading.assigned(new)
        _run(client.listener.on_partitions_assigned(partitions))
