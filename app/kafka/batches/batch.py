"""A batch: records in the form in which they travel, and what else is kept of them until they are durable."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import RecordMetadata

from app.kafka.producer import Stamp
from transforms.batch_size import BATCH_OVERHEAD_BYTES
from transforms.batch_split import split
from transforms.record import Header, Record, RecordLike

__all__ = ["Batch", "Builder", "Load"]

# Kafka protocol, "Record Batch": the CRC stands at 17 and is that of all from the attributes, at 21, to the end;
# producer id, epoch and base sequence follow each other from 43 on, behind the latest timestamp.
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_LATEST_AT = 35
_STAMP_AT = 43
_NO_TIMESTAMP = -1


class Load(Protocol):
    """What is kept for the records of a batch, by whoever has appended them."""

    def split(self, count: int) -> Self:
        """Keeps what belongs to the first `count` records, and returns what belongs to the rest."""
        ...

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:
        """The batch is durable, its first record at `metadata.offset`; `size` is that of the records, uncompressed."""
        ...

    def failed(self, error: BaseException) -> None:
        """The batch is not delivered, or nobody knows whether it is."""
        ...


class Builder(BatchBuilder):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's builder, which remembers its stamp and can be built before the client asks for that.

    Building compresses; on a thread it does not hold up the event loop.

    Attributes:
        stamp: what it was stamped with last; None where it was not.
        tries: how often the client has taken the batch to send it.
    """

    def __init__(self, room_bytes: int, codec: int, *, transactional: bool) -> None:
        super().__init__(room_bytes, codec, is_transactional=transactional)
        self.stamp: Stamp | None = None
        self.tries = 0
        self._room_bytes = room_bytes
        self._untimed = False

    # Each record comes through here, so what aiokafka does for serializers is left out.
    def append(
        self, *, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> object | None:
        """None where there is no room, or the batch is closed."""
        if self._closed or (self._untimed and not self._takes_untimed(timestamp, key, value, headers)):
            self.close()
            return None
        appended: object | None = self._builder.append(self._relative_offset, timestamp, key, value, headers)
        if appended is None:
            self.close()
        else:
            self._relative_offset += 1
            if timestamp == _NO_TIMESTAMP and self._relative_offset == 1:
                self._untimed = True
        return appended

    def _takes_untimed(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> bool:
        # Behind such a record aiokafka takes each for the first: it would move the timestamps of those before, and
        # take records without end.
        more: int = self._builder.size_in_bytes(self._relative_offset, timestamp, key, value, headers)
        return timestamp == _NO_TIMESTAMP and self._builder.size() + more <= self._room_bytes

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        stamp = Stamp(producer_id, producer_epoch, base_sequence)
        if self._buffer is None:
            super()._set_producer_state(*stamp)
        elif stamp != self.stamp:
            struct.pack_into(">qhi", self._buffer, _STAMP_AT, *stamp)
            crc = calc_crc32c(memoryview(self._buffer)[_ATTRIBUTES_AT:].tobytes())
            struct.pack_into(">I", self._buffer, _CRC_AT, crc)
        self.stamp = stamp

    def stamped(self, stamp: Stamp) -> None:
        """Takes the stamp that the client will give it, so that building need not be done over."""
        self._set_producer_state(*stamp)

    def _build(self) -> bytearray:  # the client's
        self.tries += 1
        return self.built()

    def built(self) -> bytearray:
        """The batch as it travels; compressed at the first call."""
        buffer: bytearray = super()._build()
        return buffer


def _append(builder: Builder, record: RecordLike) -> object | None:
    headers = list(record.headers) if record.headers else []
    return builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)


L = TypeVar("L", bound=Load)


class Batch(Generic[L]):
    """Records on their way to one partition. They are kept in their final form alone, as the client holds that anyway.

    Args:
        builder: an empty one.
        load: what is kept for the records.
        began_s: when its first record was appended, on the loop's clock.

    Attributes:
        uncompressed_bytes: of its records, once the batch is closed.
    """

    __slots__ = ("began_s", "builder", "load", "uncompressed_bytes")

    def __init__(self, builder: Builder, load: L, began_s: float) -> None:
        self.builder = builder
        self.load = load
        self.began_s = began_s
        self.uncompressed_bytes = 0

    def append(self, record: RecordLike) -> bool:
        """False where there is no room; a batch takes its first record whatever its size.

        Raises:
            TypeError: a part of the record is not of the type that it has to be.
        """
        return _append(self.builder, record) is not None

    @property
    def records(self) -> int:
        """How many there are."""
        count: int = self.builder.record_count()
        return count

    @property
    def wire_bytes(self) -> int:
        """Bytes of the records as they travel; before the batch is built, uncompressed."""
        size: int = self.builder.size()
        return size - BATCH_OVERHEAD_BYTES

    @property
    def timestamp(self) -> int:
        """The latest of its records, once it has been built."""
        latest: int = struct.unpack_from(">q", self.builder.built(), _LATEST_AT)[0]
        return latest

    def close(self) -> None:
        """Takes no more records."""
        if not self.uncompressed_bytes:
            self.uncompressed_bytes = self.wire_bytes
            self.builder.close()

    def divided(self, make: Callable[[], Builder]) -> list[Builder]:
        """The records, of which there must be several, in two builders with about as many bytes each.

        More than two where a record has no timestamp, as what stands behind it may need a batch of its own.

        What was built is decoded: on the normal path nothing is kept for this. It takes time, and may run on a thread.

        Args:
            make: an empty builder that takes any number of records.
        """
        builders = []
        for part in split(self._decoded()):
            builder = make()
            builders.append(builder)
            for record in part:
                if _append(builder, record) is None:
                    builder = make()
                    builders.append(builder)
                    appended = _append(builder, record)
                    assert appended is not None, "a batch takes its first record whatever its size"
        return builders

    def parts(self, builders: Sequence[Builder]) -> list[Batch[L]]:
        """The batches into which this one has been `divided`; it is of no use any more."""
        parts = []
        load = self.load
        for builder in builders[:-1]:
            rest = load.split(builder.record_count())
            parts.append(Batch(builder, load, self.began_s))
            load = rest
        parts.append(Batch(builders[-1], load, self.began_s))
        for part in parts:
            part.close()
        return parts

    def _decoded(self) -> list[Record]:
        batch = MemoryRecords(bytes(self.builder.built())).next_batch()
        assert batch is not None
        return [Record(record.key, record.value, record.headers, record.timestamp) for record in batch]
