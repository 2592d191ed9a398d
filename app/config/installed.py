"""Packages of optional extras: whether they are installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

from transforms.errors import ConfigurationError

WORKER = ("click", "faust", "prometheus_client", "rich")
"""The modules of the extra `worker`, which the command `wideload` needs, except `wideload job`."""


def require(what: str, modules: Iterable[str], extra: str) -> None:
    """Checks that the modules of an extra are installed; imports none of them.

    Args:
        what: what needs them, for the error.
        modules: their names.
        extra: the name of the extra.

    Raises:
        ConfigurationError: one of them is not installed.
    """
    for module in modules:
        # `find_spec` fails for faust once it is imported: a lazy module has taken its place.
        if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
            raise ConfigurationError(what, f"{module} is not installed; run: pip install 'wideload[{extra}]'")
