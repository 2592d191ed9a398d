"""The worker's pages, and its health."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka import TopicPartition

from app.application import Application
from app.kafka.average import Average
from app.kafka.batches.numbers import BatchNumbers
from app.local.broker import free_ports
from app.pipeline.report import FlowReport
from app.pipeline.stats import PipelineStats
from app.pipeline.steering import OwnSteering
from app.web.pages import add_pages, health, pipeline_page
from tests.app.configurations import HEAD, ORDERS, settings_of
from tests.app.reports import Pipeline, pipeline_settings

STORE_DOWN = "the store is down"

# pipelines; status and ready; reasons by name
HEALTH = [
    ([Pipeline()], "ok", True, {}),
    ([Pipeline("a"), Pipeline("b")], "ok", True, {}),
    ([Pipeline(last_error="of yesterday")], "ok", True, {}),
    ([Pipeline(degraded=STORE_DOWN)], "degraded", True, {"p": STORE_DOWN}),
    ([Pipeline(degraded=STORE_DOWN, last_error="of yesterday")], "degraded", True, {"p": STORE_DOWN}),
    ([Pipeline(status="STARTING")], "starting", False, {"p": "starting"}),
    ([Pipeline(status="STARTING", awaited="waits for x")], "starting", False, {"p": "waits for x"}),
    ([Pipeline(status="STOPPED")], "stopped", False, {"p": "stopped"}),
    # What it has failed with before is not why it is restarted on request.
    ([Pipeline(status="RESTARTING", last_error="no broker")], "restarting", False, {"p": "restarting"}),
    (
        [
            Pipeline(status="RESTARTING", last_error="no broker", failing_since=0.5, awaited="waits for x"),
            Pipeline("q", status="STARTING"),
        ],
        "restarting",
        False,
        {"p": "no broker (since 1970-01-01T00:00:00+00:00); waits for x", "q": "starting"},
    ),
    (
        [Pipeline("a", degraded=STORE_DOWN), Pipeline("b", status="STARTING")],
        "starting",
        False,
        {"a": STORE_DOWN, "b": "starting"},
    ),
    ([Pipeline(status="STOPPED", target="STOPPED")], "ok", True, {}),
    ([Pipeline(status="PAUSED", target="PAUSED"), Pipeline("a")], "ok", True, {}),
    ([Pipeline(status="PAUSED", target="PAUSED", degraded=STORE_DOWN)], "degraded", True, {"p": STORE_DOWN}),
    ([Pipeline(status="RUNNING", target="STOPPED")], "ok", True, {}),
    ([Pipeline(status="PAUSED")], "paused", False, {"p": "paused"}),
    ([Pipeline(status="STARTING", target="PAUSED")], "starting", False, {"p": "starting"}),
    ([Pipeline(status="FAILED", target="PAUSED", last_error="x")], "failed", False, {"p": "x"}),
    (
        [Pipeline(status="RESTARTING", last_error="no broker", failing_since=0.5)],
        "restarting",
        False,
        {"p": "no broker (since 1970-01-01T00:00:00+00:00)"},
    ),
    (
        [Pipeline(status="RESTARTING", last_error="no broker", failing_since=0.5, degraded=STORE_DOWN)],
        "restarting",
        False,
        {"p": "no broker (since 1970-01-01T00:00:00+00:00)"},
    ),
    ([Pipeline(status="FAILED", last_error="a record")], "failed", False, {"p": "a record"}),
    ([Pipeline("a"), Pipeline("b", status="FAILED", last_error="x")], "failed", False, {"b": "x"}),
    (
        [Pipeline("a", status="FAILED", last_error="x"), Pipeline("b", degraded=STORE_DOWN), Pipeline("c")],
        "failed",
        False,
        {"a": "x", "b": STORE_DOWN},
    ),
    (
        [Pipeline("a", status="STARTING"), Pipeline("b", status="FAILED", last_error="x")],
        "failed",
        False,
        {"a": "starting", "b": "x"},
    ),
]


@pytest.mark.parametrize(("pipelines", "status", "ready", "reasons"), HEALTH)
def test_health_is_that_of_the_worst_pipeline(
    pipelines: list[Pipeline],
    status: str,
    ready: bool,  # noqa: FBT001
    reasons: dict[str, str],
) -> None:
    """Failed takes precedence over degraded, degraded over ok; ready only if all pipelines run; reasons by name."""
    assert health(pipelines) == {"status": status, "live": True, "ready": ready, "reasons": reasons}


def test_pipeline_page_says_where_it_stands() -> None:
    """State, settings, counts, and each partition in order, with null for unknown values."""
    partitions = {
        TopicPartition("raw", 10): (7, 5, 12),
        TopicPartition("raw", 2): (None, None, None),
        TopicPartition("raw", 9): (9, 9, 8),
        TopicPartition("more", 11): (9, 9, None),
    }
    stats = PipelineStats(records_in=1, records_out=2, offloaded_records=3, inflated_records=4)
    stats.dead_letters, stats.retries, stats.restarts, stats.transactions = 5, 6, 7, 17
    stats.chunked_messages, stats.chunks_published, stats.assembled_messages, stats.duplicate_chunks = 2, 9, 8, 10
    stats.late_chunks, stats.store_failures = 11, {("publish", "access"): 12}
    stats.unwrapped_records, stats.wrapped_records = 13, 14
    stats.discarded = {"expired": 1, "corrupt": 2}
    stats.failed = {"reference-refused": 6}
    stats.published_rate, stats.consumed_rate = Average(lambda: 0.0), Average(lambda: 0.0)
    stats.batches = BatchNumbers(lambda: 0.0)
    stats.batches.delivered("orders", wire_bytes=50, uncompressed_bytes=200, records=4)
    stats.batches.split()
    stats.batches.failed("orders", 1)
    for rate in (stats.published_rate, stats.published_rate, stats.consumed_rate):
        rate.add()
    page = pipeline_page(
        Pipeline(
            last_error="x",
            last_error_at=0.5,
            degraded=STORE_DOWN,
            flow_report=FlowReport(
                in_flight_bytes=8,
                read_ahead_bytes=6,
                pending_messages=3,
                pending_bytes=4,
                positions=partitions,
                paused=frozenset({TopicPartition("raw", 9)}),
            ),
            stats=stats,
        )
    )
    assert json.loads(json.dumps(page)) == {
        "name": "p",
        "state": "RUNNING",
        "degraded": STORE_DOWN,
        "last_error": "x",
        "last_error_at": "1970-01-01T00:00:00.500000+00:00",
        "topics": ["raw"],
        "output_topic": "orders",
        "transforms": ["offload"],
        "group_id": "wideload-p",
        "processing_guarantee": "at_least_once",
        "in_flight_bytes": 8,
        "read_ahead_bytes": 6,
        "records_in": 1,
        "records_out": 2,
        "batches_whole": 0,
        "batches_read_anew": 0,
        "batches_taken_apart": 0,
        "offloaded_records": 3,
        "inflated_records": 4,
        "dead_letters": 5,
        "store_errors": 12,
        "retries": 6,
        "restarts": 7,
        "expired_records": 0,
        "truncated_records": 0,
        "throttled_s": 0.0,
        "transactions": 17,
        "msgChunkPublished": True,
        "chunkedMessageRate": {"published": 2.0, "consumed": 1.0},
        "chunked_messages": 2,
        "chunks_published": 9,
        "assembled_messages": 8,
        "duplicate_chunks": 10,
        "late_chunks": 11,
        "discarded_messages": {"corrupt": 2, "expired": 1},
        "failed_records": {"reference-refused": 6},
        "pending_chunked_messages": 3,
        "pending_chunked_bytes": 4,
        "unwrapped_records": 13,
        "wrapped_records": 14,
        "producer": {
            "batch-split-rate": 1.0,
            "batch-split-total": 1,
            "batch-size-avg": 50.0,
            "records-per-request-avg": 4.0,
            "compression-rate-avg": 0.25,
            "record-error-rate": 1.0,
            "record-error-total": 1,
            "topics": {
                "orders": {
                    "compression-rate": 0.25,
                    "compression-estimates": {},
                    "record-error-rate": 1.0,
                    "record-error-total": 1,
                },
            },
        },
        "partitions": [
            {
                "topic": "more",
                "partition": 11,
                "position": 9,
                "committed": 9,
                "end": None,
                "lag": None,
                "paused": False,
            },
            {
                "topic": "raw",
                "partition": 2,
                "position": None,
                "committed": None,
                "end": None,
                "lag": None,
                "paused": False,
            },
            {"topic": "raw", "partition": 9, "position": 9, "committed": 9, "end": 8, "lag": 0, "paused": True},
            {"topic": "raw", "partition": 10, "position": 7, "committed": 5, "end": 12, "lag": 7, "paused": False},
        ],
    }


def test_pipeline_page_before_the_first_flow() -> None:
    """A pipeline that has not started has a page, too."""
    page = pipeline_page(Pipeline(status="STARTING"))
    assert (page["state"], page["partitions"], page["in_flight_bytes"]) == ("STARTING", [], 0)
    assert (page["last_error"], page["last_error_at"]) == (None, None)


# --- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def free_port() -> int:
    """A port without a listener, which no test in another process is given."""
    (port,) = free_ports(1)
    return port


@asynccontextmanager
async def served(pipelines: list[Pipeline], port: int, folder: Path, trouble: str | None = None) -> AsyncIterator[str]:
    """The pages on Faust's web server, without the rest of Faust; gives their address."""
    app = faust.App(
        "pages",
        broker="kafka://localhost:1",
        datadir=folder,
        web_bind="127.0.0.1",
        web_port=port,
        loop=asyncio.get_running_loop(),
    )
    steering = OwnSteering()
    steering.trouble = trouble
    add_pages(app, pipelines, 1_000, steering)
    web: Any = app.web  # its type is that of any driver; this one is on aiohttp
    web.init_server()
    await web.start_server()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await web.stop_server()


async def get(url: str) -> tuple[int, str, bytes]:
    """Status, content type and body of a page."""

    def request() -> tuple[int, str, bytes]:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  # a URL of this test
                return response.status, response.headers["Content-Type"], response.read()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.headers["Content-Type"], exc.read()

    return await asyncio.to_thread(request)


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        (Pipeline(), 200),
        (Pipeline(degraded=STORE_DOWN), 200),
        (Pipeline(status="STARTING"), 503),
        (Pipeline(status="RESTARTING", last_error="x"), 503),
        (Pipeline(status="FAILED", last_error="x"), 503),
    ],
)
async def test_health_codes(pipeline: Pipeline, code: int, free_port: int, tmp_path: Path) -> None:
    """A worker that is not ready answers 503 with the reasons, and 200 on /health/live."""
    async with served([pipeline], free_port, tmp_path) as address:
        for path in ("/health", "/health/ready"):
            status, kind, body = await get(address + path)
            assert (status, kind.partition(";")[0]) == (code, "application/json")
            assert json.loads(body) == health([pipeline])
        status, _, body = await get(address + "/health/live")
        assert (status, json.loads(body)) == (200, {"live": True})


async def test_health_without_the_control_topic(free_port: int, tmp_path: Path) -> None:
    """Requests that do not arrive are told, and keep no worker from being ready; a failed pipeline is worse."""
    told = "control.topic c cannot be read, so no request arrives: topic c does not exist any more"
    async with served([Pipeline()], free_port, tmp_path, told) as address:
        status, _, body = await get(address + "/health")
    reasons = {"control.topic": told}
    assert (status, json.loads(body)) == (
        200,
        {"status": "degraded", "live": True, "ready": True, "reasons": reasons},
    )
    failed = health([Pipeline(status="FAILED", last_error="x")], told)
    assert (failed["status"], failed["ready"], failed["reasons"]) == ("failed", False, {"p": "x", **reasons})


async def test_pages_are_served(free_port: int, tmp_path: Path) -> None:
    """/pipelines is a list in the order of the file, /metrics is for Prometheus, other paths do not exist."""
    pipelines = [Pipeline("b"), Pipeline("a", flow_report=FlowReport(positions={TopicPartition("raw", 0): (1, 1, 1)}))]
    async with served(pipelines, free_port, tmp_path) as address:
        status, _, body = await get(address + "/pipelines")
        assert (status, json.loads(body)) == (200, [pipeline_page(pipeline) for pipeline in pipelines])
        status, kind, body = await get(address + "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4")
        assert b'wideload_lag_records{partition="0",pipeline="a",topic="raw"} 0.0' in body
        assert (await get(address + "/nowhere"))[0] == 404


@pytest.mark.parametrize("agents", [False, True])
@pytest.mark.parametrize("debug", [False, True])
async def test_pages_of_fausts_own_are_off(free_port: int, *, agents: bool, debug: bool) -> None:
    """Tables, routes, graphs and assignments are not shown, even with agents or debugging."""
    settings = settings_of(f"web.port = {free_port}\n" + HEAD + ORDERS)
    app = Application(settings)
    app.conf.debug = debug
    if agents:
        table = app.Table("accounts", default=int)

        @app.agent(app.topic("payments"))
        async def pay(stream: Any) -> None:
            async for payment in stream:
                table[payment] += 1

    web: Any = app.web
    web.init_server()
    await web.start_server()
    try:
        for path in (
            *("/table/", "/table/accounts/", "/table/accounts/1/", "/tables/", "/router/", "/router/topics"),
            *("/router/accounts/", "/router/accounts/1/", "/graph/", "/assignment/", "/performance/", "/stats/"),
        ):
            assert (await get(f"http://127.0.0.1:{free_port}{path}"))[0] == 404, path
        assert (await get(f"http://127.0.0.1:{free_port}/health/live"))[0] == 200
    finally:
        await web.stop_server()


@pytest.mark.parametrize(("name", "shown"), [("p", "p:raw:3"), ("p" * 200, "p" * 200)])
def test_pipeline_page_has_transactional_ids(name: str, shown: str) -> None:
    """With exactly once each partition has its transactional id, in its short form too, as brokers list it."""
    topic = "raw" if name == "p" else "raw" * 60
    flow = FlowReport(positions={TopicPartition(topic, 3): (1, 1, 1)})
    settings = pipeline_settings(name, **{"processing.guarantee": "exactly_once"})
    page = pipeline_page(Pipeline(name, flow_report=flow, own_settings=settings))
    (partition,) = page["partitions"]
    assert page["processing_guarantee"] == "exactly_once"
    assert partition["transactional_id"].startswith(shown)
    assert len(partition["transactional_id"]) <= 249
