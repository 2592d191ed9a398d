"""What aiokafka has fetched, as batches: aiokafka's own reader creates an object for each record.

A response to a fetch is handled twice: at the gate of the client, which keeps its bytes, and then by aiokafka's
fetcher, which stores a reader for each partition where polls find it. Here that reader returns batches. Everything else
is left to aiokafka: positions, leaders, errors, and dropping data at a rebalance.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.gate import Call, Gate, Place, Send
from app.kafka.old_batch import OldBatch
from app.kafka.receiver import viewed
from app.kafka.source_batch import SourceBatch, UnreadBatch, decoded, placed
from transforms.errors import MalformedError
from transforms.message_set import Message
from transforms.record import Record
from transforms.record_batch import RecordBatch, is_intact, is_old, leader_epoch_of, offsets_of, pack, split

_NONE = 0
_MOST_OFFSET = 2**63 - 1
_WHOLE = struct.Struct(">qi")  # offset and length of a batch
_NO_RECORDS = bytes(pack([Record(None, None)]))
_WITH_REPLICA, _ABORTED_AT = 11, 3  # from that version on, there is a field between the aborted and the records
_ABORT = b"\0\0\0\0"  # the key of a control record: version 0, type 0; a commit has type 1


_Aborted = Sequence[tuple[int, int]]
OnEpoch = Callable[[TopicPartition, int, int], None]


class ReadAhead(Protocol):
    """Counts and limits what is fetched before it is polled."""

    def fetched(self, size: int) -> None:
        """Counts bytes that were fetched; a negative number when they are polled or dropped."""

    async def may_fetch(self) -> None:
        """Waits until the next fetch may be sent."""


class FetchedBatches(OrderedDict[Any, Any]):
    """Makes the polls of one consumer return `SourceBatch`es. Belongs to its event loop.

    Replaces the dictionary in which aiokafka's fetcher keeps, by partition, readers and errors until they are polled.

    Args:
        controls: of a consumer that has started and was not polled yet.
        read_ahead: informed of each fetch; None where one fetch returns little: a megabyte for each partition.
        on_epoch: called with the partition, the first offset and the leader epoch of a batch that is polled or skipped;
            for the first batch of each response, and where the epoch changes.
    """

    def __init__(
        self, controls: ConsumerControls, read_ahead: ReadAhead | None = None, on_epoch: OnEpoch | None = None
    ) -> None:
        super().__init__()
        self._controls = controls
        self._read_ahead = read_ahead
        self._on_epoch: OnEpoch = on_epoch or (lambda *_: None)
        self._taken: dict[TopicPartition, tuple[bytes | memoryview, _Aborted]] = {}  # of the last response
        self._sizes: dict[TopicPartition, int] = {}
        Gate.of(controls.client).set(Place.RECORDS, {FetchRequest: self._fetch})
        fetcher = controls.fetcher
        self.update(fetcher._records)  # errors; no record was fetched
        fetcher._records = self
        set_error = fetcher._set_error

        def set_first_error(partition: TopicPartition, error: BaseException) -> None:
            if partition not in self:  # else aiokafka would end the fetcher: a former leader has answered as well
                set_error(partition, error)

        fetcher._set_error = set_first_error

    async def _fetch(self, call: Call, send: Send) -> Any:
        if self._read_ahead is not None:
            await self._read_ahead.may_fetch()
        call.change(viewed)
        response = await send()
        # Data of an earlier response that the fetcher did not use is obsolete.
        self._taken.clear()
        aborted = _ABORTED_AT if response.API_VERSION >= _WITH_REPLICA else -2
        assignment = self._controls.assignment
        for topic, partitions in response.topics:
            for at, (number, code, *rest) in enumerate(partitions):
                if code == _NONE and rest[-1]:
                    place, data = TopicPartition(topic, number), b""
                    state = assignment.state_value(place)
                    if state is not None and not state.paused:  # else nobody polls it, for an unknown time
                        self._taken[place] = rest[-1], rest[aborted] or ()
                        data = _stand_in(rest[-1])
                    partitions[at] = (number, code, *rest[:-1], data)
        return response

    def __setitem__(self, partition: TopicPartition, result: Any) -> None:
        # The fetcher calls this as soon as `_fetch` has ended.
        if partition in self:  # another leader has answered the same request
            del self[partition]
        own = getattr(result, "_partition_records", None)  # an error has none
        if own is not None:
            data, aborted = self._taken.pop(partition)
            result._partition_records = _Reader(partition, own, data, aborted, self._on_epoch)
            self._sizes[partition] = len(data)
            self._count(len(data))
        super().__setitem__(partition, result)

    def __delitem__(self, partition: TopicPartition) -> None:
        super().__delitem__(partition)
        self._count(-self._sizes.pop(partition, 0))

    def clear(self) -> None:
        """Drops everything."""
        super().clear()
        self._count(-sum(self._sizes.values()))
        self._sizes.clear()

    def _count(self, size: int) -> None:
        if self._read_ahead is not None:
            self._read_ahead.fetched(size)


class _Reader:
    """Returns the batches of one response for one partition, without those of aborted transactions.

    Args:
        partition: the source partition.
        own: aiokafka's reader, of a stand-in.
        data: the bytes.
        aborted: the producers of aborted transactions, and from which offset on.
        on_epoch: see `FetchedBatches`.

    Attributes:
        next_fetch_offset: the offset after the last batch that was returned or skipped; aiokafka reads it.
    """

    def __init__(
        self, partition: TopicPartition, own: Any, data: bytes | memoryview, aborted: _Aborted, on_epoch: OnEpoch
    ) -> None:
        self.next_fetch_offset: int = own.next_fetch_offset
        self._partition = partition
        self._on_epoch = on_epoch
        self._verifies: bool = own._check_crcs
        self._aborted = deque(sorted(aborted, key=itemgetter(1)))  # brokers guarantee no order
        self._aborting: set[int] = set()
        self._epoch: int | None = None
        self._batches = self._read(data)

    def __iter__(self) -> Iterator[SourceBatch]:
        return self._batches

    def __next__(self) -> SourceBatch:
        return next(self._batches)

    def _read(self, data: bytes | memoryview) -> Iterator[SourceBatch]:
        given = False
        try:
            for piece in split(memoryview(data)):
                if (batch := self._batch(piece)) is not None:
                    yield batch
                    given = True
        except (MalformedError, CorruptRecordException) as exc:
            # The batches before it are polled; the next fetch starts with the damaged one.
            if not given:
                raise CorruptRecordException(f"{self._partition}, offset {self.next_fetch_offset}: {exc}") from exc

    def _batch(self, piece: memoryview) -> SourceBatch | None:
        """The batch in a piece of a response, if it is wanted; a partition may have all three formats, in any order."""
        begin, old = self.next_fetch_offset, is_old(piece)
        try:
            read: Any = Message.read(piece) if old else RecordBatch.read(piece)
        except MalformedError as exc:
            if not (Message.is_intact(piece) if old else is_intact(piece)):
                raise
            return self._refused(piece, exc)
        if self._verifies and not read.intact:
            raise CorruptRecordException("the checksum is wrong")
        end = read.last_offset + 1
        if old:
            self.next_fetch_offset = max(begin, end)
            return OldBatch(self._partition, begin, read) if end > begin else None
        self._note_epoch(read.base_offset, read.leader_epoch)
        wanted = self._committed(read) and not read.control and read.count > 0 and end > begin
        self.next_fetch_offset = max(begin, end)
        return SourceBatch(self._partition, max(begin, read.base_offset), read) if wanted else None

    def _note_epoch(self, offset: int, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._on_epoch(self._partition, offset, epoch)

    def _refused(self, piece: memoryview, error: MalformedError) -> SourceBatch | None:
        """What replaces a batch whose checksum is right, but whose header is invalid."""
        first, last = (Message.offset_of(piece),) * 2 if is_old(piece) else offsets_of(piece)
        last = max(first, last)
        if not 0 <= first <= last < _MOST_OFFSET:
            raise error  # no checksum covers the first one
        if last < self.next_fetch_offset:
            return None
        first = max(first, self.next_fetch_offset)
        self.next_fetch_offset = last + 1
        if not is_old(piece):
            self._note_epoch(last, leader_epoch_of(piece))
        topic, number = self._partition.topic, self._partition.partition
        failed = UnreadBatch(topic, number, last, -1, bytes(piece), placed(error, first, last), first, last - first + 1)
        return SourceBatch(self._partition, first, None, (failed,))

    def _committed(self, batch: RecordBatch) -> bool:
        """False if the batch is part of an aborted transaction.

        A response names the producers that have aborted, and from which offset on; the marker of the end is in the log.
        """
        while self._aborted and self._aborted[0][1] <= batch.base_offset:
            self._aborting.add(self._aborted.popleft()[0])
        if batch.producer_id not in self._aborting:
            return True
        if batch.control:
            if any(record.key == _ABORT for _, record in decoded(batch)):
                self._aborting.discard(batch.producer_id)
            return True
        return not batch.transactional


def _stand_in(data: memoryview) -> bytes:
    """What aiokafka's own reader gets: it accepts only bytes, and checks whether the first batch is complete."""
    complete = len(data) > _WHOLE.size and _WHOLE.size + _WHOLE.unpack_from(data)[1] <= len(data)
    return _NO_RECORDS if complete else bytes(data)
