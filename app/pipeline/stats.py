"""The numbers of a pipeline: the data plane only adds to them, the pages and the metrics read them."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, Self

from app.kafka.average import Average
from app.kafka.batches.numbers import BatchNumbers
from app.pipeline.runtime import monotonic
from transforms.errors import PayloadStoreAccessError, PayloadStoreError, PayloadUnfitError
from transforms.record import SourceRecord

StoreOperation = Literal["publish", "download"]

STORE_OPERATIONS: tuple[StoreOperation, ...] = ("publish", "download")
"""What a pipeline asks of its store."""

STORE_REASONS = ("access", "payload-unfit", "unavailable", "refused")
"""Why a store call fails: the caller is refused; the payload is; it may be temporary; it is not."""

_REMEMBERED = 20_000  # failed records: more than a pipeline reads again after a restart, unless most records fail

# Upper bounds in seconds: from a memory store to the default time-out of a call, a factor of about 2.5 apart.
STORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latency:
    """The times of calls, in buckets. Several threads may count concurrently."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts = [0] * (len(STORE_SECONDS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one call."""
        with self._lock:
            self.counts[bisect_left(STORE_SECONDS, seconds)] += 1
            self.total_seconds += seconds


def _reason_of(error: PayloadStoreError) -> str:
    if isinstance(error, PayloadStoreAccessError):
        return "access"
    if isinstance(error, PayloadUnfitError):
        return "payload-unfit"
    return "unavailable" if error.retriable else "refused"


@dataclass(slots=True)
class PipelineStats:
    """Counters since the worker started. Bytes are those of keys and values; of output, those of batches.

    For a batch that was forwarded whole, they are those of the batch.

    Attributes:
        batches_whole: batches of a source that were forwarded whole.
        batches_read_anew: batches that no transform needed, re-batched as they were small, or could not be forwarded.
        batches_taken_apart: batches that were decoded, because a transform may have needed one of their records.
        transactions: committed transactions.
        expired_records: records that were deleted before they were read.
        truncated_records: offsets that were read, or committed, and that the cluster has lost or overwritten.
        throttled_s: for how long brokers have throttled clients, in seconds; concurrent waits add up.
        discarded: chunked messages that did not become whole, by reason (`transforms.reassembly`).
        evicted_messages: those of `discarded` that `auto.ack.oldest.chunked.message.on.queue.full` has dropped.
        late_chunks: chunks of discarded messages that came after the messages were discarded.
        failed: records that can never succeed, by reason (`app.pipeline.error_policy.reason_of`); a discarded message
            counts as one. A record that is read again, because the pipeline restarts, is not counted again.
        store_failures: store calls that failed, by operation and reason.
        expiry_margins_s: how much longer the store keeps payloads than a topic its records, in seconds, by topic; see
            `app.cluster.expiry.TopicExpiry.margin_s`. Replaced as a whole, by another thread.
        published_rate: the rate of messages that were written as chunks.
        consumed_rate: the rate of messages that were assembled.
        batches: the numbers of the producer, with those of the dead-letter topic.
        clock: seconds that do not go back.
    """

    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    bytes_out: int = 0
    batches_whole: int = 0
    batches_read_anew: int = 0
    batches_taken_apart: int = 0
    offloaded_records: int = 0
    offloaded_bytes: int = 0
    inflated_records: int = 0
    inflated_bytes: int = 0
    dead_letters: int = 0
    retries: int = 0
    commits: int = 0
    transactions: int = 0
    restarts: int = 0
    rebalances: int = 0
    expired_records: int = 0
    truncated_records: int = 0
    throttled_s: float = 0.0
    chunked_messages: int = 0
    chunks_published: int = 0
    assembled_messages: int = 0
    duplicate_chunks: int = 0
    late_chunks: int = 0
    evicted_messages: int = 0
    unwrapped_records: int = 0
    wrapped_records: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    store_failures: dict[tuple[str, str], int] = field(default_factory=dict)
    expiry_margins_s: Mapping[str, float] = field(default_factory=dict)
    published_rate: Average = field(default_factory=Average)
    consumed_rate: Average = field(default_factory=Average)
    batches: BatchNumbers = field(default_factory=BatchNumbers)
    publish: Latency = field(default_factory=Latency)
    download: Latency = field(default_factory=Latency)
    clock: Callable[[], float] = monotonic
    _failed_places: OrderedDict[tuple[str, int, int], None] = field(default_factory=OrderedDict)

    @classmethod
    def by(cls, clock: Callable[[], float]) -> Self:
        """Counters whose times and rates go by a clock."""
        return cls(
            clock=clock, published_rate=Average(clock), consumed_rate=Average(clock), batches=BatchNumbers(clock)
        )

    def throttled(self, seconds: float) -> None:
        """Counts a wait for a quota."""
        self.throttled_s += seconds

    @property
    def store_errors(self) -> int:
        """Store calls that failed."""
        return sum(self.store_failures.values())

    @contextmanager
    def store_call(self, operation: StoreOperation) -> Iterator[None]:
        """Counts the time of the body, a store call; an error of the store notes the operation. On any thread."""
        latency = self.publish if operation == "publish" else self.download
        began_s = self.clock()
        try:
            yield
        except PayloadStoreError as exc:
            exc.operation = operation
            raise
        finally:
            latency.observe(self.clock() - began_s)

    def count_store_error(self, error: PayloadStoreError) -> None:
        """Counts a store call that failed."""
        place = (error.operation or "unknown", _reason_of(error))
        self.store_failures[place] = self.store_failures.get(place, 0) + 1

    def count_failed(self, record: SourceRecord, reason: str) -> None:
        """Counts a record that can never succeed, unless it was counted before."""
        place = (record.topic, record.partition, record.offset)
        if place in self._failed_places:
            return
        self._failed_places[place] = None
        if len(self._failed_places) > _REMEMBERED:
            self._failed_places.popitem(last=False)
        self.failed[reason] = self.failed.get(reason, 0) + 1

    def forget_failed(self) -> None:
        """Forgets which records were counted: the offsets of a recreated topic start from 0."""
        self._failed_places.clear()
