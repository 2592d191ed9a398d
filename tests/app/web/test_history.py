"""The last ten minutes of pipelines."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp.web import Application

from app.web import history as module
from app.web.history import KEPT, RATES, History
from tests.app.reports import Pipeline


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_rates_are_those_between_two_samples() -> None:
    """A rate is what was counted since the sample before, by the time that has really passed."""
    clock, pipelines = Clock(), [Pipeline("a"), Pipeline("b")]
    history = History(pipelines, clock)
    for passed_s, records in ((2.0, 10), (4.0, 10), (2.0, 0)):
        pipelines[1].stats.records_in += records
        pipelines[1].stats.bytes_out += records * 100
        clock.now_s += passed_s
        history.sample()
    times, first, second = history.times(), history.rates(0), history.rates(1)
    assert (times["last"], times["at_s"]) == (3, [2.0, 6.0, 8.0])
    assert first == {name: [0.0] * 3 for name in ("records_in", "records_out", "bytes_in", "bytes_out")}
    assert (second["records_in"], second["bytes_out"]) == ([5.0, 2.5, 0.0], [500.0, 250.0, 0.0])
    assert second["bytes_in"] == [0.0] * 3
    assert (history.times(2)["at_s"], history.rates(1, 2)["records_in"]) == ([8.0], [0.0])
    assert (history.times(9)["at_s"], history.rates(1, 9)["records_in"]) == ([], [])


def test_recent_rates_are_those_of_ten_seconds() -> None:
    """The mean of the last five samples, by pipeline; before the first sample there is none."""
    clock, pipelines = Clock(), [Pipeline("a"), Pipeline("b")]
    history = History(pipelines, clock)
    assert history.recent(1) == dict.fromkeys(RATES)
    for records in (1_000, 10, 20, 30, 40, 50):
        pipelines[1].stats.records_in += records
        clock.now_s += 2.0
        history.sample()
    assert history.recent(0) == dict.fromkeys(RATES, 0.0)
    assert history.recent(1) == {**dict.fromkeys(RATES, 0.0), "records_in": 15.0}


def test_oldest_samples_go() -> None:
    """There are never more than `KEPT`; their numbers go on. Two samples at one moment are one."""
    clock = Clock()
    history = History([Pipeline()], clock)
    for _ in range(KEPT + 5):
        clock.now_s += 2.0
        history.sample()
        history.sample()
    times, rates = history.times(), history.rates(0)
    assert (times["last"], times["at_s"][0], len(times["at_s"])) == (KEPT + 5, 12.0, KEPT)
    assert {len(values) for values in rates.values()} == {KEPT}


async def test_end_of_the_samples_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the samples and not the web UI, and the log has its traceback."""

    class Stopped(Clock):
        def __call__(self) -> float:
            if self.now_s < 0:
                raise ValueError("defect")
            return self.now_s

    monkeypatch.setattr(module, "EVERY_S", 0)
    clock = Stopped()
    context = History([Pipeline()], clock).running(Application())
    await anext(context)
    clock.now_s = -1
    logged = asyncio.Event()

    def seen(_: logging.LogRecord) -> bool:
        logged.set()
        return True

    monkeypatch.setattr(module.log, "filters", [seen])
    await asyncio.wait_for(logged.wait(), 30)
    await anext(context, None)  # ends as ever
    assert "no longer sampled for the web UI" in caplog.text
    assert "ValueError: defect" in caplog.text


def test_store_calls_of_the_last_minute() -> None:
    """Calls, errors, mean and the bound of 95 % are those of the last minute; what was before is not in them."""
    clock, pipeline = Clock(), Pipeline()
    history = History([pipeline], clock)
    for _ in range(100):
        pipeline.stats.publish.observe(40.0)
    pipeline.stats.store_failures["publish", "access"] = 3
    for _ in range(30):
        clock.now_s += 2.0
        history.sample()
    for _ in range(18):
        pipeline.stats.publish.observe(0.004)
    for _ in range(2):
        pipeline.stats.publish.observe(0.024)
    pipeline.stats.store_failures["publish", "unavailable"] = 1
    clock.now_s += 2.0
    history.sample()
    calls = history.store_calls(0)
    assert calls["publish"] == {"calls": 20, "errors": 1, "mean_s": pytest.approx(0.006), "p95_s": 0.025}
    assert calls["download"] == {"calls": 0, "errors": 0, "mean_s": None, "p95_s": None}
    pipeline.stats.download.observe(100.0)
    assert history.store_calls(0)["download"]["p95_s"] is None
