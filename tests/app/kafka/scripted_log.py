"""A log of one partition without a broker: batches, marks of transactions, and what a fetch would answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import KafkaError

from app.kafka.consumer_controls import ConsumerControls
from tests.app.kafka.wired import Wire
from tests.built_batches import built, changed
from transforms.record import Record, RecordLike
from transforms.record_batch import Stamp

PLACE = TopicPartition("raw", 0)


@dataclass(slots=True)
class Log:
    """Batches in the order of their offsets, as a log has them.

    `aborted` are producer, first offset, and the offset of the mark, of each aborted transaction.
    """

    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    end: int = 0

    def put(self, data: bytes, count: int) -> None:
        """Appends a batch that takes so many offsets."""
        self.end += count
        self.batches.append(data)
        self.ends.append(self.end)

    def append(self, codec: int, records: Sequence[RecordLike], producer: int = -1, *, transactional: bool) -> None:
        """Appends a batch of a producer."""
        stamp = Stamp(producer, 0, 0)
        self.put(built(codec, records, base=self.end, transactional=transactional, stamp=stamp), len(records))

    def mark(self, producer: int, first: int, *, commit: bool) -> None:
        """Ends the transaction of a producer, which began at the offset `first`."""
        key = struct.pack(">hh", 0, int(commit))
        batch = built(0, [Record(key, bytes(6), (), 5)], base=self.end, transactional=True, stamp=Stamp(producer, 0, 0))
        if not commit:
            self.aborted.append((producer, first, self.end))
        self.put(changed(batch, ">h", 21, 0x30), 1)

    def read(self, offset: int, most: int) -> tuple[bytes, list[tuple[int, int]]]:
        """The bytes from the batch with an offset on, at most so many but for the first; and what was aborted."""
        data = b""
        for batch, end in zip(self.batches, self.ends, strict=True):
            if end > offset:
                data += batch if not data else batch[: max(0, most - len(data))]
        aborted = [(producer, first) for producer, first, marked in self.aborted if marked >= offset]
        return data, sorted(aborted, key=lambda each: -each[1])  # brokers promise no order


class Reader:
    """aiokafka's fetcher, at a log; `controls` are those of a consumer that has started. In an event loop.

    It has `sent` so many requests, calls `meanwhile` before each answer, and answers by the error `code`.
    """

    def __init__(self, log: Log, offset: int, isolation: str, most: int = 1 << 20) -> None:
        self.log = log
        self.most = most
        self.aborts = isolation == "read_committed"
        self.code = 0
        self.sent = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.wire = Wire(self._answer)
        self.client = SimpleNamespace(
            send=self._send,
            _conns={(0, 0): self.wire},
            _get_conn=self._connect,
            close=None,
            bootstrap=None,
            cluster=SimpleNamespace(leader_for_partition=lambda _: 0, broker_metadata=lambda _: None),
            force_metadata_update=lambda: asyncio.get_running_loop().create_future(),
            _loop=asyncio.get_running_loop(),
            _metadata_max_age_ms=300_000,
        )
        self.subscription = SubscriptionState()
        self.subscription.assign_from_user({PLACE})
        self.fetcher = Fetcher(
            self.client,
            self.subscription,
            isolation_level=isolation,
            fetcher_timeout=0.01,
            prefetch_backoff=0.0,
            auto_offset_reset="none",
        )
        self.subscription.seek(PLACE, offset)
        consumer: Any = SimpleNamespace(_client=self.client, _fetcher=self.fetcher, _subscription=self.subscription)
        self.controls = ConsumerControls(consumer)

    @property
    def position(self) -> int:
        """The offset from which the next poll reads."""
        return int(self.subscription.subscription.assignment.state_value(PLACE).position)

    async def poll(self, most: int | None = None) -> list[Any]:
        """What a poll gives."""
        async with asyncio.timeout(10):
            polled = await self.fetcher.fetched_records((), 0.05, most)
        return list(polled.get(PLACE, []))

    async def read(self, most: int | None = None) -> list[Any]:
        """All that polls give up to the end of the log."""
        found = []
        while self.position < self.log.end:
            found += await self.poll(most)
        return found

    async def until_error(self) -> tuple[list[Any], KafkaError]:
        """What polls give until one raises, and what that is."""
        found: list[Any] = []
        async with asyncio.timeout(20):
            while True:
                try:
                    found += await self.poll()
                except KafkaError as exc:
                    return found, exc

    async def close(self) -> None:
        """Ends the fetcher's tasks."""
        await self.fetcher.close()

    async def _connect(self, _: int) -> Any:
        return self.wire

    async def _send(self, node: int, request: Any, **_: object) -> Any:
        return await (await self.client._get_conn(node)).send(request)

    async def _answer(self, call: Any) -> Any:
        self.sent += 1
        await asyncio.sleep(0)
        ((topic, ((number, offset, _),)),) = call.request.topics
        data, aborted = self.log.read(offset, self.most)
        if not data:
            await asyncio.sleep(0.01)
        end, aborted = self.log.end, aborted if self.aborts else []
        self.meanwhile()
        return SimpleNamespace(API_VERSION=4, topics=[(topic, [(number, self.code, end, end, aborted, data)])])
