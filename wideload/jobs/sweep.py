"""Payloads that no record refers to any more, and their removal: `python -m wideload.jobs.sweep`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this directory on the path instead of its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from jobs.sweep import main, orphans

__all__ = ["main", "orphans"]

if __name__ == "__main__":
    raise SystemExit(main())
