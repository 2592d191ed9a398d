"""References of a DataFrame as values."""

from __future__ import annotations

from jobs.inflate import ERROR_COLUMN, OnError, inflate, split

__all__ = ["ERROR_COLUMN", "OnError", "inflate", "split"]
