"""Records that cannot be restored: why, what stands in their row, and how a task fails because of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.driver.failures import JobFailedError
from jobs.records.schemas import columns
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.errors import PayloadStoreError
from transforms.record import Record, RecordLike
from transforms.reference import KEY, VALUE, is_reference

__all__ = ["ERROR", "ERROR_COLUMN", "OnError", "Problem", "failed", "kept"]

OnError = Literal["fail", "null", "keep"]
"""What happens to a record whose payload is missing, refused or corrupt, or whose reference is malformed.

`fail`: the task fails, and its message names the record. `null`: key and value become null if they were references,
and `inflate_error` says why. `keep`: the record stays as it is in the log, and `inflate_error` says why; `split` makes
dead letters of these. If the store itself fails, the task always fails: that is not the record's fault.
"""

ERROR_COLUMN = "inflate_error"

ERROR = columns("which string, state string, detail string")
"""The column `inflate_error`: a `Problem`, or null."""


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


def failed(topic: str, partition: int, offset: int, error: Problem | PayloadStoreError) -> JobFailedError:
    """The error that a task fails with: it says which record it was, and why."""
    where = f"topic {topic} partition {partition} offset {offset}"
    if isinstance(error, Problem):
        return JobFailedError(f"{where}: the {error.which} cannot be restored: {error.detail}")
    return JobFailedError(f"{where}: the payload store failed: {error}")


def kept(record: RecordLike, logged: RecordLike, on_error: OnError, *, all_values: bool) -> RecordLike:
    """What stands in the row of a record that cannot be restored.

    Args:
        record: out of its wrapper, if it had one.
        logged: as it is in the log.
        on_error: `null` or `keep`.
        all_values: whether the value becomes null whatever the headers say.
    """
    if on_error == "keep":
        return logged
    refers = all_values or any(name in (VALUE.flag, BAKDATA_FLAG) for name, _ in record.headers)
    key = None if is_reference(record.headers, KEY) else record.key
    return Record(key, None if refers else record.value, record.headers, record.timestamp)
