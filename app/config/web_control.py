"""The keys of who may steer a worker through its web server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from transforms.errors import ConfigurationError

_ENABLE, _TOKEN = "web.control.enable", "web.control.token"
_ALLOWED = re.compile(r"[!-~]{16,}")  # what a header can carry


def check_web_control(worker: Mapping[str, object]) -> None:
    """Checks that nobody can steer the worker without a token that is hard to guess.

    Raises:
        ConfigurationError: the token is missing, or cannot be one.
    """
    token = worker[_TOKEN]
    if token is None and worker[_ENABLE]:
        raise ConfigurationError(_TOKEN, f"is missing; {_ENABLE} = true requires it")
    if token is not None and not _ALLOWED.fullmatch(str(token)):
        raise ConfigurationError(
            _TOKEN,
            f"found {len(str(token))} characters, allowed are 16 or more random ASCII characters without spaces, for "
            "example from `openssl rand -hex 32`",
        )
