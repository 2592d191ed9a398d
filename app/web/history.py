"""What pipelines did in the last ten minutes: samples of their counters, in a ring."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from array import array
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp.web import Application

from app.pipeline.background import begin
from app.pipeline.report import PipelineReport
from app.pipeline.stats import STORE_OPERATIONS, STORE_SECONDS, Latency, PipelineStats, StoreOperation
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

EVERY_S = 2.0
"""The time between two samples."""

KEPT = 300
"""The number of samples: ten minutes."""

RATES = ("records_in", "records_out", "bytes_in", "bytes_out")
"""The counters of `PipelineStats` whose rates are kept."""

_RECENT = 30  # samples: the minute for which the calls of stores are shown
_AVERAGED = 5  # samples: ten seconds
_LIKELY = 0.95


@dataclass(frozen=True, slots=True)
class _Sample:
    """The rates of one moment.

    Attributes:
        number: from 1 on.
        at_s: since the history began.
        rates: per second since the sample before; `RATES` of the first pipeline, then of the second.
    """

    number: int
    at_s: float
    rates: array[float]


class _StoreCalls:
    """The counters of a store at one moment."""

    def __init__(self, stats: PipelineStats) -> None:
        self.calls = {operation: _calls(stats, operation) for operation in STORE_OPERATIONS}
        self.errors: Counter[str] = Counter()
        for (operation, _), count in stats.store_failures.items():
            self.errors[operation] += count


class History:
    """The last ten minutes of some pipelines. Its size is bounded, whatever they do.

    Args:
        pipelines: all of the worker.
        clock: in seconds; only differences count.
    """

    def __init__(self, pipelines: Sequence[PipelineReport], clock: Callable[[], float] = time.monotonic) -> None:
        self._pipelines = pipelines
        self._clock = clock
        self._began_s = self._last_s = clock()
        self._counts = self._read()
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self._number = 0
        self._store_calls = [deque([_StoreCalls(each.stats)], maxlen=_RECENT + 1) for each in pipelines]

    @property
    def running_s(self) -> float:
        """The time since the history began."""
        return self._clock() - self._began_s

    def sample(self) -> None:
        """Adds a sample; the oldest one goes when there are `KEPT`."""
        now_s, counts = self._clock(), self._read()
        passed_s = now_s - self._last_s
        if passed_s <= 0:
            return
        rates = array("d", ((new - old) / passed_s for new, old in zip(counts, self._counts, strict=True)))
        self._number += 1
        self._samples.append(_Sample(self._number, now_s - self._began_s, rates))
        self._last_s, self._counts = now_s, counts
        for pipeline, calls in zip(self._pipelines, self._store_calls, strict=True):
            calls.append(_StoreCalls(pipeline.stats))

    def times(self, after: int = 0) -> Mapping[str, Any]:
        """When the samples were taken whose number is greater than `after`, and the number of the last one."""
        return {
            "every_s": EVERY_S,
            "kept": KEPT,
            "last": self._number,
            "at_s": [round(sample.at_s, 1) for sample in self._since(after)],
        }

    def rates(self, pipeline: int, after: int = 0) -> Mapping[str, list[float]]:
        """The rates of a pipeline in the samples of which `times` has the times."""
        return {name: [round(rate, 1) for rate in self._rates(pipeline, name, after)] for name in RATES}

    def recent(self, pipeline: int) -> Mapping[str, float | None]:
        """The mean rates of a pipeline in the last ten seconds; None before the first sample."""
        return {
            name: round(sum(rates) / len(rates), 1) if rates else None
            for name in RATES
            for rates in [self._rates(pipeline, name, self._number - _AVERAGED)]
        }

    def store_calls(self, pipeline: int) -> Mapping[str, Mapping[str, float | None]]:
        """The store calls of a pipeline in the last minute, by operation.

        Each has the numbers of `calls` and of `errors`, the mean duration `mean_s`, and `p95_s`, in which 95 % of the
        calls ended; a duration is None if there were no calls, or if it is over the greatest bound of the histogram.
        """
        calls, stats = self._store_calls[pipeline], self._pipelines[pipeline].stats
        before, now = calls[0], _StoreCalls(stats)
        found: dict[str, Mapping[str, float | None]] = {}
        for operation in STORE_OPERATIONS:
            (new, new_s), (old, old_s) = now.calls[operation], before.calls[operation]
            counts = [count - earlier for count, earlier in zip(new, old, strict=True)]
            total = sum(counts)
            found[operation] = {
                "calls": total,
                "errors": now.errors[operation] - before.errors[operation],
                "mean_s": (new_s - old_s) / total if total else None,
                "p95_s": _bound(counts, total),
            }
        return found

    async def running(self, _: Application) -> AsyncIterator[None]:
        """Samples while a web application runs; one of its `cleanup_ctx`."""
        task = begin(self._run(), self._ended, lasting=True)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _ended(self, error: BaseException) -> None:
        log.error("what pipelines do is no longer sampled for the web UI: unexpected error", exc_info=error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self.sample()

    def _since(self, after: int) -> list[_Sample]:
        count = max(0, min(self._number - after, len(self._samples)))
        return list(itertools.islice(reversed(self._samples), count))[::-1]

    def _rates(self, pipeline: int, name: str, after: int) -> list[float]:
        place = pipeline * len(RATES) + RATES.index(name)
        return [sample.rates[place] for sample in self._since(after)]

    def _read(self) -> list[int]:
        return [getattr(pipeline.stats, name) for pipeline in self._pipelines for name in RATES]


def _calls(stats: PipelineStats, operation: StoreOperation) -> tuple[list[int], float]:
    latency: Latency = stats.publish if operation == "publish" else stats.download
    return list(latency.counts), latency.total_seconds


def _bound(counts: Sequence[int], total: int) -> float | None:
    """The upper bound of the bucket with the 95th percentile of the calls."""
    passed = 0
    for bound, count in zip(STORE_SECONDS, counts, strict=False):
        passed += count
        if total and passed >= _LIKELY * total:
            return bound
    return None
