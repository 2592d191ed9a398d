"""Running the worker in this process: preflight, logging, Faust's worker, exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NoReturn

import faust

from app.application import Application, PipelinesFailedError, read_control_topic
from app.cluster.startup import check_patiently
from app.config.findings import Findings
from app.config.settings import Settings
from app.json_log import log_as_json
from app.log_filters import LineFormatter, bound_repeats, calm_clients, hide_secrets
from app.malloc import keep_freed
from app.pipeline.runtime import STORE_THREADS
from app.web.address import check_address, listening
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_LEAVE_S = 1.0
_TURNS = 5  # of the loop: a transport that is closed needs two
_INTERRUPTED = 130  # 128 + SIGINT, as in shells

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Worker(faust.Worker):
    """Says which signal has stopped it; a second Ctrl-C does not wait for the records in flight."""

    def __init__(self, application: Application, **options: Any) -> None:
        super().__init__(application, **options)
        self._application = application

    def _on_sigint(self) -> None:  # mode's own, as below
        if self._application.ending is None:
            self._application.ending = "because of SIGINT (Ctrl-C; a second one does not wait)"
            super()._on_sigint()
        else:
            log.warning("a second SIGINT: the worker ends immediately; what is not committed is read again")
            _end_process(_INTERRUPTED)

    def _on_sigterm(self) -> None:
        if self._application.ending is None:
            self._application.ending = "because of SIGTERM"
            super()._on_sigterm()
        else:
            log.info("another SIGTERM has no effect: the worker is stopping; SIGINT or SIGKILL ends it immediately")

    async def _sentinel_task(self) -> None:  # mode's own: the last that the loop runs, which waits for a second
        """Lets tasks that were cancelled end, and connections that were closed close; no longer than they take."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_LEAVE_S)
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class _Application(Application):
    """Ends the Faust worker without a traceback when no pipeline is left; the last line of its log has the reason."""

    worker: faust.Worker | None = None

    async def on_shutdown(self) -> None:
        """Nothing: the event loop ends after this, which may take seconds; then `run_worker` logs the end."""

    async def end(self, failure: PipelinesFailedError) -> None:  # noqa: ARG002  # it is kept in `failure`
        self.ending = "because no pipeline is left"
        if self.worker is not None:
            await self.worker.stop()


def run_worker(settings: Settings, log_level: str, config: str | None = None) -> int:
    """Runs until SIGTERM or SIGINT, or until no pipeline is left. `config` is the path of the file, for the log.

    Returns:
        The exit status: 1 if a pipeline has stopped for good, otherwise 0.

    Raises:
        ConfigurationError: the preflight found problems of configuration, cluster or stores; nothing was consumed.
        ClusterError: the cluster did not answer; nothing was consumed.
    """
    findings = Findings()
    with findings.noted():
        check_address(settings)
    keep_freed(settings.in_flight_bytes)
    # Before logging is set up: the caller prints an error as one line.
    plans, control_topic = asyncio.run(check_patiently(settings, findings, _print_wait, read_control_topic))
    sockets = listening(settings)  # all slow checks are done, and no other process can take the port now
    log_left_out = set_up_logging(log_level, settings.log_format)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    application = _Application(settings, plans, config, control_topic, sockets)
    worker = _Worker(
        application, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=log_level
    )
    worker.spinner = None  # it would write cursor sequences even if there is no terminal
    application.worker = worker
    crashed = False
    try:
        worker.execute_from_commandline()
    except SystemExit as exc:
        crashed = bool(exc.code)
    finally:
        _join_store_calls()
        application.tell_end()
        log_left_out()
    failed = [] if crashed else [pipeline for pipeline in application.pipelines if pipeline.status == "FAILED"]
    for pipeline in failed:
        told = f"[pipeline.{pipeline.settings.name}] {pipeline.last_error}"
        if settings.log_format == "json":
            log.error(told)
        else:
            print(f"wideload: {told}", file=sys.stderr)
    status = 1 if crashed or failed else 0
    _leave(status)
    return status


def _print_wait(sentence: str) -> None:
    print(f"wideload: {sentence}", file=sys.stderr, flush=True)


def _store_calls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(STORE_THREADS)]


def _join_store_calls() -> None:
    """Waits for the threads of store calls, for a second at most."""
    deadline = time.monotonic() + _LEAVE_S
    for thread in _store_calls():
        thread.join(max(0.0, deadline - time.monotonic()))


def _leave(status: int) -> None:
    """Ends the process immediately if a store call hangs: Python would wait for its thread, perhaps forever."""
    if _store_calls():
        log.warning("some store calls do not end and are abandoned; their records are read again at the next start")
        _end_process(status)


def _end_process(status: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def set_up_logging(level: str, form: Literal["text", "json"] = "text") -> Callable[[], None]:
    """Logs to standard error; see `calm_clients` for the lines of the client libraries.

    Returns:
        See `bound_repeats`.
    """
    logging.basicConfig(stream=sys.stderr, level=level, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LineFormatter(_FORMAT))
    hide_secrets(logging.getLogger())
    if form == "json":
        log_as_json(logging.getLogger())
        logging.captureWarnings(capture=True)
    calm_clients(whole=True)
    return bound_repeats(logging.getLogger())
