"""The entry point of the command `wideload`, where click may not be installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.config.installed import require
from transforms.errors import ConfigurationError

_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, as `app.cli.main` does; without click, it prints what to install."""
    try:
        require("wideload", ("click",), "worker")
    except ConfigurationError as exc:
        print(exc, file=sys.stderr)
        sys.exit(_USAGE)
    from app.cli import main as run

    run(arguments)
