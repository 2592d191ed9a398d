"""The door of the worker's pages: how many may stand in it, and for how long.

Each connection is an open file of the worker, and aiohttp lets one that says nothing stay for an hour. Whoever reaches
the port could so take from the worker the files that its clients need.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp.web import AppRunner, Server
from faust.web.drivers.aiohttp import Web

__all__ = ["MOST_CONNECTIONS", "WebServer"]

MOST_CONNECTIONS = 100
"""Where there are more, the oldest is closed; whoever asks something has long been answered then."""

_IDLE_S = 75.0  # for a request, the first or the next; Prometheus asks each minute, if not more often


class WebServer(Web):
    """Faust's web server, with bounds for those who connect to it."""

    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._runner = _Runner(self.web_app, access_log=None, keepalive_timeout=_IDLE_S)


class _Runner(AppRunner):
    async def _make_server(self) -> Server:
        server = await super()._make_server()
        enter = server.connection_made

        def connection_made(handler: Any, transport: asyncio.Transport) -> None:
            enter(handler, transport)
            inside = [each for each in server._connections.values() if not each.is_closing()]  # noqa: SLF001
            for each in inside[: max(0, len(inside) - MOST_CONNECTIONS)]:
                each.abort()

        server.connection_made = connection_made  # type: ignore[method-assign]
        return server
