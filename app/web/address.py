"""The address of the web server: whether it can be used, and whether this worker uses it already."""

from __future__ import annotations

import errno
import http.client
import json
import socket
from http import HTTPStatus

from app.config.settings import Settings
from transforms.errors import ConfigurationError

_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_ANSWER_S = 3.0
_ANSWER_BYTES = 16 * 1024 * 1024


def check_address(settings: Settings) -> None:
    """Checks that the web server can use its address.

    Raises:
        ConfigurationError: see `listening`.
    """
    for each in listening(settings):
        each.close()


def listening(settings: Settings) -> list[socket.socket]:
    """Sockets for the web server, which have the address from now on: one for each address of a name.

    Raises:
        ConfigurationError: `web.bind` is not an address of this machine, or `web.port` cannot be used.
    """
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        found = socket.getaddrinfo(settings.web_bind, settings.web_port, type=socket.SOCK_STREAM)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                sockets.append(socket.create_server(address, family=family))
            except OSError as exc:
                if exc.errno not in _NO_ADDRESS:
                    raise
                lacking = exc  # a name may have an address that this machine lacks
        if lacking is not None and not sockets:
            raise lacking
    except (OSError, UnicodeError) as exc:
        for each in sockets:
            each.close()
        # All other reasons concern the port: another process uses it, or this user may not.
        if not isinstance(exc, OSError) or isinstance(exc, socket.gaierror) or exc.errno in _NO_ADDRESS:
            raise ConfigurationError(
                "web.bind",
                f"found {settings.web_bind!r}, which is not an address of this machine; 127.0.0.1 serves this machine "
                "only, 0.0.0.0 all machines that can reach it",
            ) from exc
        raise ConfigurationError(
            "web.port",
            f"{settings.web_bind}:{settings.web_port} cannot be used: {exc.strerror}; stop the process that uses it, "
            "or choose another port",
        ) from exc
    return sockets


def runs_already(settings: Settings) -> bool:
    """Whether a worker answers at the address that has the pipelines and the groups of these settings. Blocks."""
    connection = http.client.HTTPConnection(settings.web_bind, settings.web_port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/pipelines")
        response = connection.getresponse()
        answer = json.loads(response.read(_ANSWER_BYTES)) if response.status == HTTPStatus.OK else []
        found = {(each["name"], each["group_id"]) for each in answer}
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError, RecursionError):
        return False
    finally:
        connection.close()
    return found == {(each.name, each.group_id) for each in settings.pipelines}
