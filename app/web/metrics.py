"""The metrics of the pipelines for Prometheus, collected at each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.config.version import VERSION
from app.pipeline.report import STATES, PipelineReport, lag_of, state_of
from app.pipeline.stats import STORE_OPERATIONS, STORE_REASONS, STORE_SECONDS, Latency, PipelineStats

# name of the metric, attribute of PipelineStats, help text
COUNTERS: Sequence[tuple[str, str, str]] = (
    ("wideload_in_records", "records_in", "Records read."),
    ("wideload_in_bytes", "bytes_in", "Bytes read: of keys and values, or of a batch that was forwarded whole."),
    ("wideload_out_records", "records_out", "Records acknowledged in the output topic or the dead letter queue."),
    ("wideload_out_bytes", "bytes_out", "Bytes of acknowledged records, as they were read or before compression."),
    ("wideload_whole_batches", "batches_whole", "Batches that were forwarded whole."),
    (
        "wideload_read_anew_batches",
        "batches_read_anew",
        "Batches that were re-batched: their records left unchanged in other batches.",
    ),
    (
        "wideload_taken_apart_batches",
        "batches_taken_apart",
        "Batches that were decoded, and their records processed one by one.",
    ),
    ("wideload_offloaded_records", "offloaded_records", "Records whose value was moved to the store."),
    ("wideload_offloaded_bytes", "offloaded_bytes", "Bytes of values moved to the store."),
    ("wideload_inflated_records", "inflated_records", "References replaced by their payload."),
    ("wideload_inflated_bytes", "inflated_bytes", "Bytes of payloads that replaced references."),
    ("wideload_dead_letters", "dead_letters", "Records written to the dead letter queue."),
    ("wideload_retries", "retries", "Retries of store calls."),
    ("wideload_commits", "commits", "Offset commits."),
    ("wideload_transactions", "transactions", "Committed transactions."),
    ("wideload_restarts", "restarts", "Restarts of the pipeline at its committed offsets."),
    ("wideload_chunked_messages", "chunked_messages", "Records split into chunks."),
    ("wideload_chunks_published", "chunks_published", "Chunks written to the output topic."),
    ("wideload_assembled_messages", "assembled_messages", "Messages assembled from chunks."),
    ("wideload_duplicate_chunks", "duplicate_chunks", "Duplicate chunks, which are ignored."),
    ("wideload_late_chunks", "late_chunks", "Chunks that arrived after their message was discarded."),
    ("wideload_evicted_messages", "evicted_messages", "Incomplete messages dropped because too many were pending."),
    ("wideload_unwrapped_records", "unwrapped_records", "Records taken out of a message wrapper."),
    ("wideload_wrapped_records", "wrapped_records", "Records put into a message wrapper."),
    ("wideload_rebalances", "rebalances", "Rebalances that revoked partitions."),
    ("wideload_expired_records", "expired_records", "Records deleted from the source before they were read."),
    (
        "wideload_truncated_records",
        "truncated_records",
        "Records that were read, and then lost by the cluster, as in an unclean election.",
    ),
    ("wideload_throttled_seconds", "throttled_s", "Seconds for which brokers throttled the clients."),
)

# name of the metric, attribute of PipelineStats, help text; one value for each reason
_COUNTERS_BY_REASON: Sequence[tuple[str, str, str]] = (
    ("wideload_discarded_messages", "discarded", "Messages discarded because their chunks could not be assembled."),
    (
        "wideload_failed_records",
        "failed",
        "Records that can never succeed, each counted once: they became dead letters, or stopped the pipeline.",
    ),
)

# name of the metric, attribute of FlowReport, help text
_GAUGES: Sequence[tuple[str, str, str]] = (
    (
        "wideload_in_flight_bytes",
        "in_flight_bytes",
        "Bytes of in.flight.bytes that the pipeline uses.",
    ),
    ("wideload_read_ahead_bytes", "read_ahead_bytes", "Fetched bytes that wait for room in in.flight.bytes."),
    ("wideload_pending_chunked_messages", "pending_messages", "Messages whose chunks hold back the commit."),
    (
        "wideload_pending_chunked_bytes",
        "pending_bytes",
        "Bytes of chunks of pending messages, not part of in.flight.bytes.",
    ),
)

# name of the metric after `wideload_producer_`, help text, how to read it; for the last minute
_PRODUCER_GAUGES: Sequence[tuple[str, str, Callable[[PipelineStats], float | None]]] = (
    ("batch_split_rate", "Batches split per second.", lambda stats: stats.batches.batch_splits.per_second()),
    ("batch_size_avg", "Average bytes of a batch on the wire.", lambda stats: stats.batches.batch_size.average()),
    (
        "records_per_request_avg",
        "Average records of a batch.",
        lambda stats: stats.batches.records_per_request.average(),
    ),
    (
        "compression_rate_avg",
        "Compressed bytes divided by uncompressed bytes.",
        lambda stats: stats.batches.compression_rate.average(),
    ),
)


class Metrics(Collector):
    """All metrics of the worker.

    Args:
        pipelines: all pipelines of the worker.
        limit_bytes: `in.flight.bytes`.
        clock: for tests, in seconds since 1970.
    """

    def __init__(
        self, pipelines: Sequence[PipelineReport], limit_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._pipelines = pipelines
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
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
        for name, attribute, text in _COUNTERS_BY_REASON:
            counter = CounterMetricFamily(name, text, labels=["pipeline", "reason"])
            for pipeline in self._pipelines:
                for reason, count in sorted(getattr(pipeline.stats, attribute).items()):
                    counter.add_metric([pipeline.settings.name, reason], count)
            yield counter
        yield from self._states()
        for name, attribute, text in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["pipeline"])
            for pipeline in self._pipelines:
                gauge.add_metric([pipeline.settings.name], getattr(pipeline.flow_report, attribute))
            yield gauge
        yield GaugeMetricFamily(
            "wideload_in_flight_limit_bytes", "The configured in.flight.bytes.", value=self._limit_bytes
        )
        build = GaugeMetricFamily(
            "wideload_build_info", "1; the label is the version of the worker.", labels=["version"]
        )
        build.add_metric([VERSION], 1)
        yield build
        yield from self._store()
        yield from self._partitions()
        yield from self._producers()

    def _states(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "wideload_pipeline_state", "1 for the state of the pipeline, 0 for others.", labels=["pipeline", "state"]
        )
        paused = GaugeMetricFamily(
            "wideload_paused_partitions",
            "Partitions that are not read, because they wait for the store or for memory.",
            labels=["pipeline"],
        )
        oldest = GaugeMetricFamily(
            "wideload_oldest_waiting_record_age_seconds",
            "Age, by its timestamp, of the oldest record that waits for the store or for memory; 0 if none waits.",
            labels=["pipeline"],
        )
        for pipeline in self._pipelines:
            name, flow, found = pipeline.settings.name, pipeline.flow_report, state_of(pipeline)
            for each in dict.fromkeys((*STATES, found)):
                state.add_metric([name, each], float(each == found))
            paused.add_metric([name], len(flow.paused))
            since_ms = flow.oldest_ms
            oldest.add_metric([name], 0 if since_ms is None else max(0.0, self._clock() - since_ms / 1000))
        yield from (state, paused, oldest)
        margin = GaugeMetricFamily(
            "wideload_payload_expiry_margin_seconds",
            "How much longer the store keeps payloads than retention.ms keeps the records that refer to them.",
            labels=["pipeline", "topic"],
        )
        for pipeline in self._pipelines:
            for topic, seconds in sorted(pipeline.stats.expiry_margins_s.items()):
                margin.add_metric([pipeline.settings.name, topic], seconds)
        yield margin

    def _producers(self) -> Iterator[Metric]:
        """The metrics of the producers, with Kafka's names."""
        producers = [(pipeline.settings.name, pipeline.stats) for pipeline in self._pipelines]
        total = CounterMetricFamily(
            "wideload_producer_batch_split",
            "Batches split in two because the output topic refused them.",
            labels=["pipeline"],
        )
        for pipeline, stats in producers:
            total.add_metric([pipeline], stats.batches.batch_split_total)
        yield total
        for name, text, read in _PRODUCER_GAUGES:
            gauge = GaugeMetricFamily(f"wideload_producer_{name}", text, labels=["pipeline"])
            for pipeline, stats in producers:
                if (value := read(stats)) is not None:
                    gauge.add_metric([pipeline], value)
            yield gauge
        labels = ["pipeline", "topic"]
        errors = CounterMetricFamily(
            "wideload_producer_record_error", "Records that were not delivered.", labels=labels
        )
        rate = GaugeMetricFamily(
            "wideload_producer_record_error_rate", "Records per second that were not delivered.", labels=labels
        )
        compression = GaugeMetricFamily(
            "wideload_producer_compression_rate", "Compressed bytes divided by uncompressed bytes.", labels=labels
        )
        for pipeline, stats in producers:
            for topic, each in sorted(stats.batches.topics.items()):
                errors.add_metric([pipeline, topic], each.record_error_total)
                rate.add_metric([pipeline, topic], each.record_errors.per_second())
                if (average := each.compression_rate.average()) is not None:
                    compression.add_metric([pipeline, topic], average)
        yield from (errors, rate, compression, self._estimates())

    def _estimates(self) -> Metric:
        estimate = GaugeMetricFamily(
            "wideload_producer_compression_estimate",
            "The estimated compression ratio of the next batch: compressed bytes for each uncompressed byte.",
            labels=["pipeline", "topic", "codec"],
        )
        for pipeline in self._pipelines:
            for topic in sorted(pipeline.stats.batches.topics):
                for codec, ratio in pipeline.stats.batches.estimates.of_topic(topic).items():
                    estimate.add_metric([pipeline.settings.name, topic, codec], ratio)
        return estimate

    def _store(self) -> Iterator[Metric]:
        histogram = HistogramMetricFamily(
            "wideload_store_duration_seconds", "Duration of store calls.", labels=["pipeline", "operation"]
        )
        errors = CounterMetricFamily(
            "wideload_store_errors", "Store calls that failed.", labels=["pipeline", "operation", "reason"]
        )
        none: Mapping[tuple[str, str], int] = {
            (operation, reason): 0 for operation in STORE_OPERATIONS for reason in STORE_REASONS
        }
        for pipeline in self._pipelines:
            # All from the start: `increase` does not see the first error of a series that begins with it.
            for (operation, reason), count in {**none, **pipeline.stats.store_failures}.items():
                errors.add_metric([pipeline.settings.name, operation, reason], count)
            for operation, latency in (("publish", pipeline.stats.publish), ("download", pipeline.stats.download)):
                labels = [pipeline.settings.name, operation]
                histogram.add_metric(labels, _buckets(latency), sum_value=latency.total_seconds)
        yield from (histogram, errors)

    def _partitions(self) -> Iterator[Metric]:
        labels = ["pipeline", "topic", "partition"]
        lag = GaugeMetricFamily(
            "wideload_lag_records",
            "Records between the committed offset, or the offset where reading starts, and the end of the partition.",
            labels=labels,
        )
        ends = GaugeMetricFamily(
            "wideload_end_offset", "The end of the readable records of the partition.", labels=labels
        )
        committed = GaugeMetricFamily("wideload_committed_offset", "The committed offset.", labels=labels)
        for pipeline in self._pipelines:
            for partition, (position, offset, end) in pipeline.flow_report.positions.items():
                values = [pipeline.settings.name, partition.topic, str(partition.partition)]
                if offset is not None:
                    committed.add_metric(values, offset)
                if end is not None:
                    ends.add_metric(values, end)
                if (behind := lag_of(position, offset, end)) is not None:
                    lag.add_metric(values, behind)
        yield from (lag, committed, ends)


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, STORE_SECONDS), "+Inf"], list(latency.counts), strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
