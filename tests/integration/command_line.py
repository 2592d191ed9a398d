"""The command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.forks import run


def wideload(
    *arguments: object, stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    command = [sys.executable, "-m", "app.cli", *map(str, arguments)]
    return run(command, environ={**os.environ, **(environ or {})}, given=stdin)


def lines(done: subprocess.CompletedProcess[str], status: int = 0) -> list[dict[str, Any]]:
    """The JSON lines of a command that ended with `status`."""
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
