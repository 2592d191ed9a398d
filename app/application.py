"""The Faust app: the pipelines as services and the pages. Faust's own Kafka clients start only if there are agents."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import faust
from faust.app.base import BootStrategy
from faust.auth import OAuthCredentials
from mode import ServiceT

from app.cluster.preflight import Plan
from app.config.handover import store_doubts
from app.config.settings import ClientSettings, Settings
from app.config.version import VERSION
from app.json_log import log_as_json
from app.kafka.clients import ClusterId, security_arguments
from app.kafka.troubles import lasted
from app.log_filters import LEAST_LEVELS, bound_repeats, calm_clients, hide_secrets
from app.pipeline.budget import Budget
from app.pipeline.control_topic import ControlTopic
from app.pipeline.runtime import Runtime, Threads
from app.pipeline.service import Pipeline
from app.pipeline.steering import GroupSteering, OwnSteering
from app.web.dashboard import Dashboard
from app.web.history import History
from app.web.overview import Overview
from app.web.pages import add_pages
from app.web.rest import Rest
from app.web.server import WebServer
from transforms.errors import WideloadError
from transforms.logger_name import logger_name
from transforms.text import bytes_text

log = logging.getLogger(logger_name(__name__))


class PipelinesFailedError(WideloadError):
    """All pipelines have stopped for good, so the worker has nothing left to do."""


async def read_control_topic(settings: Settings) -> ControlTopic | None:
    """The topic of `control.topic` with its current content; None if the property is not set.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
        ClusterError: it cannot be read.
    """
    if settings.control_topic is None:
        return None
    topic = ControlTopic(settings.control_topic, settings)
    await topic.read()
    return topic


class _BootStrategy(BootStrategy):
    """Starts the web server but no Kafka client of Faust, for an app without agents.

    Faust's consumer crashes on an empty subscription (0.15.3), and its producer would only keep a connection open.
    """

    def producer_only(self) -> Iterable[ServiceT]:
        return self.web_server()


class Application(faust.App):
    """The Faust app of the worker. Users may add their own agents.

    Args:
        settings: the configuration of the worker.
        plans: the results of the preflight, by pipeline; a pipeline without a plan runs the preflight when it starts.
        config: the path of the configuration file, for the log.
        control_topic: what it has said; without it, each request is for this worker alone.
        sockets: at which the pages are served; without any, it makes them, as Faust does.

    Attributes:
        ending: why the app is stopped, for the log; None if unknown.
    """

    BootStrategy = _BootStrategy
    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like

    def __init__(
        self,
        settings: Settings,
        plans: Sequence[Plan] = (),
        config: str | None = None,
        control_topic: ControlTopic | None = None,
        sockets: Collection[socket.socket] = (),
    ) -> None:
        self.web_hosts = settings.web_hosts or ()
        self.web_sockets = sockets
        self.settings = settings
        self.ending: str | None = None
        self._config = config
        self._created = [topic for plan in plans for topic in plan.created]
        self._began_s = self._stops_s = time.monotonic()
        super().__init__(
            "wideload",
            broker=[f"kafka://{address.strip()}" for address in settings.client.bootstrap_servers.split(",")],
            broker_client_id=settings.client.client_id,
            broker_credentials=_credentials(settings.client),
            web_bind=settings.web_bind,
            web_port=settings.web_port,
            # Faust's own pages show table data and routes; none is served by default.
            web_stats_enabled=False,
            web_graph_enabled=False,
            web_router_enabled=False,
            web_tables_enabled=False,
            web_metrics_enabled=False,
        )
        calm_clients()
        self.failure: PipelinesFailedError | None = None
        budget = Budget(settings.in_flight_bytes)
        by_name = {plan.pipeline: plan for plan in plans}
        self.pipelines = [
            Pipeline(
                settings,
                pipeline,
                plan=by_name.get(pipeline.name),
                budget=budget,
                ended=self._pipeline_ended,
                runtime=Runtime(Threads(settings.store_threads)),
            )
            for pipeline in settings.pipelines
        ]
        self._group_steering = None if control_topic is None else GroupSteering(control_topic, self.pipelines)
        steering = self._group_steering or OwnSteering()
        web: Any = self.web  # its type is that of any driver
        history = History(self.pipelines)
        web.web_app.cleanup_ctx.append(history.running)
        dashboard = Dashboard(Overview(self.pipelines, settings.in_flight_bytes, history))
        dashboard.add_to(web.web_app)
        rest = Rest(settings, self.pipelines, ClusterId(settings.client).get, LEAST_LEVELS, dashboard.index, steering)
        rest.add_to(web.web_app)
        add_pages(self, self.pipelines, settings.in_flight_bytes, steering)

    def _new_web(self) -> WebServer:
        return WebServer(self)

    def on_init_dependencies(self) -> Iterable[ServiceT]:
        """The web server, the services that agents need, what steers the pipelines, and the pipelines."""
        self.producer_only = not self.agents
        steering = [] if self._group_steering is None else [self._group_steering]
        return [*super().on_init_dependencies(), *steering, *self.pipelines]

    async def on_first_start(self) -> None:
        """Creates Faust's directories only if there are agents. Faust's own command has set up its log before."""
        root = logging.getLogger()
        hide_secrets(root)
        if self.settings.log_format == "json":
            log_as_json(root)
        bound_repeats(root)
        calm_clients()  # Faust's own command has set the level of the log
        self._log_start()
        if self.agents:
            await super().on_first_start()

    def _log_start(self) -> None:
        settings = self.settings
        host = f"[{settings.web_bind}]" if ":" in settings.web_bind else settings.web_bind
        pages = f"http://{host}:{settings.web_port}/"
        log.info(
            "wideload %s starts as process %d: configuration %s; brokers %s; web UI at %s; up to %s of records in "
            "flight; %d concurrent store calls for each pipeline; up to %.1f s to stop",
            VERSION,
            os.getpid(),
            self._config or "of the application",
            settings.client.bootstrap_servers,
            pages,
            bytes_text(settings.in_flight_bytes),
            settings.store_threads,
            settings.graceful_timeout_ms / 1000,
            extra={
                "fields": {
                    "version": VERSION,
                    "configuration": self._config,
                    "brokers": settings.client.bootstrap_servers,
                    "pages": pages,
                    "pipelines": [each.name for each in settings.pipelines],
                }
            },
        )
        for topic in self._created:
            log.info("topic %s was missing, and is created (topic.creation.enable)", topic)
        for doubt in store_doubts(settings.pipelines):
            log.warning("%s", doubt)

    async def on_stop(self) -> None:
        """Stops all pipelines at the same time: a pipeline that waits for its broker does not delay the others."""
        self._stops_s = time.monotonic()
        log.info(
            "wideload stops%s: records that were read are finished and committed, in up to %.1f s",
            f", {self.ending}" if self.ending else "",
            self.settings.graceful_timeout_ms / 1000,
        )
        services = [*self.pipelines, *([] if self._group_steering is None else [self._group_steering])]
        await asyncio.gather(*(service.stop() for service in services))
        await super().on_stop()

    async def on_shutdown(self) -> None:
        """Logs the end: the web server has ended, too."""
        self.tell_end()

    def tell_end(self) -> None:
        """Logs that the worker has ended, and how long that took."""
        failed = [pipeline.settings.name for pipeline in self.pipelines if pipeline.status == "FAILED"]
        log.info(
            "wideload has ended after %s; it took %s to stop%s",
            lasted(time.monotonic() - self._began_s),
            lasted(time.monotonic() - self._stops_s),
            f"; failed: {', '.join(failed)}" if failed else "",
            extra={"fields": {"failed": failed}},
        )

    def _pipeline_ended(self, _: Pipeline) -> None:
        """A worker runs while one pipeline runs; when all have failed it ends, to be noticed.

        If requests may restart them it stays, like Kafka Connect.
        """
        if any(pipeline.status != "FAILED" for pipeline in self.pipelines) or self.agents:
            return
        if self.settings.web_control:
            log.warning("no pipeline is left; the worker stays, for requests may restart them (web.control.enable)")
        else:
            reasons = "; ".join(f"{pipeline.settings.name}: {pipeline.last_error}" for pipeline in self.pipelines)
            self.failure = PipelinesFailedError(f"no pipeline is left: {reasons}")
            self._ending = self.loop.create_task(self.end(self.failure))

    async def end(self, failure: PipelinesFailedError) -> None:
        """Ends the worker: with Faust's own command the app crashes; `wideload worker` stops it without a traceback."""
        await self.crash(failure)


def _credentials(client: ClientSettings) -> Any:
    arguments = security_arguments(client)
    context = arguments.get("ssl_context")
    if "sasl_oauth_token_provider" in arguments:
        return OAuthCredentials(oauth_cb=arguments["sasl_oauth_token_provider"], ssl_context=context)
    if "sasl_mechanism" in arguments:
        return faust.SASLCredentials(
            mechanism=arguments["sasl_mechanism"],
            username=arguments["sasl_plain_username"],
            password=arguments["sasl_plain_password"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None
