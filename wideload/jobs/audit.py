"""References whose payloads are missing, differ, or expire first: `python -m wideload.jobs.audit`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this directory on the path instead of its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from jobs.audit import audit, main

__all__ = ["audit", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
