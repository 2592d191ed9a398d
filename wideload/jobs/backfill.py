"""A topic copied to another one, with references in place of large values: `python -m wideload.jobs.backfill`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this directory on the path instead of its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from jobs.backfill import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
