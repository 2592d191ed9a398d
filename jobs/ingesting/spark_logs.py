"""The batches that Spark has noted: planned and finished ones in a checkpoint, written ones in a Parquet output.

Spark gives each batch a number, and each log a file for each batch. Each file begins with the line `v1`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from jobs.driver.jvm import Files
from jobs.reading.ranges import Positions, positions_of
from transforms.errors import ConfigurationError

NONE = -1
"""The number of the last batch where there is none."""

REBUILD = "or start over: move the output away and use --rebuild"

_NUMBERED = re.compile(r"(\d+)(?:\.compact)?")
_VERSION = "v1"


class DamagedError(ConfigurationError):
    """A file of a checkpoint or of a log is missing, cannot be read, or does not hold what was written there.

    Attributes:
        what: the file, and what is wrong with it.
    """

    def __init__(self, what: str) -> None:
        super().__init__("--checkpoint", f"{what}; restore a complete copy of the checkpoint, {REBUILD}")
        self.what = what


@dataclass(frozen=True, slots=True)
class Batches:
    """What a checkpoint says of its query.

    Attributes:
        planned: the last batch with offsets; `NONE` before the first.
        done: the last batch that the query noted as finished; `NONE` before the first.
        query: the id of the query, by which a Delta table knows it; empty before the first batch.
    """

    planned: int
    done: int
    query: str

    @property
    def written(self) -> int:
        """The last batch that the output has for certain: a batch is planned when the one before it is finished."""
        return max(self.done, self.planned - 1)


def batches(files: Files, checkpoint: str, *, may_lose: bool) -> Batches:
    """The batches of a checkpoint.

    Args:
        files: the files of the session.
        checkpoint: the directory.
        may_lose: whether a topic may have been created again or deleted, so that its offsets may go back or end.

    Raises:
        DamagedError: a file that Spark will read is damaged or missing.
    """
    last, done = (newest(files, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
    if done > last:
        raise DamagedError(f"{checkpoint} is damaged: batch {done} is finished, and its offsets are missing")
    if last == NONE:
        return Batches(NONE, NONE, "")
    # Spark begins with these: the last batch, and where the one before it ended.
    before: Positions = {}
    for number in range(max(last - 1, 0), last + 1):
        ends = _end(files, checkpoint, number)
        for place, at in before.items():
            if not may_lose and ends.get(place, -1) < at:
                raise DamagedError(
                    f"{checkpoint}/offsets/{number} is damaged: it ends topic {place[0]} partition {place[1]} at "
                    f"offset {ends.get(place, 0):,}, and the batch before it ended at {at:,}"
                )
        before = ends
    found = Batches(last, done, _query(files, f"{checkpoint}/metadata"))
    # Spark reads it in any case. If it is missing, Spark asks Kafka again.
    if _first(files, checkpoint) is None and found.written == NONE:
        raise DamagedError(f"{checkpoint}/sources/0/0 is missing; it contains the start of the first batch")
    if done != NONE:
        _entries(files, f"{checkpoint}/commits/{done}", 1)
    return found


def newest(files: Files, folder: str) -> int:
    """The highest number of a batch in the directory of a log; `NONE` if there is none."""
    return max(_numbers(files, folder), default=NONE)


def planned(files: Files, checkpoint: str) -> tuple[int, bool]:
    """The last batch with offsets, and whether it is not finished yet; `NONE` before the first."""
    last = newest(files, f"{checkpoint}/offsets")
    return last, last != newest(files, f"{checkpoint}/commits")


def offsets(files: Files, checkpoint: str, number: int) -> tuple[Positions, Positions]:
    """Where a planned batch begins and ends; partitions that are new in it are only in the second.

    Raises:
        DamagedError: that cannot be read.
    """
    begin = _first(files, checkpoint) if number == 0 else _end(files, checkpoint, number - 1)
    return begin or {}, _end(files, checkpoint, number)


def names_files(files: Files, log: str) -> bool:
    """Whether the log of a Parquet output names any file.

    Raises:
        DamagedError: a file of the log cannot be read.
    """
    newest_first = sorted(_numbers(files, log).items(), reverse=True)
    return any(line.startswith("{") for _, name in newest_first for line in _lines(files, f"{log}/{name}"))


def check_list(files: Files, log: str) -> None:
    """Makes sure that readers find each file that the log of a Parquet output names.

    They begin with the last batch whose file has the list of all batches before it, and need each batch behind it.

    Raises:
        DamagedError: a file of the log is missing, cannot be read, or does not hold what Spark writes there.
    """
    names = _numbers(files, log)
    first = max((number for number, name in names.items() if name.endswith(".compact")), default=0)
    for number in range(first, max(names, default=NONE) + 1):
        path = f"{log}/{names.get(number, number)}"
        if number not in names:
            raise DamagedError(f"{path} is missing")
        lines = _lines(files, path)
        if next(lines, None) != _VERSION or not all(map(_names_file, lines)):
            raise _odd(path)


def text(files: Files, path: str) -> str | None:
    """The text of a file; None if there is no such file.

    Raises:
        DamagedError: it cannot be read.
    """
    with _readable(path):
        return files.read(path)


def _lines(files: Files, path: str) -> Iterator[str]:
    with _readable(path):
        yield from files.lines(path)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as exc:
        raise DamagedError(f"{path} is damaged: it is not text") from exc
    except Py4JJavaError as exc:
        reason = str(exc.java_exception.getMessage()).partition("\n")[0]
        raise DamagedError(f"{path} cannot be read: {reason}") from exc


def _odd(path: str) -> DamagedError:
    return DamagedError(f"{path} is damaged: it is not what Spark writes")


def _numbers(files: Files, folder: str) -> dict[int, str]:
    found = ((_NUMBERED.fullmatch(name), name) for name in files.names(folder))
    return {int(match[1]): name for match, name in found if match}


def _entries(files: Files, path: str, count: int) -> list[dict[str, Any]]:
    """The objects in a file of a log, one a line behind that with the version."""
    found = text(files, path)
    if found is None:
        raise DamagedError(f"{path} is missing, and Spark needs it to continue")
    version, *lines = found.splitlines() or [""]
    try:
        entries = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        entries = []
    if version != _VERSION or len(entries) != count or not all(isinstance(each, dict) for each in entries):
        raise _odd(path)
    return entries


def _end(files: Files, checkpoint: str, number: int) -> Positions:
    path = f"{checkpoint}/offsets/{number}"
    return _positions(path, _entries(files, path, 2)[1])


def _first(files: Files, checkpoint: str) -> Positions | None:
    """Where Spark's Kafka source began, as it noted that itself; None if the file is missing."""
    path = f"{checkpoint}/sources/0/0"
    found = text(files, path)
    if found is None:
        return None
    try:
        return _positions(path, json.loads(found[1:].removeprefix(f"{_VERSION}\n")))  # it begins with a zero byte
    except (ValueError, RecursionError) as exc:
        raise _odd(path) from exc


def _positions(path: str, found: Any) -> Positions:
    try:
        positions = positions_of(found)
    except (ValueError, AttributeError) as exc:
        raise _odd(path) from exc
    if not all(type(at) is int and at >= 0 for at in positions.values()):
        raise _odd(path)
    return positions


def _query(files: Files, path: str) -> str:
    try:
        return str(uuid.UUID(json.loads(text(files, path) or "")["id"]))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise DamagedError(f"{path} is missing or damaged; it names the query") from exc


def _names_file(line: str) -> bool:
    """Whether a line is an entry of the list: a file that was written, or one that is deleted."""
    try:
        found = json.loads(line)
        return isinstance(found["path"], str) and type(found["size"]) is int and found["action"] in ("add", "delete")
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
