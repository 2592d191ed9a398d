"""Answers by which brokers may mean a name over its limit (seed 003): they name the error, and not the name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transforms.identifiers import INVALID_REQUEST

__all__ = ["refusal"]

_LAST = 133  # of the errors of Kafka 4.1 (`Errors.java`); RESOURCE_IDENTIFIER_TOO_LARGE will have a later number


def refusal(response: Any) -> int | None:
    """The error in a response that may mean a name over its limit; None if it has none.

    Args:
        response: of any request. An error of a partition is not looked at: requests with partitions have other names.
    """
    return next((code for code in _codes(response) if code == INVALID_REQUEST.number or code > _LAST), None)


def _codes(response: Any) -> Iterator[int]:
    yield getattr(response, "error_code", 0)
    for _, code, *_ in getattr(response, "topic_errors", ()):  # of topics that were to be created
        yield code
