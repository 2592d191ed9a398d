"""References of a DataFrame as values."""

from __future__ import annotations

from jobs.inflate import inflate, split
from jobs.records.problems import ERROR_COLUMN, OnError

__all__ = ["ERROR_COLUMN", "OnError", "inflate", "split"]
