"""Chunks in a Faust app, in random histories: nothing is lost or comes in part, and no commit is ahead of agents."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest
from faust.transport.consumer import Consumer
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from app.chunks.keys import CONSUMER_KEYS
from app.kafka.source_batch import ReadRecord
from app.serializers.faust_chunks import Chunks
from stores.keys import read
from transforms.chunk import Chunking
from transforms.chunked_message import Discarded
from transforms.read_range import ReadRange
from transforms.record import Record

PLACE = TP("orders", 0)


class Log:
    """A partition.

    Attributes:
        records: the chunks of messages between each other, and plain records; some messages have no end.
        wanted: by the offset at which an agent gets it: the value, and the offset of its first chunk.
        incomplete: where the messages begin that have no end.
    """

    def __init__(self, random: Random) -> None:
        self.records: list[Record] = []
        self.wanted: dict[int, tuple[bytes, int]] = {}
        open_: dict[int, tuple[bytes, int, Iterator[Record], int]] = {}
        self.incomplete: list[int] = []
        numbers = count()
        for _ in range(random.randrange(5, 60)):
            offset = len(self.records)
            match random.randrange(4):
                case 0:
                    value = b"plain %d" % next(numbers)
                    self.wanted[offset] = value, offset
                    self.records.append(Record(b"k", value))
                case 1 if len(open_) < 4:
                    number = next(numbers)
                    value = random.randbytes(random.randrange(600, 3_000))
                    chunks = list(Chunking(800).split(Record(b"k", value), f"u{number}"))
                    self.records.append(chunks[0])
                    open_[number] = value, offset, iter(chunks[1:]), len(chunks) - 1
                case _ if open_:
                    number = random.choice(list(open_))
                    value, first, rest, left = open_.pop(number)
                    self.records.append(next(rest))
                    if left == 1:
                        self.wanted[offset] = value, first
                    elif random.random() < 0.95:  # else its writer has died
                        open_[number] = value, first, rest, left - 1
                    else:
                        self.incomplete.append(first)
        self.incomplete += [first for _, first, *_ in open_.values()]

    def logged(self, offset: int) -> ReadRecord:
        record = self.records[offset]
        return ReadRecord(*PLACE, offset, 0, record.key, record.value, list(record.headers))


class Life:
    """One worker: Faust's own account of acknowledgements, in place of its consumer; and an agent."""

    ack, _new_offset = Consumer.ack, Consumer._new_offset

    def __init__(self, log: Log, values: dict[str, Any]) -> None:
        self.log, self.generation = log, 0
        self.discarded: list[Discarded] = []
        self.unacked = self._unacked_messages = WeakSet[Any]()
        self._n_acked, self._waiting_for_ack = 0, None
        self.topics = SimpleNamespace(acks_enabled_for=lambda _: True)
        self.app = cast("Any", self)
        self.consumer, self.on_partitions_revoked = self, SimpleNamespace(connect=lambda _: None)
        self.sensors = SimpleNamespace(on_message_out=lambda *_: None)
        self.chunks = Chunks(cast("Any", self), values, self.discarded.append)
        self.chunks._reader = cast("Any", self)

    def join(self, committed: int | None, generations: int) -> None:
        self.generation += generations
        self.position = committed or 0
        self.has = deque[ConsumerMessage]()
        self._acked, self._acked_index, self._gap = defaultdict[TP, Any](list), defaultdict[TP, Any](set), {PLACE: None}
        self._committed_offset = {PLACE: committed}

    def add_future(self, watch: Any) -> None:
        watch.close()

    def begin(self, range_: ReadRange) -> asyncio.Task[None]:

        async def read_range() -> None:
            range_.begin()
            while True:
                for offset in range(range_.start, min(range_.end, len(self.log.records))):
                    range_.take(self.log.logged(offset))
                if range_.finish(0):
                    return

        return asyncio.ensure_future(read_range())

    async def poll(self) -> None:
        record = self.log.records[self.position]
        headers = cast("Any", list(record.headers))
        message = ConsumerMessage(
            *PLACE, self.position, 0.0, 0, headers, record.key, record.value, None, generation_id=self.generation
        )
        message.incref()
        self.position += 1
        if await self.chunks.take(message):
            message.tracked = True
            self._unacked_messages.add(message)
            self.has.append(message)

    def commit(self) -> int | None:
        if partition := self.chunks._partitions.get(PLACE):
            self.chunks._release(PLACE, partition)
        offset = cast("Any", self)._new_offset(PLACE)
        if offset is not None:
            self._committed_offset[PLACE] = offset
        return self._committed_offset[PLACE]


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no membership to be kept."""
    monkeypatch.setattr("app.serializers.faust_chunks.keep_membership", lambda _: None)


@pytest.mark.parametrize("seed", range(60))
async def test_histories(seed: int) -> None:
    """Workers that are killed, and that go back; agents that are slow; little memory: see the module."""
    random = Random(seed)
    log = Log(random)
    values = read(CONSUMER_KEYS, {})
    values |= random.choice([{}, {"max.pending.chunked.message": 1}])
    committed: int | None = None
    done: dict[int, bytes] = {}
    life = Life(log, values)
    for steps in [*random.choices(range(60), k=4), 10_000]:
        match random.randrange(3):
            case 0:
                life = Life(log, values)
            case 1:
                await life.chunks._revoked(cast("Any", life), [PLACE])
                assert life.chunks.stats()["pendingChunkedMessages"] == 0
        life.join(committed, random.randrange(2))
        for _ in range(steps):
            if life.position < len(log.records) and (not life.has or random.random() < 0.5):
                await life.poll()
            elif not life.has:
                break
            else:
                message = life.has.popleft()
                assert message.value == log.wanted[message.offset][0]
                done[message.offset] = message.value
                message.ack(cast("Any", life))
            if random.random() < 0.3:
                committed = life.commit()
                behind = {offset for offset, (_, first) in log.wanted.items() if first < (committed or 0)}
                assert behind <= done.keys()
        assert not life.discarded
    assert done == {offset: value for offset, (value, _) in log.wanted.items()}
    assert (life.commit() or 0, list(life.unacked)) == (min([len(log.records), *log.incomplete]), [])
    life.chunks._inbox.tick(61.0, [PLACE])
    await life.chunks._act()
    assert sorted(each.first for each in life.discarded) == sorted(log.incomplete)
    assert life.commit() == len(log.records)
