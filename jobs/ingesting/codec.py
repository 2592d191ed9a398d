"""What reads the values of one schema of a registry."""

from __future__ import annotations

from typing import Protocol

from transforms.errors import TransformError

__all__ = ["BadValueError", "Codec"]


class BadValueError(TransformError):
    """The value cannot be read; the text is the end of a sentence, and has nothing of the value in it."""


class Codec(Protocol):
    """Reads the values of one schema of the registry."""

    def plain(self, content: bytes) -> bytes:
        """The content in the table's schema.

        Raises:
            BadValueError: it is not content of its schema.
        """
