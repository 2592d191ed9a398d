"""One range of a backfill: what a task reads from a partition of the source, and writes to the sink in its order.

A range ends where it was told to, or sooner, once it has read enough; it is done when everything that it wrote is
acknowledged and committed, in one transaction. Until then nobody has noted it, and whoever does it again ends the
transaction of the one before, and writes the same records again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from aiokafka.partitioner import murmur2

from jobs.backfill_forms import Mark, Tally, foresee, form_of, mark_of
from jobs.backfill_sink import SinkTopic, SinkWriter
from jobs.failures import JobFailedError
from jobs.log import Log
from jobs.messages import Message, Messages, TopicRecord
from jobs.restorer import Problem, Restorer
from jobs.source_options import SourceSettings
from stores.registry import open_store, put
from stores.store import PayloadStore
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import PayloadStoreError, WideloadError
from transforms.formats import FormatName
from transforms.identifiers import transactional_id
from transforms.offload import Offload
from transforms.record import Record, RecordLike

__all__ = ["Copying", "Outcome", "Range", "copied", "scanned"]

_MOST_WAITING = 1_000  # records behind one whose upload takes long

# Of one transaction: readers with `read_committed` wait for its end, and brokers allow 15 minutes. What
# is on its way when a range ends may take a few calls of the store more.
_LONGEST_S = 300.0
_LONGEST_CALLS = 4
_MOST_TIMEOUT_MS = 900_000
_STORE_TIMEOUT = "large.message.store.timeout.ms"
_STORE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Copying:
    """What every task needs to know; goes to executors.

    Attributes:
        source: where records come from, how they refer to payloads, and the store.
        sink: where they go.
        offload: which values leave their records; None where all are to stay in them.
        by_key: whether a record goes to the partition that its key has in the sink, else to that of its own number.
        keep_references: whether a record that refers to a payload goes as it is, and the payload stays where it is.
        keep_problems: whether a record that cannot be restored goes as it is; else it ends the job.
        max_records: of a range.
        max_bytes: of a range, read or written; one record more may come.
    """

    source: SourceSettings
    sink: SinkTopic
    offload: Offload | None
    by_key: bool = False
    keep_references: bool = False
    keep_problems: bool = False
    max_records: int = 10_000
    max_bytes: int = 256 * 2**20

    @property
    def topic(self) -> str:
        """The source's name."""
        return self.source.topics[0]


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets of a partition from `start` up to `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a range.

    Attributes:
        next: everything below this offset is done: acknowledged by the sink.
        tally: what was done.
        ends: of each partition of the sink that was written to, the offset behind the last record.
        error: why the range ended; None where nothing is wrong.
        mark: of the last record that was read, where it is done.
    """

    next: int
    tally: Tally
    ends: dict[int, int] = field(default_factory=dict)
    error: WideloadError | None = None
    mark: Mark | None = None


def copied(copying: Copying, range_: Range) -> Outcome:
    """Does a range. What goes wrong is in the outcome, with how far it was done; Spark need not try it again."""
    tally = Tally()
    try:
        with ExitStack() as stack:
            copy = _Copy(copying, range_, tally, stack)
            error = copy.run()
            return Outcome(copy.next, tally, copy.writer.ends, error, copy.mark())
    except WideloadError as exc:
        # Nobody knows which of the last records the sink has, so all of the range counts as not done.
        return Outcome(range_.start, Tally(), {}, exc)


def scanned(copying: Copying, range_: Range) -> Outcome:
    """Looks at the records of a range, and counts what `copied` would do with them; neither store nor sink is asked."""
    tally = Tally()
    try:
        with closing(Log(copying.source.client, copying.topic, range_.partition)) as log:
            cursor = _Cursor(log, copying, range_, tally)
            for record in cursor.records(range_.start, range_.end, fail_on_loss=copying.source.fail_on_loss):
                foresee(
                    record,
                    tally,
                    copying.source.restorer.reference_format,
                    copying.offload,
                    keep_references=copying.keep_references,
                )
            return Outcome(cursor.position, tally)
    except WideloadError as exc:
        return Outcome(range_.start, tally, {}, exc)


class _Cursor:
    """The partition as `Messages` reads it, which counts what is read of the range and ends it where it is enough."""

    def __init__(self, log: Log, copying: Copying, range_: Range, tally: Tally) -> None:
        self.at = range_.start
        self.position = range_.start
        self.last: TopicRecord | None = None
        self._until = time.monotonic() + _LONGEST_S
        self._log = log
        self._copying = copying
        self._range = range_
        self._tally = tally

    def first(self) -> int:
        return self._log.first()

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[TopicRecord]:
        found = self._log.records(start, end, fail_on_loss=fail_on_loss)
        if end != self._range.end:  # a look at what is before the range
            yield from found
            return
        reference_format = self._copying.source.restorer.reference_format
        for record in found:
            self.at, self.last = record.offset, record
            self._tally.read(form_of(record, reference_format), len(record.key or b"") + len(record.value or b""))
            yield record
            self.position = record.offset + 1
            if self._enough():
                return
        self.position = end

    def _enough(self) -> bool:
        tally = self._tally
        size = max(tally.read_bytes, tally.bytes + tally.payload_bytes)
        if tally.read_records >= self._copying.max_records or size >= self._copying.max_bytes:
            return True
        return time.monotonic() > self._until


@dataclass(frozen=True, slots=True)
class _Place:
    """A message on its way.

    Attributes:
        at: the offset that was being read when it came.
        own: whether it goes as it is, and no reference in it is followed.
        problem: why it cannot be restored, as far as that shows without the store.
    """

    message: Message
    at: int
    own: bool = False
    problem: Problem | None = None

    @property
    def after(self) -> int:
        """From where to go on once it is done. A chunk may have ended several messages, so it is read again."""
        return self.message.offset + 1 if self.at == self.message.offset and not self._of_chunks else self.at

    @property
    def _of_chunks(self) -> bool:
        return self.message.problem is not None or isinstance(self.message.record, Record)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message as it is to be written, or why it cannot be."""

    place: _Place
    record: RecordLike
    problem: Problem | None
    payload_bytes: int | None = None


_NOTHING = Record(None, None)


class _Copy:
    """One range, while it is done."""

    def __init__(self, copying: Copying, range_: Range, tally: Tally, stack: ExitStack) -> None:
        source = copying.source
        self.next = range_.start
        self._copying = copying
        self._range = range_
        self._tally = tally
        self._log = stack.enter_context(closing(Log(source.client, copying.topic, range_.partition)))
        self._cursor = _Cursor(self._log, copying, range_, tally)
        self._restorer = stack.enter_context(closing(Restorer(source.restorer)))
        self._store: PayloadStore = stack.enter_context(closing(open_store(source.restorer.store)))
        self._pool = ThreadPoolExecutor(source.restorer.threads, thread_name_prefix="wideload-backfill")
        stack.callback(self._pool.shutdown, cancel_futures=True)
        self.writer = stack.enter_context(closing(self._writer()))

    def run(self) -> WideloadError | None:
        """Goes on to the end of the range or up to what is wrong, and waits until all of that is acknowledged.

        Raises:
            WideloadError: the sink did not take what was written.
        """
        error: WideloadError | None = None
        found = self._offloaded(self._restored())
        while True:
            try:
                ready = next(found, None)
            except PayloadStoreError as exc:
                error = JobFailedError(f"{self._where(self.next)} or behind: the payload store failed: {exc}")
                break
            except WideloadError as exc:
                error = exc
                break
            if ready is None:
                self.next = self._cursor.position
                break
            error = self._take(ready)
            if error is not None:
                self.next = min(ready.place.message.offset, ready.place.at)
                break
            self.next = ready.place.after
        self.writer.commit()
        return error

    def mark(self) -> Mark | None:
        """Of the last record that was read, if it is done."""
        last = self._cursor.last
        return mark_of(last) if last is not None and last.offset < self.next else None

    def _writer(self) -> SinkWriter:
        copying = self._copying
        name = transactional_id(f"wideload-backfill-{copying.sink.name}", copying.topic, self._range.partition)
        call_ms = copying.source.restorer.store.get(_STORE_TIMEOUT)
        call_ms = call_ms if isinstance(call_ms, int) else _STORE_TIMEOUT_MS
        timeout_ms = min(_MOST_TIMEOUT_MS, round(_LONGEST_S * 1000) + _LONGEST_CALLS * call_ms)
        return SinkWriter(copying.source.client, copying.sink, name, timeout_ms)

    # --- from the source ----------------------------------------------------------------------------------------------

    def _messages(self) -> Iterator[tuple[_Place, RecordLike]]:
        source = self._copying.source
        messages = Messages(
            self._cursor,
            self._range.start,
            self._range.end,
            source.limits,
            source.lookback,
            fail_on_loss=source.fail_on_loss,
        )
        for message in messages:
            place = self._place(message)
            record = message.record
            if place.own or place.problem is not None:
                yield place, _NOTHING
            elif self._copying.offload is not None:
                # A key that refers to a payload stays as it is, so that equal keys stay equal.
                yield place, Record(None, record.value, record.headers, message.timestamp)
            else:
                yield place, record

    def _place(self, message: Message) -> _Place:
        at = self._cursor.at
        if message.problem is not None:
            return _Place(message, at, problem=message.problem)
        reference_format = self._copying.source.restorer.reference_format
        form = form_of(message.record, reference_format)
        if form == "reference" and reference_format != "wideload":
            return _Place(message, at, problem=_other("this project's headers", "wideload"))
        if form == "bakdata" and reference_format == "wideload":
            return _Place(message, at, problem=_other(f"bakdata's header {BAKDATA_FLAG}", "bakdata-headers"))
        return _Place(message, at, own=form == "reference" and self._copying.keep_references)

    def _restored(self) -> Iterator[_Ready]:
        for result in self._restorer.restored(self._messages()):
            place, original = result.place, result.place.message.record
            problem = place.problem or result.problem
            if problem is not None or place.own:
                yield _Ready(place, original, problem)
                continue
            key = original.key if self._copying.offload is not None else result.record.key
            record = Record(key, result.record.value, result.record.headers, place.message.timestamp)
            yield _Ready(place, record, None)

    # --- to the store -------------------------------------------------------------------------------------------------

    def _offloaded(self, found: Iterable[_Ready]) -> Iterator[_Ready]:
        """The same, with references in place of large values, in order; several are published at a time."""
        offload = self._copying.offload
        if offload is None:
            yield from found
            return
        waiting: deque[tuple[int, _Ready | Future[_Ready]]] = deque()
        held = 0
        bound = self._copying.source.restorer.held_bytes
        for ready in found:
            size = len(ready.record.value or b"")
            large = ready.problem is None and not ready.place.own and offload.wants(ready.record)
            size *= 2 if large and offload.codec is not None else 1
            while waiting and (held + size > bound or len(waiting) >= _MOST_WAITING):
                taken, first = waiting.popleft()
                held -= taken
                yield first.result() if isinstance(first, Future) else first
            if not large and not waiting:
                yield ready
                continue
            waiting.append((size, self._pool.submit(self._published, offload, ready) if large else ready))
            held += size
        for _, each in waiting:
            yield each.result() if isinstance(each, Future) else each

    def _published(self, offload: Offload, ready: _Ready) -> _Ready:
        value = ready.record.value
        assert value is not None
        payload = offload.payload(value)
        topic = self._copying.sink.name
        if payload.codec is None:
            path = put(self._store, topic, payload.checksum, payload.data)
        else:
            path = self._store.publish(topic, payload.data)
        record = offload.refer(ready.record, payload.reference(path))
        return _Ready(ready.place, record, None, payload.size)

    # --- to the sink --------------------------------------------------------------------------------------------------

    def _take(self, ready: _Ready) -> WideloadError | None:
        """Writes a record; gives what ends the job."""
        message, record, problem = ready.place.message, ready.record, ready.problem
        if problem is None:
            problem = self._too_large(record)
        if problem is not None:
            if message.lost or (message.problem is not None and self._copying.keep_problems):
                self._tally.left_out += 1
                return None
            original = message.record
            if not self._copying.keep_problems or self._too_large(original) is not None:
                return JobFailedError(
                    f"{self._where(message.offset)}: {problem.which} {problem.state}: {problem.detail}"
                )
            record = Record(original.key, original.value, original.headers, message.timestamp)
            self._tally.kept += 1
        elif ready.payload_bytes is not None:
            self._tally.payloads += 1
            self._tally.payload_bytes += ready.payload_bytes
        if record.timestamp != message.timestamp:
            record = Record(record.key, record.value, record.headers, message.timestamp)
        self.writer.write(self._partition(record), record)
        self._tally.records += 1
        self._tally.bytes += len(record.key or b"") + len(record.value or b"")
        return None

    def _too_large(self, record: RecordLike) -> Problem | None:
        limit = self._copying.sink.max_message_bytes
        size = batch_of_one_bytes(record)
        if size <= limit:
            return None
        detail = f"a record of {size:,} bytes; max.message.bytes of topic {self._copying.sink.name} is {limit:,}"
        return Problem("value", "too-large", detail)

    def _partition(self, record: RecordLike) -> int:
        if not self._copying.by_key:
            return self._range.partition
        partitions = len(self._copying.sink.ends)
        if record.key is None:  # to one partition, so that they stay in order
            return self._range.partition % partitions
        return int(murmur2(record.key) & 0x7FFFFFFF) % partitions

    def _where(self, offset: int) -> str:
        return f"topic {self._copying.topic} partition {self._range.partition} offset {offset}"


def _other(found: str, wanted: FormatName) -> Problem:
    return Problem("value", "malformed", f"the record has {found}; is --format {wanted} meant?")
