"""How a command ends that does not end well: a sentence on stderr, and its exit status."""

from __future__ import annotations

import argparse
import sys

from transforms.errors import ConfigurationError, WideloadError

_INTERRUPTED = 130


def failed(job: str, error: WideloadError, arguments: argparse.Namespace) -> int:
    """Says what was wrong; returns the exit status: 2 if the user can set it right, else 1.

    Raises:
        WideloadError: the error itself, with `--verbose`.
    """
    if getattr(arguments, "verbose", False):
        raise error
    print(f"{job}: {error}", file=sys.stderr)
    return 2 if isinstance(error, ConfigurationError) else 1


def interrupted(job: str, said: str) -> int:
    """Says what is true after SIGINT; returns the exit status."""
    print(f"{job}: interrupted; {said}", file=sys.stderr)
    return _INTERRUPTED
