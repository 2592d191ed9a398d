"""The history of confluent-kafka's consumer with chunks, over a simulated `confluent_kafka.Consumer`.

The fake does as librdkafka: rebalances are served within `poll`, which stores, commits and positions follow; what is
stored is committed in the background, and when partitions go. Messages, errors and partitions are those of the library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.error import ConsumeError

from app.serializers.composable import ComposableDeserializer
from app.serializers.config import ClientConfig
from tests.simulation.chunk_ledger import Given
from tests.simulation.polled_play import TOPIC, AppError, Member, PolledPlay

_STATE, _NO_OFFSET, _TIMED_OUT, _TRANSPORT = -172, -168, -185, -195
_EOF, _INVALID, _UNKNOWN_MEMBER = -191, -1001, 25


def _failed(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class _Interrupt(BaseException):
    """Ends a call within a deserializer."""


class FakeConsumer:
    """confluent-kafka's consumer, with what ours calls of it."""

    play: ConfluentPlay
    member: ConfluentMember | None = None  # to which it belongs; None for one that only reads

    def __init__(self, config: Any) -> None:
        self.config = config
        # Behind the last message that was read; None until the commit is known
        self.positions: dict[int, int | None] = {}
        self.given: dict[int, int] = {}  # behind the last message that the application has, since the position was set
        self.stored: dict[int, tuple[int, str]] = {}  # what is committed next
        self.held: set[int] = set()
        self.assigned = 0  # how many assignments there were
        self.callbacks: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.positions = {each.partition: each.offset if each.offset >= 0 else None for each in partitions}
        self.given, self.stored, self.held = {}, {}, set()
        self.assigned += 1

    def unassign(self) -> None:
        self.assign([])

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.held |= {each.partition for each in partitions}

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.held -= {each.partition for each in partitions}

    def seek(self, partition: TopicPartition) -> None:
        if partition.partition not in self.positions:
            raise _failed(_STATE)
        self.positions[partition.partition] = partition.offset
        self.given.pop(partition.partition, None)

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in self.positions]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """As librdkafka's: while it calls back within `consume`, messages of this call do not count."""
        return [TopicPartition(TOPIC, each.partition, self.given.get(each.partition, _INVALID)) for each in partitions]

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        if self.member is not None and self.play.fails(self.member.name, "committed", self.member.chance):
            for each in partitions:
                self.member.reading.distrust(each.partition)
            raise _failed(_TIMED_OUT)
        found = [(each.partition, *self.play.commits.get(each.partition, (_INVALID, ""))) for each in partitions]
        return [TopicPartition(TOPIC, *each) for each in found]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> tuple[int, int]:
        return 0, self.play.logs[partition.partition].end

    def store_offsets(self, offsets: Sequence[TopicPartition]) -> None:
        if any(each.partition not in self.positions for each in offsets):
            raise _failed(_STATE)
        self.stored.update({each.partition: (each.offset, each.metadata or "") for each in offsets})

    def commit(self, offsets: Sequence[TopicPartition] | None = None, asynchronous: bool = True) -> Any:  # noqa: FBT001, FBT002
        member = self.member
        assert member is not None
        told = self.stored if offsets is None else {each.partition: (each.offset, each.metadata) for each in offsets}
        told = {number: (offset, text or "") for number, (offset, text) in told.items() if offset >= 0}
        if not told:
            raise _failed(_NO_OFFSET)
        if self.play.fails(member.name, "commit", member.chance):
            if asynchronous:
                return None
            raise _failed(_TIMED_OUT)
        if not self.play.commit(member, told) and not asynchronous:
            raise _failed(_UNKNOWN_MEMBER)
        return None if asynchronous else offsets

    def commit_stored(self) -> None:
        if self.member is not None and self.play.commits_stored:
            told = {number: each for number, each in self.stored.items() if self.play.commits.get(number) != each}
            if told:
                self.play.commit(self.member, told)

    def poll(self, timeout: float = -1) -> Message | None:
        found = FakeConsumer.consume(self, 1, timeout)
        return found[0] if found else None

    def _read(self, timeout: float) -> Message | None:
        member, play = self.member, self.play
        play.pass_time(0.000_1 if member is None else member.chance.random() * 0.003)
        if member is not None:
            play.rebalance_now_and_then()
            if member.chance.random() < 0.3:
                self.commit_stored()
            if play.fails(member.name, "poll", member.chance):
                return Message(error=KafkaError(_TRANSPORT))
        if member is None or not member.expelled:
            for number in self._readable():
                position = self.positions[number]
                assert position is not None
                for offset, record in play.records(number, position, 1):
                    self.positions[number] = offset + 1
                    headers = list(record.headers) or None
                    return Message(TOPIC, number, offset, record.key, record.value, headers, timestamp=(1, 1))
                if member is None:
                    return Message(TOPIC, number, position, error=KafkaError(_EOF))
        play.pass_time(max(0.0, min(timeout, 5.0)))
        return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """What there is, up to so many messages; waits for the first one alone."""
        found: list[Message] = []
        while len(found) < num_messages:
            assigned = self.assigned
            message = self._read(0.0 if found else timeout)
            if self.assigned != assigned:  # librdkafka drops messages of an assignment that has ended
                found = [each for each in found if each.error() is not None]
            if message is None:
                break
            found.append(message)
        for message in found:
            if message.error() is None:
                self.given[message.partition() or 0] = (message.offset() or 0) + 1
        return found

    def _readable(self) -> list[int]:
        """The partitions that are read, in turn; where the commit is not known yet, it is asked for."""
        found = [number for number in self.positions if number not in self.held]
        for number in found:
            if self.positions[number] is None:
                self.positions[number] = self.play.commits.get(number, (0, ""))[0]
        if self.member is not None:
            self.member.chance.shuffle(found)
        return found

    def serve(self, name: str, numbers: Sequence[int]) -> None:
        """Calls a callback of a rebalance, and then assigns as the C code does if the callback has not."""
        partitions = [TopicPartition(TOPIC, number) for number in numbers]
        if name in self.callbacks:
            self.callbacks[name](self, partitions)
        if name == "on_assign":
            FakeConsumer.assign(self, partitions)
        else:
            if self.member is not None and not self.member.expelled:
                self.commit_stored()
            FakeConsumer.assign(self, [])

    def close(self) -> None:
        if self.member is not None:
            self.serve("on_revoke", [*self.positions])


class ConfluentMember(Member):
    RAISED = (KafkaException,)
    PARTITION = TopicPartition
    message: Message | None = None  # the last one of a call

    def begin(self, values: dict[str, Any]) -> None:
        keys = self.play.keys
        values["auto.ack.oldest.chunked.message.on.queue.full"] = False
        client = {"group.id": "g", "enable.auto.commit": keys["commits"] == "auto"}
        stages = {"value": ComposableDeserializer([lambda data: data])} if keys["raises"] else {}
        self.client.__init__(ClientConfig(stages, values, client), self.discarded)
        self.client.deserialize = self._deserialize
        self.client.subscribe([TOPIC])

    def _deserialize(self, message: Message) -> None:
        if self.play.keys["raises"]:
            if self.play.fails(self.name, "deserialize", self.chance):
                raise AppError(message)
            if self.play.fails(self.name, "interrupt", self.chance):
                raise _Interrupt

    def read(self, *, calm: bool) -> None:
        chance, client = self.chance, self.client
        for _ in range(chance.choice((1, 5))):
            wait_s, held = 1.0 if calm else chance.choice((0.0, 0.1, 1.0)), set(client.held)
            try:
                if self.play.keys["iterates"]:
                    found = client.consume(chance.choice((1, 3, 20)), wait_s)
                else:
                    found = [each] if (each := client.poll(wait_s)) is not None else []
            except (AppError, _Interrupt, ConsumeError) as exc:
                self.play.tell(f"{self.name}: the call raised {exc!r}")
                failed = exc.message if isinstance(exc, AppError) else None
                found = [] if failed is None else [failed]
            self.message = None  # of a former call: its partition may have gone within this one
            for message in found:
                self.message = message
                if message.error() is None:
                    number, offset = message.partition(), message.offset()
                    if number not in client.positions or number in held & client.held:
                        self.play.breaks(f"{self.name} got {offset} of {number}, which has gone, or is paused")
                    self.reading.give(Given(number, offset, message.key(), message.value(), offset))

    def commit(self) -> None:
        asynchronous = self.chance.random() < 0.5
        message = self.message
        if message is not None and message.error() is None and self.chance.random() < 0.4:
            self.client.commit(message=message, asynchronous=asynchronous)
        else:
            self.client.commit(asynchronous=asynchronous)

    def hold(self, call: Callable[..., None], numbers: Sequence[int]) -> None:
        call(self.partitions(numbers))

    def position(self, number: int) -> int:
        (found,) = self.client.position(self.partitions([number]))
        offset: int = max(0, found.offset)
        return offset

    def seek(self, number: int, offset: int) -> None:
        self.client.seek(TopicPartition(TOPIC, number, offset))


class ConfluentPlay(PolledPlay):
    @property
    def commits_stored(self) -> bool:
        return bool(self.keys["commits"] == "auto")

    def client_class(self) -> Any:
        module: Any = importlib.import_module("app.serializers.confluent_reads")
        replaced: Any = confluent_kafka.Consumer
        if replaced is not FakeConsumer:
            setattr(confluent_kafka, "Consumer", FakeConsumer)  # noqa: B010
            module = importlib.reload(module)
        FakeConsumer.play = self
        return module.PollingConsumer

    def member(self, number: int) -> ConfluentMember:
        return ConfluentMember(self, number)

    def revoke(self, member: Member, *, lost: bool) -> None:
        if member.owned or lost:
            member.client.serve("on_revoke", member.owned)

    def assign(self, member: Member, numbers: list[int], *, came_back: bool) -> None:
        for number in member.owned:
            member.reading.forget(number)
        member.owned = numbers
        member.reading.assigned(numbers)
        member.client.serve("on_assign", numbers)
