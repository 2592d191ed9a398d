"""Payloads in this process, for tests."""

from __future__ import annotations

from stores.memory import MemoryStore

__all__ = ["MemoryStore"]
