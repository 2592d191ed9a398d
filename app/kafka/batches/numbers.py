"""The metrics of a producer by Kafka's names: rates and averages of the last minute, and totals."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.kafka.average import Average
from transforms.ratio import Estimates


@dataclass(slots=True)
class TopicNumbers:
    """Kafka's metrics of one topic.

    Attributes:
        compression_rate: of batches: compressed bytes for each uncompressed byte.
        record_errors: records that were not delivered.
        record_error_total: their number since the start.
    """

    compression_rate: Average
    record_errors: Average
    record_error_total: int = 0


class BatchNumbers:
    """The metrics of a producer, or of the producers of a pipeline one after the other.

    Attributes:
        batch_split_total: batches that were split since the start.
        batch_splits: their rate.
        batch_total: batches that were delivered since the start; of a batch that was split, its parts count.
        wire_bytes_total: their compressed bytes.
        batch_size: the compressed bytes of each.
        records_per_request: their records. aiokafka does not report which batches of several partitions share a
            request, so each counts as one.
        compression_rate: of batches: compressed bytes for each uncompressed byte.
        topics: the metrics by topic.
        estimates: the estimated compression of the next batches; the producers of a pipeline share them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.batch_split_total = 0
        self.batch_splits = Average(clock)
        self.estimates = Estimates()
        self.batch_total = 0
        self.wire_bytes_total = 0
        self.batch_size = Average(clock)
        self.records_per_request = Average(clock)
        self.compression_rate = Average(clock)
        self.topics = defaultdict[str, TopicNumbers](lambda: TopicNumbers(Average(clock), Average(clock)))

    def delivered(self, topic: str, *, wire_bytes: int, uncompressed_bytes: int | None, records: int) -> None:
        """Counts a durable batch; `uncompressed_bytes` is None if its uncompressed size is not known."""
        self.batch_total += 1
        self.wire_bytes_total += wire_bytes
        self.batch_size.add(wire_bytes)
        self.records_per_request.add(records)
        if uncompressed_bytes is not None:
            self.compression_rate.add(wire_bytes / uncompressed_bytes)
            self.topics[topic].compression_rate.add(wire_bytes / uncompressed_bytes)

    def split(self) -> None:
        """Counts a batch that was refused for its size, and split."""
        self.batch_split_total += 1
        self.batch_splits.add(1)

    def failed(self, topic: str, records: int) -> None:
        """Counts records that were not delivered."""
        numbers = self.topics[topic]
        numbers.record_error_total += records
        numbers.record_errors.add(records, records)

    def page(self) -> Mapping[str, object]:
        """The metrics under Kafka's names; those of the topics are below `topics`."""
        return {
            "batch-split-rate": self.batch_splits.per_second(),
            "batch-split-total": self.batch_split_total,
            "batch-size-avg": self.batch_size.average(),
            "records-per-request-avg": self.records_per_request.average(),
            "compression-rate-avg": self.compression_rate.average(),
            "record-error-rate": sum(numbers.record_errors.per_second() for numbers in self.topics.values()),
            "record-error-total": sum(numbers.record_error_total for numbers in self.topics.values()),
            "topics": {
                topic: {
                    "compression-rate": numbers.compression_rate.average(),
                    "compression-estimates": self.estimates.of_topic(topic),
                    "record-error-rate": numbers.record_errors.per_second(),
                    "record-error-total": numbers.record_error_total,
                }
                for topic, numbers in sorted(self.topics.items())
            },
        }
