"""Whether executors have what a program needs there."""

from __future__ import annotations

from jobs.executors import NEEDS, require_executors

__all__ = ["NEEDS", "require_executors"]
