"""The metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.kafka.batches.numbers import BatchNumbers
from app.pipeline.report import STATES, FlowReport
from app.pipeline.stats import STORE_OPERATIONS, STORE_REASONS, STORE_SECONDS, Latency, PipelineStats
from app.web.metrics import COUNTERS, Metrics
from tests.app.reports import Pipeline
from transforms.errors import PayloadStoreAccessError, PayloadStoreError, PayloadUnfitError

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
OTHER_COUNTERS = ("wideload_producer_batch_split_total", "wideload_store_errors_total")


def families_of(*pipelines: Pipeline, limit: int = 1_000) -> dict[str, Metric]:
    """The result of a scrape."""
    text = Metrics(pipelines, limit).text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples_of(family: Metric) -> dict[tuple[str, ...], float]:
    """The values by label values, in the order of the label names."""
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in family.samples}


def test_every_number_of_the_stats_is_a_metric() -> None:
    """Each counter of PipelineStats appears on the page, under its own name."""
    numbers = {field.name for field in dataclasses.fields(PipelineStats) if field.type in {"int", "float"}}
    assert {attribute for _, attribute, _ in COUNTERS} == numbers
    stats = PipelineStats()
    for number, attribute in enumerate(sorted(numbers), start=1):
        setattr(stats, attribute, number)
    families = families_of(Pipeline(stats=stats))
    for name, attribute, text in COUNTERS:
        family = families[name]
        assert (family.type, family.documentation) == ("counter", text)
        assert [sample.name for sample in family.samples] == [f"{name}_total"]
        assert samples_of(family) == {("p",): getattr(stats, attribute)}


def test_store_duration_is_a_histogram() -> None:
    """Buckets are cumulative, the last one counts all, and a value on a bound belongs to the lower bucket."""
    stats = PipelineStats()
    for seconds in (0.0, 0.001, 0.0011, 59.9, 60.0, 61.0, 0.2):
        stats.publish.observe(seconds)
    family = families_of(Pipeline(stats=stats))["wideload_store_duration_seconds"]
    published = [sample for sample in family.samples if sample.labels["operation"] == "publish"]
    buckets = [(float(s.labels["le"]), s.value) for s in published if s.name.endswith("_bucket")]
    assert [bound for bound, _ in buckets] == [*STORE_SECONDS, math.inf]
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 3, 6, 7)
    assert {s.name: s.value for s in published if "le" not in s.labels} == {
        "wideload_store_duration_seconds_count": 7,
        "wideload_store_duration_seconds_sum": pytest.approx(0.001 + 0.0011 + 59.9 + 60 + 61 + 0.2),
    }


def test_latency_before_the_first_call() -> None:
    """An empty histogram is valid."""
    assert sum(Latency().counts) == 0
    family = families_of(Pipeline())["wideload_store_duration_seconds"]
    assert {sample.value for sample in family.samples} == {0}


@pytest.mark.parametrize(
    ("position", "lag", "committed"),
    [
        ((9, 5, 12), 7, 5),
        ((9, 9, 9), 0, 9),
        ((9, 9, 8), 0, 9),
        ((9, 5, None), None, 5),
        ((9, None, 12), 3, None),
        ((0, None, 0), 0, None),
        ((None, None, 12), None, None),
    ],
)
def test_lag_is_the_end_less_the_committed_offset(
    position: tuple[int | None, int | None, int | None], lag: int | None, committed: int | None
) -> None:
    """Unknown values are absent, no lag is negative; with nothing committed, it counts from where reading begins."""
    families = families_of(Pipeline(flow_report=FlowReport(positions={TopicPartition("raw", 3): position})))
    labels = ("3", "p", "raw")
    assert samples_of(families["wideload_lag_records"]).get(labels) == lag
    assert samples_of(families["wideload_committed_offset"]).get(labels) == committed
    assert samples_of(families["wideload_end_offset"]).get(labels) == position[2]


def test_pipelines_are_told_apart() -> None:
    """Each pipeline has its own label; bytes in flight are by pipeline, the limit is that of the worker."""
    families = families_of(
        Pipeline("a", flow_report=FlowReport(in_flight_bytes=5), degraded="the store is down"),
        Pipeline("b", status="RESTARTING"),
        Pipeline("c", status="FAILED"),
    )
    states = samples_of(families["wideload_pipeline_state"])
    assert {at for at, value in states.items() if value} == {("a", "degraded"), ("b", "restarting"), ("c", "failed")}
    assert {at for at in states if at[0] == "a"} == {("a", state) for state in STATES}
    assert samples_of(families["wideload_in_flight_bytes"]) == {("a",): 5, ("b",): 0, ("c",): 0}
    assert samples_of(families["wideload_in_flight_limit_bytes"]) == {(): 1_000}


def test_errors_of_the_store_have_operation_and_reason() -> None:
    """Each pair is there before the first error, which `increase` would not see otherwise; their sum is on the page."""
    stats = PipelineStats()
    errors = (
        PayloadStoreError("down", retriable=True),
        PayloadStoreError("down", retriable=True),
        PayloadStoreError("no", retriable=False),
        PayloadStoreAccessError("denied"),
        PayloadUnfitError("too large"),
    )
    for error in errors:
        with pytest.raises(PayloadStoreError), stats.store_call("download"):
            raise error
        stats.count_store_error(error)
    found = samples_of(families_of(Pipeline(stats=stats))["wideload_store_errors"])
    assert set(found) == {(operation, "p", reason) for operation in STORE_OPERATIONS for reason in STORE_REASONS}
    counts = {reason: found["download", "p", reason] for reason in STORE_REASONS}
    assert counts == {"unavailable": 2, "refused": 1, "access": 1, "payload-unfit": 1}
    assert stats.store_errors == sum(found.values()) == sum(stats.download.counts) == 5


def test_age_of_the_oldest_record_that_waits() -> None:
    """It is by the record's timestamp, 0 if none waits, and never negative where a producer's clock is ahead."""
    ages = {}
    for name, oldest_ms in (("none", None), ("old", 990_000), ("ahead", 1_001_000)):
        text = (
            Metrics([Pipeline(flow_report=FlowReport(oldest_ms=oldest_ms))], 1, clock=lambda: 1_000.0).text().decode()
        )
        families = {family.name: family for family in text_string_to_metric_families(text)}
        ages[name] = samples_of(families["wideload_oldest_waiting_record_age_seconds"])["p",]
    assert ages == {"none": 0, "old": 10, "ahead": 0}


def test_version_is_that_of_the_package() -> None:
    """The metric says which release runs."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert samples_of(families_of(Pipeline())["wideload_build_info"]) == {(version,): 1}


def test_labels_are_escaped() -> None:
    """Names that a broker would refuse cannot break the page."""
    topic = 'a"b\\c\nd'
    families = families_of(Pipeline(flow_report=FlowReport(positions={TopicPartition(topic, 0): (1, 1, 1)})))
    assert samples_of(families["wideload_lag_records"]) == {("0", "p", topic): 0}


def test_names_follow_the_conventions() -> None:
    """All metrics are ours or the process's; units are base units; counters end in _total; all have a help text."""
    families = families_of(Pipeline(flow_report=FlowReport(positions={TopicPartition("raw", 0): (1, 1, 1)})))
    ours = [family for name, family in families.items() if name.startswith("wideload_")]
    others = {name.partition("_")[0] for name in families if not name.startswith("wideload_")}
    assert others == {"process", "python"}
    assert all(family.documentation.endswith(".") for family in ours)
    names = {sample.name for family in ours if family.type == "counter" for sample in family.samples}
    assert all(name.endswith("_total") for name in names)
    assert names == {f"{name}_total" for name, _, _ in COUNTERS} | {*OTHER_COUNTERS}


def test_names_are_those_of_the_docs() -> None:
    """The docs list each metric of ours, and none that is not there."""
    stats = PipelineStats(batches=BatchNumbers(lambda: 7.0))
    stats.batches.delivered("a", wire_bytes=100, uncompressed_bytes=400, records=3)
    stats.batches.failed("b", 2)
    families = families_of(
        Pipeline(stats=stats, flow_report=FlowReport(positions={TopicPartition("raw", 0): (1, 1, 1)}))
    )
    ours = {name: family for name, family in families.items() if name.startswith("wideload_")}
    names = {f"{name}_total" if family.type == "counter" else name for name, family in ours.items()}
    text = "\n".join((DOCS / page).read_text() for page in ("metrics.md", "chunks.md", "batches.md"))
    assert set(re.findall(r"`(wideload_[a-z_]+)`", text)) == names


def test_producer_numbers_have_kafkas_names() -> None:
    """Splits, sizes and records of the pipeline, compression and errors by topic; nothing if nothing was sent."""
    stats = PipelineStats(batches=BatchNumbers(lambda: 7.0))
    stats.batches.delivered("a", wire_bytes=100, uncompressed_bytes=400, records=3)
    stats.batches.delivered("a", wire_bytes=300, uncompressed_bytes=400, records=5)
    stats.batches.failed("b", 2)
    stats.batches.split()
    stats.batches.estimates.observe("a", "lz4", 0.5)
    families = families_of(Pipeline(stats=stats))
    found = {
        name.removeprefix("wideload_producer_"): samples_of(family)
        for name, family in families.items()
        if name.startswith("wideload_producer_")
    }
    assert found == {
        "batch_split": {("p",): 1},
        "batch_split_rate": {("p",): 1},
        "batch_size_avg": {("p",): 200},
        "records_per_request_avg": {("p",): 4},
        "record_error": {("p", "a"): 0, ("p", "b"): 2},
        "record_error_rate": {("p", "a"): 0, ("p", "b"): 2},
        "compression_rate_avg": {("p",): 0.5},
        "compression_rate": {("p", "a"): 0.5},
        "compression_estimate": {("lz4", "p", "a"): 0.995},
    }
    assert samples_of(families_of(Pipeline())["wideload_producer_batch_size_avg"]) == {}


def test_scrapes_do_not_add_up() -> None:
    """A second scrape gives the same result, and two workers in a process do not share a registry."""
    metrics = Metrics([Pipeline()], 1)
    first, second = (metrics.text().decode().count("wideload_in_records_total{") for _ in range(2))
    assert (first, second) == (1, 1)
    assert b"wideload_lag_records" in Metrics([Pipeline()], 1).text()
