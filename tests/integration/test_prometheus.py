"""A real Prometheus that scrapes a real worker: the panels have data, and alerts fire and end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.integration.topics import Sent, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import until
from tests.prometheus import DEPLOY, Prometheus, dashboard_queries, scaled

DIVISOR = 200  # 10 minutes are 3 seconds

MAY_BE_EMPTY = {
    "Payload retention beyond records": "a file system has no expiry rules",
    "Failed records, by reason": "a series begins with the first record that fails for its reason",
    "Discarded messages, by reason": "a series begins with the first message that is discarded for its reason",
}


def filled_in(query: str) -> str:
    """A query of the dashboard as Grafana sends it."""
    return query.replace("$pipeline", ".*").replace("$instance", ".*").replace("$__rate_interval", "4s")


def test_prometheus_has_data_and_alerts(make_way: Callable[..., Way], tmp_path: Path) -> None:
    """Each query of the dashboard returns data. When the store is stopped alerts fire; when it is back they end."""
    way = make_way(partitions=2)
    store, away = way.folder / "store", way.folder / "away"
    rules = scaled((DEPLOY / "prometheus" / "rules.yml").read_text(), DIVISOR)
    large: list[Sent] = [(0, b"%d" % number, os.urandom(THRESHOLD + 1), [], 1) for number in range(2)]
    impatient = {"large.message.store.timeout.ms": 300, "errors.retry.delay.max.ms": 100}
    with way.worker(**impatient) as worker:
        worker.wait_ready()
        folder = tmp_path / "prometheus"
        folder.mkdir()
        with Prometheus.scraping(worker.port, folder, rules) as prometheus:
            send(way.broker, way.raw, [*large[:1], (1, b"small", b"v", [], 1)])
            until(lambda: way.arrived(2), "the records have come out")

            def empty() -> list[tuple[str, str]]:
                return [each for each in dashboard_queries() if not prometheus.query(filled_in(each[1]))]

            until(lambda: {title for title, _ in empty()} <= MAY_BE_EMPTY.keys(), "each panel has data", 15)
            until(lambda: not prometheus.firing(), "no alert fires while all is well", 20)
            store.rename(away)
            send(way.broker, way.raw, large[1:])
            expected = {"WideloadPipelineDegraded", "WideloadStoreErrors"}
            until(lambda: prometheus.firing() == expected, "the alerts fire", 20)
            away.rename(store)
            until(lambda: not prometheus.firing(), "the alerts end", 20)
        assert worker.terminate() == 0
