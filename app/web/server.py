"""The web server of the worker, with limits on its connections, and on the host names that it answers to.

Each connection is an open file of the worker, and aiohttp keeps a silent connection for an hour. Without a limit,
anyone could open connections until no files are left for the Kafka clients.

The pages have no login. A page of another host, open in a browser on this network, could read them: it lets its own
name lead to this address (DNS rebinding). The browser then sends that name as `Host`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp.web import AppRunner, Request, RequestHandler, Response, Server, SockSite, StreamResponse, middleware
from faust.web.drivers.aiohttp import Web
from yarl import URL

from transforms.text import printable

MOST_CONNECTIONS = 100
"""If there are more, the server closes the oldest; its requests were answered long ago."""

_IDLE_S = 75.0  # the wait for the first or the next request; Prometheus asks every minute or more often
_YOUNG_S = 1.0  # a request may be on its way: a flood must not close the connection of a probe
_MOST_YOUNG = 400
# Nobody can have such a name in the public DNS: special-use domains (RFC 6761, 6762, 9476), and those of Kubernetes.
_PRIVATE = (".localhost", ".local", ".internal", ".svc", ".home.arpa", ".test")

_Handler = Callable[[Request], Awaitable[StreamResponse]]


def answers_to(host: str | None, names: Collection[str] = ()) -> bool:
    """Whether a request with this `Host` is answered.

    An address, a name without a dot, and a name that cannot exist in the public DNS are; others if they are among
    `names`, or if that has `*`.
    """
    if not host or "*" in names:
        return True
    try:
        name = (URL(f"http://{host}").host or "").rstrip(".").lower()
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_PRIVATE) or name in {each.lower() for each in names}
    return True


class WebServer(Web):
    """Faust's web server, with limits on the number of connections, on their idle time, and on names."""

    logger = logging.getLogger("faust")  # "Starting...", "Stopping..." and the like

    def __init__(self, app: Any, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        names: Collection[str] = app.web_hosts
        self._sockets: Collection[socket.socket] = app.web_sockets

        @middleware
        async def known(request: Request, handler: _Handler) -> StreamResponse:
            host = request.headers.get("Host")
            if answers_to(host, names):
                return await handler(request)
            text = f"this worker does not answer to the host name {printable(host)}; add it to web.hosts\n"
            return Response(status=421, text=text)

        self.web_app.middlewares.append(known)
        self._runner = _Runner(self.web_app, access_log=None, keepalive_timeout=_IDLE_S)

    async def start_server(self) -> None:
        """Serves at the sockets of the app; without any, at its address."""
        if not self._sockets:
            await super().start_server()
            return
        await self._runner.setup()
        for each in self._sockets:
            await SockSite(self._runner, each).start()


class _Runner(AppRunner):
    async def _make_server(self) -> Server:
        server = await super()._make_server()
        add = server.connection_made
        since_s: dict[RequestHandler, float] = {}

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            add(handler, transport)
            now_s = since_s[handler] = time.monotonic()
            live = [each for each in since_s if each.transport is not None and not each.transport.is_closing()]
            for each in since_s.keys() - set(live):
                del since_s[each]
            for number, oldest in enumerate(live[: max(0, len(live) - MOST_CONNECTIONS)]):
                young = now_s - since_s[oldest] < _YOUNG_S
                if oldest.transport is not None and (not young or len(live) - number > _MOST_YOUNG):
                    oldest.transport.abort()

        server.connection_made = connection_made  # type: ignore[method-assign]
        return server
