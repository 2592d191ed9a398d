"""The metrics of the pipelines for Prometheus, collected at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.pipeline.stats import STORE_SECONDS, Latency, PipelineReport, PipelineStats

__all__ = ["COUNTERS", "PRODUCER_GAUGES", "Metrics"]

# name of the metric, attribute of PipelineStats, help text
COUNTERS: Sequence[tuple[str, str, str]] = (
    ("wideload_records_in", "records_in", "Records read."),
    ("wideload_bytes_in", "bytes_in", "Bytes of keys and values read."),
    ("wideload_records_out", "records_out", "Records acknowledged by the sink or the dead-letter topic."),
    ("wideload_bytes_out", "bytes_out", "Uncompressed bytes of acknowledged records."),
    ("wideload_offloaded_records", "offloaded_records", "Records whose value was moved to the store."),
    ("wideload_offloaded_bytes", "offloaded_bytes", "Bytes of values moved to the store."),
    ("wideload_inflated_records", "inflated_records", "References replaced by their payload."),
    ("wideload_inflated_bytes", "inflated_bytes", "Bytes of payloads that replaced references."),
    ("wideload_dead_letters", "dead_letters", "Records sent to the dead-letter topic."),
    ("wideload_store_errors", "store_errors", "Store calls that failed."),
    ("wideload_retries", "retries", "Retries of store calls."),
    ("wideload_commits", "commits", "Offset commits."),
    ("wideload_transactions", "transactions", "Committed transactions."),
    ("wideload_restarts", "restarts", "Restarts of the pipeline at its committed offsets."),
    ("wideload_chunked_messages", "chunked_messages", "Records split into chunks."),
    ("wideload_chunks_published", "chunks_published", "Chunks written to the sink."),
    ("wideload_assembled_messages", "assembled_messages", "Messages assembled from chunks."),
    ("wideload_duplicate_chunks", "duplicate_chunks", "Duplicate chunks, which are ignored."),
    ("wideload_late_chunks", "late_chunks", "Chunks that arrived after their message was discarded."),
    ("wideload_evicted_messages", "evicted_messages", "Incomplete messages dropped because too many were pending."),
    ("wideload_unwrapped_records", "unwrapped_records", "Records taken out of a message wrapper."),
    ("wideload_wrapped_records", "wrapped_records", "Records put into a message wrapper."),
    ("wideload_rebalances", "rebalances", "Rebalances that revoked partitions."),
    ("wideload_expired_records", "expired_records", "Records deleted from the source before they were read."),
)

# name of the metric after `wideload_producer_`, help text, how to read it; for the last minute
PRODUCER_GAUGES: Sequence[tuple[str, str, Callable[[PipelineStats], float | None]]] = (
    ("batch_split_rate", "Batches split per second.", lambda stats: stats.batches.batch_splits.per_second()),
    ("batch_size_avg", "Average bytes of a batch on the wire.", lambda stats: stats.batches.batch_size.average()),
    (
        "records_per_request_avg",
        "Average records of a batch.",
        lambda stats: stats.batches.records_per_request.average(),
    ),
    (
        "compression_rate_avg",
        "Average ratio of compressed to uncompressed bytes.",
        lambda stats: stats.batches.compression_rate.average(),
    ),
)


class Metrics(Collector):
    """All metrics of the worker.

    Args:
        pipelines: all pipelines of the worker.
        limit_bytes: `in.flight.bytes`.
    """

    def __init__(self, pipelines: Sequence[PipelineReport], limit_bytes: int) -> None:
        self._pipelines = pipelines
        self._limit_bytes = limit_bytes
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise the registry would collect at start."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics, with their present values."""
        for name, attribute, text in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["pipeline"])
            for pipeline in self._pipelines:
                counter.add_metric([pipeline.settings.name], getattr(pipeline.stats, attribute))
            yield counter
        discarded = CounterMetricFamily(
            "wideload_discarded_messages",
            "Messages discarded because their chunks could not be assembled.",
            labels=["pipeline", "reason"],
        )
        for pipeline in self._pipelines:
            for reason, count in sorted(pipeline.stats.discarded.items()):
                discarded.add_metric([pipeline.settings.name, reason], count)
        yield discarded
        failed = CounterMetricFamily(
            "wideload_failed_records",
            "Records that can never succeed; each becomes a dead letter or stops the pipeline.",
            labels=["pipeline", "reason"],
        )
        for pipeline in self._pipelines:
            for reason, count in sorted(pipeline.stats.failed.items()):
                failed.add_metric([pipeline.settings.name, reason], count)
        yield failed
        yield self._store_seconds()
        yield from self._partitions()
        up = GaugeMetricFamily("wideload_pipeline_running", "1 while the pipeline runs.", labels=["pipeline"])
        degraded = GaugeMetricFamily(
            "wideload_pipeline_degraded",
            "1 while the pipeline runs degraded; /health has the reason.",
            labels=["pipeline"],
        )
        held = GaugeMetricFamily(
            "wideload_in_flight_bytes", "Bytes of the budget that the pipeline uses.", labels=["pipeline"]
        )
        for pipeline in self._pipelines:
            up.add_metric([pipeline.settings.name], float(pipeline.status == "RUNNING"))
            degraded.add_metric([pipeline.settings.name], float(pipeline.degraded is not None))
            held.add_metric([pipeline.settings.name], pipeline.flow.in_flight_bytes if pipeline.flow else 0)
        yield up
        yield degraded
        yield held
        yield from self._pending()
        yield from self._producers()
        yield GaugeMetricFamily(
            "wideload_in_flight_limit_bytes", "The configured in.flight.bytes.", value=self._limit_bytes
        )

    def _pending(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "wideload_pending_chunked_messages",
            "Messages whose chunks hold back the commit.",
            labels=["pipeline"],
        )
        held = GaugeMetricFamily(
            "wideload_pending_chunked_bytes",
            "Bytes of chunks that wait for the rest of their message, outside the budget.",
            labels=["pipeline"],
        )
        for pipeline in self._pipelines:
            messages.add_metric([pipeline.settings.name], pipeline.flow.pending_messages if pipeline.flow else 0)
            held.add_metric([pipeline.settings.name], pipeline.flow.pending_bytes if pipeline.flow else 0)
        yield messages
        yield held

    def _producers(self) -> Iterator[Metric]:
        """The metrics of the producers, with Kafka's names."""
        total = CounterMetricFamily(
            "wideload_producer_batch_split", "Batches split in two because the sink refused them.", labels=["pipeline"]
        )
        for pipeline in self._pipelines:
            total.add_metric([pipeline.settings.name], pipeline.stats.batches.batch_split_total)
        yield total
        for name, text, read in PRODUCER_GAUGES:
            gauge = GaugeMetricFamily(f"wideload_producer_{name}", text, labels=["pipeline"])
            for pipeline in self._pipelines:
                if (value := read(pipeline.stats)) is not None:
                    gauge.add_metric([pipeline.settings.name], value)
            yield gauge
        labels = ["pipeline", "topic"]
        errors = CounterMetricFamily(
            "wideload_producer_record_error", "Records that were not delivered.", labels=labels
        )
        rate = GaugeMetricFamily(
            "wideload_producer_record_error_rate", "Records per second that were not delivered.", labels=labels
        )
        compression = GaugeMetricFamily(
            "wideload_producer_compression_rate",
            "Average ratio of compressed to uncompressed bytes, by topic.",
            labels=labels,
        )
        for pipeline in self._pipelines:
            for topic, numbers in sorted(pipeline.stats.batches.topics.items()):
                values = [pipeline.settings.name, topic]
                errors.add_metric(values, numbers.record_error_total)
                rate.add_metric(values, numbers.record_errors.per_second())
                if (average := numbers.compression_rate.average()) is not None:
                    compression.add_metric(values, average)
        yield errors
        yield rate
        yield compression

    def _store_seconds(self) -> Metric:
        histogram = HistogramMetricFamily(
            "wideload_store_seconds", "Duration of store calls.", labels=["pipeline", "operation"]
        )
        for pipeline in self._pipelines:
            for operation, latency in (("publish", pipeline.stats.publish), ("download", pipeline.stats.download)):
                labels = [pipeline.settings.name, operation]
                histogram.add_metric(labels, _buckets(latency), sum_value=latency.total_seconds)
        return histogram

    def _partitions(self) -> Iterator[Metric]:
        labels = ["pipeline", "topic", "partition"]
        lag = GaugeMetricFamily(
            "wideload_lag_records", "Records between the committed offset and the end of the partition.", labels=labels
        )
        committed = GaugeMetricFamily("wideload_committed_offset", "The committed offset.", labels=labels)
        for pipeline in self._pipelines:
            positions = pipeline.flow.positions() if pipeline.flow else {}
            for partition, (_, offset, end) in positions.items():
                values = [pipeline.settings.name, partition.topic, str(partition.partition)]
                if offset is not None:
                    committed.add_metric(values, offset)
                    if end is not None:
                        lag.add_metric(values, max(0, end - offset))
        yield lag
        yield committed


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, STORE_SECONDS), "+Inf"], list(latency.counts), strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
