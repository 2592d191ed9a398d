"""What a pipeline has done, as plain numbers: the pages and the metrics read them, the data plane only adds."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from aiokafka import TopicPartition

from app.config.settings import PipelineSettings
from app.kafka.average import Average
from app.kafka.batches.numbers import BatchNumbers

__all__ = ["STORE_SECONDS", "FlowReport", "Latency", "PipelineReport", "PipelineStats"]

# Upper bounds in seconds: from a memory store to the default time-out of a call, a factor of about 2.5 apart.
STORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latency:
    """How long calls took, in buckets; written by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts = [0] * (len(STORE_SECONDS) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one call."""
        with self._lock:
            self.counts[bisect_left(STORE_SECONDS, seconds)] += 1
            self.total_seconds += seconds


@dataclass(slots=True)
class PipelineStats:
    """Counters since the worker started; bytes are of keys and values, in the sink as batches carry them.

    Attributes:
        transactions: that were committed.
        evicted_messages: those of `discarded` that were dropped by `auto.ack.oldest.chunked.message.on.queue.full`.
        discarded: messages of chunks that did not become whole, by reason (`transforms.assembly`).
        late_chunks: those that came behind that.
        failed: records that can never succeed, by what is wrong with them (`app.pipeline.error_policy.reason_of`); a
            message that was discarded counts as one.
        published_rate: of messages that left as chunks.
        consumed_rate: of messages that were assembled.
        batches: of the producer, those to the dead-letter topic among them.
    """

    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    bytes_out: int = 0
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


class FlowReport(Protocol):
    """What the pages and the metrics read of a flow."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the budget that it holds."""
        ...

    @property
    def pending_messages(self) -> int:
        """Messages of which chunks are missing."""
        ...

    @property
    def pending_bytes(self) -> int:
        """What their chunks hold, beside the budget."""
        ...

    def positions(self) -> Mapping[TopicPartition, tuple[int | None, int | None, int | None]]:
        """For each assigned partition: the offset read up to, the committed one, and the end of what can be read."""
        ...


class PipelineReport(Protocol):
    """What the pages and the metrics read of a pipeline."""

    @property
    def settings(self) -> PipelineSettings: ...
    @property
    def stats(self) -> PipelineStats: ...
    @property
    def status(self) -> str:
        """`STARTING`, `RUNNING`, `RESTARTING`, `FAILED` or `STOPPED`."""
        ...

    @property
    def degraded(self) -> str | None:
        """Why records wait though it runs; None where they do not."""
        ...

    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_at(self) -> float | None:
        """Seconds since the epoch."""
        ...

    @property
    def failing_since(self) -> float | None:
        """Since when it begins again and again, in seconds since the epoch; None where it does not."""
        ...

    @property
    def flow(self) -> FlowReport | None: ...
