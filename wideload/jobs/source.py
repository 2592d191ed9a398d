"""The data source `wideload`: topics with references and chunks, read as whole values."""

from __future__ import annotations

from jobs.source import WideloadDataSource, read_available

__all__ = ["WideloadDataSource", "read_available"]
