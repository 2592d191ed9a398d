"""A backfill from beginning to end: its checks, the ranges of each partition, and the notes in the checkpoint.

The ranges of a partition are done one after another; several partitions are done at a time, and do not wait for each
other. A range is a Spark job of one task and one transaction. The checkpoint notes it when it is committed. A run
that ends, however it ends, leaves no gap, and the next run repeats at most the current range of each partition, unless
that was committed: the transaction itself says so (`jobs.copying.receipt`). Readers with `read_committed` see no
repeated record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event, Lock

from pyspark.sql import SparkSession

from app.kafka.range_reader import RangeReader
from jobs.copying.checkpoint import Checkpoint, Progress
from jobs.copying.forms import Mark, Tally
from jobs.copying.range import BackfillSettings, Outcome, check_mark, copied, scanned
from jobs.copying.writer import SinkTopic, sink_topic
from jobs.driver.failures import SPARK_ERRORS, JobFailedError, explained
from jobs.reading.log import Log, Topics, look
from jobs.reading.ranges import Bounds, OffsetRange
from transforms.errors import ConfigurationError
from transforms.signing import Signing

_SPECULATION = "spark.speculation"


@dataclass(slots=True)
class Backfill:
    """The result of a run, filled in while it works.

    Attributes:
        tally: the sum over the ranges.
        ranges: how many ranges are done.
        positions: by partition, the offset below which all records are done.
        ends: by partition, the offset where the run ends: the end of the source when the run began.
        began: how many offsets were not done when the run began.
        sink_ends: by partition of the output topic, the offset behind the last record that was written.
        marks: by partition of the source, the mark of a record that was read.
        started: `time.monotonic()` of the beginning.
    """

    tally: Tally = field(default_factory=Tally)
    ranges: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    began: int = 0
    sink_ends: dict[int, int] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> int:
        """How many offsets are not done yet."""
        return sum(max(0, end - self.positions[partition]) for partition, end in self.ends.items())


def run(
    spark: SparkSession,
    settings: BackfillSettings,
    found: Backfill,
    stop: Event,
    show: Callable[[Backfill], None] = lambda _: None,
) -> None:
    """Copies all records that are not done yet, up to the current end of the source.

    Args:
        spark: the session.
        settings: what to do.
        found: the result; right also when an error is raised.
        stop: when it is set, no range begins any more; those that are under way are finished.
        show: is called after each range.

    Raises:
        ConfigurationError: the user can set it right; nothing was written.
        JobFailedError: a record cannot be restored, or a store, a broker or a task failed.
    """
    settings.check()
    if spark.sparkContext.getConf().get(_SPECULATION, "false") == "true":
        raise ConfigurationError(
            "--conf", f"{_SPECULATION}=true would let two tasks write to one partition simultaneously; set it to false"
        )
    topic = settings.source.topic
    try:
        there = {
            partition: each
            for (_, partition), each in look(settings.source.client, Topics("--source", (topic,))).bounds.items()
        }
        sink = sink_topic(settings.source.client, settings.sink)
        _check_topics(settings, there, sink)
        checkpoint, progress = None, None
        if settings.checkpoint is not None:
            checkpoint = Checkpoint(spark, settings.checkpoint, settings.belongs_to())
            progress = checkpoint.load()
        _begin(settings, found, there, sink, progress)
        if checkpoint is not None and not settings.dry_run and found.left:
            checkpoint.save(Progress(found.positions, found.sink_ends, found.marks))
        # By key, the other partitions write there too, and a receipt from before it was created again looks right.
        began = progress is None and not settings.by_key
        _Run(spark, settings, sink, found, None if settings.dry_run else checkpoint, stop, show, began=began).run()
    except SPARK_ERRORS as error:
        raise explained(error, servers=settings.source.client.bootstrap_servers, source=topic, options={}) from error


def _check_topics(settings: BackfillSettings, there: Mapping[int, Bounds], sink: SinkTopic) -> None:
    if not settings.by_key and len(sink.ends) != len(there):
        raise ConfigurationError(
            "--sink",
            f"topic {sink.name} has {len(sink.ends)} partitions, the source has {len(there)}; create it with as "
            f"many, or use --partition-by key",
        )
    if not sink.keeps_timestamps:
        raise ConfigurationError(
            "--sink",
            f"topic {sink.name} has message.timestamp.type=LogAppendTime, which replaces timestamps; set it to "
            "CreateTime",
        )


def _begin(
    settings: BackfillSettings, found: Backfill, there: Mapping[int, Bounds], sink: SinkTopic, progress: Progress | None
) -> None:
    """Fills in where each partition begins and ends; raises if source, output and checkpoint do not match."""
    topic = settings.source.topic
    if progress is None:
        if any(sink.ends.values()) and not settings.append and not settings.dry_run:
            raise ConfigurationError(
                "--checkpoint",
                f"{settings.checkpoint} is new, and topic {sink.name} already has, or had, records; use the "
                f"checkpoint that belongs to it, another topic, or --append",
            )
        progress = Progress()
    for partition, end in progress.ends.items():
        if sink.ends.get(partition, 0) < end:
            raise JobFailedError(
                f"topic {sink.name} partition {partition} was written up to offset {end:,} and ends at "
                f"{sink.ends.get(partition, 0):,} now: it was deleted and created again; use a new --checkpoint"
            )
    for partition, each in there.items():
        at = progress.positions.get(partition, each.first)
        if at > each.end:
            raise JobFailedError(
                f"topic {topic} partition {partition} was read up to offset {at:,} and ends at {each.end:,} now: "
                f"it was deleted and created again; use a new --checkpoint and a new --sink"
            )
        if at < each.first and settings.source.fail_on_loss:
            raise JobFailedError(
                f"topic {topic} partition {partition} was read up to offset {at:,} and begins at {each.first:,} now: "
                "records were deleted before they were read; --no-fail-on-data-loss continues without them"
            )
        found.positions[partition] = max(at, each.first)
        found.ends[partition] = each.end
        mark = progress.marks.get(partition)
        if mark is not None and each.first <= mark[0] < each.end:
            with closing(RangeReader(settings.source.client, **settings.source.consumer)) as reader:
                range_ = OffsetRange(topic, partition, at, each.end)
                check_mark(Log(reader, range_), range_, mark)
    found.sink_ends.update(progress.ends)
    found.marks.update(progress.marks)
    found.began = found.left


class _Run:
    """The ranges of one run; each active partition has a thread."""

    # State that changes: `_found` and the checkpoint, under `_lock`; `_failed`, once.

    def __init__(
        self,
        spark: SparkSession,
        settings: BackfillSettings,
        sink: SinkTopic,
        found: Backfill,
        checkpoint: Checkpoint | None,
        stop: Event,
        show: Callable[[Backfill], None],
        *,
        began: bool,
    ) -> None:
        offload = settings.offload
        if offload is not None:
            signing = offload.signing or Signing.of(settings.source.inflater.store)
            offload = replace(offload, sink_limit_bytes=sink.max_message_bytes, signing=signing)
        self._settings = replace(settings, offload=offload, checkpoint_id=checkpoint.id if checkpoint else "")
        self._sink = sink
        self._context = spark.sparkContext
        self._topic = settings.source.topic
        self._threads = settings.partitions_at_a_time or self._context.defaultParallelism
        self._work = scanned if settings.dry_run else copied
        self._found = found
        self._checkpoint = checkpoint
        self._stop = stop
        self._show = show
        self._began = began
        self._failed = Event()
        self._lock = Lock()

    def run(self) -> None:
        # The fullest partition first, so that the run does not wait for it at the end.
        partitions = sorted(self._found.ends, key=lambda each: self._found.positions[each] - self._found.ends[each])
        with ThreadPoolExecutor(max(1, self._threads), thread_name_prefix="wideload-backfill") as pool:
            futures = [pool.submit(self._partition, partition) for partition in partitions]
        for future in futures:
            future.result()

    def _partition(self, partition: int) -> None:
        try:
            end = self._found.ends[partition]
            while self._found.positions[partition] < end and not (self._stop.is_set() or self._failed.is_set()):
                range_ = OffsetRange(self._topic, partition, self._found.positions[partition], end)
                self._note(range_, self._done(range_))
        except BaseException:
            self._failed.set()
            raise

    def _done(self, range_: OffsetRange) -> Outcome:
        self._context.setJobDescription(f"partition {range_.partition} from offset {range_.start}")
        one = self._context.parallelize([range_], 1)
        # A checkpoint that begins with an empty output topic, or has written the partition, has given its receipt.
        alone = not self._settings.append and (self._began or range_.partition in self._found.marks)
        settings = replace(self._settings, alone=alone, mark=self._found.marks.get(range_.partition))
        work, sink = self._work, self._sink
        (outcome,) = one.mapPartitions(lambda ranges: [work(settings, sink, each) for each in ranges]).collect()
        return outcome

    def _note(self, range_: OffsetRange, outcome: Outcome) -> None:
        with self._lock:
            if outcome.next > range_.start:
                self._found.positions[range_.partition] = outcome.next
            if outcome.mark is not None:
                self._found.marks[range_.partition] = outcome.mark
            self._found.tally.add(outcome.tally)
            self._found.sink_ends.update(
                {number: max(at, self._found.sink_ends.get(number, 0)) for number, at in outcome.ends.items()}
            )
            if self._checkpoint is not None and outcome.next > range_.start:
                self._checkpoint.save(Progress(self._found.positions, self._found.sink_ends, self._found.marks))
            self._found.ranges += 1
            self._show(self._found)
        if outcome.error is not None:
            # Never a ConfigurationError, even if the user can set it right: other ranges were written.
            raise JobFailedError(str(outcome.error)) from outcome.error
