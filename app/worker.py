"""The app for Faust's own command: `WIDELOAD_CONFIG=wideload.toml faust -A wideload.worker worker`.

`app` is created at its first use, not at import.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from app.cluster.startup import check_patiently
from app.config.findings import Findings
from app.config.installed import WORKER, require
from app.config.parsing import load
from app.log_filters import calm_clients
from app.malloc import keep_freed
from app.web.address import check_address
from transforms.errors import ConfigurationError, WideloadError

if TYPE_CHECKING:
    from app.application import Application

__all__ = ["CONFIG_VARIABLE", "app"]  # noqa: F822  # `app` is created at its first use

CONFIG_VARIABLE = "WIDELOAD_CONFIG"


def _build() -> Application:
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise ConfigurationError(
            CONFIG_VARIABLE, "the environment variable is not set; it names the configuration file"
        )
    require(CONFIG_VARIABLE, WORKER, "worker")
    from app.application import Application, read_control_topic

    calm_clients()
    settings = load(path)
    keep_freed(settings.in_flight_bytes)
    # Faust imports the app for each of its commands, but only `worker` uses the cluster.
    if "worker" not in sys.argv:
        return Application(settings, config=path)
    findings = Findings()
    with findings.noted():
        check_address(settings)
    plans, control_topic = asyncio.run(check_patiently(settings, findings, _print_wait, read_control_topic))
    return Application(settings, plans, path, control_topic)


def _print_wait(sentence: str) -> None:
    print(f"wideload: {sentence}", file=sys.stderr, flush=True)


def __getattr__(name: str) -> Application:
    if name != "app":
        raise AttributeError(name)
    try:
        globals()["app"] = built = _build()
    except WideloadError as exc:
        for each in exc.each if isinstance(exc, ConfigurationError) else (exc,):
            print(f"wideload: {each}", file=sys.stderr)  # our own CLI does not run here
        raise SystemExit(2) from exc
    return built
