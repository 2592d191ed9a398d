"""The version of this release, as in `pyproject.toml`."""

from __future__ import annotations

VERSION = "0.1.0"
