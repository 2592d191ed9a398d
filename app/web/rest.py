"""Kafka Connect's REST API on the worker's web server: paths, bodies, errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp.web import Application, HTTPException, Request, Response, StreamResponse, json_response, middleware

from app.config.settings import Settings
from app.pipeline.report import PipelineControl, PipelineReport, Steering, SteeringError, Target
from app.web import connectors, plugins
from app.web.accept import prefers_html
from app.web.access import Access
from app.web.errors import RestError
from app.web.loggers import Loggers
from transforms.logger_name import logger_name
from transforms.text import printable

log = logging.getLogger(logger_name(__name__))

MOST_BODY = 65_536
"""The most bytes of a body that is read."""

_OURS = {"connectors", "connector-plugins", "admin"}
_NAME = "/connectors/{name}"
_HERE = {"Warning": '299 - "this applies to this worker only, until it ends"'}
_UNKNOWN = "unknown"  # as Connect answers if it does not know

_Handler = Callable[[Request], Awaitable[StreamResponse]]
_CREATE = "pipelines are defined in the worker's file: add a table [pipeline.NAME] to it, and restart the worker"
_CHANGE = "pipelines are defined in the worker's file: edit [pipeline.{name}] there, and restart the worker"
_DELETE = "pipelines are defined in the worker's file: remove [pipeline.{name}] from it, and restart the worker"
_TOPICS = "the topics of a pipeline are defined in the worker's file; they are not tracked, so they cannot be reset"
_OFFSETS = (
    "a worker does not change the offsets of its groups; stop all workers, and use kafka-consumer-groups.sh --group "
    "{group} --reset-offsets"
)


class Rest:
    """The API for the pipelines of one worker.

    Args:
        settings: of the worker.
        pipelines: all of them.
        cluster_id: returns the id of the cluster; None if unknown.
        least_levels: see `Loggers`.
        page: returns the web UI, which has the path `/` too.
        steering: takes what is asked of a pipeline to where it is done.
    """

    def __init__(
        self,
        settings: Settings,
        pipelines: Sequence[PipelineControl],
        cluster_id: Callable[[], Awaitable[str | None]],
        least_levels: Mapping[str, int],
        page: Callable[[], Response],
        steering: Steering,
    ) -> None:
        self._settings = settings
        self._pipelines = {pipeline.settings.name: pipeline for pipeline in pipelines}
        self._cluster_id = cluster_id
        self._loggers = Loggers(least_levels)
        self._page = page
        self._access = Access(settings.web_control_token, enabled=settings.web_control)
        self._steering = steering
        self._headers = {} if steering.shared else _HERE
        self._worker = connectors.worker_id(settings.web_port)
        self._validating = asyncio.Lock()

    def add_to(self, web: Application) -> None:
        """Adds the paths, and the form of errors. A path may end with a slash."""
        web.middlewares.append(_rest_errors)
        gets: Mapping[str, _Handler] = {
            "/connectors": self._list,
            _NAME: self._of(connectors.info),
            f"{_NAME}/config": self._of(connectors.config),
            f"{_NAME}/status": self._of(lambda pipeline: connectors.status(pipeline, self._worker)),
            f"{_NAME}/tasks": self._of(connectors.tasks),
            f"{_NAME}/tasks/{{task}}/status": self._task_status,
            f"{_NAME}/topics": self._of(connectors.topics),
            f"{_NAME}/offsets": self._of(connectors.offsets),
            "/connector-plugins": self._plugins,
            "/connector-plugins/{plugin}/config": self._definitions,
            "/admin/loggers": self._levels,
            "/admin/loggers/{logger}": self._level,
        }
        web.router.add_get("/", self._root)
        for path, handler in gets.items():
            web.router.add_get(_slashed(path), handler)
        web.router.add_put(_slashed("/connector-plugins/{plugin}/config/validate"), self._validate)
        for method, path, change in (
            ("PUT", f"{_NAME}/pause", self._targeting("PAUSED", 202)),
            ("PUT", f"{_NAME}/resume", self._targeting("STARTED", 202)),
            ("PUT", f"{_NAME}/stop", self._targeting("STOPPED", 204)),
            ("POST", f"{_NAME}/restart", self._restart),
            ("POST", f"{_NAME}/tasks/{{task}}/restart", self._restart_task),
            ("PUT", "/admin/loggers/{logger}", self._set_level),
        ):
            web.router.add_route(method, _slashed(path), self._allowed(change))
        for method, path, allowed, reason in (
            ("POST", "/connectors", "GET", _CREATE),
            ("PUT", f"{_NAME}/config", "GET", _CHANGE),
            ("PATCH", f"{_NAME}/config", "GET", _CHANGE),
            ("DELETE", _NAME, "GET", _DELETE),
            ("PUT", f"{_NAME}/topics/reset", "", _TOPICS),
            ("PATCH", f"{_NAME}/offsets", "GET", _OFFSETS),
            ("DELETE", f"{_NAME}/offsets", "GET", _OFFSETS),
        ):
            web.router.add_route(method, _slashed(path), self._refusing(allowed, reason))

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _root(self, request: Request) -> Response:
        if prefers_html(",".join(request.headers.getall("Accept", ()))):
            response = self._page()
        else:
            id_ = await self._cluster_id()
            response = json_response({"version": _version(), "commit": _UNKNOWN, "kafka_cluster_id": id_})
        response.headers["Vary"] = "Accept"
        return response

    async def _list(self, request: Request) -> Response:
        if "expand" not in request.query:
            return json_response(list(self._pipelines))
        wanted = request.query.getall("expand")
        found: dict[str, dict[str, Any]] = {}
        for name, pipeline in self._pipelines.items():
            found[name] = {}
            if "status" in wanted:
                found[name]["status"] = connectors.status(pipeline, self._worker)
            if "info" in wanted:
                found[name]["info"] = connectors.info(pipeline)
        return json_response(found)

    def _of(self, document: Callable[[PipelineReport], object]) -> _Handler:
        async def handler(request: Request) -> Response:
            return json_response(document(self._pipeline(request)))

        return handler

    async def _task_status(self, request: Request) -> Response:
        return json_response(self._task(request))

    async def _plugins(self, _: Request) -> Response:
        return json_response(plugins.plugins(_version()))

    async def _definitions(self, request: Request) -> Response:
        plugins.check_plugin(request.match_info["plugin"])
        return json_response(plugins.definitions())

    async def _validate(self, request: Request) -> Response:
        plugins.check_plugin(request.match_info["plugin"])
        document = await _object(request)
        async with self._validating:  # one after the other: they take the time of a core from the pipelines
            found = await asyncio.to_thread(plugins.validation, document, self._settings)
        return json_response(found)

    async def _levels(self, _: Request) -> Response:
        return json_response(self._loggers.levels())

    async def _level(self, request: Request) -> Response:
        return json_response(self._loggers.level(request.match_info["logger"]))

    # --- changing ----------------------------------------------------------------------------------------------------

    def _allowed(self, change: _Handler) -> _Handler:
        async def handler(request: Request) -> StreamResponse:
            self._access.check(request)
            try:
                return await change(request)
            except SteeringError as exc:
                raise RestError(503 if exc.retriable else 500, str(exc)) from exc

        return handler

    def _targeting(self, target: Target, status: int) -> _Handler:
        async def handler(request: Request) -> Response:
            await self._steering.steer(self._pipeline(request), target)
            return Response(status=status, headers=self._headers)

        return handler

    async def _restart(self, request: Request) -> Response:
        pipeline = self._pipeline(request)
        only_failed, tasks = (_flag(request, name) for name in ("onlyFailed", "includeTasks"))
        stopped = pipeline.target == "STOPPED"
        restarting = not stopped and (not only_failed or pipeline.status == "FAILED")
        if not stopped:
            await self._steering.request_restart(pipeline, only_failed=only_failed)
        if not only_failed and not tasks:
            return Response(status=204, headers=self._headers)
        document = connectors.status(pipeline, self._worker, restarting=restarting)
        return json_response(document, status=202, headers=self._headers)

    async def _restart_task(self, request: Request) -> Response:
        self._task(request, "Unknown task: ")
        self._pipeline(request).request_restart()
        return Response(status=204, headers=_HERE)

    async def _set_level(self, request: Request) -> Response:
        scope = request.query.get("scope", "worker")
        if scope.lower() == "cluster":
            raise RestError(400, "a worker sets only its own levels: send the request to each worker")
        level = (await _object(request)).get("level")
        if not isinstance(level, str):
            raise RestError(400, "Desired 'level' parameter was not specified in request.")
        name = request.match_info["logger"]
        affected = self._loggers.set_level(name, level)
        log.info("loggers %s have the level %s", printable(name), self._loggers.level(name)["level"])
        return json_response(affected)

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _pipeline(self, request: Request) -> PipelineControl:
        name = request.match_info["name"]
        if name not in self._pipelines:
            raise RestError(404, f"Connector {printable(name)} not found")
        return self._pipelines[name]

    def _task(self, request: Request, missing: str = "No status found for task ") -> dict[str, Any]:
        pipeline = self._pipeline(request)
        number = request.match_info["task"]
        state = connectors.task_status(pipeline, self._worker)
        if state is None or number != str(connectors.TASK):
            raise RestError(404, f"{missing}{pipeline.settings.name}-{printable(number)}")
        return state

    def _refusing(self, allowed: str, reason: str) -> _Handler:
        async def handler(request: Request) -> Response:
            values = {}
            if "name" in request.match_info:
                settings = self._pipeline(request).settings
                values = {"name": settings.name, "group": settings.group_id}
            raise RestError(405, reason.format(**values), {"Allow": allowed})

        return handler


def _flag(request: Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def _slashed(path: str) -> str:
    return f"{path}{{slash:/?}}"


def _version() -> str:
    try:
        return version("wideload")
    except PackageNotFoundError:
        return _UNKNOWN


async def _object(request: Request) -> dict[str, object]:
    """The JSON object in the body.

    Raises:
        RestError: the body is too large, or has none.
    """
    try:
        found = json.loads(await _body(request))
    except (ValueError, RecursionError) as exc:
        raise RestError(400, f"the body is not JSON: {printable(str(exc))}") from exc
    if not isinstance(found, dict):
        raise RestError(400, "the body is not a JSON object")
    return found


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.content.iter_chunked(MOST_BODY):
        body += part
        if len(body) > MOST_BODY:
            raise _too_large()
    return body


def _check_length(request: Request) -> None:
    if (request.content_length or 0) > MOST_BODY:
        raise _too_large()


def _too_large() -> RestError:
    return RestError(413, f"the body is over {MOST_BODY:,} bytes")


@middleware
async def _rest_errors(request: Request, handler: _Handler) -> StreamResponse:
    """Answers errors as Connect does, on its paths; on others, errors stay as they are."""
    if request.path.lstrip("/").partition("/")[0] not in _OURS:
        return await handler(request)
    try:
        _check_length(request)
        return await handler(request)
    except RestError as exc:
        return _error(exc.status, exc.message, exc.headers)
    except HTTPException as exc:
        headers = {name: exc.headers[name] for name in ("Allow",) if name in exc.headers}
        return _error(exc.status, f"HTTP {exc.status} {exc.reason}", headers)
    except Exception:  # a defect of ours
        log.exception("request for %s: unexpected error", printable(request.path))
        return _error(500, "unexpected error; the log of the worker has it")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return json_response({"error_code": status, "message": message}, status=status, headers=headers)
