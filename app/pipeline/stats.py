"""The numbers of a pipeline: the data plane only adds to them, the pages and the metrics read them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from app.kafka.average import Average
from app.kafka.batches.numbers import BatchNumbers

__all__ = ["STORE_SECONDS", "Latency", "PipelineStats"]

# Upper bounds in seconds: from a memory store to the default time-out of a call, a factor of about 2.5 apart.
STORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latency:
    """The times of calls, in buckets. Several threads may count at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts = [0] * (len(STORE_SECONDS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one call."""
        with self._lock:
            self.counts[bisect_left(STORE_SECONDS, seconds)] += 1
            self.total_seconds += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the body as one call, also if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - start)


@dataclass(slots=True)
class PipelineStats:
    """Counters since the worker started. Bytes are those of keys and values; in the sink, as batches carry them.

    Of a batch that was not taken apart, they are those of the batch.

    Attributes:
        batches_whole: batches of a source that went to the sink as they were.
        batches_read_anew: batches of which no stage wanted a record, but that were small, or could not go as they were.
        batches_taken_apart: batches that were taken apart, because a stage may have wanted one of their records.
        transactions: committed transactions.
        discarded: chunked messages that did not become whole, by reason (`transforms.assembly`).
        evicted_messages: those of `discarded` that `auto.ack.oldest.chunked.message.on.queue.full` has dropped.
        late_chunks: chunks of discarded messages that came after the messages were discarded.
        failed: records that can never succeed, by reason (`app.pipeline.error_policy.reason_of`); a discarded message
            counts as one.
        published_rate: the rate of messages that were written as chunks.
        consumed_rate: the rate of messages that were assembled.
        batches: the numbers of the producer, with those of the dead-letter topic.
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
    store_errors: int = 0
    retries: int = 0
    commits: int = 0
    transactions: int = 0
    restarts: int = 0
    rebalances: int = 0
    expired_records: int = 0
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
    published_rate: Average = field(default_factory=lambda: Average(time.monotonic))
    consumed_rate: Average = field(default_factory=lambda: Average(time.monotonic))
    batches: BatchNumbers = field(default_factory=BatchNumbers)
    publish: Latency = field(default_factory=Latency)
    download: Latency = field(default_factory=Latency)
