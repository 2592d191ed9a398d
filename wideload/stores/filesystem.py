"""Payloads in a directory."""

from __future__ import annotations

from stores.filesystem import FilesystemStore

__all__ = ["FilesystemStore"]
