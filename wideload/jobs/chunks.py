"""Chunks of a DataFrame as messages."""

from __future__ import annotations

from jobs.chunks import CHUNK_MESSAGE_ID, INCOMPLETE, assemble, incomplete

__all__ = ["CHUNK_MESSAGE_ID", "INCOMPLETE", "assemble", "incomplete"]
