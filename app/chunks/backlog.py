"""The records that a consumer has read and not delivered yet, with their downloads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, KeysView
from dataclasses import dataclass
from itertools import islice

from aiokafka import ConsumerRecord, TopicPartition

from app.chunks.rereader import Again
from transforms.errors import SerializationError

__all__ = ["Backlog", "Entry"]


@dataclass(slots=True, eq=False)
class Entry:
    """A record that is to be delivered.

    Attributes:
        record: as Kafka has it; or the message that is to be read again.
        size: the most bytes that its download gives, or its chunks; None if the record needs neither.
        download: gives the restored record; None before it begins, and after it has failed.
        error: of the last attempt, until a call raises it.
        gone: whether there is nothing to deliver: the message that was read again is not whole.
    """

    record: ConsumerRecord | Again
    size: int | None
    download: asyncio.Task[ConsumerRecord] | None = None
    error: SerializationError | None = None
    gone: bool = False

    @property
    def ready(self) -> bool:
        """True if nothing has to be awaited before the record can be delivered, or refused."""
        return self.size is None or (self.download is not None and self.download.done())

    @property
    def failed(self) -> bool:
        """True if the download has failed."""
        task = self.download
        return task is not None and task.done() and (task.cancelled() or task.exception() is not None)

    def begin(self, restore: Callable[[Entry], Awaitable[ConsumerRecord]]) -> asyncio.Task[ConsumerRecord]:
        """The download, begun now if it is not under way. It goes on when the call that began it is cancelled."""
        if self.download is None:
            self.download = asyncio.ensure_future(restore(self))
            self.download.add_done_callback(_retrieve)
        return self.download

    def result(self) -> ConsumerRecord:
        """What the download gave.

        Raises:
            Exception: the download has failed.
        """
        assert self.download is not None
        return self.download.result()


class Backlog:
    """Entries by partition, in the order of offsets. A partition without entries is not in it."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Entry]] = {}

    @property
    def partitions(self) -> KeysView[TopicPartition]:
        """The partitions that have entries."""
        return self._queues.keys()

    def add(self, partition: TopicPartition, entry: Entry) -> None:
        """Adds a record that was read behind those that are here."""
        self._queues.setdefault(partition, deque()).append(entry)

    def entries(self, partition: TopicPartition) -> Iterable[Entry]:
        """The entries of a partition."""
        return self._queues.get(partition, ())

    def next(self, partitions: Collection[TopicPartition], most: int | None) -> dict[TopicPartition, list[Entry]]:
        """The next `most` entries of these partitions, and besides those whose downloads are under way.

        A failed download is forgotten, as the call that began it was cancelled; it can begin again.
        """
        found: dict[TopicPartition, list[Entry]] = {}
        count = 0
        for partition, queue in self._queues.items():
            for entry in islice(queue, most) if partition in partitions else ():
                under_way = entry.download is not None and not entry.download.done()
                if not under_way:
                    if entry.failed:
                        entry.download = None
                    if count == most:
                        break
                    count += 1
                found.setdefault(partition, []).append(entry)
        return found

    def drop(self, partition: TopicPartition, count: int) -> None:
        """Drops the first entries of a partition, and lets the other partitions go first in the next call."""
        queue = self._queues.pop(partition)
        for _ in range(count):
            queue.popleft()
        if queue:
            self._queues[partition] = queue

    def downloaded_bytes(self, without: Collection[TopicPartition]) -> int:
        """The most bytes that downloads give, done or under way; `without` some partitions."""
        others = [queue for partition, queue in self._queues.items() if partition not in without]
        return sum(entry.size or 0 for queue in others for entry in queue if entry.download is not None)

    def cancel(self) -> None:
        """Cancels the downloads, and drops everything."""
        for queue in self._queues.values():
            for entry in queue:
                if entry.download is not None:
                    entry.download.cancel()
        self._queues.clear()

    def forget(self, partition: TopicPartition) -> None:
        """Drops the entries of a partition."""
        # Downloads are not cancelled: a thread goes on all the same, and another call may wait for it.
        self._queues.pop(partition, None)


def _retrieve(task: asyncio.Task[ConsumerRecord]) -> None:
    if not task.cancelled():
        task.exception()  # or asyncio would log the error of a record that no call asks for any more
