"""The log of one partition as a broker keeps it: batches, producers, transactions, epochs of leaders."""

from __future__ import annotations

import copy
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c

from tests.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.cluster import Topic

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC = 16  # where a batch has its format
_KEPT_SEQUENCES = 5  # batches of a producer that a broker knows again (KIP-98)

DUPLICATE, OUT_OF_ORDER, FENCED, MALFORMED = 46, 45, 47, 2


@dataclass(slots=True)
class Batch:
    data: bytes
    base: int
    last: int
    epoch: int
    producer_id: int
    transactional: bool
    control: bool
    time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first and last sequence, base offset


@dataclass(frozen=True, slots=True)
class Produced:
    """What became of a batch: an error code, or 0 and the base offset."""

    code: int
    base: int = -1


class PartitionLog:
    def __init__(self, node: int) -> None:
        self.batches: list[Batch] = []  # in order
        self.start = self.end = 0
        self.epoch = 0  # of the leader
        self.node = node  # the leader
        self.alone = False  # whether no other replica is in sync
        self.ongoing: dict[int, int] = {}  # by producer id, where its open transaction has begun
        # Producer id, first offset and last stable mark of aborted transactions
        self.aborted: list[tuple[int, int, int]] = []
        self._producers: dict[int, _Producer] = {}
        self._bases: list[int] = []
        self._epochs = [(0, 0)]  # each with its first offset
        self.waiters: list[Any] = []

    @property
    def stable(self) -> int:
        return max(self.start, min(self.ongoing.values(), default=self.end))

    def append(self, data: bytes, limit: int) -> Produced:  # noqa: C901, PLR0911  # the checks of a broker, in order
        """Appends a batch of format 2 as a producer has sent it."""
        if len(data) > limit:
            return Produced(10)
        fields = _HEADER.unpack_from(data)
        _, length, _, magic, crc, attributes, delta, _, latest, producer_id, epoch, sequence, count = fields
        if magic != 2 or length != len(data) - 12 or crc32c(data[21:]) != crc or delta != count - 1:
            return Produced(MALFORMED)
        if producer_id >= 0:
            producer = self._producers.get(producer_id)
            if producer is None or epoch > producer.epoch:
                if sequence != 0 and producer is not None:
                    return Produced(OUT_OF_ORDER)
                producer = self._producers[producer_id] = _Producer(epoch)
            elif epoch < producer.epoch:
                return Produced(FENCED)
            for first, last, base in producer.batches:
                if first == sequence and last == sequence + delta:
                    return Produced(0, base)
            if producer.batches and sequence != producer.batches[-1][1] + 1:
                late = sequence <= producer.batches[-1][1]
                return Produced(DUPLICATE if late else OUT_OF_ORDER)
            producer.batches.append((sequence, sequence + delta, self.end))
            del producer.batches[:-_KEPT_SEQUENCES]
        transactional = bool(attributes & 0x10)
        base = self.end
        if transactional:
            self.ongoing.setdefault(producer_id, base)
        stamped = bytearray(data)
        struct.pack_into(">qii", stamped, 0, base, length, self.epoch)
        self._add(Batch(bytes(stamped), base, base + delta, self.epoch, producer_id, transactional, False, latest))
        return Produced(0, base)

    def append_as_is(self, data: bytes, base: int, last: int, time_ms: int) -> None:
        """Appends what no producer of today writes: an old format, or a batch that compaction has left."""
        self._add(Batch(data, base, last, self.epoch, -1, False, False, time_ms))

    def _add(self, batch: Batch) -> None:
        if batch.data[_MAGIC] < 2:
            self._epochs.clear()  # as Kafka's `UnifiedLog`: such batches have none
        elif not self._epochs or self._epochs[-1][0] < batch.epoch:
            self._epochs.append((batch.epoch, batch.base))
        self.batches.append(batch)
        self._bases.append(batch.base)
        self.end = batch.last + 1
        self.wake()

    def wake(self) -> None:
        """Lets those look again who wait for it."""
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, time_ms: int) -> None:
        """Writes the mark of the end of a transaction; the producer's later batches need this epoch."""
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            self._producers[producer_id] = _Producer(epoch)
        first = self.ongoing.pop(producer_id, None)
        base = self.end
        data = marker(base, self.epoch, producer_id, epoch, commit=commit, time_ms=time_ms)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, base))
        self._add(Batch(data, base, base, self.epoch, producer_id, True, True, time_ms))

    def read(self, offset: int, until: int, most: int) -> bytes:
        """The batches from that of `offset` on and below `until`; at least one, if there is one."""
        if offset >= until:  # the batch of `offset` may begin before it, where records were deleted
            return b""
        at = max(0, bisect_right(self._bases, offset) - 1)
        pieces: list[bytes] = []
        size = 0
        for batch in self.batches[at:]:
            if batch.last >= until:  # a limit within a batch ends before it
                break
            if batch.last < offset:
                continue
            if pieces and size + len(batch.data) > most:
                break
            pieces.append(batch.data)
            size += len(batch.data)
        return b"".join(pieces)

    def aborted_from(self, offset: int, until: int) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that have records there."""
        return [(producer, first) for producer, first, last in self.aborted if last >= offset and first < until]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """See KIP-320: the greatest epoch that is not above, and where it ends; as Kafka's `LeaderEpochFileCache`."""
        if self._epochs and epoch == self._epochs[-1][0]:
            return epoch, self.end
        above = [start for each, start in self._epochs if each > epoch]
        if not above:
            return -1, -1
        found = [each for each, _ in self._epochs if each <= epoch]
        return found[-1] if found else epoch, above[0]

    def elect(self, node: int) -> None:
        self.node = node
        self.epoch += 1
        self._epochs = [each for each in self._epochs if each[1] < self.end] + [(self.epoch, self.end)]

    def delete_before(self, offset: int) -> None:
        """What retention does, or who deletes records."""
        self.start = max(self.start, min(offset, self.end))
        older = [each for each, first in self._epochs if first <= self.start]
        self._epochs = [*([(older[-1], self.start)] if older else []), *self._epochs[len(older) :]]
        keep = bisect_left([each.last for each in self.batches], self.start)
        del self.batches[:keep]
        del self._bases[:keep]

    def truncate(self, end: int) -> None:
        """What is lost when a replica leads that has not got it; no transaction may be there."""
        while self.batches and self.batches[-1].base >= end:
            self.batches.pop()
            self._bases.pop()
        self.end = max(self.start, self.batches[-1].last + 1 if self.batches else 0)
        self._epochs = [each for each in self._epochs if each[1] < self.end]

    def records(self) -> list[Any]:
        """All records of producers, committed or not."""
        return [record for each in self.batches if not each.control for record in DefaultRecordBatch(each.data)]

    def offset_at(self, time_ms: int) -> tuple[int, int]:
        """Offset and time of the first record that is not older; -1 each if there is none."""
        for batch in self.batches:
            if batch.time_ms >= time_ms and not batch.control:
                return max(batch.base, self.start), batch.time_ms
        return -1, -1

    def committed(self, since: int = 0) -> list[tuple[int, Any]]:
        """Offset and record of all that a reader of committed records gets, in order, from an offset on."""
        found = []
        gone: dict[int, list[tuple[int, int]]] = {}
        for producer, first, last in self.aborted:
            gone.setdefault(producer, []).append((first, last))
        for batch in self.batches:
            if batch.control or batch.last < since:
                continue
            if batch.transactional:
                if batch.base >= self.ongoing.get(batch.producer_id, 2**63):
                    continue
                if any(first <= batch.base <= last for first, last in gone.get(batch.producer_id, ())):
                    continue
            found += [(record.offset, record) for record in DefaultRecordBatch(batch.data)]
        return [each for each in found if each[0] >= max(self.start, since)]


def marker(base: int, leader_epoch: int, producer_id: int, epoch: int, *, commit: bool, time_ms: int) -> bytes:
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 0)
    record = bytes([0, 0, 0, len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\0"
    record = bytes([len(record) * 2]) + record
    rest = struct.pack(">hiqqqhii", 0x30, 0, time_ms, time_ms, producer_id, epoch, -1, 1) + record
    head = struct.pack(">qiib", base, 4 + 1 + 4 + len(rest), leader_epoch, 2)
    return head + struct.pack(">I", crc32c(rest)) + rest


class Isolation:
    """A broker that is cut off from the others, and not from clients: it takes itself for the leader that it was.

    It tells what it knew then: older leaders, with older epochs. What was written since is out of range to it.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._node = -1
        self._until_s = 0.0
        self._logs: Mapping[tuple[str, int], PartitionLog] = {}

    def begin(self, node: int, seconds: float, topics: Iterable[Topic]) -> None:
        self._node, self._until_s = node, self._loop.time() + seconds
        self._logs = {(topic.name, number): _as_it_is(log) for topic in topics for number, log in enumerate(topic.logs)}

    def of(self, node: int) -> bool:
        return node == self._node and self._loop.time() < self._until_s

    def known(self, node: int, topic: str, number: int) -> PartitionLog | None:
        """A log as a broker knows it that is cut off; None for another broker, or a log that is newer."""
        return self._logs.get((topic, number)) if self.of(node) else None


def _as_it_is(log: PartitionLog) -> PartitionLog:
    waiters, log.waiters = log.waiters, []
    known = copy.deepcopy(log)
    log.waiters = waiters
    known.alone = True
    return known
