"""The batches that Spark has noted: planned and finished ones in a checkpoint, written ones in a Parquet output.

Spark gives each batch a number, and each log a file for each batch. Each file begins with the line `v1`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError

from jobs.driver.jvm import Files
from transforms.errors import ConfigurationError

__all__ = ["NONE", "Batches", "CorruptLogError", "batches", "names_files", "newest"]

NONE = -1
"""The number of the last batch where there is none."""

_NUMBERED = re.compile(r"(\d+)(?:\.compact)?")
_VERSION = "v1"


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


def batches(files: Files, checkpoint: str) -> Batches:
    """The batches of a checkpoint.

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
    for number in range(max(found.planned - 1, 0), found.planned + 1):
        _check(files, f"{offsets}/{number}", lambda lines: len(lines) > 1 and all(map(_is_json, lines)))
    if found.done != NONE:
        _check(files, f"{commits}/{found.done}", lambda lines: len(lines) == 1 and _is_json(lines[0]))
    query = _query(files, f"{checkpoint}/metadata")
    return Batches(found.planned, found.done, query)


def newest(files: Files, folder: str) -> int:
    """The highest number of a batch in the folder of a log; `NONE` if there is none."""
    return max(_numbers(files, folder), default=NONE)


def names_files(files: Files, log: str) -> bool:
    """Whether the log of a Parquet output names any file.

    Raises:
        CorruptLogError: a file of the log cannot be read.
    """
    for _, name in sorted(_numbers(files, log).items(), reverse=True):
        if any(map(_is_json, (text(files, f"{log}/{name}") or "").splitlines())):
            return True
    return False


def text(files: Files, path: str) -> str | None:
    """The text of a file; None if there is no such file.

    Raises:
        CorruptLogError: it cannot be read.
    """
    try:
        return files.read(path)
    except UnicodeDecodeError as exc:
        raise CorruptLogError("--checkpoint", f"{path} is damaged: it is no text") from exc
    except Py4JJavaError as exc:
        reason = str(exc.java_exception.getMessage()).partition("\n")[0]
        raise CorruptLogError("--checkpoint", f"{path} cannot be read: {reason}") from exc


def _numbers(files: Files, folder: str) -> dict[int, str]:
    found = ((_NUMBERED.fullmatch(name), name) for name in files.names(folder))
    return {int(match[1]): name for match, name in found if match}


def _check(files: Files, path: str, whole: Callable[[list[str]], bool]) -> None:
    found = text(files, path)
    if found is None:
        raise CorruptLogError("--checkpoint", f"{path} is missing, and Spark needs it to go on")
    version, *lines = found.splitlines() or [""]
    if version != _VERSION or not whole(lines):
        raise CorruptLogError("--checkpoint", f"{path} is damaged: {len(found)} characters, and not what Spark writes")


def _query(files: Files, path: str) -> str:
    try:
        return str(json.loads(text(files, path) or "")["id"])
    except (ValueError, TypeError, LookupError) as exc:
        raise CorruptLogError("--checkpoint", f"{path} is missing or damaged; it names the query") from exc


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
