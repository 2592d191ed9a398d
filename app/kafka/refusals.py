"""Answers by which brokers may mean a name over its limit (KIP-1233): they return an error, but not the name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient

from app.config.naming import check_name
from app.kafka.gate import Call, Gate, Place, Send
from transforms.errors import ConfigurationError
from transforms.identifiers import INVALID_REQUEST, Kind

_LAST = 136  # of the errors of Kafka 4.4 (`Errors.java`); RESOURCE_IDENTIFIER_TOO_LARGE will have a later number


class Refusals:
    """Keeps the last such answer to a client.

    Args:
        client: not started.

    Attributes:
        code: the error of the answer; None for none.
    """

    def __init__(self, client: AIOKafkaConsumer | AIOKafkaAdminClient) -> None:
        self.code: int | None = None
        Gate.of(client).set(Place.REFUSALS, {object: self._seen})

    async def _seen(self, _: Call, send: Send) -> Any:
        response = await send()
        self.code = refusal(response) or self.code
        return response


def refusal(response: Any) -> int | None:
    """The error in a response that may mean a name over its limit; None if there is none.

    Args:
        response: to any request. Errors of partitions are ignored: OffsetCommit and TxnOffsetCommit have the group id,
            and answer by partition, but brokers refuse the id before, when its coordinator is looked up.
    """
    return next((code for code in _codes(response) if code == INVALID_REQUEST.number or code > _LAST), None)


def _codes(response: Any) -> Iterator[int]:
    yield getattr(response, "error_code", 0)
    for _, code, *_ in getattr(response, "topic_errors", ()):  # of topics that were to be created
        yield code


def answer_text(code: int) -> str:
    """The text for such an error."""
    return str(INVALID_REQUEST) if code == INVALID_REQUEST.number else f"error {code}, which is newer than this client"


def newer_text(code: int | None) -> str:
    """A suffix for an error of aiokafka, which does not report the number of an error that it does not know."""
    return "" if code is None or code == INVALID_REQUEST.number else f"; the brokers answer {answer_text(code)}"


def refused_name(kind: Kind, text: str, key: str, code: int | None) -> ConfigurationError | None:
    """The refusal of a name that is over its limit; None if the error has another reason.

    Args:
        kind: the kind of the name.
        text: the name.
        key: the property or option that the user must change.
        code: the error of `Refusals`.
    """
    if code is None:
        return None
    try:
        check_name(kind, text, key)
    except ConfigurationError as exc:
        return enforced(exc, f"the brokers enforce the limit: they answer {answer_text(code)}")
    return None


def enforced(error: ConfigurationError, why: str) -> ConfigurationError:
    """The error of a name over its limit, where brokers enforce the limit; `why` is how this is known."""
    found = ConfigurationError(error.key, f"{why}; {error.reason.rpartition(', or set ')[0]}", pipeline=error.pipeline)
    found.__cause__ = error.__cause__
    return found
