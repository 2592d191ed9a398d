"""The code of the jobs as a zip, for `spark-submit --py-files`: `python -m wideload.jobs.archive jobs.zip`."""

from __future__ import annotations

from app.local.jobs_archive import main, write

__all__ = ["main", "write"]

if __name__ == "__main__":
    raise SystemExit(main())
