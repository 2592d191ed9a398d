"""An outbox: the batches of one partition that have not been sent, in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from aiokafka import TopicPartition

from app.kafka.batches.batch import Batch, Builder, Load, WholeBuilder
from transforms.record import RecordLike
from transforms.record_batch import RecordBatch, pack

__all__ = ["Outbox"]

# An uncompressed value from here on gets a batch of its own: aiokafka's builder would copy it more often, and has a
# slow checksum.
_ALONE_BYTES = 131_072

L = TypeVar("L", bound=Load)


class Outbox(Generic[L]):
    """Collects the records of one partition in batches until they are sent. Belongs to one event loop.

    Args:
        partition: of the sink.
        make_builder: makes an empty builder for a codec, with the room that a batch may have by now.
        make_load: makes the data for the records of a batch.
        send: begins to send the batches here, unless that goes on already; does not wait.
        codec: the number of the codec of records for which none is given.
        transactional: whether the batches are part of transactions.

    Attributes:
        answered_s: when the broker last answered for a batch, on the loop's clock.
    """

    def __init__(
        self,
        partition: TopicPartition,
        make_builder: Callable[[int], Builder],
        make_load: Callable[[], L],
        send: Callable[[Outbox[L]], None],
        *,
        codec: int,
        transactional: bool,
    ) -> None:
        self.partition = partition
        self.filling: Batch[L] | None = None
        self.full: deque[Batch[L]] = deque()
        self.sender: asyncio.Task[None] | None = None
        self.pressed = False
        self.answered_s = 0.0
        self._roused: asyncio.Event | None = None
        self.send = send
        self._make_builder = make_builder
        self._make_load = make_load
        self._codec = codec
        self._transactional = transactional
        self._clock = asyncio.get_running_loop().time

    def append(self, record: RecordLike, codec: int | None = None) -> L:
        """Appends a record, and returns the load of its batch; `send` sends it.

        Args:
            record: the record.
            codec: the number of the codec with which it leaves; None for that of the producer.

        Raises:
            TypeError: a part of the record has the wrong type.
        """
        if codec is None:
            codec = self._codec
        if not codec and record.value is not None and len(record.value) >= _ALONE_BYTES:
            return self.forward(RecordBatch.read(memoryview(pack([record]))), 0)
        batch = self.filling
        if batch is not None:
            if batch.builder.codec == codec and batch.append(record):
                return batch.load
            self._fill_no_more()
        batch = Batch(self._make_builder(codec), self._make_load(), self._clock())
        appended = batch.append(record)
        assert appended, "a batch takes its first record whatever its size"
        self.filling = batch
        return batch.load

    def extend(self, records: Sequence[RecordLike], codec: int) -> Iterator[tuple[L, int]]:
        """Appends records as fast as can be; `send` sends them.

        Yields:
            The load of a batch, and how many of the next records it has got. They are in it already.
        """
        at = 0
        while at < len(records):
            batch = self.filling
            taken = 0
            if batch is not None and batch.builder.codec == codec:
                taken = batch.builder.extend(records, at)
            if not taken or batch is None:
                yield self.append(records[at], codec), 1
                at += 1
            else:
                yield batch.load, taken
                at += taken

    def forward(self, batch: RecordBatch, codec: int) -> L:
        """Puts a batch that goes whole behind all records, and returns its load; `send` sends it.

        It leaves with `codec`, which is its own unless it is uncompressed.
        """
        if self.filling is not None:
            self._fill_no_more()
        builder = WholeBuilder(batch, transactional=self._transactional, codec=codec)
        whole = Batch(builder, self._make_load(), self._clock())
        self.full.append(whole)
        self.rouse()
        return whole.load

    def _fill_no_more(self) -> None:
        assert self.filling is not None
        self.full.append(self.filling)
        self.filling = None
        self.rouse()

    def rouse(self) -> None:
        """Ends the wait of a batch for more records."""
        if self._roused is not None:
            self._roused.set()

    def press(self) -> None:
        """Lets the batch that fills linger no longer."""
        self.pressed = True
        self.rouse()

    async def linger(self, seconds: float) -> None:
        """Waits until the next batch is full, or pressed, or `seconds` old."""
        if self.filling is None or self.full or self.pressed:
            return
        self._roused = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._roused.wait(), max(0.0, self.filling.began_s + seconds - self._clock()))
        self._roused = None

    def answered(self) -> None:
        """Notes that the broker has answered for a batch: the delivery timeout of the next one begins."""
        self.answered_s = self._clock()

    def take(self) -> Batch[L] | None:
        """Takes the next batch, and closes it; None if there is none."""
        if self.full:
            batch = self.full.popleft()
        elif self.filling is not None:
            batch, self.filling, self.pressed = self.filling, None, False
        else:
            return None
        batch.close()
        return batch

    def put_back(self, batches: list[Batch[L]]) -> None:
        """Puts batches before all others."""
        self.full.extendleft(reversed(batches))

    def clear(self) -> list[Batch[L]]:
        """Drops all batches, and returns them."""
        batches = [*self.full, *([self.filling] if self.filling is not None else [])]
        self.full.clear()
        self.filling = None
        return batches
