"""A topic of whole values to Parquet or Delta: `python -m wideload.jobs.ingest`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this directory on the path instead of its parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from jobs.ingest import IngestSettings, main, read, records, run

__all__ = ["IngestSettings", "main", "read", "records", "run"]

if __name__ == "__main__":
    raise SystemExit(main())
