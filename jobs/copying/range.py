"""One range of a backfill: a task reads it from a partition of the source, and writes it to the output topic in order.

A range ends at its end offset, or earlier when the task has read enough. It is done when all of its records are
acknowledged and committed, in one transaction. The checkpoint does not note it before. A task that repeats the range
ends the transaction of the task before it. If that was committed, its receipt says so, and the range is not written
again; else the task writes the same records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import starmap

from app.config.settings import ClientSettings
from app.kafka.range_reader import RangeReader
from app.kafka.structs import partition_of
from jobs.copying.forms import Mark, Tally, foresee, form_of, mark_of
from jobs.copying.receipt import Receipt
from jobs.copying.writer import SinkTopic, SinkWriter
from jobs.driver.failures import JobFailedError
from jobs.reading.log import Log
from jobs.reading.messages import Message, Messages, Readable, TopicRecord
from jobs.reading.ranges import OffsetRange
from jobs.records.inflater import Inflated, Inflater, InflaterSettings
from jobs.records.offloader import Offloaded, Offloader, OffloaderSettings
from jobs.records.problems import Problem, named
from stores.encryption import ENCRYPTION_KEYS
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.batch_size import batch_of_one_bytes
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError, WideloadError
from transforms.formats import FormatName
from transforms.identifiers import transactional_id
from transforms.offload import Offload
from transforms.record import RecordLike
from transforms.reference import is_reference

# The longest transaction: readers with `read_committed` wait for its end, and brokers allow 15 minutes. Records that
# are on their way when a range ends may take a few more calls of the store.
_LONGEST_S = 300.0
_LONGEST_CALLS = 4
_MOST_TIMEOUT_MS = 900_000
_ENCRYPTION = {key.name for key in ENCRYPTION_KEYS}
_GENERATOR = "large.message.id.generator"
_STORE_TIMEOUT = "large.message.store.timeout.ms"
_STORE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Source:
    """The topic to read, and how; goes to executors.

    Attributes:
        client: how to reach the cluster, which has the output topic, too.
        consumer: arguments of aiokafka's consumer.
        topic: its name.
        inflater: how it refers to payloads, and the store.
        limits: of incomplete messages.
        lookback: how many offsets before a range the first chunk of a message may be.
        fail_on_loss: whether it is an error if Kafka has deleted records before they were read.
    """

    client: ClientSettings
    consumer: Mapping[str, object]
    topic: str
    inflater: InflaterSettings
    limits: Limits
    lookback: int = 100_000
    fail_on_loss: bool = True


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """What the job does; goes to executors.

    Attributes:
        source: what to read.
        sink: the topic to write.
        checkpoint: the directory with the job's progress; None for a dry run without one.
        offload: which values become references; None if none do. The job sets its `sink_limit_bytes`, and signs as the
            source is signed, unless it has keys for the output topic.
        encryption: the keys `large.message.encryption.…` for the output topic; None for those of the source.
        by_key: whether a record goes to the partition of its key in the output topic; else to the one with its own
            number.
        keep_references: whether a record that refers to a payload stays as it is, and so does the payload.
        keep_problems: whether a record that cannot be restored is written as it is; else it ends the job.
        append: whether a new checkpoint may begin with an output topic that has records.
        max_records: the most records of a range.
        max_bytes: the most bytes of a range, read or written, and one record.
        partitions_at_a_time: how many partitions are copied at a time; None for as many as the session has cores.
        dry_run: only count.
        checkpoint_id: the id of the checkpoint. The job sets it.
        alone: whether the receipt of a range's partition can only be of this checkpoint. The job sets it.
        mark: of the last record of the partition that was read; None for none. The job sets it.
    """

    source: Source
    sink: str
    checkpoint: str | None
    offload: Offload | None
    by_key: bool = False
    keep_references: bool = False
    keep_problems: bool = False
    append: bool = False
    max_records: int = 10_000
    max_bytes: int = 256 * 2**20
    partitions_at_a_time: int | None = None
    dry_run: bool = False
    encryption: Mapping[str, object] | None = field(default=None, repr=False)
    checkpoint_id: str = ""
    alone: bool = False
    mark: Mark | None = None

    def check(self) -> None:
        """Makes sure that the settings fit together. Makes no request.

        Raises:
            ConfigurationError: they do not.
        """
        if self.source.topic == self.sink:
            raise ConfigurationError("--sink", f"found {self.sink}, which is the source; use another topic")
        if self.checkpoint is None and not self.dry_run:
            raise ConfigurationError("--checkpoint", "is missing; specify a directory, or --dry-run")
        if self.source.inflater.store.get(_GENERATOR, "sha256") != "sha256":
            raise ConfigurationError(
                _GENERATOR,
                "must be sha256 in a backfill: otherwise a repeated range would leave payloads with other names behind",
            )

    def belongs_to(self) -> dict[str, str]:
        """The settings that must not change for a checkpoint."""
        return {
            "source": self.source.topic,
            "sink": self.sink,
            "to": "plain" if self.offload is None else "references",
            "format": self.source.inflater.reference_format,
            "partition-by": "key" if self.by_key else "number",
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a range.

    Attributes:
        next: all records below this offset are done: the output topic has acknowledged them.
        tally: what was read and written.
        ends: by partition of the output topic that was written to, the offset behind the last record.
        error: why the range ended; None if nothing is wrong.
        mark: the mark of the last record that was read, if that is done.
    """

    next: int
    tally: Tally
    ends: dict[int, int] = field(default_factory=dict)
    error: WideloadError | None = None
    mark: Mark | None = None


def copied(settings: BackfillSettings, sink: SinkTopic, range_: OffsetRange) -> Outcome:
    """Copies a range. Errors are in the outcome, with the offset that was reached, so Spark need not try again."""
    tally = Tally()
    try:
        with ExitStack() as stack:
            copy = _Copy(settings, sink, range_, tally, stack)
            done = copy.writer.receipt(range_.topic, range_.partition)
            if done is not None and done.is_ahead(settings.checkpoint_id, range_.start):
                return _done(done, settings, range_)
            if done is not None and settings.alone:
                _check_alone(done, settings, range_)
            copy.check()
            error = copy.run()
            return Outcome(copy.next, tally, copy.writer.ends, error, copy.mark())
    except WideloadError as exc:
        # It is not known which of the last records the output topic has, so the whole range counts as not done.
        return Outcome(range_.start, Tally(), {}, exc)


def check_mark(log: Readable, range_: OffsetRange, mark: Mark) -> None:
    """Makes sure that the record at the offset of a mark is still the one that was read, if there is a record.

    Only this detects a log that was truncated, or a topic that was created again, if it now has more records than were
    read.

    Raises:
        JobFailedError: it is another record.
    """
    offset, _ = mark
    found = next(log.records(offset, offset + 1, fail_on_loss=False), None)
    if found is not None and found.offset == offset and mark_of(found) != mark:
        raise JobFailedError(
            f"topic {range_.topic} partition {range_.partition} has a different record at offset {offset:,} than "
            f"the one that was read there: the topic was deleted and created again, or an unclean election "
            f"truncated its log; use a new --checkpoint and a new --sink"
        )


def _done(receipt: Receipt, settings: BackfillSettings, range_: OffsetRange) -> Outcome:
    if receipt.start > range_.start:
        return Outcome(
            range_.start,
            Tally(),
            {},
            JobFailedError(
                f"topic {range_.topic} partition {range_.partition} is copied up to offset {receipt.next:,}, and "
                f"the checkpoint {settings.checkpoint} is at {range_.start:,}: another run is using it, or it is "
                f"an old copy; stop the other run, or restore the newest copy"
            ),
        )
    return Outcome(receipt.next, receipt.tally, dict([receipt.end] if receipt.end else ()), None, receipt.mark)


def _check_alone(receipt: Receipt, settings: BackfillSettings, range_: OffsetRange) -> None:
    if receipt.checkpoint != settings.checkpoint_id and receipt.end is not None:
        raise JobFailedError(
            f"a backfill with another checkpoint than {settings.checkpoint} has written topic {range_.topic} partition "
            f"{range_.partition} up to offset {receipt.next:,} to topic {settings.sink}, since this one started: "
            f"stop one of the two; if both have written a partition, the topic contains its records twice, so "
            f"create it again and use a new --checkpoint; --append continues in any case"
        )


def scanned(settings: BackfillSettings, _: SinkTopic, range_: OffsetRange) -> Outcome:
    """Reads a range, and counts what `copied` would do with its records. Makes no request to store or output topic."""
    tally = Tally()
    try:
        with closing(RangeReader(settings.source.client, **settings.source.consumer)) as reader:
            cursor = _Cursor(Log(reader, range_), settings, range_, tally)
            for record in cursor.records(range_.start, range_.end, fail_on_loss=settings.source.fail_on_loss):
                foresee(
                    record,
                    tally,
                    settings.source.inflater.reference_format,
                    settings.offload,
                    keep_references=settings.keep_references,
                )
            return Outcome(cursor.position, tally)
    except WideloadError as exc:
        return Outcome(range_.start, tally, {}, exc)


class _Cursor:
    """The partition as `Messages` reads it. Counts the records of the range, and ends it when they are enough."""

    def __init__(self, log: Readable, settings: BackfillSettings, range_: OffsetRange, tally: Tally) -> None:
        self.at = range_.start
        self.position = range_.start
        self.last: TopicRecord | None = None
        self._until = time.monotonic() + _LONGEST_S
        self._log = log
        self._settings = settings
        self._range = range_
        self._tally = tally

    def first(self) -> int:
        return self._log.first()

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[TopicRecord]:
        found = self._log.records(start, end, fail_on_loss=fail_on_loss)
        if end != self._range.end:  # a look at records before the range
            yield from found
            return
        reference_format = self._settings.source.inflater.reference_format
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
        if tally.read_records >= self._settings.max_records or size >= self._settings.max_bytes:
            return True
        return time.monotonic() > self._until


@dataclass(frozen=True, slots=True)
class _Place:
    """A message on its way, and the offset that was being read when it was complete."""

    message: Message
    at: int

    @property
    def after(self) -> int:
        """The next offset to read once this is done.

        A chunk that ends messages without completing one may report more, so it is read again. A message that it
        completes is the last that it reports.
        """
        return self.message.offset + 1 if self.message.problem is None else self.at


class _Copy:
    """One range, while it is copied."""

    def __init__(
        self, settings: BackfillSettings, sink: SinkTopic, range_: OffsetRange, tally: Tally, stack: ExitStack
    ) -> None:
        source = settings.source
        self.next = range_.start
        self._settings = settings
        self._sink = sink
        self._window = sink.window()
        self._range = range_
        self._tally = tally
        reader = stack.enter_context(closing(RangeReader(source.client, **source.consumer)))
        self._log = Log(reader, range_)
        self._cursor = _Cursor(self._log, settings, range_, tally)
        keys = settings.offload is None  # else a key that refers to a payload stays, so that equal keys stay equal
        self._inflater = stack.enter_context(closing(Inflater(replace(source.inflater, keys=keys))))
        self._offloader: Offloader | None = None
        if settings.offload is not None:
            store = dict(source.inflater.store)
            if settings.encryption is not None:
                store = {name: value for name, value in store.items() if name not in _ENCRYPTION}
                store |= settings.encryption
            self._offloader = stack.enter_context(closing(Offloader(OffloaderSettings(store, settings.offload))))
        self.writer = stack.enter_context(closing(self._writer()))

    def check(self) -> None:
        """Makes sure that the log before the range is the one that was read; see `check_mark`."""
        if self._settings.mark is not None:
            check_mark(self._log, self._range, self._settings.mark)

    def run(self) -> WideloadError | None:
        """Copies up to the end of the range or the first error, and waits until the output topic has acknowledged it.

        Returns:
            The error that ended the range; None at its end.

        Raises:
            WideloadError: the output topic did not take the records.
        """
        error: WideloadError | None = None
        try:
            for found in self._messages():
                place = found.place.place
                error = self._take(found)
                if error is not None:
                    self.next = min(place.message.offset, place.at)
                    break
                self.next = place.after
            else:
                self.next = self._cursor.position
        except WideloadError as exc:
            error = exc
        self.writer.flush()
        receipt = Receipt(
            self._settings.checkpoint_id,
            self._range.start,
            self.next,
            self._tally,
            next(iter(self.writer.ends.items()), None),
            self.mark(),
        )
        self.writer.commit(self._range.topic, self._range.partition, receipt)
        return error

    def mark(self) -> Mark | None:
        """The mark of the last record that was read, if that record is done."""
        last = self._cursor.last
        return mark_of(last) if last is not None and last.offset < self.next else None

    def _writer(self) -> SinkWriter:
        name = transactional_id(f"wideload-backfill-{self._sink.name}", self._range.topic, self._range.partition)
        call_ms = self._settings.source.inflater.store.get(_STORE_TIMEOUT)
        call_ms = call_ms if isinstance(call_ms, int) else _STORE_TIMEOUT_MS
        timeout_ms = min(_MOST_TIMEOUT_MS, round(_LONGEST_S * 1000) + _LONGEST_CALLS * call_ms)
        return SinkWriter(self._settings.source.client, self._sink, name, timeout_ms)

    # --- from the source to the store ---------------------------------------------------------------------------------

    def _messages(self) -> Iterator[Offloaded[Inflated[_Place]]]:
        """The messages as they are written, with references in place of large values, in order."""
        source = self._settings.source
        messages = Messages(
            self._cursor,
            self._range.start,
            self._range.end,
            source.limits,
            source.lookback,
            fail_on_loss=source.fail_on_loss,
        )
        found = (
            (_Place(each, self._cursor.at), each.record, each.problem or self._misplaced(each.record))
            for each in messages
        )
        keeps = self._settings.keep_references and source.inflater.reference_format == "wideload"
        restored = starmap(Inflated, found) if keeps else self._inflater.inflated(found, self._named)
        if self._offloader is None:
            return map(_unchanged, restored)
        topic = self._settings.sink
        records = (
            (each, each.record, None if each.problem or (keeps and is_reference(each.record.headers)) else topic)
            for each in restored
        )
        return self._offloader.offloaded(records, lambda each: self._named(each.place))

    def _misplaced(self, record: RecordLike) -> Problem | None:
        """The problem of a reference in another format than that of the source."""
        reference_format = self._settings.source.inflater.reference_format
        form = form_of(record, reference_format)
        if form == "reference" and reference_format != "wideload":
            return _other("this project's headers", "wideload")
        if form == "bakdata" and reference_format == "wideload":
            return _other(f"bakdata's header {BAKDATA_FLAG}", "bakdata-headers")
        return None

    def _named(self, place: _Place) -> str:
        return named(self._range.topic, self._range.partition, place.message.offset)

    # --- to the output topic ------------------------------------------------------------------------------------------

    def _take(self, found: Offloaded[Inflated[_Place]]) -> WideloadError | None:
        """Writes a record; returns the error that ends the job, or None."""
        record, place, problem = found.record, found.place.place, found.place.problem
        message = place.message
        problem = problem or self._too_large(record)
        first, last = self._window
        if not first <= message.timestamp <= last and (refusal := self._sink.refusal(message.timestamp)) is not None:
            return JobFailedError(f"{self._named(place)}: {refusal}")
        if problem is not None:
            if message.lost or (message.problem is not None and self._settings.keep_problems):
                self._tally.left_out += 1
                return None
            record = message.record
            if not self._settings.keep_problems or self._too_large(record) is not None:
                return JobFailedError(f"{self._named(place)}: {problem.which} {problem.state}: {problem.detail}")
            self._tally.kept += 1
        elif found.payload_bytes is not None:
            self._tally.payloads += 1
            self._tally.payload_bytes += found.payload_bytes
        self.writer.write(self._partition(record), record)
        self._tally.records += 1
        self._tally.bytes += len(record.key or b"") + len(record.value or b"")
        return None

    def _too_large(self, record: RecordLike) -> Problem | None:
        limit = self._sink.max_message_bytes
        size = batch_of_one_bytes(record)
        if size <= limit:
            return None
        detail = f"a record of {size:,} bytes; max.message.bytes of topic {self._sink.name} is {limit:,}"
        return Problem("value", "too-large", detail)

    def _partition(self, record: RecordLike) -> int:
        if not self._settings.by_key:
            return self._range.partition
        partitions = len(self._sink.ends)
        if record.key is None:  # all of them to one partition, so that they stay in order
            return self._range.partition % partitions
        return partition_of(record.key, partitions)


def _unchanged(found: Inflated[_Place]) -> Offloaded[Inflated[_Place]]:
    return Offloaded(found, found.record)


def _other(found: str, wanted: FormatName) -> Problem:
    return Problem("value", "malformed", f"the record has {found}; is --format {wanted} meant?")
