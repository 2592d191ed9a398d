"""A real Prometheus for the tests: in a separate process, where this machine has one.

`prometheus` and `promtool` come from `bin` in the cache directory, where the set-up of the tests puts them if the
package manager has them, or from the path.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.local.broker import free_ports
from app.local.jars import cache_folder
from app.local.watchdog import watched
from tests.integration.worker_process import until

DEPLOY = Path(__file__).parents[1] / "deploy"

_EVERY = "500ms"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}


def promtool(*arguments: str) -> str:
    """What promtool prints; skips the test where there is none."""
    return subprocess.run(
        [_binary("promtool"), *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout


def scaled(rules: str, divisor: int) -> str:
    """Rules whose durations are shorter: of `for`, of ranges and of offsets."""
    return re.sub(
        r"(?<=for: )(\d+)([smh])\b|(?<=\[)(\d+)([smh])(?=\])|(?<=offset )(\d+)([smh])\b",
        lambda match: f"{_ms(*filter(None, match.groups())) // divisor}ms",
        rules,
    )


def _ms(number: str, unit: str) -> int:
    return int(number) * _UNITS_MS[unit]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """The titles of the dashboard's panels, and their queries."""
    board = json.loads((DEPLOY / "grafana" / "wideload.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


class Prometheus:
    """A Prometheus that answers.

    Args:
        address: of its API.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        # No proxy of the environment may stand between a test and its own machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    @contextlib.contextmanager
    def scraping(cls, port: int, folder: Path, rules: str) -> Iterator[Prometheus]:
        """Runs one that scrapes this port as the job `wideload`, with these rules, twice a second."""
        binary = _binary("prometheus")
        (folder / "rules.yml").write_text(rules)
        config = {
            "global": {"scrape_interval": _EVERY, "scrape_timeout": _EVERY, "evaluation_interval": _EVERY},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "wideload", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (own,) = free_ports(1)
        address = f"127.0.0.1:{own}"
        command = [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        log_path = folder / "prometheus.log"
        with log_path.open("wb") as log:
            process = watched(command, output=log, environ=dict(os.environ))
            try:
                prometheus = cls(f"http://{address}")
                until(prometheus.ready, f"Prometheus answers; its log is {log_path}")
                yield prometheus
            finally:
                process.signal(signal.SIGKILL)
                process.wait(10)

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with self._opener.open(f"{self._address}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def query(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        found: list[dict[str, Any]] = self._get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"] if each["state"] == "firing"}

    def _get(self, path: str) -> dict[str, Any]:
        with self._opener.open(f"{self._address}/api/v1/{path}", timeout=10) as response:
            answer: dict[str, Any] = json.load(response)["data"]
            return answer


def _binary(name: str) -> str:
    folder = cache_folder() / "bin"
    found = shutil.which(name, path=os.pathsep.join((str(folder), os.environ.get("PATH", ""))))
    if found is None:
        pytest.skip(f"no {name}: run `sh deploy/prometheus/fetch.sh {folder}`, or install Prometheus")
    return found
