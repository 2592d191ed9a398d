"""What reads the values of one schema of a registry, and what a failure of it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from transforms.errors import TransformError, WideloadError

__all__ = ["MOST_FIELDS", "BadValueError", "Codec", "unusable"]

MOST_FIELDS = 10_000
"""The most fields of a schema, with those of a shared type counted wherever it is used: a few types make billions."""


class BadValueError(TransformError):
    """The value cannot be read; the text is the end of a sentence, and has nothing of the value in it."""


class Codec(Protocol):
    """Reads the values of one schema of the registry."""

    def plain(self, content: bytes) -> bytes:
        """The content in the table's schema.

        Raises:
            BadValueError: it is not content of its schema. The caller treats any other error in the same way.
        """


@contextmanager
def unusable(what: str) -> Iterator[None]:
    """Makes a bad value of whatever a schema, which a registry may have from anyone, does to a library.

    A package that is missing, and an error of the operating system, are no fault of the schema and remain as they are.

    Args:
        what: the kind of the schema, for the message.

    Raises:
        BadValueError: the schema cannot be used.
    """
    try:
        yield
    except (WideloadError, ImportError, OSError):
        raise
    except Exception as exc:
        raise BadValueError(f"whose {what} cannot be used: {type(exc).__name__}") from exc
