"""Payloads in a folder."""

from __future__ import annotations

from stores.filesystem import FilesystemStore

__all__ = ["FilesystemStore"]
