"""Records that cannot be restored: why, what stands in their row, and how a task fails because of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jobs.driver.failures import JobFailedError
from jobs.records.schemas import columns
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.errors import (
    ConfigurationError,
    EncryptionError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    SignatureError,
    TransformError,
)
from transforms.formats import FormatName
from transforms.record import Record, RecordLike
from transforms.reference import KEY, VALUE, is_reference

OnError = Literal["fail", "null", "keep"]
"""What happens to a record whose payload is missing, refused or corrupt, or whose reference is malformed.

`fail`: the task fails, and its message names the record. `null`: key and value become null if they were references,
and `inflate_error` says why. `keep`: the record stays as it is in the log, and `inflate_error` says why; `split` makes
dead-letter records of these. If the store itself fails, the task always fails: that is not the record's fault.
"""

ERROR_COLUMN = "inflate_error"

ERROR = columns("which string, state string, detail string")
"""The column `inflate_error`: a `Problem`, or null."""

RECORD_ERRORS = (TransformError, PayloadNotFoundError, ReferenceRefusedError)
"""The errors of a record's own; any other error of a store is the store's."""

_STATES: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((PayloadNotFoundError,), "missing"),
    ((EncryptionError, ReferenceRefusedError, SignatureError), "refused"),
    ((PayloadTooLargeError,), "too-large"),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reference did not become a value, and never will.

    Attributes:
        which: `value` or `key`.
        state: `malformed`, `refused`, `missing`, `too-large`, or what differs: `size`, `checksum`, `compression`,
            `encryption`.
        detail: for people.
    """

    which: str
    state: str
    detail: str

    @classmethod
    def of(cls, which: str, error: Exception) -> Problem:
        """The problem that one of `RECORD_ERRORS` says."""
        if isinstance(error, PayloadCorruptError):
            return cls(which, error.what, str(error))
        state = next((state for kinds, state in _STATES if isinstance(error, kinds)), "malformed")
        return cls(which, state, str(error))


def named(topic: str, partition: int, offset: int) -> str:
    """A record, for people."""
    return f"topic {topic} partition {partition} offset {offset}"


def failed(topic: str, partition: int, offset: int, problem: Problem) -> JobFailedError:
    """The error that a task fails with: it says which record it was, and why."""
    where = named(topic, partition, offset)
    return JobFailedError(f"{where}: the {problem.which} cannot be restored: {problem.detail}")


def nulled(record: RecordLike, problem: Problem, reference_format: FormatName) -> Record:
    """What stands in the row of a record that cannot be restored: nulls in place of references."""
    refers = any(name in (VALUE.flag, BAKDATA_FLAG) for name, _ in record.headers)
    # A value with bakdata's mark is neither the value, nor without it what the log has.
    if problem.which == "value" or reference_format == "bakdata-flag":
        refers = True
    key = None if is_reference(record.headers, KEY) else record.key
    return Record(key, None if refers else record.value, record.headers, record.timestamp)


def require_one_of(name: str, found: object, allowed: Iterable[str]) -> None:
    """Refuses an argument with another value, by a ConfigurationError."""
    allowed = list(allowed)
    if found not in allowed:
        raise ConfigurationError(name, f"found {found!r}, allowed are {', '.join(allowed)}")


def require_at_least(name: str, found: int, least: int) -> None:
    """Refuses an argument below `least`, by a ConfigurationError."""
    if found < least:
        raise ConfigurationError(name, f"found {found}, allowed is {least} or more")
