"""The URL of a store's server: what it may be, and how messages show it."""

from __future__ import annotations

import re

from transforms.errors import ConfigurationError, shown
from transforms.masking import HIDDEN, masked

_SERVER = re.compile(
    r"(?P<scheme>https?)://(?P<host>[\w.-]+|\[[0-9a-f:.]+(%25[\w.-]+)?\])(:(?P<port>\d{1,5}))?(?P<path>(/[a-z0-9_.~-]+)*)/*",
    re.IGNORECASE,
)
_PORTS = range(1, 65_536)


def check_endpoint(name: str, endpoint: str, path: str = "", allowed: str = "and nothing else", of: str = "") -> str:
    """`endpoint` without slashes at its end, and with its scheme in lower case.

    Args:
        name: of the key.
        endpoint: its value.
        path: a pattern for what may stand behind host and port.
        allowed: that pattern in words.
        of: what has the value, if it is not the key.

    Raises:
        ConfigurationError: it is not `http://` or `https://`, host and port, and such a path.
    """
    found = _SERVER.fullmatch(endpoint)
    if found is None or not re.fullmatch(path, found["path"]) or int(found["port"] or 80) not in _PORTS:
        raise ConfigurationError(
            name,
            f"{of or 'found'} {quoted_endpoint(endpoint)}, allowed is http:// or https://, host and port, {allowed}",
        )
    return found["scheme"].lower() + endpoint[found.end("scheme") :].rstrip("/")


def quoted_endpoint(endpoint: str) -> str:
    """The endpoint for a message, without user and password; one from elsewhere is hidden."""
    if type(endpoint) is not str:
        return repr(endpoint)
    return shown(masked(re.sub(r"^(\w+://)?.*@", rf"\1{HIDDEN}@", endpoint, flags=re.DOTALL)))
