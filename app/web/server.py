"""The web server of the worker's pages, with limits on its connections.

Each connection is an open file of the worker, and aiohttp keeps a silent connection for an hour. Without a limit,
anyone could open connections until no files are left for the Kafka clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp.web import AppRunner, RequestHandler, Server
from faust.web.drivers.aiohttp import Web

__all__ = ["MOST_CONNECTIONS", "WebServer"]

MOST_CONNECTIONS = 100
"""If there are more, the server closes the oldest; its requests were answered long ago."""

_IDLE_S = 75.0  # the wait for the first or the next request; Prometheus asks every minute or more often


class WebServer(Web):
    """Faust's web server, with limits on the number of connections and on their idle time."""

    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._runner = _Runner(self.web_app, access_log=None, keepalive_timeout=_IDLE_S)


class _Runner(AppRunner):
    async def _make_server(self) -> Server:
        server = await super()._make_server()
        add = server.connection_made

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            add(handler, transport)
            transports = (each.transport for each in server.connections)
            live = [each for each in transports if each is not None and not each.is_closing()]
            for oldest in live[: max(0, len(live) - MOST_CONNECTIONS)]:
                oldest.abort()

        server.connection_made = connection_made  # type: ignore[method-assign]
        return server
