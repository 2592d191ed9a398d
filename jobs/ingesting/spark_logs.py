"""The batches that Spark has noted: planned and finished ones in a checkpoint, written ones in a Parquet output.

Spark gives each batch a number, and each log a file for each batch. Each file begins with the line `v1`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError

from jobs.driver.jvm import Files
from jobs.reading.ranges import Positions
from transforms.errors import ConfigurationError

__all__ = [
    "NONE",
    "START_FILE",
    "Batches",
    "CorruptLogError",
    "batches",
    "check_list",
    "end",
    "first_text",
    "names_files",
    "newest",
    "planned",
    "text",
]

NONE = -1
"""The number of the last batch where there is none."""

START_FILE = "wideload-start.json"
"""The file of a checkpoint with the offsets where its first batch begins, if the job itself plans batches, or did."""

_COMPACT = ".compact"
_NUMBERED = re.compile(rf"(\d+)(?:{re.escape(_COMPACT)})?")
_VERSION = "v1"
_FIRST_FILE = "sources/0/0"


class CorruptLogError(ConfigurationError):
    """A file of a log cannot be read, or does not hold what Spark writes there."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What a checkpoint says of its query.

    Attributes:
        planned: the last batch with offsets; `NONE` before the first.
        done: the last batch that the query noted as finished; `NONE` before the first.
        query: the id of the query, by which a Delta table knows it; None before the first batch.
    """

    planned: int
    done: int
    query: str | None

    @property
    def written(self) -> int:
        """The last batch that the output has for certain: a batch is planned when the one before it is finished."""
        return max(self.done, self.planned - 1)


def batches(files: Files, checkpoint: str, *, may_lose: bool = False) -> Batches:
    """The batches of a checkpoint.

    Args:
        files: the files of the session.
        checkpoint: the folder.
        may_lose: whether a topic may have been made anew or deleted, so that its offsets may go back or end.

    Raises:
        CorruptLogError: a file that Spark will read is damaged or missing.
    """
    offsets, commits = f"{checkpoint}/offsets", f"{checkpoint}/commits"
    found = Batches(newest(files, offsets), newest(files, commits), None)
    if found.done > found.planned:
        raise CorruptLogError(
            "--checkpoint", f"{checkpoint} is damaged: batch {found.done} is finished, and its offsets are missing"
        )
    if found.planned == NONE:
        return found
    # Spark begins with these: the last batch, and where the one before it ended.
    ends: Positions = {}
    for number in range(max(found.planned - 1, 0), found.planned + 1):
        path = f"{offsets}/{number}"
        lines = _lines(files, path, lambda lines: _is_plan(*lines))
        now = _offsets(lines[1]) or {}
        for (topic, partition), end in ends.items():
            if not may_lose and now.get((topic, partition), -1) < end:
                raise CorruptLogError(
                    "--checkpoint",
                    f"{path} is damaged: it ends topic {topic} partition {partition} at offset "
                    f"{now.get((topic, partition), 0):,}, and the batch before it ended at {end:,}",
                )
        ends = now
    told = found.written != NONE or files.exists(f"{checkpoint}/{START_FILE}")
    _check_first(files, checkpoint, needed=not told)
    if found.done != NONE:
        _lines(files, f"{commits}/{found.done}", lambda lines: len(lines) == 1 and _is_json(lines[0]))
    query = _query(files, f"{checkpoint}/metadata")
    return Batches(found.planned, found.done, query)


def newest(files: Files, folder: str) -> int:
    """The highest number of a batch in the folder of a log; `NONE` if there is none."""
    return max(_numbers(files, folder), default=NONE)


def planned(files: Files, checkpoint: str) -> tuple[int, bool]:
    """The last batch with offsets, and whether it is not finished yet; `NONE` before the first."""
    last = newest(files, f"{checkpoint}/offsets")
    return last, last != newest(files, f"{checkpoint}/commits")


def end(files: Files, checkpoint: str, number: int) -> Positions | None:
    """The offsets behind a batch; None if there is no such batch.

    Raises:
        CorruptLogError: they cannot be read.
    """
    path = f"{checkpoint}/offsets/{number}"
    if not files.exists(path):
        return None
    return _offsets(_lines(files, path, lambda lines: _is_plan(*lines))[1])


def names_files(files: Files, log: str) -> bool:
    """Whether the log of a Parquet output names any file.

    Raises:
        CorruptLogError: a file of the log cannot be read.
    """
    newest_first = sorted(_numbers(files, log).items(), reverse=True)
    return any(_is_json(line) for _, name in newest_first for line in _read(files, f"{log}/{name}"))


def check_list(files: Files, log: str) -> None:
    """Makes sure that readers find each file that the log of a Parquet output names.

    They begin with the last batch whose file has the list of all batches before it, and need each batch behind it.

    Raises:
        CorruptLogError: a file of the log is missing, cannot be read, or does not hold what Spark writes there.
    """
    names = _numbers(files, log)
    last = max(names, default=NONE)
    first = max((number for number, name in names.items() if name.endswith(_COMPACT)), default=0)
    for number in range(first, last + 1):
        path = f"{log}/{names.get(number, number)}"
        if number not in names:
            raise CorruptLogError("--output", f"{path} is missing")
        lines = _read(files, path)
        if next(lines, None) != _VERSION or not all(map(_names_file, lines)):
            raise CorruptLogError("--output", f"{path} is damaged, and not what Spark writes")


def text(files: Files, path: str) -> str | None:
    """The text of a file; None if there is no such file.

    Raises:
        CorruptLogError: it cannot be read.
    """
    with _readable(path):
        return files.read(path)


def _read(files: Files, path: str) -> Iterator[str]:
    """The lines of a file; errors are those of `text`."""
    with _readable(path):
        yield from files.lines(path)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as exc:
        raise CorruptLogError("--checkpoint", f"{path} is damaged: it is no text") from exc
    except Py4JJavaError as exc:
        reason = str(exc.java_exception.getMessage()).partition("\n")[0]
        raise CorruptLogError("--checkpoint", f"{path} cannot be read: {reason}") from exc


def _numbers(files: Files, folder: str) -> dict[int, str]:
    found = ((_NUMBERED.fullmatch(name), name) for name in files.names(folder))
    return {int(match[1]): name for match, name in found if match}


def _lines(files: Files, path: str, whole: Callable[[list[str]], object]) -> list[str]:
    """The lines of a file behind that with the version, if they are what Spark writes there."""
    found = text(files, path)
    if found is None:
        raise CorruptLogError("--checkpoint", f"{path} is missing, and Spark needs it to go on")
    version, *lines = found.splitlines() or [""]
    if version != _VERSION or not whole(lines):
        raise CorruptLogError("--checkpoint", f"{path} is damaged: {len(found)} characters, and not what Spark writes")
    return lines


def _is_plan(conf: str = "", offsets: str = "", *more: str) -> bool:
    return not more and _is_json(conf) and _offsets(offsets) is not None


def first_text(files: Files, checkpoint: str) -> str | None:
    """The offsets where the first batch of Spark's Kafka source began; None if it noted none.

    Raises:
        CorruptLogError: the file cannot be read.
    """
    found = text(files, f"{checkpoint}/{_FIRST_FILE}")
    # It begins with a byte that says nothing.
    return None if found is None else found[1:].removeprefix(f"{_VERSION}\n")


def _check_first(files: Files, checkpoint: str, *, needed: bool) -> None:
    """Checks where the first batch began. Spark reads it in any case, and asks Kafka anew where it is missing."""
    path, found = f"{checkpoint}/{_FIRST_FILE}", first_text(files, checkpoint)
    if found is None:
        if needed:
            raise CorruptLogError("--checkpoint", f"{path} is missing; it says where the first batch begins")
    elif _offsets(found) is None:
        raise CorruptLogError("--checkpoint", f"{path} is damaged, and not what Spark writes")


def _names_file(line: str) -> bool:
    """Whether a line is an entry of the list: a file that was written, or one that is deleted."""
    try:
        found = json.loads(line)
        return isinstance(found["path"], str) and type(found["size"]) is int and found["action"] in ("add", "delete")
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


def _offsets(line: str) -> Positions | None:
    """Offsets as Spark's Kafka source writes them; None if they are anything else."""
    try:
        found = {
            (topic, int(partition)): offset
            for topic, partitions in json.loads(line).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if all(type(offset) is int and offset >= 0 for offset in found.values()) else None


def _query(files: Files, path: str) -> str:
    try:
        return str(uuid.UUID(json.loads(text(files, path) or "")["id"]))
    except (ValueError, TypeError, LookupError, AttributeError) as exc:
        raise CorruptLogError("--checkpoint", f"{path} is missing or damaged; it names the query") from exc


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
