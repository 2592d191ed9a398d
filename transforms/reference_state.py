"""The state of a reference, according to its record, the store and the store's rules."""

from __future__ import annotations

from typing import NamedTuple

from transforms.found_references import FoundReference
from transforms.keyring import TAG_BYTES

STATES = ("ok", "malformed", "refused", "missing", "size", "checksum", "compression", "expiring", "unknown")
"""The states of a reference.

`ok`: its payload exists. `malformed`: it cannot be read. `refused`: its path is not below the store's root, or its
signature is missing or wrong. `missing`: there is no payload. `size`, `checksum`, `compression`: the payload differs
from the reference; the last two show only if payloads are read. `expiring`: a rule of the store deletes the payload
before Kafka deletes the record. `unknown`: the store failed.
"""

_MAX_BYTES = "large.message.max.bytes"


class Answer(NamedTuple):
    """The store's answer for a path.

    Attributes:
        state: `there`, `missing`, `refused` or `unknown`.
        stored: bytes in the store; None if unknown.
        published_us: when they were stored, in microseconds since 1970; None if unknown.
        detail: why it is not `there`.
    """

    state: str
    stored: int | None = None
    published_us: int | None = None
    detail: str | None = None


class Lifetimes(NamedTuple):
    """How long a payload and its record stay, in microseconds since 1970.

    Attributes:
        expires_us: when a rule of the store deletes the payload; None for never.
        record_until_us: when Kafka may delete the record; None for never.
        rule: the rule of the store, for people.
    """

    expires_us: int | None = None
    record_until_us: int | None = None
    rule: str | None = None


def state(
    reference: FoundReference,
    answer: Answer,
    fault: tuple[str, str] | None,
    lifetimes: Lifetimes,
    max_bytes: int,
) -> tuple[str, str | None]:
    """The first of `STATES` that applies to a reference, and why.

    Args:
        reference: as its record has it.
        answer: for its path.
        fault: the state of a payload that was read and is not the one of the reference, and why; else None.
        lifetimes: of payload and record.
        max_bytes: `large.message.max.bytes` of the readers, which accept no larger payload.
    """
    if reference.error is not None:
        return "malformed" if reference.path is None else "refused", reference.error
    if answer.state != "there":
        return answer.state, answer.detail
    return fault or _of_there(reference, answer, lifetimes, max_bytes)


def _of_there(
    reference: FoundReference, answer: Answer, lifetimes: Lifetimes, max_bytes: int
) -> tuple[str, str | None]:
    stored, tag = answer.stored or 0, 0 if reference.encryption is None else TAG_BYTES
    if reference.size is not None:
        said = reference.size + tag
        # A payload is stored compressed only if that makes it smaller.
        if stored != said if reference.compression is None else stored > said:
            return "size", f"the store has {stored} bytes, the reference says {said}"
    largest = max(stored - tag, reference.size or 0)
    if largest > max_bytes:
        return "size", f"{largest} bytes exceed {_MAX_BYTES} of the readers, which is {max_bytes}"
    expires_us, until_us, rule = lifetimes
    if expires_us is not None and (until_us is None or expires_us < until_us):
        return "expiring", rule
    return "ok", None
